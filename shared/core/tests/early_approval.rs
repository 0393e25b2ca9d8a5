//! A pull request shows the plan that a Stack will have after the merge, and that plan can be
//! approved before it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

/// A plan that updates a resource.
fn updated(digit: char) -> PlannedChanges {
    let mut plan = changes(hash_of(digit), &[(ChangeKind::Update, 1)]);
    plan.changes.count = 1;
    plan.changes.first = vec![PlannedChange {
        urn: "urn:pulumi:dev::shop::aws:s3/bucket:Bucket::logs".into(),
        resource_type: "aws:s3/bucket:Bucket".into(),
        kind: ChangeKind::Update,
        paths: vec!["tags".into()],
        replaced_by: Vec::new(),
    }];
    plan
}

/// The hash with which a pull request shows the plan, and with which it is approved there.
fn early(digit: char) -> PlanHash {
    updated(digit).early_hash().unwrap()
}

/// A guarded Stack that has run, takes pull requests, and has the approval of the plan of this
/// digit.
fn named(approved: Option<char>) -> Stack {
    let mut stack = stack_after(last_update(LastUpdateState::Succeeded, 0, 600));
    let approved = approved.map(early);
    stack.status.plan.takes_early = true;
    stack.answers = ApprovalSettings { approved, approved_by: Some("ann".into()), ..ApprovalSettings::default() };
    stack.approval = Some(stack.answers.clone());
    stack.status.plan.guarded = true;
    stack.pull_requests = Some("preview".into());
    stack.spec.service_account_name = Some("deploy".into());
    stack
}

/// The facts of a Stack that previews `named`.
fn pull_request(named: Option<Stack>) -> Snapshot {
    let mut stack = Stack { name: "shop-17".into(), uid: "uid-17".into(), ..stack() };
    (stack.spec.preview, stack.spec.service_account_name) = (true, Some("preview".into()));
    (stack.pull_request_of, stack.change_request) = (Some("shop".into()), Some(ChangeRequest(17)));
    Snapshot { named: named.map(Box::new), ..snapshot(stack) }
}

/// The facts after its run ended with that plan.
fn previewed(named: Stack, plan: PlannedChanges) -> Snapshot {
    let mut snapshot = pull_request(Some(named));
    snapshot.run = RunState::Ended(run(Operation::Preview), RunOutcome { plan: Some(Box::new(plan)), ..outcome(true) });
    snapshot
}

/// The Event about the end of a run: its type, its note and its pull request.
fn told(plan: &Plan) -> (EventType, &str, Option<ChangeRequest>) {
    let event = plan.effects.iter().find_map(|effect| match effect {
        Effect::Event { event_type, reason: EventReason::StackCreated, note, change_request, .. } => {
            Some((*event_type, note.as_str(), *change_request))
        }
        _ => None,
    });
    event.unwrap()
}

#[test]
fn pull_request_shows_the_plan_and_never_applies_it() {
    let begun = plan(&pull_request(Some(named(None))));
    assert_eq!((created(&begun).unwrap().operation, proposed(&begun)), (Operation::Preview, None));
    let snapshot = previewed(named(None), updated('a'));
    let ended = plan(&snapshot);
    let hash = early('a');
    let note = format!(
        "Preview succeeded: +0 ~1 -0 ±0 (updates aws:s3/bucket:Bucket logs); plan {}; to approve it before the merge: kubectl \
         driftless approve shop --namespace team --plan {hash}",
        hash.short()
    );
    assert_eq!(told(&ended), (EventType::Normal, &*note, Some(ChangeRequest(17))));
    let proposal = ended.status.plan.proposal.as_ref().unwrap();
    assert_eq!((proposal.state, &proposal.plan.as_ref().unwrap().hash), (PlanState::Preview, &hash));
    assert_eq!(condition(&ended), "Ready");
    // Whatever its annotations say: it is applied after the merge only.
    let mut stack = Stack { status: ended.status.clone(), ..snapshot.stack };
    (stack.answers.approved, stack.approval) = (Some(hash.clone()), Some(named(Some('a')).answers));
    assert!(!stack.permits(Some(&hash), now()) && stack.early_approval().is_none());
    // It is the plan of the last preview, and of nothing else.
    let mut next = Snapshot { stack, ..pull_request(Some(named(None))) };
    next.stack.approval = None;
    assert_eq!(plan(&next).status.plan.proposal.as_ref(), Some(proposal));
    next.run = RunState::Ended(run(Operation::Preview), outcome(false));
    assert_eq!(plan(&next).status.plan.proposal, None);
    (next.run, next.stack.pull_request_of) = (RunState::None, None);
    assert_eq!(plan(&next).status.plan.proposal, None);
}

