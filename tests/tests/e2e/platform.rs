//! Failures of the platform under a run, which are not failures of its program.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, ensure};
use driftless_api::Stack;
use driftless_contract::keys;
use driftless_tests::{
    aws::{CALLS_LOG, control::Outage},
    scenario::{Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use futures::future::try_join_all;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tokio::time::{Duration, Instant};

use crate::{
    capacity::all_ready,
    updates::ours,
    world::{alone, aside, aws, pid, shared},
};

/// An image that only this file's tests use.
const IMAGE: &str = "registry.example/refused:1";
const PULL: &str = "CannotPullContainerError: pull image manifest has been retried 5 time(s): failed to resolve ref \
                    registry.example/refused:1: unexpected status 429: toomanyrequests: You have reached your pull rate limit";
const REFUSED: &str = "  workspaceTemplate: { spec: { image: 'registry.example/refused:1' } }\n";

/// The maximum delay of a try after a failure of the platform.
const BACK_OFF: Duration = Duration::from_mins(5);

/// An image with a slow pull, and its duration: as long as Fargate's slower starts, and longer than
/// a sweep's period.
const SLOW: &str = "registry.example/large:1";
const PENDING: Duration = Duration::from_secs(80);

/// Counted failures, and platform failures in a row.
fn failures(stack: &Stack) -> (Option<i64>, Option<i64>) {
    let status = stack.status.as_ref();
    let counted = status.and_then(|status| status.last_update.as_ref()?.failures);
    (counted, status.and_then(|status| Some(status.driftless.as_ref()?.platform_failures.as_ref()?.count)))
}

/// The task of the newest run of a Stack, whose operation a hold keeps in progress.
async fn task(team: &Namespace<'_>, stack: &str) -> Result<String> {
    ours(&team.running(stack).await?).task.context("a task")
}

#[tokio::test]
async fn refused_image_pull_stalls_no_stack_and_all_recover_by_themselves() -> Result<()> {
    let (world, _turn) = aside().await?;
    let team = world.namespace("pull").await?;
    world.control.fail_starts(IMAGE, Some(PULL)).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let names: Vec<_> = (1..=12).map(|n| format!("app-{n}")).collect();
    for name in &names {
        team.apply_stack_as(name, name, "{}", Source::Program("app"), REFUSED).await?;
    }
    // The first of them may have failed more often by then.
    try_join_all(names.iter().map(|name| team.wait(name, "to fail to start", |stack| failures(stack).1 >= Some(1)))).await?;
    team.wait(&names[0], "to fail to start twice", |stack| failures(stack).1 >= Some(2)).await?;
    let refused = |stack: &Stack| {
        condition(stack).is_some_and(|(type_, reason, message)| {
            let remedy = "check the Workspace's image and the pull limits of its registry, and name a private registry in PrivateRegistries; not counted as a failed update";
            type_ == "Reconciling" && reason == "PlatformFailure" && message.contains(PULL) && message.contains(remedy)
        })
    };
    let told = try_join_all(names.iter().map(|name| team.wait(name, "to have the words of ECS", refused))).await?;
    for stack in &told {
        assert_eq!(failures(stack).0, Some(0), "{:#?}", stack.status);
    }
    team.told(&names[0], "PlatformFailure", &[PULL]).await?;
    assert_eq!(team.events(&names[0], "StackUpdateFailure").await?, Vec::<String>::new());

    world.control.fail_starts(IMAGE, None).await?;
    all_recover(&team).await?;
    team.clear().await
}

/// Waits until every Stack is Ready after its own next try, which may have been delayed until now.
async fn all_recover(team: &Namespace<'_>) -> Result<()> {
    ready::until("all Stacks are Ready", BACK_OFF + RUN, async || all_ready(team).await).await?;
    for stack in team.stacks().await? {
        assert_eq!(failures(&stack), (Some(0), None), "{:#?}", stack.status);
    }
    Ok(())
}

#[tokio::test]
async fn image_that_is_built_for_the_other_processor_gets_it() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("other-processor").await?;
    world.control.build_for("registry.example/arm:1", "ARM64").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let template = "  workspaceTemplate: { spec: { image: 'registry.example/arm:1' } }\n";
    team.apply_stack("app", Source::Program("app"), template).await?;
    let told = |stack: &Stack| {
        condition(stack).is_some_and(|(_, of, message)| {
            of == "PlatformFailure" && message.contains("not built for amd64; the next run with these images has arm64")
        })
    };
    team.wait("app", "to say that the next run has another processor", told).await?;
    let ready = team.ready_after("app", 2).await?;
    assert_eq!(failures(&ready), (Some(0), None), "{:#?}", ready.status);
    // By now the image is known.
    team.apply_stack_as("other", "other", "{}", Source::Program("app"), template).await?;
    team.ready_after("other", 1).await?;
    team.clear().await
}

#[tokio::test]
async fn task_that_ecs_cannot_start_names_what_to_check() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("not-started").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let no_registry = "ResourceInitializationError: unable to pull secrets or registry auth: the task cannot reach the service";
    let no_address = "Timeout waiting for network interface provisioning to complete.";
    for (name, reason, remedy) in [
        ("registry", no_registry, "check the routes from the subnets to ECR"),
        ("address", no_address, "check the free addresses of the subnets"),
    ] {
        let image = format!("registry.example/{name}:1");
        world.control.fail_starts(&image, Some(reason)).await?;
        let template = format!("  workspaceTemplate: {{ spec: {{ image: {image:?} }} }}\n");
        team.apply_stack_as(name, name, "{}", Source::Program("app"), &template).await?;
        let told = |stack: &Stack| {
            condition(stack)
                .is_some_and(|(_, of, message)| of == "PlatformFailure" && message.contains(reason) && message.contains(remedy))
        };
        team.wait(name, "to name the failure and what to check", told).await?;
        world.control.fail_starts(&image, None).await?;
        let ready = team.wait(name, "to be Ready", is_ready).await?;
        assert_eq!(failures(&ready), (Some(0), None), "{:#?}", ready.status);
    }
    team.clear().await
}

