//! What the commands that only read say about the Stacks of the table: what the Stacks themselves
//! say, and about those that are refused the exact words. The commands run in this process, because
//! each process costs more than its command.

use std::{env, fs, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use driftless_api::{Stack, Update};
use driftless_cli::{
    Error,
    arguments::{Arguments, Command},
    cluster::Cluster,
    commands::{Terminal, diff, in_cluster},
    render::Style,
};
use driftless_tests::{
    scenario::{Namespace, condition},
    world::ready,
};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::case::Case;
use crate::{logs, updates::ours};

/// The time limit for a command and a Stack to agree, which may have changed between two reads.
const AGREEMENT: Duration = Duration::from_mins(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);

/// `LookPeriodSeconds` of the commands, and the minute of the sweep.
const PERIOD: SignedDuration = SignedDuration::from_secs(600 + 60);

/// The file with the output about the refused cases. `BLESS=1` writes it.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/compat/golden/refused.txt");

/// What a command printed, with its notes and its error, and its exit code.
#[derive(Debug)]
struct Printed {
    text: String,
    code: u8,
}

async fn printed(team: &Namespace<'_>, arguments: &[&str]) -> Result<Printed> {
    let command = Arguments::try_parse_from([&["kubectl-driftless"], arguments].concat())?.command;
    let cluster = Cluster::of(team.world.client.clone(), &*team.name);
    let (mut text, mut notes) = (String::new(), String::new());
    let (out, note) = (&mut |part: &str| text += part, &mut |note: &str| notes.extend([note, "\n"]));
    let mut terminal = Terminal { program: "kubectl-driftless", style: Style::default(), has_desktop: false, now, out, note };
    let done = match command {
        Command::Diff { stack, output } => {
            let done = Box::pin(diff(&cluster, &stack, output, &mut terminal)).await;
            // An exit code cannot be compared.
            let code = |code| u8::from(format!("{code:?}") != format!("{:?}", ExitCode::SUCCESS));
            done.map(code).map_err(|error| Error::Unknown(error.to_string()))
        }
        command => Box::pin(in_cluster(&cluster, command, &mut terminal)).await.map(|()| 0),
    };
    let code = match done {
        Ok(code) => code,
        Err(error) => {
            notes.extend(["error: ", &error.to_string(), "\n"]);
            if matches!(error, Error::Unknown(_)) { 2 } else { 1 }
        }
    };
    Ok(Printed { text: text + &notes, code })
}

/// The answer of a command as a document.
async fn document(team: &Namespace<'_>, arguments: &[&str]) -> Result<Value> {
    let Printed { text, .. } = printed(team, &[arguments, &["--output", "json"]].concat()).await?;
    // The notes follow the document.
    let mut documents = serde_json::Deserializer::from_str(&text).into_iter();
    documents.next().and_then(Result::ok).with_context(|| format!("{arguments:?}: {text}"))
}

#[expect(clippy::disallowed_methods, reason = "the commands read the clock, too")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Waits until all commands say about a case's Stack what it says itself.
pub async fn is_seen(team: &Namespace<'_>, case: &Case) -> Result<()> {
    let stacks = Api::<Stack>::namespaced(team.world.client.clone(), &team.name);
    ready::until_every(BETWEEN_LOOKS, "the commands agree with the objects", AGREEMENT, async || {
        let name = case.object();
        let Some(stack) = stacks.get_opt(name).await? else { return Ok(()) };
        let before = now();
        is_explained(&stack, &document(team, &["explain", name]).await?, before).context("explain")?;
        is_listed(&stack, &document(team, &["get", name]).await?[0]).context("get")?;
        let updates = updates(team, &stack).await?;
        is_drawn(&stack, &updates, &document(team, &["tree", name]).await?).context("tree")?;
        differs(&stack, &updates, &printed(team, &["diff", name, "--output", "json"]).await?).context("diff")?;
        has_log(team, &stack, &updates, &printed(team, &["logs", name]).await?).context("logs")
    })
    .await
}

/// Waits until `explain` says about a Stack in the middle of a case what the Stack says itself at
/// the same version. A state that lasts only seconds may be followed by the next one.
pub async fn is_explained_now(team: &Namespace<'_>, name: &str) -> Result<()> {
    let stacks = Api::<Stack>::namespaced(team.world.client.clone(), &team.name);
    ready::until_every(BETWEEN_LOOKS, "the explanation agrees with the Stack", AGREEMENT, async || {
        let Some(stack) = stacks.get_opt(name).await? else { return Ok(()) };
        let before = now();
        let explanation = document(team, &["explain", name]).await;
        let version = stacks.get_opt(name).await?.and_then(|stack| stack.resource_version());
        ensure!(version == stack.resource_version(), "the Stack changed while it was explained");
        is_explained(&stack, &explanation?, before)
    })
    .await
}

/// Fails unless an explanation has the reason and the message of the Stack's condition, decided
/// from what a user may read, and the time of the next reconciliation. It was made after `before`.
fn is_explained(stack: &Stack, explanation: &Value, before: Timestamp) -> Result<()> {
    let said = [&explanation["reason"], &explanation["message"]].map(|text| text.as_str().unwrap_or_default());
    match condition(stack) {
        Some((_, reason, message)) => ensure!(said == [&reason, &message], "{explanation}, not {reason}: {message}"),
        None => ensure!(said[0] == rest(stack), "{explanation}, not {}", rest(stack)),
    }
    // Only Driftless knows how a fetch ended. All else that may keep a Stack is in objects, and an
    // explanation that repeats the status explains nothing.
    let is_of_fetch =
        explanation["unknown"].as_array().is_some_and(|unknown| unknown.iter().any(|fact| fact == "fetch" || fact == "git"));
    let may_repeat = is_of_fetch && ["SourceUnavailable", "StackProcessing"].contains(&said[0]);
    ensure!(may_repeat || explanation["fromStatus"] == false, "it repeats the status: {explanation}");
    let next: Timestamp = explanation["next"]["at"].as_str().with_context(|| format!("no next time: {explanation}"))?.parse()?;
    let ours = stack.status.as_ref().and_then(|status| status.driftless.as_ref());
    match ours.and_then(|ours| ours.next_look.as_ref()).map(|next| next.0).filter(|next| *next > before) {
        Some(booked) => ensure!(next == booked, "next at {next}, not at {booked}"),
        // Each Stack has a turn in the period of the sweep.
        None => ensure!(before < next && next <= before + PERIOD, "next at {next}, seen from {before}"),
    }
    Ok(())
}

/// The state of a Stack without a condition that says why it is not Ready.
fn rest(stack: &Stack) -> &'static str {
    if stack.is_suspended() { "Suspended" } else { "Ready" }
}

