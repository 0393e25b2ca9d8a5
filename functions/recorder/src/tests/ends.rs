//! The recorded outcome, by how the task ended.

use super::*;

/// Records a run whose task ended like this, with or without a report, on Spot if ECS says so.
fn ended(end: &TaskEnd, verdict: Option<Verdict>, began: bool) -> Outcome {
    let world = stopped(end, |world, task| {
        if began {
            put(world, &format!("{task}out/progress"), "{}");
        }
        if let Some(verdict) = verdict {
            put(world, &format!("{task}out/result"), &to_json(&RunResult { verdict, ..succeeded(world) }));
        }
    });
    world.document(&keys::run(CLUSTER, &"uid".into()).outcome()).unwrap()
}

/// A world whose run was recorded after its task stopped with these reports.
fn stopped(end: &TaskEnd, report: impl FnOnce(&World, &str)) -> World {
    let world = world(&of_stack(), &json!({}));
    recorded_after(&world, end, report);
    world
}

/// Records the run of a world after its task stopped with these reports.
fn recorded_after(world: &World, end: &TaskEnd, report: impl FnOnce(&World, &str)) {
    let folder = keys::run(CLUSTER, &"uid".into());
    let launch: Launch = world.document(&folder.launch()).unwrap();
    let Started::Task { task: arn } = world.drive(Tasks::run(world, &launch)).unwrap().unwrap() else { panic!("no task") };
    let owner = Owner { version: VERSION, task: Some(arn.clone()), refused: None, at: world.now() };
    put(world, &format!("{folder}owner"), &to_json(&owner));
    report(world, &keys::task(ROLE, keys::task_id(&arn)));
    world.stop_task(&arn, end.clone());
    reconcile(world);
}

fn message(outcome: &Outcome) -> &str {
    match &outcome.verdict {
        Verdict::Succeeded {} => "",
        Verdict::Failed { message, .. } | Verdict::Aborted { message } => message,
    }
}

#[test]
fn silent_task_fails_the_run_or_the_platform() {
    let pull = "TaskFailedToStart; CannotPullContainerError: toomanyrequests";
    let oom = "EssentialContainerExited; pulumi: exit code 137, OutOfMemoryError: Container killed due to memory usage";
    for (code, out_of_memory, began, words, platform, expected) in [
        (StopCode::FailedToStart, false, false, pull, true, "check the Workspace's image and the pull limits of its registry"),
        (StopCode::Exited, false, false, "pulumi: exit code 1", true, "see the task's log if it lasts"),
        (StopCode::Exited, false, true, "pulumi: exit code 137", true, "most often because the task ran out of memory"),
        (
            StopCode::Exited,
            true,
            true,
            oom,
            false,
            "give it more memory with spec.workspaceTemplate.spec.resources.limits.memory",
        ),
        (StopCode::Exited, true, false, oom, false, "resources.limits.memory"),
        (StopCode::Requested, false, true, "running for longer than its limit of 60s", false, "its limit of 60s"),
        (StopCode::Requested, false, false, "no progress within 900s of its start", true, "see the task's log if it lasts"),
        (StopCode::Outside, false, true, "UserInitiated; by hand", true, "stopped from outside Driftless; nothing to do"),
        (StopCode::Maintenance, false, true, "ECS is performing maintenance", true, "see the task's log if it lasts"),
        (StopCode::Spot, false, true, "Your Spot Task was interrupted.", true, "Your Spot Task was interrupted."),
    ] {
        let outcome = ended(&TaskEnd { code: Some(code), out_of_memory, words: words.into(), at: None }, None, began);
        assert_eq!(outcome.platform_failure, platform, "{words}");
        assert_eq!(outcome.started_at.is_some(), began || out_of_memory, "{words}");
        let told = message(&outcome);
        assert!(told.contains(words) && told.contains(expected), "{told}");
        let prefix = match code {
            _ if out_of_memory => "pulumi used more than the task's memory of 2048 MiB: ",
            StopCode::Spot => "Fargate Spot reclaimed the capacity: the task ended without a result: ",
            _ => "the task ended without a result: ",
        };
        assert!(told.starts_with(prefix), "{told}");
    }
    // A tenant's init container may have written a fake progress.
    let end = TaskEnd { code: Some(StopCode::FailedToStart), ..TaskEnd::default() };
    assert_eq!(ended(&end, None, true).started_at, None);
}

