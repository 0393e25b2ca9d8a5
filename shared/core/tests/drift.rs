//! When drift is checked for, reported and fixed.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use driftless_core::{run::UpdateFacts, *};
use jiff::SignedDuration;
use support::*;

use LastUpdateState::{Failed, Succeeded};

/// A Stack that was applied an hour ago and has an hourly drift check, the last one an hour ago.
fn watched() -> Snapshot {
    let mut stack = stack_after(last_update(Succeeded, 0, 3600));
    stack.drift = Some(DriftSettings { schedule: Some(schedule("1h")), adopt: None, remediate: None, ignored: Vec::new() });
    stack.status.drift = DriftStatus { last: Some("check-1".into()), checked: Some(ago(3600)), ..DriftStatus::default() };
    snapshot(stack)
}

/// The same Stack after a check that just found drift.
fn drifted() -> Snapshot {
    let mut snapshot = watched();
    snapshot.stack.status.drift = DriftStatus {
        last: Some("check-1".into()),
        checked: Some(now()),
        verdict: Some(DriftVerdict::Found(drift(2))),
        ..DriftStatus::default()
    };
    snapshot
}

fn check(plan: &Plan) -> Option<&NewUpdate> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::CheckDrift(update) => Some(&**update),
        _ => None,
    })
}

fn drift(count: u32) -> Drift {
    let resource =
        |n| DriftedResource { urn: format!("urn:{n}"), change: "update".into(), properties: vec!["tags.owner".into()] };
    Drift { count, resources: (0..count).map(resource).collect() }
}

/// The same snapshot after the check that its status names ended.
fn checked(mut snapshot: Snapshot, outcome: RunOutcome) -> Snapshot {
    snapshot.stack.status.drift.current = Some("check-2".into());
    snapshot.check = RunState::Ended(Run { name: "check-2".into(), ..run(Operation::Refresh) }, outcome);
    snapshot
}

fn found(count: u32) -> RunOutcome {
    RunOutcome { drift: Some(drift(count)), ..outcome(true) }
}

fn events(plan: &Plan) -> Vec<(&str, &str)> {
    let event = |effect| match effect {
        &Effect::Event { reason, ref note, .. } => Some((reason.as_str(), note.as_str())),
        _ => None,
    };
    plan.effects.iter().filter_map(event).collect()
}

#[test]
fn drift_check_runs_the_program_where_the_stack_asks_for_it() {
    for run_program in [false, true] {
        let mut snapshot = watched();
        snapshot.stack.spec.run_program = run_program;
        assert_eq!(check(&plan(&snapshot)).unwrap().run_program, run_program);
    }
}

#[test]
fn due_drift_check_runs_and_keeps_the_stack_ready() {
    let mut snapshot = watched();
    let due = plan(&snapshot);
    let new = check(&due).unwrap();
    assert_eq!((new.operation, new.message.as_str(), new.current.generation), (Operation::Refresh, "Drift check", 1));
    assert_eq!(new.tree.as_ref().map(|tree| tree.digest.as_str()), Some("sha256:aaa"));
    assert_eq!(due.status.drift.current.as_ref(), Some(&new.current.name));
    assert_eq!((condition(&due).as_str(), created(&due), &due.status.current_update), ("Ready", None, &None));

    // A check is named after the previous check, and never like a run.
    assert_ne!(new.current.name, check_name(&stack()));
    assert_ne!(new.current.name, update_name(&snapshot.stack));

    // Before that, the Stack is requeued for the check, which is spread over the hour.
    snapshot.stack.status.drift.checked = Some(ago(1));
    let early = plan(&snapshot);
    let wait = early.requeue_at.unwrap().duration_since(now()).as_secs();
    assert!(early.effects.is_empty() && (0..=3600).contains(&wait), "{early:?}");

    // One check at a time.
    snapshot.stack.status.drift = due.status.drift.clone();
    snapshot.check =
        RunState::Live(Run { name: new.current.name.clone(), ..run(Operation::Refresh) }, UpdateFacts::default(), None);
    let again = plan(&snapshot);
    assert_eq!(again.effects, []);
    assert_eq!(condition(&again), "Ready");
}

