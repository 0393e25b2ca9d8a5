//! What a look at a Stack leads to.

mod support;

use driftless_core::*;
use jiff::SignedDuration;
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn the_first_look_puts_the_finalizer_on_records_the_update_and_only_then_creates_it() {
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
fn there_is_one_successor_of_a_recorded_run_whatever_changed_meanwhile() {
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
fn a_long_stack_name_leaves_room_for_what_is_named_after_the_update() {
    let mut stack = stack();
    stack.name = format!("{}.{}", "a".repeat(179), "b".repeat(70));
    let name = update_name(&stack);
    assert!(name.len() + "-stack-outputs".len() <= 253 && !name.contains(".-"), "{name}");
}

#[test]
fn a_live_run_is_left_alone_and_the_launcher_is_told_again() {
    let mut stack = stack();
    stack.generation = 2;
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Live(run(Operation::Up), None);
    let plan = plan(&snapshot);
    assert_eq!(plan.effects, [Effect::Launch { namespace: "team".into(), update: "shop-111".into() }]);
    let current = plan.status.current_update.clone().unwrap();
    assert_eq!(
        (current.name.as_str(), current.generation),
        ("shop-111", 1),
        "what the Update says, not what the Stack is by now"
    );
    assert_eq!(condition(&plan), "Reconciling/StackProcessing: stack is being processed");
    snapshot.run = RunState::Live(run(Operation::Up), Some("Secret \"db\" is missing".into()));
    assert_eq!(condition(&support::plan(&snapshot)), "Reconciling/StackProcessing: Secret \"db\" is missing");
}

#[test]
fn of_a_suspended_stack_nothing_begins_and_what_is_so_stays_so() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.suspended = true;
    let words = "before the Stack is resumed: remove the annotation driftless.dev/suspend and spec.driftless.suspend";
    let first = plan(&snapshot);
    assert_eq!((first.effects.as_slice(), first.look_at, first.status.suspended), (&[][..], None, true));
    assert_eq!(condition(&first), format!("Reconciling/Suspended: no update begins {words}"));

    // It is Ready as long as nobody asks for anything else, whatever its source has by now.
    snapshot.stack.status.last_update = Some(last_update(Succeeded, 0, 1));
    snapshot.source = Some(SourceState::NotFound);
    assert_eq!(condition(&plan(&snapshot)), "Ready");
    for (generation, request, state) in [(2, "", Succeeded), (1, "now", Succeeded), (1, "", Failed)] {
        let mut asked = snapshot.clone();
        (asked.stack.generation, asked.stack.reconcile_request) = (generation, request.into());
        asked.stack.status.last_update = Some(last_update(state, 1, 1_000_000));
        let plan = plan(&asked);
        assert!(condition(&plan).starts_with("Reconciling/Suspended: "), "{generation} {request:?} {state:?}");
        assert_eq!((plan.effects, plan.look_at), (vec![], None));
    }

    // A run that is under way ends and is recorded.
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(true));
    let ended = plan(&snapshot);
    assert_eq!((condition(&ended).as_str(), created(&ended)), ("Ready", None));

    // It is not destroyed, and goes only if there is nothing to destroy.
    snapshot.run = RunState::None;
    snapshot.stack.deleting = true;
    assert_eq!(plan(&snapshot).effects, [Effect::RemoveFinalizer]);
    snapshot.stack.spec.destroy_on_finalize = true;
    assert_eq!(condition(&plan(&snapshot)), format!("Reconciling/Suspended: nothing is destroyed {words}"));
    (snapshot.stack.suspended, snapshot.source) = (false, support::snapshot(stack()).source);
    assert_eq!(created(&plan(&snapshot)).unwrap().operation, Operation::Destroy);
}

#[test]
fn an_update_that_is_missing_is_created_anew_under_its_name() {
    let mut stack = stack();
    let first = plan(&snapshot(stack.clone()));
    stack.status = first.status.clone();
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Missing;
    let second = plan(&snapshot);
    assert_eq!(created(&second), created(&first));
}

