//! No namespace can delay the others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Program, Stack, Update};
use driftless_tests::{
    scenario::{Handle, Namespace, RUN, Source, commit, condition, is_ready, output},
    world::{
        git::Repository,
        ready,
        start::{INSTANCES, LIMITS},
    },
};
use futures::future::try_join_all;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    updates::{apply_update, gone, is, ours, updates, wait},
    world::{alone, as_task, nothing_was_given_up, pid, shared},
};

/// The time of a poll of a branch, a fetch and a run.
const USUAL: Duration = Duration::from_mins(2);

/// The number of recorder instances that read progress, by the template.
const FLOODED: usize = 2;

/// The number of concurrent writers of progress in the flood.
const WRITERS: usize = 4;
/// Less than the time after which the recorder stops waiting for an object that S3 does not return.
const HELD: Duration = Duration::from_secs(45);
/// How long an answer drips: two of them take longer than a push should.
const DRIPS: Duration = Duration::from_secs(45);
/// Longer than a fetch with the shortened time limit, and shorter than an answer that drips.
const LONG: Duration = Duration::from_secs(20);
/// How long an answer of a server drips that is slow but within the limits.
const LAG: Duration = Duration::from_secs(9);
/// The number of Stacks of a namespace on such a server. Those of all namespaces occupy all
/// fetchers for longer than a push should take.
const LAGGING: usize = 18;

/// The beginning of an answer.
const BEGINNING: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/x-git-upload-pack-advertisement\r\ncontent-length: 1000\r\n\r\n";

/// A git server that completes no answer. Ends with the test's runtime.
struct Slow {
    url: String,
    /// The open connections now, their maximum, and all accepted ones.
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
    /// The connections that stayed open for longer than [`LONG`].
    long: Arc<AtomicUsize>,
}

impl Slow {
    /// The server sends the beginning of an answer, then a byte per second for this time, and then
    /// closes the connection. Without a time it waits for the client to close.
    async fn new(beginning: &'static str, drips: Option<Duration>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let slow = Self { url, open: Arc::default(), most: Arc::default(), all: Arc::default(), long: Arc::default() };
        let (open, most, all) = (Arc::clone(&slow.open), Arc::clone(&slow.most), Arc::clone(&slow.all));
        let long = Arc::clone(&slow.long);
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                all.fetch_add(1, Ordering::SeqCst);
                let (open, long, accepted) = (Arc::clone(&open), Arc::clone(&long), Instant::now());
                tokio::spawn(async move {
                    // A client accepts no answer to a request that it has not sent.
                    let _ = connection.read(&mut [0; 1024]).await;
                    let _ = connection.write_all(beginning.as_bytes()).await;
                    match drips {
                        Some(time) => drip(connection, time).await,
                        None => until_closed(connection).await,
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                    long.fetch_add(usize::from(accepted.elapsed() > LONG), Ordering::SeqCst);
                });
            }
        });
        Ok(slow)
    }

    /// Waits until every fetcher has had an answer of this server.
    async fn until_known(&self) -> Result<()> {
        ready::until("every fetcher has had an answer of the slow server", RUN, async || {
            let all = self.all.load(Ordering::SeqCst);
            ensure!(all >= 2 * INSTANCES, "{all} connections");
            Ok(())
        })
        .await
    }
}

async fn until_closed(mut connection: TcpStream) {
    let mut buffer = [0; 1024];
    while connection.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
}

/// Ends early if the client closes the connection.
async fn drip(mut connection: TcpStream, time: Duration) {
    // The length of a line that never ends.
    let _ = connection.write_all(b"0fff").await;
    let (mut beat, end) = (tokio::time::interval(Duration::from_secs(1)), Instant::now() + time);
    while beat.tick().await < end && connection.write_all(b"0").await.is_ok() {}
}

async fn apply(team: &Namespace<'_>, name: &str, url: &str) -> Result<()> {
    team.apply_stack_as(name, name, "{}", Source::Git { url, reference: "branch: main", dir: "", auth: "" }, "").await
}

