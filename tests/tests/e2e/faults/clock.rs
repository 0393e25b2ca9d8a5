//! Wrong clocks, and clocks that jump: of functions and of tasks.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Stack, Update};
use driftless_tests::scenario::{Handle, Namespace, Source, condition, is_ready};
use kube::ResourceExt as _;

use crate::{
    interruption::intact,
    updates::{ours, wait},
    world::{alone, nothing_was_given_up, shared},
};

/// A clock that is slow, as after a machine was asleep: by less than the tolerance of AWS
/// signatures and the start of a task.
const BEHIND: i64 = -240;
/// A clock that is fast: by less than a function's time limit, whose end it gets as a time.
const AHEAD: i64 = 20;

const DECIDING: [&str; 3] = ["Reconciler", "Fetcher", "Sweeper"];
const RUNNING: [&str; 3] = ["Launcher", "Recorder", "Webhook"];

async fn set_clocks(world: &Handle, ahead: [&str; 3], behind: [&str; 3]) -> Result<()> {
    for (functions, seconds) in [(ahead, AHEAD), (behind, BEHIND)] {
        for function in functions {
            world.control.set_clock(function, seconds).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn functions_with_wrong_clocks_run_every_change_once() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("clocks").await?;
    // As in an installation: a task has more time to start than clocks differ.
    world.control.set("START_SECONDS", "900").await?;
    // A slow clock of a reconciler would delay retries by the same time.
    set_clocks(&world, DECIDING, RUNNING).await?;
    let marker = team.file("marker")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    let hold = team.hold()?;
    for (stack, more) in [("held", hold.property()), ("failing", format!(", failWhenExists: {marker}")), ("gone", String::new())]
    {
        team.apply_program(stack, &team.program(&format!("{stack}.txt"), "one", &more)?).await?;
        team.apply_stack_as(stack, stack, "{}", Source::Program(stack), "  destroyOnFinalize: true\n").await?;
    }
    team.running("held").await?;
    let has_failed = |stack: &Stack| condition(stack).is_some_and(|(_, reason, _)| reason == "RetryingAfterFailure");
    team.wait("failing", "to fail", has_failed).await?;
    fs::remove_file(&marker)?;
    team.wait("failing", "to be Ready", is_ready).await?;
    team.ready_after("gone", 1).await?;

    // The clocks jump during a run.
    set_clocks(&world, RUNNING, DECIDING).await?;
    drop(hold);
    team.ready_after("held", 1).await?;
    for stack in ["held", "failing", "gone"] {
        intact(&team, stack, stack)?;
    }
    let runs = team.updates("failing").await?.len();
    ensure!((2..=4).contains(&runs), "{runs} runs of a program that failed until its cause was gone");
    team.clear().await?;
    for stack in ["held", "failing", "gone"] {
        let file = team.file(&format!("{stack}.txt"))?;
        ensure!(!Path::new(&file).exists(), "{file} is still there");
    }
    // An alarm would mean a function that was killed at its time limit, or that crashed.
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn task_with_a_wrong_clock_fails_uncounted_and_runs_with_a_right_one() -> Result<()> {
    const IMAGE: &str = "registry.example/clock:1";
    let (world, _turn) = shared().await?;
    let team = world.namespace("task-clock").await?;
    // S3 accepts a quarter of an hour at most.
    world.control.set_clock_of_tasks(IMAGE, 3600).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let template = format!("  workspaceTemplate: {{ spec: {{ image: {IMAGE:?} }} }}\n");
    team.apply_stack_as("app", "app", "{}", Source::Program("app"), &template).await?;
    let told = |stack: &Stack| {
        condition(stack).is_some_and(|(_, reason, message)| {
            let exit = "pulumi: exit code 41; S3 refuses the task's requests; see its error code in the task's log";
            reason == "PlatformFailure" && message.contains(exit)
        })
    };
    let stack = team.wait("app", "to name the task's log", told).await?;
    ensure!(stack.status.and_then(|status| status.last_update?.failures) == Some(0), "it counts");
    let log = task_log(&team).await?;
    ensure!(log.contains("RequestTimeTooSkewed"), "{log}");
    // S3 still accepts this.
    world.control.set_clock_of_tasks(IMAGE, BEHIND).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    intact(&team, "app", "app")?;
    team.clear().await
}

/// The log of the task of the Stack's first Update.
async fn task_log(team: &Namespace<'_>) -> Result<String> {
    let update = team.updates("app").await?.first().context("an Update")?.name_any();
    let task = ours(&wait(team, &update, "to be complete", Update::is_complete).await?).task.context("a task")?;
    let id = driftless_contract::keys::task_id(&task);
    Ok(fs::read_to_string(Path::new(team.world.get("WORLD_LOGS")?).join(format!("{id}.log")))?)
}