#[test]
fn somebody_elses_update_of_that_name_is_named_and_nothing_is_run() {
    let mut stack = stack();
    stack.status = plan(&snapshot(stack.clone())).status;
    let name = update_name(&stack);
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Foreign;
    let plan = plan(&snapshot);
    assert_eq!(condition(&plan), format!("Stalled/UpdateConflict: Update {name:?} was not made for this Stack; delete it"));
    assert_eq!((plan.effects.len(), plan.look_at), (0, Some(now() + SignedDuration::from_secs(30))));
}

#[test]
fn a_run_that_never_began_is_not_counted_and_leaves_nothing_to_destroy() {
    let never = RunOutcome { started: false, project: None, ..outcome(false) };
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.destroy_on_finalize = true;
    snapshot.run = RunState::Ended(run(Operation::Up), never.clone());
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!((snapshot.stack.status.ran, snapshot.stack.status.last_update.as_ref().unwrap().failures), (Some(false), 0));
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!(snapshot.stack.status.last_update.as_ref().unwrap().failures, 0);

    // Deleted, with its source gone.
    let mut deleted = snapshot.clone();
    (deleted.stack.deleting, deleted.stack.generation, deleted.source) = (true, 2, Some(SourceState::NotFound));
    deleted.run = RunState::None;
    assert!(plan(&deleted).effects.contains(&Effect::RemoveFinalizer));

    // One that began may have made something, whatever comes after it.
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { started: true, ..never.clone() });
    snapshot.stack.status = plan(&snapshot).status;
    snapshot.run = RunState::Ended(run(Operation::Up), never);
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!((snapshot.stack.status.ran, snapshot.stack.status.last_update.as_ref().unwrap().failures), (Some(true), 1));
    deleted.stack.status = snapshot.stack.status.clone();
    assert!(!plan(&deleted).effects.contains(&Effect::RemoveFinalizer));
    // What another operator ran is not known.
    assert_eq!(stack_after(last_update(Succeeded, 0, 1)).status.ran, None);
}

#[test]
fn a_look_that_is_booked_for_earlier_will_do() {
    let mut snapshot = snapshot(stack());
    snapshot.source = Some(SourceState::NotFound);
    // Without one, in 30 s; one in the past was answered by this look.
    for (booked, next, books) in [
        (None, 30, true),
        (Some(-5), 30, true),
        (Some(0), 30, true),
        (Some(5), 5, false),
        (Some(30), 30, false),
        (Some(31), 30, true),
    ] {
        snapshot.stack.status.next_look = booked.map(|seconds| now() + SignedDuration::from_secs(seconds));
        let plan = plan(&snapshot);
        let at = now() + SignedDuration::from_secs(next);
        assert_eq!((plan.status.next_look, plan.look_at), (Some(at), books.then_some(at)), "{booked:?}");
    }
}

