//! Pulumi's engine events: a file with one JSON object per line, which Pulumi writes while it runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader},
    mem,
    path::Path,
    rc::Rc,
};

use driftless_contract::{ChangeKind, Drift, DriftedResource, PlannedChanges, PreviewedChange, ResourceFailure, ResourceStep};
use jiff::Timestamp;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use crate::{mask::Mask, plan::Violations};

/// A longer event is skipped: it belongs to a resource with a huge state, and only its kind would
/// be counted.
const MAX_LINE_BYTES: usize = 8 << 20;

/// The maximum length of Pulumi's error messages that is kept, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// The type of the resource whose outputs are the stack's.
const STACK: &str = "pulumi:pulumi:Stack";

/// The maximum number of changed resources that are named.
const MAX_CHANGED: usize = 100;

/// The maximum number of failed resources, and the maximum length of the message of each, in bytes.
const MAX_FAILURES: usize = 10;
const MAX_FAILURE_BYTES: usize = 500;

/// The facts from the events so far.
#[derive(Default)]
pub struct Events {
    /// Events of any kind, as signs of life. Each event of the engine has a cause.
    pub seen: u64,
    /// Resource steps that started.
    pub started: u32,
    /// Resource steps that ended, including the failed ones.
    pub done: u32,
    /// Resource steps that failed.
    pub failed: u32,
    /// Resources that failed, each with the start of its provider's message; the first ten.
    pub failures: Vec<ResourceFailure>,
    /// Resource changes by operation, after the end of the operation.
    pub changes: BTreeMap<String, u64>,
    /// The pending operations of an interrupted run; Pulumi reports them if it does not refresh.
    pub pending: Vec<String>,
    /// Resources that changed, or would, as `update URN`; the first 100.
    pub changed: Vec<String>,
    /// The first resources that a preview would change, in order.
    pub would_change: BTreeSet<PreviewedChange>,
    /// The stack's outputs, from the end of its last step: secrets as `[secret]`, assets without
    /// their text.
    pub outputs: Option<Map<String, Value>>,
    /// For a refresh: the resources that drifted, and the first of them by URN.
    drifted: u32,
    drift: BTreeMap<String, DriftedResource>,
    /// Ended steps that changed something outside, or tried to.
    pub steps: Vec<ResourceStep>,
    /// Such steps in progress, in order, each with the second of its start.
    running: Vec<(Step, i64)>,
    /// A step has started that changes something outside.
    pub(crate) acted: bool,
    /// The mandatory policies that resources violate, as `policy "a" of pack "b": URN`; the first
    /// ten.
    pub(crate) violated: Vec<String>,
    /// The same for advisory policies.
    pub(crate) advice: Vec<String>,
    /// Both with the messages of the policies, for the log.
    pub(crate) told: Vec<String>,
    /// See [`Events::under`].
    violations: Option<Rc<Violations>>,
    errors: Vec<String>,
    /// The program's standard error: the only message if its language host has none of its own.
    complaints: Vec<String>,
    reader: Option<BufReader<File>>,
    line: Vec<u8>,
}

#[derive(Deserialize)]
struct Event {
    /// In seconds since the epoch.
    #[serde(default)]
    timestamp: i64,
    #[serde(rename = "preludeEvent")]
    prelude: Option<IgnoredAny>,
    #[serde(rename = "resourcePreEvent")]
    started: Option<OfStep>,
    #[serde(rename = "resOutputsEvent")]
    done: Option<OfStep>,
    #[serde(rename = "resOpFailedEvent")]
    failed: Option<OfStep>,
    #[serde(rename = "diagnosticEvent")]
    diagnostic: Option<Diagnostic>,
    #[serde(rename = "summaryEvent")]
    summary: Option<Summary>,
    #[serde(rename = "policyEvent")]
    policy: Option<Violation>,
}

/// A violation of a policy. Its message may contain values.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Violation {
    message: String,
    #[serde(default)]
    resource_urn: String,
    policy_name: String,
    policy_pack_name: String,
    enforcement_level: String,
}

#[derive(Deserialize)]
struct OfStep {
    #[serde(default)]
    metadata: Step,
    /// The step belongs to a preview.
    #[serde(default)]
    planning: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Step {
    op: String,
    urn: String,
    r#type: String,
    old: Option<State>,
    new: Option<State>,
    /// By path; absent if the provider reports none.
    detailed_diff: Option<Map<String, Value>>,
    /// Top-level properties: all that a provider without paths reports.
    diffs: Option<Vec<String>>,
    /// The step comes from the program, not from a refresh.
    logical: bool,
}

#[derive(Deserialize)]
struct State {
    /// The resource belongs to a provider; a component only groups others, and its step may have no
    /// end.
    #[serde(default)]
    custom: bool,
}

impl Step {
    fn is_custom(&self) -> bool {
        [&self.old, &self.new].into_iter().flatten().any(|state| state.custom)
    }

    /// At the end of a refresh step: whether the resource drifted. Where the program runs too,
    /// Pulumi reports every component and every provider as updated, without a refresh of any.
    fn is_drift(&self) -> bool {
        matches!(self.op.as_str(), "update" | "delete")
            && !self.logical
            && self.is_custom()
            && !self.r#type.starts_with("pulumi:providers:")
    }

