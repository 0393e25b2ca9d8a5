//! A cluster whose API server drops packets for its functions, beside a healthy one.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, RunHint, VERSION, to_json};
use driftless_tests::{
    aws::control::{Status, Switches},
    scenario::{Handle, Hold, Namespace, RUN, Source, is_ready, output},
    world::cluster,
};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    time::{Duration, Instant, timeout},
};

use crate::world::{alone, aws, no_dead_letters, nothing_was_given_up, second};

/// The cluster whose API server the functions reach through the hole.
const DEAD: &str = cluster::SECOND;
const FUNCTIONS: [&str; 5] = ["Reconciler", "Fetcher", "Launcher", "Recorder", "Sweeper"];
const SWEEP_FAILED: &str = "Sweeper: ";
/// The time limit of a push beside the dead cluster, unless the machine is slower: less than the
/// time of a batch about that cluster if its messages were handled one after another, which is the
/// function's whole minute.
const LONGEST: Duration = Duration::from_secs(40);

/// An API server behind a network that drops packets: the kernel answers no SYN to a listener whose
/// queue is full. Ends with the test's runtime.
struct Blackhole {
    url: String,
    revive: oneshot::Sender<()>,
}

impl Blackhole {
    /// In front of the API server at that address.
    async fn new(server: String) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.1:0".parse()?)?;
        let listener = socket.listen(0)?;
        let address = listener.local_addr()?;
        let mut queued = Vec::new();
        while let Ok(connection) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
            queued.push(connection?);
            ensure!(queued.len() < 10, "the listener's queue does not fill");
        }
        let (revive, revived) = oneshot::channel();
        tokio::spawn(async move {
            if revived.await.is_ok() {
                drop(queued);
                forward(listener, server.into()).await;
            }
        });
        Ok(Self { url: format!("https://{address}"), revive })
    }
}

async fn forward(listener: TcpListener, server: Arc<str>) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            if let Ok(mut server) = TcpStream::connect(&*server).await {
                let _ = copy_bidirectional(&mut connection, &mut server).await;
            }
        });
    }
}

/// The kubeconfigs of the functions, by secret.
async fn kubeconfigs(world: &Handle) -> Result<Vec<(String, String)>> {
    let client = aws_sdk_secretsmanager::Client::new(&aws(world, None).await?);
    let mut found = Vec::new();
    for function in FUNCTIONS {
        let secret = format!("driftless/kubeconfig/{}", function.to_lowercase());
        let text = client.get_secret_value().secret_id(&secret).send().await?.secret_string;
        found.push((secret, text.context("a text")?));
    }
    Ok(found)
}

async fn store(world: &Handle, kubeconfigs: &[(String, String)]) -> Result<()> {
    let client = aws_sdk_secretsmanager::Client::new(&aws(world, None).await?);
    for (secret, text) in kubeconfigs {
        client.put_secret_value().secret_id(secret).secret_string(text).send().await?;
    }
    Ok(())
}

/// The kubeconfig with another address of the dead cluster.
fn moved(kubeconfig: &str, url: &str) -> Result<String> {
    let mut kubeconfig: Value = serde_saphyr::from_str(kubeconfig)?;
    let clusters = kubeconfig["clusters"].as_array_mut().context("a list")?;
    let dead = clusters.iter_mut().find(|entry| entry["name"] == DEAD).context("the second cluster")?;
    dead["cluster"]["server"] = url.into();
    Ok(serde_saphyr::to_string(&kubeconfig)?)
}

