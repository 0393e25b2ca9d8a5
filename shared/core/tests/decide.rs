//! The plans of a Stack's reconciliations.

mod support;

use driftless_core::{
    run::{UpdateFacts, WaitReason},
    *,
};
use jiff::{SignedDuration, Timestamp};
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn finalizer_and_status_precede_the_first_update() {
    let mut stack = stack();
    stack.finalizer = false;
    let plan = plan(&snapshot(stack.clone()));
    let update = created(&plan).unwrap();
    assert_eq!(plan.effects[0], Effect::AddFinalizer);
    assert_eq!(plan.status.current_update.as_ref(), Some(&update.current));
    assert_eq!(update.current.name, update_name(&stack));
    assert_eq!((update.operation, update.message.as_str()), (Operation::Up, "Initial stack update"));
    assert_eq!(condition(&plan), "Reconciling/StackProcessing: stack is being processed");
    assert_eq!(plan.status.observed_generation, Some(1));
}

#[test]
fn recorded_run_has_one_successor_after_any_change() {
    let first = stack();
    let mut edited = first.clone();
    edited.generation = 7;
    edited.spec.refresh = true;
    assert_eq!(update_name(&first), update_name(&edited));
    assert_ne!(update_name(&first), update_name(&stack_after(last_update(Succeeded, 0, 1))));
    let mut namesake = first.clone();
    namesake.uid = "uid-2".into();
    assert_ne!(update_name(&first), update_name(&namesake));
}

#[test]
fn long_stack_name_leaves_room_for_derived_names() {
    let mut stack = stack();
    stack.name = format!("{}.{}", "a".repeat(179), "b".repeat(70));
    let name = update_name(&stack);
    assert!(name.len() + "-stack-outputs".len() <= 253 && !name.contains(".-"), "{name}");
}

/// The note of a plan's Event with this reason.
fn told(stack: &Stack, wanted: &str) -> Option<String> {
    plan(&snapshot(stack.clone())).effects.into_iter().find_map(|effect| match effect {
        Effect::Event { reason, note, .. } if reason.as_str() == wanted => Some(note),
        _ => None,
    })
}

#[test]
fn ignored_pod_fields_are_reported_with_the_first_run() {
    let mut stack = stack();
    stack.spec.pod_only = vec!["spec.a".into(), "spec.b".into()];
    let told = |stack: &Stack| told(stack, "PodFieldsIgnored").is_some_and(|note| note.ends_with(": spec.a, spec.b"));
    assert!(told(&stack));
    let taken_over = stack_after(last_update(Succeeded, 0, 1));
    stack.status = taken_over.status;
    stack.reconcile_request = "again".into();
    stack.status.ran = None;
    assert!(told(&stack), "another operator ran it");
    stack.status.ran = Some(true);
    assert!(!told(&stack));
    stack.generation += 1;
    assert!(told(&stack));
    stack.spec.refused = Some("spec.c: no".into());
    assert!(!told(&stack), "nothing is run, and the condition says why");
}

#[test]
fn backend_on_the_task_disk_is_reported() {
    let mut stack = stack();
    assert_eq!(told(&stack, "StateNotKept"), None);
    stack.spec.task_backend = Some("file:///state".into());
    let note = told(&stack, "StateNotKept").unwrap();
    assert!(note.starts_with("backend \"file:///state\" is on the disk of the task, which is deleted after the run; "), "{note}");
    assert!(created(&plan(&snapshot(stack))).is_some(), "it is run all the same");
}

#[test]
fn frequent_resyncs_are_reported_and_bounded() {
    for (asked, least, note) in [
        (Some(60), 60, Some("spec.resyncFrequencySeconds is 60: each resync starts a task, 1440 a day")),
        (
            Some(60),
            600,
            Some("spec.resyncFrequencySeconds is 60; 600 is used, because MinResyncSeconds of this installation is 600: each"),
        ),
        (Some(900), 600, None),
        (None, 600, None),
    ] {
        let mut stack = stack();
        (stack.spec.resync_frequency_seconds, stack.spec.min_resync_seconds) = (asked, least);
        stack.spec.default_resync_seconds = 600;
        assert_eq!(told(&stack, "FrequentResync"), None, "it is not run again");
        stack.spec.continue_resync_on_commit_match = true;
        let found = told(&stack, "FrequentResync");
        assert_eq!(found.is_some(), note.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().starts_with(note.unwrap_or_default()), "{note:?}");
    }
}

