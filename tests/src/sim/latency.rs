//! The latency of a change, from its write until a run of it starts and until its Stack is Ready.

use std::{collections::BTreeMap, fmt};

use driftless_contract::ObjectKey;
use driftless_core::{LastUpdateState, Readiness, Revision, Stack, Uid};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{ledger::Ledger, outside};

/// The bounds of a calm run, without lost messages, failing functions, limits, and long runs: twice
/// the measured times.
const RUNS_WITHIN: SignedDuration = SignedDuration::from_mins(12);
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);

/// Durations in whole seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<i64, u64>);

impl Histogram {
    fn record(&mut self, duration: SignedDuration) {
        *self.0.entry(duration.as_secs()).or_default() += 1;
    }

    /// The durations of both.
    #[must_use]
    pub fn merged(mut self, other: Self) -> Self {
        other.0.into_iter().for_each(|(seconds, times)| *self.0.entry(seconds).or_default() += times);
        self
    }

    /// The number of durations.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.values().sum()
    }

    /// The least number of seconds that this many of 100 durations do not exceed. 0 if there are
    /// none.
    #[must_use]
    pub fn percentile(&self, of_100: u64) -> i64 {
        let mut left = (self.number() * of_100).div_ceil(100);
        let reaches = |(seconds, times): (&i64, &u64)| {
            left = left.saturating_sub(*times);
            (left == 0).then_some(*seconds)
        };
        self.0.iter().find_map(reaches).unwrap_or_default()
    }
}

/// `p50 20 s, p99 60 s, at most 61 s`
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, most] = [50, 99, 100].map(|of_100| self.percentile(of_100));
        write!(f, "p50 {p50} s, p99 {p99} s, at most {most} s")
    }
}

/// The last change of each Stack, by its uid.
#[derive(Default)]
pub(super) struct Changes {
    wanted: BTreeMap<Uid, Wanted>,
    /// The revision of each source, by namespace and kind.
    revisions: BTreeMap<(String, String), Revision>,
    /// Whether the bounds hold.
    pub(super) are_bounded: bool,
}

struct Wanted {
    stack: String,
    /// The kind of its source, and its namespace.
    source: (String, &'static str),
    asked: (i64, String),
    since: Timestamp,
    runs: bool,
    ready: bool,
}

impl Wanted {
    fn change(&mut self, now: Timestamp) {
        (self.since, self.runs, self.ready) = (now, false, false);
    }
}

impl Ledger {
    /// A source was written: its Stacks are changed if it has another revision.
    pub(super) fn source_written(&mut self, key: &ObjectKey, object: &Value) {
        let Some(revision) = outside::revision(key, object) else { return };
        let source = (key.namespace.clone(), key.kind.clone());
        if self.changes.revisions.insert(source.clone(), revision.clone()).as_ref() == Some(&revision) {
            return;
        }
        let of_source = |wanted: &&mut Wanted| (&*wanted.source.0, wanted.source.1) == (&*source.0, &*source.1);
        let now = self.now;
        self.changes.wanted.values_mut().filter(of_source).for_each(|wanted| wanted.change(now));
    }

    /// A Stack was written.
    pub(super) fn change_written(&mut self, stack: &Stack) {
        if stack.deleting || stack.suspended {
            self.changes.wanted.remove(&stack.uid);
            return;
        }
        let (asked, now) = ((stack.generation, stack.reconcile_request.clone()), self.now);
        let source = (stack.namespace.clone(), outside::source_kind(&stack.name));
        let revision = self.changes.revisions.get(&(source.0.clone(), source.1.into()));
        let is_done = stack.status.last_update.as_ref().is_some_and(|last| {
            (last.generation, &last.reconcile_request) == (asked.0, &asked.1)
                && Some(&last.last_attempted_commit) == revision
                && last.state == LastUpdateState::Succeeded
        });
        // A resumed Stack may have nothing to run.
        let wanted = self.changes.wanted.entry(stack.uid.clone()).or_insert_with(|| Wanted {
            stack: stack.name.clone(),
            source,
            asked: asked.clone(),
            since: now,
            runs: is_done,
            ready: is_done,
        });
        if wanted.asked != asked {
            wanted.asked = asked;
            wanted.change(now);
        }
        // Its run may have started before the Stack was suspended and resumed.
        wanted.runs |= is_done;
        if is_done && stack.status.readiness == Some(Readiness::Ready) && !std::mem::replace(&mut wanted.ready, true) {
            let took = now.duration_since(wanted.since);
            self.stats.ready.record(took);
        }
    }

    /// A Stack's run starts.
    pub(super) fn change_runs(&mut self, uid: &Uid, generation: i64, request: &str, revision: &Revision) {
        let now = self.now;
        let Some(wanted) = self.changes.wanted.get_mut(uid) else { return };
        let newest = self.changes.revisions.get(&(wanted.source.0.clone(), wanted.source.1.into()));
        let is_new = (wanted.asked.0, &*wanted.asked.1, newest) == (generation, request, Some(revision));
        if is_new && !std::mem::replace(&mut wanted.runs, true) {
            self.stats.begun.record(now.duration_since(wanted.since));
        }
    }

    /// A change that took too long, if there is one.
    pub(super) fn overdue(&self) -> Option<String> {
        let mut changes = self.changes.are_bounded.then_some(&self.changes.wanted).into_iter().flatten();
        changes.find_map(|(_, Wanted { stack, asked, since, runs, ready, .. })| {
            let took = self.now.duration_since(*since);
            let late = !runs && took > RUNS_WITHIN || !ready && took > READY_WITHIN;
            late.then(|| format!("11: {asked:?} of Stack {stack} is not Ready after {took:#}, and began: {runs}"))
        })
    }
}
