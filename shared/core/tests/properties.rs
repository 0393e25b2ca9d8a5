//! Properties of every plan, for any facts about the Stack.

mod support;

use std::collections::BTreeSet;

use driftless_core::{
    run::{UpdateFacts, WaitReason},
    *,
};
use jiff::{SignedDuration, Timestamp};
use proptest::{option, prelude::*};
use support::*;

/// Around the time of the reconciliation: long ago, just now, ahead. Seldom at an end of the
/// calendar, because a user who may write a status can write any time.
fn time() -> impl Strategy<Value = Timestamp> {
    let near = (-200_i64..200, 0_i32..3).prop_map(|(seconds, nanoseconds)| ago(seconds) + SignedDuration::new(0, nanoseconds));
    let end = (0_i64..7200, any::<bool>()).prop_map(|(seconds, last)| {
        let far = SignedDuration::from_secs(seconds);
        if last { Timestamp::MAX - far } else { Timestamp::MIN + far }
    });
    prop_oneof![6 => near, 1 => end]
}

/// A number of seconds in a spec: any value that the API server accepts.
fn seconds() -> impl Strategy<Value = i64> {
    prop_oneof![6 => -10_i64..200, 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![Just(Operation::Up), Just(Operation::Preview), Just(Operation::Refresh), Just(Operation::Destroy)]
}

fn commit() -> impl Strategy<Value = Revision> {
    prop_oneof![Just("main@sha1:aaa".into()), Just("main@sha1:bbb".into()), Just(Revision::default())]
}

fn request() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("now".to_owned())]
}

prop_compose! {
    fn last()(
        generation in 1_i64..4,
        reconcile_request in request(),
        operation in option::of(operation()),
        state in prop_oneof![Just(LastUpdateState::Succeeded), Just(LastUpdateState::Failed), Just(LastUpdateState::Unknown)],
        (last_attempted_commit, last_successful_commit) in (commit(), commit()),
        last_resync_time in option::of(time()),
        failures in prop_oneof![9 => 0_i64..6, 1 => Just(i64::MIN), 1 => Just(i64::MAX)],
    ) -> LastUpdate {
        let (name, message) = ("shop-000".into(), String::new());
        LastUpdate {
            name, generation, reconcile_request, operation, state, message, last_attempted_commit, last_successful_commit,
            permalink: None, last_resync_time, failures,
        }
    }
}

prop_compose! {
    fn a_run()(
        generation in 1_i64..4, reconcile_request in request(), commit in commit(), operation in operation(), refresh in any::<bool>(),
    ) -> Run {
        Run {
            namespace: "team".into(), name: "shop-111".into(), generation, reconcile_request, commit, operation,
            scope: Some("scope".into()), refresh, adopts: operation == Operation::Refresh, plan: None,
        }
    }
}

fn a_drift() -> impl Strategy<Value = Drift> {
    (0_u32..3).prop_map(|count| Drift { count, resources: Vec::new() })
}

prop_compose! {
    fn drift_settings()(
        schedule in option::weighted(0.9, prop_oneof![Just("1m"), Just("3h"), Just("2562047788015215h"), Just("*/2 * * * *"), Just("0 3 * * *")]),
        remediate in option::of(prop_oneof![Just(Remediate::Always), Just(Remediate::Check("check-1".into()))]),
        adopt in option::weighted(0.3, prop_oneof![Just("check-1".to_owned()), Just("check-2".to_owned())]),
    ) -> DriftSettings {
        DriftSettings { schedule: schedule.map(support::schedule), adopt, remediate, ignored: Vec::new() }
    }
}

prop_compose! {
    fn drift_status()(
        current in option::of(Just("check-2".to_owned())),
        last in option::of(Just("check-1".to_owned())),
        checked in option::of(time()),
        verdict in option::of(prop_oneof![
            Just(DriftVerdict::None), Just(DriftVerdict::Remediated), Just(DriftVerdict::Adopted), a_drift().prop_map(DriftVerdict::Found),
            Just(DriftVerdict::Unknown("no".into())),
        ]),
        adoption_failed in any::<bool>(),
    ) -> DriftStatus {
        DriftStatus { current, last, checked, verdict, adoption_failed }
    }
}

