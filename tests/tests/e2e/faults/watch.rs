//! The forwarder after its own death, and after the end of the history that it watches.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_tests::{
    aws::{CALLS_LOG, http_client},
    scenario::{Handle, Namespace, RUN, Source, is_ready, output},
    world::{
        cluster::{SECOND, process},
        ready,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::world::{Frozen, alone, nothing_was_given_up, pid, second};

#[tokio::test]
async fn forwarder_that_was_killed_or_meets_compacted_history_misses_no_change() -> Result<()> {
    let (world, _alone) = alone().await?;
    let second = second(&world).await?;
    let team = second.namespace("watched").await?;
    // No controller creates it there.
    team.apply("{ apiVersion: v1, kind: ServiceAccount, metadata: { name: default, namespace: NAMESPACE } }").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    // A sweep would find each change too, and fail while the API server is unavailable.
    world.control.pause_schedule(true).await?;

    let forwarder = process(SECOND, "forwarder");
    let before = pid(&second, &forwarder)?;
    kill_process(before, Signal::KILL)?;
    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    another(&second, &forwarder, before).await?;
    ran(&team, "two").await?;

    let logs = Path::new(world.get("WORLD_LOGS")?);
    let log = logs.join(format!("{forwarder}.log"));
    let (said, calls) = (fs::read_to_string(&log)?.len(), fs::metadata(logs.join(CALLS_LOG))?.len());
    let frozen = Frozen::new(&second, &forwarder)?;
    let api_server = process(SECOND, "kube-apiserver");
    let before = pid(&second, &api_server)?;
    // The connections of its watches end with it, and a new one has no earlier events.
    kill_process(before, Signal::TERM)?;
    another(&second, &api_server, before).await?;
    ready::until("the API server answers", ready::START, async || team.stack("app").await).await?;
    team.apply_program("app", &team.program("app.txt", "three", "")?).await?;
    team.apply_stack_as("late", "late", "{}", Source::Program("app"), "").await?;
    compact(&world).await?;
    drop(frozen);
    ran(&team, "three").await?;
    team.wait("late", "to be Ready", is_ready).await?;
    let log = fs::read_to_string(&log)?;
    ensure!(log[said..].contains("too old resource version"), "no watch met a 410: {}", &log[said..]);
    // Each kind has a watch of its own: a change may reach the Stack by one of them before another
    // watch has begun again.
    ready::until("the forwarder tells of both", ready::START, async || {
        let hints = world.journal(CALLS_LOG, calls, |call| {
            call["caller"].as_str().is_some_and(|caller| caller.ends_with("/driftless-forwarder"))
                && call["input"]["Entries"].is_array()
        })?;
        let hints: Vec<_> = hints.iter().filter_map(|call| call["input"]["Entries"].as_array()).flatten().collect();
        for (kind, name) in [("Program", "app"), ("Stack", "late")] {
            let object = format!("\"kind\":\"{kind}\",\"namespace\":\"{}\",\"name\":\"{name}\"", team.name);
            let is_told = hints.iter().any(|hint| hint["MessageBody"].as_str().is_some_and(|body| body.contains(&object)));
            ensure!(is_told, "the forwarder does not tell of {object}: {hints:#?}");
        }
        Ok(())
    })
    .await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

/// Waits until another process has that name.
async fn another(world: &Handle, name: &str, before: Pid) -> Result<()> {
    // An API server ends a minute after its signal at the earliest, because watches are open.
    ready::until(&format!("another {name} runs"), RUN, async || {
        ensure!(pid(world, name)? != before, "it is the same");
        Ok(())
    })
    .await
}

async fn ran(team: &Namespace<'_>, content: &str) -> Result<Stack> {
    let has = |stack: &Stack| is_ready(stack) && output(stack, "content") == Some(&json!(content));
    team.wait("app", &format!("to have run {content}"), has).await
}

/// Makes etcd forget every revision but the newest.
async fn compact(world: &Handle) -> Result<()> {
    let call = async |path: &str, body: Value| -> Result<Value> {
        let request = http_client()?.post(format!("{}/v3/{path}", world.get("WORLD_ETCD")?)).body(body.to_string());
        let answer = request.send().await?.error_for_status()?;
        Ok(serde_json::from_slice(&answer.bytes().await?)?)
    };
    let revision = call("maintenance/status", json!({})).await?["header"]["revision"].as_str().context("a revision")?.to_owned();
    call("kv/compaction", json!({ "revision": revision, "physical": true })).await.map(drop)
}
