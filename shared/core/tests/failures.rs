//! What follows a failed run, and when.

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn abandoned_run_is_not_counted_and_needs_no_destroy() {
    let never = RunOutcome { started: false, operated: false, project: None, ..outcome(false) };
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.destroy_on_finalize = true;
    snapshot.run = RunState::Ended(run(Operation::Up), never.clone());
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!((snapshot.stack.status.ran, snapshot.stack.status.last_update.as_ref().unwrap().failures), (Some(false), 0));
    assert_eq!(snapshot.stack.status.operated, Some(false));
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!(snapshot.stack.status.last_update.as_ref().unwrap().failures, 0);

    // Deleted, with its source gone.
    let mut deleted = snapshot.clone();
    (deleted.stack.deleting, deleted.stack.generation, deleted.source) = (true, 2, Some(SourceState::NotFound));
    deleted.run = RunState::None;
    assert!(plan(&deleted).effects.contains(&Effect::RemoveFinalizer));

    // A run that started may have created resources, whatever follows it.
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { started: true, ..never.clone() });
    snapshot.stack.status = plan(&snapshot).status;
    snapshot.run = RunState::Ended(run(Operation::Up), never);
    snapshot.stack.status = plan(&snapshot).status;
    let failures = snapshot.stack.status.last_update.as_ref().unwrap().failures;
    assert_eq!((snapshot.stack.status.ran, failures), (Some(true), 0), "the first that started is the first of the generation");
    assert_eq!(snapshot.stack.status.operated, Some(false), "it failed before its operation");
    deleted.stack.status = snapshot.stack.status.clone();
    assert!(!plan(&deleted).effects.contains(&Effect::RemoveFinalizer));
    // Whether another operator's runs started is not known.
    let other = stack_after(last_update(Succeeded, 0, 1)).status;
    assert_eq!((other.ran, other.operated), (None, None));
}

/// A run that its maintenance window, a suspension or a missing input has ended before its start.
fn abandoned() -> RunOutcome {
    let message = "run was abandoned before its task started: its Update was deleted".into();
    RunOutcome { started: false, operated: false, message, ..outcome(false) }
}

#[test]
fn fix_whose_run_never_started_is_run_after_the_retries_of_the_failure_are_used_up() {
    for (retries, failures) in [(None, 3), (Some(Retries { limit: 0, first_backoff_seconds: None }), 0)] {
        let mut snapshot = snapshot(stack_after(last_update(Failed, failures, 1)));
        snapshot.stack.spec.retries = retries;
        assert!(condition(&plan(&snapshot)).starts_with("Stalled/UpdateFailed"));

        let fix = Revision::from("main@sha1:bbb");
        snapshot.source = Some(SourceState::Artifact { revision: fix.clone(), digest: "sha256:bbb".into(), polled: None });
        snapshot.run = RunState::Ended(Run { commit: fix.clone(), ..run(Operation::Up) }, abandoned());
        for _ in 0..5 {
            let ended = plan(&snapshot);
            assert_eq!(
                condition(&ended),
                "Reconciling/RetryingAfterFailure: run was abandoned before its task started: its Update was deleted; not counted \
                 as a failed update; retried after 10s"
            );
            let next = ended.status.next_reconciliation;
            assert_eq!((created(&ended), next), (None, Some(now() + SignedDuration::from_secs(10))), "no quick loop");
            snapshot.stack.status = ended.status;
        }
        let mut waits = snapshot.clone();
        waits.run = RunState::None;
        let later = now() + SignedDuration::from_secs(10);
        assert_eq!(created(&plan_at(&waits, later)).unwrap().current.commit, fix);
        // The same holds it that held the abandoned one.
        waits.stack.window = Some(closed_window());
        let held = plan_at(&waits, later);
        assert!(created(&held).is_none() && condition(&held).starts_with("Reconciling/OutsideWindow"), "{}", condition(&held));

        // The failure of the fix is counted as without the abandoned runs.
        snapshot.run = RunState::Ended(Run { commit: fix, ..run(Operation::Up) }, outcome(false));
        let failed = plan(&snapshot);
        let counted = failed.status.last_update.as_ref().unwrap().failures;
        assert_eq!((counted, failed.status.platform_failures), (if retries.is_none() { 4 } else { 0 }, None));
        assert!(condition(&failed).starts_with("Stalled/UpdateFailed"), "{}", condition(&failed));
    }
}

