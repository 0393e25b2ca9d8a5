//! Approval: a guarded Stack changes resources only by a plan that was approved. Here is the whole
//! policy: when a plan is made, what it waits for, and which run may apply it.

use std::mem;

use jiff::Timestamp;

use crate::{
    ApprovalSettings, Effect, EventReason, EventType, Governance, Guard, Operation, PlanHash, PlanState, PlanStatus,
    PlannedChanges, Proposal, Readiness, Revision, Run, RunOutcome, Snapshot, Stack, StackReason, StackSpec, Wish,
    governed::Ruling,
    metadata,
    plan_summary::summary,
    retry::{MAX_FAILURES, cooldown, platform_cooldown},
    run::Hold,
};

/// The policy of a cluster, and the Stack that a pull request names, send no event when they
/// change.
pub(crate) const GUARD_SECONDS: i64 = 300;
/// The ways to end the deletion of a Stack whose destroy cannot be previewed.
const WITHOUT_PLAN: &str = "correct the cause; or have a user with the verb approve remove the annotation driftless.dev/approval, to \
                            destroy without a plan; or set spec.destroyOnFinalize to false, to keep the resources";
/// The remedy for a cluster without the policy.
pub(crate) const GUARD: &str = "apply infra/kubernetes/approval.yaml";

impl Stack {
    /// Returns whether a run that changes resources may start: the Stack is not guarded, or `plan`
    /// is its approved plan, which is of a destroy if the Stack is being deleted. The launcher asks
    /// this before it starts a task, whatever an Update says.
    #[must_use]
    pub fn permits(&self, plan: Option<&PlanHash>, now: Timestamp) -> bool {
        let status = &self.status.plan;
        let settings = match &self.approval {
            Some(settings) => settings,
            None if status.guarded => &self.answers,
            None => return true,
        };
        let Some(proposal) = status.proposal.as_ref().filter(|proposal| proposal.state == PlanState::Approved) else {
            return false;
        };
        let is_destroy = proposal.wish.operation == Operation::Destroy;
        let is_fresh = is_destroy == self.deleting && proposal.expires.is_none_or(|at| now < at);
        let is_it = plan.is_some() && proposal.plan.as_ref().map(|plan| &plan.hash) == plan;
        let is_approved =
            |plan| settings.approves(plan, proposal.demanded.is_some(), status.early.as_ref(), status.spent.as_ref());
        is_fresh && is_it && proposal.plan.as_ref().is_some_and(is_approved)
    }

    /// Returns why it starts no run now that changes resources or not, and applies that plan.
    #[must_use]
    pub fn hold(&self, changes: bool, plan: Option<&PlanHash>, now: Timestamp) -> Option<Hold> {
        if self.suspended {
            return Some(Hold::Suspended);
        }
        if changes && !self.permits(plan, now) {
            return Some(Hold::Unapproved);
        }
        let is_closed = self.window.as_ref().is_some_and(|window| window.closed_until(now).is_some());
        (changes && is_closed).then_some(Hold::OutsideWindow)
    }
}

impl Wish {
    /// What a proposal was made for. A failed preview without a report keeps the old digest of
    /// inputs.
    pub(crate) fn of(run: &Run, outcome: &RunOutcome, before: Option<&Proposal>) -> Self {
        let operation = if run.operation == Operation::Preview { Operation::Up } else { run.operation };
        let has_report = outcome.succeeded || outcome.stale;
        let known = || before.filter(|_| !has_report).and_then(|before| before.wish.inputs.clone());
        Self {
            operation,
            commit: if operation == Operation::Destroy { Revision::default() } else { run.commit.clone() },
            generation: run.generation,
            reconcile_request: run.reconcile_request.clone(),
            refresh: run.refresh && operation == Operation::Up,
            inputs: outcome.inputs.clone().or_else(known).filter(|_| operation == Operation::Up),
        }
    }
}

/// What a wanted run of a guarded Stack leads to.
pub(crate) enum Gate {
    /// Make a plan.
    Propose,
    /// Nothing starts.
    Wait(Readiness, Until),
    /// Apply the plan of this hash.
    Apply(PlanHash),
}

/// When a waiting Stack is reconciled again.
pub(crate) enum Until {
    /// Only a change ends the wait.
    Change,
    /// At this time.
    At(Timestamp),
    /// In some minutes: a change of the cluster's policy sends no event.
    Soon,
}

