use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;

use crate::{Effect, LastUpdateState, Prerequisite, PrerequisiteRef};

/// The maximum number of prerequisites of a Stack: each reconciliation reads all of them.
pub const MAX_PREREQUISITES: usize = 100;

/// The maximum number of Stacks in a walk over prerequisites.
const MAX_WALKED: usize = 200;

/// A walk over the prerequisites of a Stack, and theirs, breadth first. It visits each Stack once,
/// and ends at a cycle.
#[derive(Debug)]
pub struct Walk {
    seen: BTreeSet<String>,
    ahead: VecDeque<String>,
}

impl Walk {
    /// A walk that does not visit these Stacks.
    #[must_use]
    pub fn without(seen: impl IntoIterator<Item = String>) -> Self {
        Self { seen: seen.into_iter().collect(), ahead: VecDeque::new() }
    }

    /// Adds the prerequisites of a visited Stack.
    pub fn add(&mut self, prerequisites: impl IntoIterator<Item = String>) {
        self.ahead.extend(prerequisites);
    }

    /// Returns the name of the next Stack to visit. `None` at the end of the walk, or once it has
    /// 200 Stacks.
    pub fn visit(&mut self) -> Option<String> {
        while let Some(name) = self.ahead.pop_front().filter(|_| self.seen.len() < MAX_WALKED) {
            if self.seen.insert(name.clone()) {
                return Some(name);
            }
        }
        None
    }
}

/// A prerequisite whose next run may change what the Stacks that require it read from Secrets and
/// `ConfigMap`s.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// It is being deleted.
    pub deleting: bool,
    /// It has a run.
    pub running: bool,
    /// It is suspended.
    pub suspended: bool,
    /// The digest of the inputs of its last run, unless a change of them starts no run.
    pub inputs: Option<&'a str>,
}

/// Whether the inputs of a Stack may change once more, because a prerequisite is running or about
/// to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamChange<'a> {
    /// No run is expected.
    None,
    /// A run is live.
    Running,
    /// A run follows if the digest of its inputs is not this one.
    IfNot(&'a str),
}

impl<'a> Upstream<'a> {
    /// Returns whether a run of this prerequisite may change something.
    #[must_use]
    pub fn change(self) -> UpstreamChange<'a> {
        let Self { deleting, running, suspended, inputs } = self;
        match inputs {
            _ if deleting => UpstreamChange::None,
            _ if running => UpstreamChange::Running,
            Some(inputs) if !suspended => UpstreamChange::IfNot(inputs),
            _ => UpstreamChange::None,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [&str; N]) -> [String; N] {
        names.map(String::from)
    }

    #[test]
    fn walk_visits_each_prerequisite_once_and_ends_at_a_cycle() {
        let requires = BTreeMap::from([("a", vec!["b", "c"]), ("b", vec!["d"]), ("c", vec!["d", "a"]), ("d", vec!["b"])]);
        let of = |name: &str| requires[name].iter().map(|name| (*name).to_owned());
        let mut walk = Walk::without(names(["a"]));
        walk.add(of("a"));
        let mut visited = Vec::new();
        while let Some(name) = walk.visit() {
            walk.add(of(&name));
            visited.push(name);
        }
        assert_eq!(visited, names(["b", "c", "d"]));
    }

    #[test]
    fn walk_is_bounded() {
        let mut walk = Walk::without(names(["a"]));
        walk.add((0..).map(|n| n.to_string()).take(1000));
        let visited = std::iter::from_fn(|| walk.visit()).count();
        assert_eq!(visited, MAX_WALKED - 1);
    }

    #[test]
    fn prerequisite_may_change_inputs_while_it_runs_or_if_its_own_changed() {
        let idle = Upstream { deleting: false, running: false, suspended: false, inputs: Some("1") };
        for (upstream, expected) in [
            (idle, UpstreamChange::IfNot("1")),
            (Upstream { running: true, ..idle }, UpstreamChange::Running),
            (Upstream { running: true, suspended: true, inputs: None, ..idle }, UpstreamChange::Running),
            (Upstream { running: true, deleting: true, ..idle }, UpstreamChange::None),
            (Upstream { suspended: true, ..idle }, UpstreamChange::None),
            (Upstream { inputs: None, ..idle }, UpstreamChange::None),
        ] {
            assert_eq!(upstream.change(), expected, "{upstream:?}");
        }
    }
}
