//! A preview for a pull request makes the plan that the Stack which it names will have.

use driftless_api::names;
use driftless_contract::{Launch, PlanMode, PlanRequest};

use super::*;

/// The Stack `s` with an Update that makes a plan and reads a Secret.
fn proposal(more: &Value) -> World {
    let world = quiet();
    insert(&world, &key("Secret", "n", "words"), &json!({ "apiVersion": "v1", "data": { "WORD": "b25l" } }));
    of_stack(&world, "n", "preview", &json!({}));
    let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
    stack = driftless_core::merge(stack, more);
    world.insert(stack);
    let env = json!([{ "name": "WORD", "valueFrom": { "secretKeyRef": { "name": "words", "key": "WORD" } } }]);
    let workspace = driftless_core::merge(project(), &json!({ "env": env }));
    let more = json!({ "spec": { "driftless": { "propose": true, "workspace": workspace } } });
    world.insert(driftless_core::merge(world.object(&key("Update", "n", "u")).unwrap(), &more));
    world
}

/// The same for a pull request of the Stack `shop` with this uid and these annotations.
fn pull_request(uid: &str, annotations: &Value) -> World {
    let annotation = json!({ names::PULL_REQUEST_OF: "shop" });
    let spec = json!({ "preview": true, "serviceAccountName": "preview" });
    let world = proposal(&json!({ "metadata": { "annotations": annotation, "uid": "uid-s" }, "spec": spec }));
    let metadata = json!({ "uid": uid, "annotations": annotations });
    insert(&world, &key("Stack", "n", "shop"), &json!({ "metadata": metadata, "spec": { "stack": "dev" } }));
    world
}

/// The same, after its Update was reconciled.
fn launched(uid: &str, annotations: &Value) -> World {
    let world = pull_request(uid, annotations);
    reconcile(&world, &hint("u"));
    world
}

/// The request for a plan in the launch record.
fn recorded(world: &World) -> Option<PlanMode> {
    Launch::parse(&world.objects()[&keys::run(CLUSTER, &"uid-u".into()).launch().to_string()]).unwrap().request.unwrap().plan
}

/// Changes an object.
fn change(world: &World, kind: &str, name: &str, more: &Value) {
    world.insert(driftless_core::merge(world.object(&key(kind, "n", name)).unwrap(), more));
}

/// The request for a plan, and the digest of the inputs of the run itself.
fn requested(world: &World) -> (PlanRequest, Option<String>) {
    let spec = spec(world);
    assert!(spec.is_preview());
    (spec.plan.unwrap(), spec.inputs)
}

#[test]
fn pull_request_has_the_binding_and_the_key_of_the_named_stack() {
    let consent = json!({ names::PULL_REQUESTS: "preview" });
    let own = proposal(&json!({ "metadata": { "uid": "uid-s" } }));
    reconcile(&own, &hint("u"));
    let (of_stack, inputs) = requested(&own);
    // `shop` has the uid that `s` has there.
    let world = launched("uid-s", &consent);
    let (of_pull_request, _) = requested(&world);
    assert!(of_pull_request.approved.is_none());
    assert_eq!((&of_pull_request.key, &of_pull_request.binding), (&of_stack.key, &of_stack.binding));
    // Its other digests stay its own, so that they are compared with its own.
    let world = launched("uid-shop", &consent);
    let (other, own_inputs) = requested(&world);
    assert!(other.key != of_stack.key && other.binding != of_stack.binding);
    assert!(inputs.is_some() && own_inputs == inputs);
    assert_eq!(recorded(&world), Some(PlanMode::Propose { of: Some("uid-shop".into()) }));
}

#[test]
fn pull_request_without_a_consent_starts_nothing() {
    for annotations in [json!({}), json!({ names::PULL_REQUESTS: "all" })] {
        let world = launched("uid-shop", &annotations);
        assert!(world.live_tasks().is_empty(), "{annotations}");
        let (reason, words) = waits(&world, "u");
        assert!(
            reason == "SpecInvalid" && words.contains("whose annotation driftless.dev/pull-requests is"),
            "{reason}: {words}"
        );
    }
}

#[test]
fn destroy_of_a_deleted_pull_request_has_its_own_key() {
    for consent in [json!({}), json!({ names::PULL_REQUESTS: "preview" })] {
        let world = pull_request("uid-shop", &consent);
        let metadata = json!({ "deletionTimestamp": "1970-01-01T00:00:00Z", "finalizers": [names::FINALIZER] });
        change(&world, "Stack", "s", &json!({ "metadata": metadata }));
        change(&world, "Update", "u", &json!({ "spec": { "type": "destroy", "driftless": { "previewOnly": true } } }));
        reconcile(&world, &hint("u"));
        assert_eq!(recorded(&world), Some(PlanMode::Propose { of: None }), "{consent}");
    }
}

#[test]
fn run_that_waits_for_its_claim_is_abandoned_if_its_stack_names_another() {
    let shop = json!({ "metadata": { "uid": "uid-another" } });
    let own = json!({ "metadata": { "annotations": { names::PULL_REQUEST_OF: Value::Null } } });
    for (name, more) in [("shop", shop), ("s", own)] {
        let world = pull_request("uid-shop", &json!({ names::PULL_REQUESTS: "preview" }));
        workspace(&world, &project());
        by_hand(&world, "holder", &json!({ "stackName": "dev" }));
        reconcile(&world, &hint("holder"));
        reconcile(&world, &hint("u"));
        assert_eq!(waits(&world, "u").0, "StackClaimed");
        change(&world, "Stack", name, &more);
        reconcile(&world, &hint("u"));
        let why = refused(&world, "u");
        assert!(why.ends_with("Stack changed while the run waited"), "{more}: {why}");
    }
}

#[test]
fn run_whose_consent_is_withdrawn_before_its_task_is_abandoned() {
    let consent = || json!({ names::PULL_REQUESTS: "preview" });
    for (kind, name, more) in [
        ("Stack", "shop", json!({ "metadata": { "annotations": { names::PULL_REQUESTS: Value::Null } } })),
        ("Stack", "shop", json!({ "metadata": { "uid": "uid-another" } })),
        ("Stack", "s", json!({ "metadata": { "annotations": { names::PULL_REQUEST_OF: Value::Null } } })),
    ] {
        let world = pull_request("uid-shop", &consent());
        world.set_faults(Faults { full: 1000, ..Faults::NONE });
        reconcile(&world, &hint("u"));
        world.set_faults(Faults::NONE);
        // It holds its claim.
        assert_eq!(waits(&world, "u").0, "TaskNotStarted");
        change(&world, kind, name, &more);
        reconcile(&world, &hint("u"));
        let why = refused(&world, "u");
        assert!(why.starts_with("run was abandoned before its task started: "), "{more}: {why}");
        assert!(world.live_tasks().is_empty());
    }
}