/// Decides what a wanted run leads to, and writes the state of the plan.
pub(crate) fn gate(
    stack: &mut Stack,
    settings: &ApprovalSettings,
    wish: &Wish,
    guard: &Guard,
    ruling: &Ruling,
    now: Timestamp,
) -> Gate {
    let (name, namespace) = (stack.name.clone(), stack.namespace.clone());
    let status = &mut stack.status.plan;
    let Some(proposal) = status.proposal.as_mut().filter(|proposal| proposal.wish == *wish) else { return Gate::Propose };
    let until = proposal.expires.map_or(Until::Change, Until::At);
    let plan = match (&proposal.plan, proposal.state) {
        (Some(plan), state) if state.is_pending() => plan.clone(),
        _ => return Gate::Propose,
    };
    let is_over = proposal.expires.is_some_and(|at| at <= now) || ruling.has_lost(&plan, now);
    proposal.by = None;
    if settings.rejected.as_ref() == Some(&plan.hash) {
        proposal.state = PlanState::Rejected;
        let remedy = match wish.operation {
            Operation::Destroy => {
                "to withdraw that, remove the annotation driftless.dev/reject; to keep the resources, set spec.destroyOnFinalize to \
                 false"
            }
            Operation::Refresh => "to end the request, remove the annotation driftless.dev/adopt",
            Operation::Up | Operation::Preview => "push a change, or request a reconciliation",
        };
        let message = format!("plan {} was rejected; {remedy}", plan.hash.short());
        return Gate::Wait(Readiness::stalled(StackReason::PlanRejected, message), Until::Change);
    }
    if is_over {
        proposal.state = PlanState::Expired;
        return Gate::Propose;
    }
    let is_guarded = *guard == Guard::Intact;
    proposal.demanded = ruling.demanded();
    let is_open =
        proposal.demanded.is_none() && ruling.refusal(wish.operation, "").is_none() && !settings.policy.needs_approval(&plan);
    status.early.take_if(|early| early.expires <= now);
    let early = status.early.as_ref().filter(|early| early.is_of(&plan));
    if let Some(early) = early {
        proposal.expires = Some(proposal.expires.map_or(early.expires, |at| at.min(early.expires)));
    }
    if is_guarded && !proposal.offered && !is_open && settings.approved.as_ref() == Some(&plan.hash) {
        status.spent = Some(plan.hash.clone());
    }
    proposal.offered = is_guarded;
    proposal.state = PlanState::Proposed;
    let note = if proposal.note.is_empty() { String::new() } else { format!("{}; ", proposal.note) };
    let what = format!("{note}{}{}", summary(&plan), ruling.told());
    if let Some(refusal) = ruling.refusal(wish.operation, &what) {
        return Gate::Wait(refusal, Until::Soon);
    }
    let is_demanded = proposal.demanded.is_some();
    let is_approved = settings.approves(&plan, is_demanded, early, status.spent.as_ref());
    let is_by_user = early.is_some() || settings.approved.as_ref() == Some(&plan.hash);
    let by = early.and_then(|early| early.by.clone()).or_else(|| settings.approved_by.clone()).filter(|_| is_by_user);
    match guard {
        Guard::Broken(why) => Gate::Wait(unguarded(&what, why), Until::Soon),
        Guard::Intact if is_approved => {
            proposal.state = PlanState::Approved;
            proposal.by = by;
            Gate::Apply(plan.hash)
        }
        Guard::Intact => {
            let keep = match wish.operation {
                Operation::Destroy => "; to keep the resources, set spec.destroyOnFinalize to false",
                Operation::Refresh => "; to adopt nothing, remove the annotation driftless.dev/adopt",
                Operation::Up | Operation::Preview => "",
            };
            let approve = command(&name, &namespace, &plan.hash);
            let annotate = format!("or set the annotation {} to this hash (docs/approval.md)", metadata::APPROVE);
            let message = format!("{what}; to approve it: {approve}; {annotate}{keep}");
            Gate::Wait(Readiness::Reconciling { reason: StackReason::ApprovalRequired, message }, until)
        }
    }
}

/// The command that approves a plan.
pub(crate) fn command(name: &str, namespace: &str, hash: &PlanHash) -> String {
    format!("kubectl driftless approve {name} --namespace {namespace} --plan {hash}")
}

/// The condition in a cluster that does not enforce who may approve.
fn unguarded(what: &str, why: &str) -> Readiness {
    let message = format!("{what}; no approval counts: {why}; {GUARD}");
    Readiness::Reconciling { reason: StackReason::ApprovalUnguarded, message }
}

/// The condition while a plan is made.
pub(crate) fn planning() -> Readiness {
    Readiness::processing("making a plan of the changes")
}

