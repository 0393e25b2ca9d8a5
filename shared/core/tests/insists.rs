//! A request for a run also retries a fetch that failed permanently, and stays open until it has an
//! answer.

mod support;

use driftless_core::{run::UpdateFacts, *};
use jiff::SignedDuration;
use support::*;

/// A Stack whose source was refused permanently `seconds` ago, by its last status.
fn refused(seconds: i64) -> Snapshot {
    let mut snapshot = snapshot(stack());
    let failure = FetchFailure { at: ago(seconds), message: "too large".into(), terminal: true, failures: 1 };
    snapshot.tree = TreeState::Absent { failure: Some(failure) };
    snapshot.stack.status = plan(&snapshot).status;
    snapshot
}

fn asks(plan: &Plan) -> bool {
    plan.effects.iter().any(|effect| matches!(effect, Effect::Fetch(_)))
}

#[test]
fn fetch_request_is_repeated_until_answered() {
    let mut snapshot = refused(600);
    assert!(!asks(&plan(&snapshot)), "{:?}", plan(&snapshot));
    snapshot.stack.reconcile_request = "now".into();
    let mut time = now();
    for _ in 0..3 {
        // The reconciliation ends right after it wrote the status, or its message is lost.
        let asked = plan_at(&snapshot, time);
        assert!(asks(&asked) && condition(&asked).ends_with("; retrying"), "{asked:?}");
        snapshot.stack.status = asked.status;
        let soon = plan_at(&snapshot, time + SignedDuration::from_secs(29));
        assert!(!asks(&soon) && soon.status == snapshot.stack.status, "{soon:?}");
        time += SignedDuration::from_secs(30);
    }
    let TreeState::Absent { failure: Some(failure) } = &mut snapshot.tree else { unreachable!() };
    failure.at = time - SignedDuration::from_secs(10);
    let answered = plan_at(&snapshot, time);
    assert!(!asks(&answered) && condition(&answered).ends_with("; not retried until the source changes"), "{answered:?}");
}

#[test]
fn request_for_a_resting_source_is_kept_until_the_rest_ends() {
    let mut snapshot = refused(-60);
    snapshot.stack.reconcile_request = "now".into();
    for second in [0, 30, 59] {
        let kept = plan_at(&snapshot, now() + SignedDuration::from_secs(second));
        let end = (now() + SignedDuration::from_mins(1)).strftime("%H:%M:%SZ");
        assert!(!asks(&kept) && condition(&kept).ends_with(&format!("; next try at {end}")), "{kept:?}");
        snapshot.stack.status = kept.status;
    }
    for second in [60, 90] {
        let asked = plan_at(&snapshot, now() + SignedDuration::from_secs(second));
        assert!(asks(&asked) && condition(&asked).ends_with("; retrying"), "{asked:?}");
        snapshot.stack.status = asked.status;
    }
}

#[test]
fn request_during_a_run_or_suspension_is_served_afterwards() {
    let held: [fn(&mut Snapshot); 2] = [
        |snapshot| snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None),
        |snapshot| snapshot.stack.suspended = true,
    ];
    for hold in held {
        let mut snapshot = refused(600);
        snapshot.stack.reconcile_request = "now".into();
        let mut before = snapshot.clone();
        hold(&mut before);
        snapshot.stack.status = plan(&before).status;
        assert!(due(&snapshot.stack, false, now()), "the sweep makes up for a hint that got lost");
        snapshot.stack.status.current_update = None;
        let asked = plan(&snapshot);
        assert!(asks(&asked) && asked.status.observed_reconcile_request == "now", "{asked:?}");
    }
}
