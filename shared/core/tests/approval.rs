//! A guarded Stack changes resources only by an approved plan.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

const HASH: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A Stack with an approval policy, whose generation 1 never ran.
fn guarded() -> Stack {
    let mut stack = stack();
    stack.approval = Some(ApprovalSettings { approved_by: Some("ann".into()), ..ApprovalSettings::default() });
    stack.status.plan.guarded = true;
    stack
}

/// A plan that creates three resources and replaces one.
fn three_created() -> PlannedChanges {
    let mut plan = changes(hash_of('a'), &[(ChangeKind::Create, 3), (ChangeKind::Replace, 1)]);
    let urn = "urn:pulumi:dev::shop::my:Net$aws:rds/instance:Instance::db".into();
    plan.changes.first = vec![PlannedChange {
        urn,
        resource_type: "aws:rds/instance:Instance".into(),
        kind: ChangeKind::Replace,
        paths: vec!["engine".into()],
        replaced_by: vec!["engine".into()],
    }];
    plan.unknown.count = 2;
    plan
}

/// The facts after the proposal of the Stack ended with that plan.
fn after_proposal(stack: Stack, plan: PlannedChanges) -> Snapshot {
    let first = plan_of(&snapshot(stack.clone()));
    let name = proposed(&first).unwrap().current.name.clone();
    let mut next = snapshot(Stack { status: first.status, ..stack });
    next.proposal =
        RunState::Ended(Run { name, ..run(Operation::Preview) }, RunOutcome { plan: Some(Box::new(plan)), ..outcome(true) });
    next
}

fn plan_of(snapshot: &Snapshot) -> Plan {
    support::plan(snapshot)
}

/// The Stack whose plan waits for an approval.
fn waiting(plan: PlannedChanges) -> Stack {
    let snapshot = after_proposal(guarded(), plan);
    let status = plan_of(&snapshot).status;
    Stack { status, ..snapshot.stack }
}

#[test]
fn wanted_run_of_a_guarded_stack_is_a_proposal() {
    let plan = plan_of(&snapshot(guarded()));
    let new = proposed(&plan).unwrap();
    assert_eq!((new.operation, created(&plan)), (Operation::Preview, None));
    assert_eq!(plan.status.plan.current.as_ref(), Some(&new.current.name));
    assert_eq!(plan.status.current_update, None);
    assert_eq!(condition(&plan), "Reconciling/StackProcessing: making a plan of the changes");
}

#[test]
fn plan_waits_for_its_approval_and_is_made_once() {
    let snapshot = after_proposal(guarded(), three_created());
    let plan = plan_of(&snapshot);
    assert!(has_event(&plan, EventReason::PlanProposed) && proposed(&plan).is_none() && created(&plan).is_none());
    assert_eq!(
        condition(&plan),
        format!(
            "Reconciling/ApprovalRequired: +3 ~0 -0 ±1 (replaces aws:rds/instance:Instance db); plan aaaaaaa; 2 values are known \
             only when it is applied; to approve it: kubectl driftless approve shop --namespace team --plan {HASH}; or set the \
             annotation driftless.dev/approve to this hash (docs/approval.md)"
        )
    );
    assert_eq!(plan.status.next_reconciliation, Some(now() + SignedDuration::from_hours(72)));
    assert_eq!((&plan.status.last_update, plan.status.ran), (&None, None));
    // The same wish makes no second one.
    let again = plan_of(&support::snapshot(Stack { status: plan.status.clone(), ..snapshot.stack }));
    assert_eq!((again.status, again.effects), (plan.status, Vec::new()));
}

