//! The worlds of this program: a shared one, and others for tests that turn something off for all.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use aws_config::BehaviorVersion;
use aws_credential_types::Credentials;
use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_sqs::{config::Region, types::QueueAttributeName};
use driftless_contract::{Hint, ObjectKey, to_json};
use driftless_tests::{
    aws::control::{self, Invoked, Status},
    scenario::{Handle, Namespace, OF_TESTS, RUN},
    world::{
        cluster, ready,
        start::{INSTANCES, WORLDS},
    },
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

/// Longer than the forwarder delays a hint.
const BETWEEN_PASSES: Duration = Duration::from_secs(2);

/// The number of tests that use the shared world at one time. All are started at once
/// (`--test-threads`), so that tests that need their own world wait without occupying a place.
static PLACES: Semaphore = Semaphore::const_new(4);
/// The worlds after the first one, each for one test at a time.
static ALONE: Semaphore = Semaphore::const_new(WORLDS.len() - 1);
static TAKEN: [Mutex<()>; WORLDS.len() - 1] = [const { Mutex::const_new(()) }; WORLDS.len() - 1];

/// The queue of the reconciler.
const HINTS: &str = "driftless-hints";

/// The time limit of a world's start. Each of its parts has its own deadline, with a better error.
const READY: Duration = Duration::from_mins(10);

/// Which worlds are ready, or why one is not.
static STARTED: [OnceLock<Result<(), String>>; WORLDS.len()] = [const { OnceLock::new() }; WORLDS.len()];

/// Starts a world. If it ends, all tests end too: none can continue, and it has printed the reason.
fn start(name: &'static str) -> Result<(), RecvTimeoutError> {
    let (ready, started) = mpsc::channel();
    // The world ends with the thread that started it, so this one has to outlive every test.
    thread::spawn(move || {
        let run = || -> io::Result<_> {
            let mut world = Command::new("setpriv");
            world.args(["--pdeathsig", "TERM", env!("CARGO_BIN_EXE_world"), name]).stdout(Stdio::piped());
            let mut world = world.spawn()?;
            let line = world.stdout.take().and_then(|stdout| BufReader::new(stdout).lines().next()).and_then(Result::ok);
            if line.is_some_and(|line| line.starts_with("world: ready")) {
                let _ = ready.send(());
            }
            world.wait()
        };
        let ended = run().map_or_else(|error| error.to_string(), |status| status.to_string());
        // Other output would be held back until the end of the first test.
        let _ = writeln!(io::stderr(), "{name} ended, and all tests with it: {ended}");
        process::exit(1);
    });
    started.recv_timeout(READY)
}

/// Empties a world that another process runs, as `make world` does: namespaces of earlier tests are
/// deleted.
fn join(name: &str) -> Result<(), String> {
    let mut kubectl = Command::new("sh");
    let script = ". \"$1\" && kubectl delete namespace --selector \"$2\"";
    let output =
        kubectl.args(["-c", script, "sh"]).arg(env_file(name)).arg(OF_TESTS).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns whether a process runs that world.
fn is_running(name: &str) -> bool {
    let lock = File::open(in_target(&format!("{name}.lock")));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

async fn open(number: usize) -> Result<Handle> {
    let name = WORLDS[number];
    let begin = || {
        let is_joined = number == 0 && is_running(name);
        if is_joined { join(name) } else { start(name).map_err(|error| error.to_string()) }
    };
    if let Err(error) = STARTED[number].get_or_init(begin) {
        bail!("{name} did not become ready: {error}");
    }
    Handle::open(&env_file(name)).await
}

fn env_file(name: &str) -> PathBuf {
    in_target(name).join("env")
}

fn in_target(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(path)
}

/// The second cluster of a world.
pub async fn second(world: &Handle) -> Result<Handle> {
    Handle::open_second(&Path::new(world.get("WORLD_LOGS")?).with_file_name("env")).await
}

/// Starts when a test has its place. It records the test's duration, under the name of its thread.
struct Watch(Instant);

impl Drop for Watch {
    fn drop(&mut self) {
        let line = format!("{:.1}\t{}\n", self.0.elapsed().as_secs_f64(), thread::current().name().unwrap_or_default());
        let written = File::options().create(true).append(true).open(in_target("test-seconds"));
        if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
            println!("{error}: {line}");
        }
    }
}

/// A place beside other tests.
pub struct Turn {
    _watch: Watch,
    _place: Option<SemaphorePermit<'static>>,
}

/// The shared world. Tests turn nothing off in it.
pub async fn shared() -> Result<(Handle, Turn)> {
    let place = Some(PLACES.acquire().await?);
    let turn = Turn { _watch: Watch(Instant::now()), _place: place };
    Ok((open(0).await?, turn))
}

/// The same for a long test with little load: it starts at once, and occupies no place.
pub async fn aside() -> Result<(Handle, Turn)> {
    Ok((open(0).await?, Turn { _watch: Watch(Instant::now()), _place: None }))
}

/// A world in which no other test runs.
pub struct Alone {
    _watch: Watch,
    _taken: MutexGuard<'static, ()>,
    // Last, so that the next holder finds a world that is free.
    _permit: SemaphorePermit<'static>,
}

/// A world without other tests.
pub async fn alone() -> Result<(Handle, Alone)> {
    let permit = ALONE.acquire().await?;
    let free = TAKEN.iter().enumerate().find_map(|(index, world)| Some((index + 1, world.try_lock().ok()?)));
    let (number, taken) = free.context("a world that is not taken")?;
    let alone = Alone { _watch: Watch(Instant::now()), _taken: taken, _permit: permit };
    let world = open(number).await?;
    // Settings of a test that failed before it reset them.
    world.control.reset().await?;
    delete_leftovers(&world).await?;
    Ok((world, alone))
}

/// Deletes the Stacks and sources of completed tests, and their delayed hints: with them functions
/// would run repeatedly, for up to 15 minutes, and the world would never be quiet.
async fn delete_leftovers(world: &Handle) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    for name in [HINTS, "driftless-launches"] {
        let url = sqs.get_queue_url().queue_name(name).send().await?.queue_url;
        sqs.purge_queue().set_queue_url(url).send().await?;
    }
    for (group, version, kind) in [("pulumi.com", "v1", "Stack"), ("source.toolkit.fluxcd.io", "v1", "GitRepository")] {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let all: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind);
        let left = all.list_metadata(&ListParams::default()).await?;
        let namespaces: BTreeSet<_> = left.items.into_iter().filter_map(|object| object.metadata.namespace).collect();
        for namespace in namespaces {
            let objects: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &namespace, &kind);
            objects.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
    }
    Ok(())
}