fn a_hash() -> impl Strategy<Value = PlanHash> {
    prop_oneof![Just('a'), Just('b')].prop_map(support::hash_of)
}

/// A digest of inputs.
fn a_digest() -> impl Strategy<Value = String> {
    prop_oneof![Just("old".to_owned()), Just("new".to_owned())]
}

/// The operation of a plan.
fn planned() -> impl Strategy<Value = Operation> {
    prop_oneof![Just(Operation::Up), Just(Operation::Refresh), Just(Operation::Destroy)]
}

prop_compose! {
    fn a_changes()(hash in a_hash(), creates in 0_u32..2, deletes in 0_u32..2, operation in planned()) -> PlannedChanges {
        let changes = support::changes(hash, &[(ChangeKind::Create, creates), (ChangeKind::Delete, deletes)]);
        PlannedChanges { operation, ..changes }
    }
}

/// The hash with which a pull request shows a plan, or that of no such plan.
fn an_early_hash() -> impl Strategy<Value = PlanHash> {
    prop_oneof![3 => a_changes().prop_map(|plan| plan.early_hash().unwrap_or(plan.hash)), 1 => a_hash()]
}

prop_compose! {
    fn approval_settings()(
        unless in any::<bool>(), approved in option::of(a_hash()), rejected in option::weighted(0.2, a_hash()),
    ) -> ApprovalSettings {
        let policy = if unless { ApprovalPolicy::Unless([ChangeKind::Delete].into()) } else { ApprovalPolicy::Required };
        ApprovalSettings { policy, approved, approved_by: Some("ann".into()), rejected, ..ApprovalSettings::default() }
    }
}

prop_compose! {
    fn a_proposal()(
        state in prop::sample::select(&PlanState::ALL[..]), plan in option::weighted(0.9, a_changes()), commit in commit(),
        (generation, reconcile_request, refresh) in (1_i64..4, request(), any::<bool>()), expires in option::of(time()), failures in 0_i64..5,
        (offered, demanded) in (any::<bool>(), option::weighted(0.2, Just("a rule".to_owned()))), operation in planned(),
        (inputs, failed_at) in (option::of(a_digest()), option::of(time())),
    ) -> Proposal {
        let plan = plan.map(|plan| PlannedChanges { operation, ..plan });
        let commit = if operation == Operation::Destroy { Revision::default() } else { commit };
        let inputs = inputs.filter(|_| operation == Operation::Up);
        let wish = Wish { operation, commit, generation, reconcile_request, refresh, inputs };
        let failed_at = failed_at.filter(|_| plan.is_none());
        Proposal { state, plan, wish, update: "plan-1".into(), offered, demanded, by: None, expires, note: String::new(), failures, failed_at }
    }
}

prop_compose! {
    fn plan_status()(
        (guarded, governed) in any::<(bool, bool)>(), current in option::weighted(0.3, Just("plan-2".to_owned())), last in option::of(Just("plan-1".to_owned())),
        proposal in option::weighted(0.8, a_proposal()), spent in option::weighted(0.3, a_hash()),
        takes_early in any::<bool>(),
        early in option::weighted(0.3, (an_early_hash(), time()).prop_map(|(hash, expires)| EarlyApproval { hash, by: None, expires })),
    ) -> PlanStatus {
        PlanStatus { guarded, governed, current, last, proposal, takes_early, early, spent }
    }
}

fn a_proposal_state() -> impl Strategy<Value = RunState> {
    let operation = || prop_oneof![Just(Operation::Preview), Just(Operation::Destroy)];
    let run = || (a_run(), operation()).prop_map(|(run, operation)| Run { name: "plan-2".into(), operation, ..run });
    prop_oneof![
        1 => Just(RunState::Missing),
        1 => Just(RunState::Foreign),
        2 => run().prop_map(|run| RunState::Live(run, UpdateFacts::default(), None)),
        4 => (run(), any::<bool>(), any::<bool>(), option::of(a_changes().prop_map(Box::new))).prop_map(|(run, started, succeeded, plan)| {
            RunState::Ended(run, RunOutcome { started, plan, ..outcome(succeeded) })
        }),
    ]
}

