//! What keeps a run to one task, and a task to its own run.

use anyhow::{Context as _, Result, ensure};
use aws_sdk_ecs::types::{AwsVpcConfiguration, LaunchType, NetworkConfiguration};
use aws_sdk_s3::{error::ProvideErrorMetadata as _, primitives::ByteStream};
use driftless_tests::{
    scenario::{RUN, Source, output},
    world::ready,
};
use kube::ResourceExt as _;
use serde_json::json;

use crate::world::{aws, s3, shared};

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
    let put = async |key: String| match task.put_object().bucket(bucket).key(key).body(ByteStream::from_static(b"x")).send().await
    {
        Ok(_) => "allowed".to_owned(),
        Err(error) => code(error.code()),
    };
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
    let listed = task.list_objects_v2().bucket(bucket).send().await;
    assert_eq!(listed.err().and_then(|error| error.code().map(str::to_owned)).as_deref(), Some("AccessDenied"));
    for folder in [&mine, &other] {
        administrator.delete_object().bucket(bucket).key(format!("{folder}/in/spec")).send().await?;
    }
    administrator.delete_object().bucket(bucket).key(format!("{mine}/out/progress")).send().await?;
    Ok(())
}

/// The task role's unique id, as the folders of tasks have it.
async fn role_id(s3: &aws_sdk_s3::Client, bucket: &str, world: &driftless_tests::scenario::Handle) -> Result<String> {
    let team = world.namespace("role-id").await?;
    team.apply_program("app", &team.program("app.txt", "one", ", delaySeconds: 2")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let id = ready::until("a task has a folder", RUN, async || {
        let listed = s3.list_objects_v2().bucket(bucket).prefix("tasks/").send().await?;
        let key = listed.contents().first().and_then(|object| object.key()).context("no folder yet")?.to_owned();
        Ok(key.split(['/', ':']).nth(1).context("a role id")?.to_owned())
    })
    .await?;
    team.ready_after("app", 1).await?;
    Ok(id)
}

#[tokio::test]
async fn a_second_task_for_an_update_never_gets_a_spec() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("second").await?;
    team.apply_program("app", &team.program("app.txt", "one", ", delaySeconds: 4")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    let (uid, first) = ready::until("the first task runs", RUN, async || {
        let updates = team.updates("app").await?;
        let update = updates.first().context("no Update")?;
        let task = update.status.as_ref().and_then(|status| status.driftless.as_ref()?.task.clone()).context("no task")?;
        Ok((update.uid().context("a uid")?, task))
    })
    .await?;

    // Somebody starts the same definition once more for the same Update.
    let ecs = aws_sdk_ecs::Client::new(&aws(&world, None).await?);
    let described = ecs.describe_tasks().cluster("driftless").tasks(&first).send().await?;
    let described = described.tasks().first().context("the first task")?;
    let definition = described.task_definition_arn().context("a definition")?;
    let cluster = described.cluster_arn().context("a cluster")?;
    let network = AwsVpcConfiguration::builder().subnets("subnet-1").build()?;
    let network = NetworkConfiguration::builder().awsvpc_configuration(network).build();
    let again = ecs.run_task().cluster(cluster).task_definition(definition).started_by(&uid);
    let started = again.launch_type(LaunchType::Fargate).network_configuration(network).send().await?;
    let second = started.tasks().first().and_then(|task| task.task_arn()).context("a second task")?.to_owned();
    ensure!(second != first, "the same task");

    let stack = team.ready_after("app", 1).await?;
    assert_eq!(output(&stack, "content"), Some(&json!("one")));
    let (s3, bucket) = (s3(&world, None).await?, world.get("WORLD_BUCKET")?);
    let id = second.rsplit('/').next().context("a task id")?;
    let listed = s3.list_objects_v2().bucket(bucket).prefix("tasks/").send().await?;
    let of_second: Vec<_> = listed.contents().iter().filter_map(|object| object.key()).filter(|key| key.contains(id)).collect();
    assert_eq!(of_second, Vec::<&str>::new());
    let log = std::fs::read_to_string(format!("{}/{id}.log", world.get("WORLD_LOGS")?))?;
    ensure!(!log.contains("pulumi "), "it ran: {log}");
    ecs.stop_task().cluster(cluster).task(&second).reason("the test is over").send().await?;
    Ok(())
}
