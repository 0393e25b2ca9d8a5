//! The destroy of a guarded Stack that is deleted is planned and approved as any other change.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::{run::UpdateFacts, *};
use jiff::{SignedDuration, Timestamp};
use support::*;

/// A guarded Stack that ran, and is deleted.
fn deleted() -> Stack {
    let mut stack = stack_after(last_update(LastUpdateState::Succeeded, 0, 60));
    stack.approval = Some(ApprovalSettings { approved_by: Some("ann".into()), ..ApprovalSettings::default() });
    (stack.deleting, stack.generation, stack.spec.destroy_on_finalize) = (true, 2, true);
    stack.status.plan.guarded = true;
    stack
}

/// The plan of a destroy that deletes two resources.
fn two_deleted(digit: char) -> PlannedChanges {
    let mut plan = changes(hash_of(digit), &[(ChangeKind::Delete, 2)]);
    plan.operation = Operation::Destroy;
    plan.changes = Listed {
        count: 2,
        first: vec![PlannedChange {
            urn: "urn:pulumi:dev::shop::aws:rds/instance:Instance::db".into(),
            resource_type: "aws:rds/instance:Instance".into(),
            kind: ChangeKind::Delete,
            paths: Vec::new(),
            replaced_by: Vec::new(),
        }],
    };
    plan
}

/// The facts after the proposal of the destroy ended so.
fn ended(stack: Stack, at: Timestamp, outcome: RunOutcome) -> Snapshot {
    let first = plan_at(&snapshot(stack.clone()), at);
    let new = proposed(&first).unwrap();
    assert_eq!((new.operation, &new.plan), (Operation::Destroy, &None));
    let run = Run { name: new.current.name.clone(), generation: stack.generation, ..run(Operation::Destroy) };
    let mut next = snapshot(Stack { status: first.status, ..stack });
    next.proposal = RunState::Ended(run, outcome);
    next
}

fn with(plan: PlannedChanges) -> RunOutcome {
    RunOutcome { plan: Some(Box::new(plan)), ..outcome(true) }
}

/// The Stack whose plan of the destroy waits.
fn waiting() -> Stack {
    let snapshot = ended(deleted(), now(), with(two_deleted('a')));
    let status = plan(&snapshot).status;
    Stack { status, ..snapshot.stack }
}

/// The facts after the run of the approved plan ended so.
fn after_run(outcome: RunOutcome) -> Snapshot {
    let mut stack = waiting();
    settings(&mut stack).approved = Some(hash_of('a'));
    let begun = plan(&snapshot(stack.clone()));
    let name = created(&begun).unwrap().current.name.clone();
    let mut next = snapshot(Stack { status: begun.status, ..stack });
    next.run = RunState::Ended(Run { name, generation: 2, plan: Some(hash_of('a')), ..run(Operation::Destroy) }, outcome);
    next
}

fn state(plan: &Plan) -> PlanState {
    plan.status.plan.proposal.as_ref().unwrap().state
}

#[test]
fn destroy_of_a_guarded_stack_waits_for_the_approval_of_its_plan() {
    let snapshot = ended(deleted(), now(), with(two_deleted('a')));
    let shown = plan(&snapshot);
    assert!(has_event(&shown, EventReason::PlanProposed) && created(&shown).is_none() && proposed(&shown).is_none());
    assert!(!shown.effects.contains(&Effect::RemoveFinalizer));
    let words = format!(
        "Reconciling/ApprovalRequired: destroy: +0 ~0 -2 ±0 (deletes aws:rds/instance:Instance db); plan aaaaaaa; to approve it: \
         kubectl driftless approve shop --namespace team --plan {}; or set the annotation driftless.dev/approve to this hash \
         (docs/approval.md); to keep the resources, set spec.destroyOnFinalize to false",
        hash_of('a')
    );
    assert_eq!(condition(&shown), words);
    let mut stack = Stack { status: shown.status, ..snapshot.stack };
    settings(&mut stack).approved = Some(hash_of('b'));
    assert_eq!(created(&plan(&support::snapshot(stack.clone()))), None);
    settings(&mut stack).approved = Some(hash_of('a'));
    let begun = plan(&support::snapshot(stack.clone()));
    let new = created(&begun).unwrap();
    assert_eq!((new.operation, &new.plan), (Operation::Destroy, &Some(hash_of('a'))));
    let mut after = Stack { status: begun.status, ..stack };
    assert!(after.permits(Some(&hash_of('a')), now()) && !after.permits(None, now()));
    // The plan of a destroy is no plan of an update.
    after.deleting = false;
    assert!(!after.permits(Some(&hash_of('a')), now()));
}