fn a_guard() -> impl Strategy<Value = Guard> {
    prop_oneof![2 => Just(Guard::Intact), 1 => Just(Guard::Broken("the policy is missing".into()))]
}

/// Rules that demand an approval of what creates, and deny what deletes.
fn a_governance() -> BoxedStrategy<Governance> {
    let rule = |expression: &str, action| PlanRule {
        name: "rule".into(),
        expression: expression.into(),
        action,
        message: String::new(),
    };
    let rules = vec![rule("counts.delete > 0", RuleAction::Deny), rule("counts.create > 0", RuleAction::RequireApproval)];
    let policy = PlanPolicy { name: "policy".into(), rules: Ok(rules), packs: Vec::new() };
    let floor = option::weighted(0.2, prop_oneof![Just(ApprovalPolicy::Required), Just(ApprovalPolicy::none())]);
    let known = (floor, any::<bool>())
        .prop_map(move |(floor, has)| Governance::Known { floor, policies: has.then(|| policy.clone()).into_iter().collect() });
    prop_oneof![4 => known, 1 => Just(Governance::Unread), 1 => Just(Governance::Unreadable("forbidden".into()))].boxed()
}

fn a_check_state() -> impl Strategy<Value = RunState> {
    let check = || a_run().prop_map(|run| Run { name: "check-2".into(), operation: Operation::Refresh, ..run });
    prop_oneof![
        1 => Just(RunState::Missing),
        1 => Just(RunState::Foreign),
        2 => check().prop_map(|run| RunState::Live(run, UpdateFacts::default(), None)),
        4 => (check(), any::<bool>(), any::<bool>(), any::<bool>(), option::of(a_drift())).prop_map(
            |(run, started, succeeded, interrupted, drift)| {
                RunState::Ended(run, RunOutcome { started, interrupted, drift, ..outcome(succeeded) })
            }
        ),
    ]
}

/// An Update's facts about itself, which any user may have written.
fn an_update() -> impl Strategy<Value = UpdateFacts> {
    (option::of(time()), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(complete_since, finalizer, task, suspended)| {
        let waiting = suspended.then_some(WaitReason::StackSuspended);
        UpdateFacts { complete_since, finalizer, task, waiting, ..UpdateFacts::default() }
    })
}

fn a_run_state() -> impl Strategy<Value = RunState> {
    prop_oneof![
        3 => Just(RunState::None),
        1 => Just(RunState::Missing),
        1 => Just(RunState::Foreign),
        2 => (a_run(), an_update(), option::of(Just(Readiness::processing("Secret"))))
            .prop_map(|(run, update, waiting)| RunState::Live(run, update, waiting)),
        2 => (a_run(), any::<bool>(), any::<bool>())
            .prop_map(|(run, succeeded, conflict)| RunState::Ended(run, RunOutcome { conflict, ..outcome(succeeded) })),
        1 => (a_run(), a_hash(), any::<bool>(), any::<bool>(), option::of(a_changes().prop_map(Box::new)), planned()).prop_map(|(run, hash, operated, stale, plan, operation)| {
            let run = Run { plan: Some(hash), operation, ..run };
            RunState::Ended(run, RunOutcome { operated, stale, plan, ..outcome(!stale) })
        }),
    ]
}

fn a_source() -> impl Strategy<Value = Option<SourceState>> {
    option::weighted(
        0.9,
        prop_oneof![
            Just(SourceState::NotFound),
            Just(SourceState::NoArtifact { why: "auth failed".into() }),
            Just(SourceState::Unfit { why: "it is being deleted".into() }),
            Just(SourceState::Unknown { subject: "generation 2".into() }),
            (commit(), option::of(time())).prop_map(|(revision, polled)| SourceState::Artifact {
                revision,
                digest: "sha256:aaa".into(),
                polled
            }),
            Just(SourceState::Artifact { revision: "main@sha1:aaa".into(), digest: "sha256:aaa".into(), polled: None }),
        ],
    )
}

