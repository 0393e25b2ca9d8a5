//! `tree`: a Stack with its source, the revisions and trees of its Updates, their tasks and what
//! these changed, and the readers of its outputs.

use std::slice;

use driftless_api::{Stack, StackOutputs, Update, UpdateStep};
use driftless_core::{SourceState, Stack as CoreStack};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    render::{Style, Tone, age, clean, short, span, time},
    view::{self, Phase},
};

/// A line of the tree, with the lines below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The object.
    pub object: String,
    /// What there is to say about it.
    pub detail: String,
    /// What follows from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
    #[serde(skip)]
    tone: Tone,
}

impl Node {
    fn new(object: impl Into<String>, tone: Tone, detail: impl Into<String>) -> Self {
        Self { object: object.into(), detail: detail.into(), children: Vec::new(), tone }
    }
}

/// What a source offers, and since when, if the object of the source has that time.
pub type Offer = (SourceState, Option<Timestamp>);

/// The tree of a Stack. `offer` is `None` where the Stack names no object as its source, or the
/// user may not read it. `others` are the Stacks of its namespace that may read its outputs.
#[must_use]
pub fn of(stack: &Stack, offer: Option<&Offer>, updates: &[Update], others: &[Stack], now: Timestamp) -> Node {
    let core = CoreStack::from(stack);
    let (tone, state, message) = view::state(&core);
    let detail = if message.is_empty() { state } else { format!("{state}: {message}") };
    let mut root = Node::new(format!("Stack {}/{}", core.namespace, core.name), tone, detail);
    root.children.extend(core.spec.sources.iter().map(|reference| {
        let (_, kind, name) = reference.object();
        let object = match reference {
            driftless_core::SourceRef::Git(git) => format!("git {}", git.repo),
            _ => format!("{kind} {name}"),
        };
        let (tone, detail) = match offer.map(|(state, _)| state) {
            Some(SourceState::Artifact { revision, .. }) => {
                let since = offer.and_then(|(_, since)| *since).map(|at| format!(" since {}", time(at))).unwrap_or_default();
                (Tone::Plain, format!("offers {}{since}", short(revision.as_str())))
            }
            Some(SourceState::NotFound) => (Tone::Bad, "not found".into()),
            Some(SourceState::NoArtifact { why }) if why.is_empty() => (Tone::Bad, "has no artifact".into()),
            Some(SourceState::NoArtifact { why }) => (Tone::Bad, format!("has no artifact: {why}")),
            Some(SourceState::Unfit { why }) => (Tone::Bad, why.clone()),
            Some(SourceState::Unknown { subject }) => (Tone::Busy, format!("{subject} is not fetched yet")),
            None => (Tone::Faint, "its state is unknown here".into()),
        };
        let mut node = Node::new(object, tone, detail);
        node.children = revisions(&core, updates, now);
        node
    }));
    if root.children.is_empty() {
        root.children = revisions(&core, updates, now);
    }
    root.children.extend(stack.outputs().iter().map(|object| outputs(object, others)));
    root
}

/// An object that receives outputs, and the Stacks that read it.
fn outputs(object: &StackOutputs, others: &[Stack]) -> Node {
    let readers = others.iter().filter(|other| other.reads(slice::from_ref(object))).map(|reader| {
        let (tone, state, _) = view::state(&CoreStack::from(reader));
        Node::new(format!("Stack {}", reader.name_any()), tone, format!("reads it, {state}"))
    });
    let mut node = Node::new(format!("{:?} {}", object.kind, object.name), Tone::Plain, "");
    node.children = readers.collect();
    node.detail = if node.children.is_empty() { "receives outputs; no Stack reads it" } else { "receives outputs" }.into();
    node
}

/// The node of an object, which is appended if it is not there.
fn place(nodes: &mut Vec<Node>, object: String, detail: impl Into<String>) -> &mut Node {
    let index = nodes.iter().position(|node| node.object == object).unwrap_or_else(|| {
        nodes.push(Node::new(object, Tone::Plain, detail));
        nodes.len() - 1
    });
    &mut nodes[index]
}

