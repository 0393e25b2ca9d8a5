//! The deletion of a Stack, and what it leaves.

mod support;

use driftless_core::{run::UpdateFacts, *};
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