    /// The change that this step of a preview would make. A step of a refresh is none, as in
    /// Pulumi's summary.
    fn would(&self) -> Option<ChangeKind> {
        ChangeKind::of_step(&self.op).filter(|_| self.logical && self.r#type != STACK)
    }

    /// The drift of the resource, with secrets masked.
    fn drift(&self, mask: &Mask) -> DriftedResource {
        let paths: Vec<&String> = self.detailed_diff.iter().flatten().map(|(path, _)| path).collect();
        let mut properties = if paths.is_empty() { self.diffs.iter().flatten().collect() } else { paths };
        properties.sort_unstable();
        properties.truncate(Drift::MAX_PROPERTIES);
        DriftedResource {
            urn: mask.apply(&self.urn),
            change: self.op.clone(),
            properties: properties.into_iter().map(|path| mask.apply(path)).collect(),
        }
    }

    /// `update URN`
    fn name(&self) -> String {
        format!("{} {}", self.op, self.urn)
    }
}

#[derive(Deserialize)]
struct Diagnostic {
    #[serde(default)]
    urn: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    severity: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    #[serde(default)]
    resource_changes: BTreeMap<String, u64>,
}

/// The outputs in an event of the stack's step. Outputs of other resources are not kept, because
/// they may be large.
fn stack_outputs(line: &[u8]) -> Option<Map<String, Value>> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    match event.pointer_mut("/resOutputsEvent/metadata/new/outputs")?.take() {
        Value::Object(outputs) => Some(outputs),
        _ => None,
    }
}

impl Events {
    /// The events of an update under a plan. It previews first, and the events of the update
    /// replace those of the preview.
    pub(crate) fn under(violations: Option<Rc<Violations>>) -> Self {
        Self { violations, ..Self::default() }
    }

