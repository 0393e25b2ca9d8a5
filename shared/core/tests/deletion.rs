//! The deletion of a Stack, and what it leaves.

mod support;

use driftless_core::{run::UpdateFacts, *};
use jiff::SignedDuration;
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn deleted_stack_is_destroyed_first_with_destroy_on_finalize() {
    let mut stack = stack_after(last_update(Succeeded, 0, 1));
    (stack.deleting, stack.generation, stack.spec.destroy_on_finalize) = (true, 2, true);
    stack.spec.targets = vec!["urn".into()];
    let destroy = plan(&snapshot(stack.clone()));
    let update = created(&destroy).unwrap();
    assert_eq!(
        (update.operation, update.targets.len(), update.message.as_str()),
        (Operation::Destroy, 0, "Stack marked for deletion")
    );

    let run = Run { generation: 2, ..run(Operation::Destroy) };
    let mut failed = snapshot(stack.clone());
    failed.run = RunState::Ended(run.clone(), outcome(false));
    assert!(!plan(&failed).effects.contains(&Effect::RemoveFinalizer));
    let mut done = snapshot(stack);
    done.run = RunState::Ended(run, outcome(true));
    assert_eq!(plan(&done).effects.last(), Some(&Effect::RemoveFinalizer));
}

/// A Stack that was created 72 hours ago less `left` minutes, and lives for 72 hours.
fn limited(left: i64, applied_by: Option<&str>) -> Stack {
    let mut stack = stack_after(last_update(Succeeded, 0, 60));
    let created = now() - SignedDuration::from_mins(72 * 60 - left);
    stack.ttl = Some(ttl("72h", created, applied_by));
    stack.spec.destroy_on_finalize = true;
    stack
}

/// The notes of the Events about the end of a Stack.
fn warnings(plan: &Plan) -> Vec<&str> {
    let of = |effect| match effect {
        &Effect::Event { reason: EventReason::TtlEnds, ref note, .. } => Some(note.as_str()),
        _ => None,
    };
    plan.effects.iter().filter_map(of).collect()
}

#[test]
fn stack_is_deleted_at_its_announced_end() {
    let day = SignedDuration::from_hours(24);
    let mut snapshot = snapshot(limited(25 * 60, None));
    let early = plan(&snapshot);
    assert_eq!((condition(&early).as_str(), early.effects.len(), &early.status.expiry), ("Ready", 0, &None));
    assert_eq!(early.requeue_at, Some(now() + SignedDuration::from_hours(1)));

    let warned_at = now() + SignedDuration::from_mins(61);
    snapshot.stack.status = early.status;
    let warned = plan_at(&snapshot, warned_at);
    let ends = "2027-01-16T09:01:00Z";
    let words = format!(
        "TTL ends; Stack is deleted at {ends} and its resources are destroyed; raise or remove the annotation driftless.dev/ttl to \
         keep it"
    );
    assert_eq!((condition(&warned).as_str(), warnings(&warned)), ("Ready", vec![words.as_str()]));
    let at = warned_at + day;
    assert_eq!((at.to_string().as_str(), warned.requeue_at), (ends, Some(at)));
    assert_eq!(warned.status.expiry, Some(Expiry { at, blocked: None }));

    // It is warned of once, also while a run is wanted, and is never deleted earlier.
    snapshot.stack.status = warned.status;
    let calm = plan_at(&snapshot, warned_at + SignedDuration::from_hours(3));
    assert_eq!((warnings(&calm), calm.status.expiry.as_ref().map(|expiry| expiry.at)), (vec![], Some(at)));
    snapshot.stack.generation = 2;
    assert!(created(&plan_at(&snapshot, at - SignedDuration::from_secs(1))).is_some());
    let over = plan_at(&snapshot, at);
    assert_eq!(over.effects, [Effect::DeleteStack]);
    assert_eq!(condition(&over), format!("Reconciling/Expired: TTL ended at {ends}; Stack is being deleted"));

    // Not while it is suspended or a run is live, and not after the annotation was raised or
    // removed.
    let kept = |change: fn(&mut Snapshot)| {
        let mut snapshot = snapshot.clone();
        change(&mut snapshot);
        let plan = plan_at(&snapshot, at);
        assert!(!plan.effects.contains(&Effect::DeleteStack), "{plan:#?}");
        plan.status.expiry
    };
    assert_eq!(kept(|snapshot| snapshot.stack.suspended = true), None, "it is announced again");
    assert_eq!(kept(|snapshot| snapshot.stack.ttl = None), None);
    assert_eq!(kept(|snapshot| snapshot.stack.ttl.as_mut().unwrap().ends += SignedDuration::from_hours(72)), None);
    let live = |snapshot: &mut Snapshot| {
        snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None);
    };
    assert!(kept(live).is_some());
    let mut destroyed = snapshot.clone();
    destroyed.stack.deleting = true;
    assert_eq!(created(&plan_at(&destroyed, at)).unwrap().operation, Operation::Destroy);
}

