//! An unavailable source: the Stack's condition, and its recovery with the source.

use anyhow::{Result, ensure};
use driftless_tests::{
    scenario::{FLUX, Handle, Namespace, RUN, Source, commit, definition, is_ready},
    world::{cluster, git::Repository, ready},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::{looked, shared};

/// A namespace and a repository with a project that no source follows yet.
async fn prepared<'a>(world: &'a Handle, name: &str) -> Result<(Namespace<'a>, Repository, String)> {
    let team = world.namespace(name).await?;
    let repository = world.git.create(name).await?;
    let project = format!("name: app\nruntime: yaml\n{}", team.program("${pulumi.stack}.txt", "one", "")?);
    let id = repository.commit("one", &[("Pulumi.yaml", &project)]).await?;
    Ok((team, repository, format!("main@sha1:{id}")))
}

/// Changes fields of the GitRepository `app`.
async fn patch(team: &Namespace<'_>, patch: serde_json::Value) -> Result<()> {
    team.objects(FLUX, "GitRepository")?.patch("app", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn missing_source_is_named_and_runs_when_created() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, _) = prepared(&world, "absent").await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    team.unavailable("app", "could not resolve sourceRef (GitRepository \"app\")").await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.ready_after("app", 1).await.map(drop)
}

#[tokio::test]
async fn unready_source_is_named_and_its_last_artifact_stays_in_use() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, revision) = prepared(&world, "not-ready").await?;
    team.apply_git_repository("app", &format!("{}/nothing-here", world.git.url)).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    team.unavailable("app", "Flux source has no artifact: failed to checkout and determine revision").await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.ready_after("app", 1).await?;

    team.apply_git_repository("app", &format!("{}/nothing-here", world.git.url)).await?;
    ready::until("the source is not ready", RUN, async || {
        let source = team.objects(FLUX, "GitRepository")?.get("app").await?;
        let conditions = source.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        ensure!(
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "False"),
            "{conditions:?}"
        );
        Ok(())
    })
    .await?;
    team.apply_stack_as("late", "late", "{}", Source::GitRepository("app"), "").await?;
    let late = team.ready_after("late", 1).await?;
    assert_eq!(commit(&late), Some(revision.as_str()));
    team.clear().await
}

#[tokio::test]
async fn suspended_source_is_used_if_it_has_an_artifact() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, _) = prepared(&world, "suspended").await?;
    let suspended = format!("{{ interval: 1h, url: '{}', ref: {{ branch: main }}, suspend: true }}", repository.url);
    team.apply_source("GitRepository", "app", &suspended).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    team.unavailable("app", "Flux source has no artifact: it is suspended; resume it (GitRepository \"app\")").await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.ready_after("app", 1).await?;
    team.apply_source("GitRepository", "app", &suspended).await?;
    team.apply_stack_as("late", "late", "{}", Source::GitRepository("app"), "").await?;
    team.ready_after("late", 1).await?;
    team.clear().await
}

#[tokio::test]
async fn edited_source_runs_its_new_revision() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, revision) = prepared(&world, "stale").await?;
    let next = repository.commit_on("next", "two", &[("more.yaml", "two\n")]).await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(commit(&stack), Some(revision.as_str()));
    // The source is suspended: the artifact belongs to the previous generation.
    patch(&team, json!({ "spec": { "suspend": true, "ref": { "branch": "next" } } })).await?;
    team.apply_stack_as("late", "late", "{}", Source::GitRepository("app"), "").await?;
    team.wait("late", "to be Ready", is_ready).await?;
    patch(&team, json!({ "spec": { "suspend": false } })).await?;
    let next = format!("next@sha1:{next}");
    for name in ["app", "late"] {
        team.wait(name, "to have run the other branch", |stack| commit(stack) == Some(&next) && is_ready(stack)).await?;
    }
    looked(&team, "app").await?;
    team.ready_after("app", 2).await.map(drop)
}

