//! The life of a task: a process, its states, and the events about them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use driftless_contract::keys;
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::{
    process::Command,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    definition::{list, main_container},
    limits::Limits,
    state::{Fargate, Order, PRIVATE_REGISTRY, epoch},
};
use crate::{
    aws::{
        machine::{now, random_hex, wrong_clock},
        policy::Demand,
        template::Template,
    },
    world::{
        process::{Process, command},
        session::TASK,
    },
};

/// Fargate's default for the time between SIGTERM and SIGKILL.
const STOP_TIMEOUT_SECONDS: u64 = 30;
/// A container's own folders, its home and its `/tmp`, below [`TASK`].
const OWN: [&str; 2] = ["home", "tmp"];
/// Arguments: the files for the process id; the size in MiB of the task's disk, or 0, and its
/// place; the mounts, each with its path; `--`; the two of [`OWN`]; the program.
const MOUNT_ALL: &str = r#"
for processes in $1; do echo $$ > "$processes"; done
[ "$2" = 0 ] || { /usr/bin/mkdir -p "$3" && /usr/bin/mount -t tmpfs -o "size=$2m" disk "$3" || exit; }
shift 3
until [ "$1" = -- ]; do
  { [ -f "$1" ] || /usr/bin/mkdir -p "$1" "$2"; } && /usr/bin/mount --bind "$1" "$2" || exit
  shift 2
done
/usr/bin/mkdir -p "$2" "$3" || exit
shift 3
exec "$@"
"#;
/// ECS's message for a registry that requires a login and gets none.
const NO_DESCRIPTOR: &str = "CannotPullContainerError: pull image manifest has been retried 1 time(s): image Manifest does not contain \
                             descriptor matching platform";
const UNAUTHORIZED: &str = "CannotPullContainerError: pull image manifest has been retried 1 time(s): 401 Unauthorized:";
/// The pause between tries to deliver an event.
const REDELIVERY: Duration = Duration::from_millis(500);
/// The number of tries to deliver an event; AWS continues for a day.
const DELIVERIES: u32 = 20;

/// The progress of a task.
#[derive(Default)]
struct Ended {
    /// The exit codes of the containers that ran, by name.
    exits: BTreeMap<String, i32>,
    /// The init container that failed: no later container started.
    failed: Option<String>,
    /// The container whose image could not be pulled, and the reason: no container started.
    unpulled: Option<(String, String)>,
    /// The main container exceeded its memory.
    exhausted: bool,
}

/// Leads a task from PROVISIONING to STOPPED.
pub(super) async fn live(fargate: Arc<Fargate>, arn: String, definition: Value) {
    let ended = serve(&fargate, &arn, &definition).await;
    let at = now();
    let mut changes =
        json!({ "lastStatus": "STOPPED", "desiredStatus": "STOPPED", "stoppedAt": epoch(at), "executionStoppedAt": epoch(at) });
    let (code, reason) = match &ended {
        Ok(Ended { unpulled: Some((_, reason)), .. }) => ("TaskFailedToStart", reason.clone()),
        Ok(Ended { failed: Some(_), .. }) => ("TaskFailedToStart", "Task failed to start".to_owned()),
        Ok(Ended { exits, .. }) if exits.contains_key(name(main_container(&definition))) => {
            ("EssentialContainerExited", "Essential container in task exited".to_owned())
        }
        Ok(_) => ("UserInitiated", String::new()),
        Err(error) => ("TaskFailedToStart", format!("ResourceInitializationError: {error:#}")),
    };
    let Ended { exits, failed, unpulled, exhausted } = ended.unwrap_or_default();
    {
        let mut state = fargate.state();
        let Some(task) = state.tasks.get_mut(&arn) else { return };
        task.stopped = Some(at);
        // Otherwise the stop request has set the reason.
        if task.wire["stopCode"].is_null() {
            changes["stopCode"] = code.into();
            changes["stoppedReason"] = reason.into();
        }
        for container in task.wire["containers"].as_array_mut().into_iter().flatten() {
            container["lastStatus"] = "STOPPED".into();
            // A container that never started has no exit code.
            if let Some(exit) = exits.get(name(container)) {
                container["exitCode"] = (*exit).into();
                if exhausted && container["name"] == main_container(&definition)["name"] {
                    container["reason"] = "OutOfMemoryError: Container killed due to memory usage".into();
                }
            } else if let Some((_, reason)) = unpulled.as_ref().filter(|(unpulled, _)| unpulled == name(container)) {
                container["reason"] = reason.as_str().into();
            } else if let Some(failed) = &failed {
                let words = "failed to resolve container ordering dependency";
                let target = name(container);
                container["reason"] = format!(
                    "dependency graph: {words} [{failed}] for target [{target}] as dependency did not exit successfully."
                )
                .into();
            }
        }
    }
    advance(&fargate, &arn, changes).await;
}

