//! What the launcher does for a run with a task.

use driftless_api::uid_of;
use driftless_testkit::emf;

use super::*;

#[test]
fn a_running_update_that_is_deleted_is_stopped() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    received(&world);
    let running = update(&world, "u");
    world.drive(Cluster::delete(&world, &running)).unwrap().unwrap();
    reconcile(&world, &hint("u"));
    assert!(world.live_tasks().iter().all(|task| task.stopping));
    assert!(tells_recorder_of(&received(&world), "u"));
}

#[test]
fn tokens_are_replaced_at_half_their_life_while_the_task_lives() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    let first = identity(&world);
    world.advance(SignedDuration::from_mins(29));
    reconcile(&world, &hint("u"));
    assert!(identity(&world) == first);
    world.advance(SignedDuration::from_mins(1));
    reconcile(&world, &hint("u"));
    let second = identity(&world);
    assert!(second.cluster.token != first.cluster.token && second.expires_at == world.now() + SignedDuration::from_hours(1));

    world.advance(SignedDuration::from_mins(30));
    let before = world.objects();
    world.end_task(&world.live_tasks()[0].arn, "done");
    reconcile(&world, &hint("u"));
    assert_eq!(world.objects(), before);
}

#[test]
fn tokens_that_come_after_the_end_of_the_run_are_deleted() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    world.advance(SignedDuration::from_mins(30));
    // The recorder has written the outcome and cleared the folder since this reconciliation read
    // it.
    let folder = keys::run(CLUSTER, &"uid-u".into());
    world.drive(world.put(&format!("{folder}outcome"), b"{}".to_vec())).unwrap().unwrap();
    let mut run = Run::new(&settings(), &hint("u"), update(&world, "u"), world.now());
    run.launch = world.document(&folder.launch());
    run.task = Some(world.live_tasks()[0].arn.clone());
    let tokens = Supply { fill: false, renew: true };
    world.drive(launcher(&world, &settings()).supply(&hint("u"), &run, tokens)).unwrap().unwrap();
    assert_eq!(task_folder(&world).into_keys().collect::<Vec<_>>(), ["run"]);
}

#[test]
fn recorder_is_not_asked_about_a_published_run() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    world.drive(world.put(&keys::run(CLUSTER, &"uid-u".into()).outcome(), b"{}".to_vec())).unwrap().unwrap();
    let asks = || {
        received(&world);
        reconcile(&world, &hint("u"));
        tells_recorder_of(&received(&world), "u")
    };
    assert!(asks(), "the Update is not complete");
    let mut complete = update(&world, "u");
    complete.set_complete(None, world.now(), |_| {});
    world.insert(serde_json::to_value(&complete).unwrap());
    assert!(asks(), "the task's folder is not empty");
    let folder = keys::task("AROA", keys::task_id(&world.live_tasks()[0].arn));
    world.drive(Objects::delete(&world, &folder.run())).unwrap().unwrap();
    assert!(asks(), "only the recorder releases an Update without a Stack");
    complete.metadata.finalizers = None;
    world.insert(serde_json::to_value(&complete).unwrap());
    assert!(!asks());
}

#[test]
fn completed_update_of_a_stack_is_hinted_until_it_is_released() {
    for (released, expected) in [(false, 1), (true, 0)] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        reconcile(&world, &hint("u"));
        let uid = uid_of(&update(&world, "u"));
        world.drive(world.put(&keys::run(CLUSTER, &uid).outcome(), b"{}".to_vec())).unwrap().unwrap();
        let folder = keys::task("AROA", keys::task_id(&world.live_tasks()[0].arn));
        world.drive(Objects::delete(&world, &folder.run())).unwrap().unwrap();
        let mut complete = update(&world, "u");
        complete.set_complete(None, world.now(), |_| {});
        if released {
            complete.metadata.finalizers = None;
        } else {
            driftless_api::finalizer::add(&mut complete);
        }
        world.insert(serde_json::to_value(&complete).unwrap());
        received(&world);
        reconcile(&world, &hint("u"));
        let hints = received(&world)
            .into_iter()
            .filter(|message| matches!(message, Message::Hint(hint) if hint.object.kind == "Update" && hint.object.name == "u"));
        assert_eq!(hints.count(), expected);
    }
}

#[test]
fn waits_are_counted_and_each_start_once_with_its_delay() {
    let world = quiet();
    let spec = json!({ "workspaceName": "w", "stackName": "u", "type": "up" });
    let created = json!({ "creationTimestamp": world.now().to_string() });
    insert(&world, &key("Update", "n", "u"), &json!({ "metadata": created, "spec": spec }));
    let ((), lines) = emf::written(|| reconcile(&world, &hint("u")));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (reason, _) = waits(&world, "u");
    let of = |line: &Value, names: [&str; 3]| names.map(|name| line[name].clone());
    assert_eq!(of(&lines[0], ["cluster", "reason", "Waits"]), [json!(CLUSTER), json!(reason), json!(1.0)]);
    workspace(&world, &project());
    world.advance(SignedDuration::from_secs(90));
    let ((), lines) = emf::written(|| {
        reconcile(&world, &hint("u"));
        reconcile(&world, &hint("u"));
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let name = key("Update", "n", "u").to_string();
    assert_eq!(of(&lines[0], ["cluster", "update", "StartDelay"]), [json!(CLUSTER), json!(name), json!(90.0)]);
    let launch: Launch = world.document(&keys::run(CLUSTER, &"uid-u".into()).launch()).unwrap();
    assert_eq!(launch.size, Some(TaskSize { cpu: 512, memory_mib: 1024 }));
}