#[test]
fn a_look_is_booked_for_the_next_whole_second() {
    let mut snapshot = snapshot(stack());
    for (milliseconds, seconds) in [(0, 20), (1, 21), (999, 21)] {
        let at = ago(10) + SignedDuration::from_millis(milliseconds);
        let failure = FetchFailure { at, message: "it is away".into(), terminal: false, failures: 1 };
        snapshot.tree = TreeState::Absent { failure: Some(failure) };
        assert_eq!(plan(&snapshot).look_at, Some(now() + SignedDuration::from_secs(seconds)), "{milliseconds}");
    }
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
    assert!(plan.effects.contains(&Effect::ReleaseUpdate { namespace: "team".into(), update: "shop-111".into() }));
    assert!(plan.effects.contains(&Effect::WakeDependents));
    assert_eq!(plan.look_at, None);
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
fn a_failure_is_retried_after_a_cooldown_that_is_booked_once() {
    let mut snapshot = snapshot(stack());
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
    let first = plan(&snapshot);
    assert_eq!(condition(&first), "Reconciling/RetryingAfterFailure: 0 update failure(s)");
    assert_eq!(first.look_at, Some(now() + SignedDuration::from_secs(10)));
    let event = Effect::Event {
        event_type: EventType::Warning,
        reason: "StackUpdateFailure",
        note: "Failed to update stack: up failed: no such bucket".into(),
        revision: Some(run(Operation::Up).commit),
    };
    assert!(first.effects.contains(&event));

    snapshot.stack.status = first.status;
    snapshot.run = RunState::None;
    let again = plan_at(&snapshot, now() + SignedDuration::from_secs(5));
    assert_eq!((again.look_at, again.effects.len()), (None, 0), "the look is booked already");
    let later = plan_at(&snapshot, now() + SignedDuration::from_secs(10));
    assert_eq!(created(&later).unwrap().message, "Backoff time elapsed: 10s");
}

#[test]
fn a_fresh_generation_gets_four_tries_and_then_waits_for_a_change() {
    let mut snapshot = snapshot(stack());
    let mut at = now();
    let mut waits = Vec::new();
    let last = loop {
        snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        let Some(look) = plan.look_at else { break plan };
        waits.push(look.duration_since(at).as_secs());
        at = look;
        assert!(waits.len() < 10, "{waits:?}");
    };
    assert_eq!(waits, [10, 30, 90]);
    assert_eq!(condition(&last), "Stalled/UpdateFailed: up failed 3 times; not retrying until the spec or source changes");
}

#[test]
fn failures_count_on_after_a_new_commit_and_start_anew_with_a_new_generation() {
    let failed = |stack: Stack, run: Run| {
        let mut snapshot = snapshot(stack);
        snapshot.run = RunState::Ended(run, outcome(false));
        plan(&snapshot).status.last_update.unwrap().failures
    };
    let other_commit = Run { commit: "main@sha1:bbb".into(), ..run(Operation::Up) };
    assert_eq!(failed(stack_after(last_update(Failed, 3, 1)), other_commit), 4);
    let mut edited = stack_after(last_update(Failed, 2, 1));
    edited.generation = 2;
    assert_eq!(failed(edited.clone(), Run { generation: 2, ..run(Operation::Up) }), 0);
    assert_eq!(failed(stack_after(last_update(Succeeded, 0, 1)), run(Operation::Up)), 1);
}

#[test]
fn a_run_that_lost_its_capacity_is_not_counted_and_the_next_one_gets_through() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 1)));
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { reclaimed: true, ..outcome(false) });
    snapshot.stack.status = plan(&snapshot).status;
    assert_eq!(snapshot.stack.status.last_update.as_ref().unwrap().failures, 0);
    snapshot.run = RunState::None;
    let next = plan_at(&snapshot, now() + SignedDuration::from_secs(11));
    assert!(created(&next).unwrap().on_demand);
    // After one that succeeded it is where it is asked to be.
    snapshot.stack = stack_after(last_update(Succeeded, 0, 1));
    snapshot.stack.generation = 2;
    assert!(!created(&plan(&snapshot)).unwrap().on_demand);
}

#[test]
fn a_failure_keeps_the_last_good_commit_and_the_outputs() {
    let mut stack = stack_after(last_update(Succeeded, 0, 1));
    stack.status.outputs = Some([("url".to_owned(), "https://shop".into())].into());
    let mut snapshot = snapshot(stack);
    snapshot.run = RunState::Ended(Run { commit: "main@sha1:bbb".into(), ..run(Operation::Up) }, outcome(false));
    let status = plan(&snapshot).status;
    let last = status.last_update.unwrap();
    assert_eq!((last.last_attempted_commit.as_str(), last.last_successful_commit.as_str()), ("main@sha1:bbb", "main@sha1:aaa"));
    assert!(status.outputs.is_some());
}

