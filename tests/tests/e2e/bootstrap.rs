//! A program that brings up Flux, Driftless and itself.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::scenario::{FLUX, Handle, Namespace, PASSPHRASE, commit, definition};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use crate::world::shared;

const PROGRAM: &str = include_str!("../../../infra/bootstrap/Pulumi.yaml");
const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io/v1";

/// A user with the program in a folder.
struct User<'a> {
    world: &'a Handle,
    folder: PathBuf,
    backend: String,
}

impl User<'_> {
    async fn pulumi(&self, arguments: &[&str]) -> Result<String> {
        self.world.pulumi(&self.folder, &self.backend, arguments).await
    }

    async fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        for (name, value) in settings {
            let secret: &[&str] = if ["webhookKey", "passphrase"].contains(name) { &["--secret"] } else { &[] };
            self.pulumi(&[&["config", "set", name, value], secret].concat()).await?;
        }
        Ok(())
    }

    /// What the last update of the stack did, by operation.
    async fn last_changes(&self) -> Result<Value> {
        let history: Value = serde_json::from_str(&self.pulumi(&["stack", "history", "--json", "--page-size", "1"]).await?)?;
        Ok(history[0]["resourceChanges"].clone())
    }
}

fn flux_objects(world: &Handle, api_version: &str, kind: &str) -> Result<Api<DynamicObject>> {
    let (group, version) = api_version.split_once('/').context("a group")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Ok(Api::namespaced_with(world.client.clone(), "flux-system", &resource))
}

async fn commit_program(
    user: &User<'_>,
    team: &Namespace<'_>,
    repository: &driftless_tests::world::git::Repository,
) -> Result<()> {
    let read = |name: &str| fs::read_to_string(user.folder.join(name));
    let (settings, flux) = (read("Pulumi.prod.yaml")?, read("flux.yaml")?);
    let files = [("Pulumi.yaml", PROGRAM), ("Pulumi.prod.yaml", settings.as_str()), ("flux.yaml", flux.as_str())];
    let revision = repository.commit("bootstrap", &files).await?;
    team.reconcile_source("bootstrap", &revision).await?;
    let ran = |stack: &driftless_api::Stack| commit(stack) == Some(&format!("main@sha1:{revision}"));
    team.wait("bootstrap", "to have run what was committed", ran).await.map(drop)
}

#[tokio::test]
async fn a_program_that_was_run_once_by_hand_is_run_by_the_stack_that_it_made() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("bootstrap").await?;
    let repository = world.git.create("bootstrap").await?;
    let backend = format!("file://{}", team.state()?);
    let folder = PathBuf::from(world.get("WORLD_LOGS")?).with_file_name("bootstrap");
    fs::create_dir(&folder)?;
    let user = User { world: &world, folder, backend };
    fs::write(user.folder.join("Pulumi.yaml"), PROGRAM)?;
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let is_there = crds.get_opt("kustomizations.kustomize.toolkit.fluxcd.io").await?.is_some();
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: { name: flux-system }\n";
    fs::write(
        user.folder.join("flux.yaml"),
        if is_there { namespace.to_owned() } else { definition("kustomize.toolkit.fluxcd.io", "Kustomization") },
    )?;

    user.pulumi(&["stack", "init", "prod"]).await?;
    let settings = [
        ("cluster", "world"),
        ("region", world.get("AWS_REGION")?),
        ("hintsQueueUrl", "https://sqs.example/hints"),
        ("webhookUrl", "https://webhook.example/world"),
        ("webhookKey", "canary-bootstrap-key"),
        ("forwarderImage", "example/forwarder:1"),
        ("repositoryUrl", &repository.url),
        ("backend", &user.backend),
        ("passphrase", PASSPHRASE),
        ("namespace", &team.name),
        ("annotations", "example.com/team: platform, example.com/tier: base"),
        ("driftlessUrl", &repository.url),
        ("fluxManifest", "flux.yaml"),
    ];
    user.set(&settings).await?;
    user.pulumi(&["up", "--yes", "--skip-preview"]).await?;
    let made = user.last_changes().await?;
    ensure!(made["create"].as_u64() > Some(1) && made.as_object().is_some_and(|all| all.len() == 1), "{made}");

    commit_program(&user, &team, &repository).await?;
    team.ready_after("bootstrap", 1).await?;
    assert_eq!(user.last_changes().await?, serde_json::json!({ "same": made["create"] }));

    // Settings that were committed are applied, by the ServiceAccount of the program.
    user.set(&[("forwarderImage", "example/forwarder:2")]).await?;
    commit_program(&user, &team, &repository).await?;
    team.ready_after("bootstrap", 2).await?;
    let driftless = flux_objects(&world, KUSTOMIZE, "Kustomization")?.get("driftless").await?;
    let patch = driftless.data["spec"]["patches"][0]["patch"].as_str().context("a patch")?;
    ensure!(patch.contains("FORWARDER_IMAGE: \"example/forwarder:2\""), "{patch}");

    team.clear().await?;
    for (api_version, kind) in [(KUSTOMIZE, "Kustomization"), (FLUX, "GitRepository")] {
        flux_objects(&world, api_version, kind)?.delete("driftless", &DeleteParams::default()).await?;
    }
    Ok(())
}
