//! Terminating namespaces, and those of another operator.

use super::*;

#[test]
fn destroy_in_a_terminating_namespace_runs_without_identity() {
    let world = quiet();
    world.terminate_namespace("n");
    of_stack(&world, "driftless", "destroy", &json!({}));
    reconcile(&world, &LaunchHint { update: key("Update", "driftless", "u"), ..hint("u") });
    let spec = spec(&world);
    assert!(!spec.identity && !task_folder(&world).contains_key("identity"));
    let [event] = &world.events()[..] else { panic!("{:?}", world.events()) };
    assert!(
        event.starts_with("Update driftless/u Warning NoIdentity: ") && event.contains("ServiceAccount \"default\" not found"),
        "{event}"
    );
}

/// Sets the label of the namespace.
fn label(world: &World, watch: &str) {
    world.label_namespace("n", watch);
}

#[test]
fn object_outside_the_namespace_filter_is_not_touched() {
    let world = quiet();
    label(&world, "false");
    insert(
        &world,
        &key("Stack", "n", "s"),
        &json!({ "spec": { "stack": "dev" }, "status": { "currentUpdate": { "name": "theirs" } } }),
    );
    let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "uid-s" });
    let spec = json!({ "workspaceName": "w", "stackName": "dev", "type": "up" });
    insert(&world, &key("Update", "n", "theirs"), &json!({ "metadata": { "ownerReferences": [owner] }, "spec": spec }));
    workspace(&world, &json!({ "git": { "url": "u" } }));
    by_hand(&world, "u", &json!({}));
    world.advance(SignedDuration::from_mins(20));
    let before = world.cluster();
    for object in [key("Stack", "n", "s"), key("Workspace", "n", "w"), key("Update", "n", "theirs"), key("Update", "n", "u")] {
        reconcile(&world, &LaunchHint { version: VERSION, update: object, hops: 0 });
    }
    assert_eq!((world.cluster(), world.events()), (before, vec![]));
    assert!(world.objects().is_empty() && received(&world).is_empty() && world.live_tasks().is_empty());

    label(&world, "true");
    reconcile(&world, &LaunchHint { version: VERSION, update: key("Update", "n", "theirs"), hops: 0 });
    assert!(tells_recorder_of(&received(&world), "theirs"), "now it is ours to end");
}

#[test]
fn run_started_within_the_namespace_filter_ends_outside_of_it() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "running", &json!({}));
    reconcile(&world, &hint("running"));
    by_hand(&world, "refused", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("refused"));
    world.set_faults(Faults::NONE);
    received(&world);
    by_hand(&world, "new", &json!({}));
    label(&world, "false");
    for name in ["running", "refused", "new"] {
        reconcile(&world, &hint(name));
        // The recorder releases what it held.
        assert_eq!(tells_recorder_of(&received(&world), name), name != "new", "{name}");
    }
    let owner = |name: &str| world.objects().get(&format!("{}owner", keys::run(CLUSTER, &format!("uid-{name}").into()))).cloned();
    let task = |name: &str| owner(name).map(|owner| Owner::parse(&owner).unwrap().task);
    assert!(matches!((task("running"), task("refused"), task("new")), (Some(Some(_)), Some(None), None)));
    assert_eq!(world.live_tasks().len(), 1);
    let update = update(&world, "running");
    world.drive(Cluster::delete(&world, &update)).unwrap().unwrap();
    reconcile(&world, &hint("running"));
    assert!(world.live_tasks()[0].stopping);
}

#[test]
fn terminating_namespace_outside_the_filter_starts_no_destroy() {
    for (watch, tasks) in [("false", 0), ("true", 1)] {
        let world = quiet();
        of_stack(&world, "driftless", "destroy", &json!({}));
        label(&world, watch);
        reconcile(&world, &LaunchHint { version: VERSION, update: key("Update", "driftless", "u"), hops: 0 });
        assert_eq!(world.live_tasks().len(), tasks, "{watch}");
    }
}
