//! Updates of a Stack: which of them begin.

use driftless_api::names;

use super::*;

fn complete() -> Value {
    let at = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, is: &str| json!({ "type": kind, "status": is, "reason": "Updated", "message": "", "lastTransitionTime": at });
    json!({ "conditions": [condition("Progressing", "False"), condition("Failed", "False"), condition("Complete", "True")] })
}

#[test]
fn an_update_that_cannot_begin_gives_way_to_what_its_stack_says_now() {
    for (generation, given_up) in [(1, false), (2, true)] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["spec"]["driftless"]["workspace"]["envFrom"] = json!([{ "secretRef": { "name": "missing" } }]);
        world.insert(written);
        let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
        stack["metadata"]["generation"] = json!(generation);
        world.insert(stack);
        looked(&world, &hint("u"));
        let owner = world.drive(world.exists(&format!("{}owner", keys::run(CLUSTER, &update(&world, "u").uid().unwrap()))));
        assert_eq!(owner.unwrap().unwrap(), given_up, "{generation}");
        assert!(world.live_tasks().is_empty());
    }
    // It begins if it can: what it runs is not wrong.
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
    stack["metadata"]["generation"] = json!(2);
    world.insert(stack);
    looked(&world, &hint("u"));
    assert!(inbox(&world).contains_key("spec"));
}

#[test]
fn an_update_of_a_suspended_stack_that_has_not_begun_waits() {
    for suspend in [
        json!({ "metadata": { "annotations": { names::SUSPEND: "true" } } }),
        json!({ "spec": { "driftless": { "suspend": true } } }),
    ] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let stack = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_api::merge(stack.clone(), &suspend));
        looked(&world, &hint("u"));
        assert_eq!(waits(&world, "u").0, "StackSuspended");
        assert!(world.live_tasks().is_empty());
        world.insert(stack);
        looked(&world, &hint("u"));
        assert_eq!(world.live_tasks().len(), 1);
        // One that has begun goes on.
        let resumed = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_api::merge(resumed, &suspend));
        looked(&world, &hint("u"));
        assert!(world.live_tasks().iter().all(|task| !task.stopping));
        assert_eq!(waits(&world, "u").0, "");
    }
}

#[test]
fn an_update_that_looks_for_drift_gives_way_to_one_that_does_not() {
    let check = |world: &World| {
        of_stack(world, "n", "refresh", &json!({}));
        let mut update = world.object(&key("Update", "n", "u")).unwrap();
        update["spec"]["driftless"]["previewOnly"] = json!(true);
        world.insert(update);
        let drift = json!({ "status": { "currentUpdate": null, "driftless": { "drift": { "currentCheck": "u" } } } });
        world.insert(driftless_api::merge(world.object(&key("Stack", "n", "s")).unwrap(), &drift));
        workspace(world, &project());
        by_hand(world, "up", &json!({ "stackName": "dev" }));
    };
    // It runs: its task is told to stop.
    let world = quiet();
    check(&world);
    looked(&world, &hint("u"));
    assert!(spec(&world).preview_only);
    looked(&world, &hint("up"));
    assert_eq!(waits(&world, "up").0, names::STACK_CLAIMED);
    assert!(matches!(&world.live_tasks()[..], [task] if task.stopping));
    assert!(tells_recorder_of(&received(&world), "u"));

    // It waits for capacity: it never begins.
    let world = quiet();
    check(&world);
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    looked(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    looked(&world, &hint("up"));
    looked(&world, &hint("u"));
    assert!(world.live_tasks().is_empty());
    assert!(tells_recorder_of(&received(&world), "u"));

    // A drift check waits for another run. The recorder gets a hint about the holder only if the sweep sends none: its Update is gone, or
    // complete by its status.
    let world = quiet();
    check(&world);
    looked(&world, &hint("up"));
    received(&world);
    looked(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, names::STACK_CLAIMED);
    assert!(matches!(&world.live_tasks()[..], [task] if !task.stopping));
    assert!(!tells_recorder_of(&received(&world), "up"));
    let mut holder = world.object(&key("Update", "n", "up")).unwrap();
    holder["status"] = complete();
    world.insert(holder);
    looked(&world, &hint("u"));
    assert!(tells_recorder_of(&received(&world), "up"));
}

#[test]
fn what_an_updates_status_says_stops_no_launch_of_ours() {
    let world = quiet();
    let forged = driftless_api::merge(complete(), &json!({ "driftless": { "task": "arn:aws:ecs:r:1:task/c/neighbour" } }));
    of_stack(&world, "n", "up", &forged);
    looked(&world, &hint("u"));
    assert!(inbox(&world).contains_key("spec"));
    assert!(!update(&world, "u").is_complete());

    // One that a user made and that began is ours as well.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = forged;
    world.insert(written);
    looked(&world, &hint("u"));
    let task = update(&world, "u").status.unwrap().driftless.unwrap().task;
    assert_eq!(task, Some(world.live_tasks().remove(0).arn));

    // One that waits is not over either: nothing else would take our finalizer off it.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    by_hand(&world, "u", &json!({ "stackName": "a" }));
    looked(&world, &hint("a"));
    looked(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written);
    looked(&world, &hint("u"));
    assert_eq!((waits(&world, "u").0.as_str(), update(&world, "u").is_complete()), ("StackClaimed", false));

    // Another operator's is over.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written.clone());
    looked(&world, &hint("u"));
    assert!(world.live_tasks().is_empty() && world.objects().is_empty() && update(&world, "u").is_complete());
}