/// Runs the task's containers one after the other, until the first failure or the stop of the task.
async fn serve(fargate: &Arc<Fargate>, arn: &str, definition: &Value) -> Result<Ended> {
    // There is no image, so the pull takes no time.
    let pulled = epoch(now());
    advance(fargate, arn, json!({ "lastStatus": "PENDING", "pullStartedAt": pulled, "pullStoppedAt": pulled })).await;
    let mut ended = Ended::default();
    let Some(mut order) = fargate.state().tasks.get(arn).map(|task| task.order.subscribe()) else { return Ok(ended) };
    check(fargate, definition)?;
    ended.unpulled = unpulled(fargate, definition);
    if ended.unpulled.is_some() {
        return Ok(ended);
    }
    let pending = pending(fargate, definition);
    if timeout(pending, order.wait_for(|order| *order != Order::Run)).await.is_ok() {
        return Ok(ended);
    }
    let (id, main) = (keys::task_id(arn), main_container(definition));
    let mib = definition["memory"].as_str().and_then(|mib| mib.parse().ok()).unwrap_or_default();
    let cpu = definition["cpu"].as_str().and_then(|units| units.parse().ok()).unwrap_or_default();
    let limits = Limits::new(id, mib, cpu);
    for container in in_order(definition)? {
        if *order.borrow() != Order::Run {
            return Ok(ended);
        }
        let name = name(container).to_owned();
        if installs(container, main) {
            ended.exits.insert(name, 0);
            continue;
        }
        let is_main = container["name"] == main["name"];
        let command = prepare(fargate, arn, container, is_main, &limits)?;
        let process = if is_main { id.to_owned() } else { format!("{id}-{name}") };
        let mut process = Process::start(&fargate.site.dirs, &process, command)?;
        process.yield_to_others()?;
        if is_main {
            advance(fargate, arn, json!({ "lastStatus": "RUNNING", "startedAt": epoch(now()) })).await;
        }
        let memory = process.memory();
        let status = tokio::select! {
            status = attend(fargate, arn, container, &mut process, &mut order) => status?,
            () = limits.exceeded(memory) => {
                process.signal(Signal::KILL)?;
                process.wait().await?
            }
        };
        let is_killed = status.signal() == Some(Signal::KILL.as_raw()) && limits.has_killed();
        ended.exhausted = *order.borrow() == Order::Kill || is_main && is_killed;
        ended.exits.insert(name.clone(), exit_code(status));
        if !is_main && !status.success() {
            ended.failed = Some(name);
            return Ok(ended);
        }
    }
    Ok(ended)
}

/// Waits for the end of a container's process, and ends it when the task is to be stopped.
async fn attend(
    fargate: &Arc<Fargate>,
    arn: &str,
    container: &Value,
    process: &mut Process,
    order: &mut watch::Receiver<Order>,
) -> Result<ExitStatus> {
    let asked = tokio::select! {
        status = process.wait() => return status,
        order = order.wait_for(|order| *order != Order::Run) => order.map(|order| *order),
    };
    if asked.context("the task's record is gone")? == Order::Kill {
        process.signal(Signal::KILL)?;
        return process.wait().await;
    }
    // Signals only go to the container's first process; its leftovers are killed with it, when
    // `process` is dropped.
    process.signal(Signal::TERM)?;
    advance(fargate, arn, json!({ "lastStatus": "STOPPING" })).await;
    let seconds = container["stopTimeout"].as_u64().unwrap_or(STOP_TIMEOUT_SECONDS);
    if let Ok(status) = timeout(Duration::from_secs(seconds), process.wait()).await {
        return status;
    }
    process.signal(Signal::KILL)?;
    process.wait().await
}

