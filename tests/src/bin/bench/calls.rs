//! The calls of an undisturbed run, and the messages between a commit and its task.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, ensure};
use driftless_tests::{
    aws::{CALLS_LOG, INVOCATIONS_LOG},
    scenario::{Handle, Namespace, RUN, Source, commit},
    world::{cluster::AUDIT_LOG, journal, ready, start::World},
};
use serde_json::Value;

/// Runs of each kind; the mean is shown.
const RUNS: usize = 6;
/// A function that has not run for this long counts as done.
const BETWEEN_PASSES: Duration = Duration::from_secs(3);

/// The number of calls by callee and caller: `Kubernetes` or a service of AWS, and the process.
pub type Calls = BTreeMap<(String, String), usize>;

/// The journals of calls from a position on.
pub struct Since {
    logs: PathBuf,
    aws: u64,
    kubernetes: u64,
    invocations: u64,
}

impl Since {
    /// From now on.
    pub fn now(world: &Handle) -> Result<Self> {
        let logs = PathBuf::from(world.get("WORLD_LOGS")?);
        let size = |name: &str| fs::metadata(logs.join(name)).map_or(0, |file| file.len());
        Ok(Self { aws: size(CALLS_LOG), kubernetes: size(AUDIT_LOG), invocations: size(INVOCATIONS_LOG), logs })
    }

    /// The calls of the functions, the forwarder and the tasks.
    pub fn calls(&self) -> Result<Calls> {
        let mut calls = Calls::new();
        for entry in journal::entries(&self.logs.join(CALLS_LOG), self.aws)? {
            let entry = entry?;
            if let Some((service, part)) = entry["service"].as_str().zip(part(&entry)) {
                *calls.entry((service.to_owned(), part)).or_default() += 1;
            }
        }
        for entry in journal::entries(&self.logs.join(AUDIT_LOG), self.kubernetes)? {
            let entry = entry?;
            let groups = entry["user"]["groups"].as_array().into_iter().flatten();
            let part = groups.filter_map(Value::as_str).find_map(|group| group.strip_prefix("driftless:"));
            if let Some(part) = part.filter(|_| entry["verb"] != "watch") {
                *calls.entry(("Kubernetes".to_owned(), part.to_owned())).or_default() += 1;
            }
        }
        Ok(calls)
    }

    /// Counts the invocations by function, each with one batch of messages while no sweep starts.
    fn invocations(&self, counts: &mut BTreeMap<String, usize>) -> Result<()> {
        for entry in journal::entries(&self.logs.join(INVOCATIONS_LOG), self.invocations)? {
            *counts.entry(entry?["function"].as_str().unwrap_or_default().to_lowercase()).or_default() += 1;
        }
        Ok(())
    }

    /// The messages that were sent before the call for a task.
    fn messages_to_task(&self) -> Result<usize> {
        let mut messages = 0;
        for entry in journal::entries(&self.logs.join(CALLS_LOG), self.aws)? {
            let entry = entry?;
            if entry["operation"] == "RunTask" {
                return Ok(messages);
            }
            let is_sent = entry["demands"][0][0] == "sqs:SendMessage" && part(&entry).is_some();
            let is_delayed = entry["input"]["DelaySeconds"].as_u64().is_some_and(|delay| delay > 0);
            if is_sent && !is_delayed {
                messages += entry["input"]["Entries"].as_array().map_or(1, Vec::len);
            }
        }
        Err(anyhow::anyhow!("no task was started"))
    }
}

/// The process whose role made a call of AWS, such as `recorder` or `task`.
fn part(entry: &Value) -> Option<String> {
    let (_, role) = entry["caller"].as_str()?.split_once(":assumed-role/driftless-")?;
    Some(role.split_once("Role/")?.0.to_lowercase())
}