    /// Reads what was appended to the file since the last call. A missing file counts as empty.
    pub(crate) fn read(&mut self, path: &Path, mask: &Mask) -> io::Result<()> {
        if self.reader.is_none() {
            match File::open(path) {
                Ok(file) => self.reader = Some(BufReader::new(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while let Some(reader) = &mut self.reader {
            let piece = reader.fill_buf()?;
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(piece.len(), |end| end + 1);
            if self.line.len() <= MAX_LINE_BYTES {
                self.line.extend_from_slice(&piece[..used]);
            }
            reader.consume(used);
            if end.is_some() {
                let line = mem::take(&mut self.line);
                self.take(&line, mask);
            }
        }
        Ok(())
    }

    /// Reads one line. An unknown event is skipped, because new versions of Pulumi add kinds.
    pub fn take(&mut self, line: &[u8], mask: &Mask) {
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return };
        if event.prelude.is_some() && self.violations.is_some() {
            let (seen, reader, violations) = (self.seen, self.reader.take(), self.violations.take());
            *self = Self { seen, violations, reader, ..Self::default() };
        }
        self.seen += 1;
        self.acted |= event.started.as_ref().is_some_and(|step| !step.planning && step.metadata.op != "same");
        self.started += u32::from(event.started.is_some());
        self.done += u32::from(event.done.is_some() || event.failed.is_some());
        self.failed += u32::from(event.failed.is_some());
        let started = event.started.map(|of| of.metadata).filter(|step| step.op != "same" && step.is_custom());
        self.running.extend(started.map(|step| (step, event.timestamp)));
        for (OfStep { metadata: ended, planning }, failed) in
            event.done.iter().zip([false]).chain(event.failed.iter().zip([true]))
        {
            // Matched by the resource alone, because a refresh may end with another operation than
            // it started with.
            if let Some(at) = self.running.iter().rposition(|(step, _)| step.urn == ended.urn) {
                let (step, started) = self.running.remove(at);
                if *planning {
                    continue;
                }
                self.steps.push(ResourceStep {
                    urn: mask.apply(&step.urn),
                    operation: step.op,
                    started_at: Timestamp::from_second(started).unwrap_or_default(),
                    seconds: u64::try_from(event.timestamp.saturating_sub(started)).unwrap_or_default(),
                    failed,
                });
            }
        }
        if self.steps.len() > 2 * ResourceStep::MAX {
            self.steps = ResourceStep::longest(mem::take(&mut self.steps));
        }
        if let Some(OfStep { metadata: step, .. }) = &event.done
            && step.is_drift()
        {
            self.drifted += 1;
            self.drift.insert(step.urn.clone(), step.drift(mask));
            if self.drift.len() > Drift::MAX_RESOURCES {
                self.drift.pop_last();
            }
        }
        if let Some(OfStep { metadata: step, planning: true }) = &event.done
            && let Some(kind) = step.would()
        {
            self.would_change.insert(PreviewedChange { kind, urn: mask.apply(&step.urn) });
            if self.would_change.len() > PreviewedChange::MAX {
                self.would_change.pop_last();
            }
        }
        if event.done.as_ref().is_some_and(|OfStep { metadata: step, .. }| step.r#type == STACK) {
            self.outputs = stack_outputs(line);
        }
        if let Some(OfStep { metadata: step, .. }) = event.done
            && step.op != "same"
            && self.changed.len() < MAX_CHANGED
        {
            self.changed.push(step.name());
        }
        if let Some(summary) = event.summary {
            self.changes = summary.resource_changes;
        }
        if let Some(violation) = event.policy {
            self.take_violation(violation, mask);
        }
        let Some(Diagnostic { urn, message, severity }) = event.diagnostic else { return };
        if severity == "warning" && self.pending.is_empty() {
            self.pending = pending(&message).map(|operation| mask.apply(&operation)).collect();
        }
        let kept = match severity.as_str() {
            "error" => &mut self.errors,
            "info#err" => &mut self.complaints,
            _ => return,
        };
        let message = match &self.violations {
            Some(violations) => violations.without_values(&message, &urn),
            None => message,
        };
        let (urn, message) = (mask.apply(&urn), mask.apply(message.trim_end()));
        if severity == "error"
            && !urn.is_empty()
            && self.failures.len() < MAX_FAILURES
            && !self.failures.iter().any(|failure| failure.urn == urn)
        {
            self.failures.push(ResourceFailure { urn: urn.clone(), message: cut(&message, MAX_FAILURE_BYTES) });
        }
        let words = if urn.is_empty() { message.clone() } else { format!("{urn}: {message}") };
        let bytes: usize = kept.iter().map(String::len).sum();
        if !message.is_empty() && bytes < MAX_MESSAGE_BYTES && !kept.contains(&words) {
            kept.push(words);
        }
    }

    fn take_violation(&mut self, violation: Violation, mask: &Mask) {
        let Violation { message, resource_urn, policy_name, policy_pack_name, enforcement_level: level } = violation;
        let (kept, most) = match level.as_str() {
            "mandatory" => (&mut self.violated, MAX_FAILURES),
            _ => (&mut self.advice, PlannedChanges::MAX_ADVICE),
        };
        let text = mask.apply(&format!("policy {policy_name:?} of pack {policy_pack_name:?}: {resource_urn}"));
        let text = cut(&text, MAX_FAILURE_BYTES);
        if kept.len() < most && !kept.contains(&text) {
            let message = cut(&mask.apply(message.trim_end()), MAX_FAILURE_BYTES);
            self.told.push(format!("{level} {text}: {message}"));
            kept.push(text);
        }
    }

    /// The result of a refresh. Every drifted resource is counted, even if it is not named.
    #[must_use]
    pub fn drift(&self) -> Drift {
        let counted: u64 = ["update", "delete"].iter().filter_map(|change| self.changes.get(*change)).sum();
        let count = self.drifted.max(u32::try_from(counted).unwrap_or(u32::MAX));
        Drift { count, resources: self.drift.values().cloned().collect() }.bounded()
    }

    /// The last started step that has not ended.
    #[must_use]
    pub fn current(&self) -> Option<String> {
        self.running.last().map(|(step, _)| step.name())
    }

    /// The failure in Pulumi's own text, with secrets masked; messages that name a resource come
    /// first. Empty if no event has one.
    #[must_use]
    pub fn errors(&self) -> String {
        if self.errors.is_empty() {
            return cut(&self.complaints.join("\n"), MAX_MESSAGE_BYTES);
        }
        let (of_resources, others): (Vec<&String>, Vec<&String>) =
            self.errors.iter().partition(|error| error.starts_with("urn:"));
        let all: Vec<&str> = of_resources.into_iter().chain(others).map(String::as_str).collect();
        cut(&all.join("\n"), MAX_MESSAGE_BYTES)
    }
}

/// The operations in Pulumi's warning about them, one per line: `  * URN, interrupted while
/// creating`.
fn pending(warning: &str) -> impl Iterator<Item = String> {
    let lines = if warning.contains(" pending operations from previous deployment") { warning } else { "" }.lines();
    lines.filter_map(|line| line.trim_start().strip_prefix("* ")?.rsplit_once(", interrupted while ")).map(pending_operation)
}

/// The operations in an exported state.
pub(crate) fn pending_in_state(state: &[u8]) -> serde_json::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct State {
        deployment: Deployment,
    }
    #[derive(Deserialize)]
    struct Deployment {
        #[serde(default)]
        pending_operations: Vec<Pending>,
    }
    #[derive(Deserialize)]
    struct Pending {
        resource: Resource,
        #[serde(rename = "type")]
        operation: String,
    }
    #[derive(Deserialize)]
    struct Resource {
        urn: String,
    }
    let State { deployment } = serde_json::from_slice(state)?;
    let name = |Pending { resource, operation }: &Pending| pending_operation((&resource.urn, operation));
    Ok(deployment.pending_operations.iter().map(name).collect())
}

/// A pending operation as text: `creating URN`.
fn pending_operation((urn, operation): (&str, &str)) -> String {
    format!("{operation} {urn}")
}

/// The text, or its first `limit` bytes with a mark that it was cut.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit { text.to_owned() } else { format!("{}…", &text[..text.floor_char_boundary(limit - 3)]) }
}

#[cfg(test)]
mod tests;
