//! Snapshots to start from. Each test changes the part that it tests.
#![allow(dead_code, reason = "every test binary compiles this module and uses a part of it")]
#![allow(clippy::unwrap_used, reason = "this is test code, which clippy does not see in a module without tests")]

use std::collections::BTreeMap;

use driftless_core::*;
use jiff::{SignedDuration, Timestamp};

/// The time of every reconciliation, unless a test sets another.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

pub fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A Stack on a Flux source, before its first reconciliation.
pub fn stack() -> Stack {
    Stack {
        namespace: "team".into(),
        name: "shop".into(),
        uid: "uid-1".into(),
        generation: 1,
        deleting: false,
        finalizer: true,
        reconcile_request: String::new(),
        paths: None,
        suspended: false,
        change_request: None,
        pull_request_of: None,
        pull_requests: None,
        ttl: None,
        window: None,
        drift: None,
        approval: None,
        answers: ApprovalSettings { policy: ApprovalPolicy::none(), ..ApprovalSettings::default() },
        spec: StackSpec {
            stack: "acme/shop/dev".into(),
            sources: vec![SourceRef::Flux {
                api_version: "source.toolkit.fluxcd.io/v1".into(),
                kind: "GitRepository".into(),
                name: "shop".into(),
                dir: "infra".into(),
            }],
            ..StackSpec::default()
        },
        status: StackStatus::default(),
    }
}

/// A maintenance window that is closed at [`now`] and opens at 09:00 UTC, an hour later.
pub fn closed_window() -> Window {
    window("0 9 * * *")
}

/// A maintenance window of half an hour.
pub fn window(opens: &str) -> Window {
    Window::parse(opens, None, "30m").unwrap()
}

/// A tree with a project.
pub fn stored() -> TreeState {
    TreeState::Stored { project: Project::There, scope: None }
}

/// Its source has an artifact, whose tree is stored.
pub fn snapshot(stack: Stack) -> Snapshot {
    let source = Some(SourceState::Artifact { revision: "main@sha1:aaa".into(), digest: "sha256:aaa".into(), polled: None });
    Snapshot {
        stack,
        source,
        tree: stored(),
        run: RunState::None,
        check: RunState::None,
        proposal: RunState::None,
        guard: Guard::Intact,
        governance: Governance::Known { floor: None, policies: Vec::new() },
        planned: None,
        prerequisites: Vec::new(),
        requires: BTreeMap::new(),
        named: None,
        inputs: None,
    }
}

/// `lastUpdate` after an `up` of generation 1 at the revision of [`snapshot`], recorded `seconds`
/// ago.
pub fn last_update(state: LastUpdateState, failures: i64, seconds: i64) -> LastUpdate {
    LastUpdate {
        name: "shop-000".into(),
        generation: 1,
        reconcile_request: String::new(),
        operation: Some(Operation::Up),
        state,
        message: String::new(),
        last_attempted_commit: "main@sha1:aaa".into(),
        last_successful_commit: "main@sha1:aaa".into(),
        permalink: None,
        last_resync_time: Some(ago(seconds)),
        failures,
    }
}

pub fn stack_after(last: LastUpdate) -> Stack {
    let mut stack = stack();
    stack.status.last_update = Some(last);
    stack
}

pub fn run(operation: Operation) -> Run {
    Run {
        namespace: "team".into(),
        name: "shop-111".into(),
        generation: 1,
        reconcile_request: String::new(),
        commit: "main@sha1:aaa".into(),
        operation,
        scope: None,
        refresh: false,
        adopts: false,
        plan: None,
    }
}

pub fn outcome(succeeded: bool) -> RunOutcome {
    let message = if succeeded { String::new() } else { "up failed: no such bucket".into() };
    RunOutcome {
        started: true,
        operated: true,
        succeeded,
        message,
        conflict: false,
        interrupted: false,
        platform_failure: false,
        drift: None,
        previewed: None,
        plan: None,
        stale: false,
        outputs: None,
        project: Some(("shop".into(), "yaml".into())),
        permalink: None,
        inputs: None,
    }
}

/// The plan of a reconciliation, after the checker has accepted it.
pub fn plan(snapshot: &Snapshot) -> Plan {
    plan_at(snapshot, now())
}

pub fn plan_at(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let plan = decide(snapshot, now);
    assert_eq!(violations(snapshot, &plan, now), Vec::<String>::new(), "{snapshot:#?}\n{plan:#?}");
    plan
}

pub fn created(plan: &Plan) -> Option<&NewUpdate> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::Run(update) => Some(&**update),
        _ => None,
    })
}

/// The condition that is not Ready, as `kubectl get stacks` shows it.
pub fn condition(plan: &Plan) -> String {
    match plan.status.readiness.as_ref().unwrap() {
        Readiness::Ready => "Ready".into(),
        Readiness::Reconciling { reason, message } => format!("Reconciling/{reason}: {message}"),
        Readiness::Stalled { reason, message } => format!("Stalled/{reason}: {message}"),
    }
}

/// A hash of that digit.
pub fn hash_of(digit: char) -> PlanHash {
    PlanHash::parse(&digit.to_string().repeat(64)).unwrap()
}

/// A plan with these counts.
pub fn changes(hash: PlanHash, counts: &[(ChangeKind, u32)]) -> PlannedChanges {
    let part = hash_of('0');
    PlannedChanges {
        parts: PlanParts {
            version: 1,
            binding: part.clone(),
            resources: hash.clone(),
            state: part,
            pulumi: "v3.259.0".into(),
            tree: None,
        },
        hash,
        operation: Operation::Up,
        counts: counts.iter().copied().filter(|(_, count)| *count > 0).collect(),
        changes: Listed::default(),
        unknown: Listed::default(),
        unstable: Listed::default(),
        advice: Vec::new(),
        made_at: ago(60),
    }
}

/// A plan that was not offered yet.
pub fn a_plan_that_waits() -> Proposal {
    Proposal {
        state: PlanState::Proposed,
        plan: Some(changes(hash_of('a'), &[(ChangeKind::Create, 1)])),
        wish: Wish {
            operation: Operation::Up,
            commit: Revision::default(),
            generation: 1,
            reconcile_request: String::new(),
            refresh: false,
            inputs: None,
        },
        update: "plan-1".into(),
        offered: false,
        demanded: None,
        by: None,
        expires: None,
        note: String::new(),
        failures: 0,
        failed_at: None,
    }
}

/// The limited life of a Stack.
pub fn ttl(text: &str, created: Timestamp, applied_by: Option<&str>) -> Ttl {
    Ttl::parse(text, created, applied_by.map(ToOwned::to_owned)).unwrap()
}

/// A schedule in UTC.
pub fn schedule(text: &str) -> Schedule {
    Schedule::parse(text, None).unwrap()
}

/// The settings of a guarded Stack.
pub fn settings(stack: &mut Stack) -> &mut ApprovalSettings {
    stack.approval.as_mut().unwrap()
}

/// The proposal that a plan creates.
pub fn proposed(plan: &Plan) -> Option<&NewUpdate> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::Propose(update) => Some(&**update),
        _ => None,
    })
}

pub fn has_event(plan: &Plan, wanted: EventReason) -> bool {
    plan.effects.iter().any(|effect| matches!(effect, Effect::Event { reason, .. } if *reason == wanted))
}
