//! The plans that runs report.

use driftless_contract::{
    ChangeKind, Listed, Operation, PlanHash, PlanMode, PlanParts, PlanRecord, PlannedChange, PlannedChanges, StackId,
};

use super::*;

fn hash(digit: &str) -> PlanHash {
    PlanHash::parse(&digit.repeat(64)).unwrap()
}

fn plan(digit: &str, changes: usize) -> PlannedChanges {
    let change = PlannedChange {
        urn: "urn:a\n".repeat(300),
        resource_type: "a:b:C".into(),
        kind: ChangeKind::Replace,
        paths: vec!["x".repeat(300); 30],
        replaced_by: vec!["path".into()],
    };
    let parts = PlanParts {
        version: 1,
        binding: hash("b"),
        resources: hash("c"),
        state: hash("d"),
        pulumi: "v".repeat(9999),
        tree: Some("sha256:00".into()),
    };
    PlannedChanges {
        hash: hash(digit),
        parts,
        operation: Operation::Up,
        counts: [(ChangeKind::Replace, 1)].into(),
        changes: Listed { count: u32::try_from(changes).unwrap(), first: vec![change; changes] },
        unknown: Listed::default(),
        unstable: Listed::default(),
        advice: Vec::new(),
        made_at: Timestamp::UNIX_EPOCH,
    }
}

/// A world whose run was launched so.
fn launched(mode: Option<PlanMode>) -> World {
    let world = world(&of_stack(), &json!({}));
    let key = format!("{}launch", keys::run(CLUSTER, &"uid".into()));
    let launch = Launch::parse(&world.objects()[&key]).unwrap();
    let stack = Some(StackId { namespace: "n".into(), uid: "stack-uid".into() });
    let preview = mode == Some(PlanMode::Propose { of: None });
    let spec = json!({ "type": if preview { "preview" } else { "up" } });
    let request = RunRequest { spec, stack, limits: RunLimits::default(), not_secret: Vec::new(), plan: mode };
    put(&world, &key, &to_json(&Launch { request: Some(request), preview, ..launch }));
    world
}

fn outcome(world: &World) -> Outcome {
    Outcome::parse(&world.objects()[&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))]).unwrap()
}

fn record(world: &World) -> Option<PlanRecord> {
    let objects = world.objects();
    let (key, content) = objects.iter().find(|(key, _)| key.starts_with("plans/"))?;
    let record = PlanRecord::parse(content).unwrap();
    assert_eq!(*key, format!("plans/{CLUSTER}/stack-uid/{}", record.plan.hash));
    Some(record)
}

fn audited(world: &World) -> Value {
    let objects = world.objects();
    let (_, content) = objects.iter().find(|(key, _)| key.starts_with("audit/")).unwrap();
    serde_json::from_slice(content).unwrap()
}

fn apply(approved: PlanHash) -> PlanMode {
    PlanMode::Apply { hash: approved, approved_by: Some("alice".into()) }
}

#[test]
fn plan_of_a_proposal_is_bounded_and_recorded_once() {
    let world = launched(Some(PlanMode::Propose { of: None }));
    report(&world, &RunResult { plan: Some(plan("a", 150)), ..succeeded(&world) });
    reconcile(&world);
    let found = outcome(&world).plan.unwrap();
    assert_eq!((found.hash.clone(), found.changes.count), (hash("a"), 150));
    assert!(!found.changes.first.is_empty() && to_json(&found).len() < 256 << 10, "{}", to_json(&found).len());
    let recorded = record(&world).unwrap();
    assert_eq!((&recorded.plan, recorded.run.uid.as_str()), (&found, "uid"));
    assert_eq!(audited(&world)["plan"], json!(hash("a")));
    // The next proposal has the same plan, and the first record stays.
    let other = to_json(&RunResult { plan: Some(plan("a", 1)), ..succeeded(&world) });
    put(&world, &format!("{TASK}out/result"), &other);
    reconcile(&world);
    assert_eq!(record(&world).unwrap(), recorded);
}

#[test]
fn audit_record_has_the_plan_and_its_approver() {
    let world = launched(Some(apply(hash("a"))));
    report(&world, &RunResult { plan: Some(plan("a", 1)), ..succeeded(&world) });
    reconcile(&world);
    assert_eq!(outcome(&world).verdict, Verdict::Succeeded {});
    assert_eq!((&audited(&world)["plan"], &audited(&world)["approvedBy"]), (&json!(hash("a")), &json!("alice")));
    assert_eq!(record(&world).unwrap().plan.hash, hash("a"));
}

#[test]
fn stale_run_reports_its_new_plan() {
    let world = launched(Some(apply(hash("a"))));
    let verdict = Verdict::Failed { phase: Phase::Run, reason: FailureReason::PlanStale, message: "stale".into() };
    report(&world, &RunResult { plan: Some(plan("e", 1)), ..RunResult::new(verdict.clone(), world.now(), world.now()) });
    reconcile(&world);
    assert_eq!((outcome(&world).verdict, outcome(&world).plan.unwrap().hash), (verdict, hash("e")));
    assert_eq!((record(&world).unwrap().plan.hash, &audited(&world)["outcome"]), (hash("e"), &json!("PlanStale")));
}

#[test]
fn success_without_the_approved_plan_is_no_success() {
    for (mode, reported, words) in [
        (apply(hash("a")), Some("e"), "another plan than the approved one"),
        (apply(hash("a")), None, "without a plan"),
        (PlanMode::Propose { of: None }, None, "without a plan"),
    ] {
        let world = launched(Some(mode));
        report(&world, &RunResult { plan: reported.map(|digit| plan(digit, 1)), ..succeeded(&world) });
        reconcile(&world);
        let Verdict::Failed { reason: FailureReason::Unknown, message, .. } = outcome(&world).verdict else { panic!("{words}") };
        assert!(message.ends_with(words), "{message}");
    }
}

#[test]
fn unrequested_plan_is_dropped() {
    let world = launched(None);
    report(&world, &RunResult { plan: Some(plan("a", 1)), ..succeeded(&world) });
    reconcile(&world);
    assert_eq!((outcome(&world).verdict, outcome(&world).plan, record(&world)), (Verdict::Succeeded {}, None, None));
}

#[test]
fn malformed_hash_makes_the_report_invalid() {
    for bad in ["", "../../runs/kind/u/owner", &"A".repeat(64), &"a".repeat(63)] {
        let world = launched(Some(PlanMode::Propose { of: None }));
        let mut result: Value =
            serde_json::from_str(&to_json(&RunResult { plan: Some(plan("a", 1)), ..succeeded(&world) })).unwrap();
        result["plan"]["hash"] = json!(bad);
        put(&world, &format!("{TASK}out/result"), &result.to_string());
        reconcile(&world);
        let Verdict::Failed { message, .. } = outcome(&world).verdict else { panic!("{bad}") };
        assert!(message.starts_with("result of the task is invalid") && record(&world).is_none(), "{message}");
    }
}

#[test]
fn plan_is_recorded_after_a_crash_before_any_call() {
    for calls in 0..60 {
        let world = launched(Some(PlanMode::Propose { of: None }));
        report(&world, &RunResult { plan: Some(plan("a", 1)), ..succeeded(&world) });
        world.crash_before_call(calls);
        let crashed = handled(&world).is_none();
        if crashed {
            reconcile(&world);
        }
        assert!(record(&world).is_some(), "after a crash before call {calls}");
        if !crashed {
            return;
        }
    }
    panic!("it never ends");
}