#[tokio::test]
async fn ten_minutes_of_refused_pulls_start_few_tasks_and_all_recover() -> Result<()> {
    const IMAGE: &str = "registry.example/away:1";
    const AWAY: Duration = Duration::from_mins(10);
    /// At once and after 10s, 30s, 90s and 270s: the next one is due 700 s after the first.
    const STARTS: usize = 5;
    let (world, _turn) = aside().await?;
    let team = world.namespace("pull-away").await?;
    world.control.fail_starts(IMAGE, Some(PULL)).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let names: Vec<_> = (1..=12).map(|n| format!("app-{n}")).collect();
    let image = format!("  workspaceTemplate: {{ spec: {{ image: {IMAGE:?} }} }}\n");
    for name in &names {
        team.apply_stack_as(name, name, "{}", Source::Program("app"), &image).await?;
    }
    let begun = Instant::now();
    let told = ready::until_every(Duration::from_secs(5), "ten minutes are over", AWAY + RUN, async || {
        let stacks = team.stacks().await?;
        let counted: Vec<_> = stacks.iter().filter(|stack| failures(stack).0.unwrap_or(0) != 0 || is_stalled(stack)).collect();
        if !counted.is_empty() {
            return Ok(Err(format!("{counted:#?}")));
        }
        ensure!(begun.elapsed() > AWAY, "{:?} are", begun.elapsed());
        Ok(Ok(stacks))
    })
    .await?;
    let told = told.map_err(|counted| anyhow!("a refused pull counts: {counted}"))?;
    for stack in &told {
        let words = condition(stack).is_some_and(|(_, reason, message)| reason == "PlatformFailure" && message.contains(PULL));
        let is_tried = stack.status.as_ref().is_some_and(|status| status.current_update.is_some());
        ensure!((words || is_tried) && failures(stack).1 >= Some(4), "{:#?}", stack.status);
    }
    let is_ours = |call: &Value| call["operation"] == "RunTask" && call["input"]["tags"].to_string().contains(&team.name);
    let calls = world.journal(CALLS_LOG, 0, is_ours)?;
    let starts: BTreeSet<_> = calls.iter().filter_map(|call| call["input"]["clientToken"].as_str()).collect();
    // A launch that is delivered twice requests its task twice.
    let is_little = starts.len() <= STARTS * names.len() && calls.len() <= starts.len() + names.len();
    ensure!(is_little && starts.len() >= 4 * names.len(), "{} starts, {} calls of RunTask", starts.len(), calls.len());

    world.control.fail_starts(IMAGE, None).await?;
    all_recover(&team).await?;
    team.clear().await
}

fn is_stalled(stack: &Stack) -> bool {
    condition(stack).is_some_and(|(type_, ..)| type_ == "Stalled")
}

