//! A platform that refuses, throttles or is unavailable: the Stack reports it, no run fails, and
//! everything recovers afterwards.

use std::{cell::Cell, fs};

use anyhow::{Context as _, Result, ensure};
use aws_sdk_sqs::types::QueueAttributeName;
use driftless_api::Stack;
use driftless_contract::keys;
use driftless_tests::{
    aws::{
        CALLS_LOG,
        control::{Outage, Switches},
    },
    scenario::{Handle, Namespace, RUN, Source, condition, is_ready},
    world::ready,
};
use serde_json::Value;

use crate::{
    answers::met,
    updates::ours,
    world::{alone, aws, no_dead_letters, nothing_was_given_up, pid, shared},
};

/// An outage of the calls of `ecs` about the tasks of an image that only one test uses.
fn ecs(operation: &str, image: &str, percent: u32, code: &str, message: &str) -> Outage {
    let [call, about, code, message] = [&format!("ecs {operation}"), image, code, message].map(String::from);
    Outage { call, about, percent, status: 400, code, message, ..Outage::default() }
}

/// An outage of calls of S3 in the whole world.
fn s3(call: &str, about: &str, percent: u32, status: u16, code: &str) -> Outage {
    let [call, about, code, message] = [call, about, code, "This is an outage of the test."].map(String::from);
    Outage { call, about, percent, status, code, message, ..Outage::default() }
}

/// Applies Stacks that run in tasks of an image.
pub async fn apply(team: &Namespace<'_>, image: &str, names: &[String]) -> Result<()> {
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    for name in names {
        apply_one(team, name, image).await?;
    }
    Ok(())
}

async fn apply_one(team: &Namespace<'_>, name: &str, image: &str) -> Result<()> {
    let more = format!("  workspaceTemplate: {{ spec: {{ image: {image:?} }} }}\n");
    team.apply_stack_as(name, name, "{}", Source::Program("app"), &more).await
}

fn says(stack: &Stack, words: &str) -> bool {
    condition(stack).is_some_and(|(.., message)| message.contains(words))
}

/// Checks that every Stack is Ready.
pub async fn all_ready(team: &Namespace<'_>) -> Result<()> {
    let waiting: Vec<_> = team.stacks().await?.into_iter().filter(|stack| !is_ready(stack)).collect();
    ensure!(waiting.is_empty(), "{} wait, such as {:#?}", waiting.len(), waiting[0].status);
    Ok(())
}

/// Checks that each Stack ran once, without a counted failure.
pub async fn ran_once(team: &Namespace<'_>) -> Result<()> {
    for stack in team.stacks().await? {
        let name = stack.metadata.name.as_deref().context("a name")?;
        let updates = team.updates(name).await?;
        ensure!(updates.len() == 1, "{} Updates of {name}", updates.len());
        ensure!(stack.status.as_ref().and_then(|status| status.last_update.as_ref()?.failures) == Some(0), "{:#?}", stack.status);
    }
    Ok(())
}

/// Checks that no launch failed because of ECS. A message is delivered five times before it is a
/// dead letter, which takes longer than a test.
pub async fn no_message_failed(world: &Handle) -> Result<()> {
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with("launcher-") {
            let log = fs::read_to_string(file.path())?;
            let failed = log.lines().find(|line| line.contains("a message failed") && line.contains("ecs:"));
            ensure!(failed.is_none(), "{failed:?}");
        }
    }
    nothing_was_given_up(world).await
}

