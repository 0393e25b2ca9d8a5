//! Pulumi's engine events: a file with one JSON object per line, which Pulumi writes while it runs.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    mem,
    path::Path,
    rc::Rc,
};

use driftless_contract::{Drift, DriftedResource, ResourceFailure, ResourceStep};
use jiff::Timestamp;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use crate::{mask::Mask, plan::Violations};

/// A longer event is skipped: it belongs to a resource with a huge state, and only its kind would be counted.
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
    /// The stack's outputs, from the end of its last step: secrets as `[secret]`, assets without their text.
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
    /// The resource belongs to a provider; a component only groups others, and its step may have no end.
    #[serde(default)]
    custom: bool,
}

impl Step {
    fn is_custom(&self) -> bool {
        [&self.old, &self.new].into_iter().flatten().any(|state| state.custom)
    }

    /// At the end of a refresh step: whether the resource drifted. Where the program runs too, Pulumi reports every component and
    /// every provider as updated, without a refresh of any.
    fn is_drift(&self) -> bool {
        matches!(self.op.as_str(), "update" | "delete")
            && !self.logical
            && self.is_custom()
            && !self.r#type.starts_with("pulumi:providers:")
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

/// The outputs in an event of the stack's step. Outputs of other resources are not kept, because they may be large.
fn stack_outputs(line: &[u8]) -> Option<Map<String, Value>> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    match event.pointer_mut("/resOutputsEvent/metadata/new/outputs")?.take() {
        Value::Object(outputs) => Some(outputs),
        _ => None,
    }
}

impl Events {
    /// The events of an update under a plan. It previews first, and the events of the update replace those of the preview.
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
            // Matched by the resource alone, because a refresh may end with another operation than it started with.
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

    /// The failure in Pulumi's own text, with secrets masked; messages that name a resource come first. Empty if no event has
    /// one.
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

/// The operations in Pulumi's warning about them, one per line: `  * URN, interrupted while creating`.
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
mod tests {
    use std::io::Write;

    use super::*;

    fn events(lines: &[&str]) -> Events {
        let mut events = Events::default();
        for line in lines {
            events.take(line.as_bytes(), &Mask::default());
        }
        events
    }

    #[test]
    fn a_failed_update_is_counted_and_its_errors_name_the_resource_first() {
        let found = events(&[
            r#"{"sequence":0,"preludeEvent":{"config":{}}}"#,
            r#"{"sequence":1,"resourcePreEvent":{"metadata":{"op":"update"}}}"#,
            r#"{"sequence":2,"diagnosticEvent":{"message":"Registering\n","severity":"debug"}}"#,
            r#"{"sequence":3,"diagnosticEvent":{"message":"update failed\n","severity":"error"}}"#,
            r#"{"sequence":4,"diagnosticEvent":{"urn":"urn:pulumi:dev::p::t::n","message":"disk full\n","severity":"error"}}"#,
            r#"{"sequence":5,"resOpFailedEvent":{"metadata":{},"status":2,"steps":2}}"#,
            r#"{"sequence":6,"summaryEvent":{"durationSeconds":1,"resourceChanges":{"same":2},"result":"failed"}}"#,
            r#"{"sequence":7,"eventOfTomorrow":{}}"#,
            "not json",
        ]);
        assert_eq!((found.started, found.done, found.failed), (1, 1, 1));
        assert_eq!(found.changes, BTreeMap::from([("same".to_owned(), 2)]));
        assert_eq!(found.errors(), "urn:pulumi:dev::p::t::n: disk full\nupdate failed");
    }