#[tokio::test]
async fn failed_init_container_is_named_and_its_correction_runs() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("failed-init").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let apply = async |command: &str| {
        let pod = format!("{{ initContainers: [{{ name: prepare, command: {command} }}] }}");
        let template = format!("  workspaceTemplate: {{ spec: {{ podTemplate: {{ spec: {pod} }} }} }}\n");
        team.apply_stack("app", Source::Program("app"), &template).await
    };
    apply("[sh, -c, exit 3]").await?;
    let told = |stack: &Stack| {
        condition(stack).is_some_and(|(type_, reason, message)| {
            let words = ["init-prepare: exit code 3", "dependency graph", "see the log of the init container that failed"];
            type_ == "Reconciling" && reason == "PlatformFailure" && words.iter().all(|words| message.contains(words))
        })
    };
    let stack = team.wait("app", "to name the init container", told).await?;
    assert_eq!(failures(&stack).0, Some(0));
    apply("['true']").await?;
    assert_eq!(failures(&team.wait("app", "to be Ready", is_ready).await?), (Some(0), None));
    team.clear().await
}

#[tokio::test]
async fn task_that_is_denied_its_folder_names_the_policies() -> Result<()> {
    let (world, _turn) = aside().await?;
    let (team, image) = (world.namespace("denied-folder").await?, "registry.example/denied:1");
    // Its task is known before it reads its folder.
    world.control.slow_starts(image, 20).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let template = format!("  workspaceTemplate: {{ spec: {{ image: {image:?} }} }}\n");
    team.apply_stack("app", Source::Program("app"), &template).await?;
    let arn = ready::until("the run has a task", RUN, async || {
        let update = team.updates("app").await?.pop().context("no Update")?;
        ours(&update).task.with_context(|| format!("{:?}", update.status))
    })
    .await?;
    let [call, about, code, message] =
        ["s3 GET", &format!("{}/in/", keys::task_id(&arn)), "AccessDenied", "Access Denied"].map(String::from);
    // The recorder reads the folder too.
    let by = Some("TaskRole".to_owned());
    let denied = Outage { call, by, about, percent: 100, status: 403, code, message, ..Outage::default() };
    world.control.outage(&denied).await?;
    let told = |stack: &Stack| {
        condition(stack).is_some_and(|(_, reason, message)| {
            let remedy = "pulumi: exit code 40; S3 denies the task its folder, or nothing was written there; check the policies of the task role";
            reason == "PlatformFailure" && message.contains(remedy)
        })
    };
    let stack = team.wait("app", "to name the policies", told).await?;
    assert_eq!(failures(&stack), (Some(0), Some(1)));
    // The outage only concerns that task: the next one reads its folder.
    world.control.outage(&Outage { percent: 0, ..denied }).await?;
    assert_eq!(failures(&team.ready_after("app", 2).await?), (Some(0), None));
    team.clear().await
}

#[tokio::test]
async fn image_of_a_private_registry_is_pulled_by_the_installation() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("registry").await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let pod = "podTemplate: { spec: { imagePullSecrets: [{ name: any }] } }";
    let template = format!("  workspaceTemplate: {{ spec: {{ image: 'private.example/pulumi:1', {pod} }} }}\n");
    team.apply_stack("app", Source::Program("app"), &template).await?;
    team.ready_after("app", 1).await?;
    team.told("app", "PodFieldsIgnored", &["podTemplate.spec.imagePullSecrets"]).await?;
    team.clear().await
}

#[tokio::test]
async fn maintenance_of_a_host_is_no_failed_update() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("maintenance").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    world.control.retire(&task(&team, "app").await?).await?;
    // The runner interrupts Pulumi, which waits for the resource in progress.
    drop(hold);
    let told = team
        .wait("app", "to name the maintenance", |stack| {
            condition(stack).is_some_and(|(_, reason, message)| {
                reason == "PlatformFailure" && message.contains("performing maintenance on the underlying infrastructure")
            }) || is_ready(stack)
        })
        .await?;
    ensure!(!is_ready(&told), "the run was done before its task was stopped");
    assert_eq!(failures(&told), (Some(0), Some(1)));
    let stack = team.ready_after("app", 2).await?;
    assert_eq!(failures(&stack), (Some(0), None));
    team.clear().await
}

