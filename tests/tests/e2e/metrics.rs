//! The functions' metrics, as `CloudWatch` reads them from their logs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow, ensure};
use driftless_testkit::emf;
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source},
    world::{cluster, journal, ready},
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::world::shared;

/// All metrics so far. A line that violates the format is an error.
pub fn written(world: &Handle) -> Result<Vec<Value>> {
    let mut lines = Vec::new();
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        for line in journal::lines(&path, 0)? {
            let line = line?;
            if line.contains("CloudWatchMetrics") {
                lines.push(emf::check(&line, Some(now())).map_err(|why| anyhow!("{}: {why}: {line}", path.display()))?);
            }
        }
    }
    Ok(lines)
}

/// The name of an Update in metrics.
pub fn update(team: &Namespace<'_>, name: &str) -> String {
    format!("{}/Update/{}/{name}", cluster::NAME, team.name)
}

#[expect(clippy::disallowed_methods, reason = "the processes of the world live in real time")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[tokio::test]
async fn failed_and_succeeded_runs_are_counted_once_with_their_cost() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("metrics").await?;
    let marker = team.file("marker")?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    team.apply_program("app", &team.program("app.txt", "one", &format!(", failWhenExists: {marker}"))?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.wait("app", "to fail", |stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        last.is_some_and(|last| last.state.as_deref() == Some("failed"))
    })
    .await?;
    fs::remove_file(&marker)?;
    team.ready_after("app", 2).await?;
    world.control.trigger("Sweeper").await?;

    let updates = team.updates("app").await?;
    ready::until("both runs and a sweep are counted", RUN, async || {
        let written = written(&world)?;
        for (update, outcome) in updates.iter().zip(["Failed", "Succeeded"]) {
            let name = self::update(&team, &update.name_any());
            let of_update = |metric: &str| -> Vec<&Value> {
                written.iter().filter(|line| line["update"] == name && line.get(metric).is_some()).collect()
            };
            let (ended, begun) = (of_update("RunsEnded"), of_update("StartDelay"));
            ensure!(ended.len() == 1 && begun.len() == 1, "{name}: {ended:#?} {begun:#?}");
            let fields = ["cluster", "operation", "outcome", "RunsEnded"].map(|field| ended[0][field].clone());
            ensure!(fields == [json!(cluster::NAME), json!("up"), json!(outcome), json!(1.0)], "{name}: {fields:?}");
            let [duration, vcpu, gb] =
                ["RunDuration", "VcpuSeconds", "GbSeconds"].map(|field| ended[0][field].as_f64().unwrap_or_default());
            // One vCPU and four GB, for a minute at least.
            let billed = duration.max(60.0);
            ensure!(duration > 0.0 && (vcpu - billed).abs() < 0.1 && (gb - 4.0 * billed).abs() < 0.2, "{:#}", ended[0]);
        }
        let swept = written.iter().any(|line| line["cluster"] == cluster::NAME && line["Stacks"].as_f64() >= Some(1.0));
        ensure!(swept, "no sweep saw a Stack");
        Ok(())
    })
    .await
}