/// Sends `messages` messages about objects that the dead cluster does not have to each queue.
async fn backlog(world: &Handle, messages: usize) -> Result<()> {
    let sqs = aws_sdk_sqs::Client::new(&aws(world, None).await?);
    let key = |kind: &str, number| ObjectKey {
        cluster: DEAD.into(),
        api_version: if kind == "Stack" { "pulumi.com/v1" } else { "auto.pulumi.com/v1alpha1" }.into(),
        kind: kind.into(),
        namespace: "away".into(),
        name: format!("app-{number}"),
    };
    let (version, hops) = (VERSION, 0);
    let hint = |number| to_json(&Hint::new(key("Stack", number)));
    let launch = |number| to_json(&LaunchHint { version, update: key("Update", number), hops });
    let run = |number| to_json(&RunHint { version, update: key("Update", number), uid: None, hops });
    let fetch = |number| to_json(&FetchRequest::fetch(key("Stack", number), hops));
    let queues: [(&str, &dyn Fn(usize) -> String); 4] =
        [("hints", &hint), ("launches", &launch), ("runs", &run), ("sources.fifo", &fetch)];
    for (queue, body) in queues {
        let url = sqs.get_queue_url().queue_name(format!("driftless-{queue}")).send().await?.queue_url;
        for first in (0..messages).step_by(10) {
            let entry = |number: usize| {
                let entry = SendMessageBatchRequestEntry::builder().id(number.to_string()).message_body(body(number));
                let id = queue.ends_with("fifo").then(|| number.to_string());
                entry.set_message_group_id(id.clone()).set_message_deduplication_id(id).build()
            };
            let entries = (first..messages.min(first + 10)).map(entry).collect::<Result<Vec<_>, _>>()?;
            let sent = sqs.send_message_batch().set_queue_url(url.clone()).set_entries(Some(entries)).send().await?;
            ensure!(sent.failed.is_empty(), "{:?}", sent.failed);
        }
    }
    Ok(())
}

/// The times from an edit to its run, for one push after another; sorted. None may take longer than
/// `limit`.
async fn pushes(team: &Namespace<'_>, contents: &[&str], limit: Duration) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for content in contents {
        let pushed = Instant::now();
        team.apply_program("app", &team.program("app.txt", content, "")?).await?;
        let run = team.wait("app", "to have run the push", |stack| output(stack, "content") == Some(&json!(content)));
        timeout(limit, run).await.with_context(|| format!("push {content} has not run after {limit:?}"))??;
        times.push(pushed.elapsed());
    }
    times.sort();
    Ok(times)
}

fn median(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() / 2]
}

/// Stops the functions that handle messages.
async fn pause(world: &Handle) -> Result<()> {
    for function in ["Reconciler", "Fetcher", "Launcher", "Recorder"] {
        world.control.switch(function, &Switches { paused: true, ..Switches::default() }).await?;
    }
    Ok(())
}

/// Ends the instances of the functions that call clusters.
async fn chill(world: &Handle) -> Result<()> {
    for function in FUNCTIONS {
        world.control.chill(function).await?;
    }
    Ok(())
}

/// The sweeper's invocations, and the failed messages of all functions.
fn counts(status: &Status) -> (u64, u64) {
    let failed = status.mappings.values().filter_map(|counts| counts["failed"].as_u64()).sum();
    (status.functions["Sweeper"]["invocations"].as_u64().unwrap_or_default(), failed)
}

#[tokio::test]
async fn cluster_that_drops_packets_delays_no_push_of_another_and_runs_its_own_afterwards() -> Result<()> {
    let (world, _alone) = alone().await?;
    let before = kubeconfigs(&world).await?;
    let team = world.namespace("beside-a-dead-cluster").await?;
    let seen = dead_cluster(&world, &team, &before).await;
    // Removes every message about the cluster, also after a failure.
    store(&world, &before).await?;
    pause(&world).await?;
    let sqs = aws_sdk_sqs::Client::new(&aws(&world, None).await?);
    for url in sqs.list_queues().send().await?.queue_urls.unwrap_or_default() {
        sqs.purge_queue().queue_url(url).send().await?;
    }
    world.control.reset().await?;
    chill(&world).await?;
    world.control.forgive(SWEEP_FAILED).await?;
    seen?;
    team.clear().await
}