/// Runs Stacks one after the other, each with its own Program, and then a change of each Program.
pub async fn measure(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("calls").await?;
    // The first one fills the caches of the functions: the kubeconfig, the labels of namespaces.
    run(&team, "warm", "content").await?;
    quiet(&handle).await?;
    // No event is lost here, so no sweep is needed.
    handle.control.pause_schedule(true).await?;
    let (mut first, mut change, mut messages, mut invocations) =
        (Calls::new(), Calls::new(), 0, [BTreeMap::new(), BTreeMap::new()]);
    for number in 0..RUNS {
        let app = format!("app{number}");
        for (index, (calls, content)) in [(&mut first, "content"), (&mut change, "changed")].into_iter().enumerate() {
            let since = Since::now(&handle)?;
            run(&team, &app, content).await?;
            quiet(&handle).await?;
            for (who, count) in since.calls()? {
                *calls.entry(who).or_default() += count;
            }
            since.invocations(&mut invocations[index])?;
            if content == "changed" {
                messages += since.messages_to_task()?;
            }
        }
    }
    handle.control.pause_schedule(false).await?;
    println!("\n{RUNS} Stacks one after the other, each with its own Program; calls per run:");
    println!("  {:<38}  first   change", "");
    show(&first, &change);
    let [of_first, of_change] = &invocations;
    let functions: BTreeSet<_> = of_first.keys().chain(of_change.keys()).collect();
    for function in functions {
        let of = |counts: &BTreeMap<String, usize>| mean(counts.get(function).copied().unwrap_or_default());
        println!("  {:<38} {:6.1}   {:6.1}", format!("invocations of {function}"), of(of_first), of(of_change));
    }
    let [of_first, of_change] = invocations.map(|counts| mean(counts.values().sum()));
    println!("  {:<38} {of_first:6.1}   {of_change:6.1}", "invocations of functions");
    println!("  messages from the change to RunTask     {:13.1}", mean(messages));
    Ok(())
}

/// Applies a Program, and its Stack if it does not exist, and waits for the run.
async fn run(team: &Namespace<'_>, app: &str, content: &str) -> Result<()> {
    let before = team.stack(app).await.ok().and_then(|stack| commit(&stack).map(ToOwned::to_owned));
    team.apply_program(app, &team.program(app, content, "")?).await?;
    if before.is_none() {
        team.apply_stack(app, Source::Program(app), "").await?;
    }
    team.wait(app, "to be Ready", |stack| commit(stack).is_some_and(|commit| before.as_deref() != Some(commit))).await?;
    Ok(())
}

/// Waits until no function has run for a while.
async fn quiet(world: &Handle) -> Result<()> {
    let passes = RefCell::default();
    ready::until_every(BETWEEN_PASSES, "no function runs", RUN, async || {
        let functions = world.control.status().await?.functions;
        let now: BTreeMap<_, _> = functions
            .into_iter()
            .map(|(name, counts)| (name, (counts["invocations"].clone(), counts["running"].clone())))
            .collect();
        let before = passes.replace(now.clone());
        ensure!(before == now && now.values().all(|(_, running)| running == 0), "{now:?}");
        Ok(())
    })
    .await
}

/// Prints each process and service, then the totals of AWS and of Kubernetes.
fn show(first: &Calls, change: &Calls) {
    let of = |calls: &Calls, wanted: &dyn Fn(&str, &str) -> bool| {
        let counted = calls.iter().filter(|((api, part), _)| wanted(api, part));
        mean(counted.map(|(_, count)| count).sum())
    };
    let line = |what: &str, wanted: &dyn Fn(&str, &str) -> bool| {
        println!("  {what:<38} {:6.1}   {:6.1}", of(first, wanted), of(change, wanted));
    };
    let named = |index: fn(&(String, String)) -> &String| {
        let mut all: Vec<_> = first.keys().chain(change.keys()).map(index).collect();
        all.sort();
        all.dedup();
        all
    };
    for part in named(|(_, part)| part) {
        line(&format!("AWS, {part}"), &|api, by| api != "Kubernetes" && by == part);
        line(&format!("Kubernetes, {part}"), &|api, by| api == "Kubernetes" && by == part);
    }
    for api in named(|(api, _)| api).into_iter().filter(|api| *api != "Kubernetes") {
        line(&format!("AWS, all of {api}"), &|of, _| of == api);
    }
    line("AWS, all", &|api, _| api != "Kubernetes");
    line("Kubernetes, all", &|api, _| api == "Kubernetes");
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mean(count: usize) -> f64 {
    count as f64 / RUNS as f64
}
