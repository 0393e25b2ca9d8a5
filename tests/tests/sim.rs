//! The simulation, over as many seeds as a test has time for; `make sim` has more.

use driftless_tests::sim::{Breakage, Report, simulate, simulate_all, single_faults};

/// Of a failing seed, as many events are shown.
const EVENTS: usize = 150;

#[test]
fn no_seed_breaks_an_invariant() {
    let report = simulate_all(0..120, None, EVENTS);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let stats = report.stats;
    assert!(stats.crashes > 100 && stats.duplicates > 100 && stats.drops > 100, "nothing was disturbed: {stats:?}");
    assert!(stats.collections > 10, "no tree was deleted: {stats:?}");
    assert!(
        stats.by_hand > 50 && stats.stops > 20 && stats.reclaims > 20 && stats.failed_starts > 20 && stats.elsewhere > 5,
        "the unusual did not happen: {stats:?}"
    );
    assert!(stats.checks > 20, "drift was not looked for: {stats:?}");
    assert!(
        stats.attacks > 500 && stats.workspaces > 50 && stats.annotations > 50 && stats.rogues > 50,
        "nobody was attacked: {stats:?}"
    );
    assert!(stats.unswept > 10 && stats.outages > 20, "sweeps were not missing, or there was no outage: {stats:?}");
    assert!(stats.queued > 20, "the quiet namespace waited for no slot: {stats:?}");
}

#[test]
fn a_rule_that_is_broken_on_purpose_is_caught_within_a_few_seeds() {
    for breakage in Breakage::ALL {
        let broken =
            |seed| simulate(seed, Some(breakage), EVENTS).err().filter(|failure| failure.violation.starts_with(breakage.rule()));
        let caught = (0..120).find_map(broken);
        assert!(caught.is_some_and(|failure| !failure.trace.is_empty()), "{breakage:?}");
    }
}

/// One of so many faults is tried here, and each by `make faults`.
const FAULTS: usize = 20;

#[test]
fn world_with_one_fault_comes_to_the_same_as_without() {
    let (tried, Report { stats, failures }) = single_faults(FAULTS, EVENTS);
    assert!(failures.is_empty(), "{} of {tried}: {}", failures.len(), failures[0]);
    println!("{tried} single faults, {} with an effect", stats.injected);
    // Only calls that have no failure to inject, such as the download of an artifact, are without one.
    assert!(tried > 100 && stats.injected * 10 > tried as u64 * 9, "{} of {tried} faults had an effect", stats.injected);
}

#[test]
fn a_seed_is_replayed_exactly() {
    assert_eq!(simulate(7, None, EVENTS).unwrap(), simulate(7, None, EVENTS).unwrap());
    let replay = |seed| simulate(seed, Some(Breakage::Claims), EVENTS).err();
    let first = (0..40).find_map(replay).unwrap();
    let second = replay(first.seed).unwrap();
    assert_eq!((first.violation, first.trace), (second.violation, second.trace));
}
