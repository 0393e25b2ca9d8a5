//! Whether a Stack wants a run: the table of PKO's `isSynced`, and its back-off.

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

use LastUpdateState::{Failed, Succeeded, Unknown};

const COMMIT: &str = "main@sha1:aaa";

#[test]
fn first_matching_rule_decides() {
    let after = |state, failures, seconds| stack_after(last_update(state, failures, seconds));
    let deleting = |mut stack: Stack, operation| {
        stack.deleting = true;
        stack.status.last_update.as_mut().unwrap().operation = Some(operation);
        stack
    };
    let resync = |mut stack: Stack| {
        stack.spec.continue_resync_on_commit_match = true;
        stack
    };
    let generation_2 = |mut stack: Stack| {
        stack.generation = 2;
        stack
    };
    let requested = |mut stack: Stack, request: &str| {
        stack.reconcile_request = request.into();
        stack
    };
    let minute = SignedDuration::from_secs(60);
    let run = Sync::Run;
    let rows = vec![
        ("never ran", stack(), COMMIT, run(Why::Initial)),
        ("new generation", generation_2(after(Succeeded, 0, 5)), COMMIT, run(Why::Generation(2))),
        ("new generation by deletion", generation_2(deleting(after(Succeeded, 0, 5), Operation::Up)), COMMIT, run(Why::Deletion)),
        ("new request", requested(after(Succeeded, 0, 5), "again"), COMMIT, run(Why::Request("again".into()))),
        ("succeeded, deleting, destroyed", deleting(after(Succeeded, 0, 5), Operation::Destroy), COMMIT, Sync::Synced),
        ("succeeded, deleting, not destroyed", deleting(after(Succeeded, 0, 5), Operation::Up), COMMIT, run(Why::Deletion)),
        ("succeeded, new commit", after(Succeeded, 0, 5), "main@sha1:bbb", run(Why::Commit("main@sha1:bbb".into()))),
        ("succeeded, no resync", after(Succeeded, 0, 9999), COMMIT, Sync::Synced),
        ("succeeded, resync due", resync(after(Succeeded, 0, 60)), COMMIT, run(Why::Resync(minute))),
        ("succeeded, resync not due", resync(after(Succeeded, 0, 59)), COMMIT, Sync::Synced),
        ("failed, new commit in cooldown", after(Failed, 3, 1), "main@sha1:bbb", run(Why::Commit("main@sha1:bbb".into()))),
        ("failed for good", after(Failed, 3, 99_999), COMMIT, Sync::Synced),
        ("failed, cooldown over", after(Failed, 1, 30), COMMIT, run(Why::Backoff(SignedDuration::from_secs(30)))),
        ("failed, in cooldown", after(Failed, 1, 29), COMMIT, Sync::Synced),
        ("failed for good, new request", requested(after(Failed, 3, 1), "x"), COMMIT, run(Why::Request("x".into()))),
        ("unknown state", after(Unknown, 0, 5), COMMIT, Sync::Synced),
    ];
    for (name, stack, commit, expected) in rows {
        assert_eq!(is_synced(&stack, &commit.into(), None, now()), expected, "{name}");
    }
}

#[test]
fn run_reasons_have_the_text_of_pko() {
    let rows = [
        (Why::Initial, "Initial stack update"),
        (Why::Generation(3), "New stack generation: 3"),
        (Why::Deletion, "Stack marked for deletion"),
        (Why::Request("now".into()), "Sync request: \"now\""),
        (Why::Commit("main@sha1:aaa".into()), "New commit detected: \"main@sha1:aaa\""),
        (Why::Resync(SignedDuration::from_secs(60)), "Resync time elapsed: 1m0s"),
        (Why::Backoff(SignedDuration::from_secs(10)), "Backoff time elapsed: 10s"),
        (Why::Resync(SignedDuration::from_secs(3661)), "Resync time elapsed: 1h1m1s"),
    ];
    for (why, words) in rows {
        assert_eq!(why.to_string(), words);
    }
}

#[test]
fn a_resync_frequency_below_a_minute_is_a_minute() {
    for frequency in [None, Some(-5), Some(0), Some(59), Some(60)] {
        let mut stack = stack_after(last_update(Succeeded, 0, 59));
        stack.spec.continue_resync_on_commit_match = true;
        stack.spec.resync_frequency_seconds = frequency;
        assert_eq!(is_synced(&stack, &COMMIT.into(), None, now()), Sync::Synced, "{frequency:?}");
        stack.status.last_update = Some(last_update(Succeeded, 0, 60));
        assert_ne!(is_synced(&stack, &COMMIT.into(), None, now()), Sync::Synced, "{frequency:?}");
    }
}

#[test]
fn the_cooldown_triples_up_to_the_cap_and_the_first_is_never_capped() {
    let mut spec = StackSpec::default();
    let seconds = |spec: &StackSpec, failures| cooldown(spec, failures).as_secs();
    assert_eq!([0, 1, 2, 3].map(|failures| seconds(&spec, failures)), [10, 30, 90, 270]);
    assert_eq!(seconds(&spec, 1000), 24 * 60 * 60);
    spec.retry_max_backoff_duration_seconds = Some(45);
    assert_eq!([0, 1, 2].map(|failures| seconds(&spec, failures)), [10, 30, 45]);
    spec.retry_max_backoff_duration_seconds = Some(1);
    assert_eq!([0, 1].map(|failures| seconds(&spec, failures)), [10, 1]);
    spec.retry_max_backoff_duration_seconds = Some(0);
    assert_eq!(seconds(&spec, 1000), 24 * 60 * 60);
    spec.retries = Some(Retries { limit: 9, first_backoff_seconds: Some(60) });
    assert_eq!([0, 1, 2].map(|failures| seconds(&spec, failures)), [60, 180, 540]);
    spec.retry_max_backoff_duration_seconds = Some(45);
    assert_eq!([0, 1].map(|failures| seconds(&spec, failures)), [60, 45]);
    assert_eq!(platform_cooldown(1).as_secs(), 10);
}
