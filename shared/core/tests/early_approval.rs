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
    plan.changes.first = vec![PlannedChange {
        urn: "urn:pulumi:dev::shop::aws:s3/bucket:Bucket::logs".into(),
        resource_type: "aws:s3/bucket:Bucket".into(),
        kind: ChangeKind::Update,
        paths: vec!["tags".into()],
        replaced_by: Vec::new(),
    }];
    plan
}

/// A guarded Stack that has run, takes pull requests, and has this approval.
fn named(approved: Option<char>) -> Stack {
    let mut stack = stack_after(last_update(LastUpdateState::Succeeded, 0, 600));
    let approved = approved.map(hash_of);
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
    let hash = hash_of('a');
    let note = format!(
        "Preview succeeded: +0 ~1 -0 ±0 (updates aws:s3/bucket:Bucket logs); plan aaaaaaa; to approve it before the merge: kubectl \
         driftless approve shop --namespace team --plan {hash}"
    );
    assert_eq!(told(&ended), (EventType::Normal, &*note, Some(ChangeRequest(17))));
    let proposal = ended.status.plan.proposal.as_ref().unwrap();
    assert_eq!((proposal.state, proposal.offered), (PlanState::Preview, true));
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
fn plan_is_offered_only_under_the_policy_and_before_its_approval() {
    let offered = |plan: &Plan| plan.status.plan.proposal.as_ref().unwrap().offered;
    let broken = Snapshot { guard: Guard::Broken("it is missing".into()), ..previewed(named(None), updated('a')) };
    assert!(!offered(&plan(&broken)));
    let mut next =
        Snapshot { stack: Stack { status: plan(&broken).status, ..broken.stack }, ..pull_request(Some(named(Some('a')))) };
    assert!(!offered(&plan(&next)), "it was approved before it was shown");
    next.named = Some(Box::new(named(Some('b'))));
    next.stack.status = plan(&next).status;
    assert!(offered(&plan(&next)));
    next.named = Some(Box::new(named(Some('a'))));
    assert!(offered(&plan(&next)), "it was shown before its approval");
    next.guard = broken.guard;
    assert!(!offered(&plan(&next)));
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
        assert_eq!((created(&plan), plan.status.next_reconciliation), (None, Some(now() + SignedDuration::from_secs(60))));
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
    let snapshot = Snapshot { shown: true, ..snapshot(named(Some('a'))) };
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
fn approval_of_the_plan_of_a_pull_request_applies_it_once() {
    let stack = approved_early();
    let early = stack.status.plan.early.clone().unwrap();
    assert_eq!(
        (early.hash, early.by.as_deref(), early.expires),
        (hash_of('a'), Some("ann"), now() + SignedDuration::from_hours(72))
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
    assert!(ended.effects.contains(&Effect::SpendApproval) && ended.status.plan.spent == Some(hash_of('a')));
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
fn approval_that_no_pull_request_shows_is_emptied_with_its_plan() {
    let seen = plan(&snapshot(named(Some('a'))));
    assert_eq!(seen.status.plan.early, None);
    let stack = Stack { status: seen.status, ..named(Some('a')) };
    let waiting = plan(&merged(stack, updated('a')));
    assert_eq!(created(&waiting), None);
    assert!(waiting.effects.contains(&Effect::SpendApproval));
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
    assert_eq!(ends(&|snapshot| settings(&mut snapshot.stack).approved = Some(hash_of('b')), 0), (true, false));
    // One that was set while nothing guarded it.
    let unguarded = plan(&Snapshot { guard: broken(), shown: true, ..snapshot(named(Some('a'))) });
    assert!(unguarded.status.plan.early.is_none() && unguarded.effects.contains(&Effect::SpendApproval));
    // It is not asked for again.
    assert_eq!(approved_early().early_approval(), None);
    // An expired one applies nothing.
    let mut merged = merged(approved_early(), updated('a'));
    merged.stack.status.plan.early.as_mut().unwrap().expires = now();
    let waiting = plan(&merged);
    assert!(created(&waiting).is_none() && waiting.effects.contains(&Effect::SpendApproval));
}