/// The revisions that Updates run, the newest first, each with its trees and their Updates.
fn revisions(stack: &CoreStack, updates: &[Update], now: Timestamp) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for update in updates {
        let object = match view::revision(update) {
            Some(revision) => format!("revision {}", short(revision)),
            None => "the revision of the last run".to_owned(),
        };
        let requested = view::created(update).map(|at| format!("last requested {}", time(at))).unwrap_or_default();
        let mut above = place(&mut nodes, object, requested);
        let tree = update.spec.driftless.as_ref().and_then(|ours| ours.tree.as_ref()?.digest.as_deref());
        if let Some(digest) = tree {
            above = place(&mut above.children, format!("tree {}", short(digest)), "");
        }
        above.children.push(self::update(stack, update, now));
    }
    nodes
}

fn update(stack: &CoreStack, update: &Update, now: Timestamp) -> Node {
    let name = update.name_any();
    let is_current = stack.status.current_update.as_ref().is_some_and(|current| current.name == name);
    let operation = view::operation(update);
    let (started, ended) = view::times(update);
    let ours = view::ours(update);
    let since = |at: Option<Timestamp>| at.map_or_else(|| "?".into(), |at| age(at, now));
    let took = ours.duration.clone().or_else(|| Some(span(ended?.duration_since(started?)))).unwrap_or_else(|| "0s".into());
    let summary = ours.summary.clone().map(|summary| format!(", {summary}")).unwrap_or_default();
    let (tone, outcome) = match view::phase(update) {
        Phase::Waiting(reason, _) if reason.is_empty() => (Tone::Busy, "starts soon".to_owned()),
        Phase::Waiting(reason, message) => (Tone::Busy, format!("waits: {reason}: {message}")),
        Phase::Running => (Tone::Busy, format!("runs since {}{summary}", since(started))),
        Phase::Succeeded => (Tone::Good, format!("succeeded in {took}, {} ago{summary}", since(ended))),
        Phase::Failed(reason) => (Tone::Bad, format!("failed ({reason}) after {took}, {} ago{summary}", since(ended))),
    };
    let current = if is_current { ", current" } else { "" };
    let mut node = Node::new(format!("Update {name}"), tone, format!("{operation}{current}, {outcome}"));
    if let Some(task) = &ours.task {
        let id = task.rsplit('/').next().unwrap_or(task);
        let started = started.map(|at| format!("started {}", time(at))).unwrap_or_default();
        let ended = ended.map(|at| format!(", ended {}", time(at))).unwrap_or_default();
        let mut task = Node::new(format!("task {id}"), Tone::Plain, format!("{started}{ended}"));
        task.children = ours.steps.iter().map(step).collect();
        node.children.push(task);
    }
    node
}

/// A step of a run that changed a resource, or tried to.
fn step(step: &UpdateStep) -> Node {
    let UpdateStep { urn, operation, duration, failed, .. } = step;
    let (tone, ended) = if *failed { (Tone::Bad, "failed after") } else { (Tone::Plain, "took") };
    Node::new(format!("resource {urn}"), tone, format!("{operation} {ended} {duration}"))
}

/// The tree as text.
#[must_use]
pub fn render(root: &Node, style: Style) -> String {
    let mut text = line(root, style);
    branches(root, "", style, &mut text);
    text
}

fn branches(node: &Node, indent: &str, style: Style, text: &mut String) {
    let last = node.children.len().saturating_sub(1);
    for (index, child) in node.children.iter().enumerate() {
        let (branch, below) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        *text += indent;
        *text += branch;
        *text += &line(child, style);
        branches(child, &format!("{indent}{below}"), style, text);
    }
}

fn line(node: &Node, style: Style) -> String {
    let detail = if node.detail.is_empty() { String::new() } else { format!("  {}", style.paint(node.tone, &node.detail)) };
    format!("{}{detail}\n", clean(&node.object))
}