#[test]
fn command_is_left_out_where_no_approval_counts() {
    let ended = plan(&Snapshot { guard: Guard::Broken("it is missing".into()), ..previewed(named(None), updated('a')) });
    let (_, note, _) = told(&ended);
    assert!(note.ends_with("; no approval counts: it is missing; apply infra/kubernetes/approval.yaml"), "{note}");
}

#[test]
fn hash_to_approve_covers_the_changes_that_are_shown() {
    // The task of a pull request can report the hash of one plan with the changes of another.
    let mut lie = updated('a');
    lie.changes.first[0].paths = vec!["website".into()];
    assert_ne!(lie.early_hash(), updated('a').early_hash());
    let mut stack = named(None);
    settings(&mut stack).approved = lie.early_hash();
    let seen = plan(&snapshot(stack.clone()));
    assert_eq!(seen.status.plan.early.as_ref().map(|early| &early.hash), lie.early_hash().as_ref());
    let waiting = plan(&merged(Stack { status: seen.status, ..stack }, updated('a')));
    assert_eq!(created(&waiting), None);
    assert!(condition(&waiting).starts_with("Reconciling/ApprovalRequired: "), "{}", condition(&waiting));
    // A longer list is not shown whole, so no hash of it can be approved.
    let change = updated('a').changes.first[0].clone();
    for number in [20, 21] {
        let mut plan = updated('a');
        plan.changes.first = vec![change.clone(); number];
        plan.changes.count = u32::try_from(number).unwrap();
        assert_eq!(plan.early_hash().is_some(), number == 20, "{number} changes");
        let mut plan = updated('a');
        plan.changes.first[0].paths = vec!["tags".into(); number - 1];
        assert_eq!(plan.early_hash().is_some(), number == 20, "{} paths", number - 1);
    }
    // The time of a plan is no part of it.
    let later = PlannedChanges { made_at: now(), ..updated('a') };
    assert_eq!(later.early_hash(), updated('a').early_hash());
}

#[test]
fn deletion_of_the_stack_of_a_pull_request_waits_for_its_own_plan() {
    let mut snapshot = pull_request(None);
    snapshot.stack.spec.preview = false;
    snapshot.stack.approval = Some(ApprovalSettings::default());
    snapshot.stack.status.plan.guarded = true;
    (snapshot.stack.deleting, snapshot.stack.generation, snapshot.stack.spec.destroy_on_finalize) = (true, 2, true);
    snapshot.stack.status.last_update = Some(last_update(LastUpdateState::Succeeded, 0, 600));
    let first = plan(&snapshot);
    let name = proposed(&first).unwrap().current.name.clone();
    let mut made = updated('d');
    made.operation = Operation::Destroy;
    let outcome = RunOutcome { plan: Some(Box::new(made)), ..outcome(true) };
    snapshot.stack.status = first.status;
    snapshot.proposal = RunState::Ended(Run { name, generation: 2, ..run(Operation::Destroy) }, outcome);
    let ended = plan(&snapshot);
    assert_eq!(proposed(&ended), None);
    assert!(condition(&ended).starts_with("Reconciling/ApprovalRequired: "), "{}", condition(&ended));
    (snapshot.stack.status, snapshot.proposal) = (ended.status, RunState::None);
    assert_eq!(proposed(&plan(&snapshot)), None);
}