#[test]
fn a_source_that_is_not_there_stalls_the_stack_and_is_looked_at_again() {
    let rows = [
        (SourceState::NotFound, "Stalled/SourceUnavailable: could not resolve sourceRef (GitRepository \"shop\")"),
        (
            SourceState::NoArtifact { why: String::new() },
            "Stalled/SourceUnavailable: Flux source has no artifact (GitRepository \"shop\")",
        ),
    ];
    for (state, words) in rows {
        let mut snapshot = snapshot(stack());
        snapshot.source = Some(state);
        let plan = plan(&snapshot);
        assert_eq!(condition(&plan), words);
        assert_eq!(plan.look_at, Some(now() + SignedDuration::from_secs(30)));
    }
}

#[test]
fn a_tree_is_asked_for_once_and_again_when_nobody_answers() {
    let mut snapshot = snapshot(stack());
    snapshot.tree = TreeState::Absent { failure: None };
    let fetch = Effect::Fetch(snapshot.stack.spec.sources[0].clone());
    let first = plan(&snapshot);
    assert_eq!(
        (condition(&first).as_str(), first.effects.as_slice()),
        ("Reconciling/StackProcessing: fetching GitRepository \"shop\" at main@sha1:aaa", std::slice::from_ref(&fetch))
    );
    snapshot.stack.status = first.status;
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(5)).effects, []);
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(30)).effects, std::slice::from_ref(&fetch));

    let revision = "main@sha1:bbb".to_owned();
    snapshot.source = Some(SourceState::Artifact { revision, digest: "sha256:bbb".into(), polled: None });
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(5)).effects, [fetch], "another revision is another request");
}

#[test]
fn a_fetch_that_failed_is_told_and_tried_again_unless_the_content_is_at_fault() {
    let mut snapshot = snapshot(stack());
    let failure = |terminal, seconds| TreeState::Absent {
        failure: Some(FetchFailure { at: ago(seconds), message: "connection refused".into(), terminal, failures: 1 }),
    };
    let words = "Stalled/SourceUnavailable: GitRepository \"shop\" at main@sha1:aaa: connection refused; ";
    for (tree, next, effects, look) in [
        (failure(false, 5), "trying again at 08:00:25Z", 0, Some(25)),
        (failure(false, 31), "trying again", 1, Some(30)),
        (failure(true, 99), "not tried again until the source changes", 0, None),
    ] {
        snapshot.tree = tree;
        let plan = plan(&snapshot);
        assert_eq!((condition(&plan), plan.effects.len()), (format!("{words}{next}"), effects));
        assert_eq!(plan.look_at.map(|at| at.duration_since(now()).as_secs()), look);
    }
    snapshot.stack.reconcile_request = "now".into();
    for terminal in [false, true] {
        snapshot.tree = failure(terminal, 5);
        let plan = plan(&snapshot);
        assert_eq!((condition(&plan), plan.effects.len()), (format!("{words}trying again"), 1), "asked for");
    }
    snapshot.stack.reconcile_request = String::new();
    let waits = [1, 2, 3, 5, 9].map(|failures| {
        let message = String::new();
        snapshot.tree = TreeState::Absent { failure: Some(FetchFailure { at: now(), message, terminal: false, failures }) };
        plan(&snapshot).look_at.unwrap().duration_since(now()).as_secs()
    });
    assert_eq!(waits, [30, 60, 120, 480, 600]);
}

/// A Stack on a branch of a git repository, run at "aaa"; git was asked `seconds` ago and had `revision`.
fn on_git(revision: &str, seconds: i64) -> Snapshot {
    let mut last = last_update(LastUpdateState::Succeeded, 0, 600);
    (last.last_attempted_commit, last.last_successful_commit) = ("aaa".into(), "aaa".into());
    let mut snapshot = snapshot(stack_after(last));
    let git = GitSource { stack: "shop".into(), repo: "https://git/shop".into(), branch: "main".into(), ..GitSource::default() };
    snapshot.stack.spec.sources = vec![SourceRef::Git(git)];
    let polled = Some(ago(seconds));
    snapshot.source = Some(SourceState::Artifact { revision: revision.into(), digest: "sha1:t".into(), polled });
    snapshot
}

