//! The world that all tests of this program share.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::{
        LazyLock,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use aws_config::BehaviorVersion;
use aws_credential_types::Credentials;
use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_sqs::{config::Region, types::QueueAttributeName};
use driftless_contract::{Hint, ObjectKey, to_json};
use driftless_tests::{
    aws::control::{self, Invoked, Status},
    scenario::{Handle, Namespace, RUN},
    world::{cluster, ready, start::INSTANCES},
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit};

/// Longer than the forwarder keeps what it saw to itself.
const BETWEEN_PASSES: Duration = Duration::from_secs(2);

/// Held for reading by tests that live side by side, for writing by one that turns something off.
static TURN: RwLock<()> = RwLock::const_new(());
/// So many tests live side by side. All are started at once (`--test-threads`), so that those that want the world to themselves wait
/// without a place, and come one after another when there is nobody else left.
static PLACES: Semaphore = Semaphore::const_new(6);

/// How long the world may take to start. Each of its parts has a deadline of its own, which says more.
const READY: Duration = Duration::from_mins(10);

/// `Err` if the world does not become ready in time. Whenever it ends, all tests do: none can go on, and it has said why.
static WORLD: LazyLock<Result<(), RecvTimeoutError>> = LazyLock::new(|| {
    let (ready, started) = mpsc::channel();
    // The world ends with the thread that started it, so that this one has to outlive every test.
    thread::spawn(move || {
        let run = || -> io::Result<_> {
            let mut world = Command::new("setpriv");
            let world = world.args(["--pdeathsig", "TERM", env!("CARGO_BIN_EXE_world")]).stdout(Stdio::piped());
            let mut world = world.spawn()?;
            let line = world.stdout.take().and_then(|stdout| BufReader::new(stdout).lines().next()).and_then(Result::ok);
            if line.is_some_and(|line| line.starts_with("world: ready")) {
                let _ = ready.send(());
            }
            world.wait()
        };
        let ended = run().map_or_else(|error| error.to_string(), |status| status.to_string());
        // What is printed would be kept for the end of the test that came first.
        let _ = writeln!(io::stderr(), "the world ended, and all tests with it: {ended}");
        process::exit(1);
    });
    started.recv_timeout(READY)
});

async fn open() -> Result<Handle> {
    if let Err(error) = LazyLock::force(&WORLD) {
        bail!("the world did not become ready: {error}");
    }
    let world = Handle::open(&env_file()).await?;
    // What a test that was alone has turned off, and failed.
    world.control.reset().await?;
    Ok(world)
}

fn env_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/world/env")
}

/// The second cluster of the world that was opened.
pub async fn second() -> Result<Handle> {
    Handle::open_second(&env_file()).await
}

/// Tells those who wait for the world alone that a test has ended.
static ENDED: Notify = Notify::const_new();

struct Bell;

impl Drop for Bell {
    fn drop(&mut self) {
        ENDED.notify_waiters();
    }
}

/// A place beside other tests. The bell rings last, when the rest is given back.
pub struct Turn {
    _lock: RwLockReadGuard<'static, ()>,
    _place: Option<SemaphorePermit<'static>>,
    _bell: Bell,
}

/// The world, beside other tests. Those turn nothing off.
pub async fn shared() -> Result<(Handle, Turn)> {
    let place = Some(PLACES.acquire().await?);
    let turn = Turn { _lock: TURN.read().await, _place: place, _bell: Bell };
    Ok((open().await?, turn))
}

/// The same for a test that lasts long and does little: it begins at once, and takes nobody's place.
pub async fn aside() -> Result<(Handle, Turn)> {
    let turn = Turn { _lock: TURN.read().await, _place: None, _bell: Bell };
    Ok((open().await?, turn))
}

/// No other test runs.
pub struct Alone {
    _lock: RwLockWriteGuard<'static, ()>,
    _bell: Bell,
}

/// The world, alone.
pub async fn alone() -> Result<(Handle, Alone)> {
    loop {
        let ended = ENDED.notified();
        // Not `write()`: that holds everybody else up until the longest of those that run has ended, once for each such test.
        if let Ok(turn) = TURN.try_write() {
            let world = open().await?;
            delete_leftovers(&world).await?;
            return Ok((world, Alone { _lock: turn, _bell: Bell }));
        }
        ended.await;
    }
}