/// The SDK's configuration with these keys, or the administrator's.
pub async fn aws(world: &Handle, keys: Option<control::Credentials>) -> Result<aws_config::SdkConfig> {
    let keys = match keys {
        Some(keys) => Credentials::new(keys.access_key_id, keys.secret_access_key, keys.session_token, None, "test"),
        None => Credentials::new(world.get("AWS_ACCESS_KEY_ID")?, world.get("AWS_SECRET_ACCESS_KEY")?, None, None, "test"),
    };
    Ok(aws_config::defaults(BehaviorVersion::v2026_01_12())
        .region(Region::new(world.get("AWS_REGION")?.to_owned()))
        .endpoint_url(world.get("AWS_ENDPOINT_URL")?)
        .credentials_provider(keys)
        .load()
        .await)
}

/// An S3 client with a live task's credentials, and the prefix of its folder.
pub async fn as_task(world: &Handle, arn: &str) -> Result<(aws_sdk_s3::Client, String)> {
    let id = driftless_contract::keys::task_id(arn);
    let all = keys(world, "tasks/").await?;
    let folder = all.iter().filter(|key| key.contains(id)).find_map(|key| Some(format!("{}/", key.split_once("/in/")?.0)));
    let folder = folder.with_context(|| format!("no folder of {arn}"))?;
    Ok((s3(world, Some(world.control.credentials("TaskRole", id).await?)).await?, folder))
}