#[test]
fn failure_is_retried_after_a_cooldown_requeued_once() {
    let mut snapshot = snapshot(stack());
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
    let first = plan(&snapshot);
    assert_eq!(condition(&first), "Reconciling/RetryingAfterFailure: 0 update failure(s)");
    assert_eq!(first.requeue_at, Some(now() + SignedDuration::from_secs(10)));
    let event = Effect::Event {
        event_type: EventType::Warning,
        reason: EventReason::StackUpdateFailure,
        note: "Failed to update stack: up failed: no such bucket".into(),
        revision: Some(run(Operation::Up).commit),
        change_request: None,
    };
    assert!(first.effects.contains(&event));

    snapshot.stack.status = first.status;
    snapshot.run = RunState::None;
    let again = plan_at(&snapshot, now() + SignedDuration::from_secs(5));
    assert_eq!((again.requeue_at, again.effects.len()), (None, 0), "the look is booked already");
    let later = plan_at(&snapshot, now() + SignedDuration::from_secs(10));
    assert_eq!(created(&later).unwrap().message, "Backoff time elapsed: 10s");
}

#[test]
fn new_generation_gets_four_tries_then_waits_for_a_change() {
    let mut snapshot = snapshot(stack());
    let mut at = now();
    let mut waits = Vec::new();
    let last = loop {
        snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        let Some(look) = plan.requeue_at else { break plan };
        waits.push(look.duration_since(at).as_secs());
        at = look;
        assert!(waits.len() < 10, "{waits:?}");
    };
    assert_eq!(waits, [10, 30, 90]);
    assert_eq!(condition(&last), "Stalled/UpdateFailed: up failed 3 times; not retrying until the spec or source changes");
}

#[test]
fn retries_of_a_stack_end_at_its_limit_and_begin_anew() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.retries = Some(Retries { limit: 2, first_backoff_seconds: Some(60) });
    let mut at = now();
    let mut fail = |snapshot: &mut Snapshot, run: Run| {
        let mut waits = Vec::new();
        loop {
            snapshot.run = RunState::Ended(run.clone(), outcome(false));
            let plan = plan_at(snapshot, at);
            snapshot.stack.status = plan.status.clone();
            snapshot.run = RunState::None;
            let Some(look) = plan.requeue_at else { return (waits, condition(&plan)) };
            waits.push(look.duration_since(at).as_secs());
            at = look;
            assert!(created(&plan_at(snapshot, at)).is_some());
        }
    };
    let words = "Stalled/UpdateFailed: up failed after 2 retries (spec.driftless.retries.limit); not retrying until the spec, the \
                 source or the annotation pulumi.com/reconciliation-request changes";
    let used_up = (vec![60, 180], words.to_owned());
    assert_eq!(fail(&mut snapshot, run(Operation::Up)), used_up);
    assert!(created(&plan_at(&snapshot, now() + SignedDuration::from_hours(48))).is_none());

    let commit = Revision::from("main@sha1:bbb");
    snapshot.source = Some(SourceState::Artifact { revision: commit.clone(), digest: "sha256:bbb".into(), polled: None });
    let again = Run { commit: commit.clone(), ..run(Operation::Up) };
    assert!(created(&plan_at(&snapshot, now() + SignedDuration::from_hours(48))).is_some());
    assert_eq!(fail(&mut snapshot, again.clone()), used_up, "a new commit");
    snapshot.stack.reconcile_request = "again".into();
    let again = Run { reconcile_request: "again".into(), ..again };
    assert_eq!(fail(&mut snapshot, again.clone()), used_up, "a request");
    snapshot.stack.generation = 2;
    let again = Run { generation: 2, ..again };
    assert_eq!(fail(&mut snapshot, again.clone()), used_up, "a new generation");
    // A success ends the count.
    snapshot.run = RunState::Ended(again.clone(), outcome(true));
    snapshot.stack.status = plan_at(&snapshot, now()).status;
    assert_eq!(fail(&mut snapshot, again.clone()), used_up, "after a success");

    // Neither failures of the platform nor those of a destroy are limited.
    snapshot.stack.spec.retries = Some(Retries { limit: 0, first_backoff_seconds: None });
    snapshot.run = RunState::Ended(again.clone(), platform(false));
    assert!(condition(&plan(&snapshot)).starts_with("Reconciling/PlatformFailure"));
    (snapshot.stack.deleting, snapshot.stack.spec.destroy_on_finalize) = (true, true);
    snapshot.run = RunState::Ended(Run { operation: Operation::Destroy, ..again }, outcome(false));
    assert!(plan(&snapshot).requeue_at.is_some());
}

