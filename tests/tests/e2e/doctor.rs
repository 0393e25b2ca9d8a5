//! The doctor on a live installation, which this world is for it: its canary, and its checks of a
//! cluster.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_tests::{
    scenario::{Handle, RUN},
    world::{cluster, ready},
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::process::Command;

use crate::world::shared;

/// The doctor's output, and whether it had no failures.
async fn doctor(world: &Handle, only: &str, variables: &[(&str, &str)]) -> Result<(String, bool)> {
    let target = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name("doctor");
    let mut doctor = Command::new(&target);
    doctor.env("PATH", format!("{}:{}", world.get("WORLD_TOOLS")?, std::env::var_os("PATH").unwrap_or_default().display()));
    for name in ["KUBECONFIG", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        doctor.env(name, world.get(name)?);
    }
    doctor.env("CLUSTER", cluster::NAME).env("ONLY", only).envs(variables.iter().copied());
    let output = doctor.output().await.with_context(|| format!("{}: run `make build`", target.display()))?;
    let text = String::from_utf8(output.stdout)?;
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok((text, output.status.success()))
}

#[tokio::test]
async fn canary_becomes_ready_and_is_deleted() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("doctor").await?;
    let backend = format!("file://{}", team.state()?);
    let (text, well) = doctor(&world, "canary", &[("NAMESPACE", "doctor"), ("BACKEND_URL", &backend)]).await?;
    assert!(well, "{text}");
    assert!(text.contains("ok    canary: Ready after ") && text.contains("ok    canary: destroyed and deleted after "), "{text}");
    // Kubernetes deletes them after their Stack.
    ready::until("no Update of it is left", RUN, async || {
        let left = team.updates("driftless-doctor").await?.len();
        ensure!(left == 0, "{left} Updates");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn canary_names_its_wait_where_runs_are_not_allowed() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.foreign_namespace("doctor-closed").await?;
    let backend = format!("file://{}", team.state()?);
    // Two sweeps: enough to repair a lost hint.
    let variables = [("NAMESPACE", "doctor-closed"), ("BACKEND_URL", &*backend), ("DEADLINE", "120")];
    let (text, well) = doctor(&world, "canary", &variables).await?;
    assert!(!well, "{text}");
    assert!(text.contains("FAIL  canary: not Ready within 120s: its run waits\n      why: ServiceAccountForbidden: "), "{text}");
    Ok(())
}

#[tokio::test]
async fn migrate_reports_on_the_stacks_of_a_cluster() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.foreign_namespace("doctor-migrate").await?;
    let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), &team.name);
    ready::until("a controller makes the namespace's ServiceAccount", RUN, async || {
        Ok(accounts.get("default").await.map(drop)?)
    })
    .await?;
    let role = json!({ "metadata": { "annotations": { "eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/shop" } } });
    accounts.patch("default", &PatchParams::default(), &Patch::Merge(role)).await?;
    let stack = |name: &str, more: &str| {
        let head = format!("apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {{ name: {name}, namespace: NAMESPACE }}");
        format!("{head}\nspec: {{ stack: dev, backend: 's3://state', programRef: {{ name: app }}{more} }}")
    };
    let pod = |spec: &str| format!(", workspaceTemplate: {{ spec: {{ podTemplate: {{ spec: {{ {spec} }} }} }} }}");
    team.apply(&stack("plain", "")).await?;
    team.apply(&stack("tolerant", &pod("tolerations: [{ key: a }]"))).await?;
    team.apply(&stack("node", &pod("volumes: [{ name: v, hostPath: { path: /data } }]"))).await?;
    let (text, well) = doctor(&world, "cluster", &[("MIGRATE", "1")]).await?;
    assert!(!well, "{text}");
    for line in [
        "same       Stack doctor-migrate/plain\n",
        "different  Stack doctor-migrate/tolerant\n             different: ignored, because a run is a Fargate task and not a pod: \
         spec.workspaceTemplate.spec.podTemplate.spec.tolerations\n",
        "refused    Stack doctor-migrate/node\n             refused: spec.workspaceTemplate.spec.podTemplate.spec.volumes[v].hostPath has no meaning",
        "\n           Stack doctor-migrate/plain\n",
        "\n             do: make deploy PARAMETERS=RuntimeImages= keeps the large image for all",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let stacks = Api::<Stack>::namespaced(world.client.clone(), &team.name);
    stacks.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn doctor_checks_crds_rights_and_namespaces_of_a_cluster() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (open, closed) = (world.namespace("doctor-open").await?, world.foreign_namespace("doctor-shut").await?);
    for team in [&open, &closed] {
        let stack = "apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: { name: app, namespace: NAMESPACE }\n\
                     spec: { stack: dev, programRef: { name: none } }";
        team.apply(stack).await?;
    }
    let (text, well) = doctor(&world, "cluster", &[]).await?;
    assert!(!well, "this world's forwarder is no Deployment: {text}");
    for line in [
        "ok    CRD stacks.pulumi.com: of this release",
        "ok    CRD updates.auto.pulumi.com: of this release",
        "ok    rights: each function has its rights",
        "ok    Service flux-system/source-controller: the API server reaches it",
        "ok    namespace doctor-open: allows runs",
        "FAIL  namespace doctor-shut: has Stacks but does not allow runs\n      why: not allowed: get secrets",
        "FAIL  forwarder: not found",
    ] {
        assert!(text.contains(line), "{line:?} is not in: {text}");
    }
    Ok(())
}
