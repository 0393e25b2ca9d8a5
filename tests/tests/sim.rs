//! The simulation, over as many seeds as a test has time for; `make sim` has more.

use driftless_tests::sim::{Breakage, simulate};

/// Of a failing seed, as many events are shown.
const EVENTS: usize = 150;

#[test]
fn no_seed_breaks_an_invariant() {
    for seed in 0..200 {
        if let Err(failure) = simulate(seed, None, EVENTS) {
            panic!("{failure}");
        }
    }
}

#[test]
fn a_rule_that_is_broken_on_purpose_is_caught_within_a_few_seeds() {
    for breakage in Breakage::ALL {
        let caught = (0..50).find_map(|seed| simulate(seed, Some(breakage), EVENTS).err());
        assert!(caught.is_some_and(|failure| !failure.trace.is_empty()), "{breakage:?}");
    }
}

#[test]
fn a_seed_is_replayed_exactly() {
    assert_eq!(simulate(7, None, EVENTS).unwrap(), simulate(7, None, EVENTS).unwrap());
    let replay = || simulate(3, Some(Breakage::Redelivery), EVENTS).unwrap_err();
    assert_eq!(replay().trace, replay().trace);
}
