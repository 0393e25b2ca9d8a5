//! The latency of a change, from its write until a run of it starts and until its Stack is Ready.

use driftless_contract::ObjectKey;
use driftless_core::{LastUpdateState, Readiness, Revision, Stack, Uid};
use jiff::SignedDuration;
use serde_json::Value;

use super::{
    facts::Wanted,
    ledger::Ledger,
    objects::{revision, source_kind},
};

/// The bounds of a calm run, without lost messages, failing functions, limits, and long runs: twice
/// the measured times.
const RUNS_WITHIN: SignedDuration = SignedDuration::from_mins(12);
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);

impl Ledger {
    /// A source was written: its Stacks are changed if it has another revision.
    pub(super) fn source_written(&mut self, key: &ObjectKey, object: &Value) {
        let Some(revision) = revision(key, object) else { return };
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
        let source = (stack.namespace.clone(), source_kind(&stack.name));
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