#[test]
fn approval_of_the_hash_applies_that_plan() {
    let mut stack = waiting(three_created());
    // Another plan's approval does not count, and neither does a part of the hash.
    settings(&mut stack).approved = Some(hash_of('b'));
    assert_eq!(created(&plan_of(&snapshot(stack.clone()))), None);
    settings(&mut stack).approved = Some(hash_of('a'));
    let plan = plan_of(&snapshot(stack.clone()));
    let new = created(&plan).unwrap();
    assert_eq!((new.operation, &new.plan), (Operation::Up, &Some(hash_of('a'))));
    assert_ne!(new.current.name, update_name(&stack));
    let proposal = plan.status.plan.proposal.as_ref().unwrap();
    assert_eq!((proposal.state, proposal.by.as_deref()), (PlanState::Approved, Some("ann")));
    let after = Stack { status: plan.status.clone(), ..stack };
    assert!(after.permits(Some(&hash_of('a')), now()));
    assert!(!after.permits(None, now()) && !after.permits(Some(&hash_of('b')), now()));
    assert!(!after.permits(Some(&hash_of('a')), now() + SignedDuration::from_hours(73)));
}

/// The facts after the run of the approved plan ended.
fn after_run(change: impl FnOnce(&mut RunOutcome)) -> Snapshot {
    let mut stack = waiting(three_created());
    settings(&mut stack).approved = Some(hash_of('a'));
    let plan = plan_of(&snapshot(stack.clone()));
    let name = created(&plan).unwrap().current.name.clone();
    let mut next = snapshot(Stack { status: plan.status, ..stack });
    let mut outcome = outcome(true);
    change(&mut outcome);
    next.run = RunState::Ended(Run { name, plan: Some(hash_of('a')), ..run(Operation::Up) }, outcome);
    next
}

fn state(plan: &Plan) -> PlanState {
    plan.status.plan.proposal.as_ref().unwrap().state
}

#[test]
fn applied_plan_makes_the_stack_ready_and_spends_its_approval() {
    let snapshot = after_run(|_| {});
    let plan = plan_of(&snapshot);
    assert_eq!((condition(&plan).as_str(), state(&plan)), ("Ready", PlanState::Applied));
    assert_eq!(plan.status.plan.spent, Some(hash_of('a')));
    assert!(plan.effects.contains(&Effect::SpendApproval));
    // When the annotation is gone, the same plan can be approved again.
    let mut stack = Stack { status: plan.status, ..snapshot.stack };
    settings(&mut stack).approved = None;
    assert_eq!(plan_of(&support::snapshot(stack)).status.plan.spent, None);
}

#[test]
fn failed_run_is_retried_by_a_new_proposal() {
    let snapshot = after_run(|outcome| (outcome.succeeded, outcome.message) = (false, "no such bucket".into()));
    let plan = plan_of(&snapshot);
    assert_eq!(state(&plan), PlanState::Partly);
    let later = now() + SignedDuration::from_secs(10);
    let stack = Stack { status: plan.status, ..snapshot.stack };
    let retry = plan_at(&support::snapshot(stack.clone()), later);
    assert!(created(&retry).is_none() && proposed(&retry).is_some());
    // The same plan again: the approval that was used does not count.
    let mut next = support::snapshot(Stack { status: retry.status, ..stack });
    let name = next.stack.status.plan.current.clone().unwrap();
    let outcome = RunOutcome { plan: Some(Box::new(three_created())), ..outcome(true) };
    next.proposal = RunState::Ended(Run { name, ..run(Operation::Preview) }, outcome);
    let plan = plan_at(&next, later);
    assert_eq!((created(&plan), state(&plan)), (None, PlanState::Proposed));
}

#[test]
fn run_that_never_reached_pulumi_keeps_its_approval() {
    let snapshot = after_run(|outcome| {
        (outcome.succeeded, outcome.operated, outcome.platform_failure) = (false, false, true);
        "no capacity".clone_into(&mut outcome.message);
    });
    let plan = plan_of(&snapshot);
    assert_eq!((state(&plan), &plan.status.plan.spent), (PlanState::Approved, &None));
    let first = plan.status.last_update.as_ref().unwrap().name.clone();
    let retry =
        plan_at(&support::snapshot(Stack { status: plan.status, ..snapshot.stack }), now() + SignedDuration::from_secs(10));
    let new = created(&retry).unwrap();
    assert!(new.plan == Some(hash_of('a')) && new.current.name != first);
}

