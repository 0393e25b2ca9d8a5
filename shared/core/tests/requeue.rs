//! When a Stack is reconciled next.

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

#[test]
fn earlier_requeue_suffices() {
    let mut snapshot = snapshot(stack());
    snapshot.source = Some(SourceState::NotFound);
    // Without a booked time, in 30 s; a time in the past led to this reconciliation.
    for (booked, next, books) in [
        (None, 30, true),
        (Some(-5), 30, true),
        (Some(0), 30, true),
        (Some(5), 5, false),
        (Some(30), 30, false),
        (Some(31), 30, true),
    ] {
        snapshot.stack.status.next_reconciliation = booked.map(|seconds| now() + SignedDuration::from_secs(seconds));
        let plan = plan(&snapshot);
        let at = now() + SignedDuration::from_secs(next);
        assert_eq!((plan.status.next_reconciliation, plan.requeue_at), (Some(at), books.then_some(at)), "{booked:?}");
    }
}

#[test]
fn condition_does_not_say_that_an_update_was_refused_when_it_is_tried_again() {
    for guarded in [false, true] {
        let mut snapshot = snapshot(stack());
        snapshot.stack.approval = guarded.then(ApprovalSettings::default);
        let first = plan(&snapshot).status;
        let fresh = first.readiness.clone();
        snapshot.stack.status = first;
        let refused = Readiness::processing("API server refused the objects of a run: exceeded quota; next try in 120s");
        snapshot.stack.status.readiness = Some(refused.clone());
        (snapshot.run, snapshot.proposal) =
            if guarded { (RunState::None, RunState::Missing) } else { (RunState::Missing, RunState::None) };
        let again = plan(&snapshot);
        let tries = again.effects.iter().any(|effect| matches!(effect, Effect::Run(_) | Effect::Propose(_)));
        assert!(tries && again.status.readiness == fresh && fresh != Some(refused), "{again:?}");
    }
}

#[test]
fn requeue_is_rounded_up_to_whole_seconds() {
    let mut snapshot = snapshot(stack());
    for (milliseconds, seconds) in [(0, 20), (1, 21), (999, 21)] {
        let at = ago(10) + SignedDuration::from_millis(milliseconds);
        let failure = FetchFailure { at, message: "it is away".into(), terminal: false, failures: 1 };
        snapshot.tree = TreeState::Absent { failure: Some(failure) };
        assert_eq!(plan(&snapshot).requeue_at, Some(now() + SignedDuration::from_secs(seconds)), "{milliseconds}");
    }
}

#[test]
fn sweep_hints_unseen_and_overdue_and_each_once_a_period() {
    let mut stack = stack();
    assert!(due(&stack, false, now()), "never looked at");
    stack.status = plan(&snapshot(stack.clone())).status;
    assert!(!due(&stack, false, now()));
    stack.status.next_reconciliation = Some(ago(1));
    assert!(due(&stack, false, now()), "a booked look is overdue");
    stack.status.next_reconciliation = None;
    stack.generation += 1;
    assert!(due(&stack, false, now()), "the spec changed");
    stack.generation -= 1;
    let turns = |ticks| {
        let at = (0..10).map(|tick| now() + SignedDuration::from_secs(tick * 60));
        at.filter(|at| due(&stack, its_turn(stack.uid.as_str(), 600, 60, ticks, *at), *at)).count()
    };
    assert_eq!((turns(1), turns(3), turns(100)), (1, 3, 10), "a turn counts in a pass of so many ticks");
}