#[tokio::test]
async fn deleted_source_is_unused_and_recreated_one_is_not_rerun() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, _) = prepared(&world, "going").await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    team.ready_after("app", 1).await?;
    patch(&team, json!({ "metadata": { "finalizers": ["world.example/hold"] } })).await?;
    team.objects(FLUX, "GitRepository")?.delete("app", &DeleteParams::default()).await?;
    team.unavailable("app", "Flux source cannot be used: it is being deleted (GitRepository \"app\")").await?;
    patch(&team, json!({ "metadata": { "finalizers": null } })).await?;
    team.unavailable("app", "could not resolve sourceRef (GitRepository \"app\")").await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    looked(&team, "app").await?;
    team.ready_after("app", 1).await.map(drop)
}

#[tokio::test]
async fn unverified_source_is_not_used() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, repository, revision) = prepared(&world, "verified").await?;
    // An unsigned commit.
    team.apply_git_repository("app", &repository.url).await?;
    ready::until("the artifact", RUN, async || {
        ensure!(team.revision("GitRepository", "app").await?.as_ref() == Some(&revision), "no artifact");
        Ok(())
    })
    .await?;
    team.apply_secret("keys", &[("author.asc", "no key")]).await?;
    patch(&team, json!({ "spec": { "verify": { "mode": "HEAD", "secretRef": { "name": "keys" } } } })).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    team.unavailable("app", "spec.verify requires a verified source: ").await?;
    assert_eq!(team.updates("app").await?.len(), 0);

    // As its controller would report a signed commit.
    patch(&team, json!({ "spec": { "suspend": true } })).await?;
    let source = team.objects(FLUX, "GitRepository")?.get("app").await?;
    let verified = json!({
        "type": "SourceVerified", "status": "True", "reason": "Succeeded", "message": "verified signature of commit",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": source.metadata.generation,
    });
    // Repeated if its controller, which was busy when it was suspended, writes after the test.
    ready::until("the source counts as verified", RUN, async || {
        let source = team.objects(FLUX, "GitRepository")?.get("app").await?;
        if source.data["status"]["conditions"] != json!([verified]) {
            team.patch_status(FLUX, "GitRepository", "app", &json!({ "conditions": [verified] })).await?;
        }
        let stack = team.stack("app").await?;
        ensure!(is_ready(&stack), "{:#?} of {:#}", stack.status, source.data["status"]);
        Ok(())
    })
    .await?;
    team.ready_after("app", 1).await.map(drop)
}

#[tokio::test]
async fn unknown_source_kind_is_used_once_its_crd_exists() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("unknown-kind").await?;
    let old = Source::Flux { api_version: "source.toolkit.fluxcd.io/v1beta9", kind: "GitRepository", name: "app", dir: "" };
    team.apply_stack_as("old", "old", "{}", old, "").await?;
    let widget = Source::Flux { api_version: "world.example/v1", kind: "Widget", name: "app", dir: "" };
    team.apply_stack("app", widget, "").await?;
    team.unavailable("old", "cluster does not serve GitRepository of source.toolkit.fluxcd.io/v1beta9").await?;
    team.unavailable("app", "widgets.world.example \"app\" is forbidden").await?;

    cluster::apply_yaml(&world.client, RIGHTS).await?;
    team.unavailable("app", "cluster does not serve Widget of world.example/v1; install its CRD").await?;
    cluster::apply_yaml(&world.client, &definition("world.example", "Widget")).await?;
    let archive = driftless_testkit::hostile::honest();
    ready::until("the kind is served", RUN, || team.offer("world.example/v1", "Widget", "app", "one", &archive)).await?;
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(commit(&stack), Some("one"));
    Ok(())
}

/// The rights that an administrator adds for a kind in the installation's `SourceKinds`.
const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: widgets }
rules: [{ apiGroups: [world.example], resources: [widgets], verbs: [get] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: widgets }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: widgets }
subjects:
- { apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'driftless:reconciler' }
- { apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'driftless:fetcher' }
";