#[test]
fn stale_plan_touches_nothing_and_the_new_one_waits() {
    let mut found = changes(hash_of('b'), &[(ChangeKind::Delete, 1)]);
    found.parts.state = hash_of('9');
    let snapshot = after_run(|outcome| {
        (outcome.succeeded, outcome.stale, outcome.plan) = (false, true, Some(Box::new(found)));
    });
    let plan = plan_of(&snapshot);
    assert!(has_event(&plan, EventReason::PlanStale) && created(&plan).is_none() && proposed(&plan).is_none());
    assert_eq!((&plan.status.last_update, state(&plan)), (&None, PlanState::Proposed));
    let words = condition(&plan);
    assert!(
        words.starts_with(
            "Reconciling/ApprovalRequired: plan aaaaaaa was approved by ann, but is bbbbbbb now: the planned changes differ, the \
             state of the stack changed; nothing was touched; +0 ~0 -1 ±0; plan bbbbbbb; to approve it: "
        ),
        "{words}"
    );
    // Its approval leads to another Update than that of the stale run.
    let stale = snapshot.stack.status.current_update.as_ref().unwrap().name.clone();
    let mut stack = Stack { status: plan.status, ..snapshot.stack };
    settings(&mut stack).approved = Some(hash_of('b'));
    let next = plan_of(&support::snapshot(stack));
    assert_ne!(created(&next).unwrap().current.name, stale);
}

/// The facts after the run of an approved plan of a changed Secret ended as stale, and found that
/// plan.
fn after_stale_run_of_a_secret(found: Option<PlannedChanges>) -> Snapshot {
    let mut next = after_run(|outcome| {
        (outcome.succeeded, outcome.stale, outcome.plan) = (false, true, found.map(Box::new));
    });
    let status = &mut next.stack.status;
    (status.last_update, status.inputs) = (Some(last_update(LastUpdateState::Succeeded, 0, 3600)), Some("old".into()));
    next.inputs = Some(Inputs { changed: true, digest: None, read: ago(120), waits_for: None });
    next
}

#[test]
fn stale_plan_of_a_changed_secret_leaves_the_stack_not_ready() {
    let found = changes(hash_of('b'), &[(ChangeKind::Update, 1)]);
    let shown = plan_of(&after_stale_run_of_a_secret(Some(found)));
    let words = condition(&shown);
    assert!(words.starts_with("Reconciling/ApprovalRequired: plan aaaaaaa was approved by ann, but is bbbbbbb now"), "{words}");
    assert_eq!((proposed(&shown), state(&shown)), (None, PlanState::Proposed));
    // Without the new plan, one is made at once.
    assert!(proposed(&plan_of(&after_stale_run_of_a_secret(None))).is_some());
}

#[test]
fn unguarded_cluster_counts_no_approval_and_no_loosening() {
    let mut stack = waiting(three_created());
    settings(&mut stack).approved = Some(hash_of('a'));
    let broken = Guard::Broken("ValidatingAdmissionPolicy \"driftless-approval\" is missing".into());
    let plan = plan_of(&Snapshot { guard: broken.clone(), ..snapshot(stack.clone()) });
    let words = condition(&plan);
    assert!(words.starts_with("Reconciling/ApprovalUnguarded: +3 ~0 -0 ±1"), "{words}");
    assert!(words.contains("no approval counts: ValidatingAdmissionPolicy") && created(&plan).is_none());
    assert!(plan.status.next_reconciliation.is_some());
    // Nor does it count once the policy is restored, until the plan is approved again.
    let mut restored = Stack { status: plan.status.clone(), ..stack.clone() };
    let plan = plan_of(&snapshot(restored.clone()));
    assert!(condition(&plan).starts_with("Reconciling/ApprovalRequired") && created(&plan).is_none(), "{}", condition(&plan));
    assert!(plan.effects.contains(&Effect::SpendApproval));
    restored.status = plan.status;
    settings(&mut restored).approved = None;
    restored.status = plan_of(&snapshot(restored.clone())).status;
    settings(&mut restored).approved = Some(hash_of('a'));
    assert!(created(&plan_of(&snapshot(restored))).is_some());
    // The removal of the annotation counts only where the cluster enforces who may remove it.
    stack.approval = None;
    let loosened = plan_of(&Snapshot { guard: broken, ..snapshot(stack.clone()) });
    assert!(created(&loosened).is_none() && loosened.status.plan.guarded);
    assert!(!stack.permits(None, now()));
    let loosened = plan_of(&snapshot(stack));
    assert!(created(&loosened).is_some() && !loosened.status.plan.guarded);
}