#[test]
fn retries_of_a_stack_bound_those_of_a_foreign_lock() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.retries = Some(Retries { limit: 1, first_backoff_seconds: None });
    snapshot.stack.spec.retry_on_update_conflict = true;
    for expected in ["Reconciling/RetryingAfterFailure", "Stalled/UpdateFailed"] {
        snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { conflict: true, ..outcome(false) });
        let plan = plan(&snapshot);
        assert!(condition(&plan).starts_with(expected), "{}", condition(&plan));
        snapshot.stack.status = plan.status;
    }
}

#[test]
fn failure_count_survives_commits_and_resets_per_generation() {
    let failed = |stack: Stack, run: Run| {
        let mut snapshot = snapshot(stack);
        snapshot.run = RunState::Ended(run, outcome(false));
        plan(&snapshot).status.last_update.unwrap().failures
    };
    let other_commit = Run { commit: "main@sha1:bbb".into(), ..run(Operation::Up) };
    assert_eq!(failed(stack_after(last_update(Failed, 3, 1)), other_commit), 4);
    let mut edited = stack_after(last_update(Failed, 2, 1));
    edited.generation = 2;
    assert_eq!(failed(edited.clone(), Run { generation: 2, ..run(Operation::Up) }), 0);
    assert_eq!(failed(stack_after(last_update(Succeeded, 0, 1)), run(Operation::Up)), 1);
}

fn platform(started: bool) -> RunOutcome {
    let message = "the task ended without a result: CannotPullContainerError; check the image".into();
    RunOutcome { platform_failure: true, started, message, ..outcome(false) }
}

#[test]
fn platform_failure_event_has_its_own_reason() {
    let mut snapshot = snapshot(stack());
    snapshot.run = RunState::Ended(run(Operation::Up), platform(true));
    let reasons = plan(&snapshot).effects.into_iter().filter_map(|effect| match effect {
        Effect::Event { reason, note, .. } => {
            Some((reason.as_str(), note.starts_with("run failed by the platform, not counted: ")))
        }
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [("PlatformFailure", true)]);
}

#[test]
fn platform_failures_are_not_counted_and_retried_without_an_end() {
    let mut snapshot = snapshot(stack());
    let mut at = now();
    let mut waits = Vec::new();
    for _ in 0..8 {
        snapshot.run = RunState::Ended(run(Operation::Up), platform(false));
        let ended = plan_at(&snapshot, at);
        let status = ended.status.clone();
        let wait = ended.requeue_at.unwrap().duration_since(at);
        assert_eq!((status.last_update.as_ref().unwrap().failures, status.ran), (0, Some(false)));
        let told = ["10s", "30s", "1m30s", "4m30s", "5m0s", "5m0s", "5m0s", "5m0s"][waits.len()];
        let words = "Reconciling/PlatformFailure: the task ended without a result: CannotPullContainerError; check the image";
        let next = format!("not counted as a failed update; retried after {told}");
        assert_eq!(condition(&ended), format!("{words}; {next}"));
        waits.push(wait.as_secs());
        (snapshot.stack.status, snapshot.run, at) = (status, RunState::None, at + wait);
        assert!(created(&plan_at(&snapshot, at)).is_some());
    }
    assert_eq!(waits, [10, 30, 90, 270, 300, 300, 300, 300]);

    // When the cause is gone the Stack recovers by itself, and its status keeps no trace of it.
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(true));
    let recovered = plan_at(&snapshot, at);
    assert_eq!((condition(&recovered).as_str(), recovered.status.platform_failures), ("Ready", None));
}

#[test]
fn platform_failures_leave_the_count_of_real_failures_alone() {
    // A new generation still gets four tries, whatever platform failures come between them.
    let mut snapshot = snapshot(stack());
    let mut at = now();
    let mut counted = Vec::new();
    for n in 0..8 {
        let ended = if n % 2 == 0 { platform(n > 1) } else { outcome(false) };
        snapshot.run = RunState::Ended(run(Operation::Up), ended);
        let plan = plan_at(&snapshot, at);
        at += SignedDuration::from_hours(1);
        counted.push(plan.status.last_update.as_ref().unwrap().failures);
        assert_eq!(condition(&plan).starts_with("Reconciling/PlatformFailure"), n % 2 == 0, "{n}");
        snapshot.stack.status = plan.status;
    }
    assert_eq!(counted, [0, 0, 0, 1, 1, 2, 2, 3]);
    snapshot.run = RunState::None;
    assert_eq!(condition(&plan_at(&snapshot, at)).split(':').next(), Some("Stalled/UpdateFailed"));
}

