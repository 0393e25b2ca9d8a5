//! From `kubectl apply` or `git push` to Ready.

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    aws::control::Switches,
    scenario::{Handle, Namespace, RUN, Source, commit, output},
    world::{git::Repository, ready},
};
use kube::ResourceExt as _;
use serde_json::json;

use crate::world::{Alone, Frozen, alone, looked, nothing_was_given_up, quiet, shared, swept_until};

#[tokio::test]
async fn a_program_is_run_and_its_edit_is_run_once() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("program").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "  prerequisites: []\n  envs: []\n").await?;

    let stack = team.ready_after("app", 1).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    assert_eq!(std::fs::read_to_string(team.file("app.txt")?)?, "one");
    assert_eq!(stack.metadata.generation, Some(1), "our finalizer is no change of the spec");
    let last = stack.status.as_ref().and_then(|status| status.last_update.clone()).context("lastUpdate")?;
    assert_eq!((last.state.as_deref(), last.operation.as_deref(), last.generation), (Some("succeeded"), Some("up"), Some(1)));
    assert_eq!(last.last_successful_commit.as_deref(), Some("1"), "the Program's generation");
    assert!(stack.finalizers().iter().any(|finalizer| finalizer == "finalizer.stack.pulumi.com"));
    let status = team.program_object("app").await?.status.context("status")?;
    assert_eq!(status.observed_generation, Some(1));
    let artifact = status.artifact.context("status.artifact")?;
    let folder = format!("trees/world/{}/program.app/{}/", team.name, artifact.digest.unwrap_or_default().replace(':', "-"));
    let url = format!("s3://{}/{folder}", world.get("WORLD_BUCKET")?);
    assert_eq!((artifact.path, artifact.url, artifact.revision.as_str()), (folder, url, "1"));
    ensure!(
        artifact.size > Some(0) && artifact.last_update_time.is_some(),
        "{:?} {:?}",
        artifact.size,
        artifact.last_update_time
    );
    ensure!(artifact.metadata.is_empty(), "{:?}", artifact.metadata);

    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    team.wait("app", "to have run generation 2 of the Program", |stack| commit(stack) == Some("2")).await?;
    looked(&team, "app").await?;
    let stack = team.ready_after("app", 2).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("two")));
    // The Stack is Ready before its Update is released.
    let updates = ready::until("both Updates are released", RUN, async || {
        let updates = team.updates("app").await?;
        ensure!(updates.iter().all(|update| update.is_complete() && update.finalizers().is_empty()), "{updates:#?}");
        Ok(updates)
    })
    .await?;
    assert_eq!(updates[1].spec.message.as_deref(), Some("New commit detected: \"2\""));
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn two_stacks_run_at_once() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("two").await?;
    let hold = team.hold()?;
    for name in ["left", "right"] {
        team.apply_program(name, &team.program(name, name, &hold.property())?).await?;
        team.apply_stack(name, Source::Program(name), "").await?;
    }
    for name in ["left", "right"] {
        team.running(name).await?;
    }
    drop(hold);
    let (left, right) = tokio::try_join!(team.ready_after("left", 1), team.ready_after("right", 1))?;
    assert_eq!((output(&left, "content"), output(&right, "content")), (Some(&json!("left")), Some(&json!("right"))));
    Ok(())
}

/// A Stack on a repository that Flux follows, Ready at its first commit.
async fn following<'a>(world: &'a Handle, name: &str) -> Result<(Namespace<'a>, Repository)> {
    let team = world.namespace(name).await?;
    let repository = world.git.create(name).await?;
    let id = repository.commit("one", &[("Pulumi.yaml", &project(&team, "one")?)]).await?;
    team.apply_alert().await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.apply_stack("app", Source::GitRepository("app"), "").await?;
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(commit(&stack), Some(format!("main@sha1:{id}").as_str()));
    Ok((team, repository))
}

fn project(team: &Namespace<'_>, content: &str) -> Result<String> {
    Ok(format!("name: app\nruntime: yaml\n{}", team.program("app.txt", content, "")?))
}