    #[test]
    fn steps_that_change_a_resource_have_their_times() {
        let event = |kind: &str, at: i64, op: &str, urn: &str| {
            format!(r#"{{"timestamp":{at},"{kind}":{{"metadata":{{"op":"{op}","urn":"urn:{urn}","new":{{"custom":true}}}}}}}}"#)
        };
        let lines = [
            event("resourcePreEvent", 10, "create", "slow"),
            event("resourcePreEvent", 10, "same", "same"),
            event("resOutputsEvent", 11, "same", "same"),
            event("resourcePreEvent", 11, "update", "refused"),
            event("resOpFailedEvent", 13, "update", "refused"),
            event("resOutputsEvent", 70, "create", "slow"),
            event("resourcePreEvent", 70, "delete", "in-progress"),
        ];
        let found = events(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let step = |operation: &str, urn: &str, start, seconds, failed| ResourceStep {
            urn: format!("urn:{urn}"),
            operation: operation.into(),
            started_at: Timestamp::from_second(start).unwrap(),
            seconds,
            failed,
        };
        let expected = [step("create", "slow", 10, 60, false), step("update", "refused", 11, 2, true)];
        assert_eq!(ResourceStep::longest(found.steps), expected);
        let many = (0..60).map(|n| step("create", &n.to_string(), n, u64::try_from(n).unwrap(), n == 0)).collect();
        let kept = ResourceStep::longest(many);
        assert_eq!((kept.len(), &*kept[0].urn, &*kept[1].urn), (ResourceStep::MAX, "urn:0", "urn:11"));
    }

    #[test]
    fn the_resources_that_changed_are_named() {
        let same = r#"{"resOutputsEvent":{"metadata":{"op":"same","urn":"urn:a"}}}"#;
        let update = r#"{"resOutputsEvent":{"metadata":{"op":"update","urn":"urn:b","new":{"outputs":{}}}}}"#;
        let found = events(&[same, update]);
        assert_eq!((found.done, &*found.changed), (2, &["update urn:b".to_owned()][..]));
        assert_eq!(events(&[update; 200]).changed.len(), MAX_CHANGED);
    }

    #[test]
    fn outputs_are_those_of_the_last_step_of_the_stack() {
        let end = |kind: &str, new: &str| format!(r#"{{"resOutputsEvent":{{"metadata":{{"type":"{kind}","new":{new}}}}}}}"#);
        let first = end(STACK, r#"{"outputs":{}}"#);
        let last = end(STACK, r#"{"outputs":{"url":"https://a","n":1}}"#);
        let other = end("world:index:Object", r#"{"outputs":{"content":"b"}}"#);
        assert_eq!(events(&[&other]).outputs, None);
        let outputs = events(&[&first, &last, &other]).outputs.unwrap();
        assert_eq!(Value::from(outputs), serde_json::json!({ "url": "https://a", "n": 1 }));
        assert_eq!(events(&[&last, &end(STACK, "null")]).outputs, None);
    }

    /// The end of a refresh step as Pulumi 3.259.0 writes it, and the rest of its metadata.
    fn refreshed(op: &str, kind: &str, name: &str, rest: &str) -> String {
        let urn = format!("urn:pulumi:dev::p::{kind}::{name}");
        let custom = if kind == STACK { "" } else { r#""custom":true,"# };
        let state = format!(r#"{{"type":"{kind}","urn":"{urn}",{custom}"id":"i","inputs":{{"content":"v"}},"outputs":{{}}}}"#);
        let new = if op == "delete" { "null" } else { &state };
        let metadata = format!(r#""op":"{op}","urn":"{urn}","type":"{kind}","old":{state},"new":{new},{rest},"provider":"""#);
        format!(r#"{{"sequence":9,"timestamp":1,"resOutputsEvent":{{"metadata":{{{metadata}}},"planning":true}}}}"#)
    }

    fn counted(changes: &str) -> String {
        format!(r#"{{"summaryEvent":{{"resourceChanges":{{{changes}}},"PolicyPacks":{{}},"isPreview":true}}}}"#)
    }

    /// The drift in these lines: the count, and each resource as `update NAME PATHS`.
    fn drift(lines: &[String]) -> (u32, Vec<String>) {
        let Drift { count, resources } = events(&lines.iter().map(String::as_str).collect::<Vec<_>>()).drift();
        let named = resources.into_iter().map(|DriftedResource { urn, change, properties }| {
            format!("{change} {} {}", urn.rsplit("::").next().unwrap_or_default(), properties.join(" "))
        });
        (count, named.collect())
    }

    const OBJECT: &str = "world:index:Object";
    const NO_DIFF: &str = r#""detailedDiff":null"#;
    const CONTENT: &str = r#""diffs":["content"],"detailedDiff":{"content":{"diffKind":"update","inputDiff":false}}"#;

    #[test]
    fn refresh_names_changed_and_deleted_resources() {
        let nested = r#""diffs":["tags","items"],"detailedDiff":{"tags[\"a.b/c\"]":{"diffKind":"update","inputDiff":false},"items[2]":{"diffKind":"add","inputDiff":false},"items[0].n":{"diffKind":"update","inputDiff":false},"tags[\"new\nline\"]":{"diffKind":"add","inputDiff":false}}"#;
        let lines = [
            refreshed("same", STACK, "p-dev", NO_DIFF),
            refreshed("same", "pulumi:providers:world", "default", NO_DIFF),
            refreshed("update", OBJECT, "changed", CONTENT),
            refreshed("same", OBJECT, "same", r#""detailedDiff":{}"#),
            refreshed("delete", OBJECT, "gone", NO_DIFF),
            refreshed("update", OBJECT, "nested", nested),
            refreshed("update", OBJECT, "plain", r#""detailedDiff":{}"#),
            refreshed("update", OBJECT, "older", r#""diffs":["b","a"],"detailedDiff":null"#),
            counted(r#""delete":1,"same":3,"update":4"#),
        ];
        let named = [
            "update changed content",
            "delete gone ",
            r#"update nested items[0].n items[2] tags["a.b/c"] tags["new line"]"#,
            "update older a b",
            "update plain ",
        ];
        assert_eq!(drift(&lines), (5, named.map(str::to_owned).to_vec()));
        assert_eq!(drift(&lines[..2]), (0, vec![]));
        assert_eq!(drift(&lines[8..]), (5, vec![]), "counted, and too long to be looked at");
    }

    #[test]
    fn drift_check_ignores_resources_without_a_provider() {
        let logical = r#""detailedDiff":null,"logical":true"#;
        let lines = [
            refreshed("update", STACK, "p-dev", NO_DIFF),
            refreshed("same", STACK, "p-dev", logical),
            refreshed("update", "pulumi:providers:world", "default", NO_DIFF),
            refreshed("update", OBJECT, "changed", CONTENT),
            refreshed("same", OBJECT, "added", logical),
            refreshed("update", OBJECT, "logical", logical),
            counted(r#""same":4,"update":1"#),
        ];
        assert_eq!(drift(&lines), (1, vec!["update changed content".to_owned()]));
    }

    #[test]
    fn drift_is_masked_and_the_first_resources_are_named_by_urn() {
        let mask = Mask::default();
        mask.add_text("canary");
        let mut found = Events::default();
        for i in (0..200).rev() {
            let diff = CONTENT.replace("content", "tags.canary");
            found.take(refreshed("update", OBJECT, &format!("canary-{i:03}"), &diff).as_bytes(), &mask);
        }
        let Drift { count, resources } = found.drift();
        assert_eq!((count, resources.len()), (200, Drift::MAX_RESOURCES));
        assert!(resources[99].urn.ends_with("::[secret]-099") && resources[99].properties == ["tags.[secret]"]);
    }

    #[test]
    fn the_current_step_is_the_last_that_a_provider_has_not_ended() {
        let event = |kind: &str, op: &str, urn: &str, state: &str| {
            format!(r#"{{"{kind}":{{"metadata":{{"op":"{op}","urn":"{urn}","old":null,{state}}}}}}}"#)
        };
        let custom = r#""new":{"type":"t","custom":true}"#;
        let component = r#""new":{"type":"t"}"#;
        let begins = |op, urn| event("resourcePreEvent", op, urn, custom);
        let current = |lines: &[String]| events(&lines.iter().map(String::as_str).collect::<Vec<_>>()).current();
        let mut lines = vec![
            begins("create", "urn:a"),
            begins("refresh", "urn:b"),
            event("resourcePreEvent", "create", "urn:group", component),
            begins("same", "urn:c"),
            event("resourcePreEvent", "delete", "urn:d", r#""new":null,"old":{"custom":true}"#).replacen(r#""old":null,"#, "", 1),
        ];
        assert_eq!(current(&lines).as_deref(), Some("delete urn:d"));
        lines.push(event("resOpFailedEvent", "delete", "urn:d", custom));
        assert_eq!(current(&lines).as_deref(), Some("refresh urn:b"));
        lines.push(event("resOutputsEvent", "update", "urn:b", custom));
        assert_eq!(current(&lines).as_deref(), Some("create urn:a"));
        lines.push(event("resOutputsEvent", "create", "urn:a", custom));
        assert_eq!(current(&lines), None);
    }

    #[test]
    fn failures_are_named_by_resource_masked_and_bounded() {
        let error = |urn: &str, message: &str| {
            format!(r#"{{"diagnosticEvent":{{"urn":"{urn}","message":"{message}\n","severity":"error"}}}}"#)
        };
        let mut lines = vec![
            error("urn:canary", "canary refused"),
            error("urn:canary", "1 error occurred"),
            error("", "update failed"),
            r#"{"diagnosticEvent":{"urn":"urn:w","message":"careful","severity":"warning"}}"#.into(),
        ];
        lines.extend((0..20).map(|i| error(&format!("urn:{i}"), &"é".repeat(1000))));
        let mask = Mask::default();
        mask.add_text("canary");
        let mut found = Events::default();
        for line in &lines {
            found.take(line.as_bytes(), &mask);
        }
        assert_eq!(found.failures.len(), MAX_FAILURES);
        assert_eq!(found.failures[0], ResourceFailure { urn: "urn:[secret]".into(), message: "[secret] refused".into() });
        assert!(found.failures[1].urn == "urn:0" && found.failures[1].message.ends_with('…'));
        assert!(found.failures.iter().all(|failure| failure.message.len() <= MAX_FAILURE_BYTES));
    }

    #[test]
    fn pending_operations_are_read_from_the_warning() {
        let found = events(&[
            r#"{"diagnosticEvent":{"message":"Attempting to deploy or update resources with 2 pending operations from previous deployment.\n  * urn:pulumi:dev::p::t::b, interrupted while creating\n  * urn:pulumi:dev::p::t::c, d, interrupted while deleting\nThese resources are in an unknown state because …","severity":"warning"}}"#,
            r#"{"diagnosticEvent":{"message":"* urn:x, interrupted while thinking","severity":"warning"}}"#,
        ]);
        assert_eq!(found.pending, ["creating urn:pulumi:dev::p::t::b", "deleting urn:pulumi:dev::p::t::c, d"]);
        assert_eq!(found.errors(), "");
        assert_eq!(
            events(&[r#"{"diagnosticEvent":{"message":"* urn:x, interrupted while a","severity":"warning"}}"#]).pending,
            [""; 0]
        );
    }

    #[test]
    fn pending_operations_are_read_from_the_state() {
        let read = |state: &str| pending_in_state(state.as_bytes()).unwrap();
        let operation = r#"{"resource":{"urn":"urn:b","custom":true,"inputs":{}},"type":"creating"}"#;
        let state =
            format!(r#"{{"version":3,"deployment":{{"resources":[],"pending_operations":[{operation}],"metadata":{{}}}}}}"#);
        assert_eq!(read(&state), ["creating urn:b"]);
        assert_eq!(read(r#"{"version":3,"deployment":{"manifest":{}}}"#), [""; 0]);
        assert!(pending_in_state(b"{").is_err());
    }

    #[test]
    fn output_of_the_program_is_the_error_if_the_engine_has_none() {
        let complaint = r#"{"diagnosticEvent":{"message":"Error: \"nope\" not found\n\n","severity":"info#err"}}"#;
        let place = r#"{"diagnosticEvent":{"message":"  on Pulumi.yaml line 4:\n\n","severity":"info#err"}}"#;
        let error = r#"{"diagnosticEvent":{"urn":"urn:a","message":"refused","severity":"error"}}"#;
        assert_eq!(events(&[complaint, place]).errors(), "Error: \"nope\" not found\n  on Pulumi.yaml line 4:");
        assert_eq!(events(&[complaint, error]).errors(), "urn:a: refused");
    }

    #[test]
    fn the_errors_of_a_thousand_resources_are_cut() {
        let lines: Vec<String> = (0..1000)
            .map(|i| format!(r#"{{"diagnosticEvent":{{"urn":"urn:{i}","message":"{}","severity":"error"}}}}"#, "é".repeat(100)))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let errors = events(&lines).errors();
        assert!(errors.len() <= MAX_MESSAGE_BYTES && errors.ends_with('…'), "{}", errors.len());
    }

    #[test]
    fn a_line_that_is_written_in_pieces_is_read_when_it_is_whole() {
        let path = std::env::temp_dir().join(format!("driftless-events-{}", std::process::id()));
        let mut events = Events::default();
        events.read(&path, &Mask::default()).unwrap();
        let mut file = File::create(&path).unwrap();
        for (piece, started) in [(r#"{"resourcePre"#, 0), ("Event\":{}}\n{\"resour", 1), ("cePreEvent\":{}}\n", 2)] {
            file.write_all(piece.as_bytes()).unwrap();
            events.read(&path, &Mask::default()).unwrap();
            assert_eq!(events.started, started);
        }
        std::fs::remove_file(path).unwrap();
    }
}
