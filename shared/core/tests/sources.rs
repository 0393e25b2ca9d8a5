//! What a run reads: its source, when that is polled, and the condition while it is unavailable.

mod support;

use driftless_core::*;
use jiff::{SignedDuration, Timestamp};
use support::*;

use LastUpdateState::{Failed, Succeeded};

#[test]
fn missing_source_stalls_the_stack_and_is_retried() {
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
        assert_eq!(plan.requeue_at, Some(now() + SignedDuration::from_secs(30)));
    }
}

#[test]
fn tree_is_requested_once_and_again_without_an_answer() {
    let mut snapshot = snapshot(stack());
    snapshot.tree = TreeState::Absent { failure: None };
    let fetch = Effect::Fetch(snapshot.stack.spec.sources[0].clone());
    let first = plan(&snapshot);
    assert_eq!(
        (condition(&first).as_str(), first.effects.as_slice()),
        ("Reconciling/StackProcessing: fetching GitRepository \"shop\" at main@sha1:aaa", std::slice::from_ref(&fetch))
    );
    assert_eq!((first.status.next_reconciliation, first.requeue_at), (Some(now() + SignedDuration::from_secs(30)), None));
    snapshot.stack.status = first.status;
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(5)).effects, []);
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(30)).effects, std::slice::from_ref(&fetch));

    let revision = "main@sha1:bbb".into();
    snapshot.source = Some(SourceState::Artifact { revision, digest: "sha256:bbb".into(), polled: None });
    assert_eq!(plan_at(&snapshot, now() + SignedDuration::from_secs(5)).effects, [fetch], "another revision is another request");
}

#[test]
fn failed_fetch_is_reported_and_retried_unless_terminal() {
    let mut snapshot = snapshot(stack());
    let failure = |terminal, seconds| TreeState::Absent {
        failure: Some(FetchFailure { at: ago(seconds), message: "connection refused".into(), terminal, failures: 1 }),
    };
    let words = "Stalled/SourceUnavailable: GitRepository \"shop\" at main@sha1:aaa: connection refused; ";
    for (tree, next, effects, next_reconciliation, look) in [
        (failure(false, 5), "next try at 08:00:25Z", 0, Some(25), Some(25)),
        // The fetcher answers, or the sweep finds the answer overdue.
        (failure(false, 31), "retrying", 1, Some(30), None),
        (failure(true, 99), "not retried until the source changes", 0, None, None),
    ] {
        snapshot.tree = tree;
        let plan = plan(&snapshot);
        assert_eq!((condition(&plan), plan.effects.len()), (format!("{words}{next}"), effects));
        let seconds = |at: Option<Timestamp>| at.map(|at| at.duration_since(now()).as_secs());
        assert_eq!((seconds(plan.status.next_reconciliation), seconds(plan.requeue_at)), (next_reconciliation, look));
    }
    snapshot.stack.reconcile_request = "now".into();
    for terminal in [false, true] {
        snapshot.tree = failure(terminal, 5);
        let plan = plan(&snapshot);
        assert_eq!((condition(&plan), plan.effects.len()), (format!("{words}retrying"), 1), "asked for");
    }
    snapshot.stack.reconcile_request = String::new();
    let waits = [1, 2, 3, 5, 9].map(|failures| {
        let message = String::new();
        snapshot.tree = TreeState::Absent { failure: Some(FetchFailure { at: now(), message, terminal: false, failures }) };
        plan(&snapshot).requeue_at.unwrap().duration_since(now()).as_secs()
    });
    assert_eq!(waits, [30, 60, 120, 480, 600]);
}

/// A Stack on a branch of a git repository, run at "aaa"; git was polled `seconds` ago and had
/// `revision`.
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
fn git_is_polled_once_per_resync_period_and_before_a_run() {
    let asks = |plan: &Plan| plan.effects.iter().any(|effect| matches!(effect, Effect::Fetch(_)));
    let quiet = plan(&on_git("aaa", 20));
    assert_eq!((condition(&quiet).as_str(), asks(&quiet)), ("Ready", false));
    assert_eq!(quiet.requeue_at, Some(now() + SignedDuration::from_secs(40)), "the next time to ask");
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
fn revision_without_relevant_changes_counts_as_run() {
    let stored = |scope: &str| TreeState::Stored { project: Project::There, scope: Some(scope.into()) };
    let mut snapshot = snapshot(stack_after(last_update(LastUpdateState::Succeeded, 0, 60)));
    snapshot.stack.paths = Some("modules".into());
    snapshot.stack.status.scope = Some("same".into());
    let digest = "sha256:bbb".into();
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
            reason: EventReason::RevisionSkipped,
            note,
            revision: Some("main@sha1:bbb".into()),
            change_request: None,
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
fn directory_without_a_project_starts_no_task() {
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
    let SourceRef::Flux { dir, .. } = &mut snapshot.stack.spec.sources[0] else { panic!("a Flux source") };
    dir.clear();
    let words = condition(&plan(&snapshot));
    assert!(words.contains("at main@sha1:aaa has no Pulumi.yaml in its root; correct spec.fluxSource.dir"), "{words}");
}

#[test]
fn changed_inputs_start_a_run_and_are_compared_once_per_resync() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 60)));
    snapshot.stack.spec.default_resync_seconds = 600;
    let look = |changed, seconds, snapshot: &mut Snapshot| {
        snapshot.inputs = Some(Inputs { changed, digest: None, read: ago(seconds), waits_for: None });
        plan(snapshot)
    };
    let quiet = look(false, 599, &mut snapshot);
    assert_eq!((condition(&quiet).as_str(), quiet.requeue_at), ("Ready", Some(now() + SignedDuration::from_secs(1))));
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
fn changed_inputs_wait_for_prerequisites_that_may_change_them_again() {
    let mut snapshot = snapshot(stack_after(last_update(Succeeded, 0, 60)));
    let look = |seconds, waits_for: Option<&str>, snapshot: &mut Snapshot| {
        snapshot.inputs = Some(Inputs { changed: true, digest: None, read: ago(seconds), waits_for: waits_for.map(Into::into) });
        plan(snapshot)
    };
    let waiting = look(5, Some("net"), &mut snapshot);
    assert_eq!((created(&waiting), waiting.status.waits_for.as_deref()), (None, Some("net")));
    assert_eq!(waiting.requeue_at, Some(now() + SignedDuration::from_secs(25)));
    let message = "a Secret or ConfigMap changed; waiting for Stack \"net\", whose run may change another one";
    assert!(condition(&waiting).contains(message), "{}", condition(&waiting));
    assert_eq!(look(30, Some("net"), &mut snapshot).effects, [Effect::CompareInputs]);
    assert!(created(&look(5, None, &mut snapshot)).is_some());
    snapshot.stack.generation += 1;
    assert!(created(&look(5, Some("net"), &mut snapshot)).is_some(), "a run that is wanted for another reason starts");
}