#[test]
fn live_run_is_left_alone_and_launched_again_after_a_change() {
    let mut stack = stack();
    stack.generation = 2;
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Live(run(Operation::Up), UpdateFacts::default(), None);
    let plan = plan(&snapshot);
    assert_eq!(plan.effects, [Effect::Launch { namespace: "team".into(), update: "shop-111".into() }]);
    let current = plan.status.current_update.clone().unwrap();
    assert_eq!(
        (current.name.as_str(), current.generation),
        ("shop-111", 1),
        "what the Update says, not what the Stack is by now"
    );
    assert_eq!(condition(&plan), "Reconciling/StackProcessing: stack is being processed");
    snapshot.run = RunState::Live(
        run(Operation::Up),
        UpdateFacts::default(),
        Some(Readiness::waiting(Some(WaitReason::InputNotFound), "Secret \"db\" is missing")),
    );
    assert_eq!(condition(&support::plan(&snapshot)), "Reconciling/StackProcessing: Secret \"db\" is missing");
    snapshot.run = RunState::Live(
        run(Operation::Up),
        UpdateFacts::default(),
        Some(Readiness::waiting(Some(WaitReason::SpecInvalid), "ECS refuses the image")),
    );
    assert_eq!(condition(&support::plan(&snapshot)), "Stalled/SpecInvalid: ECS refuses the image");
}

#[test]
fn run_waits_until_the_maintenance_window_opens() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.window = Some(closed_window());
    let opens: Timestamp = "2027-01-15T09:00:00Z".parse().unwrap();
    let words = "the run starts when the maintenance window opens at 2027-01-15T09:00:00Z; remove the annotation \
                 driftless.dev/window-schedule to start it now";
    let waits = plan(&snapshot);
    assert_eq!(condition(&waits), format!("Reconciling/OutsideWindow: Initial stack update; {words}"));
    assert_eq!((waits.effects.as_slice(), waits.requeue_at), (&[][..], Some(opens)));
    assert_eq!(created(&plan_at(&snapshot, opens)).unwrap().operation, Operation::Up);

    // A git source is not polled until then.
    let Some(SourceState::Artifact { polled, .. }) = &mut snapshot.source else { panic!("another source") };
    *polled = Some(ago(100_000));
    assert_eq!(plan(&snapshot).effects, []);

    // A preview changes nothing. A destroy does, whatever the Stack runs otherwise.
    snapshot.source = support::snapshot(stack()).source;
    snapshot.stack.spec.preview = true;
    assert_eq!(created(&plan(&snapshot)).unwrap().operation, Operation::Preview);
    snapshot.stack.spec.preview = false;
    (snapshot.stack.deleting, snapshot.stack.spec.destroy_on_finalize) = (true, true);
    snapshot.stack.status.last_update = Some(last_update(Succeeded, 0, 60));
    assert_eq!(condition(&plan(&snapshot)), format!("Reconciling/OutsideWindow: Stack marked for deletion; {words}"));

    // A Stack without a change is Ready at any time.
    snapshot.stack.deleting = false;
    assert_eq!(condition(&plan(&snapshot)), "Ready");
}