/// More namespaces than fetchers, each with this many Stacks on a server.
async fn crowd<'w>(world: &'w Handle, name: &str, server: &Slow, stacks: usize) -> Result<Vec<Namespace<'w>>> {
    let mut crowd = Vec::new();
    for number in 0..=INSTANCES {
        let team = world.namespace(&format!("{name}-{number}")).await?;
        for app in 0..stacks {
            apply(&team, &format!("app-{app}"), &format!("{}/{number}/{app}.git", server.url)).await?;
        }
        crowd.push(team);
    }
    Ok(crowd)
}

/// A Stack on a git repository, Ready at its first commit.
async fn following(team: &Namespace<'_>) -> Result<Repository> {
    let repository = team.world.git.create(&team.name).await?;
    push(team, &repository, "one").await?;
    apply(team, "app", &repository.url).await?;
    team.ready_after("app", 1).await?;
    Ok(repository)
}

async fn push(team: &Namespace<'_>, repository: &Repository, content: &str) -> Result<String> {
    let project = format!("name: app\nruntime: yaml\n{}", team.program("app.txt", content, "")?);
    repository.commit(content, &[("Pulumi.yaml", &project)]).await
}

/// Pushes. Returns the time until the push has run.
async fn push_is_run(team: &Namespace<'_>, repository: &Repository) -> Result<Duration> {
    let pushed = Instant::now();
    let second = push(team, repository, "two").await?;
    team.wait("app", "to have run the push", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    Ok(pushed.elapsed())
}

#[tokio::test]
async fn slow_git_server_of_one_namespace_delays_no_push_of_another() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (team, slow) = (world.namespace("healthy").await?, world.namespace("slow-git").await?);
    let repository = following(&team).await?;
    let server = Slow::new(BEGINNING, None).await?;
    for number in 0..6 {
        apply(&slow, &format!("slow-{number}"), &format!("{}/{number}.git", server.url)).await?;
    }
    ready::until("the slow server is asked for two sources", RUN, async || {
        let open = server.open.load(Ordering::SeqCst);
        ensure!(open == 2, "{open} connections");
        Ok(())
    })
    .await?;

    let took = push_is_run(&team, &repository).await?;
    let most = server.most.load(Ordering::SeqCst);
    ensure!(most == 2, "{most} fetches of one namespace went on at once");
    ensure!(took < USUAL, "the push was run after {took:?}");
    slow.clear().await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn silent_git_server_of_many_namespaces_delays_no_push_of_another() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("beside-silence").await?;
    let repository = following(&team).await?;

    let server = Slow::new("", None).await?;
    let others = crowd(&world, "silent-git", &server, 3).await?;
    ready::until("all fetchers ask the silent server", RUN, async || {
        let most = server.most.load(Ordering::SeqCst);
        ensure!(most == INSTANCES, "{most} connections");
        Ok(())
    })
    .await?;

    let took = push_is_run(&team, &repository).await?;
    ensure!(took < USUAL, "the push was run after {took:?}");
    for other in &others {
        for app in 0..3 {
            other.unavailable(&format!("app-{app}"), "git server did not answer within 15s").await?;
        }
        other.clear().await?;
    }
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn dripping_git_server_of_many_namespaces_delays_no_push_of_another() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("beside-drips").await?;
    let repository = following(&team).await?;

    let (server, began) = (Slow::new(BEGINNING, Some(DRIPS)).await?, Instant::now());
    let others = crowd(&world, "dripping-git", &server, 3).await?;
    server.until_known().await?;

    let took = push_is_run(&team, &repository).await?;
    ensure!(took < USUAL, "the push was run after {took:?}");
    let mut limited = 0;
    for other in &others {
        for app in 0..3 {
            let stack = other.unavailable(&format!("app-{app}"), "git server").await?;
            let (_, _, message) = condition(&stack).context("a condition")?;
            limited += usize::from(message.contains("took longer than 10s, the limit after a slow fetch from its git server"));
        }
    }
    // After a slow fetch, a fetcher shortens the limit of this server's fetches for twice the time
    // that it took.
    let (long, time) = (server.long.load(Ordering::SeqCst), began.elapsed());
    let periods = 1 + usize::try_from(time.as_secs() / (3 * DRIPS.as_secs()))?;
    ensure!(limited > 0 && long <= INSTANCES * periods, "{limited} fetches were limited and {long} were not, within {time:?}");
    for other in &others {
        other.clear().await?;
    }
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn lagging_git_server_of_many_namespaces_delays_no_push_of_another() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("beside-lag").await?;
    let repository = following(&team).await?;

    let server = Slow::new(BEGINNING, Some(LAG)).await?;
    let others = crowd(&world, "lagging-git", &server, LAGGING).await?;
    server.until_known().await?;

    let took = push_is_run(&team, &repository).await?;
    ensure!(took < USUAL, "the push was run after {took:?}");
    for other in &others {
        other.clear().await?;
    }
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn update_with_an_unusable_source_names_the_cause() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("bad-source").await?;
    let long = "a".repeat(2000);
    let spec = |api_version: &str, kind: &str, name: &str, digest: &str| {
        let source = format!("{{ apiVersion: {api_version}, kind: {kind}, name: {name} }}");
        format!(
            "{{ type: up, stackName: dev, driftless: {{ workspace: {{}}, tree: {{ digest: '{digest}', source: {source} }} }} }}"
        )
    };
    let flux = "source.toolkit.fluxcd.io/v1";
    let cases = [
        (
            "unserved",
            spec("unserved.example.com/v1", "Gadget", "app", "sha256:00"),
            "add unserved.example.com/Gadget to SourceKinds",
        ),
        // A kind that is served, but that no installation lets the fetcher read.
        ("forbidden", spec("apps/v1", "Deployment", "app", "sha256:00"), "to SourceKinds and grant the right to read it"),
        ("long-digest", spec(flux, "GitRepository", "app", &long), "spec.driftless.tree.digest is "),
        ("path", spec(flux, "GitRepository", "../app", "sha256:00"), "spec.driftless.tree.source.name is "),
        ("long-kind", spec(flux, &long, "app", "sha256:00"), "spec.driftless.tree.source.kind is "),
    ];
    for (name, spec, _) in &cases {
        apply_update(&team, name, "{}", spec).await?;
    }
    // A wait ends if the installation may allow it later; the Update ends if only another spec
    // helps.
    for (name, _, words) in &cases[..2] {
        let told = |update: &_| {
            let ours = ours(update);
            ours.waiting_reason.as_deref() == Some("SpecInvalid") && ours.waiting_for.is_some_and(|told| told.contains(words))
        };
        wait(&team, name, "to be told that its spec is invalid", told).await?;
    }
    for (name, _, words) in &cases[2..] {
        let update = wait(&team, name, "to be complete", Update::is_complete).await?;
        let (failed, reason, message) = is(&update, "Failed").context("Failed")?;
        ensure!((failed.as_str(), reason.as_str()) == ("True", "Aborted") && message.contains(words), "{reason}: {message}");
    }
    nothing_was_given_up(&world).await?;
    updates(&team).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for (name, ..) in &cases {
        gone(&team, name).await?;
    }
    Ok(())
}

