//! The rules about the retries and the TTL of Stacks.

use driftless_contract::Operation;
use driftless_core::{Stack, Uid};
use jiff::Timestamp;

use super::{LOOK, Ledger, Life, Run};

impl Ledger {
    /// Records that a user deletes a Stack.
    pub(in super::super) fn delete_by_user(&mut self, name: &str) {
        self.deleted_by_users.insert(name.into());
    }

    /// Records a write of a Stack: its retries, its TTL and its announced end.
    pub(super) fn life_written(&mut self, stack: &Stack) {
        let Stack { name, uid, generation, spec, status, .. } = stack;
        if let Some(retries) = spec.retries {
            self.retries.insert((uid.clone(), *generation), retries.limit);
        }
        if stack.deleting {
            return self.check_end_of_life(name);
        }
        let now = self.now;
        let life = self.lives.entry(name.clone()).or_default();
        life.ttl = stack.ttl.as_ref().map(|ttl| (ttl.ends, ttl.warning));
        life.destroys = spec.destroy_on_finalize;
        let at = status.expiry.as_ref().filter(|expiry| expiry.blocked.is_none()).map(|expiry| expiry.at);
        if life.announced.map(|(_, at)| at) != at {
            life.announced = at.map(|at| (now, at));
        }
    }

    /// Checks that a Stack that no user deleted was at its announced end.
    pub(super) fn check_end_of_life(&mut self, name: &str) {
        // Its last write before its deletion has what counts.
        let Some(life) = self.lives.remove(name) else { return };
        if self.deleted_by_users.contains(name) {
            return;
        }
        self.stats.expiries += 1;
        let Life { ttl, destroys, announced } = life;
        let now = self.now;
        let is_over = ttl.is_some_and(|(ends, warning)| {
            // A reconciliation may write the announcement late.
            let warned = |(since, at): (Timestamp, Timestamp)| at <= now && at.duration_since(since) + LOOK >= warning;
            ends <= now && destroys && announced.is_some_and(warned)
        });
        self.check(is_over, || {
            format!("15: Stack {name} is deleted, and its TTL is {ttl:?}, announced {announced:?}, destroyed: {destroys}")
        });
    }

    /// Records that an operation is interrupted, because its task is stopped or its plan is stale:
    /// no retry that is counted follows.
    pub(in super::super) fn interrupt(&mut self, uid: &Uid) {
        let taken_away = self.reclaimed.contains(uid);
        if let Some(run) = self.runs.get_mut(uid) {
            run.taken_away = taken_away;
            run.interrupted = true;
        }
    }

    /// Checks the number of failures after the operation of an Update has reported one.
    pub(super) fn check_retries(&mut self, uid: &Uid) {
        let Some(Run { state: Some(state), .. }) = self.runs.get(uid) else { return };
        let (stack, generation, _, _, operation, _) = state;
        // A destroy is retried until it succeeds.
        let Some(limit) = self.retries.get(&(stack.clone(), *generation)).filter(|_| *operation != Operation::Destroy) else {
            return;
        };
        let counts =
            |run: &&Run| run.state.as_ref() == Some(state) && run.succeeded == Some(false) && !run.interrupted && !run.superseded;
        let (failed, limit) = (self.runs.values().filter(counts).count(), *limit);
        let state = state.clone();
        self.stats.retries += u64::from(failed > 1);
        let is_within = i64::try_from(failed).is_ok_and(|failed| failed <= limit + 1);
        self.check(is_within, || format!("14: {failed} runs of {state:?} failed, and {limit} retries may follow the first"));
    }
}