#[test]
fn stack_whose_ttl_has_passed_is_warned_a_day_before_its_deletion() {
    let warned = plan(&snapshot(limited(-1000, None)));
    assert_eq!(warned.status.expiry.as_ref().unwrap().at, now() + SignedDuration::from_hours(24));
    assert_eq!(warnings(&warned).len(), 1);
}

#[test]
fn end_of_a_stack_that_stays_says_what_prevents_its_deletion() {
    let mut snapshot = snapshot(limited(60, None));
    snapshot.stack.spec.destroy_on_finalize = false;
    for (applied_by, words) in [
        (
            None,
            "spec.destroyOnFinalize is not set, so that its resources would remain; set it, or delete the Stack and its resources",
        ),
        (
            Some("Kustomization flux-system/apps"),
            "Kustomization flux-system/apps applies it and would create it again; remove it from that source, which deletes it if it \
             prunes",
        ),
    ] {
        snapshot.stack.ttl.as_mut().unwrap().applied_by = applied_by.map(ToOwned::to_owned);
        let warned = plan(&snapshot);
        let ends = "TTL ends at 2027-01-15T09:00:00Z; Stack is not deleted then: ";
        assert_eq!(warnings(&warned), [format!("{ends}{words}")]);
        snapshot.stack.status = warned.status;
        for hours in [0, 1, 100] {
            let after = plan_at(&snapshot, now() + SignedDuration::from_hours(hours));
            assert_eq!((condition(&after).as_str(), after.effects.as_slice()), ("Ready", &[][..]), "{words}");
        }
    }
    // The cause is gone: the deletion is announced with its own warning.
    snapshot.stack.ttl.as_mut().unwrap().applied_by = None;
    snapshot.stack.spec.destroy_on_finalize = true;
    let later = now() + SignedDuration::from_hours(100);
    let warned = plan_at(&snapshot, later);
    assert_eq!(warned.status.expiry, Some(Expiry { at: later + SignedDuration::from_hours(24), blocked: None }));
}

#[test]
fn ttl_is_a_duration_within_limits() {
    for (text, warning) in [("1m", 30), ("2h", 3600), ("72h", 86_400), ("1h 30m", 2700)] {
        let ttl = Ttl::parse(text, now(), None).unwrap();
        assert_eq!(ttl.warning.as_secs(), warning, "{text}");
    }
    for text in ["", "3", "30s", "-72h", "3 days", "87601h", "soon"] {
        let words = format!("{text:?}; write a duration of at least 1m and at most 87600h, such as 72h");
        assert_eq!(Ttl::parse(text, now(), None), Err(words));
    }
}

#[test]
fn stack_may_be_missing_only_if_no_operation_started() {
    for (operated, may_be_missing) in [(None, false), (Some(true), false), (Some(false), true)] {
        let mut stack = stack_after(last_update(Failed, 0, 60));
        (stack.deleting, stack.generation, stack.spec.destroy_on_finalize) = (true, 2, true);
        stack.status.operated = operated;
        let destroy = plan(&snapshot(stack));
        assert_eq!(created(&destroy).unwrap().workspace.create, may_be_missing, "{operated:?}");
    }
}

