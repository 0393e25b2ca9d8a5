//! Live tasks: when the recorder stops them, and what it keeps until then.

use super::*;

/// A world whose run `n/u` has a live task, and the task's ARN.
fn live(limits: RunLimits) -> (World, String) {
    let world = world(&of_stack(), &json!({}));
    let folder = keys::run(CLUSTER, &"uid".into());
    let launch: Launch = world.document(&folder.launch()).unwrap();
    let launch =
        Launch { request: Some(RunRequest { spec: json!({}), stack: None, limits, not_secret: vec![], plan: None }), ..launch };
    put(&world, &format!("{folder}launch"), &to_json(&launch));
    let Started::Task { task: arn } = world.drive(Tasks::run(&world, &launch)).unwrap().unwrap() else { panic!("no task") };
    put(
        &world,
        &format!("{folder}owner"),
        &to_json(&Owner { version: VERSION, task: Some(arn.clone()), refused: None, at: world.now() }),
    );
    (world, arn)
}

fn is_stopping(world: &World) -> bool {
    world.live_tasks().iter().all(|task| task.stopping)
}

fn claim(world: &World) {
    world.insert(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": SYSTEM, "name": CLAIM }, "spec": { "holderIdentity": "uid" },
    }));
}

fn is_claimed(world: &World) -> bool {
    world.cluster().iter().any(|object| object["metadata"]["name"] == CLAIM)
}

#[test]
fn result_of_a_live_task_stops_it_before_its_claim_is_released() {
    let (world, arn) = live(RunLimits::default());
    claim(&world);
    put(&world, &format!("{}out/result", keys::task(ROLE, keys::task_id(&arn))), &to_json(&succeeded(&world)));
    let mut released = false;
    for call in 1.. {
        world.crash_before_call(call);
        let ended = handled(&world);
        released |= !is_claimed(&world);
        assert!(!released || is_stopping(&world), "released before call {call}, and the task goes on");
        if ended.is_some() {
            break;
        }
    }
    assert!(released);
}

/// Makes the Update unreadable for this release.
fn make_unreadable(world: &World) {
    let mut update = world.object(&key("n", "u")).unwrap();
    update["spec"] = json!(7);
    world.insert(update);
}

#[test]
fn run_of_an_unreadable_update_is_limited_and_recorded() {
    let (world, _) = live(RunLimits { max_seconds: Some(600), ..RunLimits::default() });
    claim(&world);
    make_unreadable(&world);
    reconcile(&world);
    assert!(!is_stopping(&world) && is_claimed(&world), "another release may read it");
    world.advance(SignedDuration::from_secs(3600));
    reconcile(&world);
    assert!(is_stopping(&world));

    let (world, arn) = live(RunLimits::default());
    claim(&world);
    make_unreadable(&world);
    let task = keys::task(ROLE, keys::task_id(&arn));
    put(&world, &format!("{task}out/result"), &to_json(&succeeded(&world)));
    reconcile(&world);
    let objects = world.objects();
    assert!(objects.contains_key(&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))), "{:?}", objects.keys());
    assert!(
        is_stopping(&world) && !is_claimed(&world) && !objects.keys().any(|key| key.starts_with(&*task)),
        "{:?}",
        objects.keys()
    );
}

#[test]
fn reports_that_cannot_be_read_end_the_run() {
    let (world, arn) = live(RunLimits::default());
    claim(&world);
    let folder = keys::task(ROLE, keys::task_id(&arn));
    for report in ["result", "lock"] {
        put(&world, &format!("{folder}out/{report}"), "{}");
        world.archive(&format!("{folder}out/{report}"));
    }
    reconcile(&world);
    assert!(is_stopping(&world) && !is_claimed(&world));
    let outcome = String::from_utf8(world.objects()[&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))].clone()).unwrap();
    assert!(outcome.contains("is empty or unreadable"), "{outcome}");
}

#[test]
fn task_without_progress_is_stopped_after_its_start_limit() {
    let (world, arn) = live(RunLimits::default());
    world.advance(SignedDuration::from_secs(900));
    reconcile(&world);
    assert!(!is_stopping(&world));
    world.advance(SignedDuration::from_secs(1));
    put(&world, &format!("{}out/progress", keys::task(ROLE, keys::task_id(&arn))), "{}");
    reconcile(&world);
    assert!(!is_stopping(&world));
    let progress = format!("{}out/progress", keys::task(ROLE, keys::task_id(&arn)));
    world.drive(Objects::delete(&world, &progress)).unwrap().unwrap();
    reconcile(&world);
    assert!(is_stopping(&world));
}

#[test]
fn task_is_stopped_after_its_limit_and_five_minutes() {
    let (world, arn) = live(RunLimits { silence_seconds: None, max_seconds: Some(3600) });
    put(&world, &format!("{}out/progress", keys::task(ROLE, keys::task_id(&arn))), "{}");
    world.advance(SignedDuration::from_mins(65));
    reconcile(&world);
    assert!(!is_stopping(&world));
    world.advance(SignedDuration::from_secs(1));
    reconcile(&world);
    assert!(is_stopping(&world));
    world.end_task(&arn, "stopped");
    reconcile(&world);
    assert_eq!(update(&world)["status"]["conditions"][2]["status"], "True");
}

