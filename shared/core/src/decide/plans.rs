//! The part of a decision that concerns the plans of a guarded Stack.

use jiff::Timestamp;

use super::{Reconciliation, launch};
use crate::{
    ApprovalSettings, Effect, EventReason, EventType, Governance, Guard, LastUpdateState, NewUpdate, Operation, PlanHash,
    PlanState, Proposal, Readiness, Revision, RunState, SourceRef, Stack, Why, Wish,
    approval::{self, Gate, Until},
    drift,
    governed::Ruling,
    observe, proposal_name,
};

impl Reconciliation<'_> {
    /// Takes over the state of the current proposal.
    pub(super) fn absorb_proposal(&mut self) {
        match &self.snapshot.proposal {
            // An Update that was not created is created below, under the same name.
            RunState::None | RunState::Missing => self.stack.status.plan.current = None,
            // The next one has another name.
            RunState::Foreign => self.stack.status.plan.last = self.stack.status.plan.current.take(),
            RunState::Live(run, update, _) => self.effects.extend(launch(&self.snapshot.stack, run, update)),
            RunState::Ended(run, outcome) => {
                let settings = self.stack.approval.clone().unwrap_or_default();
                let (is_empty, event) = approval::observe_proposal(&mut self.stack, &settings, run, outcome, self.now);
                self.effects.extend(event);
                // Nothing differs from what the Stack wants, as after a successful update.
                if is_empty && self.stack.approval.is_some() && matches!(self.snapshot.run, RunState::None | RunState::Missing) {
                    let (status, event) = observe(&self.stack, run, outcome, self.now);
                    self.stack.status = status;
                    self.effects.extend([event, Effect::WakeDependents]);
                }
                self.effects.push(Effect::ReleaseUpdate { namespace: run.namespace.clone(), update: run.name.clone() });
            }
        }
    }

    /// Only the Stack of a pull request shows the plan of one, and it has no other.
    pub(super) fn sort_plan(&mut self) {
        let is_shown = self.stack.shown_for().is_some();
        self.stack.status.plan.proposal.take_if(|proposal| (proposal.state == PlanState::Preview) != is_shown);
    }

    /// A plan of a change that is no longer wanted is not shown. An approved one is kept for the
    /// retry of a run that never reached Pulumi.
    pub(super) fn forget_plan(&mut self) {
        let is_retried = self.stack.status.last_update.as_ref().is_some_and(|last| last.state == LastUpdateState::Failed);
        self.stack.status.plan.proposal.take_if(|plan| plan.state.is_pending() && !is_retried);
    }

    /// Returns whether there is a plan for this revision, or one is made: no later commit is asked
    /// for before it is applied.
    pub(super) fn has_plan(&self, revision: &Revision) -> bool {
        let plan = &self.stack.status.plan;
        let is_of = |proposal: &Proposal| proposal.state.is_pending() && proposal.wish.commit == *revision;
        self.stack.approval.is_some() && (plan.current.is_some() || plan.proposal.as_ref().is_some_and(is_of))
    }

    /// The condition after a failed preview, until it is retried. It needs no tree, which may have
    /// been deleted meanwhile.
    pub(super) fn failed_preview(&mut self, revision: &Revision, why: &Why) -> Option<Readiness> {
        let Stack { approval: Some(_), status, .. } = &self.stack else { return None };
        let proposal = status.plan.proposal.as_ref().filter(|_| status.plan.current.is_none())?;
        let is_over = proposal.expires.is_some_and(|at| at <= self.now);
        if proposal.state != PlanState::Failed || proposal.wish != self.wish(revision, self.operation(why)) || is_over {
            return None;
        }
        let (readiness, expires) = (approval::failed(proposal), proposal.expires);
        if let Some(at) = expires {
            self.requeue_by(at);
        }
        Some(readiness)
    }

    /// What a run that starts now is wanted for.
    fn wish(&self, revision: &Revision, operation: Operation) -> Wish {
        let Stack { generation, reconcile_request, spec, status, .. } = &self.stack;
        // A comparison counts that was made after the plan, which has read the inputs itself.
        let planned = status.plan.proposal.as_ref().filter(|plan| operation == Operation::Up && plan.wish.inputs.is_some());
        let compared = self.snapshot.inputs.as_ref().filter(|inputs| planned.is_some_and(|plan| plan.made() < Some(inputs.read)));
        Wish {
            operation,
            commit: if operation == Operation::Destroy { Revision::default() } else { revision.clone() },
            generation: *generation,
            reconcile_request: reconcile_request.clone(),
            refresh: operation == Operation::Up && (spec.refresh || drift::to_remediate(&self.stack).is_some()),
            inputs: match compared.and_then(|inputs| inputs.digest.clone()) {
                // Empty if nothing is read any more.
                Some(digest) => Some(digest).filter(|digest| !digest.is_empty()),
                None => planned.and_then(|plan| plan.wish.inputs.clone()),
            },
        }
    }

    /// While a plan waits for its approval, or for a change after its rejection or failure, git and
    /// Secrets are polled as at any other time.
    pub(super) fn poll_while_waiting(&mut self, source: &SourceRef, polled: Option<Timestamp>) {
        if self.stack.approval.is_some() && self.stack.status.current_update.is_none() {
            self.poll(source, polled);
        }
    }

    /// Decides about an approval that a run has used.
    pub(super) fn end_plan(&mut self) {
        self.end_early();
        let is_shown = self.stack.shown_for().is_some();
        let plan = &mut self.stack.status.plan;
        if self.stack.approval.is_none() {
            plan.proposal.take_if(|_| !is_shown);
            plan.spent = None;
        }
        if plan.spent.is_some()
            && self.stack.approval.as_ref().and_then(|settings| settings.approved.as_ref()) != plan.spent.as_ref()
        {
            // The same plan can be approved again.
            plan.spent = None;
        } else if plan.spent.is_some() && self.effects.last() != Some(&Effect::RemoveFinalizer) {
            self.effects.push(Effect::SpendApproval);
        }
    }

    /// Ends an early approval that was used, has expired, or is not taken any more. Any other
    /// approval of a plan that the Stack does not show was there before it took them: it was not
    /// checked.
    fn end_early(&mut self) {
        let is_checked = self.stack.approval.is_some() && self.snapshot.guard == Guard::Intact;
        let takes = is_checked && self.stack.takes_early();
        let plan = &mut self.stack.status.plan;
        plan.takes_early = takes;
        if let Some(early) =
            plan.early.take_if(|early| !takes || early.expires <= self.now || plan.spent.as_ref() == Some(&early.hash))
        {
            plan.spent = Some(early.hash);
        }
        if let Some(hash) = self.stack.early_approval().cloned() {
            self.stack.status.plan.spent = Some(hash);
        }
        if let Some(at) = self.stack.status.plan.early.as_ref().map(|early| early.expires) {
            self.requeue_by(at);
        }
    }

    /// Publishes what the rules of the cluster say about a new plan.
    fn publish_ruling(&mut self, ruling: &Ruling, commit: &Revision) {
        if ![&self.snapshot.proposal, &self.snapshot.run].iter().any(|run| matches!(run, RunState::Ended(..))) {
            return;
        }
        let (denied, warned) = ruling.news();
        for (reason, note) in [(EventReason::PolicyViolation, denied), (EventReason::PolicyWarning, warned)] {
            let revision = Some(commit.clone()).filter(|commit| !commit.is_empty());
            let event = |note| Effect::Event { event_type: EventType::Warning, reason, note, revision, change_request: None };
            self.effects.extend(note.map(event));
        }
    }

    /// Adds to the Event about the end of a preview what is to be known of the plan of its pull
    /// request: what the rules of the cluster say, and how it is approved.
    pub(super) fn judge_preview(&self, event: &mut Effect) {
        let Effect::Event { event_type, note, .. } = event else { return };
        let shown = self.stack.status.plan.proposal.as_ref().filter(|proposal| proposal.state == PlanState::Preview);
        let Some(plan) = shown.and_then(|proposal| proposal.plan.as_ref()).filter(|plan| !plan.is_empty()) else { return };
        let ruling = Ruling::of(self.snapshot, &self.stack);
        note.push_str(&ruling.told());
        let named = self.snapshot.named.as_ref().filter(|named| named.approval.is_some() || named.status.plan.guarded);
        match (ruling.refusal(Operation::Up, note), named) {
            (Some(Readiness::Stalled { message, .. } | Readiness::Reconciling { message, .. }), _) => {
                (*event_type, *note) = (EventType::Warning, message);
            }
            (Some(Readiness::Ready) | None, Some(named)) => {
                let Stack { name, namespace, .. } = &**named;
                let (word, how) = match &self.snapshot.guard {
                    Guard::Intact => ("to approve it before the merge", approval::command(name, namespace, &plan.hash)),
                    Guard::Broken(why) => ("no approval counts", format!("{why}; {}", approval::GUARD)),
                };
                for text in ["; ", word, ": ", &how] {
                    note.push_str(text);
                }
            }
            (Some(Readiness::Ready) | None, None) => {}
        }
    }

    /// The approved plan that a run of a guarded Stack applies; `Err` while there is none.
    pub(super) fn gate(&mut self, settings: &ApprovalSettings, why: &Why, new: &mut NewUpdate) -> Result<PlanHash, Readiness> {
        if self.snapshot.governance == Governance::Unread && self.stack.status.plan.governed {
            // The reconciler reads what the cluster demands before a run may start; the CLI cannot.
            self.requeue_by(self.in_seconds(approval::GUARD_SECONDS));
            return Err(self.snapshot.stack.status.readiness.clone().unwrap_or_else(approval::planning));
        }
        if self.stack.status.plan.current.is_some() {
            let RunState::Live(_, _, Some(waiting)) = &self.snapshot.proposal else { return Err(approval::planning()) };
            return Err(waiting.clone());
        }
        let wish = self.wish(&new.current.commit, new.operation);
        let ruling = Ruling::of(self.snapshot, &self.stack);
        self.publish_ruling(&ruling, &wish.commit);
        match approval::gate(&mut self.stack, settings, &wish, &self.snapshot.guard, &ruling, self.now) {
            Gate::Propose => {
                new.current.name = proposal_name(&self.stack);
                if new.operation == Operation::Up {
                    new.operation = Operation::Preview;
                }
                self.stack.status.plan.current = Some(new.current.name.clone());
                self.effects.push(Effect::Propose(Box::new(new.clone())));
                Err(approval::planning())
            }
            Gate::Wait(readiness, until) => {
                let at = match until {
                    Until::Change => None,
                    Until::At(at) => Some(at),
                    Until::Soon => Some(self.in_seconds(approval::GUARD_SECONDS)),
                };
                if let Some(at) = at {
                    self.requeue_by(at);
                }
                Err(readiness)
            }
            Gate::Apply(hash) => match self.stack.window.as_ref().and_then(|window| window.closed_until(self.now)) {
                Some(opens) => Err(self.outside_window(opens, why)),
                None => Ok(hash),
            },
        }
    }
}
