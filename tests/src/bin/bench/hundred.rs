//! A hundred Stacks at once: how long until all are Ready, and how many calls that takes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use driftless_tests::{
    scenario::{Handle, Source, is_ready},
    world::{cluster::AUDIT_LOG, ready, start::World},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

const STACKS: usize = 100;
/// Two cores run a hundred pulumis one after the other.
const WITHIN: Duration = Duration::from_mins(15);

/// Applies them at once; each has one Update in the end.
pub async fn measure(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("hundred").await?;
    let logs = PathBuf::from(handle.get("WORLD_LOGS")?);
    team.apply_program("app", &team.program("app", "content", "")?).await?;
    let before = calls(&logs)?;
    let started = Instant::now();
    stream::iter(0..STACKS)
        .map(|i| {
            let team = &team;
            async move { team.apply_stack_as(&format!("app{i}"), &format!("s{i}"), "", Source::Program("app"), "").await }
        })
        .buffer_unordered(20)
        .try_collect::<()>()
        .await?;
    ready::until("all Stacks are Ready", WITHIN, async || {
        let stacks = team.stacks().await?;
        let ready = stacks.iter().filter(|stack| is_ready(stack)).count();
        ensure!(ready == STACKS, "{ready} of {} are", stacks.len());
        Ok(())
    })
    .await?;
    let took = started.elapsed();
    for i in 0..STACKS {
        let updates = team.updates(&format!("app{i}")).await?.len();
        ensure!(updates == 1, "app{i} has {updates} Updates");
    }
    println!("\n{STACKS} Stacks of one Program, applied at once; each Ready after one Update:");
    println!("  until all are Ready                     {:6.1} s", took.as_secs_f32());
    let mut whole = BTreeMap::<&str, usize>::new();
    for (who, count) in calls(&logs)? {
        let count = count - before.get(&who).unwrap_or(&0);
        if count > 0 {
            println!("  calls per Stack, {:<22} {:6.1}", who, per_stack(count));
        }
        *whole.entry(if who.starts_with("Kubernetes") { "Kubernetes" } else { "AWS" }).or_default() += count;
    }
    for (api, count) in whole {
        println!("  calls per Stack, all of {api:<15} {:6.1}", per_stack(count));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn per_stack(count: usize) -> f64 {
    count as f64 / STACKS as f64
}

/// Calls so far: of the API server by function, of AWS by service. The pollers' own, which are Lambda's, are not among them.
fn calls(logs: &Path) -> Result<BTreeMap<String, usize>> {
    let mut calls = BTreeMap::new();
    let mut count = |file: &str, who: &dyn Fn(&Value) -> Option<String>| -> Result<()> {
        let text = fs::read_to_string(logs.join(file)).with_context(|| format!("reading {file}"))?;
        // The last line may be under way.
        for entry in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(who) = who(&entry) {
                *calls.entry(who).or_default() += 1;
            }
        }
        Ok(())
    };
    count(AUDIT_LOG, &|entry| {
        let groups = entry["user"]["groups"].as_array()?;
        let part = groups.iter().find_map(|group| group.as_str()?.strip_prefix("driftless:"))?;
        Some(format!("Kubernetes, {part}"))
    })?;
    count("aws-calls.jsonl", &|entry| Some(format!("AWS, {}", entry["service"].as_str()?)))?;
    Ok(calls)
}
