//! The life of a task: a process, its states, and the events about them.

use std::{
    collections::BTreeMap, os::unix::process::ExitStatusExt as _, path::Path, process::ExitStatus, sync::Arc, time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_contract::keys;
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

use super::{Fargate, definition::list, epoch, run::main_container};
use crate::{
    aws::{now, random_hex},
    world::process::{Process, command},
};

/// Fargate's default for the time between SIGTERM and SIGKILL.
const STOP_TIMEOUT_SECONDS: u64 = 30;
/// Between tries to deliver an event.
const REDELIVERY: Duration = Duration::from_millis(500);
/// As often is an event tried; AWS goes on for a day.
const DELIVERIES: u32 = 20;

/// Leads a task from PROVISIONING to STOPPED.
pub(super) async fn live(fargate: Arc<Fargate>, arn: String, definition: Value) {
    let ended = serve(&fargate, &arn, &definition).await;
    let at = now();
    let mut changes =
        json!({ "lastStatus": "STOPPED", "desiredStatus": "STOPPED", "stoppedAt": epoch(at), "executionStoppedAt": epoch(at) });
    let (code, reason, exit) = match ended {
        Ok(Some(status)) => {
            ("EssentialContainerExited", "Essential container in task exited".to_owned(), Some(exit_code(status)))
        }
        Ok(None) => ("UserInitiated", String::new(), None),
        Err(error) => ("TaskFailedToStart", format!("ResourceInitializationError: {error:#}"), None),
    };
    {
        let mut state = fargate.state();
        let Some(task) = state.tasks.get_mut(&arn) else { return };
        task.stopped = Some(at);
        // Who asked for the stop has said why already.
        if task.wire["stopCode"].is_null() {
            changes["stopCode"] = code.into();
            changes["stoppedReason"] = reason.into();
        }
        for container in task.wire["containers"].as_array_mut().into_iter().flatten() {
            container["lastStatus"] = "STOPPED".into();
            let main = container["name"] == main_container(&definition)["name"];
            // A container that never started has no exit code; init containers had ended well before the main one started.
            if let Some(exit) = exit {
                container["exitCode"] = if main { exit } else { 0 }.into();
            }
        }
    }
    advance(&fargate, &arn, changes).await;
}

/// Starts the task's process and waits for its end; `None` if it was stopped before it started.
async fn serve(fargate: &Arc<Fargate>, arn: &str, definition: &Value) -> Result<Option<ExitStatus>> {
    advance(fargate, arn, json!({ "lastStatus": "PENDING" })).await;
    let Some(mut stop) = fargate.state().tasks.get(arn).map(|task| task.stop.subscribe()) else { return Ok(None) };
    let id = keys::task_id(arn);
    let command = prepare(fargate, arn, definition)?;
    if *stop.borrow() {
        return Ok(None);
    }
    let mut process = Process::start(&fargate.site.dirs, id, command)?;
    advance(fargate, arn, json!({ "lastStatus": "RUNNING", "startedAt": epoch(now()) })).await;
    let asked = tokio::select! {
        status = process.wait() => return status.map(Some),
        asked = stop.wait_for(|stop| *stop) => asked.is_ok(),
    };
    ensure!(asked, "the task's record is gone");
    // Signals go to the container's first process only; what it leaves behind is killed with it, when `process` is dropped.
    process.signal(Signal::TERM)?;
    advance(fargate, arn, json!({ "lastStatus": "STOPPING" })).await;
    let seconds = main_container(definition)["stopTimeout"].as_u64().unwrap_or(STOP_TIMEOUT_SECONDS);
    if let Ok(status) = timeout(Duration::from_secs(seconds), process.wait()).await {
        return status.map(Some);
    }
    process.signal(Signal::KILL)?;
    process.wait().await.map(Some)
}

/// The runner's command, in a folder of its own and with a task's environment.
fn prepare(fargate: &Fargate, arn: &str, definition: &Value) -> Result<Command> {
    let main = main_container(definition);
    let entry: Vec<_> = list(&main["entryPoint"]).iter().filter_map(Value::as_str).collect();
    let runner = entry.first().copied().unwrap_or_default();
    // The init container would have put it there.
    let installs = |container: &Value| list(&container["command"]).last().is_some_and(|last| last == runner);
    let dependencies = list(&main["dependsOn"]).iter().map(|dependency| &dependency["containerName"]);
    let installed = dependencies
        .into_iter()
        .any(|name| list(&definition["containerDefinitions"]).iter().any(|other| other["name"] == *name && installs(other)));
    if !installed {
        bail!("CannotStartContainerError: exec {runner:?}: no such file or directory: no init container puts it there");
    }
    for container in list(&definition["containerDefinitions"]) {
        let group = container["logConfiguration"]["options"]["awslogs-group"].as_str();
        ensure!(
            group.is_none_or(|group| fargate.site.template.log_groups.iter().any(|known| known == group)),
            "there is no log group {group:?}"
        );
    }
    let id = keys::task_id(arn);
    let folder = fargate.site.dirs.create(&format!("tasks/{id}"))?;
    let overrides = fargate.state().tasks.get(arn).map(|task| task.wire["overrides"].clone()).unwrap_or_default();
    let overrides = list(&overrides["containerOverrides"])
        .iter()
        .find(|container| container["name"] == main["name"])
        .cloned()
        .unwrap_or_default();
    let arguments = if overrides["command"].is_null() { &main["command"] } else { &overrides["command"] };
    let mut command = command(&fargate.site.dirs, &fargate.runner);
    command.args(&entry[1..]).args(list(arguments).iter().filter_map(Value::as_str)).current_dir(&folder).env_clear();
    command.envs(environment(fargate, arn, &folder, main, &overrides)?);
    Ok(command)
}

fn environment(fargate: &Fargate, arn: &str, folder: &Path, main: &Value, overrides: &Value) -> Result<BTreeMap<String, String>> {
    let secret = fargate.state().tasks.get(arn).map(|task| task.secret.clone()).context("the task's record is gone")?;
    let mut environment = fargate.image.clone();
    // A container has a home and a /tmp that nobody else sees.
    for (variable, name) in [("HOME", "home"), ("TMPDIR", "tmp")] {
        let path = folder.join(name);
        std::fs::create_dir_all(&path)?;
        environment.insert(variable.into(), path.display().to_string());
    }
    for variable in list(&main["environment"]).iter().chain(list(&overrides["environment"])) {
        let text = |name: &str| variable[name].as_str().unwrap_or_default().to_owned();
        environment.insert(text("name"), text("value"));
    }
    let endpoint = &fargate.endpoint;
    environment.extend([
        ("ECS_CONTAINER_METADATA_URI_V4".into(), format!("{endpoint}/v4/{secret}")),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI".into(), format!("{endpoint}/v2/credentials/{secret}")),
        ("AWS_EXECUTION_ENV".into(), "AWS_ECS_FARGATE".into()),
        ("AWS_REGION".into(), fargate.site.template.region.clone()),
        ("AWS_DEFAULT_REGION".into(), fargate.site.template.region.clone()),
        ("AWS_ENDPOINT_URL".into(), fargate.site.endpoint.clone()),
    ]);
    Ok(environment)
}

/// As container runtimes report a signal.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Changes a task's record and tells the rules.
async fn advance(fargate: &Arc<Fargate>, arn: &str, changes: Value) {
    let wire = {
        let mut state = fargate.state();
        let Some(task) = state.tasks.get_mut(arn) else { return };
        let status = changes["lastStatus"].clone();
        if let (Some(wire), Value::Object(changes)) = (task.wire.as_object_mut(), changes) {
            wire.extend(changes);
        }
        if status == "RUNNING" {
            for container in task.wire["containers"].as_array_mut().into_iter().flatten() {
                container["lastStatus"] = "RUNNING".into();
            }
        }
        task.wire["version"] = (task.wire["version"].as_u64().unwrap_or(0) + 1).into();
        task.wire.clone()
    };
    publish(fargate, &wire).await;
}

/// Sends the event to the targets of every rule that it fits.
async fn publish(fargate: &Arc<Fargate>, wire: &Value) {
    let template = &fargate.site.template;
    let event = json!({
        "version": "0", "id": random_hex(16).unwrap_or_default(), "detail-type": "ECS Task State Change", "source": "aws.ecs",
        "account": template.account, "time": now().to_string(), "region": template.region, "resources": [wire["taskArn"]], "detail": detail(wire),
    });
    let targets = template.rules.values().filter(|rule| fits(&rule.pattern, &event)).flat_map(|rule| &rule.targets);
    for target in targets.filter_map(|target| template.queue(&target.arn).ok()) {
        let (site, url, body) = (Arc::clone(&fargate.site), target.url.clone(), event.to_string());
        for _ in 0..DELIVERIES {
            match site.sqs.send_message().queue_url(&url).message_body(&body).send().await {
                Ok(_) => break,
                Err(error) => tracing::warn!(%error, "a task state change could not be delivered"),
            }
            sleep(REDELIVERY).await;
        }
    }
}

/// The task as events show it: times in words, no tags.
fn detail(wire: &Value) -> Value {
    let fields = wire.as_object().into_iter().flatten().filter(|(name, value)| *name != "tags" && !value.is_null());
    let fields = fields.map(|(name, value)| match value.as_f64().filter(|_| name.ends_with("At")) {
        #[expect(clippy::cast_possible_truncation, reason = "milliseconds since 1970")]
        Some(seconds) => {
            let at = Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap_or(Timestamp::UNIX_EPOCH);
            (name.clone(), at.to_string().into())
        }
        None => (name.clone(), value.clone()),
    });
    let mut detail: Map<_, _> = fields.collect();
    detail.insert("updatedAt".into(), now().to_string().into());
    Value::Object(detail)
}

/// Whether an event fits a pattern of objects and lists of literals.
pub(super) fn fits(pattern: &Value, event: &Value) -> bool {
    match pattern {
        Value::Object(fields) => fields.iter().all(|(name, pattern)| event.get(name).is_some_and(|event| fits(pattern, event))),
        Value::Array(literals) => literals.contains(event),
        _ => false,
    }
}