fn a_tree() -> impl Strategy<Value = TreeState> {
    let failed = (time(), any::<bool>(), 0_u32..9).prop_map(|(at, terminal, failures)| TreeState::Absent {
        failure: Some(FetchFailure { at, message: "refused".into(), terminal, failures }),
    });
    let project = prop_oneof![4 => Just(Project::There), 1 => Just(Project::NoDirectory), 1 => Just(Project::NoFile)];
    let stored = (project, option::of(prop_oneof![Just("scope".to_owned()), Just("other".to_owned())]))
        .prop_map(|(project, scope)| TreeState::Stored { project, scope });
    prop_oneof![3 => stored, 1 => Just(TreeState::Absent { failure: None }), 1 => failed]
}

prop_compose! {
    fn a_spec()(
        preview in any::<bool>(),
        destroy_on_finalize in any::<bool>(),
        continue_resync_on_commit_match in any::<bool>(),
        refresh in any::<bool>(),
        prerequisite in option::weighted(0.2, option::of(seconds())),
        resync_frequency_seconds in option::of(seconds()),
        retry_max_backoff_duration_seconds in option::of(seconds()),
        valid in prop::bool::weighted(0.9),
        (run_program, retry_on_update_conflict, reclaim_workspace) in (any::<bool>(), any::<bool>(), any::<bool>()),
        retries in option::of((0_i64..4, option::of(1_i64..99))),
    ) -> StackSpec {
        let prerequisites = prerequisite
            .map(|succeeded_within_seconds| PrerequisiteRef { name: "db".into(), succeeded_within_seconds });
        StackSpec {
            stack: if valid { "dev".into() } else { String::new() },
            preview, destroy_on_finalize, run_program, retry_on_update_conflict, reclaim_workspace, continue_resync_on_commit_match, refresh, resync_frequency_seconds,
            retries: retries.map(|(limit, first_backoff_seconds)| Retries { limit, first_backoff_seconds }),
            retry_max_backoff_duration_seconds, prerequisites: prerequisites.into_iter().collect(), ..stack().spec
        }
    }
}