#[test]
fn plan_from_before_the_deletion_destroys_nothing() {
    let mut stack = deleted();
    (stack.deleting, stack.status.last_update) = (false, None);
    let first = plan(&snapshot(stack.clone()));
    let name = proposed(&first).unwrap().current.name.clone();
    stack.status = first.status;
    let mut next = snapshot(stack.clone());
    next.proposal = RunState::Ended(
        Run { name, generation: 2, ..run(Operation::Preview) },
        with(changes(hash_of('a'), &[(ChangeKind::Create, 1)])),
    );
    stack.status = plan(&next).status;
    settings(&mut stack).approved = Some(hash_of('a'));
    let begun = plan(&snapshot(stack.clone()));
    assert_eq!(created(&begun).unwrap().operation, Operation::Up);
    let mut approved = Stack { status: begun.status, ..stack };
    assert!(approved.permits(Some(&hash_of('a')), now()));
    // The deletion is a generation of its own.
    (approved.deleting, approved.generation) = (true, 3);
    assert!(!approved.permits(Some(&hash_of('a')), now()));
    approved.status.last_update = Some(last_update(LastUpdateState::Succeeded, 0, 60));
    let again = plan(&snapshot(approved));
    assert!(created(&again).is_none() && proposed(&again).is_some());
}

#[test]
fn approval_from_before_the_plan_of_a_destroy_counts_for_nothing() {
    let mut stack = deleted();
    settings(&mut stack).approved = Some(hash_of('a'));
    let early = plan(&ended(stack, now(), with(two_deleted('a'))));
    assert!(created(&early).is_none() && early.effects.contains(&Effect::SpendApproval), "{early:?}");
    let mut stack = waiting();
    settings(&mut stack).approved = Some(hash_of('a'));
    let broken = Snapshot { guard: Guard::Broken("it is missing".into()), ..snapshot(stack.clone()) };
    let unguarded = plan(&broken);
    assert!(condition(&unguarded).starts_with("Reconciling/ApprovalUnguarded") && created(&unguarded).is_none());
    // A user with the verb removes the annotation.
    stack.approval = None;
    let free = plan(&snapshot(stack));
    assert_eq!(created(&free).map(|new| (new.operation, new.plan.clone())), Some((Operation::Destroy, None)));
}

#[test]
fn destroyed_stack_is_released_and_a_failed_destroy_is_planned_again() {
    let done = plan(&after_run(outcome(true)));
    assert_eq!((done.effects.last(), state(&done)), (Some(&Effect::RemoveFinalizer), PlanState::Applied));
    let failed = after_run(RunOutcome { message: "no such bucket".into(), ..outcome(false) });
    let partly = plan(&failed);
    assert_eq!((state(&partly), partly.effects.contains(&Effect::SpendApproval)), (PlanState::Partly, true));
    let mut stack = Stack { status: partly.status, ..failed.stack };
    settings(&mut stack).approved = None;
    let later = now() + SignedDuration::from_secs(10);
    let retry = plan_at(&snapshot(stack), later);
    assert!(created(&retry).is_none() && proposed(&retry).is_some());
}

