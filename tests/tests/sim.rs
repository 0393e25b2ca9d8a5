//! The simulation, over as many seeds as a test has time for; `make sim` has more.

use std::fs;

use driftless_tests::sim::{Breakage, Failure, Report, Stats, simulate, simulate_all, simulate_calm, single_faults, trace};

/// Seeds that failed before a bug was fixed. They come first.
const KEPT: &str = include_str!("sim-seeds.txt");
/// The number of seeds without troubles.
const CALM: u64 = 40;
/// The number of failures that are explained.
const EXPLAINED: usize = 2;

/// Fails with the first failures, and leaves their state in `target/sim`.
fn assert_none_failed(report: &Report) {
    let explain = |failure: Failure| {
        let written = failure.write();
        format!("{failure}, {written:?}")
    };
    let explained: Vec<String> = report.explain(EXPLAINED).map(explain).collect();
    assert!(report.failures.is_empty(), "{} failures\n{}", report.failures.len(), explained.join("\n\n"));
}

#[test]
fn no_seed_breaks_an_invariant() {
    let kept = KEPT.lines().filter_map(|line| line.split_whitespace().next()).filter(|word| *word != "#");
    let kept = kept.map(|seed| seed.parse().unwrap());
    let report = simulate_all(kept.chain(0..200), None);
    assert_none_failed(&report);
    let stats = report.stats;
    assert!(stats.crashes > 100 && stats.duplicates > 100 && stats.drops > 100, "nothing was disturbed: {stats:?}");
    assert!(stats.collections > 10, "no tree was deleted: {stats:?}");
    assert!(
        stats.by_hand > 50 && stats.stops > 20 && stats.reclaims > 20 && stats.failed_starts > 20 && stats.elsewhere > 5,
        "the unusual did not happen: {stats:?}"
    );
    assert!(stats.checks > 20 && stats.adoptions > 0, "drift was not looked for, or not adopted: {stats:?}");
    assert!(stats.retries > 5 && stats.expiries > 5, "no limited retry failed, or no TTL ended: {stats:?}");
    assert!(
        stats.attacks > 500 && stats.workspaces > 50 && stats.annotations > 50 && stats.rogues > 50,
        "nobody was attacked: {stats:?}"
    );
    assert!(
        stats.plans > 50 && stats.approvals > 20 && stats.applied > 20 && stats.stale > 3 && stats.destroys > 0,
        "no plan was approved, or none changed before it was applied: {stats:?}"
    );
    assert!(stats.unswept > 10 && stats.outages > 20, "sweeps were not missing, or there was no outage: {stats:?}");
    assert!(stats.renewals > 5 && stats.waits > 100, "no tokens were renewed, or no limit was reached: {stats:?}");
    assert!(stats.compared > 200, "too few Stacks were compared with a run without troubles: {stats:?}");
    assert!(stats.queued > 20, "the quiet namespace waited for no slot: {stats:?}");
}

#[test]
fn change_of_a_calm_world_runs_in_time() {
    let report = simulate_calm(0..CALM);
    assert_none_failed(&report);
    let Stats { begun, ready, .. } = report.stats;
    println!("a run of a change begins after {begun}; its Stack is Ready after {ready}");
    assert!(begun.number() > CALM && ready.number() > CALM, "{begun}, {ready}");
}

#[test]
fn a_rule_that_is_broken_on_purpose_is_caught_within_a_few_seeds() {
    for breakage in Breakage::ALL {
        let broken = |seed| simulate(seed, Some(breakage)).err().filter(|violation| violation.starts_with(breakage.rule()));
        assert!((0..120).find_map(broken).is_some(), "{breakage:?}");
    }
}

/// One in this many faults is tried here, and each by `make faults`.
const FAULTS: usize = 20;

#[test]
fn single_fault_does_not_change_the_end_state() {
    let (tried, report) = single_faults(None, FAULTS);
    assert_none_failed(&report);
    let injected = report.stats.injected;
    println!("{tried} single faults, {injected} with an effect");
    // Only calls without a possible failure, such as the download of an artifact, are not affected.
    assert!(tried > 100 && injected * 10 > tried as u64 * 9, "{injected} of {tried} faults had an effect");
}

#[test]
fn a_seed_is_replayed_exactly() {
    assert_eq!(simulate(7, None).unwrap(), simulate(7, None).unwrap());
    let first = (0..40).find(|seed| simulate(*seed, Some(Breakage::Claims)).is_err()).unwrap();
    let replay = || (simulate(first, Some(Breakage::Claims)).unwrap_err(), trace(first, Some(Breakage::Claims)));
    assert_eq!(replay(), replay());
}

#[test]
fn failing_seed_is_shrunk_to_what_it_needs_and_leaves_its_state() {
    let report = simulate_all(0..8, Some(Breakage::Generations));
    let failure = report.explain(1).next().unwrap();
    assert!(failure.violation.starts_with("2:"), "{failure}");
    // It needs no fault, only one edit during the run.
    let conditions: Vec<&str> = failure.conditions.lines().collect();
    println!("{failure}");
    assert!(!conditions.iter().any(|condition| condition.contains("of 1000")), "{failure}");
    let folder = failure.write().unwrap();
    for file in ["trace", "conditions", "objects", "bucket", "queues", "tasks", "agenda", "invocations"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert!(fs::read_to_string(folder.join("objects")).unwrap().contains(r#""kind": "Stack""#));
}