#[test]
fn platform_failure_count_resets_per_generation() {
    let mut snapshot = snapshot(stack_after(last_update(Failed, 2, 1)));
    snapshot.stack.status.platform_failures = Some(PlatformFailures { count: 7, fresh: false });
    snapshot.stack.generation = 2;
    assert!(created(&plan(&snapshot)).is_some(), "an edit is tried at once");
    snapshot.run = RunState::Ended(Run { generation: 2, ..run(Operation::Up) }, platform(false));
    let status = plan(&snapshot).status;
    assert_eq!(status.platform_failures, Some(PlatformFailures { count: 1, fresh: true }));
    assert_eq!(status.last_update.unwrap().failures, 0);
}

#[test]
fn abandoned_run_keeps_the_back_off_of_the_platform() {
    let mut snapshot = snapshot(stack_after(last_update(Failed, 1, 1)));
    let before = Some(PlatformFailures { count: 3, fresh: false });
    snapshot.stack.status.platform_failures = before;
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { started: false, ..outcome(false) });
    let status = plan(&snapshot).status;
    assert_eq!((status.platform_failures, status.last_update.unwrap().failures), (before, 1));
}

#[test]
fn destroy_that_the_platform_fails_is_not_stalled() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 1)));
    (snapshot.stack.deleting, snapshot.stack.spec.destroy_on_finalize) = (true, true);
    snapshot.stack.status.last_update.as_mut().unwrap().failures = 5;
    snapshot.run = RunState::Ended(run(Operation::Destroy), platform(true));
    let plan = plan(&snapshot);
    assert!(condition(&plan).starts_with("Reconciling/PlatformFailure"), "{}", condition(&plan));
    assert_eq!(plan.requeue_at, Some(now() + SignedDuration::from_secs(10)));
}

#[test]
fn run_after_a_spot_interruption_is_on_demand_and_uncounted() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 1)));
    snapshot.run = RunState::Ended(run(Operation::Up), platform(true));
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!(snapshot.stack.status.last_update.as_ref().unwrap().failures, 0);
    snapshot.run = RunState::None;
    let next = plan_at(&snapshot, now() + SignedDuration::from_secs(11));
    assert!(created(&next).unwrap().on_demand);
    // After a success the fetch is requested as usual.
    snapshot.stack = stack_after(last_update(Succeeded, 0, 1));
    snapshot.stack.generation = 2;
    assert!(!created(&plan(&snapshot)).unwrap().on_demand);
}

#[test]
fn a_failure_keeps_the_last_good_commit_and_the_outputs() {
    let mut stack = stack_after(last_update(Succeeded, 0, 1));
    stack.status.outputs = Some([("url".to_owned(), "https://shop".into())].into());
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Ended(Run { commit: "main@sha1:bbb".into(), ..run(Operation::Up) }, outcome(false));
    let status = plan(&snapshot).status;
    let last = status.last_update.unwrap();
    assert_eq!((last.last_attempted_commit.as_str(), last.last_successful_commit.as_str()), ("main@sha1:bbb", "main@sha1:aaa"));
    assert!(status.outputs.is_some());
}

#[test]
fn foreign_lock_is_a_failure_that_waits_for_a_request() {
    let mut snapshot = snapshot(stack());
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { conflict: true, ..outcome(false) });
    let refused = plan(&snapshot);
    assert!(condition(&refused).starts_with("Stalled/UpdateConflict: up failed: no such bucket; set spec.retryOnUpdateConflict"));
    assert_eq!(refused.requeue_at, None);

    snapshot.stack.spec.retry_on_update_conflict = true;
    let mut at = now();
    let waits = [(); 5].map(|()| {
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        assert!(condition(&plan).starts_with("Reconciling/RetryingAfterFailure"));
        let wait = plan.requeue_at.unwrap().duration_since(at).as_secs();
        at = plan.requeue_at.unwrap();
        wait
    });
    assert_eq!(waits, [10, 30, 90, 270, 810]);
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
    assert!(!plan_at(&snapshot, at).status.conflict);
}
