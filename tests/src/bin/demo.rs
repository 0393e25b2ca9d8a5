//! `make demo`: the whole path on this machine, with real parts, in `target/world` or the folder of
//! that name. It prints a user's commands and their results.

use std::{env, io::IsTerminal as _, path::Path, time::Instant};

use anyhow::{Context, Result};
use driftless_api::Stack;
use driftless_core::Limits;
use driftless_tests::{
    scenario::{Handle, Namespace, Source, commit, condition, is_ready, output},
    world::start::{WORLDS, World},
};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    driftless_tests::log();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    say("starting the world: etcd, kube-apiserver, Flux's controllers, S3 and SQS, the functions, a small Fargate");
    let started = Instant::now();
    let name = env::args().nth(1).unwrap_or_else(|| WORLDS[0].into());
    let world = World::start(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &name, Limits::default()).await?;
    say(&format!("ready after {:.1} s", started.elapsed().as_secs_f32()));
    let shown = tokio::select! {
        shown = Box::pin(show(&world)) => shown,
        failure = world.failure() => Err(failure),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    if shown.is_ok() && std::io::stdout().is_terminal() {
        say("the world runs until Ctrl-C");
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    world.stop().await;
    shown
}

fn say(text: &str) {
    println!("\n==> {text}");
}

async fn show(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("team").await?;

    say("kubectl apply: a Program, and a Stack that refers to it");
    team.apply_program("greeting", &team.program("greeting.txt", "hello", "")?).await?;
    team.apply_stack("greeting", Source::Program("greeting"), "").await?;
    follow(&team, "greeting", |_| true).await?;

    say("git push: a repository that Flux follows, and a Stack on its GitRepository");
    let repository = handle.git.create("shop").await?;
    let project =
        |content: &str| Ok::<_, anyhow::Error>(format!("name: shop\nruntime: yaml\n{}", team.program("shop.txt", content, "")?));
    repository.commit("Open the shop", &[("Pulumi.yaml", &project("open")?)]).await?;
    team.apply_alert().await?;
    team.apply_git_repository("shop", &repository.url).await?;
    team.apply_stack("shop", Source::GitRepository("shop"), "").await?;
    follow(&team, "shop", |_| true).await?;

    say("git push: another commit");
    let id = repository.commit("Close the shop", &[("Pulumi.yaml", &project("closed")?)]).await?;
    team.reconcile_source("shop", "demo").await?;
    follow(&team, "shop", |stack| commit(stack).is_some_and(|commit| commit.ends_with(&id))).await?;

    say("kubectl apply: the Program, edited");
    team.apply_program("greeting", &team.program("greeting.txt", "hello again", "")?).await?;
    follow(&team, "greeting", |stack| commit(stack) == Some("2")).await?;

    say("kubectl get stacks,updates --namespace team");
    kubectl(&handle, &["get", "stacks,updates", "--namespace", "team"]).await?;
    say("where to look next");
    println!("    source {}", world.env_file().display());
    println!("    kubectl describe stack greeting --namespace team");
    println!("    kubectl get updates --namespace team --output wide");
    println!("    kubectl edit program greeting --namespace team    # and watch: kubectl get stacks --namespace team --watch");
    println!("    ls $WORLD_LOGS                                     # one log per function, task and controller");
    Ok(())
}

/// Prints each change of a Stack's condition until it is Ready and matches `wanted`, and then its
/// outputs.
async fn follow(team: &Namespace<'_>, name: &str, wanted: impl Fn(&Stack) -> bool) -> Result<()> {
    let started = Instant::now();
    let shown = std::cell::RefCell::new(String::new());
    let stack = team.wait(name, "to be Ready", |stack| {
        let done = is_ready(stack) && wanted(stack);
        let line = match condition(stack) {
            Some((type_, reason, message)) => format!("{type_}  {reason}: {message}"),
            None if done => "Ready".to_owned(),
            None => "waiting for a look".to_owned(),
        };
        if *shown.borrow() != line {
            println!("    {:>5.1} s  {name}  {line}", started.elapsed().as_secs_f32());
            shown.replace(line);
        }
        done
    });
    let stack = stack.await?;
    for output_name in ["content", "size"] {
        let value = output(&stack, output_name).with_context(|| format!("Stack {name} has no output {output_name}"))?;
        println!("             {name}  output {output_name} = {value}");
    }
    Ok(())
}

async fn kubectl(handle: &Handle, arguments: &[&str]) -> Result<()> {
    let kubectl = Path::new(handle.get("WORLD_TOOLS")?).join("kubectl");
    let status =
        tokio::process::Command::new(kubectl).args(arguments).env("KUBECONFIG", handle.get("KUBECONFIG")?).status().await?;
    anyhow::ensure!(status.success(), "kubectl {}: {status}", arguments.join(" "));
    Ok(())
}
