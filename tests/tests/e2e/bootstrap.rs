//! A program that installs Flux, Driftless and itself: `docs/bootstrap.md`, command by command.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    guide::Guide,
    scenario::{FLUX, Handle, Namespace, PASSPHRASE, commit, definition},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind},
};
use serde_json::Value;
use tokio::process::Command;

use crate::world::shared;

const PAGE: &str = include_str!("../../../docs/bootstrap.md");
const BY_HAND: &str = "Run the program once by hand";
const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io/v1";

/// A user with a clone of a repository.
struct User<'a> {
    world: &'a Handle,
    guide: Guide,
    checkout: PathBuf,
    /// The program's folder in the clone.
    folder: PathBuf,
    backend: String,
}

impl User<'_> {
    async fn pulumi(&self, arguments: &[&str]) -> Result<String> {
        self.world.pulumi(&self.folder, &self.backend, arguments).await
    }

    async fn set(&self, name: &str, value: &str) -> Result<()> {
        self.pulumi(&["config", "set", name, value]).await.map(drop)
    }

    /// Commits the program and its settings, and waits until the Stack has run that commit.
    async fn commit(&self, team: &Namespace<'_>) -> Result<()> {
        self.guide.run(BY_HAND, 2).await?;
        let revision = git(&self.checkout, &["rev-parse", "HEAD"]).await?;
        team.reconcile_source("bootstrap", &revision).await?;
        let ran = |stack: &driftless_api::Stack| commit(stack) == Some(&format!("main@sha1:{revision}"));
        team.wait("bootstrap", "to have run what was committed", ran).await.map(drop)
    }

    /// The changes of the stack's last update, by operation.
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

async fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(folder).output().await?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[tokio::test]
async fn bootstrap_program_is_run_by_the_stack_it_created() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("driftless-bootstrap").await?;
    let repository = world.git.create("bootstrap").await?;
    let backend = format!("file://{}", team.state()?);
    let home = PathBuf::from(world.get("WORLD_LOGS")?).with_file_name("bootstrap");
    fs::create_dir(&home)?;
    let (checkout, [key, passphrase]) = (home.join("checkout"), ["webhook-key", "passphrase"].map(|name| home.join(name)));
    git(&home, &["clone", "--quiet", &repository.path.display().to_string(), "checkout"]).await?;
    fs::write(&key, "canary-bootstrap-key")?;
    fs::write(&passphrase, PASSPHRASE)?;
    let [key, passphrase, place] = [&key, &passphrase, &checkout].map(|path| path.display().to_string());
    let pulumi = world.pulumi_environment(&backend)?;
    let pulumi = pulumi.iter().map(|(name, value)| (*name, value.as_str()));
    let environment = [
        ("CHECKOUT", place.as_str()),
        ("REPOSITORY", &repository.url),
        ("BACKEND", &backend),
        ("ANNOTATIONS", "example.com/team: platform, example.com/tier: base"),
        ("CLUSTER", "world"),
        ("AWS_REGION", world.get("AWS_REGION")?),
        ("HINTS_QUEUE_URL", "https://sqs.example/hints"),
        ("WEBHOOK_URL", "https://webhook.example/"),
        ("FORWARDER_IMAGE", "example/forwarder:1"),
        ("KEY", &key),
        ("PASSPHRASE", &passphrase),
        ("GIT_AUTHOR_NAME", "world"),
        ("GIT_AUTHOR_EMAIL", "world@driftless.invalid"),
        ("GIT_COMMITTER_NAME", "world"),
        ("GIT_COMMITTER_EMAIL", "world@driftless.invalid"),
    ];
    let environment: Vec<_> = environment.into_iter().chain(pulumi).collect();
    let guide = Guide::read(PAGE, Path::new(world.get("WORLD_TOOLS")?), &environment)?;
    let user = User { world: &world, guide, folder: checkout.join("bootstrap"), checkout, backend };

    user.guide.run(BY_HAND, 0).await?;
    // Not available here: Flux's release, and Driftless's.
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let is_there = crds.get_opt("kustomizations.kustomize.toolkit.fluxcd.io").await?.is_some();
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: { name: flux-system }\n";
    fs::write(
        user.folder.join("flux.yaml"),
        if is_there { namespace.to_owned() } else { definition("kustomize.toolkit.fluxcd.io", "Kustomization") },
    )?;
    user.set("fluxManifest", "flux.yaml").await?;
    user.set("driftlessUrl", &repository.url).await?;
    user.guide.run(BY_HAND, 1).await?;
    let made = user.last_changes().await?;
    ensure!(made["create"].as_u64() > Some(1) && made.as_object().is_some_and(|all| all.len() == 1), "{made}");

    user.commit(&team).await?;
    user.guide.run(BY_HAND, 3).await?;
    user.guide.all_were_run()?;
    team.ready_after("bootstrap", 1).await?;
    assert_eq!(user.last_changes().await?, serde_json::json!({ "same": made["create"] }));

    // Committed settings are applied, by the ServiceAccount of the program.
    user.set("forwarderImage", "example/forwarder:2").await?;
    user.commit(&team).await?;
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
