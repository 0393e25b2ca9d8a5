//! What Pulumi's events say.

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
        event("resourcePreEvent", 20, "create-replacement", "replaced"),
        event("resOutputsEvent", 24, "create-replacement", "replaced"),
        event("resourcePreEvent", 24, "replace", "replaced"),
        event("resOutputsEvent", 24, "replace", "replaced"),
        event("resOutputsEvent", 70, "create", "slow"),
        event("resourcePreEvent", 70, "delete-replaced", "replaced"),
        event("resOutputsEvent", 73, "delete-replaced", "replaced"),
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
    let expected = [
        step("create", "slow", 10, 60, false),
        step("update", "refused", 11, 2, true),
        step("create-replacement", "replaced", 20, 4, false),
        step("replace", "replaced", 24, 0, false),
        step("delete-replaced", "replaced", 70, 3, false),
    ];
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
fn first_resources_that_a_preview_would_change_are_named_by_kind_and_urn() {
    let step = |op: &str, name: &str, rest: &str| {
        let metadata = format!(r#""op":"{op}","urn":"{name}","type":"world:index:Object","logical":true"#);
        format!(r#"{{"resOutputsEvent":{{"metadata":{{{metadata}{rest}}},"planning":true}}}}"#)
    };
    let update = step("update", "urn:u", "");
    let lines = [
        step("same", "urn:s", ""),
        update.clone(),
        step("create", "urn:c", ""),
        step("replace", "urn:r", ""),
        // The parts of the replacement, the step of a refresh, and what only groups resources.
        step("create-replacement", "urn:r", ""),
        update.replace("urn:u", "urn:d").replace(r#""logical":true"#, r#""logical":false"#),
        update.replace("urn:u", "urn:stack").replace("world:index:Object", STACK),
        update.replace("urn:u", "urn:applied").replace(r#""planning":true"#, r#""planning":false"#),
    ];
    let found = events(&lines.iter().map(String::as_str).collect::<Vec<_>>()).would_change;
    let named = |PreviewedChange { kind, urn }: &PreviewedChange| format!("{kind} {urn}");
    assert_eq!(found.iter().map(named).collect::<Vec<_>>(), ["replace urn:r", "create urn:c", "update urn:u"]);

    let many: Vec<_> = (10..90).rev().map(|n| step("create", &format!("urn:{n}"), "")).collect();
    let found = events(&many.iter().map(String::as_str).collect::<Vec<_>>()).would_change;
    assert_eq!((found.len(), found.first().map(named).as_deref()), (PreviewedChange::MAX, Some("create urn:10")));
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
    let state = format!(r#"{{"version":3,"deployment":{{"resources":[],"pending_operations":[{operation}],"metadata":{{}}}}}}"#);
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
