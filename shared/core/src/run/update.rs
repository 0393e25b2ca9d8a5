use jiff::{SignedDuration, Timestamp};

use super::{Need, RunFacts, UpdateFacts, WaitReason};
use crate::{Operation, Run, Stack};

/// The sweep hints an Update older than this that is not complete, or still has Driftless's
/// finalizer: the message that was to start, record or release it may be lost.
const UNFINISHED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// What to do for an Update that changed or is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateEffect {
    /// Send it to the launcher.
    Launch,
    /// Hint its Stack.
    HintStack,
    /// Hint the dependents of its Stack: the reconciliation that recorded it on the Stack was
    /// interrupted before that.
    HintDependents,
    /// Remove Driftless's finalizer.
    Release,
    /// Delete it: its `ttlAfterCompleted` has elapsed.
    Delete,
}

/// Decides what to do for an Update object, in order. `Err` names the fact that the decision
/// depends on next.
pub fn plan_update(update: &UpdateFacts, facts: &RunFacts, now: Timestamp) -> Result<Vec<UpdateEffect>, Need> {
    let is_complete = update.is_complete();
    if !facts.watched()? {
        // A run that started before the namespace left the filter is still completed.
        let may_run = update.snapshot && !is_complete;
        return Ok(may_run.then_some(UpdateEffect::Launch).into_iter().collect());
    }
    let is_released = !update.finalizer;
    // An Update of another operator is history. For Driftless's own, only the bucket proves that
    // its run has ended.
    let is_over = is_complete && (is_released || update.is_inherited() || facts.outcome()?);
    let mut effects = Vec::new();
    // The recorder releases an Update that no Stack waits for, and signs the links to logs.
    if !is_over || !update.of_stack && !is_released || update.asks_for_log && facts.outcome()? {
        effects.push(UpdateEffect::Launch);
    }
    if update.of_stack && is_complete {
        effects.push(UpdateEffect::HintStack);
    }
    // A run continues even if its Stack cannot be read.
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

/// How a function finds a completed Update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The recorder completes it, after an event of its end.
    Event,
    /// The recorder completes it, as requested by a function: the handling of the event may have
    /// been interrupted.
    Repair,
    /// The launcher finds it complete: it was completed since the reconciliation that hinted it.
    Earlier,
}

/// What follows the completion of an Update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// Nothing.
    Nothing,
    /// Hint its Stack, which records it and releases it.
    HintStack,
    /// Hint the Update itself, whose reconciliation releases it and hints the Stack.
    HintUpdate,
    /// Remove Driftless's finalizer.
    Release,
}

/// Decides what follows the completion of an Update. No Stack must record an Update without one:
/// after the deletion of a Stack, Kubernetes removes the reference to it from an Update whose
/// Workspace still exists. Its Stack may have recorded the outcome before a repair, and may name
/// another Update since, and then only a hint for the Update, or the sweep, releases it. A released
/// one that asks for an expired log would be hinted in a loop.
#[must_use]
pub fn hand_over(update: &UpdateFacts, completion: Completion) -> HandOver {
    match (update.of_stack, update.finalizer, completion) {
        (false, true, _) => HandOver::Release,
        (true, true, Completion::Repair | Completion::Earlier) => HandOver::HintUpdate,
        (true, true, Completion::Event) | (true, false, Completion::Event | Completion::Repair) => HandOver::HintStack,
        (true, false, Completion::Earlier) | (false, false, _) => HandOver::Nothing,
    }
}

impl UpdateFacts {
    /// Returns whether the sweep hints it. A live run is hinted only at its turn, because an event
    /// reports its end.
    #[must_use]
    pub fn is_due(&self, is_turn: bool, now: Timestamp) -> bool {
        let rests = self.is_live() && !self.deleting && !is_turn;
        self.is_unfinished() && self.age > UNFINISHED_AFTER && !rests || self.is_expired(now)
    }

    /// Returns whether a reconciliation of the Stack sends another hint to the launcher. The first
    /// one was sent at the creation, and the sweep replaces a lost one, except for an Update that
    /// it does not list as unfinished. Otherwise, until a task runs, only two things matter: a
    /// change of the Stack, and the answer of the fetcher, which hints the Stacks of a source.
    #[must_use]
    pub fn wants_launch(&self, run: &Run, stack: &Stack) -> bool {
        let is_changed = run.generation != stack.generation
            || run.reconcile_request != stack.reconcile_request
            || stack.deleting && run.operation != Operation::Destroy;
        let is_suspension_unseen = stack.suspended != (self.waiting == Some(WaitReason::StackSuspended));
        let waits_for_tree = self.waiting == Some(WaitReason::TreeNotFound);
        !self.is_unfinished() || !self.task && (is_changed || is_suspension_unseen || waits_for_tree)
    }

    /// Returns whether the sweep hints it until its run has ended and its Stack has recorded that.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        !self.is_complete() || self.finalizer
    }

    /// Returns whether, by its status, it has a task and is not complete.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.task && !self.is_complete()
    }

    /// Returns whether its `ttlAfterCompleted` has elapsed and no Stack waits for its end.
    fn is_expired(&self, now: Timestamp) -> bool {
        let kept = self.complete_since.map(|since| now.duration_since(since));
        !self.finalizer && !self.deleting && kept.zip(self.ttl).is_some_and(|(kept, ttl)| kept >= ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_update_is_handed_over_to_what_releases_it() {
        use Completion::{Earlier, Event, Repair};
        use HandOver::{HintStack, HintUpdate, Nothing, Release};
        for (of_stack, finalizer, expected) in [
            (true, true, [HintStack, HintUpdate, HintUpdate]),
            (true, false, [HintStack, HintStack, Nothing]),
            (false, true, [Release; 3]),
            (false, false, [Nothing; 3]),
        ] {
            let update = UpdateFacts { finalizer, of_stack, ..UpdateFacts::default() };
            assert_eq!([Event, Repair, Earlier].map(|completion| hand_over(&update, completion)), expected, "{update:?}");
        }
    }

    #[test]
    fn stack_relaunches_its_run_only_after_a_change_or_if_unswept() {
        let stack = Stack { generation: 2, ..Stack::default() };
        let run = Run {
            namespace: "team".into(),
            name: "shop-111".into(),
            generation: 2,
            reconcile_request: String::new(),
            commit: crate::Revision::default(),
            operation: Operation::Up,
            scope: None,
            refresh: false,
            adopts: false,
            plan: None,
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
