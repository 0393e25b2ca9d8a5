//! Messages and documents. A tenant's task writes some of them.

use crate::input::text;
use driftless_contract::{
    Document, FetchOutcome, FetchRequest, Hint, Identity, InputsRead, Launch, LaunchHint, Lock, Outcome, OutputObjects, Owner,
    Progress, Resources, RunHint, RunMessage, RunResult, RunSpec, SealedInputs, TaskHint, TaskRun, UnfitArchitecture, keys,
    parse_run_message, parsed, to_json,
};

/// The input is a message or document of any kind, and the key of an object.
pub fn check(input: &[u8]) {
    let text = text(input);
    match parse_run_message(text) {
        Ok(RunMessage::Hint(hint)) => assert!(read::<RunHint>(input) == Some(hint)),
        Ok(RunMessage::Objects(keys)) => keys.iter().for_each(|key| of_key(key)),
        Ok(_) => {}
        Err(error) => assert!(error.to_string().len() < 200, "{error}"),
    }
    of_key(text);
    read::<FetchRequest>(input);
    read::<Hint>(input);
    read::<Identity>(input);
    read::<InputsRead>(input);
    read::<Launch>(input);
    read::<LaunchHint>(input);
    read::<Outcome>(input);
    read::<Owner>(input);
    read::<Progress>(input);
    read::<OutputObjects>(input);
    read::<Resources>(input);
    read::<RunSpec>(input);
    read::<SealedInputs>(input);
    read::<TaskHint>(input);
    read::<TaskRun>(input);
    read::<UnfitArchitecture>(input);
    if let Some(outcome) = read::<FetchOutcome>(input) {
        assert!(outcome.rests_until() >= outcome.at, "a rest ends before it begins");
    }
    if let Some(lock) = read::<Lock>(input) {
        let kept = lock.clone().after(Some(&lock));
        assert!(kept.all().count() <= 16 && kept.clone().after(Some(&kept)) == kept);
    }
    if let Some(result) = read::<RunResult>(input) {
        assert!(parsed(input) >= input.len());
        let names = |result: &RunResult| result.outputs.iter().flatten().count() + result.left_out.len();
        let fitting = result.clone().fitting();
        assert!(names(&fitting) == names(&result) && fitting.clone().fitting() == fitting);
    }
}

/// Checks that a document reads back as written, and that an error names the position and repeats
/// no content.
fn read<D: Document + PartialEq>(input: &[u8]) -> Option<D> {
    match D::parse(input) {
        Ok(document) => {
            let again = D::parse(to_json(&document).as_bytes()).expect("a document");
            assert!(document == again, "another document: {}", to_json(&document));
            Some(document)
        }
        Err(error) => {
            assert!(error.to_string().len() < 200, "{error}");
            None
        }
    }
}

fn of_key(key: &str) {
    if let Some((folder, _)) = keys::task_of_report(key) {
        assert!(key.starts_with(&*folder) && folder.starts_with("tasks/") && folder.ends_with('/'), "{key:?}: {folder:?}");
    }
    if let Some(source) = keys::source_of_trees("c", key) {
        assert!(
            source.kind.to_lowercase() != source.kind || key.starts_with(keys::trees(&source).trim_end_matches('/')),
            "{key:?}"
        );
    }
}
