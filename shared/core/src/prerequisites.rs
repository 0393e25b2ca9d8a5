use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::{Effect, LastUpdateState, Prerequisite, PrerequisiteRef};

/// The maximum number of prerequisites of a Stack: each reconciliation reads all of them.
pub const MAX_PREREQUISITES: usize = 100;

/// The unmet prerequisites of a Stack.
pub(crate) struct Unmet {
    /// The condition's message.
    pub message: String,
    /// The name of the first unmet one.
    pub first: String,
    /// Requests for runs of those that are out of date.
    pub requests: Vec<Effect>,
}

/// The prerequisites that are unmet. `None` if all are met.
pub(crate) fn unmet(refs: &[PrerequisiteRef], found: &[Option<Prerequisite>], now: Timestamp) -> Option<Unmet> {
    let mut words = Vec::new();
    let mut first = None;
    let mut requests = Vec::new();
    for (reference, prerequisite) in refs.iter().zip(found) {
        let name = &reference.name;
        let Some(prerequisite) = prerequisite else {
            first.get_or_insert(name);
            words.push(format!("unable to fetch prerequisite {name:?}: there is no such Stack in this namespace"));
            continue;
        };
        let current = prerequisite.last_update.as_ref().filter(|last| {
            last.generation == prerequisite.generation && last.reconcile_request == prerequisite.reconcile_request
        });
        let why = match current {
            None => "prerequisite has not run to completion",
            Some(last) if last.state == LastUpdateState::Failed => "prerequisite failed",
            Some(last) if out_of_date(reference, last.last_resync_time, now) => {
                // The value names the run that is too old, so that it is requested once.
                let request = format!("after-{}", last.name);
                if prerequisite.reconcile_request != request {
                    requests.push(Effect::RequestReconcile { stack: name.clone(), request });
                }
                "prerequisite is out of date"
            }
            Some(_) => continue,
        };
        first.get_or_insert(name);
        words.push(format!("prerequisite not satisfied for {name:?}: {why}"));
    }
    let first = first?.clone();
    let message = match words.as_slice() {
        [one] => one.clone(),
        _ => format!("multiple prerequisites were not satisfied {}", words.join(", ")),
    };
    Some(Unmet { message, first, requests })
}

/// Returns whether a Stack with these prerequisites waits.
#[must_use]
pub fn has_unmet(refs: &[PrerequisiteRef], found: &[Option<Prerequisite>], now: Timestamp) -> bool {
    unmet(refs, found, now).is_some()
}

/// Returns a cycle of prerequisites that contains this Stack. None of its Stacks can ever run.
pub(crate) fn cycle<'a>(from: &'a str, requires: &'a BTreeMap<String, Vec<String>>) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![from]];
    while let Some(way) = ways.pop() {
        for next in way.last().and_then(|last| requires.get(*last)).into_iter().flatten() {
            let longer = way.iter().copied().chain([next.as_str()]).collect();
            if next == from {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push(longer);
            }
        }
    }
    None
}

fn out_of_date(reference: &PrerequisiteRef, last: Option<Timestamp>, now: Timestamp) -> bool {
    match (reference.succeeded_within_seconds, last) {
        (Some(within), Some(last)) => now.duration_since(last).as_secs() > within,
        (Some(_), None) => true,
        (None, _) => false,
    }
}