#[test]
fn git_is_asked_once_in_the_resync_period_and_before_a_run() {
    let asks = |plan: &Plan| plan.effects.iter().any(|effect| matches!(effect, Effect::Fetch(_)));
    let quiet = plan(&on_git("aaa", 20));
    assert_eq!((condition(&quiet).as_str(), asks(&quiet)), ("Ready", false));
    assert_eq!(quiet.look_at, Some(now() + SignedDuration::from_secs(40)), "the next time to ask");
    let due = plan(&on_git("aaa", 60));
    assert_eq!((condition(&due).as_str(), asks(&due), created(&due)), ("Ready", true, None));

    let old = plan(&on_git("bbb", 31));
    assert_eq!(condition(&old), "Reconciling/StackProcessing: fetching git repository \"https://git/shop\" at its latest commit");
    assert_eq!((asks(&old), created(&old)), (true, None));
    let fresh = plan(&on_git("bbb", 30));
    assert_eq!(created(&fresh).unwrap().current.commit, "bbb");

    let mut going = on_git("aaa", 9999);
    (going.stack.deleting, going.stack.generation, going.stack.spec.destroy_on_finalize) = (true, 2, true);
    assert!(created(&plan(&going)).is_some(), "a repository that is gone does not keep a Stack from being destroyed");
}

#[test]
fn a_revision_that_changes_nothing_that_matters_is_taken_as_run() {
    let stored = |scope: &str| TreeState::Stored { project: Project::There, scope: Some(scope.into()) };
    let mut snapshot = snapshot(stack_after(last_update(LastUpdateState::Succeeded, 0, 60)));
    snapshot.stack.paths = Some("modules".into());
    snapshot.stack.status.scope = Some("same".into());
    let digest = "sha256:bbb".to_owned();
    snapshot.source = Some(SourceState::Artifact { revision: "main@sha1:bbb".into(), digest, polled: None });

    snapshot.tree = stored("same");
    let skipped = plan(&snapshot);
    assert_eq!((condition(&skipped).as_str(), created(&skipped)), ("Ready", None));
    assert_eq!(skipped.status.last_update.unwrap().last_successful_commit, "main@sha1:bbb");
    let note = "Nothing changed in infra, modules at \"main@sha1:bbb\": no update is needed".to_owned();
    assert_eq!(
        skipped.effects,
        [Effect::Event {
            event_type: EventType::Normal,
            reason: "RevisionSkipped",
            note,
            revision: Some("main@sha1:bbb".into())
        }]
    );

    snapshot.tree = stored("other");
    let changed = plan(&snapshot);
    let new = created(&changed).unwrap().tree.as_ref().unwrap();
    assert_eq!((new.paths.as_slice(), new.scope.as_deref()), (&["infra".to_owned(), "modules".to_owned()][..], Some("other")));

    snapshot.tree = stored("same");
    snapshot.stack.generation = 2;
    assert!(created(&plan(&snapshot)).is_some(), "a change of the spec is no change of the source");
}

#[test]
fn no_task_is_started_for_a_directory_that_has_no_project() {
    let mut snapshot = snapshot(stack());
    for (project, what) in
        [(Project::NoDirectory, "has no directory \"infra\""), (Project::NoFile, "has no Pulumi.yaml in \"infra\"")]
    {
        snapshot.tree = TreeState::Stored { project, scope: None };
        let plan = plan(&snapshot);
        assert_eq!(created(&plan), None);
        let words =
            format!("Stalled/SourceUnavailable: GitRepository \"shop\" at main@sha1:aaa {what}; correct spec.fluxSource.dir");
        assert!(condition(&plan).starts_with(&words), "{}", condition(&plan));
    }
}

