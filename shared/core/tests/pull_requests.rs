//! A pull request shows what its Stacks would change, and nothing about the others.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::*;
use support::*;

/// The outcome of a preview with these counts.
fn previewed(counts: &[(ChangeKind, u32)]) -> RunOutcome {
    let first = counts
        .iter()
        .map(|(kind, _)| PreviewedChange { urn: format!("urn:pulumi:dev::shop::aws:s3/bucket:Bucket::{kind}"), kind: *kind });
    let found = Previewed { counts: counts.iter().copied().collect(), first: first.collect() };
    RunOutcome { previewed: Some(found), ..outcome(true) }
}

/// The note of the Event about the end of each run, and the pull request that shows it.
fn told(operation: Operation, number: Option<&str>, outcomes: &[RunOutcome]) -> Vec<(String, Option<String>)> {
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.preview = operation == Operation::Preview;
    snapshot.stack.change_request = number.and_then(ChangeRequest::parse);
    let told = outcomes.iter().map(|outcome| {
        snapshot.run = RunState::Ended(run(operation), outcome.clone());
        let plan = plan(&snapshot);
        snapshot.stack.status = plan.status.clone();
        let event = plan.effects.into_iter().find_map(|effect| match effect {
            Effect::Event { note, change_request, .. } => Some((note, change_request.map(|number| number.to_string()))),
            _ => None,
        });
        event.unwrap()
    });
    told.collect()
}

#[test]
fn preview_is_shown_once_it_has_found_something() {
    let found = previewed(&[(ChangeKind::Replace, 1), (ChangeKind::Create, 2), (ChangeKind::Update, 0)]);
    let platform = RunOutcome { platform_failure: true, ..outcome(false) };
    let nothing = || previewed(&[]);
    let notes = told(Operation::Preview, Some("17"), &[nothing(), platform.clone(), found, nothing(), platform, nothing()]);
    let shown: Vec<_> = notes.iter().map(|(note, number)| (note.as_str(), number.as_deref())).collect();
    let of_platform = ("run failed by the platform, not counted: up failed: no such bucket", None);
    let changes = "Preview succeeded: +2 ~0 -0 ±1 (replaces aws:s3/bucket:Bucket replace, creates aws:s3/bucket:Bucket create, updates \
         aws:s3/bucket:Bucket update)";
    let none = "Preview succeeded: no changes";
    assert_eq!(
        shown,
        [(none, None), of_platform, (changes, Some("17")), (none, Some("17")), of_platform, (none, Some("17"))],
        "a comment about changes that are gone says so"
    );
    let failed = told(Operation::Preview, Some("17"), &[outcome(false), nothing()]);
    let of_failure = "Failed to update stack: up failed: no such bucket".to_owned();
    assert_eq!(failed, [(of_failure, Some("17".into())), (none.into(), Some("17".into()))]);
}

#[test]
fn other_runs_and_other_stacks_are_not_shown() {
    let found = || previewed(&[(ChangeKind::Create, 1)]);
    for (operation, number) in [(Operation::Preview, None), (Operation::Up, Some("17")), (Operation::Destroy, Some("17"))] {
        let told = told(operation, number, &[found(), outcome(false)]);
        assert!(told.iter().all(|(_, number)| number.is_none()), "{operation:?} {told:?}");
    }
    for operation in [Operation::Up, Operation::Preview] {
        assert_eq!(told(operation, None, &[found()])[0].0, "Successfully updated stack", "as PKO says it");
    }
}

#[test]
fn change_of_the_number_begins_anew() {
    let mut snapshot = snapshot(stack());
    (snapshot.stack.spec.preview, snapshot.stack.change_request) = (true, Some(ChangeRequest(18)));
    snapshot.stack.status.change_request = Some(ChangeRequest(17));
    let (_, effect) = observe(&snapshot.stack, &run(Operation::Preview), &previewed(&[]), now());
    assert!(matches!(effect, Effect::Event { change_request: None, .. }), "{effect:?}");
}

#[test]
fn number_of_a_change_request_has_only_digits() {
    assert_eq!(ChangeRequest::parse("4294967295").map(|number| number.to_string()).as_deref(), Some("4294967295"));
    for bad in ["", "0", "+1", "-1", "1 ", "0x1", "4294967296", "1/../2", "١"] {
        assert_eq!(ChangeRequest::parse(bad), None, "{bad:?}");
    }
}
