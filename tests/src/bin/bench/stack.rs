//! A Stack's way to Ready beside `pulumi` by hand.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use driftless_tests::{
    scenario::{Handle, Namespace, Source, commit},
    world::{ready, start::World},
};

use crate::median;

/// Runs of each kind; the median is shown.
const RUNS: usize = 5;

/// A Stack's way to Ready beside a bare `pulumi up` of the same program.
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

/// Applies a Program and a Stack; the time until pulumi holds its lock, and until Ready.
async fn stack(team: &Namespace<'_>, name: &str) -> Result<(Duration, Duration)> {
    let locks = PathBuf::from(team.state()?).join(format!(".pulumi/locks/organization/{name}/dev"));
    let started = Instant::now();
    team.apply_program(name, &team.program(name, "content", "")?).await?;
    team.apply_stack(name, Source::Program(name), "").await?;
    let locked = async {
        ready::until("pulumi holds its lock", Duration::from_mins(1), async || {
            ensure!(fs::read_dir(&locks)?.next().is_some(), "no lock in {}", locks.display());
            Ok(started.elapsed())
        })
        .await
    };
    let settled = async {
        team.wait(name, "to be Ready", |stack| commit(stack).is_some()).await?;
        Ok(started.elapsed())
    };
    tokio::try_join!(locked, settled)
}

/// What a user would do by hand, with the same pulumi, provider and kind of backend.
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
