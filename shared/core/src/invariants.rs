use jiff::Timestamp;

use crate::{
    DriftVerdict, Effect, Governance, Guard, LastUpdateState, NewUpdate, Operation, Plan, PlannedChanges, Proposal, Readiness,
    RunState, Snapshot, SourceState, Stack, StackReason, StackStatus, TreeState,
};

/// The invariants that a plan breaks, as text. Empty for a valid plan.
#[must_use]
pub fn violations(snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(rule.to_owned());
        }
    };
    let stack = &snapshot.stack;
    let live = matches!(snapshot.run, RunState::Live(..));
    let is_unseen = matches!(&snapshot.run, RunState::Live(_, update, _) if !update.is_unfinished());
    let is_synced = matches!(&snapshot.proposal, RunState::Ended(_, outcome) if outcome.plan.as_deref().is_some_and(PlannedChanges::is_empty));
    let ended = matches!(snapshot.run, RunState::Ended(..)) || is_synced;
    let run: Option<&NewUpdate> = plan.effects.iter().find_map(|effect| match effect {
        Effect::Run(update) => Some(&**update),
        _ => None,
    });
    let position = |wanted: fn(&Effect) -> bool| plan.effects.iter().position(wanted);

    check(!(live && run.is_some()), "1: a run is created while another is in progress");
    check(!(stack.suspended && run.is_some()), "1: a run of a suspended Stack is created");
    check(plan.effects.iter().filter(|effect| matches!(effect, Effect::Run(_))).count() <= 1, "1: two runs are created at once");
    if let Some(run) = run {
        run_rules(snapshot, plan, run, now, &mut check);
    }
    if position(|effect| matches!(effect, Effect::DeleteStack)).is_some() {
        let announced = stack.status.expiry.as_ref().is_some_and(|expiry| expiry.blocked.is_none() && expiry.at <= now);
        let is_over = announced && stack.ttl.as_ref().is_some_and(|ttl| ttl.ends <= now && ttl.applied_by.is_none());
        check(
            is_over && stack.spec.destroy_on_finalize && !stack.suspended && !live && run.is_none(),
            "4: a Stack is deleted that is not at its announced end",
        );
    }
    plan_rules(snapshot, plan, run, now, &mut check);
    check_rules(snapshot, plan, run, &mut check);
    let judged = matches!(snapshot.check, RunState::Ended(..) | RunState::Foreign) || ended || stack.drift.is_none();
    check(judged || plan.status.drift.verdict == stack.status.drift.verdict, "5: drift changes without an outcome");
    if let Some(at) = position(|effect| matches!(effect, Effect::RemoveFinalizer)) {
        let last = plan.status.last_update.as_ref();
        let destroyed =
            last.is_some_and(|last| last.operation == Some(Operation::Destroy) && last.state == LastUpdateState::Succeeded);
        let asked = stack.spec.destroy_on_finalize && !stack.spec.preview && last.is_some() && plan.status.ran != Some(false);
        check(stack.deleting && !live, "4: the finalizer is removed while the Stack is not deleted or a run is in progress");
        check(destroyed || !asked, "4: the finalizer is removed before destroy succeeded");
        check(at + 1 == plan.effects.len(), "4: an effect follows the removal of the finalizer");
    }
    check(ended || same_run(snapshot, plan), "5: lastUpdate changes without an outcome");
    check(ended || plan.status.outputs == stack.status.outputs, "5: outputs change without an outcome");
    // The sweep hints an unfinished Update. Any other is launched here.
    let launches = plan.effects.iter().any(|effect| matches!(effect, Effect::Launch { .. }));
    // Driftless does not own a deleted Stack that has lost its finalizer.
    let ours = !stack.deleting || stack.finalizer;
    check(
        !live || !ours || plan.status.current_update.is_some() && (!is_unseen || launches),
        "2: a run in progress is no longer named",
    );
    if ours {
        check(plan.status.observed_generation == Some(stack.generation), "7: observedGeneration lags");
        let ended_by_a_change = [
            StackReason::SpecInvalid,
            StackReason::PulumiVersionTooLow,
            StackReason::PlanRejected,
            StackReason::UpdateFailed,
            StackReason::UpdateConflict,
            StackReason::SourceUnavailable,
        ];
        let waits_for_a_change =
            matches!(&plan.status.readiness, Some(Readiness::Stalled { reason, .. }) if ended_by_a_change.contains(reason));
        let ready = plan.status.readiness == Some(Readiness::Ready);
        check(
            ready
                || waits_for_a_change
                || stack.suspended
                || plan.status.current_update.is_some()
                || plan.status.plan.current.is_some()
                || plan.status.next_reconciliation.is_some(),
            "7: a waiting Stack is not requeued",
        );
        let is_changed = snapshot.inputs.as_ref().is_some_and(|inputs| inputs.changed) && !stack.deleting;
        let [now, before] = [&plan.status, &stack.status].map(|status| status.last_update.as_ref().map(|last| &last.name));
        check(!ready || !is_changed || now != before || stack.suspended, "7: a Stack is Ready whose inputs changed");
    }
    found
}