#[test]
fn suspended_stack_starts_nothing_and_keeps_its_state() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.suspended = true;
    let words = "before the Stack is resumed: remove the annotation driftless.dev/suspend and spec.driftless.suspend";
    let first = plan(&snapshot);
    assert_eq!((first.effects.as_slice(), first.requeue_at, first.status.suspended), (&[][..], None, true));
    assert_eq!(condition(&first), format!("Reconciling/Suspended: no update begins {words}"));

    // It stays Ready while no request comes, even if its source has changed.
    snapshot.stack.status.last_update = Some(last_update(Succeeded, 0, 1));
    snapshot.source = Some(SourceState::NotFound);
    assert_eq!(condition(&plan(&snapshot)), "Ready");
    for (generation, request, state) in [(2, "", Succeeded), (1, "now", Succeeded), (1, "", Failed)] {
        let mut asked = snapshot.clone();
        (asked.stack.generation, asked.stack.reconcile_request) = (generation, request.into());
        asked.stack.status.last_update = Some(last_update(state, 1, 1_000_000));
        let plan = plan(&asked);
        assert!(condition(&plan).starts_with("Reconciling/Suspended: "), "{generation} {request:?} {state:?}");
        assert_eq!((plan.effects, plan.requeue_at), (vec![], None));
    }

    // A live run ends and is recorded.
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(true));
    let ended = plan(&snapshot);
    assert_eq!((condition(&ended).as_str(), created(&ended)), ("Ready", None));

    // It is not destroyed, and is released only if there is nothing to destroy.
    snapshot.run = RunState::None;
    snapshot.stack.deleting = true;
    assert_eq!(plan(&snapshot).effects, [Effect::RemoveFinalizer]);
    snapshot.stack.spec.destroy_on_finalize = true;
    assert_eq!(condition(&plan(&snapshot)), format!("Reconciling/Suspended: nothing is destroyed {words}"));
    (snapshot.stack.suspended, snapshot.source) = (false, support::snapshot(stack()).source);
    assert_eq!(created(&plan(&snapshot)).unwrap().operation, Operation::Destroy);
}

#[test]
fn missing_update_is_recreated_under_its_name() {
    let mut stack = stack();
    let first = plan(&snapshot(stack.clone()));
    stack.status = first.status.clone();
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Missing;
    let second = plan(&snapshot);
    assert_eq!(created(&second), created(&first));
}

#[test]
fn foreign_update_of_that_name_is_named_and_blocks_the_run() {
    let mut stack = stack();
    stack.status = plan(&snapshot(stack.clone())).status;
    let name = update_name(&stack);
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Foreign;
    let plan = plan(&snapshot);
    assert_eq!(
        condition(&plan),
        format!("Stalled/UpdateConflict: Update {name:?} does not belong to this Stack or cannot be read; delete it")
    );
    assert_eq!((plan.effects.len(), plan.requeue_at), (0, Some(now() + SignedDuration::from_secs(30))));
}

#[test]
fn a_success_is_recorded_and_the_stack_is_ready() {
    let mut snapshot = snapshot(stack());
    let mut outcome = outcome(true);
    outcome.outputs = Some([("url".to_owned(), "https://shop".into())].into());
    snapshot.run = RunState::Ended(run(Operation::Up), outcome);
    let plan = plan(&snapshot);
    assert_eq!(condition(&plan), "Ready");
    let last = plan.status.last_update.unwrap();
    assert_eq!((last.state, last.failures, last.message.as_str()), (Succeeded, 0, ""));
    assert_eq!((last.last_attempted_commit.as_str(), last.last_successful_commit.as_str()), ("main@sha1:aaa", "main@sha1:aaa"));
    assert_eq!(plan.status.outputs.unwrap()["url"], "https://shop");
    assert_eq!(plan.status.current_update, None);
    let [Effect::Event { .. }, Effect::WakeDependents, Effect::ReleaseUpdate { namespace, update }] = &plan.effects[..] else {
        panic!("the release comes last: {:?}", plan.effects)
    };
    assert_eq!((namespace.as_str(), update.as_str()), ("team", "shop-111"));
    assert_eq!(plan.requeue_at, None);
}

#[test]
fn an_edit_during_a_run_leads_to_one_more_run() {
    let mut stack = stack();
    stack.generation = 2;
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(true));
    let plan = plan(&snapshot);
    let update = created(&plan).unwrap();
    assert_eq!((update.current.generation, update.message.as_str()), (2, "New stack generation: 2"));
    assert_ne!(update.current.name, "shop-111");
}

#[test]
fn too_old_pulumi_has_its_own_reason() {
    let mut stack = stack();
    stack.spec.old_pulumi = Some("spec.image: no".into());
    let found = plan(&snapshot(stack.clone()));
    assert_eq!((condition(&found).as_str(), created(&found)), ("Stalled/PulumiVersionTooLow: spec.image: no", None));
    assert_eq!(told(&stack, "StackConfigInvalid").as_deref(), Some("spec.image: no"));
    stack.spec.refused = Some("spec.a: no".into());
    assert_eq!(condition(&plan(&snapshot(stack))), "Stalled/SpecInvalid: spec.a: no");
}

