//! The time of a Stack until Ready beside `pulumi` by hand.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use driftless_tests::{
    aws::CALLS_LOG,
    scenario::{Handle, Namespace, Source, commit},
    world::start::World,
};
use jiff::Timestamp;
use serde_json::Value;

use crate::{median, now};

/// Runs of each kind; the median is shown.
const RUNS: usize = 5;

/// The time of a Stack until Ready beside a bare `pulumi up` of the same program.
pub async fn measure(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("bench").await?;
    let (mut starts, mut wholes, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (start, whole) = stack(&team, &format!("app{run}")).await?;
        let up = pulumi_up(&handle, &team, &format!("bare{run}")).await?;
        // The first pair warms the machine's caches and the functions.
        if run > 0 {
            starts.push(start);
            wholes.push(whole);
            bare.push(up);
        }
    }
    let (start, whole, bare) = (median(starts), median(wholes), median(bare));
    println!("\nA Stack with a Program of one resource, applied together; median of {RUNS}:");
    println!("  kubectl apply → pulumi up starts        {:6.2} s", start.as_secs_f32());
    println!("  kubectl apply → Ready                   {:6.2} s", whole.as_secs_f32());
    println!("  pulumi stack select and up, by hand     {:6.2} s", bare.as_secs_f32());
    println!("  ratio                                   {:6.2}", whole.as_secs_f32() / bare.as_secs_f32());
    Ok(())
}

/// Applies a Program and a Stack. Returns the time until `pulumi up` starts, and until Ready.
async fn stack(team: &Namespace<'_>, name: &str) -> Result<(Duration, Duration)> {
    let journal = Path::new(team.world.get("WORLD_LOGS")?).join(CALLS_LOG);
    let (before, began, started) = (fs::metadata(journal)?.len(), now(), Instant::now());
    team.apply_program(name, &team.program(name, "content", "")?).await?;
    team.apply_stack(name, Source::Program(name), "").await?;
    team.wait(name, "to be Ready", |stack| commit(stack).is_some()).await?;
    let whole = started.elapsed();
    // A runner records the lock just before it starts the operation.
    let is_lock = |call: &Value| call["method"] == "PUT" && call["path"].as_str().is_some_and(|path| path.ends_with("/out/lock"));
    let lock = team.world.journal(CALLS_LOG, before, is_lock)?.into_iter().next().context("pulumi was not let go")?;
    let at: Timestamp = lock["at"].as_str().context("a time")?.parse()?;
    Ok((at.duration_since(began).try_into()?, whole))
}

/// A user's command by hand, with the same `pulumi`, provider and kind of backend.
async fn pulumi_up(handle: &Handle, team: &Namespace<'_>, name: &str) -> Result<Duration> {
    let (home, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::write(home.path().join("Pulumi.yaml"), format!("name: {name}\nruntime: yaml\n{}", team.program(name, "content", "")?))?;
    let backend = format!("file://{}", state.path().display());
    let started = Instant::now();
    for arguments in [&["stack", "select", "--create", "dev"][..], &["up", "--yes", "--skip-preview"]] {
        handle.pulumi(home.path(), &backend, arguments).await?;
    }
    Ok(started.elapsed())
}
