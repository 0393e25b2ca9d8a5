//! Services that do not answer, and lost answers to calls that were carried out.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use driftless_api::Stack;
use driftless_tests::{
    aws::{CALLS_LOG, control::Outage},
    scenario::{Handle, RUN, Source, condition, is_ready},
    world::ready,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    capacity::{apply, no_message_failed, ran_once},
    identity::{MAY_MAKE, ROLE, apply_account, apply_program},
    metrics,
    world::{alone, nothing_was_given_up, quiet, shared},
};

/// The functions that read a kubeconfig.
const FUNCTIONS: [&str; 5] = ["Reconciler", "Fetcher", "Launcher", "Recorder", "Sweeper"];

/// An outage of all calls of a kind with that text.
fn away(call: &str, about: &str, status: u16, code: &str) -> Outage {
    let [call, about, code, message] = [call, about, code, "This is an outage of the test."].map(String::from);
    Outage { call, about, percent: 100, status, code, message, ..Outage::default() }
}

fn is_over(outage: Outage) -> Outage {
    Outage { percent: 0, ..outage }
}

/// The calls that met an outage of a service.
pub fn met(world: &Handle, service: &str, about: &str) -> Result<usize> {
    let is_met = |call: &Value| {
        call["service"] == service && call["fault"].is_string() && (about.is_empty() || call.to_string().contains(about))
    };
    Ok(world.journal(CALLS_LOG, 0, is_met)?.len())
}

#[tokio::test]
async fn program_that_sts_gives_no_role_is_retried() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("no-sts").await?;
    let outage = away("sts", "system:serviceaccount:no-sts:deployer", 503, "ServiceUnavailable");
    world.control.outage(&outage).await?;
    team.apply(MAY_MAKE).await?;
    apply_account(&team, "deployer", &json!({ "eks.amazonaws.com/role-arn": ROLE })).await?;
    apply_program(&team, "app").await?;
    let sts = world.get("AWS_ENDPOINT_URL")?;
    let sts = format!("    AWS_ENDPOINT_URL_STS: {{ type: Literal, literal: {{ value: '{sts}' }} }}\n");
    team.apply_stack("app", Source::Program("app"), &format!("{sts}  serviceAccountName: deployer\n")).await?;
    let failed = |stack: &Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        let message = last.and_then(|last| last.message.as_deref()).unwrap_or_default();
        condition(stack).is_some_and(|(type_, reason, _)| type_ == "Reconciling" && reason == "RetryingAfterFailure")
            && message.contains("503")
            && message.contains("ServiceUnavailable")
    };
    team.wait("app", "to have the answer of STS", failed).await?;
    world.control.outage(&is_over(outage)).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn functions_wait_for_secrets_manager_and_lose_nothing() -> Result<()> {
    let (world, alone) = alone().await?;
    // A busy instance cannot be ended, and keeps its client.
    quiet(&world, &alone).await?;
    let team = world.namespace("no-secrets").await?;
    let outage = away("secretsmanager", "", 500, "InternalServiceError");
    world.control.outage(&outage).await?;
    for function in FUNCTIONS {
        world.control.chill(function).await?;
    }
    apply(&team, "pulumi/pulumi:1", &["app".into()]).await?;
    ready::until("a function to be given no kubeconfig twice", RUN, async || {
        // The SDK calls three times.
        let met = met(&world, "secretsmanager", "reconciler")?;
        ensure!(met >= 6, "{met} calls");
        Ok(())
    })
    .await?;
    ensure!(team.updates("app").await?.is_empty(), "a run began");
    world.control.outage(&is_over(outage)).await?;
    team.ready_after("app", 1).await?;
    ran_once(&team).await?;
    // A sweep may have failed in the meantime; the next one does its work.
    world.control.forgive("Sweeper: ").await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn lost_answers_of_run_task_start_one_task() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, image) = (world.namespace("lost-starts").await?, "lost/pulumi:1");
    let outage = Outage { lost: true, ..away("ecs RunTask", image, 500, "ServerException") };
    world.control.outage(&outage).await?;
    apply(&team, image, &["app".into()]).await?;
    let said = |stack: &Stack| {
        condition(stack).is_some_and(|(.., message)| message.contains("ECS did not start the task: ServerException"))
    };
    team.wait("app", "to say that ECS failed", said).await?;
    world.control.outage(&is_over(outage)).await?;
    team.ready_after("app", 1).await?;
    let uid = team.updates("app").await?[0].uid().context("a uid")?;
    let is_of_run = |call: &Value| call["operation"] == "RunTask" && call["input"]["startedBy"] == uid.as_str();
    let calls = world.journal(CALLS_LOG, 0, is_of_run)?;
    let tokens: BTreeSet<_> = calls.iter().filter_map(|call| call["input"]["clientToken"].as_str()).collect();
    let tasks = world.control.status().await?.tasks.into_iter().filter(|task| task["startedBy"] == uid.as_str()).count();
    // At least three calls of the SDK were lost.
    ensure!(calls.len() >= 4 && (tokens.len(), tasks) == (1, 1), "{tasks} tasks of {} calls with {tokens:?}", calls.len());
    ran_once(&team).await?;
    no_message_failed(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn lost_answers_of_conditional_writes_change_nothing() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("lost-writes").await?;
    // Each kind of record has its own percentage: the first answer of both is lost.
    let outages = ["/owner if-none-match", "/outcome if-none-match"].map(|about| Outage {
        lost: true,
        percent: 50,
        ..away("s3 PUT", about, 500, "InternalError")
    });
    for outage in &outages {
        world.control.outage(outage).await?;
    }
    let names = ["a", "b", "c"].map(String::from);
    // One after the other: concurrently, one of them could lose the answers to all its tries, and
    // then it counts nothing.
    for name in &names {
        apply(&team, "pulumi/pulumi:1", std::slice::from_ref(name)).await?;
        team.ready_after(name, 1).await?;
    }
    for outage in outages {
        world.control.outage(&is_over(outage)).await?;
    }
    ensure!(met(&world, "s3", "/owner")? > 0 && met(&world, "s3", "/outcome")? > 0, "no answer was lost");
    ran_once(&team).await?;
    // The writer of an object recognises it, and counts it.
    ready::until("each run is counted", RUN, async || {
        let written = metrics::written(&world)?;
        let mut missing = Vec::new();
        for name in &names {
            for update in team.updates(name).await? {
                let name = metrics::update(&team, &update.name_any());
                for metric in ["StartDelay", "RunsEnded"] {
                    let found = written.iter().filter(|line| line["update"] == name && line.get(metric).is_some()).count();
                    if found != 1 {
                        missing.push(format!("{metric} of {name}: {found}"));
                    }
                }
            }
        }
        ensure!(missing.is_empty(), "{missing:?}");
        Ok(())
    })
    .await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}