#[test]
fn plan_without_the_named_kinds_applies_itself() {
    let policy = || ApprovalPolicy::parse("unless replace, delete").unwrap();
    let mut stack = waiting(changes(hash_of('a'), &[(ChangeKind::Create, 3)]));
    settings(&mut stack).policy = policy();
    let plan = plan_of(&snapshot(stack));
    assert_eq!(created(&plan).unwrap().plan, Some(hash_of('a')));
    assert_eq!(plan.status.plan.proposal.as_ref().unwrap().by, None);
    // A superfluous approval changes nothing, though it was there before the plan was shown.
    let mut approved = waiting(changes(hash_of('a'), &[(ChangeKind::Create, 3)]));
    approved.status.plan.proposal.as_mut().unwrap().offered = false;
    *settings(&mut approved) =
        ApprovalSettings { policy: policy(), approved: Some(hash_of('a')), ..settings(&mut approved).clone() };
    assert_eq!(created(&plan_of(&snapshot(approved))).unwrap().plan, Some(hash_of('a')));
    let mut stack = waiting(three_created());
    settings(&mut stack).policy = policy();
    assert_eq!(created(&plan_of(&snapshot(stack))), None);
}

/// A guarded Stack that has run this generation at an older commit.
fn at_older_commit() -> Stack {
    let last = last_update(LastUpdateState::Succeeded, 0, 3600);
    let status = stack_after(LastUpdate { last_successful_commit: "main@sha1:000".into(), ..last }).status;
    Stack { status: StackStatus { plan: guarded().status.plan, ..status }, ..guarded() }
}

#[test]
fn plan_without_changes_is_applied_where_only_an_update_does_the_rest() {
    type Change = fn(&mut Stack);
    let cases: [(&str, Change, bool); 6] = [
        ("another commit", |_| (), false),
        // Its outputs are in no status and in no object yet.
        ("never ran", |stack| stack.status.last_update = None, true),
        ("failed", |stack| stack.status.last_update.as_mut().unwrap().state = LastUpdateState::Failed, true),
        // The objects for its outputs, or the sealed copy, may be other ones.
        ("an edit", |stack| stack.status.last_update.as_mut().unwrap().generation = 0, true),
        ("another Secret", |stack| stack.status.inputs = Some("old".into()), false),
        // The sealed copy has the old value.
        (
            "another Secret, for the destroy as well",
            |stack| (stack.status.inputs, stack.spec.destroy_on_finalize) = (Some("old".into()), true),
            true,
        ),
    ];
    for (why, change, is_applied) in cases {
        let mut stack = at_older_commit();
        change(&mut stack);
        let mut snapshot = after_proposal(stack, changes(hash_of('a'), &[]));
        if let RunState::Ended(_, outcome) = &mut snapshot.proposal {
            outcome.inputs = snapshot.stack.status.inputs.as_ref().map(|_| "new".into());
        }
        let plan = plan_of(&snapshot);
        assert_eq!(created(&plan).and_then(|new| new.plan.clone()), is_applied.then(|| hash_of('a')), "{why}");
        assert!(!has_event(&plan, EventReason::PlanProposed), "{why}: there is nothing to approve");
    }
}