/// Creates a Program with this many levels of nesting. kube cannot read an answer that contains
/// one.
async fn create_nested_program(team: &Namespace<'_>, name: &str, levels: usize) -> Result<()> {
    let deep = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let metadata = format!(r#"{{ "name": "{name}", "namespace": "{}" }}"#, team.name);
    let program = format!(r#"{{ "variables": {{ "deep": {deep} }} }}"#);
    let object =
        format!(r#"{{ "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {metadata}, "program": {program} }}"#);
    let request = http::Request::post(format!("/apis/pulumi.com/v1/namespaces/{}/programs", team.name));
    let request = request.header("content-type", "application/json").body(object.into_bytes())?;
    team.world.client.request_text(request).await?;
    Ok(())
}

#[tokio::test]
async fn deeply_nested_program_is_reported_and_hides_no_other() -> Result<()> {
    let (world, _alone) = alone().await?;
    let team = world.namespace("nested").await?;
    create_nested_program(&team, "deep", 200).await?;
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.apply_stack_as("deep", "deep", "{}", Source::Program("deep"), "").await?;
    team.unavailable("deep", "Program cannot be used: it is nested more than 127 levels deep; simplify it").await?;
    team.ready_after("app", 1).await?;

    // A new forwarder lists them all, and is the only sender of hints for the change.
    world.control.pause_schedule(true).await?;
    let before = pid(&world, "forwarder")?;
    rustix::process::kill_process(before, rustix::process::Signal::TERM)?;
    ready::until("another forwarder runs", ready::START, async || {
        ensure!(pid(&world, "forwarder")? != before, "it is the same");
        Ok(())
    })
    .await?;
    let ran = async |content: &str| {
        let has = |stack: &Stack| is_ready(stack) && output(stack, "content") == Some(&json!(content));
        team.wait("app", "to have run the edit", has).await
    };
    team.apply_program("app", &team.program("app.txt", "two", "")?).await?;
    ran("two").await?;
    create_nested_program(&team, "deeper", 1000).await?;
    team.apply_program("app", &team.program("app.txt", "three", "")?).await?;
    ran("three").await?;
    nothing_was_given_up(&world).await?;
    team.clear().await?;
    let kind = ApiResource::erase::<Program>(&());
    let programs: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &team.name, &kind);
    programs.delete("deep", &DeleteParams::default()).await?;
    programs.delete("deeper", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn private_git_host_that_is_not_listed_is_not_connected_to() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("private-host").await?;
    // An address outside this machine's networks: a connection would end in a much longer time-out.
    apply(&team, "app", "https://10.255.255.1/team/app.git").await?;
    let stack = team.unavailable("app", "has a private address that GitPrivateHosts does not list").await?;
    let (_, _, message) = condition(&stack).context("a condition")?;
    ensure!(message.contains("GitPrivateHosts"), "{message}");
    team.clear().await
}

#[tokio::test]
async fn hundred_waiting_updates_delay_no_run_of_another_namespace() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (team, crowd) = (world.namespace("beside-a-crowd").await?, world.namespace("crowd").await?);
    let hold = crowd.hold()?;
    crowd.apply_program("app", &crowd.program("app.txt", "one", &hold.property())?).await?;
    crowd.apply_stack("app", Source::Program("app"), "").await?;
    crowd.running("app").await?;
    let names: Vec<_> = (0..100).map(|number| format!("waiting-{number}")).collect();
    for name in &names {
        apply_update(&crowd, name, "{}", "{ workspaceName: app, stackName: dev, type: refresh }").await?;
    }
    ready::until("the hundred wait for their claim", RUN, async || {
        let all = updates(&crowd).list(&ListParams::default()).await?.items;
        let waiting = all.iter().filter(|update| ours(update).waiting_reason.as_deref() == Some("StackClaimed")).count();
        ensure!(waiting == names.len(), "{waiting} of {}", names.len());
        Ok(())
    })
    .await?;
    // Each of them is hinted at once.
    world.control.trigger("Sweeper").await?;
    let applied = Instant::now();
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let took = applied.elapsed();
    ensure!(took < USUAL, "the run was done after {took:?}");
    updates(&crowd).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    drop(hold);
    // Each is released by a function of its own, and there are many.
    ready::until("the hundred are gone", RUN * 2, async || {
        let left = updates(&crowd).list_metadata(&ListParams::default()).await?.items;
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).filter(|name| names.contains(name)).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await?;
    crowd.clear().await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn queue_of_destroys_leaves_every_second_slot_to_another_namespace() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (team, greedy) = (world.namespace("patient").await?, world.namespace("greedy").await?);
    world.control.set("MAX_RUNS", "1").await?;
    let hold = greedy.hold()?;
    greedy.apply_program("app", &greedy.program("app.txt", "one", &hold.property())?).await?;
    greedy.apply_stack("app", Source::Program("app"), "").await?;
    greedy.running("app").await?;
    let names: Vec<_> = (0..4).map(|number| format!("destroy-{number}")).collect();
    let waits = |update: &Update| ours(update).waiting_reason.as_deref() == Some("ConcurrencyLimit");
    for name in &names {
        let spec = format!("{{ workspaceName: app, stackName: {name}, type: destroy }}");
        apply_update(&greedy, name, "{}", &spec).await?;
        wait(&greedy, name, "to wait for the slot", waits).await?;
    }
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    ready::until("the other namespace waits for the slot", RUN, async || {
        ensure!(team.updates("app").await?.iter().any(waits), "{}", team.state()?);
        Ok(())
    })
    .await?;
    drop(hold);
    team.ready_after("app", 1).await?;
    let began = |update: &Update| update.status.as_ref().and_then(|status| status.start_time.clone());
    let run = team.updates("app").await?.first().context("a run")?.name_any();
    let ours_began = began(&wait(&team, &run, "to be complete", Update::is_complete).await?).context("a start")?;
    let all = updates(&greedy).list(&ListParams::default()).await?.items;
    let earlier =
        all.iter().filter(|update| names.contains(&update.name_any()) && began(update).is_some_and(|at| at < ours_began));
    ensure!(earlier.count() <= 1, "{ours_began:?}: {:?}", all.iter().map(began).collect::<Vec<_>>());
    world.control.set("MAX_RUNS", &LIMITS.runs.unwrap_or_default().to_string()).await?;
    for name in &names {
        updates(&greedy).delete(name, &DeleteParams::default()).await?;
        gone(&greedy, name).await?;
    }
    greedy.clear().await?;
    team.clear().await
}

#[tokio::test]
async fn flood_of_progress_delays_no_run_of_another_namespace() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (team, noisy) = (world.namespace("beside-a-flood").await?, world.namespace("flood").await?);
    let hold = noisy.hold()?;
    noisy.apply_program("app", &noisy.program("app.txt", "one", &hold.property())?).await?;
    noisy.apply_stack("app", Source::Program("app"), "").await?;
    let arn = ours(&noisy.running("app").await?).task.context("a task")?;
    let (client, folder) = as_task(&world, &arn).await?;
    let (bucket, written) = (world.get("WORLD_BUCKET")?, AtomicUsize::new(0));
    // Every read of this progress lasts until the function's time limit, so that the other messages
    // of the queue wait.
    world.control.hold(&[&format!("GET {}out/progress", folder.rsplit_once(':').context("a task's id")?.1)]).await?;
    let writer = async || -> Result<()> {
        let mut beat = tokio::time::interval(Duration::from_millis(20));
        loop {
            beat.tick().await;
            client.put_object().bucket(bucket).key(format!("{folder}out/progress")).body(b"{}".to_vec().into()).send().await?;
            written.fetch_add(1, Ordering::SeqCst);
        }
    };
    // A single writer is no flood if the endpoint is slow.
    let flood = try_join_all((0..WRITERS).map(|_| writer()));
    let run = async {
        ready::until("the recorder is held up", RUN, async || {
            let calls = world.control.status().await?.held;
            ensure!(calls.len() >= FLOODED, "{calls:?}");
            Ok(())
        })
        .await?;
        let applied = Instant::now();
        team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
        team.apply_stack("app", Source::Program("app"), "").await?;
        team.ready_after("app", 1).await?;
        anyhow::Ok(applied.elapsed())
    };
    let took = tokio::select! {
        ended = flood => return ended.map(drop),
        ready = run => ready?,
    };
    let written = written.into_inner();
    ensure!(took < HELD, "the run was done after {took:?}");
    ensure!(written > 100, "only {written} writes are no flood");
    world.control.hold(&[]).await?;
    drop(hold);
    noisy.ready_after("app", 1).await?;
    noisy.clear().await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}
