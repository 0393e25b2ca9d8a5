use jiff::{SignedDuration, Timestamp};

use super::{Need, RunFacts, UpdateFacts, WaitReason};
use crate::{Operation, Run, Stack};

/// An Update that is not complete, or still has our finalizer, is hinted by the sweep when it is older than this: the message that was to
/// start, record or release it may be lost.
const UNFINISHED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// What is to be done for an Update that changed or is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateEffect {
    /// Have the launcher reconcile its run.
    Launch,
    /// Have its Stack reconciled.
    HintStack,
    /// Have the dependents of its Stack reconciled: the reconciliation that recorded it on the Stack was interrupted before that.
    HintDependents,
    /// Take our finalizer away.
    Release,
    /// Delete it: its `ttlAfterCompleted` has elapsed.
    Delete,
}

/// Decides what is to be done for an Update object, in order. `Err` names the fact that the decision depends on next.
pub fn plan_update(update: &UpdateFacts, facts: &RunFacts, now: Timestamp) -> Result<Vec<UpdateEffect>, Need> {
    let is_complete = update.is_complete();
    if !facts.watched()? {
        // What began while its namespace was watched is brought to its end.
        let may_run = update.snapshot && !is_complete;
        return Ok(may_run.then_some(UpdateEffect::Launch).into_iter().collect());
    }
    let is_released = !update.finalizer;
    // Another operator's is history. Of ours only the bucket says that its run has ended.
    let is_over = is_complete && (is_released || update.is_inherited() || facts.outcome()?);
    let mut effects = Vec::new();
    // The recorder releases one that no Stack waits for.
    if !is_over || !update.of_stack && !is_released {
        effects.push(UpdateEffect::Launch);
    }
    if update.of_stack && is_complete {
        effects.push(UpdateEffect::HintStack);
    }
    // A run goes on also where its Stack cannot be read.
    if !is_over || update.of_stack && facts.named()? {
        return Ok(effects);
    }
    if update.is_expired(now) {
        effects.push(UpdateEffect::Delete);
    } else if update.of_stack {
        effects.extend((!is_released).then_some(UpdateEffect::HintDependents));
        effects.push(UpdateEffect::Release);
    }
    Ok(effects)
}

impl UpdateFacts {
    /// Whether the sweep hints it. A live run is hinted at its turn only: an event tells of its end.
    #[must_use]
    pub fn is_due(&self, is_turn: bool, now: Timestamp) -> bool {
        let rests = self.is_live() && !self.deleting && !is_turn;
        self.is_unfinished() && self.age > UNFINISHED_AFTER && !rests || self.is_expired(now)
    }

    /// Whether a reconciliation of its Stack launches it. Its creator has launched it once, and the sweep repairs what was lost then, except of
    /// an Update that it does not see as unfinished. Otherwise only a change of the Stack makes a difference, until a task runs, and the answer of
    /// the fetcher, which hints the Stacks of a source.
    #[must_use]
    pub fn wants_launch(&self, run: &Run, stack: &Stack) -> bool {
        let is_changed = run.generation != stack.generation
            || run.reconcile_request != stack.reconcile_request
            || stack.deleting && run.operation != Operation::Destroy;
        let is_suspension_unseen = stack.suspended != (self.waiting == Some(WaitReason::StackSuspended));
        let waits_for_tree = self.waiting == Some(WaitReason::TreeNotFound);
        !self.is_unfinished() || !self.task && (is_changed || is_suspension_unseen || waits_for_tree)
    }

    /// The sweep hints it until its run has ended and its Stack has recorded that.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        !self.is_complete() || self.finalizer
    }

    /// It has a task and is not complete, by its status.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.task && !self.is_complete()
    }

    /// Its `ttlAfterCompleted` has elapsed, and nothing waits for its end.
    fn is_expired(&self, now: Timestamp) -> bool {
        let kept = self.complete_since.map(|since| now.duration_since(since));
        !self.finalizer && !self.deleting && kept.zip(self.ttl).is_some_and(|(kept, ttl)| kept >= ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_launches_its_run_only_if_it_changed_or_the_sweep_does_not_see_the_update() {
        let stack = Stack { generation: 2, ..Stack::default() };
        let run = Run {
            namespace: "team".into(),
            name: "shop-111".into(),
            generation: 2,
            reconcile_request: String::new(),
            commit: String::new(),
            operation: Operation::Up,
            scope: None,
            refresh: false,
        };
        let [goes_on, waits] = [UpdateFacts { task: true, ..UpdateFacts::default() }, UpdateFacts::default()];
        let held = UpdateFacts { waiting: Some(WaitReason::StackSuspended), ..waits };
        let forged = UpdateFacts { complete_since: Some(Timestamp::UNIX_EPOCH), ..goes_on };
        let edited = Stack { generation: 3, ..stack.clone() };
        let asked = Stack { reconcile_request: "now".into(), ..stack.clone() };
        let deleting = Stack { deleting: true, ..stack.clone() };
        let suspended = Stack { suspended: true, ..stack.clone() };
        for (update, stack, expected) in [
            (waits, &stack, false),
            (waits, &edited, true),
            (waits, &asked, true),
            (waits, &deleting, true),
            (waits, &suspended, true),
            (held, &suspended, false),
            (held, &stack, true),
            (UpdateFacts { waiting: Some(WaitReason::TreeNotFound), ..waits }, &stack, true),
            (goes_on, &edited, false),
            (goes_on, &suspended, false),
            (forged, &stack, true),
            (UpdateFacts { finalizer: true, ..forged }, &stack, false),
        ] {
            assert_eq!(update.wants_launch(&run, stack), expected, "{update:?} {stack:?}");
        }
    }
}