/// Deletes the Stacks and sources of tests that have ended, and the hints that are booked for them: with them functions run again and
/// again, for up to 15 minutes, and the world is never quiet.
async fn delete_leftovers(world: &Handle) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    for name in ["driftless-hints", "driftless-launches"] {
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

/// The keys in the world's bucket that begin like that.
pub async fn keys(world: &Handle, prefix: &str) -> Result<Vec<String>> {
    let list = s3(world, None).await?.list_objects_v2().bucket(world.get("WORLD_BUCKET")?).prefix(prefix).into_paginator();
    let pages = list.send().collect::<Result<Vec<_>, _>>().await?;
    let keys = pages.iter().flat_map(ListObjectsV2Output::contents).filter_map(|object| object.key());
    Ok(keys.map(ToOwned::to_owned).collect())
}

/// Lets a sweep hint whatever is due, and waits until every message is handled, and no function has run from one look to the next: what
/// was to happen has happened. For a test that is [`alone`]: beside others there are always messages.
pub async fn quiet(world: &Handle, _alone: &Alone) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let queues = sqs.list_queues().send().await?.queue_urls.unwrap_or_default();
    ensure!(queues.len() >= 8, "{queues:?}");
    let tick = serde_json::from_str(include_str!("../../../events/sweeper/tick.json"))?;
    let swept = world.control.invoke("Sweeper", &tick).await?;
    ensure!(matches!(swept, Invoked::Answer(_)), "{swept:?}");
    let passes = RefCell::default();
    // A delivery that got lost on a busy machine comes again after the visibility timeout, which is longer than a run takes.
    ready::until_every(BETWEEN_PASSES, "no message is waiting and no function has run", RUN * 2, async || {
        let Status { mappings, functions, .. } = world.control.status().await?;
        for (function, _) in mappings.iter().filter(|(_, counts)| counts["hidden"] != 0) {
            let shown = world.control.expire(function).await?;
            println!("{function}: {shown} messages failed, and are delivered again");
        }
        for queue in queues.iter().filter(|queue| !queue.contains("dead-letters")) {
            let waiting =
                [QueueAttributeName::ApproximateNumberOfMessages, QueueAttributeName::ApproximateNumberOfMessagesNotVisible];
            let request = sqs.get_queue_attributes().queue_url(queue).set_attribute_names(Some(waiting.to_vec()));
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

/// Has a Stack looked at, and once more: a look that was under way has ended by then, and whatever hint is still to come finds the same
/// facts as this one. What has not been run after it is not going to be.
pub async fn looked(team: &Namespace<'_>, name: &str) -> Result<()> {
    let world = team.world;
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let url = sqs.get_queue_url().queue_name("driftless-hints").send().await?.queue_url;
    let [cluster, api_version, kind, namespace, name] =
        [cluster::NAME, "pulumi.com/v1", "Stack", &team.name, name].map(ToOwned::to_owned);
    let hint = Hint::new(ObjectKey { cluster, api_version, kind, namespace, name });
    // At most as many looks are under way as the world has instances.
    for _ in 0..=INSTANCES {
        let before = looks(world, &hint.object)?;
        sqs.send_message().set_queue_url(url.clone()).message_body(to_json(&hint)).send().await?;
        ready::until("the Stack is looked at", RUN, async || {
            ensure!(looks(world, &hint.object)? > before, "{before} looks");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// How often the reconciler has looked at a Stack, by its log.
fn looks(world: &Handle, stack: &ObjectKey) -> Result<usize> {
    let (mut looks, stack) = (0, format!("\"stack\":\"{stack}\""));
    for file in fs::read_dir(world.get("WORLD_LOGS")?)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with("reconciler-") {
            let log = fs::read_to_string(file.path())?;
            looks += log.lines().filter(|line| line.contains("\"looked\"") && line.contains(&stack)).count();
        }
    }
    Ok(looks)
}

/// Waits with one sweep after another: what no event told of is found by them.
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

/// Every dead-letter queue is empty, and no part of the world crashed: nothing was given up.
pub async fn nothing_was_given_up(world: &Handle) -> Result<()> {
    let status = world.control.status().await?;
    ensure!(status.alarms.is_empty(), "{:#?}", status.alarms);
    no_dead_letters(world).await
}

/// Every dead-letter queue is empty.
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

/// Stops a process of the world for as long as the value lives, as if it hung.
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

/// The processes that a process has started and that have not ended, each with its program and arguments.
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