#[test]
fn stale_plan_of_a_destroy_touches_nothing() {
    let mut found = two_deleted('b');
    found.parts.state = hash_of('9');
    let snapshot = after_run(RunOutcome { stale: true, plan: Some(Box::new(found)), ..outcome(false) });
    let stale = plan(&snapshot);
    assert!(has_event(&stale, EventReason::PlanStale) && created(&stale).is_none() && proposed(&stale).is_none());
    let words = condition(&stale);
    assert!(
        words.contains("plan aaaaaaa was approved by ann, but is bbbbbbb now: ") && words.contains("; destroy: +0 ~0 -2"),
        "{words}"
    );
    assert!(!stale.effects.contains(&Effect::RemoveFinalizer) && state(&stale) == PlanState::Proposed);
}

#[test]
fn rejected_and_expired_plans_of_a_destroy_keep_the_resources() {
    let mut stack = waiting();
    (settings(&mut stack).approved, settings(&mut stack).rejected) = (Some(hash_of('a')), Some(hash_of('a')));
    let rejected = plan(&snapshot(stack.clone()));
    assert_eq!(
        condition(&rejected),
        "Stalled/PlanRejected: plan aaaaaaa was rejected; to withdraw that, remove the annotation driftless.dev/reject; to keep the \
         resources, set spec.destroyOnFinalize to false"
    );
    assert!(created(&rejected).is_none());
    // Withdrawn.
    stack.status = rejected.status;
    settings(&mut stack).rejected = None;
    assert!(created(&plan(&snapshot(stack.clone()))).is_some());
    let expired = plan_at(&snapshot(stack.clone()), now() + SignedDuration::from_hours(72));
    assert!(proposed(&expired).is_some() && created(&expired).is_none());
    // The resources are kept.
    stack.spec.destroy_on_finalize = false;
    assert_eq!(plan(&snapshot(stack)).effects, [Effect::RemoveFinalizer]);
}

#[test]
fn destroy_of_nothing_needs_no_approval() {
    let mut nothing = changes(hash_of('a'), &[]);
    nothing.operation = Operation::Destroy;
    let begun = plan(&ended(deleted(), now(), with(nothing)));
    assert_eq!(created(&begun).map(|new| (new.operation, new.plan.clone())), Some((Operation::Destroy, Some(hash_of('a')))));
    assert!(!has_event(&begun, EventReason::PlanProposed));
}

#[test]
fn new_revision_and_a_lost_source_leave_the_plan_of_a_destroy() {
    let mut stack = waiting();
    stack.status.project = Some(("shop".into(), "yaml".into()));
    let mut facts = snapshot(stack.clone());
    facts.source = Some(SourceState::Artifact { revision: "main@sha1:bbb".into(), digest: "sha256:bbb".into(), polled: None });
    let next = plan(&facts);
    assert!(next.effects.is_empty() && next.status.plan == stack.status.plan, "{next:?}");
    facts.source = Some(SourceState::NotFound);
    facts.tree = TreeState::Absent { failure: None };
    assert!(plan(&facts).effects.is_empty());
    settings(&mut facts.stack).approved = Some(hash_of('a'));
    let begun = plan(&facts);
    let new = created(&begun).unwrap();
    assert_eq!((new.operation, &new.tree, &new.plan), (Operation::Destroy, &None, &Some(hash_of('a'))));
}

#[test]
fn failed_preview_of_a_destroy_is_retried_without_end_and_says_what_to_do() {
    let mut stack = deleted();
    let mut at = now();
    for (wait, reason) in [
        (10, "Reconciling/PreviewFailed"),
        (30, "Reconciling/PreviewFailed"),
        (90, "Reconciling/PreviewFailed"),
        (270, "Stalled/UpdateFailed"),
        (810, "Stalled/UpdateFailed"),
    ] {
        let failed = RunOutcome { message: "credentials expired".into(), ..outcome(false) };
        let shown = plan_at(&ended(stack.clone(), at, failed), at);
        let words = condition(&shown);
        assert!(words.starts_with(&format!("{reason}: no plan of the destroy: credentials expired; ")), "{words}");
        assert!(words.contains("; or have a user with the verb approve remove the annotation driftless.dev/approval"), "{words}");
        assert!(has_event(&shown, EventReason::PlanFailed));
        stack.status = shown.status;
        // At rest, also if the source is gone.
        let mut idle = snapshot(stack.clone());
        idle.stack.status.project = Some(("shop".into(), "yaml".into()));
        idle.tree = TreeState::Absent { failure: None };
        assert_eq!(plan_at(&idle, at).effects, []);
        at += SignedDuration::from_secs(wait);
        assert_eq!(stack.status.next_reconciliation, Some(at));
    }
}