#[test]
fn plan_without_changes_makes_the_stack_ready() {
    let snapshot = after_proposal(at_older_commit(), changes(hash_of('a'), &[]));
    let plan = plan_of(&snapshot);
    assert_eq!((condition(&plan).as_str(), state(&plan)), ("Ready", PlanState::NoChanges));
    assert_eq!(plan.status.last_update.as_ref().unwrap().last_successful_commit, "main@sha1:aaa");
    assert!(plan.effects.contains(&Effect::WakeDependents) && created(&plan).is_none());
    let again = plan_of(&support::snapshot(Stack { status: plan.status, ..snapshot.stack }));
    assert_eq!(again.effects, Vec::new());
}

#[test]
fn plan_for_a_changed_secret_waits_for_its_approval() {
    let mut stack = Stack { status: stack_after(last_update(LastUpdateState::Succeeded, 0, 3600)).status, ..guarded() };
    (stack.status.plan.guarded, stack.status.inputs) = (true, Some("old".into()));
    let changed = Some(Inputs { changed: true, digest: None, read: now(), waits_for: None });
    let mut wanted = snapshot(stack);
    wanted.inputs.clone_from(&changed);
    let planning = plan_of(&wanted);
    let name = proposed(&planning).unwrap().current.name.clone();
    wanted.stack.status = planning.status;
    let outcome = RunOutcome { plan: Some(Box::new(three_created())), inputs: Some("new".into()), ..outcome(true) };
    wanted.proposal = RunState::Ended(Run { name, ..run(Operation::Preview) }, outcome);
    let shown = plan_of(&wanted);
    assert!(condition(&shown).starts_with("Reconciling/ApprovalRequired: "), "{}", condition(&shown));
    (wanted.stack.status, wanted.proposal) = (shown.status, RunState::None);
    assert_eq!(proposed(&plan_of(&wanted)), None);
    wanted.stack.approval.as_mut().unwrap().approved = Some(hash_of('a'));
    assert_eq!(created(&plan_of(&wanted)).unwrap().plan, Some(hash_of('a')));

    // A commit that changes nothing is recorded as run, and applies no Secret.
    (wanted.stack.paths, wanted.stack.status.scope) = (Some("modules".into()), Some("same".into()));
    wanted.tree = TreeState::Stored { project: Project::There, scope: Some("same".into()) };
    wanted.source = Some(SourceState::Artifact { revision: "main@sha1:bbb".into(), digest: "sha256:bbb".into(), polled: None });
    let skipped = plan_of(&wanted);
    assert!(has_event(&skipped, EventReason::RevisionSkipped) && proposed(&skipped).is_some(), "{}", condition(&skipped));
    assert!(!skipped.effects.contains(&Effect::SpendApproval));
}

/// The facts while a plan of a changed Secret waits, made a minute ago, and a comparison in
/// `seconds` since then has read `digest`.
fn planned_secret(state: PlanState, digest: &str, seconds: i64) -> Snapshot {
    let mut stack = waiting(three_created());
    stack.spec.default_resync_seconds = 600;
    let status = &mut stack.status;
    (status.last_update, status.inputs) = (Some(last_update(LastUpdateState::Succeeded, 0, 3600)), Some("v0".into()));
    let proposal = status.plan.proposal.as_mut().unwrap();
    (proposal.state, proposal.wish.inputs) = (state, Some("v1".into()));
    if state == PlanState::Failed {
        (proposal.plan, proposal.failed_at, proposal.expires) = (None, Some(ago(60)), None);
    }
    settings(&mut stack).rejected = (state == PlanState::Rejected).then(|| hash_of('a'));
    let mut next = snapshot(stack);
    next.inputs = Some(Inputs { changed: true, digest: Some(digest.into()), read: ago(60 - seconds), waits_for: None });
    next
}

