//! What a cluster demands of the plans of its Stacks: policies, and an annotation of the Namespace.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

fn rule(expression: &str, action: RuleAction) -> PlanRule {
    PlanRule { name: "databases".into(), expression: expression.into(), action, message: "ask the platform team".into() }
}

fn governed(rules: Vec<PlanRule>) -> Governance {
    Governance::Known { floor: None, policies: vec![PlanPolicy { name: "prod".into(), rules: Ok(rules), packs: Vec::new() }] }
}

const REPLACES: &str = "changes.exists(c, c.kind == 'replace' && c.type == 'aws:rds/instance:Instance')";

/// A plan that replaces a database.
fn replaces() -> PlannedChanges {
    let mut plan = changes(hash_of('a'), &[(ChangeKind::Replace, 1)]);
    plan.changes = Listed {
        count: 1,
        first: vec![PlannedChange {
            urn: "urn:pulumi:dev::shop::aws:rds/instance:Instance::db".into(),
            resource_type: "aws:rds/instance:Instance".into(),
            kind: ChangeKind::Replace,
            paths: vec!["engine".into()],
            replaced_by: vec!["engine".into()],
        }],
    };
    plan
}

/// The facts when the proposal of a Stack ended, which asks for no approvals itself.
fn proposed(governance: &Governance, plan: &PlannedChanges) -> Snapshot {
    let stack = stack();
    let first = plan_of(&Snapshot { governance: governance.clone(), ..snapshot(stack.clone()) });
    let name = first.status.plan.current.clone().unwrap();
    assert!(created(&first).is_none() && first.status.plan.guarded && first.status.plan.governed);
    let mut next = snapshot(Stack { status: first.status, ..stack });
    next.governance = governance.clone();
    let outcome = RunOutcome { plan: Some(Box::new(plan.clone())), ..outcome(true) };
    next.proposal = RunState::Ended(Run { name, ..run(Operation::Preview) }, outcome);
    next
}

/// The facts some time after [`proposed`], with the record of the plan.
fn waiting(governance: &Governance, plan: &PlannedChanges) -> Snapshot {
    let before = proposed(governance, plan);
    let status = plan_of(&before).status;
    Snapshot { governance: governance.clone(), planned: Some(plan.clone()), ..snapshot(Stack { status, ..before.stack }) }
}

fn plan_of(snapshot: &Snapshot) -> Plan {
    support::plan(snapshot)
}

fn events(plan: &Plan) -> Vec<EventReason> {
    let reason = |effect: &Effect| if let Effect::Event { reason, .. } = effect { Some(*reason) } else { None };
    plan.effects.iter().filter_map(reason).collect()
}

#[test]
fn denied_plan_is_not_applied_although_it_is_approved() {
    let governance = governed(vec![rule(REPLACES, RuleAction::Deny)]);
    let shown = plan_of(&proposed(&governance, &replaces()));
    let words = "Stalled/PolicyViolation: +0 ~0 -0 ±1 (replaces aws:rds/instance:Instance db); plan aaaaaaa; denied by PlanPolicy \
                 \"prod\", rule \"databases\": ask the platform team; push another change, or have the policy changed";
    assert_eq!(condition(&shown), words);
    assert!(events(&shown).contains(&EventReason::PolicyViolation) && created(&shown).is_none());
    let mut approved = waiting(&governance, &replaces());
    approved.stack.answers.approved = Some(hash_of('a'));
    let plan = plan_of(&approved);
    assert!(condition(&plan).starts_with("Stalled/PolicyViolation") && created(&plan).is_none());
    assert!(!events(&plan).contains(&EventReason::PolicyViolation));
    // A change of a policy sends no event.
    assert_eq!(plan.status.next_reconciliation, Some(now() + SignedDuration::from_secs(300)));
    approved.governance = governed(Vec::new());
    assert_eq!(created(&plan_of(&approved)).unwrap().plan, Some(hash_of('a')));
}

#[test]
fn plan_that_no_rule_concerns_is_applied_without_an_approval() {
    let governance = governed(vec![rule(REPLACES, RuleAction::Deny), rule("counts.delete > 0", RuleAction::RequireApproval)]);
    let snapshot = proposed(&governance, &changes(hash_of('a'), &[(ChangeKind::Create, 1)]));
    // Its list has no change that the rules could see.
    assert!(condition(&plan_of(&snapshot)).contains("cannot be evaluated: the plan has 1 changes"));
    let mut create = replaces();
    create.counts = [(ChangeKind::Create, 1)].into();
    create.changes.first[0].kind = ChangeKind::Create;
    let plan = plan_of(&proposed(&governance, &create));
    assert_eq!(created(&plan).unwrap().plan, Some(hash_of('a')));
    let after = Stack { status: plan.status, ..stack() };
    assert!(after.permits(Some(&hash_of('a')), now()) && !after.permits(None, now()));
}