/// The state of a Stack and its message.
fn state(stack: &Stack) -> (String, String) {
    let generation = stack.metadata.generation;
    if stack.status.as_ref().is_some_and(|status| status.observed_generation != generation) {
        return ("NotReconciled".into(), format!("generation {} is not reconciled yet", generation.unwrap_or_default()));
    }
    condition(stack).map_or_else(|| (rest(stack).to_owned(), String::new()), |(_, reason, message)| (reason, message))
}

/// The Updates that run in a Stack's Workspace.
async fn updates(team: &Namespace<'_>, stack: &Stack) -> Result<Vec<Update>> {
    let all = Api::<Update>::namespaced(team.world.client.clone(), &team.name).list(&ListParams::default()).await?;
    let is_ours = |update: &Update| update.spec.workspace_name.as_deref() == stack.metadata.name.as_deref();
    Ok(all.items.into_iter().filter(is_ours).collect())
}

/// Fails unless a row has what the Stack's status has.
fn is_listed(stack: &Stack, row: &Value) -> Result<()> {
    let (state, message) = state(stack);
    let status = stack.status.clone().unwrap_or_default();
    let drifted = status.conditions.iter().find(|condition| condition.type_ == "Drifted");
    let drift = drifted.map_or("-", |drifted| match drifted.status.as_str() {
        "True" => "yes",
        "False" => "no",
        _ => "unknown",
    });
    let last = status.last_update.unwrap_or_default();
    let next = status.driftless.unwrap_or_default().next_look;
    let is_ready = message.is_empty() && ["Ready", "Suspended"].contains(&&*state);
    let wanted = json!({
        "namespace": stack.namespace(), "name": stack.name_any(), "ready": is_ready,
        "state": state, "message": message, "lastCommit": last.last_attempted_commit.unwrap_or_default(), "drift": drift,
        "lastUpdate": last.last_resync_time.map(|at| at.0), "nextReconciliation": next.map(|at| at.0),
    });
    ensure!(*row == wanted, "{row}, not {wanted}");
    Ok(())
}