/// The condition after a failed preview, until it is repeated.
pub(crate) fn failed(proposal: &Proposal) -> Readiness {
    let Proposal { note, failures, expires, wish, .. } = proposal;
    let Some(expires) = expires else {
        let message = format!("{note}; {failures} previews failed; not retrying until the spec or source changes");
        return Readiness::stalled(StackReason::UpdateFailed, message);
    };
    if wish.operation == Operation::Destroy {
        let at = expires.strftime("%FT%TZ");
        let message = format!("no plan of the destroy: {note}; {failures} previews failed; next try at {at}; {WITHOUT_PLAN}");
        return if *failures > MAX_FAILURES {
            Readiness::stalled(StackReason::UpdateFailed, message)
        } else {
            Readiness::Reconciling { reason: StackReason::PreviewFailed, message }
        };
    }
    let message = format!("no plan: {note}; attempt {failures}");
    Readiness::Reconciling { reason: StackReason::PreviewFailed, message }
}

/// Takes over the end of a proposal, and returns the Event about it, if it is news. `true` if the
/// plan has no changes and nothing else is to be done: the resources are what the Stack wants.
pub(crate) fn observe_proposal(
    stack: &mut Stack,
    settings: &ApprovalSettings,
    run: &Run,
    outcome: &RunOutcome,
    now: Timestamp,
) -> (bool, Option<Effect>) {
    // Only an update writes the outputs and the sealed copy of the inputs.
    let has_run =
        stack.status.has_succeeded() && stack.status.last_update.as_ref().is_some_and(|last| last.generation == run.generation);
    let is_resealed = stack.spec.destroy_on_finalize && stack.status.inputs != outcome.inputs;
    let has_more_to_do = run.operation == Operation::Preview && (!has_run || is_resealed);
    let status = &mut stack.status.plan;
    (status.current, status.last) = (None, Some(run.name.clone()));
    let before = status.proposal.take();
    let wish = Wish::of(run, outcome, before.as_ref());
    let proposal = Proposal {
        state: PlanState::Proposed,
        plan: None,
        update: run.name.clone(),
        offered: false,
        demanded: None,
        by: None,
        expires: now.checked_add(settings.ttl).ok(),
        note: String::new(),
        failures: 0,
        failed_at: None,
        wish,
    };
    let operation = proposal.wish.operation;
    let plan = outcome.plan.as_deref().cloned().filter(|plan| outcome.succeeded && plan.operation == operation);
    let (proposal, event) = match plan.map(PlannedChanges::shortened) {
        // An empty plan of a destroy is applied, because only a destroy that succeeded ends the
        // deletion.
        Some(plan) if plan.is_empty() && operation != Operation::Destroy && !has_more_to_do => {
            (Proposal { state: PlanState::NoChanges, plan: Some(plan), expires: None, ..proposal }, None)
        }
        Some(plan) => {
            let known = before.as_ref().and_then(|before| before.plan.as_ref()).map(|plan| &plan.hash);
            let is_news = known != Some(&plan.hash) || before.as_ref().is_some_and(|before| !before.state.is_pending());
            let is_news = is_news && !plan.is_empty();
            let event = is_news.then(|| event(EventType::Normal, EventReason::PlanProposed, summary(&plan), run));
            // A commit with the same result needs no second approval.
            let offered = known == Some(&plan.hash) && before.as_ref().is_some_and(|before| before.offered);
            (Proposal { plan: Some(plan), offered, ..proposal }, event)
        }
        None => failure(proposal, before, &stack.spec, outcome, run, now),
    };
    let is_empty = proposal.state == PlanState::NoChanges;
    status.proposal = Some(proposal);
    (is_empty, event)
}

/// A proposal whose preview failed.
fn failure(
    proposal: Proposal,
    before: Option<Proposal>,
    spec: &StackSpec,
    outcome: &RunOutcome,
    run: &Run,
    now: Timestamp,
) -> (Proposal, Option<Effect>) {
    let so_far = before.filter(|before| before.state == PlanState::Failed && before.wish == proposal.wish);
    let failures = so_far.map_or(0, |before| before.failures).saturating_add(1);
    // Pulumi never ran, so nothing is wrong with the program.
    let is_platform = outcome.platform_failure || !outcome.started;
    let wait = if is_platform { platform_cooldown(failures) } else { cooldown(spec, failures - 1) };
    // As the destroy itself, because there may be no user left to change the Stack.
    let is_retried = is_platform || proposal.wish.operation == Operation::Destroy;
    let is_given_up = !is_retried && failures > MAX_FAILURES;
    let note = if outcome.succeeded { "the run reported no plan".to_owned() } else { outcome.message.clone() };
    let event = event(EventType::Warning, EventReason::PlanFailed, format!("no plan: {note}"), run);
    let expires = now.checked_add(wait).ok().filter(|_| !is_given_up);
    (Proposal { state: PlanState::Failed, note, failures, expires, failed_at: Some(now), ..proposal }, Some(event))
}