/// The rules about a new run.
fn run_rules(snapshot: &Snapshot, plan: &Plan, run: &NewUpdate, now: Timestamp, check: &mut impl FnMut(bool, &str)) {
    let stack = &snapshot.stack;
    check(plan.status.current_update.as_ref() == Some(&run.current), "1: status.currentUpdate does not name the new run");
    let is_closed = stack.window.as_ref().is_some_and(|window| window.closed_until(now).is_some());
    check(run.operation == Operation::Preview || !is_closed, "1: a run starts outside the maintenance window");
    check(!is_used_up(snapshot, plan, run), "1: a failed run is retried beyond spec.driftless.retries");
    check(run.current.generation == stack.generation, "3: a run is not of the generation that was reconciled");
    if let Some(tree) = &run.tree {
        check(matches!(snapshot.tree, TreeState::Stored { .. }), "3: a run is created whose tree is not stored");
        let of_source = matches!(&snapshot.source, Some(SourceState::Artifact { revision, digest, .. })
            if *revision == run.current.commit && *digest == tree.digest);
        check(of_source, "3: a run's revision and digest are not the source's");
    } else {
        check(
            run.operation == Operation::Destroy
                && run.workspace.project.is_some()
                && run.workspace.project == plan.status.project,
            "3: a run without a tree, which is not the destroy of the project that ran",
        );
    }
    check(run.operation != Operation::Refresh || adopts(stack, plan), "1: a refresh of drift that is not to be adopted");
    check(
        stack.deleting == (run.operation == Operation::Destroy),
        "4: a destroy without a deletion, or another operation with one",
    );
    check(
        stack.finalizer || matches!(plan.effects.first(), Some(Effect::AddFinalizer)),
        "4: a run is created before the finalizer",
    );
}

/// Returns whether the Stack asks to adopt the drift that its last check found.
fn adopts(stack: &Stack, plan: &Plan) -> bool {
    let drift = &plan.status.drift;
    let is_asked = stack.drift.as_ref().is_some_and(|drift_of| drift_of.adopt.is_some() && drift_of.adopt == drift.last);
    is_asked && matches!(drift.verdict, Some(DriftVerdict::Found(_)))
}

/// Returns whether a run repeats one that failed, although the Stack allows no further retry. A run
/// after a failure of the platform, and one with changed inputs, is none of these retries.
fn is_used_up(snapshot: &Snapshot, plan: &Plan, run: &NewUpdate) -> bool {
    let stack = &snapshot.stack;
    let (Some(retries), Some(last)) = (stack.spec.retries, &plan.status.last_update) else { return false };
    let is_retry = (last.generation, &last.reconcile_request, &last.last_attempted_commit)
        == (run.current.generation, &run.current.reconcile_request, &run.current.commit);
    let is_counted = plan.status.platform_failures.is_none() && !snapshot.inputs.as_ref().is_some_and(|inputs| inputs.changed);
    let is_failed = last.state == LastUpdateState::Failed && !stack.deleting;
    is_failed && is_retry && is_counted && last.failures >= retries.limit
}

/// The rules about drift checks.
fn check_rules(snapshot: &Snapshot, plan: &Plan, run: Option<&NewUpdate>, check: &mut impl FnMut(bool, &str)) {
    let stack = &snapshot.stack;
    let checks = created(plan, |effect| if let Effect::CheckDrift(update) = effect { Some(update) } else { None });
    let checking = matches!(snapshot.check, RunState::Live(..));
    for new in &checks {
        check(!checking && checks.len() == 1, "1: two drift checks at once");
        check(plan.status.drift.current.as_ref() == Some(&new.current.name), "1: the status does not name the new drift check");
        check(plan.status.current_update.is_none() && run.is_none(), "1: a drift check is created together with a run");
        check(!stack.suspended && !stack.deleting, "1: a drift check of a suspended or deleted Stack is created");
        check(new.operation == Operation::Refresh, "1: a drift check that is not a refresh");
    }
}