prop_compose! {
    fn a_snapshot()(
        spec in a_spec().boxed(),
        (generation, deleting, finalizer, suspended, reconcile_request) in
            (1_i64..4, any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), request()),
        last_update in option::weighted(0.8, last()).boxed(),
        (next_reconciliation, scope) in (option::of(time()), option::of(Just("scope".to_owned()))),
        (source, tree, run) in (a_source().boxed(), a_tree().boxed(), a_run_state().boxed()),
        prerequisite in option::of((1_i64..3, option::of(last()))).boxed(),
        (project, conflict, inputs, cycle) in
            (any::<bool>(), any::<bool>(), option::weighted(0.3, (any::<bool>(), option::of(a_digest()), time())), any::<bool>()),
        (drift, drift_status, check) in (option::of(drift_settings()).boxed(), drift_status().boxed(), a_check_state().boxed()),
        (window, ttl, expiry) in (
            option::weighted(0.3, prop_oneof![Just("0 * * * *"), Just("0 22 * * 1-5")]),
            option::weighted(0.3, (time(), any::<bool>())),
            option::of((time(), any::<bool>())),
        ),
        (approval, plan_status, proposal, guard) in
            (option::of(approval_settings()).boxed(), plan_status().boxed(), a_proposal_state().boxed(), a_guard()),
        (answers, governance, planned) in (approval_settings().boxed(), a_governance(), option::weighted(0.9, a_changes()).boxed()),
        (takes_pull_requests, is_early, of) in (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2)).boxed(),
    ) -> Snapshot {
        let mut stack = Stack { generation, deleting, finalizer, suspended, reconcile_request, spec, drift, approval, ..stack() };
        stack.answers = ApprovalSettings { policy: ApprovalPolicy::none(), ..answers };
        let proposal = if plan_status.current.is_some() { proposal } else { RunState::None };
        stack.status.plan = plan_status;
        stack.pull_requests = takes_pull_requests.then(|| "preview".into());
        stack.pull_request_of = of.then(|| "app".into());
        stack.spec.service_account_name = Some("preview".into());
        let target = of.then(|| Box::new(Stack { pull_requests: Some("preview".into()), ..support::stack() }));
        stack.window = window.map(support::window);
        stack.ttl = ttl.map(|(created, is_applied)| {
            support::ttl("2h", created, is_applied.then_some("Kustomization flux-system/apps"))
        });
        stack.status.expiry = expiry.map(|(at, is_blocked)| Expiry { at, blocked: is_blocked.then(|| "blocked".into()) });
        let check = if drift_status.current.is_some() { check } else { RunState::None };
        stack.status.drift = drift_status;
        stack.status.last_update = last_update;
        stack.status.next_reconciliation = next_reconciliation;
        stack.status.scope = scope;
        stack.status.project = project.then(|| ("shop".to_owned(), "yaml".to_owned()));
        stack.status.conflict = conflict;
        if let Some(early) = stack.status.plan.early.as_ref().filter(|_| is_early).map(|early| early.hash.clone()) {
            stack.answers.approved = Some(early.clone());
            if let Some(settings) = &mut stack.approval {
                settings.approved = Some(early);
            }
        }
        let named = CurrentUpdate { name: "shop-111".into(), generation: 1, reconcile_request: String::new(), commit: Revision::default() };
        stack.status.current_update = (run != RunState::None).then_some(named);
        let found = prerequisite.map(|(generation, last_update)| Prerequisite { generation, reconcile_request: String::new(), last_update });
        let prerequisites = stack.spec.prerequisites.iter().map(|_| found.clone()).collect();
        let requires = [("shop", "db"), ("db", if cycle { "shop" } else { "net" })].map(|(a, b)| (a.to_owned(), vec![b.to_owned()])).into();
        let inputs = inputs.map(|(changed, digest, read)| Inputs { changed, digest, read, waits_for: None });
        Snapshot { stack, source, tree, run, check, proposal, guard, governance, planned, prerequisites, requires, named: target, inputs }
    }
}

/// The facts after a plan was carried out, as the Stack's own next reconciliation would read them.
fn after(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let mut next = snapshot.clone();
    next.stack.status = plan.status.clone();
    // As Kubernetes stores it.
    next.stack.status.next_reconciliation =
        plan.status.next_reconciliation.and_then(|at| Timestamp::from_second(at.as_second()).ok());
    next.stack.finalizer = true;
    // The inputs of an update that was recorded are what the next comparison uses; those of a plan
    // are applied with it.
    let [now, before] = [&plan.status, &snapshot.stack.status].map(|status| status.last_update.as_ref().map(|last| &last.name));
    if let Some(inputs) = next.inputs.as_mut().filter(|_| now != before) {
        inputs.changed = false;
    }
    if plan.effects.contains(&Effect::SpendApproval) {
        next.stack.answers.approved = None;
        if let Some(settings) = &mut next.stack.approval {
            settings.approved = None;
        }
    }
    next.run = match (created(plan), &snapshot.run) {
        (Some(new), _) => RunState::Live(
            Run {
                namespace: "team".into(),
                name: new.current.name.clone(),
                generation: new.current.generation,
                reconcile_request: new.current.reconcile_request.clone(),
                commit: new.current.commit.clone(),
                operation: new.operation,
                scope: new.tree.as_ref().and_then(|tree| tree.scope.clone()),
                refresh: new.refresh,
                adopts: new.operation == Operation::Refresh,
                plan: new.plan.clone(),
            },
            UpdateFacts::default(),
            None,
        ),
        (None, RunState::Ended(..) | RunState::Missing) => RunState::None,
        (None, run) => run.clone(),
    };
    next.check = match (&plan.status.drift.current, &snapshot.check) {
        (Some(_), RunState::Live(..)) => snapshot.check.clone(),
        (Some(name), _) => RunState::Live(Run { name: name.clone(), ..run(Operation::Refresh) }, UpdateFacts::default(), None),
        (None, _) => RunState::None,
    };
    next.proposal = match (&plan.status.plan.current, &snapshot.proposal) {
        (Some(_), RunState::Live(..)) => snapshot.proposal.clone(),
        (Some(name), _) => RunState::Live(Run { name: name.clone(), ..run(Operation::Preview) }, UpdateFacts::default(), None),
        (None, _) => RunState::None,
    };
    next
}

