//! Times and periods at the limits of their types: a user can write them into a spec or a status,
//! and no reconciliation fails on them.

mod support;

use driftless_core::*;
use jiff::Timestamp;
use support::*;

#[test]
fn period_past_the_end_of_the_calendar_is_not_requeued() {
    for seconds in [i64::MAX, 300_000_000_000] {
        let mut snapshot = snapshot(stack_after(last_update(LastUpdateState::Succeeded, 0, 60)));
        snapshot.stack.spec.resync_frequency_seconds = Some(seconds);
        snapshot.stack.spec.continue_resync_on_commit_match = true;
        snapshot.inputs = Some(Inputs { changed: false, digest: None, read: ago(60), waits_for: None });
        let (revision, digest) = ("main@sha1:aaa".into(), "sha256:aaa".into());
        snapshot.source = Some(SourceState::Artifact { revision, digest, polled: Some(ago(5)) });
        let plan = plan(&snapshot);
        assert_eq!((condition(&plan).as_str(), plan.requeue_at), ("Ready", None), "{seconds}");
    }
}

#[test]
fn drift_check_at_the_end_of_the_calendar_breaks_nothing() {
    let late: Timestamp = "9999-12-30T21:30:00Z".parse().unwrap();
    for text in ["1m", "6h", "2562047788015215h", "0 3 * * *", "* * * * *", "0 0 29 2 *"] {
        for checked in [late, Timestamp::MIN, Timestamp::MAX] {
            for uid in ["", "a", "uid-1"] {
                let mut stack = stack_after(last_update(LastUpdateState::Succeeded, 0, 60));
                stack.uid = uid.into();
                stack.drift =
                    Some(DriftSettings { schedule: Some(schedule(text)), adopt: None, remediate: None, ignored: Vec::new() });
                stack.status.drift.checked = Some(checked);
                stack.status.drift.verdict = Some(DriftVerdict::Unknown("no".into()));
                assert!(due(&stack, true, now()), "{text}");
                let plan = plan(&snapshot(stack));
                assert_eq!(condition(&plan), "Ready", "{text}");
            }
        }
    }
}

#[test]
fn failure_at_the_end_of_the_calendar_is_not_retried() {
    let mut snapshot = snapshot(stack());
    let failure = FetchFailure { at: Timestamp::MAX, message: "no".into(), terminal: false, failures: u32::MAX };
    snapshot.tree = TreeState::Absent { failure: Some(failure) };
    assert!(condition(&plan(&snapshot)).ends_with("no; not retried until the source changes"));
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
    snapshot.stack.status.last_update = Some(last_update(LastUpdateState::Failed, i64::MAX, 60));
    assert_eq!(plan(&snapshot).status.last_update.unwrap().failures, i64::MAX);
}