#[test]
fn plan_of_a_pull_request_is_judged() {
    let rule = |action| PlanRule {
        name: "logs".into(),
        expression: "stack.name == 'shop' && changes.exists(c, c.name == 'logs')".into(),
        action,
        message: "ask the platform team".into(),
    };
    let judged = |action| {
        let policy = PlanPolicy { name: "prod".into(), rules: Ok(vec![rule(action)]), packs: Vec::new() };
        let governance = Governance::Known { floor: None, policies: vec![policy] };
        plan(&Snapshot { governance, ..previewed(named(None), updated('a')) })
    };
    let (denied, warned) = (judged(RuleAction::Deny), judged(RuleAction::Warn));
    let (event_type, note, number) = told(&denied);
    assert_eq!((event_type, number), (EventType::Warning, Some(ChangeRequest(17))));
    assert!(note.contains("; denied by ") && !note.contains("to approve it"), "{note}");
    let (event_type, note, _) = told(&warned);
    assert!(event_type == EventType::Normal && note.contains("; warning of ") && note.contains("to approve it"), "{note}");
}

#[test]
fn unfit_pull_request_starts_nothing_and_says_why() {
    let fit = pull_request(Some(named(None)));
    let condition_of = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = fit.clone();
        change(&mut snapshot);
        let plan = plan(&snapshot);
        assert_eq!((created(&plan), plan.status.next_reconciliation), (None, Some(now() + SignedDuration::from_secs(300))));
        condition(&plan)
    };
    let named = |change: fn(&mut Stack)| condition_of(&|snapshot| change(snapshot.named.as_mut().unwrap()));
    let says = "Stalled/SpecInvalid: annotation driftless.dev/pull-request-of is \"shop\"";
    for (found, words) in [
        (
            condition_of(&|snapshot| snapshot.named = None),
            ", and namespace \"team\" has no such Stack; create it, or correct the annotation",
        ),
        (
            condition_of(&|snapshot| snapshot.stack.spec.preview = false),
            ", but spec.preview is false; set it to true, or remove the annotation",
        ),
        (
            named(|stack| stack.pull_requests = None),
            ", whose annotation driftless.dev/pull-requests is missing; set that to \"preview\", or remove the annotation",
        ),
        (
            named(|stack| stack.pull_requests = Some("yes".into())),
            ", whose annotation driftless.dev/pull-requests is \"yes\"; set that to \"preview\", or remove the annotation",
        ),
        (named(|stack| stack.spec.preview = true), ", which only previews; name the Stack that applies the change"),
        (
            condition_of(&|snapshot| snapshot.stack.spec.service_account_name = None),
            ", and spec.serviceAccountName is missing; name a ServiceAccount that may only read",
        ),
        (
            named(|stack| stack.spec.service_account_name = Some("preview".into())),
            ", and spec.serviceAccountName is \"preview\", as in that Stack; name another one, which may only read",
        ),
        (
            condition_of(&|snapshot| {
                snapshot.stack.spec.service_account_name = Some("default".into());
                snapshot.named.as_mut().unwrap().spec.service_account_name = None;
            }),
            ", and spec.serviceAccountName is \"default\", as in that Stack; name another one, which may only read",
        ),
    ] {
        assert_eq!(found, format!("{says}{words}"));
    }
    // Its deletion ends.
    let mut deleted = Snapshot { named: None, ..fit.clone() };
    deleted.stack.deleting = true;
    assert!(plan(&deleted).effects.contains(&Effect::RemoveFinalizer));
}

/// The Stack after the reconciliation that saw the approval of plan `a` of a pull request.
fn approved_early() -> Stack {
    let snapshot = snapshot(named(Some('a')));
    let plan = plan(&snapshot);
    assert!(!plan.effects.contains(&Effect::SpendApproval) && created(&plan).is_none());
    Stack { status: plan.status, ..snapshot.stack }
}

