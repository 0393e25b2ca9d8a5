//! The rules about what Stacks say, and about their end.

use driftless_contract::Operation;
use driftless_core::{DriftVerdict, LastUpdateState, Readiness, Stack, StackReason};

use super::{Ledger, Run, STACK};

impl Ledger {
    /// Records a write of a Stack.
    pub(in crate::sim) fn stack_written(&mut self, stack: &Stack) {
        let Stack { name, status, .. } = stack;
        self.change_written(stack);
        self.life_written(stack);
        self.tell(|| {
            let current = status.current_update.as_ref().map(|current| &current.name);
            let last = status.last_update.as_ref().map(|last| (&last.name, last.state, last.failures));
            format!(
                "Stack {name} is at {} ({}{:?}), seen {:?}: {:?}, current {current:?}, last {last:?}",
                stack.generation,
                if stack.deleting { "deleting, " } else { "" },
                stack.reconcile_request,
                status.observed_generation,
                status.readiness
            )
        });
        self.stacks.insert(name.clone(), (stack.uid.clone(), stack.spec.destroy_on_finalize));
        let last = status.last_update.as_ref();
        if status.readiness == Some(Readiness::Ready) && !stack.deleting {
            let ran = last.is_some_and(|last| {
                last.state == LastUpdateState::Succeeded && Some(last.generation) == status.observed_generation
            });
            self.check(ran, || format!("7: Stack {name} is Ready without a run of what it observed"));
        }
        let sees = status.next_reconciliation.is_some()
            || status.current_update.is_some()
            || status.plan.current.is_some()
            || status.suspended;
        let in_vain = match &status.readiness {
            // A user decides about a rejected plan.
            Some(Readiness::Stalled {
                reason: StackReason::UpdateFailed | StackReason::UpdateConflict | StackReason::PlanRejected,
                ..
            }) => true,
            Some(Readiness::Stalled { reason: StackReason::SourceUnavailable, message }) => {
                message.contains("; not retried until")
            }
            _ => false,
        };
        self.check(matches!(status.readiness, None | Some(Readiness::Ready)) || sees || in_vain, || {
            format!("7: Stack {name} waits and is not requeued: {status:?}")
        });
        let judged =
            self.runs.values().find(|run| Some(&run.update) == status.drift.last.as_ref() && run.succeeded == Some(true));
        if let (Some(found), Some(verdict)) = (judged.and_then(|run| run.drift), &status.drift.verdict) {
            let as_found = match verdict {
                DriftVerdict::None => found == 0,
                DriftVerdict::Found(drift) => drift.count == found,
                DriftVerdict::Remediated | DriftVerdict::Adopted => found > 0,
                DriftVerdict::Unknown(_) => false,
            };
            self.check(as_found, || format!("5: {name} says {verdict:?}, and {:?} found {found}", status.drift.last));
        }
        let Some(last) = last else {
            let before = self.last.get(&stack.uid).map(|last| last.name.clone());
            return self.check(before.is_none(), || format!("5: lastUpdate of Stack {name} is gone; it was {before:?}"));
        };
        let says = (last.generation, last.reconcile_request.clone(), last.last_attempted_commit.clone());
        let asked = self.asked.get(&last.name);
        let as_asked = asked == Some(&says);
        let asked = asked.cloned();
        self.check(as_asked, || {
            format!("2: lastUpdate of Stack {name} says {says:?} of {}, which asks for {asked:?}", last.name)
        });
        let failed = self.runs.values().filter(|run| {
            run.stack.as_ref() == Some(&stack.uid) && run.changes && run.succeeded != Some(true) && !run.taken_away
        });
        let failed = failed.count();
        self.check(usize::try_from(last.failures).is_ok_and(|counted| counted <= failed), || {
            format!("10: lastUpdate of Stack {name} counts {} failures, and {failed} runs failed", last.failures)
        });
        let is_news = self.last.get(&stack.uid).is_none_or(|before| before.name != last.name);
        if is_news && last.state == LastUpdateState::Failed && self.refreshes.contains(&last.name) {
            // It may have failed before it started. Its retry repeats what ran before the drift,
            // without a refresh if drift checks have ended.
            self.supersede(&stack.uid);
        }
        if let Some(before) = self.last.insert(stack.uid.clone(), last.clone()) {
            let counted = self.never_started.contains(&last.name) && last.failures > before.failures;
            self.check(!counted, || format!("10: a run of Stack {name} that never began is counted: {before:?} to {last:?}"));
            let same = before.name == last.name && before == *last;
            let newer = self.updates.get(&before.name) < self.updates.get(&last.name);
            self.check(same || newer, || format!("5: lastUpdate of Stack {name} goes from {before:?} to {last:?}"));
        }
        let mut reported = self.runs.values().filter(|run| run.update == last.name && run.succeeded == Some(true));
        let as_reported = match last.state {
            LastUpdateState::Succeeded => reported.next().is_some(),
            // A reconciliation may have read the outcome before the Update was deleted, or not.
            LastUpdateState::Failed | LastUpdateState::Unknown => reported.all(|run| run.state.is_none()),
        };
        self.check(as_reported, || {
            format!("5: lastUpdate of Stack {name} says {:?} of {}, which is not what the runner reported", last.state, last.name)
        });
    }

    /// Records that a Stack was deleted.
    pub(in crate::sim) fn stack_gone(&mut self, name: &str) {
        self.wanted.take_if(|_| name == STACK);
        self.check_end_of_life(name);
        let Some((stack, true)) = self.stacks.remove(name) else { return };
        let of_stack = |run: &Run| run.stack.as_ref() == Some(&stack) && run.changes;
        // The run of an Update that was deleted by force is unknown to its Stack.
        let ran = self.runs.iter().any(|(uid, run)| of_stack(run) && !self.forgotten.contains(uid));
        let last = self.runs.values().filter(|run| of_stack(run)).max_by_key(|run| run.place);
        let destroyed = last.is_some_and(|run| run.operation == Operation::Destroy && run.succeeded == Some(true));
        self.check(destroyed || !ran, || format!("8: Stack {name} is gone, and what it ran is not destroyed"));
    }
}
