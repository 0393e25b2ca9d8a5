//! Every task is ended from outside: no process in it is trusted to end it.

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_s3::primitives::ByteStream;
use driftless_api::Update;
use driftless_contract::{Document as _, Launch, RunResult, Verdict, to_json};
use driftless_tests::{
    scenario::{Handle, RUN, Source, is_ready},
    world::ready,
};
use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    updates::{apply_update, ours, updates, wait},
    world::{self, s3, shared},
};

/// A task as ECS shows it.
async fn task(world: &Handle, arn: &str) -> Result<Value> {
    let tasks = world.control.status().await?.tasks;
    tasks.into_iter().find(|task| task["taskArn"] == arn).with_context(|| format!("no task {arn}"))
}

/// Waits until a task's stop is requested. Returns ECS's reason.
async fn stop_reason(world: &Handle, arn: &str) -> Result<String> {
    ready::until("the task is asked to stop", RUN, async || {
        let task = task(world, arn).await?;
        ensure!(task["desiredStatus"] == "STOPPED", "{task}");
        Ok(task["stoppedReason"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

#[tokio::test]
async fn forged_result_stops_its_task_before_the_next_run_starts() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("forged-result").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let update = team.running("app").await?;
    let arn = ours(&update).task.context("a task")?;
    apply_update(&team, "behind", "{}", "{ workspaceName: app, stackName: dev, type: refresh }").await?;
    wait(&team, "behind", "to wait", |update| ours(update).waiting_reason.as_deref() == Some("StackClaimed")).await?;

    // The program has the task's credentials, and reports the end of the run while it continues.
    let (client, folder) = world::as_task(&world, &arn).await?;
    let now = updates(&team).get(&update.name_any()).await?.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let forged = to_json(&RunResult::new(Verdict::Succeeded {}, now, now)).into_bytes();
    let put = client.put_object().bucket(world.get("WORLD_BUCKET")?).key(format!("{folder}out/result"));
    put.if_none_match("*").body(ByteStream::from(forged)).send().await?;

    assert_eq!(stop_reason(&world, &arn).await?, "driftless: run is recorded");
    drop(hold);
    wait(&team, "behind", "to be complete", Update::is_complete).await?;
    let started = |task: &Value, field: &str| task[field].as_f64().with_context(|| format!("{field} of {task}"));
    let next = ours(&updates(&team).get("behind").await?).task.context("a task")?;
    let (stopped, began) = (task(&world, &arn).await?, task(&world, &next).await?);
    ensure!(started(&stopped, "stoppingAt")? <= started(&began, "createdAt")?, "{stopped} {began}");
    team.clear().await
}

#[tokio::test]
async fn task_whose_init_container_hangs_is_stopped_and_recorded() -> Result<()> {
    let (world, _turn) = world::aside().await?;
    let team = world.namespace("hanging-init").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let pod = "{ initContainers: [{ name: hang, command: [sleep, infinity] }] }";
    let more = format!("  workspaceTemplate: {{ spec: {{ podTemplate: {{ spec: {pod} }} }} }}\n");
    team.apply_stack("app", Source::Program("app"), &more).await?;
    let arn = ready::until("the run has a task", RUN, async || {
        let update = team.updates("app").await?.pop().context("no Update")?;
        ours(&update).task.with_context(|| format!("{:?}", update.status))
    })
    .await?;
    let reason = stop_reason(&world, &arn).await?;
    ensure!(reason.starts_with("driftless: no progress within 120s; task stopped"), "{reason}");
    ready::until("its end is recorded", RUN, async || {
        let update = team.updates("app").await?.into_iter().next().context("no Update")?;
        ensure!(update.is_complete(), "{:#?}", update.status);
        let message = update.status.and_then(|status| status.message).unwrap_or_default();
        ensure!(message.contains("no progress within 120s; task stopped"), "{message}");
        Ok(())
    })
    .await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.wait("app", "to be Ready without the init container", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn annotation_cannot_lengthen_the_limit_of_a_run() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("for-a-year").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let spec = "{ workspaceName: app, stackName: dev, type: preview }";
    apply_update(&team, "long", "{ driftless.dev/max-duration: 8760h }", spec).await?;
    let update = wait(&team, "long", "to be complete", Update::is_complete).await?;
    let key = format!("runs/world/{}/launch", update.uid().context("a uid")?);
    let object = s3(&world, None).await?.get_object().bucket(world.get("WORLD_BUCKET")?).key(&key).send().await?;
    let launch = Launch::parse(&object.body.collect().await?.into_bytes())?;
    assert_eq!(launch.request.context("a request")?.limits.max_seconds, Some(82_800));
    team.clear().await
}

/// A tenant marks the Update complete, removes its finalizer and deletes it: neither function sees
/// it again.
#[tokio::test]
async fn task_of_a_deleted_update_is_stopped() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("vanished").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let update = team.running("app").await?;
    let arn = ours(&update).task.context("a task")?;
    let name = update.name_any();
    updates(&team).delete(&name, &DeleteParams::default()).await?;
    ready::until("the Update is gone", RUN, async || {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
        match updates(&team).patch(&name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => bail!("{other:?}"),
        }
    })
    .await?;
    stop_reason(&world, &arn).await?;
    drop(hold);
    team.clear().await
}