/// An S3 client with these keys, or the administrator's.
pub async fn s3(world: &Handle, keys: Option<control::Credentials>) -> Result<aws_sdk_s3::Client> {
    let config = aws_sdk_s3::config::Builder::from(&aws(world, keys).await?).force_path_style(true).build();
    Ok(aws_sdk_s3::Client::from_conf(config))
}

/// The keys in the world's bucket with this prefix.
pub async fn keys(world: &Handle, prefix: &str) -> Result<Vec<String>> {
    let list = s3(world, None).await?.list_objects_v2().bucket(world.get("WORLD_BUCKET")?).prefix(prefix).into_paginator();
    let pages = list.send().collect::<Result<Vec<_>, _>>().await?;
    let keys = pages.iter().flat_map(ListObjectsV2Output::contents).filter_map(|object| object.key());
    Ok(keys.map(ToOwned::to_owned).collect())
}

/// Triggers a sweep, and waits until every message is handled, so that everything that was due has
/// happened. For a test in an [`alone`] world, because beside others there are always messages.
pub async fn quiet(world: &Handle, _alone: &Alone) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let queues = sqs.list_queues().send().await?.queue_urls.unwrap_or_default();
    ensure!(queues.len() >= 8, "{queues:?}");
    let tick = serde_json::from_str(include_str!("../../../events/sweeper/tick.json"))?;
    let swept = world.control.invoke("Sweeper", &tick).await?;
    ensure!(matches!(swept, Invoked::Answer(_)), "{swept:?}");
    handled(world, &sqs, &queues).await?;
    // A Stack that is Ready has a hint in ten minutes. Any delayed hint finds the same facts as one
    // now.
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("pulumi.com", "v1", "Stack"));
    let stacks: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind);
    let stacks = stacks.list_metadata(&ListParams::default()).await?.items;
    for stack in &stacks {
        send_hint(&sqs, &stack_key(&stack.namespace().unwrap_or_default(), &stack.name_any())).await?;
    }
    if stacks.is_empty() { Ok(()) } else { handled(world, &sqs, &queues).await }
}

/// Waits until only delayed hints are left in the queues, and no function has run between two
/// checks.
async fn handled(world: &Handle, sqs: &aws_sdk_sqs::Client, queues: &[String]) -> Result<()> {
    let passes = RefCell::default();
    // A delivery that is lost on a busy machine is repeated after the visibility timeout, which is
    // longer than a run.
    ready::until_every(BETWEEN_PASSES, "no message is waiting and no function has run", RUN * 2, async || {
        let Status { mappings, functions, .. } = world.control.status().await?;
        for (function, _) in mappings.iter().filter(|(_, counts)| counts["hidden"] != 0) {
            let shown = world.control.expire(function).await?;
            println!("{function}: {shown} messages failed, and are delivered again");
        }
        for queue in queues.iter().filter(|queue| !queue.contains("dead-letters")) {
            let mut waiting =
                vec![QueueAttributeName::ApproximateNumberOfMessages, QueueAttributeName::ApproximateNumberOfMessagesNotVisible];
            if !queue.ends_with(HINTS) {
                waiting.push(QueueAttributeName::ApproximateNumberOfMessagesDelayed);
            }
            let request = sqs.get_queue_attributes().queue_url(queue).set_attribute_names(Some(waiting));
            let attributes = request.send().await?.attributes.unwrap_or_default();
            ensure!(attributes.values().all(|count| count == "0"), "{queue}: {attributes:?}");
        }
        let rests = |(name, counts): (&String, &Value), busy: &str| {
            ensure!(counts[busy] == 0, "{name}: {counts}");
            Ok(())
        };
        mappings.iter().try_for_each(|mapping| rests(mapping, "inFlight"))?;
        functions.iter().try_for_each(|function| rests(function, "running"))?;
        let now: BTreeMap<_, _> = functions.into_iter().map(|(name, counts)| (name, counts["invocations"].clone())).collect();
        let before = passes.replace(now.clone());
        ensure!(before == now, "functions have run: {before:?}, {now:?}");
        Ok(())
    })
    .await
}