/// The facts after the merge, when the proposal of the Stack ended with that plan.
fn merged(mut stack: Stack, plan_of: PlannedChanges) -> Snapshot {
    stack.generation = 2;
    let first = plan(&snapshot(stack.clone()));
    let name = proposed(&first).unwrap().current.name.clone();
    let mut next = snapshot(Stack { status: first.status, ..stack });
    let outcome = RunOutcome { plan: Some(Box::new(plan_of)), ..outcome(true) };
    next.proposal = RunState::Ended(Run { name, generation: 2, ..run(Operation::Preview) }, outcome);
    next
}

#[test]
fn approval_ends_with_the_consent_even_if_its_plan_comes_at_the_same_time() {
    let mut merged = merged(approved_early(), updated('a'));
    merged.stack.pull_requests = None;
    let waiting = plan(&merged);
    assert_eq!(created(&waiting), None);
    assert!(condition(&waiting).starts_with("Reconciling/ApprovalRequired: "), "{}", condition(&waiting));
    assert!(waiting.effects.contains(&Effect::SpendApproval) && waiting.status.plan.early.is_none(), "{waiting:?}");
}

#[test]
fn approval_that_replaces_another_counts_even_if_its_plan_comes_at_the_same_time() {
    let mut merged = merged(approved_early(), updated('b'));
    settings(&mut merged.stack).approved = Some(early('b'));
    assert_eq!(created(&plan(&merged)).unwrap().plan, Some(hash_of('b')));
}

#[test]
fn approval_of_the_plan_of_a_pull_request_applies_it_once() {
    let stack = approved_early();
    let early = stack.status.plan.early.clone().unwrap();
    assert_eq!(
        (early.hash.clone(), early.by.as_deref(), early.expires),
        (self::early('a'), Some("ann"), now() + SignedDuration::from_hours(72))
    );
    assert_eq!(stack.status.next_reconciliation, Some(early.expires));
    // The pull request is gone after the merge.
    let snapshot = merged(stack, updated('a'));
    let applied = plan(&snapshot);
    let new = created(&applied).unwrap();
    assert_eq!((new.operation, &new.plan), (Operation::Up, &Some(hash_of('a'))));
    let proposal = applied.status.plan.proposal.as_ref().unwrap();
    assert_eq!(
        (proposal.state, proposal.by.as_deref(), proposal.expires),
        (PlanState::Approved, Some("ann"), Some(early.expires))
    );
    // It is used once, also if the run failed.
    let mut next = support::snapshot(Stack { status: applied.status.clone(), ..snapshot.stack });
    assert!(next.stack.permits(Some(&hash_of('a')), now()) && !next.stack.permits(Some(&hash_of('a')), early.expires));
    let run = Run { name: new.current.name.clone(), generation: 2, plan: Some(hash_of('a')), ..run(Operation::Up) };
    next.run = RunState::Ended(run, outcome(false));
    let ended = plan(&next);
    assert!(ended.effects.contains(&Effect::SpendApproval) && ended.status.plan.spent == Some(early.hash));
    let after = support::snapshot(Stack { status: ended.status, ..next.stack });
    let after = plan(&after);
    assert_eq!((created(&after), &after.status.plan.early), (None, &None));
    assert!(after.effects.contains(&Effect::SpendApproval));
}

#[test]
fn another_plan_after_the_merge_waits_for_its_own_approval() {
    let waiting = plan(&merged(approved_early(), updated('b')));
    assert_eq!(created(&waiting), None);
    assert!(condition(&waiting).starts_with("Reconciling/ApprovalRequired: "), "{}", condition(&waiting));
}

#[test]
fn early_approval_is_spent_with_the_run_whose_plan_is_not_known() {
    let snapshot = merged(approved_early(), updated('a'));
    let applied = plan(&snapshot);
    let name = created(&applied).unwrap().current.name.clone();
    let mut next = support::snapshot(Stack { status: applied.status, ..snapshot.stack });
    next.stack.status.plan.proposal = None;
    next.run = RunState::Ended(Run { name, plan: Some(hash_of('a')), ..run(Operation::Up) }, outcome(false));
    let ended = plan(&next);
    assert!(ended.status.plan.early.is_none() && ended.status.plan.spent == Some(early('a')));
    assert!(ended.effects.contains(&Effect::SpendApproval));
}

