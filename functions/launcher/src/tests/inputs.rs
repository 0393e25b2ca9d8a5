//! Comparisons of what Stacks read with what their last runs read.

use driftless_contract::InputsRead;

use super::*;

/// A Stack that reads the key `value` of a ConfigMap, and requires these Stacks.
fn stack(world: &World, name: &str, reads: &str, requires: &[&str]) {
    let config = json!({ "value": { "name": reads, "key": "value" } });
    let requires: Vec<_> = requires.iter().map(|name| json!({ "name": name })).collect();
    let spec = json!({ "stack": "dev", "configRef": config, "prerequisites": requires });
    insert(world, &key("Stack", "n", name), &json!({ "spec": spec, "status": { "driftless": { "inputs": "unknown" } } }));
    let read = compare(world, name);
    set(world, name, &json!({ "driftless": { "inputs": read.digest } }));
}

fn set(world: &World, name: &str, status: &Value) {
    let mut stack = world.object(&key("Stack", "n", name)).unwrap();
    stack["status"] = driftless_core::merge(stack["status"].clone(), status);
    world.insert(stack);
}

fn map(world: &World, name: &str, value: &str) {
    let metadata = json!({ "namespace": "n", "name": name });
    world.insert(
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "value": value, "other": value } }),
    );
}

fn compare(world: &World, name: &str) -> InputsRead {
    reconcile(world, &LaunchHint { version: VERSION, update: key("Stack", "n", name), hops: 0 });
    InputsRead::parse(&world.objects()[&*keys::inputs(CLUSTER, &format!("uid-{name}").into())]).unwrap()
}

/// `top` changes what `left` and `right` read, `right` what `far` reads, and `left` and `far` what
/// `end` reads.
fn diamond() -> World {
    let world = quiet();
    for name in ["none", "top", "left", "right", "far"] {
        map(&world, name, "1");
    }
    stack(&world, "top", "none", &[]);
    stack(&world, "left", "top", &["top"]);
    stack(&world, "right", "top", &["top"]);
    stack(&world, "far", "right", &["right"]);
    stack(&world, "end", "left", &["left", "far"]);
    received(&world);
    world
}

#[test]
fn changed_inputs_name_a_prerequisite_that_is_running_or_about_to_run() {
    let world = diamond();
    map(&world, "left", "2");
    assert_eq!(compare(&world, "end").waits_for, None);
    // `right` is about to run, because `top` changed what it reads.
    map(&world, "top", "2");
    set(&world, "left", &json!({ "driftless": { "inputs": compare(&world, "left").digest } }));
    assert_eq!(compare(&world, "end").waits_for.as_deref(), Some("right"));
    set(&world, "right", &json!({ "driftless": { "inputs": compare(&world, "right").digest } }));
    assert_eq!(compare(&world, "end").waits_for, None);
    set(&world, "top", &json!({ "currentUpdate": { "name": "u" } }));
    assert_eq!(compare(&world, "end").waits_for.as_deref(), Some("top"));
    for ignored in [json!({ "driftless.dev/inputs": "ignore" }), json!({ "driftless.dev/suspend": "true" })] {
        let world = diamond();
        map(&world, "left", "2");
        map(&world, "top", "2");
        for name in ["left", "right"] {
            let mut stack = world.object(&key("Stack", "n", name)).unwrap();
            stack["metadata"]["annotations"] = ignored.clone();
            world.insert(stack);
        }
        assert_eq!(compare(&world, "end").waits_for, None, "{ignored}: no run follows");
    }
}

#[test]
fn optional_object_that_appears_is_a_change_of_the_inputs() {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let from = json!([{ "configMapRef": { "name": "later", "optional": true } }]);
    let spec = json!({ "stack": "dev", "workspaceTemplate": { "spec": { "envFrom": from } } });
    insert(&world, &key("Stack", "n", "s"), &json!({ "spec": spec, "status": { "currentUpdate": { "name": "u" } } }));
    let mut update = world.object(&key("Update", "n", "u")).unwrap();
    update["spec"]["driftless"]["workspace"]["envFrom"] = from;
    world.insert(update);
    reconcile(&world, &hint("u"));

    // The digest that the run reports for its Stack.
    let ran = self::spec(&world).inputs.unwrap();
    set(&world, "s", &json!({ "currentUpdate": null, "driftless": { "inputs": ran } }));
    assert_eq!(compare(&world, "s").digest, ran);
    map(&world, "later", "1");
    let seen = compare(&world, "s").digest;
    assert_ne!(seen, ran);
    set(&world, "s", &json!({ "driftless": { "inputs": seen } }));
    world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "n", "name": "later" } }));
    assert_eq!(compare(&world, "s").digest, ran, "it has no key any more");
}

#[test]
fn comparison_hints_a_stack_whose_values_changed_or_that_waits() {
    let world = diamond();
    let hints = |name: &str| {
        compare(&world, name);
        received(&world).iter().filter(|message| matches!(message, Message::Hint(hint) if hint.object.name == name)).count()
    };
    assert_eq!(hints("left"), 0);
    let mut other = world.object(&ObjectKey { api_version: "v1".into(), ..key("ConfigMap", "n", "top") }).unwrap();
    other["data"]["other"] = json!("2");
    world.insert(other);
    assert_eq!(hints("left"), 0, "it does not read that key");
    map(&world, "top", "2");
    assert_eq!(hints("left"), 1);
    map(&world, "top", "1");
    assert_eq!(hints("left"), 0);
    set(&world, "left", &json!({ "driftless": { "waitsFor": "top" } }));
    assert_eq!(hints("left"), 1, "it has no reason to wait any more");
    // A plan was made before the first run.
    let digest = compare(&world, "right").digest;
    received(&world);
    set(&world, "right", &json!({ "driftless": { "inputs": null, "plan": { "inputs": digest } } }));
    assert_eq!(hints("right"), 0);
    map(&world, "top", "2");
    assert_eq!(hints("right"), 1, "its plan is for other values");
}