proptest! {
    #[test]
    fn no_plan_breaks_an_invariant(snapshot in a_snapshot()) {
        let plan = decide(&snapshot, now());
        prop_assert_eq!(violations(&snapshot, &plan, now()), Vec::<String>::new(), "{:#?}", plan);
        prop_assert_eq!(decide(&snapshot, now()), plan, "the same facts, another plan");
    }

    #[test]
    fn sweep_hints_every_stack(snapshot in a_snapshot()) {
        let turn = its_turn(snapshot.stack.uid.as_str(), 1, 1, 1, now());
        prop_assert!(due(&snapshot.stack, turn, now()), "it is its turn each second");
    }

    #[test]
    fn second_reconciliation_of_the_same_facts_does_nothing(snapshot in a_snapshot()) {
        let plan = decide(&snapshot, now());
        let gone = snapshot.stack.deleting && (!snapshot.stack.finalizer || plan.effects.contains(&Effect::RemoveFinalizer));
        // A failure that is due, or that a user asks to retry, leads to one more request at once,
        // until the answer is due.
        let asked_for = snapshot.stack.reconcile_request != snapshot.stack.status.observed_reconcile_request;
        let retried = matches!(&snapshot.tree, TreeState::Absent { failure: Some(failure) }
            if asked_for || now().duration_since(failure.at) >= SignedDuration::from_secs(30));
        if gone || retried || plan.effects.contains(&Effect::DeleteStack) {
            return Ok(());
        }
        let again = decide(&after(&snapshot, &plan), now());
        let idle = again.effects.iter().all(|effect| matches!(effect, Effect::Launch { .. } | Effect::RequestReconcile { .. } | Effect::ReclaimWorkspace));
        prop_assert!(idle, "{:#?}\nafter {:#?}", again, plan);
        prop_assert_eq!(again.requeue_at, None, "{:#?}\nafter {:#?}", again, plan);
        let mut settled = plan.status.clone();
        if plan.effects.contains(&Effect::SpendApproval) {
            // The annotation is gone.
            settled.plan.spent = None;
        }
        prop_assert_eq!(again.status, settled);
    }

    #[test]
    fn an_unfinished_deletion_never_loses_its_finalizer(snapshot in a_snapshot()) {
        let plan = decide(&snapshot, now());
        if plan.effects.contains(&Effect::RemoveFinalizer) {
            let stack = &snapshot.stack;
            let last = plan.status.last_update.as_ref();
            let destroyed = last.is_some_and(|last| (last.operation, last.state) == (Some(Operation::Destroy), LastUpdateState::Succeeded));
            let ran = last.is_some() && plan.status.ran != Some(false);
            prop_assert!(stack.deleting && (destroyed || !stack.spec.destroy_on_finalize || stack.spec.preview || !ran));
            prop_assert!(!matches!(snapshot.run, RunState::Live(..)));
        }
    }
}

/// Adds a drift check to a plan that creates a run: the same Update.
fn check_beside_run(plan: &mut Plan) {
    beside_run(plan, Effect::CheckDrift);
}

fn beside_run(plan: &mut Plan, effect: fn(Box<NewUpdate>) -> Effect) {
    if let Some(update) = created(plan).cloned() {
        plan.effects.push(effect(Box::new(update)));
    }
}

/// The proposal of the Stack.
fn propose() -> Effect {
    let mut guarded = stack();
    guarded.approval = Some(ApprovalSettings::default());
    guarded.status.plan.guarded = true;
    let plan = plan(&snapshot(guarded));
    let found = plan.effects.into_iter().find(|effect| matches!(effect, Effect::Propose(_)));
    found.unwrap_or(Effect::SpendApproval)
}

