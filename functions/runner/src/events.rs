//! pulumi's engine events: one JSON object per line of a file that pulumi writes while it runs.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use serde::{Deserialize, de::IgnoredAny};

use crate::mask::Mask;

/// An event that is longer is not looked at: it is a resource with a huge state, and only its kind would be counted.
const MAX_LINE_BYTES: usize = 8 << 20;

/// As much of pulumi's error messages as is kept, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// As many changed resources are named.
const MAX_CHANGED: usize = 100;

/// What the events have told so far.
#[derive(Default)]
pub(crate) struct Events {
    /// Resource steps begun.
    pub started: u32,
    /// Resource steps ended.
    pub done: u32,
    /// Resource changes by operation, once the operation is over.
    pub changes: BTreeMap<String, u64>,
    /// What an interrupted run had begun and whose end is not known; pulumi tells where it does not refresh.
    pub pending: Vec<String>,
    /// Resources that changed, or would, as `update URN`; the first 100.
    pub changed: Vec<String>,
    errors: Vec<String>,
    /// What the program wrote to its standard error: the only words there are where its language host has none of its own.
    complaints: Vec<String>,
    reader: Option<BufReader<File>>,
    line: Vec<u8>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "resourcePreEvent")]
    started: Option<IgnoredAny>,
    #[serde(rename = "resOutputsEvent")]
    done: Option<Done>,
    #[serde(rename = "resOpFailedEvent")]
    failed: Option<IgnoredAny>,
    #[serde(rename = "diagnosticEvent")]
    diagnostic: Option<Diagnostic>,
    #[serde(rename = "summaryEvent")]
    summary: Option<Summary>,
}

#[derive(Deserialize)]
struct Done {
    #[serde(default)]
    metadata: Step,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Step {
    op: String,
    urn: String,
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

impl Events {
    /// Takes in what was added to the file since the last time. A file that is not there yet has nothing.
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
                let line = std::mem::take(&mut self.line);
                self.take(&line, mask);
            }
        }
        Ok(())
    }

    /// One line. What is no event that we know is passed over: new kinds come with new versions of pulumi.
    fn take(&mut self, line: &[u8], mask: &Mask) {
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return };
        self.started += u32::from(event.started.is_some());
        self.done += u32::from(event.done.is_some() || event.failed.is_some());
        if let Some(Done { metadata: Step { op, urn } }) = event.done
            && op != "same"
            && self.changed.len() < MAX_CHANGED
        {
            self.changed.push(format!("{op} {urn}"));
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
        let message = message.trim_end();
        let words = mask.apply(&if urn.is_empty() { message.to_owned() } else { format!("{urn}: {message}") });
        let bytes: usize = kept.iter().map(String::len).sum();
        if !message.is_empty() && bytes < MAX_MESSAGE_BYTES && !kept.contains(&words) {
            kept.push(words);
        }
    }

    /// What went wrong, in pulumi's words with secrets masked; what names a resource comes first. Empty if no event tells.
    pub(crate) fn errors(&self) -> String {
        if self.errors.is_empty() {
            return cut(&self.complaints.join("\n"), MAX_MESSAGE_BYTES);
        }
        let (of_resources, others): (Vec<&String>, Vec<&String>) =
            self.errors.iter().partition(|error| error.starts_with("urn:"));
        let all: Vec<&str> = of_resources.into_iter().chain(others).map(String::as_str).collect();
        cut(&all.join("\n"), MAX_MESSAGE_BYTES)
    }
}

/// The operations in pulumi's warning of them, a line each: `  * URN, interrupted while creating`.
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

/// An operation as it is told: `creating URN`.
fn pending_operation((urn, operation): (&str, &str)) -> String {
    format!("{operation} {urn}")
}

/// The text, or as much of its beginning as `limit` bytes hold and a sign that there was more.
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
        assert_eq!((found.started, found.done), (1, 1));
        assert_eq!(found.changes, BTreeMap::from([("same".to_owned(), 2)]));
        assert_eq!(found.errors(), "urn:pulumi:dev::p::t::n: disk full\nupdate failed");
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
    fn what_an_interrupted_run_left_is_in_a_warning() {
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
    fn what_an_interrupted_run_left_is_in_the_state() {
        let read = |state: &str| pending_in_state(state.as_bytes()).unwrap();
        let operation = r#"{"resource":{"urn":"urn:b","custom":true,"inputs":{}},"type":"creating"}"#;
        let state =
            format!(r#"{{"version":3,"deployment":{{"resources":[],"pending_operations":[{operation}],"metadata":{{}}}}}}"#);
        assert_eq!(read(&state), ["creating urn:b"]);
        assert_eq!(read(r#"{"version":3,"deployment":{"manifest":{}}}"#), [""; 0]);
        assert!(pending_in_state(b"{").is_err());
    }

    #[test]
    fn where_the_engine_has_no_error_the_programs_own_words_tell() {
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