/// Pushes a commit and waits until it has run, once, at that revision.
async fn push_is_run_once(world: &Handle, turn: &Alone, team: &Namespace<'_>, repository: &Repository) -> Result<()> {
    let before = team.updates("app").await?.len();
    let content = format!("content {before}");
    let id = repository.commit(&content, &[("Pulumi.yaml", &project(team, &content)?)]).await?;
    team.reconcile_source("app", &id).await?;
    let revision = format!("main@sha1:{id}");
    team.wait("app", &format!("to have run {revision}"), |stack| commit(stack) == Some(&revision)).await?;
    quiet(world, turn).await?;
    let stack = team.ready_after("app", before + 1).await?;
    assert_eq!(output(&stack, "content"), Some(&json!(content)));
    Ok(())
}

/// The number of notifications that the webhook has accepted so far.
async fn webhook_calls(world: &Handle) -> Result<u64> {
    let status = world.control.status().await?;
    Ok(status.functions.get("Webhook").and_then(|function| function["invocations"].as_u64()).unwrap_or(0))
}

#[tokio::test]
async fn a_push_is_run_by_the_signed_webhook_alone() -> Result<()> {
    let (world, turn) = alone().await?;
    let (team, repository) = following(&world, "by-webhook").await?;
    world.control.pause_schedule(true).await?;
    let _forwarder = Frozen::new(&world, "forwarder")?;
    let before = webhook_calls(&world).await?;
    push_is_run_once(&world, &turn, &team, &repository).await?;
    ensure!(webhook_calls(&world).await? > before, "the webhook was not called");
    Ok(())
}

#[tokio::test]
async fn a_push_is_run_by_the_watch_alone() -> Result<()> {
    let (world, turn) = alone().await?;
    let (team, repository) = following(&world, "by-watch").await?;
    world.control.disable_url(true).await?;
    world.control.pause_schedule(true).await?;
    push_is_run_once(&world, &turn, &team, &repository).await
}

#[tokio::test]
async fn a_push_is_run_by_the_sweep_alone() -> Result<()> {
    let (world, turn) = alone().await?;
    let (team, repository) = following(&world, "by-sweep").await?;
    world.control.disable_url(true).await?;
    let forwarder = Frozen::new(&world, "forwarder")?;
    let content = "by the sweep";
    let id = repository.commit(content, &[("Pulumi.yaml", &project(&team, content)?)]).await?;
    team.reconcile_source("app", &id).await?;
    let revision = format!("main@sha1:{id}");
    swept_until(&world, "the sweep finds the revision", async || {
        let stack = team.stack("app").await?;
        ensure!(commit(&stack) == Some(&revision), "{:#?}", stack.status);
        Ok(())
    })
    .await?;
    drop(forwarder);
    world.control.disable_url(false).await?;
    quiet(&world, &turn).await?;
    let stack = team.ready_after("app", 2).await?;
    assert_eq!(output(&stack, "content"), Some(&json!(content)));
    Ok(())
}

#[tokio::test]
async fn messages_that_come_twice_lead_to_one_run_per_change() -> Result<()> {
    let (world, turn) = alone().await?;
    switch_all(&world, &Switches { duplicate: true, ..Switches::default() }).await?;
    two_changes(&world, &turn, "twice").await
}

#[tokio::test]
async fn lost_first_hints_and_duplicates_lead_to_one_run_per_change() -> Result<()> {
    let (world, turn) = alone().await?;
    let twice = Switches { duplicate: true, ..Switches::default() };
    switch_all(&world, &twice).await?;
    world.control.switch("Reconciler", &Switches { drop_first: true, ..twice }).await?;
    two_changes(&world, &turn, "lost").await
}

async fn switch_all(world: &Handle, switches: &Switches) -> Result<()> {
    for function in ["Reconciler", "Fetcher", "Launcher", "Recorder"] {
        world.control.switch(function, switches).await?;
    }
    Ok(())
}

/// A Program and a Stack, and an edit: two runs, whatever happens to the messages. The sweep
/// repairs the loss of some.
async fn two_changes(world: &Handle, turn: &Alone, namespace: &str) -> Result<()> {
    let team = world.namespace(namespace).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    for (runs, generation) in [(1, "1"), (2, "2")] {
        if runs == 2 {
            team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
        }
        swept_until(world, "the change is run", async || {
            let stack = team.stack("app").await?;
            ensure!(commit(&stack) == Some(generation), "{:#?}", stack.status);
            Ok(())
        })
        .await?;
        quiet(world, turn).await?;
        team.ready_after("app", runs).await?;
    }
    nothing_was_given_up(world).await
}