#[test]
fn overdue_task_is_stopped_before_its_reports_are_read() {
    let (world, arn) = live(RunLimits { silence_seconds: None, max_seconds: Some(3600) });
    let folder = keys::task(ROLE, keys::task_id(&arn));
    for report in ["progress", "result"] {
        put(&world, &format!("{folder}out/{report}"), "{}");
    }
    world.advance(SignedDuration::from_mins(66));
    // Whatever the report does to the function that reads it, the task was stopped first.
    for call in 1.. {
        world.crash_before_call(call);
        let ended = handled(&world);
        let is_recorded = world.objects().contains_key(&format!("{}outcome", keys::run(CLUSTER, &"uid".into())));
        assert!(!is_recorded || is_stopping(&world), "recorded before call {call}, and the task goes on");
        if ended.is_some() {
            break;
        }
    }
    assert!(is_stopping(&world));
}

#[test]
fn task_whose_update_is_gone_is_stopped() {
    let (world, _) = live(RunLimits::default());
    let mut object = update(&world);
    object["metadata"]["finalizers"] = json!([]);
    world.insert(object);
    let update: Update = serde_json::from_value(update(&world)).unwrap();
    world.drive(Cluster::delete(&world, &update)).unwrap().unwrap();
    reconcile(&world);
    assert!(is_stopping(&world));
}

#[test]
fn live_task_that_no_run_owns_is_stopped_after_the_start_limit() {
    let world = World::new(0, Faults::NONE);
    let arn = world.start_task("uid");
    let settings = settings();
    let attended = || {
        let message = RunMessage::Live { task: arn.clone() };
        world.drive(runs(&world, &world, &settings, message, world.now())).unwrap().unwrap()
    };
    assert_eq!(attended(), []);
    assert!(!is_stopping(&world));
    world.advance(SignedDuration::from_secs(901));
    assert_eq!(attended(), []);
    assert!(is_stopping(&world));
}

#[test]
fn progress_calls_no_ecs_and_is_not_requeued() {
    let (world, arn) = live(RunLimits::default());
    let (folder, calm) = (keys::task(ROLE, keys::task_id(&arn)), world.calm());
    let mut object = update(&world);
    object["status"] = json!({ "driftless": { "task": arn } });
    world.insert(object);
    let run = RunId { update: key("n", "u"), uid: "uid".into(), claim: CLAIM.into() };
    put(&world, &format!("{folder}in/run"), &to_json(&TaskRun { version: VERSION, run }));
    let settings = settings();
    let at = world.now();
    put(&world, &format!("{folder}out/progress"), &progress_at(at, 3));
    // Every call through this handle is throttled.
    world.set_faults(Faults { transient: 1000, ..Faults::NONE });
    let requeued = || world.sent().iter().filter(|message| matches!(message, Message::Run(RunMessage::Hint(_)))).count();
    let recorded = |message: RunMessage, cluster: &World| {
        let found = calm.drive(runs(&calm, &calm, &settings, message, at)).unwrap().unwrap();
        let [(hint, due)] = &found[..] else { panic!("{found:?}") };
        let recorder = Recorder { cluster, objects: &calm, queues: &calm, tasks: &world, settings: &settings, now: at };
        let (done, lines) = emf::written(|| calm.drive(recorder.handle(hint, due.clone())).unwrap());
        done.unwrap();
        (requeued(), lines.len())
    };
    let wrote = || RunMessage::Objects(vec![format!("{folder}out/progress")]);
    assert_eq!(recorded(wrote(), &calm), (0, 0));
    assert_eq!(ours(&world)["summary"], "3/20");
    assert_eq!(recorded(wrote(), &world), (0, 1), "a transient error of the API server is counted and not requeued");
    // Only ECS can say how a run without a result ended.
    assert_eq!(recorded(RunMessage::Task { task: arn.clone() }, &calm), (1, 1));
    assert_eq!(recorded(RunMessage::Live { task: arn.clone() }, &calm), (2, 1));
    // A result that exists as well has its own message.
    world.set_faults(Faults::NONE);
    put(&world, &format!("{folder}out/result"), &to_json(&succeeded(&world)));
    assert_eq!(recorded(wrote(), &calm), (2, 0));
    let outcome = format!("{}outcome", keys::run(CLUSTER, &"uid".into()));
    assert!(!world.objects().contains_key(&outcome));
    recorded(RunMessage::Objects(vec![format!("{folder}out/result")]), &calm);
    assert!(world.objects().contains_key(&outcome));
}

#[test]
fn result_and_stop_of_one_task_are_one_message() {
    let settings = settings();
    let stop = |task: &str| RunMessage::Task { task: format!("arn:aws:ecs:r:1:task/c/{task}") };
    let wrote = |keys: &[&str]| RunMessage::Objects(keys.iter().map(|key| format!("tasks/{ROLE}:{key}")).collect());
    let live = RunMessage::Live { task: "arn:aws:ecs:r:1:task/c/a".into() };
    for (kept, other, is_one) in [
        (wrote(&["a/out/result"]), stop("a"), true),
        (stop("a"), wrote(&["a/out/result"]), true),
        (stop("a"), stop("b"), false),
        (stop("a"), wrote(&["a/out/progress"]), false),
        (stop("a"), wrote(&["a/out/result", "b/out/result"]), false),
        (stop("a"), live, false),
    ] {
        assert_eq!(absorb(&settings, &kept, &other), is_one, "{kept:?} {other:?}");
    }
}