/// The rules about the plans of a guarded Stack.
fn plan_rules(snapshot: &Snapshot, plan: &Plan, run: Option<&NewUpdate>, now: Timestamp, check: &mut impl FnMut(bool, &str)) {
    let stack = &snapshot.stack;
    if let Some(run) = run.filter(|run| run.operation != Operation::Preview) {
        let is_governed = snapshot.governance.governs(stack.status.plan.governed);
        let is_guarded = stack.approval.is_some() || is_governed || stack.status.plan.guarded && snapshot.guard != Guard::Intact;
        let is_read = matches!(snapshot.governance, Governance::Known { .. });
        check(!is_governed || is_read, "13: a run starts before the rules of the cluster are read");
        let after = Stack { status: plan.status.clone(), ..stack.clone() };
        check(!is_guarded || snapshot.guard == Guard::Intact, "13: a guarded Stack is changed in a cluster without the policy");
        check(!is_guarded || after.permits(run.plan.as_ref(), now), "13: a run of a guarded Stack has no approved plan");
        let is_free = run.plan.is_none() || !needs_approval(&after, run);
        check(is_free || run.plan.is_none() || after.status.plan.spent != run.plan, "13: an approval is used twice");
        check(
            is_free || !is_guarded || is_offered(stack, &after, run, now),
            "13: an approval counts that was there before its plan",
        );
    }
    let proposals = created(plan, |effect| if let Effect::Propose(update) = effect { Some(update) } else { None });
    for new in &proposals {
        let is_live = matches!(snapshot.proposal, RunState::Live(..));
        check(!is_live && proposals.len() == 1, "1: two proposals at once");
        check(plan.status.plan.current.as_ref() == Some(&new.current.name), "1: the status does not name the new proposal");
        check(plan.status.current_update.is_none() && run.is_none(), "1: a proposal is created together with a run");
        check(!stack.suspended, "1: a proposal of a suspended Stack is created");
        let is_wanted = match new.operation {
            Operation::Destroy => stack.deleting,
            Operation::Preview => !stack.deleting,
            Operation::Refresh => !stack.deleting && adopts(stack, plan),
            Operation::Up => false,
        };
        check(is_wanted && new.plan.is_none(), "13: a proposal that is not a preview of what is wanted");
    }
    let plan_of = |status: &StackStatus| status.plan.proposal.as_ref().and_then(|proposal| proposal.plan.clone());
    let (before, after) = (plan_of(&stack.status), plan_of(&plan.status));
    let is_made = matches!(snapshot.run, RunState::Ended(..)) || matches!(snapshot.proposal, RunState::Ended(..));
    check(is_made || after.is_none() || after == before, "5: the plan changes without an outcome");
}

/// The proposal of the plan that a run applies, and that plan.
fn applied<'a>(stack: &'a Stack, run: &NewUpdate) -> Option<(&'a Proposal, &'a PlannedChanges)> {
    let proposal = stack.status.plan.proposal.as_ref()?;
    let plan = proposal.plan.as_ref().filter(|plan| run.plan.as_ref() == Some(&plan.hash))?;
    Some((proposal, plan))
}

/// Returns whether the plan of a run counts only with an approval.
fn needs_approval(stack: &Stack, run: &NewUpdate) -> bool {
    let settings = stack.approval.as_ref().unwrap_or(&stack.answers);
    let needs =
        |(proposal, plan): (&Proposal, &PlannedChanges)| proposal.demanded.is_some() || settings.policy.needs_approval(plan);
    applied(stack, run).is_none_or(needs)
}

/// Returns whether the plan of a run was shown before this reconciliation, by the Stack or by a
/// pull request.
fn is_offered(before: &Stack, after: &Stack, run: &NewUpdate, now: Timestamp) -> bool {
    let status = &before.status.plan;
    let approved = before.approval.as_ref().and_then(|settings| settings.approved.as_ref());
    let kept = status.early.as_ref().filter(|early| now < early.expires && approved == Some(&early.hash));
    let kept = kept.map(|early| &early.hash);
    let early = kept.or_else(|| before.early_approval().filter(|_| status.takes_early));
    let shown = applied(after, run).and_then(|(_, plan)| plan.early_hash());
    shown.is_some() && shown.as_ref() == early || applied(before, run).is_some_and(|(proposal, _)| proposal.offered)
}

/// The Updates of one kind that a plan creates.
fn created(plan: &Plan, of_kind: fn(&Effect) -> Option<&Box<NewUpdate>>) -> Vec<&NewUpdate> {
    plan.effects.iter().filter_map(of_kind).map(|update| &**update).collect()
}

/// The plan that replaces one that breaks rules: it changes only the condition, which names them.
/// The sweep continues to hint the Stack.
#[must_use]
pub fn refused(snapshot: &Snapshot, rules: &[String]) -> Plan {
    let message = format!(
        "plan breaks invariants of Driftless ({}); nothing was changed; the sweep retries; report it as a bug",
        rules.join("; ")
    );
    let readiness = Some(Readiness::stalled(StackReason::PlanRefused, message));
    let status = StackStatus { readiness, ..snapshot.stack.status.clone() };
    Plan { status, effects: Vec::new(), requeue_at: None }
}

/// Returns whether `lastUpdate` is unchanged, except for the revision of a commit that changed no
/// path that the Stack uses.
fn same_run(snapshot: &Snapshot, plan: &Plan) -> bool {
    let (mut before, after) = (snapshot.stack.status.last_update.clone(), &plan.status.last_update);
    let scope = snapshot.stack.status.scope.as_ref();
    let unchanged = matches!(&snapshot.tree, TreeState::Stored { scope: now, .. } if scope.is_some() && scope == now.as_ref());
    if let (true, Some(before), Some(after)) = (unchanged, &mut before, after) {
        before.last_attempted_commit.clone_from(&after.last_attempted_commit);
        before.last_successful_commit.clone_from(&after.last_successful_commit);
    }
    before == *after
}