fn event(event_type: EventType, reason: EventReason, note: String, run: &Run) -> Effect {
    Effect::Event {
        event_type,
        reason,
        note,
        revision: Some(run.commit.clone()).filter(|commit| !commit.is_empty()),
        change_request: None,
    }
}

/// Takes over the end of a run that was to apply a plan, and returns the Event about a stale one:
/// nothing was touched.
pub(crate) fn observe_applied(status: &mut PlanStatus, run: &Run, outcome: &RunOutcome) -> Option<Effect> {
    let hash = run.plan.as_ref()?;
    // The approval outlasts a run that never reached Pulumi.
    if !outcome.operated && !outcome.succeeded {
        return None;
    }
    let before = status.proposal.take();
    // Without its plan, the approval of a pull request may be that of the run.
    let applied = before.as_ref().and_then(|before| before.plan.as_ref()).filter(|plan| plan.hash == *hash);
    let early = status.early.take_if(|early| applied.is_none_or(|plan| early.is_of(plan)));
    status.spent = Some(early.map_or_else(|| hash.clone(), |early| early.hash));
    let before = before?;
    if !outcome.stale {
        let state = if outcome.succeeded { PlanState::Applied } else { PlanState::Partly };
        status.proposal = Some(Proposal { state, expires: None, note: String::new(), ..before });
        return None;
    }
    let by = before.by.as_ref().map_or_else(String::new, |user| format!(" by {user}"));
    let found = outcome
        .plan
        .as_deref()
        .cloned()
        .filter(|plan| plan.operation == run.operation && plan.hash != *hash)
        .map(PlannedChanges::shortened);
    let (now_it_is, why) = match (&found, &before.plan) {
        (Some(found), Some(approved)) => (format!("but is {} now", found.hash.short()), difference(approved, found)),
        _ => ("but is another one now".to_owned(), "the cause is not known".to_owned()),
    };
    let note = format!("plan {} was approved{by}, {now_it_is}: {why}; nothing was touched", hash.short());
    let event = event(EventType::Warning, EventReason::PlanStale, note.clone(), run);
    status.proposal = Some(match found {
        Some(plan) => Proposal {
            state: if plan.is_empty() { PlanState::Stale } else { PlanState::Proposed },
            plan: Some(plan),
            update: run.name.clone(),
            offered: false,
            demanded: None,
            by: None,
            expires: before.expires,
            note,
            failures: 0,
            failed_at: None,
            wish: Wish::of(run, outcome, Some(&before)),
        },
        None => Proposal { state: PlanState::Stale, expires: None, note, ..before },
    });
    Some(event)
}

/// What changed between the approved plan and the one that was found.
fn difference(approved: &PlannedChanges, found: &PlannedChanges) -> String {
    let (old, new) = (&approved.parts, &found.parts);
    let parts = [
        (old.resources != new.resources, "the planned changes differ"),
        (old.state != new.state, "the state of the stack changed"),
        (old.binding != new.binding, "the inputs or the settings of the run changed"),
        (old.tree != new.tree, "the source changed"),
        (old.pulumi != new.pulumi, "the version of Pulumi changed"),
        (old.version != new.version, "another release of Driftless compared them"),
    ];
    parts.into_iter().filter(|(differs, _)| *differs).map(|(_, what)| what).collect::<Vec<_>>().join(", ")
}

/// The settings that a decision uses: the Stack's own, and what the cluster demands beside them.
/// The removal of the annotation counts only where the cluster enforces who may remove it.
pub(crate) fn guard(stack: &mut Stack, snapshot: &Snapshot) {
    let is_shown = stack.shown_for().is_some();
    let plan = &mut stack.status.plan;
    plan.governed = snapshot.governance.governs(plan.governed);
    if stack.approval.is_none() && plan.governed {
        stack.approval = Some(stack.answers.clone());
    }
    if let (Some(settings), Governance::Known { floor: Some(floor), .. }) = (&mut stack.approval, &snapshot.governance) {
        settings.policy = mem::take(&mut settings.policy).and(floor);
    }
    if stack.approval.is_none() && plan.guarded && snapshot.guard != Guard::Intact {
        stack.approval = Some(ApprovalSettings::default());
    }
    plan.guarded = stack.approval.is_some();
    if !plan.guarded {
        // The names of later proposals depend on the last one.
        let PlanStatus { current, last, proposal, .. } = mem::take(plan);
        *plan = PlanStatus { current, last, proposal: proposal.filter(|_| is_shown), ..PlanStatus::default() };
    }
}