/// Checks the preconditions of the main container.
fn check(fargate: &Fargate, definition: &Value) -> Result<()> {
    let main = main_container(definition);
    let containers = list(&definition["containerDefinitions"]);
    let mut dependencies = list(&main["dependsOn"]).iter().map(|dependency| &dependency["containerName"]);
    if !dependencies.any(|name| containers.iter().any(|other| other["name"] == *name && installs(other, main))) {
        let runner = main["entryPoint"][0].as_str().unwrap_or_default();
        bail!("CannotStartContainerError: exec {runner:?}: no such file or directory: no init container puts it there");
    }
    for container in containers {
        let group = container["logConfiguration"]["options"]["awslogs-group"].as_str();
        ensure!(
            group.is_none_or(|group| fargate.site.template.log_groups.iter().any(|known| known == group)),
            "there is no log group {group:?}"
        );
    }
    Ok(())
}

/// The container whose image cannot be pulled, and why.
fn unpulled(fargate: &Fargate, definition: &Value) -> Option<(String, String)> {
    let state = fargate.state();
    let processor = definition["runtimePlatform"]["cpuArchitecture"].as_str().unwrap_or("X86_64");
    list(&definition["containerDefinitions"]).iter().find_map(|container| {
        let image = container["image"].as_str()?;
        let unknown = || (!may_pull(&fargate.site.template, image, container)).then(|| format!("{UNAUTHORIZED} {image}"));
        let unfit = || {
            let platform = if processor == "ARM64" { "linux/arm64/v8" } else { "linux/amd64" };
            let is_other = state.built_for.get(image).is_some_and(|built_for| built_for != processor);
            is_other.then(|| format!("{NO_DESCRIPTOR} '{platform}'"))
        };
        let reason = state.unpullable.get(image).cloned().or_else(unknown).or_else(unfit)?;
        Some((name(container).to_owned(), reason))
    })
}

/// Returns whether the execution role can log in to the image's registry: with a secret that the
/// role may read, if one is required.
fn may_pull(template: &Template, image: &str, container: &Value) -> bool {
    let wants = image.split_once('/').is_some_and(|(host, _)| host == PRIVATE_REGISTRY);
    let Some(secret) = container["repositoryCredentials"]["credentialsParameter"].as_str() else { return !wants };
    // Secrets Manager adds six characters to the name.
    let arn = format!("arn:aws:secretsmanager:{}:{}:secret:{secret}-a1B2c3", template.region, template.account);
    template.allows("ExecutionRole", &Demand::new("secretsmanager:GetSecretValue", arn))
}

/// How long the task stays pending because of its images.
fn pending(fargate: &Fargate, definition: &Value) -> Duration {
    let slow = &fargate.state().slow;
    let images = list(&definition["containerDefinitions"]).iter().filter_map(|container| container["image"].as_str());
    images.filter_map(|image| slow.get(image).copied()).max().unwrap_or_default()
}

/// Returns whether the container installs the runner, which is skipped.
fn installs(container: &Value, main: &Value) -> bool {
    let command = list(&container["command"]);
    command.first().is_some_and(|word| word == "install") && command.contains(&main["entryPoint"][0])
}

/// The containers in the order of their dependencies, with the main one last.
fn in_order(definition: &Value) -> Result<Vec<&Value>> {
    let mut left: Vec<_> = list(&definition["containerDefinitions"]).iter().collect();
    let mut ordered: Vec<&Value> = Vec::new();
    while !left.is_empty() {
        let is_done = |dependency: &Value| ordered.iter().any(|done| done["name"] == dependency["containerName"]);
        let next = left.iter().position(|container| list(&container["dependsOn"]).iter().all(is_done));
        let next = next.context("the containers depend on one another in a circle")?;
        ordered.push(left.remove(next));
    }
    let main = &main_container(definition)["name"];
    ensure!(ordered.last().is_some_and(|last| last["name"] == *main), "this world runs nothing beside the main container");
    Ok(ordered)
}

