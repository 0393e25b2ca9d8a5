//! Failed runs, and their retries.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_contract::keys::task_id;
use driftless_tests::{
    scenario::{Namespace, RUN, Source, condition, is_ready, output},
    world::ready,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::world::{children, keys, looked, no_dead_letters, nothing_was_given_up, pid, shared};

/// Failures of the last Update, if it failed.
fn failed(stack: &Stack) -> Option<(String, i64, Timestamp)> {
    let last = stack.status.as_ref()?.last_update.as_ref()?;
    (last.state.as_deref() == Some("failed")).then_some(())?;
    Some((last.message.clone().unwrap_or_default(), last.failures?, last.last_resync_time.as_ref()?.0))
}

fn created(update: &Update) -> Option<Timestamp> {
    update.creation_timestamp().map(|time| time.0)
}

#[tokio::test]
async fn failing_program_is_retried_with_back_off_until_it_succeeds() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("failing").await?;
    let (file, marker) = (team.file("app.txt")?, team.file("marker")?);
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    team.apply_program("app", &team.program("app.txt", "one", &format!(", failWhenExists: {marker}"))?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;

    let stack = team.wait("app", "to fail", |stack| failed(stack).is_some()).await?;
    let (message, failures, first) = failed(&stack).context("a failure")?;
    ensure!(message.contains(&format!("cannot write {file} while {marker} exists")), "pulumi's own words: {message}");
    assert_eq!(failures, 0);
    let (type_, reason, words) = condition(&stack).context("a condition")?;
    assert_eq!((type_.as_str(), reason.as_str(), words.as_str()), ("Reconciling", "RetryingAfterFailure", "0 update failure(s)"));

    let stack = team.wait("app", "to fail again", |stack| failed(stack).is_some_and(|(_, failures, _)| failures == 1)).await?;
    let (_, _, second) = failed(&stack).context("a failure")?;
    fs::remove_file(&marker)?;
    let stack = team.ready_after("app", 3).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    let updates = team.updates("app").await?;
    for (update, after, cooldown) in [(&updates[1], first, 10), (&updates[2], second, 30)] {
        let waited = created(update).context("a time")?.duration_since(after).as_secs();
        // The retry may start later than it is due.
        ensure!(waited >= cooldown, "waited {waited} s, not {cooldown} s");
    }
    Ok(())
}

#[tokio::test]
async fn retries_end_at_the_limit_of_the_stack_and_begin_anew_with_a_commit() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("retries").await?;
    let marker = team.file("marker")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    let fails = format!(", failWhenExists: {marker}");
    team.apply_program("app", &team.program("app.txt", "one", &fails)?).await?;
    let refused = team.apply_stack("app", Source::Program("app"), "  driftless: { retries: { limit: 101 } }\n").await;
    ensure!(
        refused.is_err_and(|error| format!("{error:#}").contains("spec.driftless.retries.limit")),
        "101 retries are accepted"
    );
    let retries = "  driftless: { retries: { limit: 1, firstBackoffSeconds: 1 } }\n";
    team.apply_stack("app", Source::Program("app"), retries).await?;
    let used_up = async |runs: usize| {
        team.wait("app", "to have used up its retries", |stack| {
            let words = "up failed after 1 retries (spec.driftless.retries.limit); not retrying until the spec, the source or the \
                         annotation pulumi.com/reconciliation-request changes";
            condition(stack).is_some_and(|(_, reason, message)| reason == "UpdateFailed" && message == words)
        })
        .await?;
        ensure!(team.updates("app").await?.len() == runs, "not {runs} runs: {}", team.state()?);
        Ok(())
    };
    used_up(2).await?;
    team.apply_program("app", &team.program("app.txt", "two", &fails)?).await?;
    let two = |stack: &Stack| failed(stack).is_some_and(|(_, failures, _)| failures == 0);
    team.wait("app", "to fail at the next revision", two).await?;
    used_up(4).await?;
    fs::remove_file(&marker)?;
    team.apply_program("app", &team.program("app.txt", "three", &fails)?).await?;
    team.ready_after("app", 5).await?;
    team.clear().await
}

#[tokio::test]
async fn a_killed_runner_is_recorded_and_its_lock_removed_by_the_retry() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("killed").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let locks = Path::new(&team.state()?).join(".pulumi/locks/organization/app/dev");
    let is_lock = |file: &fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "json");
    let locked = || fs::read_dir(&locks).map_or(0, |files| files.flatten().filter(is_lock).count());

    // Mid-update. Other commands of Pulumi take the lock too, all of them before the runner has
    // recorded the owner of this one.
    let first = task_of(&team, 1).await?;
    has_written_its_lock(&team, &first).await?;
    ready::until("pulumi holds its lock", RUN, async || {
        ensure!(locked() == 1, "{} locks in {}", locked(), locks.display());
        Ok(())
    })
    .await?;
    // The file backend writes a checkpoint in place: a kill at that moment leaves half a
    // checkpoint, which no later run can read.
    let checkpoint = Path::new(&team.state()?).join(".pulumi/stacks/app/dev.json");
    ready::until("the checkpoint has the operation that is held", RUN, async || {
        let checkpoint: Value = serde_json::from_slice(&fs::read(&checkpoint)?)?;
        let pending = &checkpoint["checkpoint"]["latest"]["pending_operations"];
        ensure!(pending.as_array().is_some_and(|pending| !pending.is_empty()), "{checkpoint}");
        Ok(())
    })
    .await?;
    kill_process(pid(&world, &first)?, Signal::KILL)?;
    let stack = team.wait("app", "to have failed", |stack| failed(stack).is_some()).await?;
    let (message, ..) = failed(&stack).context("a failure")?;
    ensure!(message.starts_with("the task ended without a result: "), "{message}");
    assert_eq!(locked(), 1, "a dead run leaves its lock");

    // Before Pulumi checks for locks, some tenths of a second after its start.
    let second = task_of(&team, 2).await?;
    let pulumi = ready::until_every(Duration::from_millis(10), "pulumi up is called", RUN, async || {
        let children = children(pid(&world, &second)?);
        let up = children.iter().find(|(_, words)| words.iter().any(|word| word == "up"));
        up.map(|(pid, _)| *pid).with_context(|| format!("{children:?}"))
    })
    .await?;
    kill_process(pulumi, Signal::STOP)?;
    has_written_its_lock(&team, &second).await?;
    kill_process(pid(&world, &second)?, Signal::KILL)?;
    let platform_failures = |stack: &Stack| Some(stack.status.as_ref()?.driftless.as_ref()?.platform_failures.as_ref()?.count);
    team.wait("app", "to have failed again", |stack| platform_failures(stack) == Some(2)).await?;
    assert_eq!(locked(), 1, "the second run does not remove the lock of the first");

    drop(hold);
    let stack = team.ready_after("app", 3).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    assert_eq!(locked(), 0);
    looked(&team, "app").await?;
    team.ready_after("app", 3).await?;
    nothing_was_given_up(&world).await
}