#[test]
fn a_spec_that_cannot_be_run_says_which_field_and_why() {
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
fn prerequisites_hold_a_run_back_in_words_and_one_that_is_out_of_date_is_asked_for() {
    let reference = |name: &str, within| PrerequisiteRef { name: name.into(), succeeded_within_seconds: within };
    let found = |last_update| Some(Prerequisite { generation: 1, reconcile_request: String::new(), last_update });
    let rows = [
        (reference("db", None), None, "unable to fetch prerequisite \"db\": there is no such Stack in this namespace"),
        (reference("db", None), found(None), "prerequisite not satisfied for \"db\": prerequisite has not run to completion"),
        (
            reference("db", None),
            found(Some(last_update(Failed, 0, 1))),
            "prerequisite not satisfied for \"db\": prerequisite failed",
        ),
        (
            reference("db", Some(60)),
            found(Some(last_update(Succeeded, 0, 61))),
            "prerequisite not satisfied for \"db\": prerequisite is out of date",
        ),
    ];
    for (reference, prerequisite, words) in rows {
        let mut snapshot = snapshot(stack());
        snapshot.stack.spec.prerequisites = vec![reference];
        snapshot.prerequisites = vec![prerequisite];
        let plan = plan(&snapshot);
        assert_eq!(condition(&plan), format!("Reconciling/PrerequisiteNotSatisfied: {words}"));
        let asked = Effect::RequestReconcile { stack: "db".into(), request: "after-shop-000".into() };
        assert_eq!(plan.effects.contains(&asked), words.ends_with("out of date"), "{words}");
    }
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.prerequisites = vec![reference("db", Some(60))];
    snapshot.prerequisites = vec![found(Some(last_update(Succeeded, 0, 60)))];
    assert!(created(&plan(&snapshot)).is_some());
}

#[test]
fn a_preview_stack_only_ever_previews() {
    let mut stack = stack();
    stack.spec.preview = true;
    assert_eq!(created(&plan(&snapshot(stack.clone()))).unwrap().operation, Operation::Preview);
    stack.deleting = true;
    stack.spec.destroy_on_finalize = true;
    stack.status.last_update = Some(last_update(Succeeded, 0, 1));
    assert_eq!(plan(&snapshot(stack)).effects, [Effect::RemoveFinalizer]);
}

#[test]
fn a_stack_that_is_deleted_is_destroyed_first_if_that_was_asked_for() {
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
fn a_destroy_that_fails_is_tried_again_for_ever_and_ever_more_slowly() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 1)));
    (snapshot.stack.deleting, snapshot.stack.generation, snapshot.stack.spec.destroy_on_finalize) = (true, 2, true);
    let mut at = now();
    let waits = [(); 6].map(|()| {
        snapshot.run =
            RunState::Ended(Run { generation: 2, ..run(Operation::Destroy) }, RunOutcome { conflict: true, ..outcome(false) });
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        let wait = plan.look_at.unwrap().duration_since(at).as_secs();
        assert_eq!(created(&plan), None);
        at = plan.look_at.unwrap();
        (wait, condition(&plan).split(':').next().unwrap().to_owned())
    });
    assert_eq!(waits.clone().map(|(wait, _)| wait), [10, 30, 90, 270, 810, 2430]);
    assert_eq!(waits[2].1, "Reconciling/RetryingAfterFailure");
    assert_eq!(waits[3].1, "Stalled/UpdateFailed", "somebody should look");
    snapshot.run = RunState::None;
    assert_eq!(created(&plan_at(&snapshot, at)).unwrap().message, "Backoff time elapsed: 40m30s");
}

#[test]
fn a_lock_of_somebody_else_is_a_failure_that_waits_for_a_word() {
    let mut snapshot = snapshot(stack());
    snapshot.run = RunState::Ended(run(Operation::Up), RunOutcome { conflict: true, ..outcome(false) });
    let refused = plan(&snapshot);
    assert!(condition(&refused).starts_with("Stalled/UpdateConflict: up failed: no such bucket; set spec.retryOnUpdateConflict"));
    assert_eq!(refused.look_at, None);

    snapshot.stack.spec.retry_on_update_conflict = true;
    let mut at = now();
    let waits = [(); 5].map(|()| {
        let plan = plan_at(&snapshot, at);
        snapshot.stack.status = plan.status.clone();
        assert!(condition(&plan).starts_with("Reconciling/RetryingAfterFailure"));
        let wait = plan.look_at.unwrap().duration_since(at).as_secs();
        at = plan.look_at.unwrap();
        wait
    });
    assert_eq!(waits, [10, 30, 90, 270, 810]);
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(false));
    assert!(!plan_at(&snapshot, at).status.conflict);
}