/// Fails unless a tree has the Stack with its state and its message, and its last Updates.
fn is_drawn(stack: &Stack, updates: &[Update], tree: &Value) -> Result<()> {
    let (state, message) = state(stack);
    let detail = if message.is_empty() { state } else { format!("{state}: {message}") };
    ensure!(tree["object"] == format!("Stack {}/{}", stack.namespace().unwrap_or_default(), stack.name_any()), "{tree}");
    ensure!(tree["detail"] == detail, "{tree}, not {detail}");
    let drawn = objects(tree, "Update ");
    let known: Vec<_> = updates.iter().map(ResourceExt::name_any).collect();
    ensure!(drawn.len() == known.len().min(5) && drawn.iter().all(|name| known.contains(name)), "{drawn:?} of {known:?}");
    Ok(())
}

/// The names of the objects of a kind in a tree.
fn objects(tree: &Value, kind: &str) -> Vec<String> {
    let own = tree["object"].as_str().and_then(|object| object.strip_prefix(kind)).map(ToOwned::to_owned);
    let below = tree["children"].as_array().into_iter().flatten().flat_map(|child| objects(child, kind));
    own.into_iter().chain(below).collect()
}

/// Fails unless `diff` names runs of the Stack, and its exit code is that of the differences which
/// are left.
fn differs(stack: &Stack, updates: &[Update], Printed { text, code }: &Printed) -> Result<()> {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let has_run =
        |update: &Update| update.is_complete() && update.status.as_ref().is_some_and(|status| status.start_time.is_some());
    if last.is_none() && !updates.iter().any(has_run) {
        ensure!(*code == 2 && text.contains("has no ended preview, update or drift check"), "{code}: {text}");
        return Ok(());
    }
    let diff: Value = serde_json::Deserializer::from_str(text).into_iter().next().context("no document")??;
    let wanted = diff["differs"].as_bool().map_or(2, u8::from);
    ensure!(*code == wanted, "it ended with {code}: {diff}");
    let last = last.map(|last| last.name.clone().unwrap_or_default());
    let known: Vec<_> = updates.iter().map(ResourceExt::name_any).chain(last).collect();
    let runs = diff["runs"].as_array().context("runs")?;
    ensure!(!runs.is_empty(), "{diff}");
    ensure!(
        runs.iter().all(|run| run["update"].as_str().is_some_and(|name| known.iter().any(|known| known == name))),
        "{diff}: {known:?}"
    );
    Ok(())
}

/// Fails unless `logs` prints all that the task of the Stack's last run printed.
fn has_log(team: &Namespace<'_>, stack: &Stack, updates: &[Update], Printed { text, code }: &Printed) -> Result<()> {
    let status = stack.status.clone().unwrap_or_default();
    let current = status.current_update.and_then(|current| current.name);
    let Some(name) = current.or_else(|| status.last_update?.name) else {
        ensure!(*code == 1 && text.ends_with("has no run yet\n"), "{code}: {text}");
        return Ok(());
    };
    let Some(update) = updates.iter().find(|update| update.name_any() == name) else {
        ensure!(*code == 1 && text.contains("which was deleted with its log"), "{code}: {text}");
        return Ok(());
    };
    if ours(update).task.is_none() {
        ensure!(*code == 1 && text.contains(&format!("Update {name} has no log")), "{code}: {text}");
        return Ok(());
    }
    ensure!(*code == 0 && *text == logs::printed(team, update)?, "{code}: {text}");
    Ok(())
}

/// What the commands print about a Stack, and what they would change of it, without times.
async fn words(team: &Namespace<'_>, stack: &str) -> Result<String> {
    let mut text = String::new();
    let reads = ["get", "explain", "tree", "diff", "logs"].map(|command| (command, &[][..]));
    let requests = ["run preview", "reconcile", "cancel", "suspend", "resume", "remediate", "adopt"];
    for (command, options) in reads.into_iter().chain(requests.map(|command| (command, &["--dry-run"][..]))) {
        let arguments: Vec<_> = command.split(' ').chain([stack]).chain(options.iter().copied()).collect();
        let Printed { text: words, code } = printed(team, &arguments).await?;
        let words: String = words.split_inclusive(char::is_whitespace).map(timeless).collect();
        text.extend(["$ ", &arguments.join(" "), ": ", &code.to_string(), "\n", &words]);
    }
    Ok(text)
}

/// A word with the white space after it, in which a time or a duration is replaced.
fn timeless(word: &str) -> String {
    let bare = word.trim_end().trim_matches(['(', ')', ',', ';', '"']);
    let starts = bare.starts_with(|first: char| first.is_ascii_digit());
    let is_span = bare.ends_with(['s', 'm', 'h', 'd']) && bare.chars().all(|part| part.is_ascii_digit() || "smhd".contains(part));
    match (starts, is_span, bare.ends_with('Z')) {
        (true, true, _) => word.replace(bare, "SPAN"),
        (true, _, true) => word.replace(bare, "TIME"),
        _ => word.to_owned(),
    }
}