#[test]
fn secret_that_changes_once_more_gets_its_own_plan() {
    for state in [PlanState::Proposed, PlanState::Rejected, PlanState::Failed] {
        let waits = |digest, seconds| proposed(&plan_of(&planned_secret(state, digest, seconds))).is_none();
        assert!(waits("v1", 5), "{state:?}: it is the planned Secret");
        assert!(waits("v2", -5), "{state:?}: the plan has read a newer one");
        assert!(!waits("v2", 5), "{state:?}");
        // The Secret is compared while its plan waits, as that of a Stack at rest is.
        let mut waiting = planned_secret(state, "v1", 5);
        waiting.stack.status = plan_of(&waiting).status;
        let due = now() + SignedDuration::from_secs(600 - 55);
        assert_eq!(waiting.stack.status.next_reconciliation, Some(due), "{state:?}");
        assert_eq!(plan_at(&waiting, due).effects, [Effect::CompareInputs], "{state:?}");
    }
    // The digest is the one that the preview read, or that of the preview before if it reported
    // none.
    let mut next = planned_secret(PlanState::Rejected, "v2", 5);
    let planning = plan_of(&next);
    let run = Run { name: proposed(&planning).unwrap().current.name.clone(), ..run(Operation::Preview) };
    next.stack.status = planning.status;
    for (inputs, planned) in [(Some("v2".to_owned()), "v2"), (None, "v1")] {
        next.proposal = RunState::Ended(run.clone(), RunOutcome { inputs, ..outcome(false) });
        let failed = plan_of(&next);
        let proposal = failed.status.plan.proposal.as_ref().unwrap();
        assert_eq!((proposal.wish.inputs.as_deref(), proposal.failed_at, proposal.failures), (Some(planned), Some(now()), 1));
        assert_eq!(proposed(&failed), None);
    }
}

#[test]
fn secret_that_is_gone_gets_one_plan() {
    let mut next = planned_secret(PlanState::Proposed, "", 5);
    let planning = plan_of(&next);
    let run = Run { name: proposed(&planning).unwrap().current.name.clone(), ..run(Operation::Preview) };
    next.stack.status = planning.status;
    let outcome = RunOutcome { plan: Some(Box::new(three_created())), inputs: None, ..outcome(true) };
    next.proposal = RunState::Ended(run, outcome);
    let waiting = plan_of(&next);
    assert_eq!(waiting.status.plan.proposal.as_ref().unwrap().wish.inputs, None);
    next.stack.status = waiting.status;
    next.proposal = RunState::None;
    next.inputs.as_mut().unwrap().read = now() + SignedDuration::from_secs(600);
    assert_eq!(proposed(&plan_at(&next, now() + SignedDuration::from_secs(601))), None);
}

#[test]
fn rejected_plan_stalls_until_another_change_is_wanted() {
    let mut stack = waiting(three_created());
    settings(&mut stack).approved = Some(hash_of('a'));
    settings(&mut stack).rejected = Some(hash_of('a'));
    let plan = plan_of(&snapshot(stack.clone()));
    let words = condition(&plan);
    assert!(words.starts_with("Stalled/PlanRejected: plan aaaaaaa was rejected") && created(&plan).is_none(), "{words}");
    stack.generation = 2;
    assert!(proposed(&plan_of(&snapshot(stack))).is_some());
}

#[test]
fn plan_expires_and_another_one_is_made() {
    let mut stack = waiting(three_created());
    settings(&mut stack).approved = Some(hash_of('a'));
    let plan = plan_at(&snapshot(stack), now() + SignedDuration::from_hours(72));
    assert!(proposed(&plan).is_some() && created(&plan).is_none());
    assert_eq!(state(&plan), PlanState::Expired);
}