#[test]
fn images_for_another_processor_have_it_in_the_next_run() {
    let words = "CannotPullContainerError: image Manifest does not contain descriptor matching platform 'linux/amd64'";
    let refused = TaskEnd { code: Some(StopCode::FailedToStart), words: words.into(), ..TaskEnd::default() };
    let architecture = Architecture::Amd64;
    let tried = |other_failed| Some(TriedArchitecture { images: "images".into(), architecture, other_failed });
    let (first, again) =
        ("not built for amd64; the next run with these images has arm64", "before this one was not built for arm64");
    // ECS refuses an image for several processors, and starts one that is built for another.
    for (tried, reported, expected) in [
        (tried(false), false, first),
        (tried(true), false, again),
        (None, false, "nodeSelector, or remove the label"),
        (tried(false), true, first),
        (None, true, "nodeSelector, or remove the label"),
    ] {
        let world = world(&of_stack(), &json!({}));
        let folder = keys::run(CLUSTER, &"uid".into());
        let launch: Launch = world.document(&folder.launch()).unwrap();
        put(&world, &format!("{folder}launch"), &to_json(&Launch { tried: tried.clone(), ..launch }));
        let end = if reported { &TaskEnd { code: Some(StopCode::Exited), ..TaskEnd::default() } } else { &refused };
        recorded_after(&world, end, |world, task| {
            if reported {
                let (reason, message) = (FailureReason::OtherArchitecture, "Exec format error".into());
                let verdict = Verdict::Failed { phase: Phase::Run, reason, message };
                put(world, &format!("{task}out/result"), &to_json(&RunResult { verdict, ..succeeded(world) }));
            }
        });
        let outcome: Outcome = world.document(&folder.outcome()).unwrap();
        assert!(outcome.platform_failure && message(&outcome).contains(expected), "{outcome:?}");
        let unfit = world.objects().get(&*keys::architecture(&key("n", "u"), "images")).cloned();
        let unfit = unfit.map(|document| UnfitArchitecture::parse(&document).unwrap());
        assert_eq!(unfit, tried.map(|_| UnfitArchitecture { version: VERSION, architecture }));
    }
}

#[test]
fn reported_failure_is_the_platforms_only_if_aws_stopped_the_task() {
    let failed = |reason| Verdict::Failed { phase: Phase::Run, reason, message: "its words".into() };
    let (spot, maintenance) = ("Fargate Spot reclaimed the capacity: ", "AWS stopped the task (ECS's words): ");
    for (code, verdict, platform, prefix) in [
        (StopCode::Spot, failed(FailureReason::Interrupted), true, spot),
        (StopCode::Spot, failed(FailureReason::Unknown), false, "its words"),
        (StopCode::Spot, Verdict::Succeeded {}, false, ""),
        (StopCode::Maintenance, failed(FailureReason::Interrupted), true, maintenance),
        (StopCode::Maintenance, failed(FailureReason::UpdateConflict), false, "its words"),
        (StopCode::Outside, failed(FailureReason::Interrupted), true, "the task was stopped (ECS's words); "),
        (StopCode::Outside, failed(FailureReason::Unknown), false, "its words"),
        // Driftless stopped it.
        (StopCode::Requested, failed(FailureReason::Interrupted), false, "its words"),
        // The runner could not use the bucket.
        (StopCode::Exited, failed(FailureReason::PlatformFailure), true, "its words"),
    ] {
        let end = TaskEnd { code: Some(code), words: "ECS's words".into(), ..TaskEnd::default() };
        let outcome = ended(&end, Some(verdict.clone()), true);
        assert_eq!(outcome.platform_failure, platform, "{code:?} {verdict:?}");
        assert!(message(&outcome).starts_with(prefix), "{}", message(&outcome));
    }
}

