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
    reconcile(&world, &hint("u"));
    world
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
    let world = pull_request("uid-s", &consent);
    let (of_pull_request, _) = requested(&world);
    assert!(of_pull_request.approved.is_none());
    assert_eq!((&of_pull_request.key, &of_pull_request.binding), (&of_stack.key, &of_stack.binding));
    // Its other digests stay its own, so that they are compared with its own.
    let world = pull_request("uid-shop", &consent);
    let (other, own_inputs) = requested(&world);
    assert!(other.key != of_stack.key && other.binding != of_stack.binding);
    assert!(inputs.is_some() && own_inputs == inputs);
    let launch = Launch::parse(&world.objects()[&keys::run(CLUSTER, &"uid-u".into()).launch().to_string()]).unwrap();
    assert_eq!(launch.request.unwrap().plan, Some(PlanMode::Propose { of: Some("uid-shop".into()) }));
}

#[test]
fn pull_request_without_a_consent_starts_nothing() {
    for annotations in [json!({}), json!({ names::PULL_REQUESTS: "all" })] {
        let world = pull_request("uid-shop", &annotations);
        assert!(world.live_tasks().is_empty(), "{annotations}");
        let (reason, words) = waits(&world, "u");
        assert!(
            reason == "SpecInvalid" && words.contains("whose annotation driftless.dev/pull-requests is"),
            "{reason}: {words}"
        );
    }
}