#[tokio::test]
async fn throttled_run_task_delays_stacks_and_fails_none() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, image) = (world.namespace("throttled").await?, "throttled/pulumi:1");
    world.control.outage(&ecs("RunTask", image, 90, "ThrottlingException", "Rate exceeded")).await?;
    let names = ["a", "b", "c"].map(String::from);
    apply(&team, image, &names).await?;
    ready::until("a Stack says that ECS throttles", RUN, async || {
        let stacks = team.stacks().await?;
        let words = "ThrottlingException: Rate exceeded; next try in ";
        ensure!(stacks.iter().any(|stack| says(stack, words)), "{:#?}", stacks.iter().map(condition).collect::<Vec<_>>());
        Ok(())
    })
    .await?;
    ready::until("all Stacks are Ready", RUN, async || all_ready(&team).await).await?;
    ran_once(&team).await?;
    world.control.outage(&ecs("RunTask", image, 0, "", "")).await?;
    no_message_failed(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn twelve_stacks_become_ready_on_a_quota_of_two_tasks() -> Result<()> {
    const TASKS: usize = 2;
    let (world, _turn) = shared().await?;
    let (team, image) = (world.namespace("quota").await?, "quota/pulumi:1");
    world.control.limit_tasks(image, Some(TASKS)).await?;
    let names: Vec<_> = (0..12).map(|number| format!("s{number}")).collect();
    apply(&team, image, &names).await?;
    let of_image = |task: &&Value| {
        task["containers"].as_array().is_some_and(|containers| containers.iter().any(|container| container["image"] == image))
    };
    let (most, told) = (Cell::new(0), Cell::new(false));
    ready::until("all Stacks are Ready", RUN, async || {
        let tasks = world.control.status().await?.tasks;
        let live = tasks.iter().filter(of_image).filter(|task| task["lastStatus"] != "STOPPED").count();
        most.set(most.get().max(live));
        let words = "limit on the number of vCPUs";
        told.set(told.get() || team.stacks().await?.iter().any(|stack| says(stack, words)));
        all_ready(&team).await
    })
    .await?;
    assert_eq!((most.get(), told.get()), (TASKS, true));
    ran_once(&team).await?;
    world.control.limit_tasks(image, None).await?;
    no_message_failed(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn refusals_of_run_task_reach_the_stack_and_pass() -> Result<()> {
    let (world, _turn) = shared().await?;
    let (team, image) = (world.namespace("refused-runs").await?, "refused/pulumi:1");
    let busy =
        "Error retrieving security group information for [sg-1]: Request limit exceeded. (ErrorCode: RequestLimitExceeded)";
    let gone = "The subnet ID 'subnet-1' does not exist";
    let cases = [
        ("InvalidParameterException", busy, "ErrorCode: RequestLimitExceeded); next try in "),
        ("InvalidParameterException", gone, "does not exist; the operator has to check Subnets and SecurityGroups"),
        ("BlockedException", "Your account is currently blocked.", "open a case with AWS Support"),
        (
            "AccessDeniedException",
            "User: launcher is not authorized to perform: ecs:RunTask",
            "to allow the launcher's role this call",
        ),
    ];
    world.control.outage(&ecs("RunTask", image, 100, cases[0].0, cases[0].1)).await?;
    apply(&team, image, &["app".into()]).await?;
    for (code, message, words) in cases {
        world.control.outage(&ecs("RunTask", image, 100, code, message)).await?;
        team.wait("app", &format!("to say {words:?}"), |stack| says(stack, words)).await?;
    }
    no_message_failed(&world).await?;
    world.control.outage(&ecs("RunTask", image, 0, "", "")).await?;
    team.ready_after("app", 1).await?;
    ran_once(&team).await?;
    team.clear().await
}

#[tokio::test]
async fn image_that_ecs_refuses_is_an_invalid_spec() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("refused-image").await?;
    apply(&team, "pulumi/pulumi:{latest}", &["app".into()]).await?;
    let stack = team
        .wait("app", "to be stalled", |stack| {
            condition(stack).is_some_and(|(type_, reason, _)| type_ == "Stalled" && reason == "SpecInvalid")
        })
        .await?;
    ensure!(says(&stack, "Container.image contains invalid characters"), "{:?}", condition(&stack));
    no_message_failed(&world).await?;
    apply_one(&team, "app", "pulumi/pulumi:1").await?;
    team.ready_after("app", 2).await?;
    team.clear().await
}

#[tokio::test]
async fn hints_that_expire_behind_throttled_functions_are_made_up_by_the_sweep() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("no-concurrency").await?;
    world.control.pause_schedule(true).await?;
    world.control.switch("Reconciler", &Switches { throttled: true, ..Switches::default() }).await?;
    apply(&team, "pulumi/pulumi:1", &["app".into()]).await?;
    let sqs = aws_sdk_sqs::Client::new(&aws(&world, None).await?);
    let hints = queue(&sqs, "driftless-hints").await?;
    let throttled = async || -> Result<u64> {
        let mappings = world.control.status().await?.mappings;
        mappings["Reconciler"]["failed"].as_u64().context("a number of throttled messages")
    };
    // Twice as many deliveries of each as may fail in the function.
    ready::until("every hint to be throttled often", RUN, async || {
        world.control.expire("Reconciler").await?;
        let (count, waiting) = (throttled().await?, messages(&sqs, &hints).await?);
        ensure!(waiting > 0 && count >= 10 * waiting, "{count} throttled deliveries of {waiting} messages");
        Ok(())
    })
    .await?;
    no_dead_letters(&world).await?;
    sqs.purge_queue().queue_url(hints).send().await?;
    world.control.switch("Reconciler", &Switches::default()).await?;
    world.control.trigger("Sweeper").await?;
    team.ready_after("app", 1).await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn message_that_fails_in_its_function_until_its_last_try_is_a_dead_letter() -> Result<()> {
    let (world, _alone) = alone().await?;
    let sqs = aws_sdk_sqs::Client::new(&aws(&world, None).await?);
    let cases = [
        ("Reconciler", "driftless-hints", "driftless-hints-dead-letters", 5),
        ("Fetcher", "driftless-sources.fifo", "driftless-sources-dead-letters.fifo", 3),
        ("Launcher", "driftless-launches", "driftless-launches-dead-letters", 5),
        ("Recorder", "driftless-runs", "driftless-runs-dead-letters", 5),
    ];
    for (function, name, dead, tries) in cases {
        let [url, dead] = [queue(&sqs, name).await?, queue(&sqs, dead).await?];
        let failed = async || -> Result<u64> {
            let mappings = world.control.status().await?.mappings;
            mappings[function]["failed"].as_u64().context("a number of failed messages")
        };
        let before = failed().await?;
        let send = sqs.send_message().queue_url(url).message_body("unreadable").message_group_id("g");
        send.set_message_deduplication_id(name.ends_with("fifo").then(|| "once".into())).send().await?;
        let letter = ready::until(&format!("a dead letter of the {function}"), RUN, async || {
            world.control.expire(function).await?;
            let letters = sqs.receive_message().queue_url(&dead).message_attribute_names("All").send().await?.messages;
            letters.unwrap_or_default().pop().context("no dead letter")
        })
        .await?;
        assert_eq!(letter.body(), Some("unreadable"), "{function}");
        let cause = letter.message_attributes().and_then(|attributes| attributes.get("cause")?.string_value());
        assert_eq!(cause, Some("unreadable"), "{function}");
        assert_eq!(failed().await? - before, tries - 1, "the last failure of the {function} is the dead letter");
        sqs.purge_queue().queue_url(dead).send().await?;
    }
    nothing_was_given_up(&world).await
}

/// Throttled deliveries do not count, and neither function nor queue knows of the crashes.
#[tokio::test]
async fn message_that_crashes_its_function_each_time_is_a_dead_letter() -> Result<()> {
    let (world, _alone) = alone().await?;
    let sqs = aws_sdk_sqs::Client::new(&aws(&world, None).await?);
    let [runs, dead] = [queue(&sqs, "driftless-runs").await?, queue(&sqs, "driftless-runs-dead-letters").await?];
    let sample: Value = serde_json::from_str(include_str!("../../../events/recorder/result.json"))?;
    let task = "crashes-the-recorder";
    let body = sample["Records"][0]["body"]
        .as_str()
        .context("a body")?
        .replace("0123456789abcdef0123456789abcdef/", &format!("{task}/"));

    world.control.switch("Recorder", &Switches { throttled: true, ..Switches::default() }).await?;
    let throttled = async || -> Result<u64> {
        world.control.status().await?.mappings["Recorder"]["failed"].as_u64().context("a number of throttled messages")
    };
    let before = throttled().await?;
    sqs.send_message().queue_url(runs).message_body(body).send().await?;
    ready::until("the message to be throttled often", RUN, async || {
        world.control.expire("Recorder").await?;
        ensure!(throttled().await? >= before + 10, "not yet");
        Ok(())
    })
    .await?;
    let (by, call, about) = (Some("RecorderRole".to_owned()), "s3 GET".to_owned(), task.to_owned());
    let kill = Outage { by, call, about, percent: 100, status: 503, kills: true, ..Outage::default() };
    world.control.outage(&kill).await?;
    world.control.switch("Recorder", &Switches::default()).await?;
    let letter = ready::until("a dead letter of the recorder", RUN, async || {
        world.control.expire("Recorder").await?;
        let letters = sqs.receive_message().queue_url(&dead).message_attribute_names("All").send().await?.messages;
        letters.unwrap_or_default().pop().context("no dead letter")
    })
    .await?;
    world.control.outage(&Outage { percent: 0, ..kill }).await?;
    sqs.purge_queue().queue_url(dead).send().await?;
    let cause = letter.message_attributes().and_then(|attributes| attributes.get("cause")?.string_value());
    assert_eq!(cause, Some("crashed"));
    let path = |call: &Value| call["path"].as_str().is_some_and(|path| path.contains(task));
    let kills = world.journal(CALLS_LOG, 0, |call| call["kills"] == true && path(call))?;
    assert_eq!(kills.len(), 5, "{kills:#?}");
    let team = world.namespace("after-a-crash").await?;
    apply(&team, "pulumi/pulumi:1", &["app".into()]).await?;
    team.ready_after("app", 1).await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

async fn queue(sqs: &aws_sdk_sqs::Client, name: &str) -> Result<String> {
    sqs.get_queue_url().queue_name(name).send().await?.queue_url.context("a URL")
}

/// The number of messages in a queue, including hidden ones.
async fn messages(sqs: &aws_sdk_sqs::Client, queue: &str) -> Result<u64> {
    let names = [QueueAttributeName::ApproximateNumberOfMessages, QueueAttributeName::ApproximateNumberOfMessagesNotVisible];
    let request = sqs.get_queue_attributes().queue_url(queue).set_attribute_names(Some(names.to_vec()));
    let attributes = request.send().await?.attributes.unwrap_or_default();
    Ok(attributes.values().map(|count| count.parse::<u64>()).sum::<Result<_, _>>()?)
}

#[tokio::test]
async fn account_without_concurrency_only_delays_stacks() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("no-quota").await?;
    // Fewer than the functions that have work at the same time.
    world.control.limit_functions(Some(1)).await?;
    let names: Vec<_> = (0..6).map(|number| format!("s{number}")).collect();
    apply(&team, "pulumi/pulumi:1", &names).await?;
    ready::until("all Stacks are Ready", RUN * 2, async || {
        for function in ["Reconciler", "Fetcher", "Launcher", "Recorder"] {
            world.control.expire(function).await?;
        }
        all_ready(&team).await
    })
    .await?;
    let functions = world.control.status().await?.functions;
    let throttled: u64 = functions.values().filter_map(|counts| counts["failures"]["throttle"].as_u64()).sum();
    ensure!(throttled > 0, "no invocation was throttled: {functions:?}");
    world.control.limit_functions(None).await?;
    ran_once(&team).await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn everything_recovers_when_s3_was_unavailable_for_a_minute() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("s3-away").await?;
    let hold = team.hold()?;
    team.apply_program("held", &team.program("held.txt", "one", &hold.property())?).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("held", "held", "{}", Source::Program("held"), "").await?;
    let task = ours(&team.running("held").await?).task.context("a task")?;
    world.control.outage(&Outage { seconds: Some(60), ..s3("s3", "", 100, 503, "SlowDown") }).await?;
    // In the meantime one run ends and another is about to start.
    drop(hold);
    team.apply_stack("app", Source::Program("app"), "").await?;
    for about in [team.name.as_str(), keys::task_id(&task)] {
        ready::until(&format!("a call about {about} meets the outage"), RUN, async || {
            ensure!(met(&world, "s3", about)? > 0, "none met it");
            Ok(())
        })
        .await?;
    }
    ready::until("both Stacks are Ready", RUN, async || all_ready(&team).await).await?;
    ran_once(&team).await?;
    // Once an hour a sweep lists the trees. If it meets the outage, it fails, and they are listed
    // an hour later.
    world.control.forgive("s3:ListObjectsV2 trees/").await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}

#[tokio::test]
async fn conditional_writes_that_conflict_are_written_again() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("conflicts").await?;
    let conflicts = s3("s3 PUT", " if-none-match", 50, 409, "ConditionalRequestConflict");
    world.control.outage(&conflicts).await?;
    apply(&team, "pulumi/pulumi:1", &["a", "b"].map(String::from)).await?;
    ready::until("both Stacks are Ready", RUN, async || all_ready(&team).await).await?;
    ran_once(&team).await?;
    nothing_was_given_up(&world).await?;
    world.control.outage(&Outage { percent: 0, ..conflicts }).await?;
    team.clear().await
}

#[tokio::test]
async fn run_whose_folder_s3_refuses_names_the_error_of_s3() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("folder").await?;
    let refused = s3("s3 GET", "/in/spec", 100, 403, "SignatureDoesNotMatch");
    let unreported = s3("s3 PUT", "/out/result", 100, 403, "SignatureDoesNotMatch");
    for outage in [&refused, &unreported] {
        world.control.outage(outage).await?;
    }
    apply(&team, "pulumi/pulumi:1", &["app".into()]).await?;
    let told = |stack: &Stack, words: &str| {
        condition(stack).is_some_and(|(_, reason, _)| reason == "PlatformFailure") && says(stack, words)
    };
    let exit = "pulumi: exit code 41; S3 refuses the task's requests; see its error code in the task's log";
    team.wait("app", "to have the task's exit code", |stack| told(stack, exit)).await?;
    world.control.outage(&Outage { percent: 0, ..unreported }).await?;
    let code = "SignatureDoesNotMatch; check the bucket's Region";
    let stack = team.wait("app", "to have the error code of S3", |stack| told(stack, code)).await?;
    ensure!(stack.status.and_then(|status| status.last_update?.failures) == Some(0), "it counts");
    world.control.outage(&Outage { percent: 0, ..refused }).await?;
    team.wait("app", "to be Ready", is_ready).await?;
    team.clear().await
}

#[tokio::test]
async fn runs_go_on_while_the_api_server_is_restarted() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("restarted").await?;
    let hold = team.hold()?;
    team.apply_program("held", &team.program("held.txt", "one", &hold.property())?).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack_as("held", "held", "{}", Source::Program("held"), "").await?;
    team.running("held").await?;
    // In the meantime one run is about to start and another ends.
    team.apply_stack("app", Source::Program("app"), "").await?;
    let before = pid(&world, "kube-apiserver")?;
    rustix::process::kill_process(before, rustix::process::Signal::TERM)?;
    drop(hold);
    // The old one ends a minute after its signal at the earliest, because watches are open.
    ready::until("another API server answers", RUN, async || {
        ensure!(pid(&world, "kube-apiserver")? != before, "it is the same");
        all_ready(&team).await.or_else(|error| if error.is::<kube::Error>() { Err(error) } else { Ok(()) })
    })
    .await?;
    ready::until("both Stacks are Ready", RUN, async || all_ready(&team).await).await?;
    ran_once(&team).await?;
    // A sweep may have failed in the meantime; the next one did its work.
    world.control.forgive("Sweeper: ").await?;
    nothing_was_given_up(&world).await?;
    team.clear().await
}