/// A container's command, in its own folder and with a task's environment. That of the main
/// container is the runner.
fn prepare(fargate: &Fargate, arn: &str, container: &Value, is_main: bool, limits: &Limits) -> Result<Command> {
    let task = fargate.site.dirs.create(&format!("tasks/{}", keys::task_id(arn)))?;
    let folder = if is_main { task.clone() } else { task.join(name(container)) };
    fs::create_dir_all(&folder)?;
    let overrides = fargate.state().tasks.get(arn).map(|task| task.wire["overrides"].clone()).unwrap_or_default();
    let overrides = list(&overrides["containerOverrides"])
        .iter()
        .find(|overrides| overrides["name"] == container["name"])
        .cloned()
        .unwrap_or_default();
    let arguments = if overrides["command"].is_null() { &container["command"] } else { &overrides["command"] };
    let mut words = list(&container["entryPoint"]).iter().chain(list(arguments)).filter_map(Value::as_str);
    // There are no images, and so no entry points.
    let program = words.next().context("CannotStartContainerError: no command specified")?;
    // The runner's directory, which is taken from elsewhere.
    let of_runner = Path::new(program).parent().filter(|_| is_main);
    let program = if is_main { fargate.runner.clone() } else { program.into() };
    // A disk of a limited size is its own file system, which ends with the task's mount namespace.
    let disk = container["image"].as_str().and_then(|image| fargate.state().disks.get(image).copied());
    let disk = disk.map(|mib| (mib, task.join("disk")));
    let place = |name: &Path| disk.as_ref().map_or(&task, |(_, disk)| disk).join(name);
    let own = if is_main { "own".into() } else { format!("own-{}", name(container)) };
    let mut mounts = vec![(place(own.as_ref()), PathBuf::from(TASK))];
    for mount in list(&container["mountPoints"]) {
        let [volume, path] = ["sourceVolume", "containerPath"].map(|name| mount[name].as_str().unwrap_or_default());
        if of_runner != Some(Path::new(path)) {
            mounts.push((place(&Path::new("volumes").join(volume)), path.into()));
        }
    }
    if let Some(files) = &fargate.files {
        mounts.push((files.hosts.clone(), "/etc/hosts".into()));
    }
    let mut command = command(&fargate.site.dirs, "/usr/bin/unshare");
    command.args(["--mount", "--", "/bin/sh", "-c", MOUNT_ALL, "sh"]);
    command.arg(limits.processes());
    let (mib, disk) = disk.unwrap_or_default();
    command.arg(mib.to_string()).arg(disk);
    for (place, path) in mounts {
        // An empty directory stays on this machine; only the task sees its own in its place.
        command.arg(place).arg(path);
    }
    let own = OWN.map(|name| Path::new(TASK).join(name));
    command.arg("--").args(own).arg(program).args(words).current_dir(&folder);
    command.env_clear().envs(environment(fargate, arn, container, &overrides)?);
    if let Some(seconds) = container["image"].as_str().and_then(|image| fargate.state().clocks.get(image).copied()) {
        command.envs(wrong_clock(&fargate.site.dirs, seconds)?);
    }
    Ok(command)
}

fn environment(fargate: &Fargate, arn: &str, container: &Value, overrides: &Value) -> Result<BTreeMap<String, String>> {
    let secret = fargate.state().tasks.get(arn).map(|task| task.secret.clone()).context("the task's record is gone")?;
    let mut environment = fargate.image.clone();
    environment
        .extend(["HOME", "TMPDIR"].into_iter().zip(OWN).map(|(variable, name)| (variable.into(), format!("{TASK}/{name}"))));
    for variable in list(&container["environment"]).iter().chain(list(&overrides["environment"])) {
        let text = |name: &str| variable[name].as_str().unwrap_or_default();
        environment.insert(text("name").into(), text("value").into());
    }
    let endpoint = &fargate.endpoint;
    environment.extend([
        ("ECS_CONTAINER_METADATA_URI_V4".into(), format!("{endpoint}/v4/{secret}")),
        ("AWS_EXECUTION_ENV".into(), "AWS_ECS_FARGATE".into()),
        ("AWS_REGION".into(), fargate.site.template.region.clone()),
        ("AWS_DEFAULT_REGION".into(), fargate.site.template.region.clone()),
    ]);
    let credentials = format!("/v2/credentials/{secret}");
    environment.extend(match &fargate.files {
        Some(files) => [
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI".into(), credentials),
            ("SSL_CERT_FILE".into(), files.authority.display().to_string()),
        ],
        None => [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI".into(), format!("{endpoint}{credentials}")),
            ("AWS_ENDPOINT_URL".into(), fargate.site.endpoint.clone()),
        ],
    });
    Ok(environment)
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

/// As container runtimes report a signal.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Changes a task's record and sends the event to the rules.
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

/// Sends the event to the targets of every matching rule.
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

/// The task as events show it: with times as text and without tags.
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

/// Returns whether an event matches a pattern of objects and lists of literals.
pub(super) fn fits(pattern: &Value, event: &Value) -> bool {
    match pattern {
        Value::Object(fields) => fields.iter().all(|(name, pattern)| event.get(name).is_some_and(|event| fits(pattern, event))),
        Value::Array(literals) => literals.contains(event),
        _ => false,
    }
}
