//! A run of a machine, compared with runs of others: without troubles, and without a fault.

use super::{conditions::Conditions, machine::Machine, turns::Ended};

/// Simulates these conditions. At rest the world has to equal `expected`, the final state of
/// another run.
pub(super) fn run(conditions: &Conditions, expected: Option<&str>, traced: bool) -> Ended {
    let mut ended = Machine::new(conditions, traced).run();
    if ended.violation.is_none() && conditions.is_troubled() {
        let untroubled = Machine::new(&conditions.untroubled(), false).run();
        let untroubled_fails = untroubled.violation.as_ref().map(|violation| format!("without troubles: {violation}"));
        ended.violation = untroubled_fails.or_else(|| differs(&ended, &untroubled));
        let is_compared = |name| matches!(untroubled.settled.get(name), Some(Some(_)));
        let settled = ended.settled.iter().filter(|(name, state)| state.is_some() && is_compared(*name));
        ended.stats.compared = settled.count() as u64;
    }
    if let Some(expected) = expected.filter(|expected| *expected != ended.rest) {
        let rest = &ended.rest;
        ended.violation.get_or_insert_with(|| format!("2: it rests at\n{rest}\nand without the fault at\n{expected}"));
    }
    ended
}

/// How a Stack differs from what it is after the same changes of users without troubles.
fn differs(ended: &Ended, untroubled: &Ended) -> Option<String> {
    let differs = |(found, wanted): (Option<&Option<String>>, Option<&Option<String>>)| match (found, wanted) {
        (Some(Some(found)), Some(Some(wanted))) => found != wanted,
        (found, wanted) => found.is_some() != wanted.is_some(),
    };
    let names = ended.settled.keys().chain(untroubled.settled.keys());
    let mut states = names.map(|name| (name, (ended.settled.get(name), untroubled.settled.get(name))));
    let (name, (found, wanted)) = states.find(|(_, states)| differs(*states))?;
    Some(format!("16: Stack {name} rests at\n{found:?}\nand without troubles at\n{wanted:?}"))
}