#[test]
fn rule_demands_an_approval_that_the_launcher_checks() {
    let governance = governed(vec![rule(REPLACES, RuleAction::RequireApproval)]);
    let mut snapshot = waiting(&governance, &replaces());
    let plan = plan_of(&snapshot);
    let words = condition(&plan);
    let demand = "; approval required by PlanPolicy \"prod\", rule \"databases\": ask the platform team; to approve it: ";
    assert!(words.starts_with("Reconciling/ApprovalRequired: ") && words.contains(demand), "{words}");
    snapshot.stack.answers.approved = Some(hash_of('a'));
    let plan = plan_of(&snapshot);
    assert_eq!(created(&plan).unwrap().plan, Some(hash_of('a')));
    let mut after = Stack { status: plan.status, ..snapshot.stack };
    assert!(after.permits(Some(&hash_of('a')), now()));
    // The approval was withdrawn before the task started.
    after.answers.approved = None;
    assert!(!after.permits(Some(&hash_of('a')), now()));
}

#[test]
fn warning_is_in_the_proposal_and_in_an_event() {
    let governance = governed(vec![rule(REPLACES, RuleAction::Warn), rule("counts.replace > 0", RuleAction::RequireApproval)]);
    let plan = plan_of(&proposed(&governance, &replaces()));
    let words = condition(&plan);
    assert!(words.contains("; warning of PlanPolicy \"prod\", rule \"databases\": ask the platform team; approval"), "{words}");
    assert!(events(&plan).contains(&EventReason::PolicyWarning));
}

#[test]
fn nothing_is_applied_without_the_rules_and_the_record_of_the_plan() {
    let governance = governed(Vec::new());
    let mut snapshot = waiting(&governance, &replaces());
    snapshot.planned = None;
    let plan = plan_of(&snapshot);
    assert!(condition(&plan).ends_with("the record of the plan is not stored yet") && created(&plan).is_none());
    // It expired before the plan.
    let later = plan_at(&snapshot, now() + SignedDuration::from_mins(10));
    assert!(created(&later).is_none() && later.effects.iter().any(|effect| matches!(effect, Effect::Propose(_))));
    snapshot.planned = Some(changes(hash_of('b'), &[]));
    assert!(condition(&plan_of(&snapshot)).starts_with("Reconciling/PolicyUnknown"), "the record of another plan");
    snapshot.governance = Governance::Unreadable("planpolicies is forbidden".into());
    let plan = plan_of(&snapshot);
    assert!(condition(&plan).ends_with("before the policies of the cluster are read: planpolicies is forbidden"));
    // Also for a Stack that was never governed.
    let unreadable = Governance::Unreadable("planpolicies is forbidden".into());
    let plan = plan_of(&Snapshot { governance: unreadable, ..support::snapshot(stack()) });
    assert!(created(&plan).is_none() && plan.status.plan.guarded);
}

#[test]
fn status_remembers_that_the_cluster_asks_for_plans() {
    let mut stack = stack_after(last_update(LastUpdateState::Succeeded, 0, 60));
    stack.status.plan.governed = true;
    let unread = plan_of(&Snapshot { governance: Governance::Unread, ..snapshot(stack.clone()) });
    assert!(unread.status.plan.governed && unread.status.plan.guarded);
    let read = plan_of(&snapshot(stack));
    assert!(!read.status.plan.governed && !read.status.plan.guarded);
}

#[test]
fn namespace_sets_the_least_that_needs_an_approval() {
    let floor = |policy: &str| Governance::Known { floor: Some(ApprovalPolicy::parse(policy).unwrap()), policies: Vec::new() };
    // The Stack asks for nothing.
    let plan = plan_of(&proposed(&floor("required"), &replaces()));
    let words = condition(&plan);
    assert!(words.contains("; approval required by annotation driftless.dev/approval of Namespace \"team\"; "), "{words}");
    assert!(created(&plan_of(&proposed(&floor("unless delete"), &replaces()))).is_some());
    // The Stack can only be stricter.
    for (own, least, is_applied) in [
        ("unless delete", "required", false),
        ("unless replace", "unless delete", false),
        ("unless delete", "unless create", true),
    ] {
        let mut before = proposed(&floor(least), &replaces());
        before.stack.approval =
            Some(ApprovalSettings { policy: ApprovalPolicy::parse(own).unwrap(), ..ApprovalSettings::default() });
        assert_eq!(created(&plan_of(&before)).is_some(), is_applied, "{own} in {least}");
    }
}

#[test]
fn demands_of_a_cluster_without_the_admission_policy_stop_everything() {
    let governance = governed(Vec::new());
    let mut snapshot = waiting(&governance, &replaces());
    snapshot.guard = Guard::Broken("it is missing".into());
    let plan = plan_of(&snapshot);
    assert!(condition(&plan).starts_with("Reconciling/ApprovalUnguarded") && created(&plan).is_none());
}
