//! What the commands that only read print after each step of each case of the compatibility table.
//!
//! The code that decides reconciles the objects of a step in memory, until the Stack has the reason
//! and the message that the table expects, as the real processes do (tests/tests/e2e/compat). How a
//! run ends is taken from the table; its log and its changes are the same in each case.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;
#[path = "table/cluster.rs"]
mod table_cluster;

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use clap::Parser as _;
use driftless_cli::{
    arguments::{Arguments, Command},
    commands::{Terminal, diff, in_cluster},
    render::Style,
};
use serde_json::Value;
use support::golden;
use table_cluster::{Objects, now};

/// The Stack of each case, so that equal outputs have the same text.
const STACK: &str = "shop";
/// The files of the table; the end-to-end test has the text of `refused`.
const FILES: [&str; 3] = ["runs", "deletion", "time"];
/// The commands that only read.
const READS: [&str; 5] = ["get", "explain", "tree", "diff", "logs"];

/// The steps that have a text, by case.
type Steps = Vec<(String, String)>;

fn cases() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tests/e2e/compat/cases");
    let of_file = |file: &str| -> Vec<Value> {
        let text = fs::read_to_string(folder.join(file).with_extension("yaml")).unwrap();
        let words = [("$NAMESPACE", "team"), ("$STATE", "/state"), ("$FILES", "/files"), ("$SELF", STACK)];
        serde_saphyr::from_str(&words.iter().fold(text, |text, (word, value)| text.replace(word, value))).unwrap()
    };
    FILES.into_iter().flat_map(of_file).collect()
}

/// What a command prints, with its notes and its error.
async fn printed(objects: &Objects, command: &str, stack: &str) -> String {
    let (mut out, mut notes) = (String::new(), String::new());
    let mut terminal = Terminal {
        program: "kubectl-driftless",
        style: Style::default(),
        has_desktop: false,
        now,
        out: &mut |text| out += text,
        note: &mut |note| notes.extend([note, "\n"]),
    };
    let cluster = objects.cluster();
    let done = match Arguments::try_parse_from(["kubectl-driftless", command, stack]).unwrap().command {
        Command::Diff { stack, output } => Box::pin(diff(&cluster, &stack, output, &mut terminal)).await.map(drop),
        command => Box::pin(in_cluster(&cluster, command, &mut terminal)).await,
    };
    if let Err(error) = done {
        let _ = writeln!(notes, "error: {error}");
    }
    out + &notes
}

/// The reason and the message that a step expects, or that its Stack is Ready or gone.
fn expected(step: &Value) -> Option<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let expect = &step["expect"];
    let reason = [&expect["stalled"], &expect["reconciling"]].into_iter().find(|reason| reason.is_array());
    match reason {
        Some(reason) => Some((text(&reason[0]), text(&reason[1]))),
        None if expect["ready"] == true => Some(("Ready".into(), String::new())),
        None if expect["released"] == true || expect["gone"] == true => Some(("Gone".into(), String::new())),
        None => None,
    }
}

/// Returns whether a text matches a pattern, in which `…` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        (rest, last) = (after, Some(part));
    }
    rest.is_empty() || last == Some("") || last.is_some_and(|last| text.ends_with(last))
}

#[tokio::test]
async fn text_after_each_step_of_the_table_is_the_kept_one() {
    // The steps of each case that have a text, and the texts in the order of their first steps.
    let (mut texts, mut order): (BTreeMap<String, Steps>, Vec<String>) = Default::default();
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let stack = case["object"].as_str().unwrap_or(STACK);
        let mut objects = Objects::new(stack, case["apiVersion"].as_str());
        for (number, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            objects.act(step);
            let wanted = expected(step);
            let is_wanted = |state: &(String, String)| {
                wanted.as_ref().is_none_or(|(reason, message)| *reason == state.0 && matches(message, &state.1))
            };
            let words = wanted.as_ref().map_or(("", ""), |(reason, message)| (reason, message));
            let state = Box::pin(objects.settle(words, is_wanted)).await;
            assert!(is_wanted(&state), "{name} {}: {state:?}, not {wanted:?}", number + 1);
            for command in READS {
                let text = format!("$ {command}\n{}", printed(&objects, command, stack).await);
                // A suspended Stack may be Ready.
                let explains = (words.0 == "Ready" || text.contains(words.0)) && text.contains("\nNext reconciliation: 2026-");
                assert!(command != "explain" || explains || state.0 == "Gone", "{name} {}: {text}", number + 1);
                let steps = texts.entry(text.clone()).or_default();
                if steps.is_empty() {
                    order.push(text);
                }
                match steps.last_mut().filter(|(case, _)| case == name) {
                    Some((_, numbers)) => numbers.extend([" ", &(number + 1).to_string()]),
                    None => steps.push((name.to_owned(), (number + 1).to_string())),
                }
            }
        }
    }
    let titled = |text: &String| {
        let steps: Vec<_> = texts[text].iter().map(|(case, numbers)| format!("{case} {numbers}")).collect();
        format!("==> {}\n{text}\n", steps.join(", "))
    };
    golden("table", &order.iter().map(titled).collect::<String>());
}