/// A Stack of each name in the cluster: the first is Ready, and the run of the second stays in
/// progress while there is a hold.
async fn inhabit<'w>(behind: &'w Handle, ready: &str, live: &str) -> Result<(Namespace<'w>, Hold)> {
    let away = behind.namespace("in-a-dead-cluster").await?;
    // No controller creates it there.
    away.apply("{ apiVersion: v1, kind: ServiceAccount, metadata: { name: default, namespace: NAMESPACE } }").await?;
    let hold = away.hold()?;
    for (name, more) in [(ready, String::new()), (live, hold.property())] {
        away.apply_program(name, &away.program(&format!("{name}.txt"), "one", &more)?).await?;
        away.apply_stack_as(name, name, "{}", Source::Program(name), "").await?;
    }
    away.ready_after(ready, 1).await?;
    away.running(live).await?;
    Ok((away, hold))
}

async fn dead_cluster(world: &Handle, team: &Namespace<'_>, kubeconfigs: &[(String, String)]) -> Result<()> {
    team.apply_program("app", &team.program("app.txt", "zero", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let mut usual = pushes(team, &["one", "two", "three", "four", "five"], RUN).await?;
    let behind = second(world).await?;
    let (away, live) = inhabit(&behind, "changed", "live").await?;

    let server = kube::config::Kubeconfig::read_from(behind.get("WORLD_SECOND_KUBECONFIG")?)?;
    let server = server.clusters.into_iter().find_map(|entry| entry.cluster?.server).context("a server")?;
    let hole = Blackhole::new(server.trim_start_matches("https://").to_owned()).await?;
    let moved = |(secret, text): &(String, String)| Ok((secret.clone(), moved(text, &hole.url)?));
    world.control.pause_schedule(true).await?;
    store(world, &kubeconfigs.iter().map(moved).collect::<Result<Vec<_>>>()?).await?;
    // Functions read it when they start.
    chill(world).await?;

    let (swept, failed) = counts(&world.control.status().await?);
    world.control.trigger("Sweeper").await?;
    backlog(world, 40).await?;
    // A user of that cluster still reaches its API server, and so does its forwarder.
    away.apply_program("changed", &away.program("changed.txt", "two", "")?).await?;
    drop(live);
    let limit = LONGEST.max(median(&usual) * 3);
    let beside = pushes(team, &["six", "seven", "eight", "nine", "ten", "eleven", "twelve"], limit).await?;

    // The failure of the dead cluster's sweep is visible.
    let status = world.control.status().await?;
    ensure!(counts(&status) == (swept + 1, failed), "{swept} sweeps and {failed} failed messages before: {status:#?}");
    ensure!(status.alarms.len() == 1 && status.alarms[0].starts_with(SWEEP_FAILED), "{:#?}", status.alarms);
    no_dead_letters(world).await?;
    for stack in away.stacks().await? {
        ensure!(output(&stack, "content") != Some(&json!("two")), "a function reached the cluster: {:#?}", stack.status);
    }

    // When packets pass again, both Stacks continue by themselves.
    if hole.revive.send(()).is_err() {
        bail!("the listener is gone");
    }
    world.control.pause_schedule(false).await?;
    away.wait("changed", "to have run the change", |stack| is_ready(stack) && output(stack, "content") == Some(&json!("two")))
        .await?;
    away.ready_after("changed", 2).await?;
    away.ready_after("live", 1).await?;
    world.control.forgive(SWEEP_FAILED).await?;
    nothing_was_given_up(world).await?;

    // Before and after, because the load of the machine changes. Each function may wait once for
    // the cluster, for 3 s.
    usual.extend(pushes(team, &["one", "two", "three", "four", "five"], RUN).await?);
    usual.sort();
    println!("pushes took {usual:?}, and {beside:?} beside a cluster that drops packets");
    ensure!(
        median(&beside) < median(&usual) * 2 + Duration::from_secs(3),
        "pushes took {usual:?}, and {beside:?} beside a dead cluster"
    );
    away.clear().await
}