/// The id of the task of the Stack `app`'s newest Update, once there are this many.
async fn task_of(team: &Namespace<'_>, updates: usize) -> Result<String> {
    ready::until_every(Duration::from_millis(50), &format!("Update {updates} has a task"), RUN, async || {
        let found = team.updates("app").await?;
        ensure!(found.len() == updates, "{found:#?}");
        let task = found.last().and_then(|update| update.status.as_ref()?.driftless.as_ref()?.task.as_deref());
        Ok(task_id(task.with_context(|| format!("no task in {found:#?}"))?).to_owned())
    })
    .await
}

async fn has_written_its_lock(team: &Namespace<'_>, task: &str) -> Result<()> {
    let written = format!("{task}/out/lock");
    ready::until(&format!("there is {written}"), RUN, async || {
        ensure!(keys(team.world, "tasks/").await?.iter().any(|key| key.ends_with(&written)), "no {written}");
        Ok(())
    })
    .await
}

/// Waits until the first Update of the Stack `app` reports its wait with this message.
async fn waits_for(team: &Namespace<'_>, words: &str) -> Result<()> {
    ready::until("the Update says what it waits for", RUN, async || {
        let updates = team.updates("app").await?;
        let status = updates.first().and_then(|update| update.status.clone()).unwrap_or_default();
        let found = status.driftless.and_then(|ours| ours.waiting_for).unwrap_or_default();
        ensure!(found.contains(words), "{updates:#?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn missing_role_bindings_are_named() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.foreign_namespace("foreign").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    for role in ["driftless:run-identity", "driftless:run-inputs"] {
        waits_for(&team, &format!("bind the ClusterRole {role} in it (infra/kubernetes/runs)")).await?;
        team.bind(role).await?;
    }
    team.allow_runs().await?;
    team.ready_after("app", 1).await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn a_missing_secret_keeps_the_run_waiting_and_is_named() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("missing").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let more = "    TOKEN: { type: Secret, secret: { name: later, key: token } }\n";
    team.apply_stack("app", Source::Program("app"), more).await?;
    waits_for(&team, "Secret \"later\" not found; create it to start the run").await?;
    team.apply("apiVersion: v1\nkind: Secret\nmetadata: { name: later, namespace: NAMESPACE }\nstringData: { token: t }").await?;
    team.ready_after("app", 1).await.map(drop)
}

#[tokio::test]
async fn invalid_spec_is_named_and_heals_with_an_edit() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("invalid").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "  config: { key: one }\n  secrets: { key: two }\n").await?;
    let stack = team.wait("app", "to be stalled", |stack| condition(stack).is_some_and(|(type_, ..)| type_ == "Stalled")).await?;
    let (_, reason, words) = condition(&stack).context("a condition")?;
    assert_eq!(
        (reason.as_str(), words.as_str()),
        ("SpecInvalid", "config key \"key\" is in spec.config and in spec.secrets; keep one")
    );
    assert_eq!(team.updates("app").await?.len(), 0);
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await.map(drop)
}

#[tokio::test]
async fn refused_update_is_reported_by_event_and_heals_with_an_edit() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("refused-update").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let invalid = "  updateTemplate: { metadata: { labels: { team: 'not valid!' } } }\n";
    team.apply_stack_as("app", "app", "{}", Source::Program("app"), invalid).await?;
    team.told("app", "UpdateRefused", &["not valid!"]).await?;
    let shown = |stack: &Stack| condition(stack).is_some_and(|(_, _, words)| words.contains("not valid!"));
    team.wait("app", "to show the refusal", shown).await?;
    no_dead_letters(&world).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    team.clear().await
}

#[tokio::test]
async fn a_deleted_stack_is_destroyed_first() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("destroyed").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "  destroyOnFinalize: true\n").await?;
    team.wait("app", "to be Ready", is_ready).await?;
    let file = team.file("app.txt")?;
    ensure!(Path::new(&file).exists(), "there is no {file}");
    let stacks: kube::Api<Stack> = kube::Api::namespaced(world.client.clone(), &team.name);
    stacks.delete("app", &kube::api::DeleteParams::default()).await?;
    ready::until("the Stack is gone", RUN, async || {
        let found = stacks.get_opt("app").await?;
        ensure!(found.is_none(), "{:#?}", found.and_then(|stack| stack.status));
        Ok(())
    })
    .await?;
    ensure!(!Path::new(&file).exists(), "{file} is still there");
    Ok(())
}