#[test]
fn stacks_that_require_each_other_are_told_so() {
    let mut snapshot = snapshot(stack());
    snapshot.stack.spec.prerequisites = vec![PrerequisiteRef { name: "db".into(), succeeded_within_seconds: None }];
    snapshot.prerequisites = vec![None];
    let plan = |snapshot: &Snapshot| {
        let plan = plan(snapshot);
        (condition(&plan), plan.status.waits_for)
    };
    snapshot.requires = [("shop", "db"), ("db", "net"), ("net", "db")].map(|(a, b)| (a.into(), vec![b.into()])).into();
    let (words, waits_for) = plan(&snapshot);
    assert!(words.starts_with("Reconciling/PrerequisiteNotSatisfied"), "the cycle of others is theirs: {words}");
    assert_eq!(waits_for.as_deref(), Some("db"));
    snapshot.requires.insert("net".into(), vec!["dns".into(), "shop".into()]);
    let (words, waits_for) = plan(&snapshot);
    assert_eq!(words, "Stalled/SpecInvalid: spec.prerequisites form a cycle: shop -> db -> net -> shop; remove one of them");
    assert_eq!(waits_for, None);
}

#[test]
fn changed_inputs_lead_to_a_run_and_are_compared_once_in_the_resync_period() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 60)));
    snapshot.stack.spec.default_resync_seconds = 600;
    let look = |changed, seconds, snapshot: &mut Snapshot| {
        snapshot.inputs = Some(Inputs { changed, read: ago(seconds) });
        plan(snapshot)
    };
    let quiet = look(false, 599, &mut snapshot);
    assert_eq!((condition(&quiet).as_str(), quiet.look_at), ("Ready", Some(now() + SignedDuration::from_secs(1))));
    let due = look(false, 600, &mut snapshot);
    assert_eq!((condition(&due).as_str(), due.effects.as_slice()), ("Ready", &[Effect::CompareInputs][..]));
    let changed = look(true, 5, &mut snapshot);
    assert_eq!(created(&changed).unwrap().message, "Change of a Secret or ConfigMap detected");
    snapshot.stack.status.last_update = Some(last_update(Failed, 9, 60));
    assert!(created(&look(true, 5, &mut snapshot)).is_some(), "what failed may do now");
    snapshot.run = RunState::Ended(run(Operation::Up), outcome(true));
    assert_eq!(created(&look(true, 5, &mut snapshot)), None, "it has read them");
}

#[test]
fn a_workspace_goes_when_nothing_is_to_be_run_if_that_is_asked_for() {
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
    snapshot.run = RunState::Live(run(Operation::Up), None);
    assert_eq!(plan(&snapshot).effects, [Effect::Launch { namespace: "team".into(), update: "shop-111".into() }]);
    snapshot.run = RunState::None;
    assert_eq!(plan(&snapshot).effects, [Effect::RemoveFinalizer]);
    snapshot.stack.finalizer = false;
    assert_eq!(plan(&snapshot).effects, []);
}

#[test]
fn the_sweep_hints_what_was_not_seen_what_is_overdue_and_everything_once_a_period() {
    let mut stack = stack();
    let far = 1 << 40;
    assert!(due(&stack, far, 60, now()), "never looked at");
    stack.status = plan(&snapshot(stack.clone())).status;
    assert!(!due(&stack, far, 60, now()));
    stack.status.next_look = Some(ago(1));
    assert!(due(&stack, far, 60, now()), "a booked look is overdue");
    stack.status.next_look = None;
    stack.generation += 1;
    assert!(due(&stack, far, 60, now()), "the spec changed");
    stack.generation -= 1;
    let turns = (0..10).filter(|tick| due(&stack, 600, 60, now() + SignedDuration::from_secs(tick * 60))).count();
    assert_eq!(turns, 1);
}