#[test]
fn approval_that_was_not_checked_never_counts() {
    let broken = || Guard::Broken("it is missing".into());
    // Set before the Stack took early approvals, or while its consent was away, or nothing
    // enforced who may approve.
    for change in [
        (|snapshot| snapshot.stack.status.plan.takes_early = false) as fn(&mut Snapshot),
        |snapshot| snapshot.stack.status.plan = PlanStatus::default(),
        |snapshot| snapshot.guard = Guard::Broken("it is missing".into()),
    ] {
        let mut snapshot = snapshot(named(Some('a')));
        change(&mut snapshot);
        let seen = plan(&snapshot);
        assert!(seen.status.plan.early.is_none() && seen.effects.contains(&Effect::SpendApproval));
        assert_eq!(seen.status.plan.takes_early, snapshot.guard == Guard::Intact);
        // It stays so until the annotation is empty.
        let stack = Stack { status: seen.status, ..named(Some('a')) };
        let waiting = plan(&merged(stack, updated('a')));
        assert_eq!((created(&waiting), &waiting.status.plan.early), (None, &None));
        assert!(waiting.effects.contains(&Effect::SpendApproval));
    }
    for change in [
        (|stack| stack.pull_requests = None) as fn(&mut Stack),
        |stack| stack.pull_request_of = Some("db".into()),
        |stack| stack.deleting = true,
    ] {
        let mut stack = named(Some('a'));
        change(&mut stack);
        let status = plan(&snapshot(stack)).status;
        assert!(!status.plan.takes_early && status.plan.early.is_none());
    }
    // Nor while the Stack is not guarded.
    let mut open = named(Some('a'));
    (open.approval, open.status.plan.guarded) = (None, false);
    let open = plan(&snapshot(open)).status;
    assert!(!open.plan.takes_early && open.plan.early.is_none());
    let away = plan(&Snapshot { guard: broken(), ..snapshot(named(None)) });
    assert!(!away.status.plan.takes_early);
}

#[test]
fn early_approval_ends_with_its_time_its_consent_and_the_policy() {
    let ends = |change: &dyn Fn(&mut Snapshot), seconds: i64| {
        let mut snapshot = snapshot(approved_early());
        change(&mut snapshot);
        let ended = plan_at(&snapshot, now() + SignedDuration::from_secs(seconds));
        (ended.status.plan.early.is_none(), ended.effects.contains(&Effect::SpendApproval))
    };
    let broken = || Guard::Broken("it is missing".into());
    assert_eq!(ends(&|_| {}, 72 * 3600 - 1), (false, false));
    assert_eq!(ends(&|_| {}, 72 * 3600), (true, true));
    assert_eq!(ends(&|snapshot| snapshot.stack.pull_requests = None, 0), (true, true));
    assert_eq!(ends(&|snapshot| snapshot.guard = broken(), 0), (true, true));
    assert_eq!(ends(&|snapshot| settings(&mut snapshot.stack).approved = None, 0), (true, false));
    assert_eq!(ends(&|snapshot| snapshot.stack.pull_request_of = Some("db".into()), 0), (true, true));
    assert_eq!(ends(&|snapshot| settings(&mut snapshot.stack).rejected = Some(early('a')), 0), (false, false));
    // It is not asked for again.
    assert_eq!(approved_early().early_approval(), None);
    // An expired one applies nothing.
    let mut merged = merged(approved_early(), updated('a'));
    merged.stack.status.plan.early.as_mut().unwrap().expires = now();
    let waiting = plan(&merged);
    assert!(created(&waiting).is_none() && waiting.effects.contains(&Effect::SpendApproval));
}
