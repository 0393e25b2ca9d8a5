//! A run has one task, and a task has only its own run.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_ecs::types::{AwsVpcConfiguration, LaunchType, NetworkConfiguration};
use aws_sdk_s3::{error::ProvideErrorMetadata as _, primitives::ByteStream};
use driftless_api::{Update, uid_of};
use driftless_contract::{LaunchHint, ObjectKey, RunHint, keys, to_json};
use driftless_tests::{
    aws::{CALLS_LOG, control::Invoked},
    scenario::{Handle, RUN, Source, output},
    world::{cluster, ready},
};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    updates::ours,
    world::{aws, s3, shared},
};

#[tokio::test]
async fn a_task_that_reads_another_tasks_folder_is_refused() -> Result<()> {
    let (world, _turn) = shared().await?;
    let bucket = world.get("WORLD_BUCKET")?;
    let administrator = s3(&world, None).await?;
    let role = role_id(&administrator, bucket, &world).await?;
    let (mine, other) = (format!("tasks/{role}:{}", "a".repeat(32)), format!("tasks/{role}:{}", "b".repeat(32)));
    for folder in [&mine, &other] {
        let key = format!("{folder}/in/spec");
        administrator.put_object().bucket(bucket).key(key).body(ByteStream::from_static(b"spec")).send().await?;
    }
    let task = s3(&world, Some(world.control.credentials("TaskRole", &"a".repeat(32)).await?)).await?;
    let code = |error: Option<&str>| error.unwrap_or("none").to_owned();
    let get = async |key: String| match task.get_object().bucket(bucket).key(key).send().await {
        Ok(_) => "allowed".to_owned(),
        Err(error) => code(error.code()),
    };
    let put_if = async |key: String, condition: Option<&str>| {
        let put = task.put_object().bucket(bucket).key(key).body(ByteStream::from_static(b"x"));
        match put.set_if_none_match(condition.map(Into::into)).send().await {
            Ok(_) => "allowed".to_owned(),
            Err(error) => code(error.code()),
        }
    };
    let put = async |key: String| put_if(key, None).await;
    assert_eq!(get(format!("{mine}/in/spec")).await, "allowed");
    assert_eq!(put(format!("{mine}/out/progress")).await, "allowed");
    for key in
        [format!("{other}/in/spec"), format!("{other}/out/result"), format!("{mine}/out/result"), "runs/world/x/outcome".into()]
    {
        assert_eq!(get(key.clone()).await, "AccessDenied", "reading {key}");
    }
    for key in [format!("{mine}/in/spec"), format!("{other}/out/result"), "runs/world/x/owner".into(), "trees/world/x".into()] {
        assert_eq!(put(key.clone()).await, "AccessDenied", "writing {key}");
    }
    for name in ["x", "log", "log/0001", "a/result", "result/x", "result"] {
        assert_eq!(put(format!("{mine}/out/{name}")).await, "AccessDenied", "writing out/{name}");
    }
    for (result, write) in [("allowed", "the first"), ("PreconditionFailed", "the second")] {
        assert_eq!(put_if(format!("{mine}/out/result"), Some("*")).await, result, "{write}");
        assert_eq!(put_if(format!("{mine}/out/log/0001"), Some("*")).await, result, "{write} part of a log");
    }
    let parts = task.create_multipart_upload().bucket(bucket).key(format!("{mine}/out/progress")).send().await;
    assert_eq!(parts.err().and_then(|error| error.code().map(str::to_owned)).as_deref(), Some("AccessDenied"));
    let listed = task.list_objects_v2().bucket(bucket).send().await;
    assert_eq!(listed.err().and_then(|error| error.code().map(str::to_owned)).as_deref(), Some("AccessDenied"));
    for folder in [&mine, &other] {
        administrator.delete_object().bucket(bucket).key(format!("{folder}/in/spec")).send().await?;
    }
    for name in ["progress", "result", "log/0001"] {
        administrator.delete_object().bucket(bucket).key(format!("{mine}/out/{name}")).send().await?;
    }
    Ok(())
}