#[test]
fn invalid_spec_names_field_and_cause() {
    let invalid = |change: &dyn Fn(&mut StackSpec)| {
        let mut stack = stack();
        change(&mut stack.spec);
        let plan = plan(&snapshot(stack));
        assert_eq!(created(&plan), None);
        condition(&plan).strip_prefix("Stalled/SpecInvalid: ").unwrap().to_owned()
    };
    let reference = |selector: &str| ResourceRef { selector: selector.into(), ..ResourceRef::default() };
    let elsewhere = ResourceRef { secret: Some((Some("other".into()), "s".into(), "k".into())), ..reference("Secret") };
    assert!(invalid(&|spec| spec.stack = " ".into()).starts_with("spec.stack is empty; "));
    assert!(invalid(&|spec| spec.sources.clear()).starts_with("no source; "));
    assert_eq!(
        invalid(&|spec| spec.sources.push(SourceRef::Program { name: "p".into() })),
        "more than one source: spec.fluxSource, spec.programRef; keep one"
    );
    assert!(invalid(&|spec| spec.refused = Some("spec.updateTemplate: no".into())).starts_with("spec.updateTemplate: no"));
    assert_eq!(
        invalid(&|spec| drop(spec.env_refs.insert("A".into(), elsewhere.clone()))),
        "resolving env variable reference for \"A\": cross-namespace refs are not allowed"
    );
    assert_eq!(
        invalid(&|spec| drop(spec.secrets_ref.insert("k".into(), reference("FS")))),
        "failed to set stack config: updating secretRef for \"k\": ref type \"FS\" is deprecated"
    );
    assert!(invalid(&|spec| drop(spec.secrets_ref.insert("k".into(), reference("Literal")))).contains("set literal.value"));
    assert!(
        invalid(&|spec| {
            spec.config.insert("k".into(), 1.into());
            spec.secrets.insert("k".into(), "v".into());
        })
        .starts_with("config key \"k\" is in spec.config and in spec.secrets")
    );
    assert!(
        invalid(&|spec| {
            spec.backend = Some("s3://state".into());
            spec.env_refs.insert("PULUMI_BACKEND_URL".into(), ResourceRef { literal: Some("x".into()), ..reference("Literal") });
        })
        .contains("spec.backend and by spec.envRefs")
    );
    let dir = |dir: &str| SourceRef::Flux { api_version: "g/v1".into(), kind: "K".into(), name: "n".into(), dir: dir.into() };
    assert!(invalid(&|spec| spec.sources = vec![dir("a/../..")]).contains("remove every \"..\""));
    let git = |repo: &str, branch: &str, commit: &str, forms| {
        let git = GitSource { repo: repo.into(), branch: branch.into(), commit: commit.into(), ..GitSource::default() };
        SourceRef::Git(GitSource { auth_forms: forms, ..git })
    };
    for (source, words) in [
        (git("", "main", "", None), "missing \"projectRepo\"; "),
        (git("r", "", "", None), "missing \"commit\" or \"branch\"; "),
        (git("r", "main", "abc", None), "only one of \"commit\" or \"branch\" should be specified; "),
        (git("r", "main", "", Some(0)), "gitAuth config must specify exactly one of "),
    ] {
        assert!(invalid(&|spec| spec.sources = vec![source.clone()]).starts_with(words), "{words}");
    }
    let wrong = SourceRef::Flux { api_version: "v1".into(), kind: "K".into(), name: "n".into(), dir: String::new() };
    assert!(invalid(&|spec| spec.sources = vec![wrong.clone()]).starts_with("cannot process source reference: "));
}

#[test]
fn preview_stack_only_runs_previews() {
    let mut stack = stack();
    stack.spec.preview = true;
    assert_eq!(created(&plan(&snapshot(stack.clone()))).unwrap().operation, Operation::Preview);
    stack.deleting = true;
    stack.spec.destroy_on_finalize = true;
    stack.status.last_update = Some(last_update(Succeeded, 0, 1));
    assert_eq!(plan(&snapshot(stack)).effects, [Effect::RemoveFinalizer]);
}