#[test]
fn interrupted_report_before_the_spot_stop_names_spot() {
    let world = world(&of_stack(), &json!({}));
    let folder = keys::run(CLUSTER, &"uid".into());
    let launch: Launch = world.document(&folder.launch()).unwrap();
    let Started::Task { task: arn } = world.drive(Tasks::run(&world, &Launch { spot: true, ..launch })).unwrap().unwrap() else {
        panic!("no task")
    };
    put(
        &world,
        &format!("{folder}owner"),
        &to_json(&Owner { version: VERSION, task: Some(arn.clone()), refused: None, at: world.now() }),
    );
    world.reclaim_task(&arn);
    let verdict = Verdict::Failed { phase: Phase::Run, reason: FailureReason::Interrupted, message: "told to stop".into() };
    let result = RunResult { verdict, ..succeeded(&world) };
    put(&world, &format!("{}out/result", keys::task(ROLE, keys::task_id(&arn))), &to_json(&result));
    reconcile(&world);
    let outcome: Outcome = world.document(&folder.outcome()).unwrap();
    assert!(outcome.platform_failure && message(&outcome).starts_with("Fargate Spot reclaimed the capacity: told to stop"));
}

#[test]
fn outcome_of_an_earlier_release_is_read() {
    let outcome = ended(&TaskEnd { code: Some(StopCode::Spot), ..TaskEnd::default() }, None, true);
    let earlier = to_json(&outcome).replace("platformFailure", "reclaimed");
    assert_eq!(Outcome::parse(earlier.as_bytes()).unwrap(), outcome);
}

#[test]
fn lock_written_during_the_reconciliation_is_kept() {
    let at = World::new(0, Faults::NONE).now();
    let later = at + SignedDuration::from_secs(3);
    for (stopped_at, not_after) in [(Some(later), later), (Some(at - SignedDuration::from_secs(3)), at), (None, at)] {
        let end = TaskEnd { code: Some(StopCode::Exited), at: stopped_at, ..TaskEnd::default() };
        let world = stopped(&end, |world, task| {
            assert_eq!(world.now(), at);
            let lock = Lock {
                version: VERSION,
                host: "h".into(),
                pid: 1,
                not_before: at,
                not_after: None,
                removes: false,
                earlier: Vec::new(),
            };
            put(world, &format!("{task}out/lock"), &to_json(&lock));
        });
        let kept: Lock = world.document(&keys::lock(CLUSTER, &CLAIM.into())).unwrap();
        assert_eq!(kept.not_after, Some(not_after), "{stopped_at:?}");
    }
}

#[test]
fn locks_of_earlier_dead_runs_are_kept_beside_the_newest() {
    let at = World::new(0, Faults::NONE).now();
    let lock = |pid| Lock {
        version: VERSION,
        host: "h".into(),
        pid,
        not_before: at,
        not_after: Some(at),
        removes: false,
        earlier: Vec::new(),
    };
    let before = Lock { earlier: vec![lock(1)], ..lock(2) };
    for (pid, earlier) in [(3, vec![2, 1]), (2, vec![1])] {
        let end = TaskEnd { code: Some(StopCode::Exited), at: Some(at), ..TaskEnd::default() };
        let world = stopped(&end, |world, task| {
            put(world, &keys::lock(CLUSTER, &CLAIM.into()), &to_json(&before));
            // The earlier locks that a task names are ignored.
            put(world, &format!("{task}out/lock"), &to_json(&Lock { earlier: vec![lock(9)], ..lock(pid) }));
        });
        let kept: Lock = world.document(&keys::lock(CLUSTER, &CLAIM.into())).unwrap();
        assert_eq!(kept, Lock { earlier: earlier.into_iter().map(lock).collect(), ..lock(pid) });
    }
}

#[test]
fn task_that_ecs_does_not_know_is_gone_after_ten_minutes() {
    let world = world(&of_stack(), &json!({}));
    let outcome = || world.objects().get(&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))).cloned();
    world.advance(SignedDuration::from_mins(10));
    reconcile(&world);
    assert_eq!(outcome(), None, "ECS may not know a new task yet");
    let queued = world.queued();
    assert!(
        matches!(&*queued, [(due, Message::Run(_))] if *due == world.now() + SignedDuration::from_mins(1)),
        "the event of its end comes once: {queued:?}"
    );
    world.advance(SignedDuration::from_secs(1));
    reconcile(&world);
    let outcome = Outcome::parse(&outcome().unwrap()).unwrap();
    assert!(message(&outcome).contains("ECS no longer lists the task"), "{}", message(&outcome));
}
