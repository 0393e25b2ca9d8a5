//! The model check with bounds that a test has time for; `make model` has larger ones.

use driftless_tests::model::{Bounds, Breakage, Case, check};

const NONE: Bounds = Bounds { preemptions: Some(0), crashes: 0, doubles: 0, kills: 0, failures: 0, forgets: 0, waits: 0 };

fn assert_holds(case: Case, bounds: Bounds) {
    let report = check(case, bounds, None, usize::MAX);
    println!("{case:?} {bounds:?}: {report}");
    assert!(report.violation.is_none() && report.is_complete && report.rests > 0, "{case:?} {bounds:?}: {report}");
}

#[test]
fn two_launches_of_one_update_begin_one_operation() {
    assert_holds(Case::Launch, Bounds { preemptions: Some(1), doubles: 1, ..NONE });
    assert_holds(Case::Launch, Bounds { preemptions: Some(2), ..NONE });
    assert_holds(Case::Launch, Bounds { crashes: 1, forgets: 1, waits: 2, ..NONE });
}

#[test]
fn two_updates_of_one_pulumi_stack_run_one_after_the_other() {
    assert_holds(Case::Claim, Bounds { doubles: 1, ..NONE });
    assert_holds(Case::Claim, Bounds { crashes: 1, ..NONE });
    assert_holds(Case::Claim, Bounds { kills: 1, waits: 2, ..NONE });
}

#[test]
fn limit_of_runs_is_kept_and_every_slot_is_released() {
    assert_holds(Case::Limit, NONE);
    assert_holds(Case::Limit, Bounds { kills: 1, waits: 2, ..NONE });
}

#[test]
fn deleted_stack_is_removed_after_its_destroy() {
    assert_holds(Case::Finalize, NONE);
}

#[test]
fn edited_stack_runs_its_new_generation_once() {
    assert_holds(Case::Successor, Bounds { doubles: 1, ..NONE });
    assert_holds(Case::Successor, Bounds { kills: 1, waits: 3, ..NONE });
}

/// A breakage, the case that shows it, and the rule that it breaks.
#[track_caller]
fn assert_caught(breakage: Breakage, case: Case, bounds: Bounds, rule: &str) {
    let report = check(case, bounds, Some(breakage), usize::MAX);
    let caught = report.violation.as_ref().is_some_and(|(violation, path)| violation.starts_with(rule) && !path.is_empty());
    assert!(caught, "{breakage:?}: {report}");
}

#[test]
fn rule_that_is_broken_on_purpose_is_caught() {
    assert_caught(Breakage::Claim, Case::Claim, NONE, "claim: ");
    assert_caught(Breakage::Outcome, Case::Launch, Bounds { preemptions: Some(1), doubles: 1, ..NONE }, "outcome: ");
    assert_caught(Breakage::Owner, Case::Launch, Bounds { preemptions: Some(1), doubles: 1, ..NONE }, "claim: ");
    assert_caught(Breakage::Admissions, Case::Limit, Bounds { preemptions: Some(1), ..NONE }, "limit: ");
    assert_caught(Breakage::Began, Case::Finalize, Bounds { kills: 1, waits: 2, ..NONE }, "finalizer: ");
    assert_caught(Breakage::Redelivery, Case::Launch, Bounds { crashes: 1, ..NONE }, "rest: ");
    assert_caught(Breakage::Release, Case::Launch, NONE, "rest: ");
}

#[test]
fn update_that_is_created_twice_is_caught() {
    assert_caught(Breakage::Creation, Case::Successor, Bounds { preemptions: Some(1), doubles: 1, ..NONE }, "successor: ");
}