#[test]
fn proposal_that_waits_says_for_what() {
    let stack = deleted();
    let first = plan(&snapshot(stack.clone()));
    let name = proposed(&first).unwrap().current.name.clone();
    let mut next = snapshot(Stack { status: first.status, ..stack });
    let waiting = Readiness::processing("Secret \"aws\" not found");
    let live = |waiting| RunState::Live(Run { name: name.clone(), ..run(Operation::Destroy) }, UpdateFacts::default(), waiting);
    next.proposal = live(Some(waiting));
    assert_eq!(condition(&plan(&next)), "Reconciling/StackProcessing: Secret \"aws\" not found");
    next.proposal = live(None);
    assert_eq!(condition(&plan(&next)), "Reconciling/StackProcessing: making a plan of the changes");
}

#[test]
fn policies_of_the_cluster_decide_about_a_destroy() {
    let rule = |expression: &str, action| PlanRule {
        name: "destroys".into(),
        expression: expression.into(),
        action,
        message: "ask the platform team".into(),
    };
    let governed = |expression, action| Governance::Known {
        floor: None,
        policies: vec![PlanPolicy { name: "prod".into(), rules: Ok(vec![rule(expression, action)]), packs: Vec::new() }],
    };
    let mut complete = two_deleted('a');
    complete.changes.first.push(PlannedChange { urn: "urn:pulumi:dev::shop::t::u".into(), ..complete.changes.first[0].clone() });
    let facts = |governance: &Governance| {
        let mut stack = deleted();
        stack.approval = None;
        let first = plan(&Snapshot { governance: governance.clone(), ..snapshot(stack.clone()) });
        let name = proposed(&first).unwrap().current.name.clone();
        let mut next = snapshot(Stack { status: first.status, ..stack });
        next.governance = governance.clone();
        let run = Run { name, generation: 2, ..run(Operation::Destroy) };
        next.proposal = RunState::Ended(run, with(complete.clone()));
        next
    };
    // Only the cluster asks for plans, and no rule concerns this one.
    let free = plan(&facts(&governed("operation == 'up'", RuleAction::Deny)));
    assert_eq!(created(&free).unwrap().operation, Operation::Destroy);
    let demanded = plan(&facts(&governed("operation == 'destroy' && counts.delete > 1", RuleAction::RequireApproval)));
    assert!(condition(&demanded).contains("; approval required by PlanPolicy \"prod\", rule \"destroys\""));
    assert!(created(&demanded).is_none());
    let denied = plan(&facts(&governed("changes.exists(c, c.type.startsWith('aws:rds/'))", RuleAction::Deny)));
    let words = condition(&denied);
    assert!(words.starts_with("Stalled/PolicyViolation: destroy: +0 ~0 -2"), "{words}");
    assert!(
        words.ends_with("; have the policy changed, or set spec.destroyOnFinalize to false to keep the resources"),
        "{words}"
    );
    assert!(has_event(&denied, EventReason::PolicyViolation) && created(&denied).is_none());
}

#[test]
fn approved_destroy_starts_when_the_window_opens() {
    let mut stack = deleted();
    stack.window = Some(closed_window());
    let snapshot = ended(stack, now(), with(two_deleted('a')));
    let shown = plan(&snapshot);
    assert!(condition(&shown).starts_with("Reconciling/ApprovalRequired"));
    let mut stack = Stack { status: shown.status, ..snapshot.stack };
    settings(&mut stack).approved = Some(hash_of('a'));
    let closed = plan(&support::snapshot(stack.clone()));
    assert!(condition(&closed).starts_with("Reconciling/OutsideWindow") && created(&closed).is_none());
    assert!(created(&plan_at(&support::snapshot(stack), now() + SignedDuration::from_mins(61))).is_some());
}