/// Reconciles a Stack twice: a reconciliation in progress has ended by then, and any later hint
/// finds the same facts as the second one. A run that has not started by then will not start.
pub async fn looked(team: &Namespace<'_>, name: &str) -> Result<()> {
    let world = team.world;
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let stack = stack_key(&team.name, name);
    // The number of concurrent reconciliations is at most the world's number of instances.
    for _ in 0..=INSTANCES {
        let before = looks(world, &stack)?;
        send_hint(&sqs, &stack).await?;
        ready::until("the Stack is looked at", RUN, async || {
            ensure!(looks(world, &stack)? > before, "{before} looks");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn stack_key(namespace: &str, name: &str) -> ObjectKey {
    let [cluster, api_version, kind, namespace, name] =
        [cluster::NAME, "pulumi.com/v1", "Stack", namespace, name].map(ToOwned::to_owned);
    ObjectKey { cluster, api_version, kind, namespace, name }
}

async fn send_hint(sqs: &aws_sdk_sqs::Client, object: &ObjectKey) -> Result<()> {
    let url = sqs.get_queue_url().queue_name(HINTS).send().await?.queue_url;
    sqs.send_message().set_queue_url(url).message_body(to_json(&Hint::new(object.clone()))).send().await?;
    Ok(())
}

/// The number of the reconciler's reconciliations of a Stack, by its log.
fn looks(world: &Handle, stack: &ObjectKey) -> Result<usize> {
    let (mut looks, stack) = (0, format!("\"stack\":\"{stack}\""));
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with("reconciler-") {
            let log = fs::read_to_string(file.path())?;
            looks += log.lines().filter(|line| line.contains("\"reconciled\"") && line.contains(&stack)).count();
        }
    }
    Ok(looks)
}

/// Waits while sweeps run one after another, which find whatever had no event.
pub async fn swept_until<T, F: Future<Output = Result<T>>>(world: &Handle, what: &str, look: impl FnMut() -> F) -> Result<T> {
    let sweeps = async {
        let mut tick = tokio::time::interval(Duration::from_secs(10));
        loop {
            tick.tick().await;
            world.control.trigger("Sweeper").await?;
        }
    };
    tokio::select! {
        found = ready::until(what, RUN, look) => found,
        failed = sweeps => failed,
    }
}

/// Checks that no message failed, every dead-letter queue is empty, and no part of the world
/// crashed, except for what a test has caused and forgiven. `privileges` checks the same after the
/// last test.
pub async fn nothing_was_given_up(world: &Handle) -> Result<()> {
    let status = world.control.status().await?;
    ensure!(status.alarms.is_empty(), "{:#?}", status.alarms);
    no_dead_letters(world).await
}

/// Checks that every dead-letter queue is empty.
pub async fn no_dead_letters(world: &Handle) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    for queue in sqs.list_queues().send().await?.queue_urls.unwrap_or_default() {
        if queue.contains("dead-letters") {
            let message = sqs.receive_message().queue_url(&queue).send().await?.messages.unwrap_or_default();
            ensure!(message.is_empty(), "{queue}: {message:?}");
        }
    }
    Ok(())
}

/// Stops a process of the world while the value lives, as if it hung.
pub struct Frozen(rustix::process::Pid);

impl Frozen {
    /// Stops the process of that name.
    pub fn new(world: &Handle, name: &str) -> Result<Self> {
        let pid = pid(world, name)?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// The process of that name.
pub fn pid(world: &Handle, name: &str) -> Result<rustix::process::Pid> {
    let file = Path::new(world.get("WORLD_PIDS")?).join(name);
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    rustix::process::Pid::from_raw(text.trim().parse()?).context("a process id")
}

/// The live child processes of a process, each with its program and arguments.
pub fn children(parent: rustix::process::Pid) -> Vec<(rustix::process::Pid, Vec<String>)> {
    let parent = parent.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let known = |child: &str| {
        let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        Some((rustix::process::Pid::from_raw(child.parse().ok()?)?, words.collect()))
    };
    children.split_whitespace().filter_map(known).collect()
}