#[tokio::test]
async fn task_that_a_person_stops_is_no_failed_update() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("stopped-by-hand").await?;
    let ecs = aws_sdk_ecs::Client::new(&aws(&world, None).await?);
    // One runner reports the interruption; the other is killed before that.
    for name in ["told", "silent"] {
        let hold = team.hold()?;
        team.apply_program(name, &team.program(&format!("{name}.txt"), "one", &hold.property())?).await?;
        team.apply_stack_as(name, name, "{}", Source::Program(name), "").await?;
        let arn = task(&team, name).await?;
        ecs.stop_task().cluster("driftless").task(&arn).reason("make room").send().await?;
        if name == "silent" {
            kill_process(pid(&world, keys::task_id(&arn))?, Signal::KILL)?;
        }
        drop(hold);
        let stopped = |stack: &Stack| {
            condition(stack).is_some_and(|(type_, reason, message)| {
                let remedy = "stopped from outside Driftless; nothing to do";
                type_ == "Reconciling" && reason == "PlatformFailure" && message.contains("make room") && message.contains(remedy)
            })
        };
        // It is retried within a minute, so no other wait may come before this one.
        let told = team.wait(name, "to say that its task was stopped", stopped).await?;
        assert_eq!(failures(&told), (Some(0), Some(1)), "{name}");
        assert_eq!(failures(&team.ready_after(name, 2).await?), (Some(0), None), "{name}");
    }
    team.clear().await
}

#[tokio::test]
async fn run_out_of_memory_counts_and_names_the_field() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("memory").await?;
    let hold = team.hold()?;
    team.apply_program("app", &team.program("app.txt", "one", &hold.property())?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    world.control.exhaust(&task(&team, "app").await?).await?;
    let told = team
        .wait("app", "to have failed", |stack| condition(stack).is_some_and(|(_, reason, _)| reason == "RetryingAfterFailure"))
        .await?;
    let last = told.status.and_then(|status| status.last_update).context("lastUpdate")?;
    let message = last.message.unwrap_or_default();
    for words in [
        "pulumi used more than the task's memory of ",
        "exit code 137, OutOfMemoryError: Container killed due to memory usage",
        "give it more memory with spec.workspaceTemplate.spec.resources.limits.memory of the Stack",
    ] {
        ensure!(message.contains(words), "{message}");
    }
    world.control.exhaust(&task(&team, "app").await?).await?;
    team.wait("app", "to count the second", |stack| failures(stack) == (Some(1), None)).await?;
    drop(hold);
    team.ready_after("app", 3).await?;
    team.clear().await
}

#[tokio::test]
async fn provider_that_needs_more_memory_than_the_task_names_the_field() -> Result<()> {
    // The kernel's count of killed processes is that of the whole machine here, and of a task on
    // Fargate: no other run may fail in the meantime.
    let (world, _alone) = alone().await?;
    let team = world.namespace("hungry").await?;
    team.apply_program("app", &team.program("app.txt", "one", ", useMiB: 2500")?).await?;
    let apply = async |memory: &str| {
        let template = format!("  workspaceTemplate: {{ spec: {{ resources: {{ limits: {{ memory: {memory} }} }} }} }}\n");
        team.apply_stack("app", Source::Program("app"), &template).await
    };
    apply("2Gi").await?;
    let told = team
        .wait("app", "to have failed", |stack| condition(stack).is_some_and(|(_, reason, _)| reason == "RetryingAfterFailure"))
        .await?;
    let message = told.status.and_then(|status| status.last_update?.message).unwrap_or_default();
    // The kernel kills the provider alone. Where this process may create no cgroups, the world
    // kills the whole container.
    let whys = ["the task ran out of memory and a process was killed", "OutOfMemoryError: Container killed due to memory usage"];
    let remedy = "give it more memory with spec.workspaceTemplate.spec.resources.limits.memory";
    ensure!(whys.iter().any(|why| message.contains(why)) && message.contains(remedy), "{message}");
    apply("4Gi").await?;
    assert_eq!(failures(&team.wait("app", "to be Ready", is_ready).await?), (Some(0), None));
    team.clear().await
}

#[tokio::test]
async fn slow_start_of_a_task_is_no_failure() -> Result<()> {
    let (world, _turn) = aside().await?;
    let team = world.namespace("slow-start").await?;
    world.control.slow_starts(SLOW, PENDING.as_secs()).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    let (begun, image) = (Instant::now(), format!("  workspaceTemplate: {{ spec: {{ image: {SLOW:?} }} }}\n"));
    team.apply_stack("app", Source::Program("app"), &image).await?;
    let stack = team.ready_after("app", 1).await?;
    ensure!(begun.elapsed() > PENDING, "it was Ready after {:?}", begun.elapsed());
    assert_eq!(failures(&stack), (Some(0), None), "{:#?}", stack.status);
    team.clear().await
}
