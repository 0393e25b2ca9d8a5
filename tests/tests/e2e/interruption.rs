//! Runs that are ended at each of their steps.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::Update;
use driftless_contract::keys;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source, is_ready},
    world::ready,
};
use futures::future::{try_join, try_join_all};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::{
    programs::literal,
    world::{Alone, alone, aws, children, nothing_was_given_up, pid, quiet},
};

/// How a run is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The machine is gone.
    Killed,
    /// `StopTask`, as when Fargate reclaims its Spot capacity.
    Stopped,
}

/// The first request of a run.
const PACK: &str = "GET /in/pack";

/// The step of a run at which it stays until it is ended. Pulumi does not write the state then: the
/// file backend writes in place, and a kill in the middle would leave half a state, which no later
/// run can read.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call of `pulumi` that has this argument; see [`slow_image`].
    Pulumi(&'static str),
    /// It waits for this call of S3.
    Call(&'static str),
}

#[tokio::test]
async fn next_run_recovers_from_a_run_that_died_at_any_step() -> Result<()> {
    let (world, turn) = alone().await?;
    let team = world.namespace("interrupted").await?;
    let mut hold = Some(team.hold()?);
    team.apply_program("app", &team.program("${pulumi.stack}.txt", "one", "")?).await?;
    for steps in [&["select", "up"].map(Step::Pulumi)[..], &[Step::Call(PACK)], &[Step::Call("PUT /out/result")]] {
        at(&team, steps).await?;
        drop(hold.take());
        all_ready(&team).await?;
    }
    settled(&world, &turn, &team).await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

/// A run that will be ended at a step.
struct Run {
    stack: String,
    /// The ARN of its task.
    task: String,
    step: Step,
    end: End,
}

/// Starts a Stack for each step and each way to end it, and ends its run there.
async fn at(team: &Namespace<'_>, steps: &[Step]) -> Result<()> {
    let ends = steps.iter().flat_map(|step| [(*step, End::Killed), (*step, End::Stopped)]);
    let calls = steps.iter().filter_map(|step| if let Step::Call(call) = step { Some(*call) } else { None });
    let (calls, ecs) = (calls.collect::<Vec<_>>(), aws_sdk_ecs::Client::new(&aws(team.world, None).await?));
    // No run reaches its step before all are known and watched.
    team.world.control.hold(&[PACK]).await?;
    let ended = async {
        let runs = try_join_all(ends.map(|(step, end)| start(team, step, end))).await?;
        let ends = runs.iter().map(|run| end_at(team, &ecs, run));
        try_join(try_join_all(ends), team.world.control.hold(&calls)).await.map(drop)
    }
    .await;
    team.world.control.hold(&[]).await?;
    ended
}

async fn start(team: &Namespace<'_>, step: Step, end: End) -> Result<Run> {
    let (Step::Pulumi(word) | Step::Call(word)) = step;
    let stack = format!("{}-{end:?}", word.rsplit('/').next().unwrap_or_default()).to_lowercase();
    let more = if let Step::Pulumi(called) = step { literal("PATH", &slow_image(team, called)?) } else { String::new() };
    team.apply_stack_as(&stack, &stack, "{}", Source::Program("app"), &more).await?;
    let task = ready::until(&format!("{stack} has a task"), RUN, async || {
        let update = team.updates(&stack).await?.into_iter().next().context("no Update")?;
        task(&update).with_context(|| format!("no task: {:#?}", update.status))
    })
    .await?;
    Ok(Run { stack, task, step, end })
}

/// The PATH of an image whose `pulumi` waits while the namespace has a hold: at the end of
/// `select`, which has made the stack, and before the start of `up`. By itself a call takes some
/// tenths of a second.
fn slow_image(team: &Namespace<'_>, called: &str) -> Result<String> {
    let (folder, tools) = (team.file(&format!("image-{called}"))?, team.world.get("WORLD_TOOLS")?);
    let wait = format!("while [ -e {} ]; do sleep 0.2; done", team.hold_marker()?);
    let slow = match called {
        "select" => format!("pulumi \"$@\"; ended=$?; {wait}; exit $ended"),
        _ => wait,
    };
    let script = format!("#!/bin/sh\nPATH={tools}:$PATH\ncase \" $* \" in *' {called} '*) {slow};; esac\nexec pulumi \"$@\"\n");
    fs::create_dir_all(&folder)?;
    let pulumi = Path::new(&folder).join("pulumi");
    // Not replaced while a task executes it.
    if !pulumi.exists() {
        fs::write(&pulumi, script)?;
        fs::set_permissions(pulumi, Permissions::from_mode(0o755))?;
    }
    Ok(format!("{folder}:/usr/local/bin:/usr/bin:/bin"))
}

async fn end_at(team: &Namespace<'_>, ecs: &aws_sdk_ecs::Client, run: &Run) -> Result<()> {
    let id = keys::task_id(&run.task);
    if let Err(error) = arrives(team, run.step, id).await {
        let status = team.stack(&run.stack).await?.status;
        return Err(error.context(format!("{}: {status:#?}", run.stack)));
    }
    match run.end {
        End::Killed => kill_process(pid(team.world, id)?, Signal::KILL)?,
        End::Stopped => {
            ecs.stop_task().cluster("driftless").task(&run.task).reason("capacity is wanted back").send().await?;
        }
    }
    Ok(())
}

fn task(update: &Update) -> Option<String> {
    update.status.as_ref()?.driftless.as_ref()?.task.clone()
}

/// Waits until a task is at a step.
async fn arrives(team: &Namespace<'_>, step: Step, task: &str) -> Result<()> {
    match step {
        Step::Call(call) => {
            let end = call.split_once(' ').map_or("", |(_, end)| end);
            ready::until(&format!("{call} waits"), RUN, async || {
                let held = team.world.control.status().await?.held;
                ensure!(held.iter().any(|held| held.contains(task) && held.ends_with(end)), "{held:?}");
                Ok(())
            })
            .await
        }
        Step::Pulumi(called) => {
            ready::until(&format!("pulumi {called} waits"), RUN, async || {
                let calls = children(pid(team.world, task)?);
                let found = calls.iter().find(|(_, words)| words.iter().any(|word| word == called));
                let within = found.map(|(pid, _)| children(*pid)).unwrap_or_default();
                ensure!(within.iter().any(|(_, words)| words[0] == "sleep"), "{calls:?}, {within:?}");
                Ok(())
            })
            .await
        }
    }
}

async fn all_ready(team: &Namespace<'_>) -> Result<()> {
    for stack in team.stacks().await? {
        team.wait(stack.metadata.name.as_deref().context("a name")?, "to be Ready", is_ready).await?;
    }
    Ok(())
}

/// Checks that every Stack's resources exist once, no lock is left, and no two of its runs were
/// live at once.
async fn settled(world: &Handle, turn: &Alone, team: &Namespace<'_>) -> Result<()> {
    let stacks = team.stacks().await?;
    ensure!(stacks.len() == 8, "{} Stacks", stacks.len());
    quiet(world, turn).await?;
    for stack in &stacks {
        let name = stack.metadata.name.as_deref().context("a name")?;
        let updates = team.updates(name).await?;
        let runs = updates.len();
        // A completed run was reported, or repeated once.
        let most = if name == "result-stopped" { 1 } else { 2 };
        ensure!((1..=most).contains(&runs), "{name}: {runs} runs");
        for pair in updates.windows(2) {
            let [first, second] = pair else { bail!("two") };
            let (end, start) = (
                first.status.as_ref().and_then(|s| s.end_time.clone()),
                second.status.as_ref().and_then(|s| s.start_time.clone()),
            );
            ensure!(end.is_some() && end <= start, "{name}: {end:?}, {start:?}");
        }
        let last = updates.last().and_then(|update| update.status.clone()).context("a status")?;
        let failed = last.conditions.iter().any(|condition| condition.type_ == "Failed" && condition.status == "True");
        ensure!(!failed, "{name}: {last:#?}");
        intact(team, "app", name)?;
    }
    Ok(())
}

/// Checks that the file of a Pulumi stack exists once, without a lock and pending operations.
pub fn intact(team: &Namespace<'_>, project: &str, name: &str) -> Result<()> {
    ensure!(fs::read_to_string(team.file(&format!("{name}.txt"))?)? == "one", "{name}");
    let folder = format!("{}/.pulumi", team.state()?);
    let locks = fs::read_dir(format!("{folder}/locks/organization/{project}/{name}")).map_or(0, |files| files.flatten().count());
    ensure!(locks == 0, "{name}: {locks} locks");
    let state: Value = serde_json::from_slice(&fs::read(format!("{folder}/stacks/{project}/{name}.json"))?)?;
    let resources = state["checkpoint"]["latest"]["resources"].as_array().map_or(0, Vec::len);
    // The stack, the provider and the file.
    ensure!(
        resources == 3 && state["checkpoint"]["latest"]["pending_operations"].as_array().is_none_or(Vec::is_empty),
        "{name}: {state}"
    );
    Ok(())
}