#[test]
fn failed_preview_is_retried_up_to_the_limit() {
    let mut stack = guarded();
    let mut at = now();
    for (wait, words) in [(10, "attempt 1"), (30, "attempt 2"), (90, "attempt 3"), (0, "4 previews failed; not retrying")] {
        let plan = plan_at(&snapshot(stack.clone()), at);
        let name = proposed(&plan).unwrap().current.name.clone();
        let mut next = snapshot(Stack { status: plan.status, ..stack.clone() });
        let failed = RunOutcome { message: "no such bucket".into(), ..outcome(false) };
        next.proposal = RunState::Ended(Run { name, ..run(Operation::Preview) }, failed);
        let plan = plan_at(&next, at);
        assert!(condition(&plan).contains(words) && has_event(&plan, EventReason::PlanFailed), "{}", condition(&plan));
        stack.status = plan.status;
        at += SignedDuration::from_secs(wait);
    }
    // At rest, nothing fetches the tree again after its retention.
    let without_tree = Snapshot { tree: TreeState::Absent { failure: None }, ..snapshot(stack.clone()) };
    let plan = plan_at(&without_tree, at);
    assert_eq!((plan.effects, plan.status.readiness), (Vec::new(), stack.status.readiness.clone()));
    stack.reconcile_request = "now".into();
    assert!(proposed(&plan_at(&snapshot(stack), at)).is_some());
}

#[test]
fn plan_is_made_before_the_window_opens_and_applied_in_it() {
    let mut stack = guarded();
    stack.window = Some(closed_window());
    assert!(proposed(&plan_of(&snapshot(stack))).is_some());
    let mut stack = waiting(three_created());
    stack.window = Some(closed_window());
    settings(&mut stack).approved = Some(hash_of('a'));
    let plan = plan_of(&snapshot(stack.clone()));
    assert!(condition(&plan).starts_with("Reconciling/OutsideWindow") && created(&plan).is_none());
    let open = plan_at(&snapshot(stack), now() + SignedDuration::from_mins(61));
    assert!(created(&open).is_some());
}

#[test]
fn git_is_polled_while_a_plan_waits() {
    let stack = waiting(three_created());
    let polled = |seconds: i64| {
        let mut snapshot = snapshot(stack.clone());
        let source =
            SourceState::Artifact { revision: "main@sha1:aaa".into(), digest: "sha256:aaa".into(), polled: Some(ago(seconds)) };
        snapshot.source = Some(source);
        snapshot
    };
    let fresh = plan_of(&polled(10));
    assert_eq!(fresh.status.next_reconciliation, Some(now() + SignedDuration::from_secs(50)));
    let mut next = polled(10);
    next.stack.status = fresh.status;
    let due = plan_at(&next, now() + SignedDuration::from_secs(50));
    assert!(condition(&due).starts_with("Reconciling/ApprovalRequired"), "{}", condition(&due));
    assert!(due.effects.iter().any(|effect| matches!(effect, Effect::Fetch(_))) && proposed(&due).is_none());
}

#[test]
fn withdrawn_change_leaves_no_plan() {
    let mut stack = waiting(three_created());
    stack.status.last_update = Some(last_update(LastUpdateState::Succeeded, 0, 60));
    let plan = plan_of(&snapshot(stack));
    assert_eq!((condition(&plan).as_str(), &plan.status.plan.proposal), ("Ready", &None));
}

#[test]
fn approval_policy_is_read_strictly() {
    assert_eq!(ApprovalPolicy::parse("required"), Ok(ApprovalPolicy::Required));
    let kinds = [ChangeKind::Delete, ChangeKind::Forget].into();
    assert_eq!(ApprovalPolicy::parse("unless delete,forget"), Ok(ApprovalPolicy::Unless(kinds)));
    for wrong in ["", "Required", "unless", "unless ", "unless updates", "unless delete,", "off"] {
        assert!(ApprovalPolicy::parse(wrong).unwrap_err().contains("write \"required\""), "{wrong}");
    }
}
