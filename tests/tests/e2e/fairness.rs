//! What one namespace does to the others: nothing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    scenario::{Namespace, RUN, Source, commit, condition, is_ready},
    world::ready,
};
use kube::api::{DeleteParams, ListParams};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    updates::{apply_update, gone, ours, updates, wait},
    world::{alone, nothing_was_given_up, shared},
};

/// A poll of a branch, a fetch and a run.
const USUAL: Duration = Duration::from_mins(2);

/// A git server that takes requests and never answers. Ends with the test's runtime.
struct Silent {
    url: String,
    /// The connections that are open now, and the most that ever were.
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Silent {
    async fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let silent = Self { url, open: Arc::default(), most: Arc::default() };
        let (open, most) = (Arc::clone(&silent.open), Arc::clone(&silent.most));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let open = Arc::clone(&open);
                tokio::spawn(async move {
                    until_closed(connection).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(silent)
    }
}

async fn until_closed(mut connection: TcpStream) {
    let mut buffer = [0; 1024];
    while connection.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
}

async fn apply(team: &Namespace<'_>, name: &str, url: &str) -> Result<()> {
    team.apply_stack_as(name, name, "{}", Source::Git { url, reference: "branch: main", dir: "", auth: "" }, "").await
}

#[tokio::test]
async fn slow_git_server_of_one_namespace_delays_no_push_of_another() -> Result<()> {
    let (world, _alone) = alone().await?;
    let (team, slow) = (world.namespace("healthy").await?, world.namespace("slow-git").await?);
    let repository = world.git.create("healthy").await?;
    let project =
        |content: &str| -> Result<_> { Ok(format!("name: app\nruntime: yaml\n{}", team.program("app.txt", content, "")?)) };
    repository.commit("one", &[("Pulumi.yaml", &project("one")?)]).await?;
    apply(&team, "app", &repository.url).await?;
    team.ready_after("app", 1).await?;

    let server = Silent::new().await?;
    for number in 0..6 {
        apply(&slow, &format!("slow-{number}"), &format!("{}/{number}.git", server.url)).await?;
    }
    ready::until("the silent server is asked for two sources", RUN, async || {
        let open = server.open.load(Ordering::SeqCst);
        ensure!(open == 2, "{open} connections");
        Ok(())
    })
    .await?;

    let pushed = Instant::now();
    let second = repository.commit("two", &[("Pulumi.yaml", &project("two")?)]).await?;
    team.wait("app", "to have run the push", |stack| commit(stack) == Some(&second) && is_ready(stack)).await?;
    let took = pushed.elapsed();
    let most = server.most.load(Ordering::SeqCst);
    ensure!(most == 2, "{most} fetches of one namespace went on at once");
    ensure!(took < USUAL, "the push was run after {took:?}");
    slow.clear().await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}

#[tokio::test]
async fn update_with_a_source_that_cannot_be_used_is_told_so() -> Result<()> {
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
        ("unserved", spec("nobody.example.com/v1", "Gadget", "app", "sha256:00"), "nobody.example.com/Gadget in SourceKinds"),
        // A kind that is served, and that no installation lets the fetcher read.
        ("forbidden", spec("apps/v1", "Deployment", "app", "sha256:00"), "in SourceKinds and allow it to be read"),
        ("long-digest", spec(flux, "GitRepository", "app", &long), "spec.driftless.tree.digest is "),
        ("path", spec(flux, "GitRepository", "../app", "sha256:00"), "spec.driftless.tree.source.name is "),
        ("long-kind", spec(flux, &long, "app", "sha256:00"), "spec.driftless.tree.source.kind is "),
    ];
    for (name, spec, _) in &cases {
        apply_update(&team, name, "{}", spec).await?;
    }
    for (name, _, words) in &cases {
        let told = |update: &_| {
            let ours = ours(update);
            ours.waiting_reason.as_deref() == Some("SpecInvalid") && ours.waiting_for.is_some_and(|told| told.contains(words))
        };
        wait(&team, name, "to be told that its spec is invalid", told).await?;
    }
    nothing_was_given_up(&world).await?;
    updates(&team).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for (name, ..) in &cases {
        gone(&team, name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn private_git_host_that_is_not_listed_is_not_connected_to() -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("private-host").await?;
    // Of a network that this machine is not in: a connection would end in a time-out, after much longer.
    apply(&team, "app", "https://10.255.255.1/team/app.git").await?;
    let stack = team.unavailable("app", "resolves to a private address, which this installation does not allow").await?;
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
    // Every one of them is hinted at once.
    world.control.trigger("Sweeper").await?;
    let applied = Instant::now();
    team.apply_program("app", &team.program("app.txt", "one", "")?).await?;
    team.apply_stack("app", Source::Program("app"), "").await?;
    team.ready_after("app", 1).await?;
    let took = applied.elapsed();
    ensure!(took < USUAL, "the run was done after {took:?}");
    updates(&crowd).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    drop(hold);
    for name in &names {
        gone(&crowd, name).await?;
    }
    crowd.clear().await?;
    team.clear().await?;
    nothing_was_given_up(&world).await
}
