//! An Update that cannot start releases what it holds, and unneeded data is not kept.

use driftless_api::names;
use driftless_contract::StackId;
use k8s_openapi::api::coordination::v1::Lease;

use super::*;

/// The Update `n/u` of a Stack, which reads the Secret `s` and which ECS refuses to start: it holds
/// its claim, or only waits for it.
fn refused(held: bool) -> World {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    reads_secret(&world, &json!({}));
    if !held {
        workspace(&world, &project());
        by_hand(&world, "other", &json!({ "stackName": "dev" }));
        reconcile(&world, &hint("other"));
    }
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    assert_eq!(waits(&world, "u").0, if held { "TaskNotStarted" } else { "StackClaimed" });
    received(&world);
    world
}

/// `n/u` reads a Secret; with `more` in its `spec.driftless`.
fn reads_secret(world: &World, more: &Value) {
    let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "A" } } }]);
    let ours = driftless_core::merge(json!({ "workspace": { "env": env } }), more);
    let update = world.object(&key("Update", "n", "u")).unwrap();
    world.insert(driftless_core::merge(update, &json!({ "spec": { "driftless": ours } })));
    secret(world, &json!({ "A": "YQ==" }));
}

fn stack() -> StackId {
    StackId { namespace: "n".into(), uid: "uid-s".into() }
}

fn secret(world: &World, data: &Value) {
    world.insert(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "n", "name": "s" }, "data": data }));
}

fn suspend(world: &World) {
    let suspend = json!({ "metadata": { "annotations": { names::SUSPEND: "true" } } });
    world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &suspend));
}

/// The reason that `n/u` waits for, or a fixed text if it was abandoned.
fn outcome(world: &World) -> String {
    reconcile(world, &hint("u"));
    let owner = world.objects().get(&format!("{}owner", keys::run(CLUSTER, &"uid-u".into()))).cloned();
    let given_up = owner.is_some_and(|owner| Owner::parse(&owner).unwrap().task.is_none());
    assert_eq!(tells_recorder_of(&received(world), "u"), given_up);
    if given_up { "given up".into() } else { waits(world, "u").0 }
}

#[test]
fn update_of_a_suspended_stack_releases_claim_and_slot() {
    for (held, came_to) in [(true, "given up"), (false, "StackSuspended")] {
        let world = refused(held);
        suspend(&world);
        assert_eq!(outcome(&world), came_to);
    }
}

#[test]
fn update_that_waits_when_the_maintenance_window_closes_is_abandoned() {
    for held in [true, false] {
        let world = refused(held);
        let closed = json!({ names::WINDOW_SCHEDULE: "0 0 29 2 *", names::WINDOW_DURATION: "1m" });
        let closed = json!({ "metadata": { "annotations": closed } });
        world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &closed));
        assert_eq!(outcome(&world), "given up");
    }
}

#[test]
fn update_without_its_inputs_releases_claim_and_slot() {
    // An Update that waits for its claim does not read its inputs.
    for (held, came_to) in [(true, "given up"), (false, "StackClaimed")] {
        let world = refused(held);
        secret(&world, &json!({}));
        assert_eq!(outcome(&world), came_to);
    }
}

#[test]
fn changed_backend_of_a_recorded_launch_starts_no_task() {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let env = json!([{ "name": "PULUMI_BACKEND_URL", "valueFrom": { "secretKeyRef": { "name": "s", "key": "A" } } }]);
    reads_secret(&world, &json!({ "workspace": { "env": env } }));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    received(&world);
    secret(&world, &json!({ "A": "Yg==" }));
    assert_eq!(outcome(&world), "given up");
}

#[test]
fn abandoned_run_releases_its_slot() {
    let world = quiet();
    let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
    of_stack(&world, "n", "up", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile_with(&world, &limited, &hint("u"));
    world.set_faults(Faults::NONE);
    received(&world);
    let lease = world.cluster().into_iter().find(|object| object["metadata"]["name"].as_str().unwrap().starts_with("claim-"));
    let lease: Lease = serde_json::from_value(lease.unwrap()).unwrap();
    world.drive(Cluster::delete(&world, &lease)).unwrap().unwrap();
    suspend(&world);
    assert_eq!(outcome(&world), "given up");
}

#[test]
fn run_without_seal_deletes_the_sealed_inputs() {
    for (operation, more, left) in [
        ("up", json!({ "seal": true }), "new"),
        ("up", json!({}), "none"),
        ("refresh", json!({}), "none"),
        ("refresh", json!({ "previewOnly": true }), "old"),
        ("preview", json!({}), "old"),
        ("destroy", json!({}), "old"),
    ] {
        let world = quiet();
        of_stack(&world, "n", operation, &json!({}));
        reads_secret(&world, &more);
        let sealed = keys::sealed(CLUSTER, &stack());
        world.drive(world.put(&sealed, b"old".to_vec())).unwrap().unwrap();
        reconcile(&world, &hint("u"));
        assert!(task_folder(&world).contains_key("spec"));
        let now = world.objects().get(&*sealed).map(|sealed| if sealed == b"old" { "old" } else { "new" });
        assert_eq!(now.unwrap_or("none"), left, "{operation} {more}");
    }
}

#[test]
fn unreachable_cluster_is_requeued() {
    let passes = KubernetesError::Transient { call: "connect".into(), message: "throttled".into() };
    let stays = KubernetesError::Permanent { call: "connect".into(), message: "no such cluster".into() };
    for (error, again) in [(passes, true), (stays, false)] {
        let world = quiet();
        let done = world.drive(failed(&world, &hint("u"), error.into(), world.now())).unwrap();
        assert_eq!(done.is_ok(), again);
        let is_next =
            |message: &Message| matches!(message, Message::Launch(next) if next.update == hint("u").update && next.hops == 1);
        assert_eq!(world.sent().iter().any(is_next), again);
    }
}