/// The task role's unique id, from the folders of tasks.
async fn role_id(s3: &aws_sdk_s3::Client, bucket: &str, world: &Handle) -> Result<String> {
    let team = world.namespace("role-id").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.running("app").await?;
    let id = ready::until("a task has a folder", RUN, async || {
        let listed = s3.list_objects_v2().bucket(bucket).prefix("tasks/").send().await?;
        let key = listed.contents().first().and_then(|object| object.key()).context("no folder yet")?.to_owned();
        Ok(key.split(['/', ':']).nth(1).context("a role id")?.to_owned())
    })
    .await?;
    drop(hold);
    team.ready_after("app", 1).await?;
    Ok(id)
}

#[tokio::test]
async fn a_second_task_for_an_update_never_gets_a_spec() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("second").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let update = team.running("app").await?;
    let ecs = aws_sdk_ecs::Client::new(&aws(&world, None).await?);
    let second = start_again(&ecs, &ours(&update).task.context("a task")?, &update.uid().context("a uid")?).await?;
    // The whole journal is read.
    ready::until_every(Duration::from_secs(2), "the second task asks for its spec", RUN, async || {
        let calls = fs::read_to_string(Path::new(world.get("WORLD_LOGS")?).join(CALLS_LOG))?;
        ensure!(calls.contains(&format!("{}/in/spec", keys::task_id(&second))), "it did not ask");
        Ok(())
    })
    .await?;
    look(&world, &update).await?;
    drop(hold);
    let stack = team.ready_after("app", 1).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    look(&world, &update).await?;

    let (s3, bucket) = (s3(&world, None).await?, world.get("WORLD_BUCKET")?);
    let id = keys::task_id(&second);
    let listed = s3.list_objects_v2().bucket(bucket).prefix("tasks/").send().await?;
    let of_second: Vec<_> = listed.contents().iter().filter_map(|object| object.key()).filter(|key| key.contains(id)).collect();
    assert_eq!(of_second, Vec::<&str>::new());
    ecs.stop_task().cluster("driftless").task(&second).reason("the test is over").send().await?;
    ready::until("the second task ends without a run", RUN, async || {
        let log = fs::read_to_string(Path::new(world.get("WORLD_LOGS")?).join(format!("{id}.log")))?;
        ensure!(log == "driftless: task was stopped before it received a run\n", "{log}");
        Ok(())
    })
    .await
}

/// A person starts the definition of a task once more for the same Update.
async fn start_again(ecs: &aws_sdk_ecs::Client, first: &str, uid: &str) -> Result<String> {
    let described = ecs.describe_tasks().cluster("driftless").tasks(first).send().await?;
    let described = described.tasks().first().context("the first task")?;
    let definition = described.task_definition_arn().context("a definition")?;
    let network = AwsVpcConfiguration::builder().subnets("subnet-1").build()?;
    let network = NetworkConfiguration::builder().awsvpc_configuration(network).build();
    let again = ecs.run_task().cluster("driftless").task_definition(definition).started_by(uid);
    let started = again.launch_type(LaunchType::Fargate).network_configuration(network).send().await?;
    let second = started.tasks().first().and_then(|task| task.task_arn()).context("a second task")?;
    ensure!(second != first, "the same task");
    Ok(second.to_owned())
}

/// Makes the launcher and the recorder handle an Update once more, and waits for both.
async fn look(world: &Handle, update: &Update) -> Result<()> {
    let [cluster, api_version, kind] = [cluster::NAME, "auto.pulumi.com/v1alpha1", "Update"].map(ToOwned::to_owned);
    let key =
        ObjectKey { cluster, api_version, kind, namespace: update.namespace().context("a namespace")?, name: update.name_any() };
    let launch = LaunchHint::after(0, key.clone()).context("a hint")?;
    let run = RunHint::after(0, key, Some(uid_of(update))).context("a hint")?;
    for (function, hint) in [("Launcher", to_json(&launch)), ("Recorder", to_json(&run))] {
        let event = json!({ "Records": [{ "messageId": "look", "body": hint, "eventSource": "aws:sqs" }] });
        match world.control.invoke(function, &event).await? {
            Invoked::Answer(answer) if answer["batchItemFailures"] == json!([]) => {}
            other => bail!("{function}: {other:?}"),
        }
    }
    Ok(())
}