/// Changes a plan, or its facts, so that it breaks a rule.
type Break = fn(&mut Snapshot, &mut Plan);

/// The rules about approvals.
fn breaks_of_approvals() -> [(&'static str, Break); 11] {
    [
        ("1: two proposals at once", |_, plan| plan.effects.extend([propose(), propose()])),
        ("1: the status does not name the new proposal", |_, plan| plan.effects.push(propose())),
        ("1: a proposal is created together with a run", |_, plan| plan.effects.push(propose())),
        ("1: a proposal of a suspended Stack is created", |snapshot, plan| {
            snapshot.stack.suspended = true;
            plan.effects.push(propose());
        }),
        ("13: a proposal that is not a preview of what is wanted", |_, plan| beside_run(plan, Effect::Propose)),
        ("13: a guarded Stack is changed in a cluster without the policy", |snapshot, _| {
            snapshot.stack.status.plan.guarded = true;
            snapshot.guard = Guard::Broken("it is missing".into());
        }),
        ("13: a run of a guarded Stack has no approved plan", |snapshot, _| {
            snapshot.stack.approval = Some(ApprovalSettings::default());
        }),
        ("13: an approval counts that was there before its plan", |snapshot, plan| {
            let hash = support::hash_of('a');
            snapshot.stack.approval = Some(ApprovalSettings { approved: Some(hash.clone()), ..ApprovalSettings::default() });
            let proposal = Proposal { state: PlanState::Approved, ..a_plan_that_waits() };
            (snapshot.stack.status.plan.proposal, plan.status.plan.proposal) = (Some(proposal.clone()), Some(proposal));
            let Some(Effect::Run(update)) = plan.effects.last_mut() else { unreachable!() };
            update.plan = Some(hash);
        }),
        ("13: a run starts before the rules of the cluster are read", |snapshot, _| {
            snapshot.governance = Governance::Unreadable("forbidden".into());
        }),
        ("13: an approval is used twice", |_, plan| {
            plan.status.plan.spent = Some(support::hash_of('a'));
            let Some(Effect::Run(update)) = plan.effects.last_mut() else { unreachable!() };
            update.plan = Some(support::hash_of('a'));
        }),
        ("5: the plan changes without an outcome", |_, plan| {
            plan.status.plan.proposal = Some(a_plan_that_waits());
        }),
    ]
}

/// Every rule, with a plan that was changed to break it.
#[test]
fn checker_detects_each_broken_invariant() {
    let breaks: [(&str, Break); 30] = [
        ("1: a run of a suspended Stack is created", |snapshot, _| snapshot.stack.suspended = true),
        ("1: a run starts outside the maintenance window", |snapshot, _| snapshot.stack.window = Some(closed_window())),
        ("1: a failed run is retried beyond spec.driftless.retries", |snapshot, plan| {
            snapshot.stack.spec.retries = Some(Retries { limit: 2, first_backoff_seconds: None });
            plan.status.last_update = Some(last_update(LastUpdateState::Failed, 2, 60));
        }),
        ("1: two drift checks at once", |_, plan| {
            check_beside_run(plan);
            check_beside_run(plan);
        }),
        ("1: the status does not name the new drift check", |_, plan| check_beside_run(plan)),
        ("1: a drift check is created together with a run", |_, plan| check_beside_run(plan)),
        ("1: a drift check of a suspended or deleted Stack is created", |snapshot, plan| {
            snapshot.stack.suspended = true;
            check_beside_run(plan);
        }),
        ("1: a drift check that is not a refresh", |_, plan| check_beside_run(plan)),
        ("3: a run without a tree, which is not the destroy of the project that ran", |_, plan| {
            let Some(Effect::Run(update)) = plan.effects.last_mut() else { unreachable!() };
            update.tree = None;
        }),
        ("1: a run is created while another is in progress", |snapshot, _| {
            snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None);
        }),
        ("1: two runs are created at once", |_, plan| plan.effects.extend(plan.effects.clone())),
        ("1: status.currentUpdate does not name the new run", |_, plan| plan.status.current_update = None),
        ("2: a run in progress is no longer named", |snapshot, plan| {
            let complete = UpdateFacts { complete_since: Some(now()), ..UpdateFacts::default() };
            snapshot.run = RunState::Live(run(Operation::Up), complete, None);
            plan.effects.clear();
        }),
        ("2: a run in progress is no longer named", |snapshot, plan| {
            snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None);
            plan.status.current_update = None;
        }),
        ("3: a run is not of the generation that was reconciled", |snapshot, _| snapshot.stack.generation = 9),
        ("3: a run is created whose tree is not stored", |snapshot, _| snapshot.tree = TreeState::Absent { failure: None }),
        ("3: a run's revision and digest are not the source's", |snapshot, _| snapshot.source = Some(SourceState::NotFound)),
        ("1: a refresh of drift that is not to be adopted", |_, plan| {
            let Some(Effect::Run(update)) = plan.effects.last_mut() else { unreachable!() };
            update.operation = Operation::Refresh;
        }),
        ("4: a destroy without a deletion, or another operation with one", |snapshot, _| snapshot.stack.deleting = true),
        ("4: a run is created before the finalizer", |snapshot, _| snapshot.stack.finalizer = false),
        ("4: the finalizer is removed while the Stack is not deleted or a run is in progress", |_, plan| {
            plan.effects.push(Effect::RemoveFinalizer);
        }),
        ("4: the finalizer is removed before destroy succeeded", |snapshot, plan| {
            snapshot.stack.spec.destroy_on_finalize = true;
            plan.status.last_update = Some(last_update(LastUpdateState::Succeeded, 0, 1));
            plan.effects.push(Effect::RemoveFinalizer);
        }),
        ("4: an effect follows the removal of the finalizer", |_, plan| plan.effects.insert(0, Effect::RemoveFinalizer)),
        ("4: a Stack is deleted that is not at its announced end", |_, plan| plan.effects.push(Effect::DeleteStack)),
        ("5: lastUpdate changes without an outcome", |_, plan| {
            plan.status.last_update = Some(last_update(LastUpdateState::Succeeded, 0, 1));
        }),
        ("5: outputs change without an outcome", |_, plan| plan.status.outputs = Some([("n".to_owned(), 1.into())].into())),
        ("5: drift changes without an outcome", |snapshot, plan| {
            snapshot.stack.drift = Some(DriftSettings { schedule: None, adopt: None, remediate: None, ignored: Vec::new() });
            plan.status.drift.verdict = Some(DriftVerdict::None);
        }),
        ("7: observedGeneration lags", |_, plan| plan.status.observed_generation = None),
        ("7: a waiting Stack is not requeued", |_, plan| {
            plan.effects.clear();
            plan.status.current_update = None;
        }),
        ("7: a Stack is Ready whose inputs changed", |snapshot, plan| {
            snapshot.inputs = Some(Inputs { changed: true, digest: None, read: now(), waits_for: None });
            plan.status.readiness = Some(Readiness::Ready);
        }),
    ];
    let breaks: Vec<_> = breaks.into_iter().chain(breaks_of_approvals()).collect();
    for (rule, break_it) in &breaks {
        let mut snapshot = snapshot(stack());
        let mut plan = plan(&snapshot);
        break_it(&mut snapshot, &mut plan);
        let found = violations(&snapshot, &plan, now());
        assert!(found.contains(&(*rule).to_owned()), "{rule} is not among {found:?}");

        let mut refused = refused(&snapshot, &found);
        assert!(condition(&refused).starts_with("Stalled/PlanRefused: ") && condition(&refused).contains(rule), "{refused:?}");
        refused.status.readiness.clone_from(&snapshot.stack.status.readiness);
        assert_eq!(refused, Plan { status: snapshot.stack.status, effects: Vec::new(), requeue_at: None });
    }
    let is_rule = |text: &&str| text.split_once(": ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
    let rules: BTreeSet<_> = include_str!("../src/invariants.rs").split('"').filter(is_rule).collect();
    assert_eq!(breaks.iter().map(|(rule, _)| *rule).collect::<BTreeSet<_>>(), rules);
}