#[test]
fn no_drift_check_before_the_first_run_or_during_a_run() {
    type Change = fn(&mut Snapshot);
    let cases: [(&str, Change); 8] = [
        ("not asked for", |snapshot| snapshot.stack.drift = None),
        ("paused", |snapshot| snapshot.stack.drift.as_mut().unwrap().schedule = None),
        ("suspended", |snapshot| snapshot.stack.suspended = true),
        ("never ran", |snapshot| snapshot.stack.status.last_update = None),
        ("only previews", |snapshot| snapshot.stack.spec.preview = true),
        ("goes", |snapshot| (snapshot.stack.deleting, snapshot.stack.spec.destroy_on_finalize) = (true, true)),
        ("wants a run", |snapshot| snapshot.stack.generation = 2),
        ("runs", |snapshot| snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None)),
    ];
    for (why, change) in cases {
        let mut snapshot = watched();
        change(&mut snapshot);
        assert_eq!(check(&plan(&snapshot)), None, "{why}");
    }
}

#[test]
fn drift_result_is_reported_once_and_changes_nothing_else() {
    let snapshot = checked(watched(), found(4));
    let first = plan(&snapshot);
    let words =
        "4 resources drifted: update urn:0 (tags.owner); update urn:1 (tags.owner); update urn:2 (tags.owner); and 1 more";
    assert_eq!(events(&first), [("DriftDetected", words)]);
    assert_eq!((condition(&first).as_str(), created(&first)), ("Ready", None));
    assert_eq!(first.status.last_update, snapshot.stack.status.last_update);
    let DriftStatus { current, last, checked: at, verdict, .. } = &first.status.drift;
    assert_eq!((current, last.as_deref(), *at), (&None, Some("check-2"), Some(now())));
    assert_eq!(verdict, &Some(DriftVerdict::Found(drift(4))));

    let mut known = snapshot.clone();
    known.stack.status.drift = first.status.drift;
    let verdict = |outcome| {
        let plan = plan(&checked(known.clone(), outcome));
        // An Alert in docs/notifications.md selects them by this word.
        assert!(events(&plan).iter().all(|(_, note)| note.contains("drift")));
        (
            plan.status.drift.verdict.clone().unwrap(),
            events(&plan).iter().map(|(reason, _)| (*reason).to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(verdict(found(4)), (DriftVerdict::Found(drift(4)), vec![]));
    assert_eq!(verdict(found(0)), (DriftVerdict::None, vec!["DriftResolved".into()]));
    let failed = DriftVerdict::Unknown("up failed: no such bucket".into());
    assert_eq!(verdict(outcome(false)), (failed, vec!["DriftCheckFailed".into()]));
    // A waiting update, or a user, ended the check before it had a result.
    for outcome in [RunOutcome { interrupted: true, ..outcome(false) }, RunOutcome { started: false, ..outcome(false) }] {
        assert_eq!(verdict(outcome), (DriftVerdict::Found(drift(4)), vec![]));
    }
}

#[test]
fn drift_checks_run_hourly_at_most_after_a_failure() {
    let mut snapshot = watched();
    snapshot.stack.drift.as_mut().unwrap().schedule = Some(schedule("1m"));
    snapshot.stack.status.drift.checked = Some(ago(120));
    assert!(check(&plan(&snapshot)).is_some());
    let mut failing = snapshot.clone();
    failing.stack.status.drift.verdict = Some(DriftVerdict::Unknown("no".into()));
    assert_eq!((check(&plan(&failing)), plan(&failing).requeue_at), (None, Some(ago(120 - 3600))));
    snapshot.stack.status.last_update = Some(last_update(Failed, 3, 7200));
    assert_eq!(check(&plan(&snapshot)), None);
    snapshot.stack.status.drift.checked = Some(ago(3600));
    assert!(check(&plan(&snapshot)).is_some());
}

#[test]
fn requested_remediation_runs_an_update_with_refresh() {
    let mut snapshot = drifted();
    snapshot.stack.spec.expect_no_refresh_changes = true;
    let with = |remediate| {
        let mut snapshot = snapshot.clone();
        snapshot.stack.drift.as_mut().unwrap().remediate = remediate;
        snapshot
    };
    for nothing in [None, Some(Remediate::Check("check-0".into()))] {
        assert_eq!(created(&plan(&with(nothing))), None);
    }
    for remediate in [Remediate::Always, Remediate::Check("check-1".into())] {
        let mut asked = with(Some(remediate));
        let put_back = plan(&asked);
        let new = created(&put_back).unwrap();
        assert_eq!((new.operation, new.message.as_str()), (Operation::Up, "Drift detected: 2 resource(s)"));
        assert!(new.refresh && !new.expect_no_refresh_changes);

        // A fix that fails is retried in the same way.
        asked.stack.status.last_update = Some(last_update(Failed, 0, 60));
        assert!(created(&plan(&asked)).is_some_and(|new| new.refresh && new.message.starts_with("Backoff")));

        // It ends when an update that refreshes has succeeded; one without a refresh does not fix
        // drift.
        asked.stack.status.current_update = Some(new.current.clone());
        for (refresh, verdict) in [(true, DriftVerdict::Remediated), (false, DriftVerdict::Found(drift(2)))] {
            asked.run = RunState::Ended(Run { refresh, ..run(Operation::Up) }, outcome(true));
            assert_eq!(plan(&asked).status.drift.verdict, Some(verdict));
        }
    }
}

#[test]
fn run_that_applies_nothing_puts_no_drift_back() {
    let mut asked = drifted();
    asked.stack.drift.as_mut().unwrap().remediate = Some(Remediate::Always);
    // As the template of its Updates makes of each of its runs.
    for operation in [Operation::Preview, Operation::Refresh] {
        asked.run = RunState::Ended(Run { refresh: true, ..run(operation) }, outcome(true));
        assert_eq!(plan(&asked).status.drift.verdict, Some(DriftVerdict::Found(drift(2))), "{operation:?}");
    }
    asked.run = RunState::None;
    assert!(created(&plan(&asked)).is_some());
    asked.stack.spec.retyped = true;
    assert_eq!(created(&plan(&asked)), None, "it would start one after another");
    asked.stack.drift.as_mut().unwrap().adopt = Some("check-1".into());
    assert_eq!(created(&plan(&asked)).unwrap().operation, Operation::Refresh);

    // The plan of a guarded Stack is a preview, and it is empty if there is nothing to put back.
    let mut guarded = drifted();
    guarded.stack.approval = Some(ApprovalSettings::default());
    guarded.stack.status.plan.current = Some("plan-1".into());
    let empty = RunOutcome { plan: Some(Box::new(changes(hash_of('a'), &[]))), ..outcome(true) };
    guarded.proposal = RunState::Ended(Run { name: "plan-1".into(), refresh: true, ..run(Operation::Preview) }, empty);
    assert_eq!(plan(&guarded).status.drift.verdict, Some(DriftVerdict::Remediated));
}

#[test]
fn preview_ends_no_drift_and_follows_no_other_for_it() {
    let mut snapshot = drifted();
    snapshot.stack.spec.preview = true;
    for (adopt, remediate) in [(None, Some(Remediate::Always)), (Some("check-1".to_owned()), None)] {
        let settings = snapshot.stack.drift.as_mut().unwrap();
        (settings.adopt, settings.remediate) = (adopt, remediate);
        assert_eq!(created(&plan(&snapshot)), None);
    }
}

#[test]
fn requested_adoption_runs_a_refresh() {
    let mut snapshot = drifted();
    snapshot.stack.spec.targets = vec!["urn:0".into()];
    snapshot.stack.spec.refresh = true;
    snapshot.stack.status.inputs = Some("old".into());
    let with = |check: &str, remediate| {
        let mut snapshot = snapshot.clone();
        let settings = snapshot.stack.drift.as_mut().unwrap();
        (settings.adopt, settings.remediate) = (Some(check.to_owned()), remediate);
        snapshot
    };
    assert_eq!(created(&plan(&with("check-0", None))), None, "it is of older drift");
    assert_eq!(created(&plan(&with("check-0", Some(Remediate::Always)))).unwrap().operation, Operation::Up);
    let mut asked = with("check-1", Some(Remediate::Always));
    let adopting = plan(&asked);
    let new = created(&adopting).unwrap();
    assert_eq!((new.operation, new.message.as_str()), (Operation::Refresh, "Drift to adopt: 2 resource(s)"));
    assert_eq!((&new.targets, new.refresh, new.expect_no_refresh_changes), (&snapshot.stack.spec.targets, false, false));

    // A change goes first, and puts nothing back.
    let mut changed = asked.clone();
    (changed.stack.generation, changed.stack.spec.refresh) = (2, false);
    assert!(created(&plan(&changed)).is_some_and(|new| new.operation == Operation::Up && !new.refresh));

    // The drift is adopted. A refresh applies no inputs, so their change is not taken for applied.
    let ended = |asked: &Snapshot, succeeded| {
        let mut asked = asked.clone();
        asked.stack.status.current_update = Some(new.current.clone());
        let inputs = Some("new".to_owned());
        asked.run = RunState::Ended(Run { adopts: true, ..run(Operation::Refresh) }, RunOutcome { inputs, ..outcome(succeeded) });
        plan(&asked)
    };
    let after = ended(&asked, true);
    assert_eq!((condition(&after).as_str(), &after.status.drift.verdict), ("Ready", &Some(DriftVerdict::Adopted)));
    assert_eq!(after.status.inputs.as_deref(), Some("old"));
    assert_eq!(after.status.last_update.as_ref().and_then(|last| last.operation), Some(Operation::Refresh));
    assert!(events(&after).iter().any(|(reason, note)| *reason == "DriftAdopted" && note.contains("the next update")));
    assert_eq!(created(&after), None);

    // Nor where drift checks have ended meanwhile.
    let mut unchecked = asked.clone();
    unchecked.stack.drift = None;
    assert_eq!(ended(&unchecked, true).status.inputs.as_deref(), Some("old"));

    // A failed one is retried as a refresh until the request is withdrawn.
    let failed = ended(&asked, false);
    assert_eq!(
        (&failed.status.drift.verdict, failed.status.inputs.as_deref()),
        (&Some(DriftVerdict::Found(drift(2))), Some("old"))
    );
    asked.stack.status.last_update = Some(LastUpdate { operation: Some(Operation::Refresh), ..last_update(Failed, 0, 60) });
    asked.stack.status.drift = failed.status.drift;
    assert_eq!(created(&plan(&asked)).unwrap().operation, Operation::Refresh);
    asked.stack.drift.as_mut().unwrap().adopt = None;
    assert_eq!(created(&plan(&asked)).unwrap().operation, Operation::Up);
}

#[test]
fn only_its_own_end_ends_an_adoption() {
    let mut asked = drifted();
    asked.stack.status.drift.checked = Some(ago(600));
    asked.stack.drift.as_mut().unwrap().adopt = Some("check-1".into());
    // A check that was live when the adoption was requested ends before it, with it, and before its
    // retry.
    let adopting = Run { adopts: true, ..run(Operation::Refresh) };
    let failed = RunState::Ended(adopting, outcome(false));
    let retried = LastUpdate { operation: Some(Operation::Refresh), ..last_update(Failed, 0, 5) };
    for (run, last) in [(RunState::None, None), (failed, None), (RunState::None, Some(retried))] {
        for outcome in [found(1), found(0), outcome(false), RunOutcome { interrupted: true, ..outcome(false) }] {
            let mut ended = checked(asked.clone(), outcome);
            ended.run = run.clone();
            if let Some(last) = &last {
                ended.stack.status.last_update = Some(last.clone());
                ended.stack.status.drift.adoption_failed = true;
            }
            let after = plan(&ended);
            let DriftStatus { current, last, checked, verdict, .. } = &after.status.drift;
            assert_eq!((current, last.as_deref(), *checked), (&None, Some("check-1"), Some(now())));
            assert_eq!(verdict, &Some(DriftVerdict::Found(drift(2))));
            let mut later = snapshot(Stack { status: after.status.clone(), ..ended.stack });
            later.stack.status.current_update = None;
            let at = now() + SignedDuration::from_secs(30);
            assert_eq!(created(&plan_at(&later, at)).unwrap().operation, Operation::Refresh);
            assert_ne!(check_name(&later.stack), check_name(&asked.stack), "the next check has another name");
        }
    }
    // A check of a Stack whose adoption is not retried has a result.
    let mut over = checked(asked, found(1));
    over.stack.status.last_update = Some(LastUpdate { operation: Some(Operation::Refresh), ..last_update(Failed, 3, 5) });
    over.stack.status.drift.adoption_failed = true;
    let after = plan(&over).status.drift;
    assert_eq!((after.last.as_deref(), after.verdict), (Some("check-2"), Some(DriftVerdict::Found(drift(1)))));
}

#[test]
fn check_without_a_result_ends_no_request() {
    let mut asked = drifted();
    asked.stack.drift.as_mut().unwrap().remediate = Some(Remediate::Check("check-1".into()));
    // The update that was to put the drift back interrupted the check, and failed.
    asked.stack.status.last_update = Some(last_update(Failed, 0, 60));
    let ended = checked(asked, RunOutcome { interrupted: true, ..outcome(false) });
    assert!(created(&plan(&ended)).is_some_and(|new| new.operation == Operation::Up && new.refresh));
}

#[test]
fn failed_refresh_of_a_template_is_retried_as_an_update() {
    let mut asked = drifted();
    asked.stack.status.current_update = Some(CurrentUpdate {
        name: "shop-111".into(),
        generation: 1,
        reconcile_request: String::new(),
        commit: "main@sha1:aaa".into(),
    });
    for (adopts, operation) in [(false, Operation::Up), (true, Operation::Refresh)] {
        let mut ended = asked.clone();
        ended.run = RunState::Ended(Run { adopts, ..run(Operation::Refresh) }, outcome(false));
        let mut failed = snapshot(Stack { status: plan(&ended).status, ..asked.stack.clone() });
        failed.stack.drift.as_mut().unwrap().adopt = Some("check-1".into());
        let retried = plan_at(&failed, now() + SignedDuration::from_secs(30));
        assert_eq!(created(&retried).unwrap().operation, operation);
    }
}

#[test]
fn adoption_of_a_guarded_stack_is_a_plan() {
    let mut snapshot = drifted();
    snapshot.stack.drift.as_mut().unwrap().adopt = Some("check-1".into());
    snapshot.stack.approval = Some(ApprovalSettings::default());
    let planning = plan(&snapshot);
    let proposed = planning.effects.iter().find_map(|effect| if let Effect::Propose(new) = effect { Some(new) } else { None });
    assert_eq!((proposed.unwrap().operation, created(&planning)), (Operation::Refresh, None));

    // The plan is shown, and applied once it is approved.
    let hash = hash_of('a');
    let changes = PlannedChanges { operation: Operation::Refresh, ..changes(hash.clone(), &[(ChangeKind::Refresh, 1)]) };
    let ended = |plan: PlannedChanges| {
        let mut snapshot = snapshot.clone();
        snapshot.stack.status.plan.current = Some("plan-1".into());
        let outcome = RunOutcome { plan: Some(Box::new(plan)), ..outcome(true) };
        snapshot.proposal = RunState::Ended(Run { name: "plan-1".into(), adopts: true, ..run(Operation::Refresh) }, outcome);
        snapshot
    };
    let shown = plan(&ended(changes.clone()));
    let words = condition(&shown);
    assert!(words.starts_with("Reconciling/ApprovalRequired: refresh: +0 ~0 -0 ±0, 1 refreshed; plan"), "{words}");
    assert!(words.ends_with("; to adopt nothing, remove the annotation driftless.dev/adopt"), "{words}");
    let mut approved = snapshot.clone();
    approved.stack.status = shown.status;
    approved.stack.approval.as_mut().unwrap().approved = Some(hash.clone());
    let applying = plan(&approved);
    let new = created(&applying).unwrap();
    assert_eq!((new.operation, new.plan.as_ref()), (Operation::Refresh, Some(&hash)));

    // A resync that is due replaces no plan of an adoption.
    let mut due = approved.clone();
    let spec = &mut due.stack.spec;
    (spec.continue_resync_on_commit_match, spec.resync_frequency_seconds) = (true, Some(60));
    assert_eq!(created(&plan(&due)).unwrap().operation, Operation::Refresh);
    let is_preview = |plan: &Plan| {
        plan.effects.iter().any(|effect| matches!(effect, Effect::Propose(new) if new.operation == Operation::Preview))
    };
    due.inputs = Some(Inputs { changed: true, digest: None, read: now(), waits_for: None });
    assert!(is_preview(&plan(&due)), "a changed input precedes the adoption");
    due.inputs = None;
    due.stack.drift.as_mut().unwrap().adopt = None;
    assert!(is_preview(&plan(&due)));

    // Nothing is left to adopt, so nothing was.
    let same = plan(&ended(PlannedChanges { counts: [].into(), ..changes }));
    assert!(events(&same).iter().all(|(reason, _)| *reason != "DriftAdopted"));
    assert_eq!((condition(&same).as_str(), same.status.drift.verdict), ("Ready", Some(DriftVerdict::None)));
}

#[test]
fn adopted_drift_is_told_until_an_update_or_a_check() {
    let mut snapshot = watched();
    snapshot.stack.status.drift.verdict = Some(DriftVerdict::Adopted);
    for (count, verdict) in [(0, DriftVerdict::None), (1, DriftVerdict::Found(drift(1)))] {
        assert_eq!(plan(&checked(snapshot.clone(), found(count))).status.drift.verdict, Some(verdict));
    }
    for (succeeded, verdict) in [(true, DriftVerdict::Remediated), (false, DriftVerdict::Adopted)] {
        snapshot.run = RunState::Ended(run(Operation::Up), outcome(succeeded));
        assert_eq!(plan(&snapshot).status.drift.verdict, Some(verdict));
    }
}

#[test]
fn adoption_that_is_retried_delays_drift_checks() {
    let mut snapshot = drifted();
    snapshot.stack.drift.as_mut().unwrap().adopt = Some("check-1".into());
    (snapshot.stack.status.drift.checked, snapshot.stack.status.drift.adoption_failed) = (Some(ago(7200)), true);
    let after = |failures| LastUpdate { operation: Some(Operation::Refresh), ..last_update(Failed, failures, 5) };
    snapshot.stack.status.last_update = Some(after(0));
    let retried = plan(&snapshot);
    assert_eq!((check(&retried), created(&retried)), (None, None));
    snapshot.stack.status.last_update = Some(after(3));
    assert!(check(&plan(&snapshot)).is_some(), "it is not retried");
}

/// The verdict of a check that found this drift, where these properties are ignored.
fn verdict(ignored: &str, resources: &[(&str, &str, &[&str])]) -> Option<DriftVerdict> {
    let resource = |(kind, change, paths): &(&str, &str, &[&str])| DriftedResource {
        urn: format!("urn:pulumi:dev::shop::my:Net${kind}::a"),
        change: (*change).to_owned(),
        properties: paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    let resources: Vec<_> = resources.iter().map(resource).collect();
    let drift = Drift { count: u32::try_from(resources.len()).unwrap(), resources };
    let mut snapshot = watched();
    snapshot.stack.drift.as_mut().unwrap().ignored = Ignored::parse_all(ignored).unwrap();
    plan(&checked(snapshot, RunOutcome { drift: Some(drift), ..outcome(true) })).status.drift.verdict
}

#[test]
fn ignored_properties_never_count_as_drift() {
    let bucket = "aws:s3/bucket:Bucket";
    let both: &[&str] = &["tags.owner", "tags[0]", "acl"];
    for (ignored, resources, left) in [
        ("tags", vec![(bucket, "update", &both[..2])], None),
        ("tags.owner", vec![(bucket, "update", both)], Some((1, &both[1..]))),
        ("tag, acl.x", vec![(bucket, "update", both)], Some((1, both))),
        (
            "aws:s3/bucket:Bucket#tags",
            vec![(bucket, "update", &both[..2]), ("aws:ec2/vpc:Vpc", "update", &both[..1])],
            Some((1, &both[..1])),
        ),
        // A deletion has no properties.
        ("tags", vec![(bucket, "delete", &[][..])], Some((1, &[][..]))),
    ] {
        let found = verdict(ignored, &resources);
        match left {
            None => assert_eq!(found, Some(DriftVerdict::None), "{ignored}"),
            Some((count, paths)) => {
                let Some(DriftVerdict::Found(drift)) = found else { panic!("{ignored}: {found:?}") };
                assert_eq!(
                    (drift.count, &drift.resources[0].properties[..]),
                    (count, &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()[..]),
                    "{ignored}"
                );
            }
        }
    }
    // The list of properties has an end, and what it leaves out may be drift.
    let many = vec!["tags.a"; Drift::MAX_PROPERTIES];
    assert!(matches!(verdict("tags", &[(bucket, "update", &many)]), Some(DriftVerdict::Found(_))));
}