/// Waits until the commands print about each case what the golden file has.
pub async fn is_worded(team: &Namespace<'_>, cases: &[Case]) -> Result<()> {
    let (golden, mut all) = (fs::read_to_string(GOLDEN)?, String::new());
    let is_blessed = env::var_os("BLESS").is_some();
    let titles: Vec<_> = golden.lines().filter_map(|line| line.strip_prefix("==> ")).collect();
    let names: Vec<_> = cases.iter().map(|case| &*case.name).collect();
    ensure!(is_blessed || titles == names, "BLESS=1 writes the cases {names:?}, not {titles:?}");
    for case in cases {
        let title = format!("==> {}\n", case.name);
        let known = golden.split_once(&title).and_then(|(_, rest)| rest.split("==> ").next()).unwrap_or_default();
        if is_blessed {
            // A Stack may still change: two readings have to agree.
            let said = ready::until_every(BETWEEN_LOOKS, "the commands have the same words twice", AGREEMENT, async || {
                let said = words(team, case.object()).await?;
                ensure!(said == words(team, case.object()).await?, "{said}");
                Ok(said)
            });
            all += &(title + &said.await?);
            continue;
        }
        ready::until_every(BETWEEN_LOOKS, "the commands have the known words", AGREEMENT, async || {
            let said = words(team, case.object()).await?;
            ensure!(said == known, "BLESS=1 writes what is said:\n{said}\n\nknown:\n{known}");
            Ok(())
        })
        .await
        .with_context(|| case.name.clone())?;
    }
    if !all.is_empty() {
        fs::write(GOLDEN, all)?;
    }
    Ok(())
}

#[test]
fn explanation_with_another_time_or_the_words_of_the_status_is_refused() -> Result<()> {
    let before: Timestamp = "2026-11-26T12:00:00Z".parse()?;
    let stack = |next: Value| -> Result<Stack> {
        let condition = json!({
            "type": "Stalled", "status": "True", "reason": "SourceUnavailable", "message": "gone", "lastTransitionTime": before,
        });
        Ok(serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "name": "app" }, "spec": { "stack": "dev" },
            "status": { "conditions": [condition], "driftless": { "nextLook": next } },
        }))?)
    };
    let said = |next: &str, from_status: bool, unknown: &[&str]| {
        let next = json!({ "at": next });
        json!({ "reason": "SourceUnavailable", "message": "gone", "fromStatus": from_status, "unknown": unknown, "next": next })
    };
    let (booked, free) = (stack(json!("2026-11-26T13:00:00Z"))?, stack(Value::Null)?);
    let over = stack(json!("2026-11-26T11:59:00Z"))?;
    for (stack, next, from_status, unknown, is_right) in [
        (&booked, "2026-11-26T13:00:00Z", false, &[][..], true),
        (&booked, "2026-11-26T13:00:01Z", false, &[], false),
        (&booked, "2026-11-26T12:01:00Z", false, &[], false),
        (&free, "2026-11-26T12:10:00Z", false, &[], true),
        (&over, "2026-11-26T12:01:00Z", false, &[], true),
        (&free, "2026-11-26T13:00:00Z", false, &[], false),
        (&free, "2026-11-26T11:59:00Z", false, &[], false),
        (&booked, "2026-11-26T13:00:00Z", true, &["fetch"], true),
        (&booked, "2026-11-26T13:00:00Z", true, &["tree", "inputs"], false),
    ] {
        let explained = is_explained(stack, &said(next, from_status, unknown), before);
        assert_eq!(explained.is_ok(), is_right, "{next} {from_status} {unknown:?}: {explained:?}");
    }
    let mut other = said("2026-11-26T13:00:00Z", false, &[]);
    for (field, text) in [("message", "here"), ("reason", "SpecInvalid")] {
        other[field] = text.into();
        assert!(is_explained(&booked, &other, before).is_err(), "{field}");
    }
    Ok(())
}

#[test]
fn only_times_and_durations_are_left_out_of_words() {
    let masked = |text: &str| text.split_inclusive(char::is_whitespace).map(timeless).collect::<String>();
    let text = "Next: 2026-11-26T12:00:42Z (in 1m42s), or at 12:00:42Z; 3 of\n  smZ";
    assert_eq!(masked(text), "Next: TIME (in SPAN), or at TIME; 3 of\n  smZ");
}
