//! Runs that end in the middle of something, at each of their steps.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_api::Update;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source, is_ready},
    world::ready,
};
use futures::future::try_join_all;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::world::{Alone, alone, aws, nothing_was_given_up, pid, quiet};

/// How a run is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The machine is gone.
    Killed,
    /// `StopTask`, as when Fargate wants its Spot capacity back.
    Stopped,
}

/// Where a run is.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Its pulumi has this word.
    Pulumi(&'static str),
    /// It waits for this call of S3.
    Call(&'static str),
}

#[tokio::test]
async fn a_run_that_ends_at_any_step_leaves_nothing_that_the_next_one_does_not_mend() -> Result<()> {
    let (world, turn) = alone().await?;
    let team = world.namespace("interrupted").await?;
    team.apply_program("app", &team.program("${pulumi.stack}.txt", "one", ", delaySeconds: 3")?).await?;
    let pulumi = ["login", "select", "up"].map(Step::Pulumi);
    at(&team, &pulumi).await?;
    all_ready(&team).await?;
    for call in ["GET /in/pack", "PUT /out/result"] {
        world.control.hold(&[call]).await?;
        let ended = at(&team, &[Step::Call(call)]).await;
        world.control.hold(&[]).await?;
        ended?;
        all_ready(&team).await?;
    }
    settled(&world, &turn, &team).await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

/// Starts a Stack for each step and each end of it, and brings the end about.
async fn at(team: &Namespace<'_>, steps: &[Step]) -> Result<()> {
    let ends = steps.iter().flat_map(|step| [(*step, End::Killed), (*step, End::Stopped)]);
    try_join_all(ends.map(|(step, end)| end_at(team, step, end))).await.map(drop)
}

async fn end_at(team: &Namespace<'_>, step: Step, end: End) -> Result<()> {
    let (Step::Pulumi(word) | Step::Call(word)) = step;
    let name = format!("{}-{end:?}", word.rsplit('/').next().unwrap_or_default()).to_lowercase();
    team.apply_stack_as(&name, &name, "{}", Source::Program("app"), "").await?;
    let task = ready::until(&format!("{name} is at its step"), RUN, async || {
        let update = team.updates(&name).await?.into_iter().next().context("no Update")?;
        let task = task(&update).with_context(|| format!("no task: {:#?}", update.status))?;
        ensure!(is_at(team.world, step, task.rsplit('/').next().unwrap_or_default()).await?, "{name} is not at {step:?}");
        Ok(task)
    })
    .await?;
    match end {
        End::Killed => kill_process(pid(team.world, task.rsplit('/').next().unwrap_or_default())?, Signal::KILL)?,
        End::Stopped => {
            let ecs = aws_sdk_ecs::Client::new(&aws(team.world, None).await?);
            ecs.stop_task().cluster("driftless").task(&task).reason("capacity is wanted back").send().await?;
        }
    }
    Ok(())
}

fn task(update: &Update) -> Option<String> {
    update.status.as_ref()?.driftless.as_ref()?.task.clone()
}

async fn is_at(world: &Handle, step: Step, task: &str) -> Result<bool> {
    match step {
        Step::Call(call) => {
            let held = world.control.status().await?.held;
            let end = call.split_once(' ').map_or("", |(_, end)| end);
            Ok(held.iter().any(|held| held.contains(task) && held.ends_with(end)))
        }
        Step::Pulumi(called) => {
            let session = pid(world, task)?.as_raw_nonzero().to_string();
            Ok(fs::read_dir("/proc")?.flatten().any(|process| is_pulumi(&process.path(), &session, called) == Some(true)))
        }
    }
}

/// Whether a process is a pulumi of that session which was called with that word. One that has ended is none.
fn is_pulumi(process: &Path, session: &str, word: &str) -> Option<bool> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // After the name, which may hold anything: state, parent, group, session.
    let in_session = stat.rsplit_once(')')?.1.split_whitespace().nth(3)? == session;
    let command = fs::read(process.join("cmdline")).ok()?;
    let mut words = command.split(|byte| *byte == 0);
    let is_pulumi = words.next()?.ends_with(b"pulumi");
    Some(in_session && is_pulumi && words.any(|other| other == word.as_bytes()))
}

async fn all_ready(team: &Namespace<'_>) -> Result<()> {
    for stack in team.stacks().await? {
        team.wait(stack.metadata.name.as_deref().context("a name")?, "to be Ready", is_ready).await?;
    }
    Ok(())
}

/// What every Stack asked for is there once, no lock is left, and no two of its runs were under way at once.
async fn settled(world: &Handle, turn: &Alone, team: &Namespace<'_>) -> Result<()> {
    let stacks = team.stacks().await?;
    ensure!(stacks.len() == 10, "{}", stacks.len());
    quiet(world, turn).await?;
    for stack in &stacks {
        let name = stack.metadata.name.as_deref().context("a name")?;
        let updates = team.updates(name).await?;
        let runs = updates.len();
        // What was done was told, or done once more.
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
        ensure!(fs::read_to_string(team.file(&format!("{name}.txt"))?)? == "one", "{name}");
        let folder = format!("{}/.pulumi", team.state()?);
        let locks = fs::read_dir(format!("{folder}/locks/organization/app/{name}")).map_or(0, |files| files.flatten().count());
        ensure!(locks == 0, "{name}: {locks} locks");
        let state: Value = serde_json::from_slice(&fs::read(format!("{folder}/stacks/app/{name}.json"))?)?;
        let resources = state["checkpoint"]["latest"]["resources"].as_array().map_or(0, Vec::len);
        // The stack, the provider and the file.
        ensure!(
            resources == 3 && state["checkpoint"]["latest"]["pending_operations"].as_array().is_none_or(Vec::is_empty),
            "{name}: {state}"
        );
    }
    Ok(())
}