#[test]
fn a_destroy_needs_no_source_once_the_project_is_known() {
    let mut stack = stack_after(last_update(Succeeded, 0, 1));
    (stack.deleting, stack.generation, stack.spec.destroy_on_finalize) = (true, 2, true);
    let mut gone = snapshot(stack);
    (gone.source, gone.tree) = (Some(SourceState::NotFound), TreeState::Absent { failure: None });
    assert_eq!(condition(&plan(&gone)), "Stalled/SourceUnavailable: could not resolve sourceRef (GitRepository \"shop\")");

    gone.stack.status.project = Some(("shop".into(), "nodejs".into()));
    let destroy = plan(&gone);
    let update = created(&destroy).unwrap();
    assert_eq!((update.operation, &update.tree, update.current.commit.as_str()), (Operation::Destroy, &None, ""));
    assert_eq!(update.workspace.project, gone.stack.status.project);

    gone.stack.spec.sources.clear();
    assert!(created(&plan(&gone)).is_some(), "what is wrong with the source does not matter");
    gone.stack.spec.run_program = true;
    assert!(condition(&plan(&gone)).starts_with("Stalled/SpecInvalid: no source"), "there is a program to be run");

    let mut there = gone.clone();
    there.stack.spec = StackSpec { destroy_on_finalize: true, ..support::stack().spec };
    there.source = snapshot(support::stack()).source;
    there.tree = stored();
    assert!(created(&plan(&there)).unwrap().tree.is_some(), "a stored tree is better");
}

#[test]
fn failed_destroy_is_retried_forever_with_back_off() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 1)));
    (snapshot.stack.deleting, snapshot.stack.generation, snapshot.stack.spec.destroy_on_finalize) = (true, 2, true);
    let mut at = now();
    let waits = [(); 6].map(|()| {
        snapshot.run =
            RunState::Ended(Run { generation: 2, ..run(Operation::Destroy) }, RunOutcome { conflict: true, ..outcome(false) });
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        let wait = plan.requeue_at.unwrap().duration_since(at).as_secs();
        assert_eq!(created(&plan), None);
        at = plan.requeue_at.unwrap();
        (wait, condition(&plan).split(':').next().unwrap().to_owned())
    });
    assert_eq!(waits.clone().map(|(wait, _)| wait), [10, 30, 90, 270, 810, 2430]);
    assert_eq!(waits[2].1, "Reconciling/RetryingAfterFailure");
    assert_eq!(waits[3].1, "Stalled/UpdateFailed", "somebody should look");
    snapshot.run = RunState::None;
    assert_eq!(created(&plan_at(&snapshot, at)).unwrap().message, "Backoff time elapsed: 40m30s");
}

#[test]
fn workspace_is_deleted_after_success_per_reclaim_policy() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 60)));
    assert_eq!(plan(&snapshot).effects, []);
    snapshot.stack.spec.reclaim_workspace = true;
    assert_eq!(plan(&snapshot).effects, [Effect::ReclaimWorkspace]);
    snapshot.stack.status.last_update = Some(last_update(Failed, 3, 60));
    assert_eq!(plan(&snapshot).effects, [], "it may help to find out why");
}

#[test]
fn a_deletion_waits_for_a_run_even_if_nothing_is_to_be_destroyed() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.deleting = true;
    snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None);
    assert_eq!(plan(&snapshot).effects, [Effect::Launch { namespace: "team".into(), update: "shop-111".into() }]);
    snapshot.run = RunState::None;
    assert_eq!(plan(&snapshot).effects, [Effect::RemoveFinalizer]);
    snapshot.stack.finalizer = false;
    assert_eq!(plan(&snapshot).effects, []);
}
