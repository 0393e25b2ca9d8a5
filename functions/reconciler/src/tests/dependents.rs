//! Which Stacks are woken when one succeeds.

use super::*;

/// A Stack of the namespace with these fields.
fn stack(world: &World, name: &str, spec: &Value, status: &Value) {
    let metadata = json!({ "namespace": "n", "name": name, "uid": name });
    let mut spec = driftless_core::merge(json!({ "stack": "dev" }), spec);
    spec["stack"] = json!("dev");
    world.insert(json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec, "status": status }));
}

#[test]
fn success_hints_waiting_stacks_and_compares_inputs_of_readers() {
    let world = World::new(0, Faults::NONE);
    let ran = json!({ "driftless": { "inputs": "digest" } });
    let secret = |name: &str| json!({ "type": "Secret", "secret": { "name": name, "key": "k" } });
    let mount = json!({ "name": "v", "mountPath": "/net", "readOnly": true });
    let pod = json!({
        "volumes": [{ "name": "v", "configMap": { "name": "net" } }],
        "containers": [{ "name": "pulumi", "volumeMounts": [mount] }],
    });
    for (name, spec) in [
        ("env", json!({ "envRefs": { "K": secret("db") } })),
        ("config", json!({ "secretsRef": { "k": secret("db") } })),
        ("all", json!({ "envSecrets": ["db"] })),
        ("map", json!({ "configRef": { "k": { "name": "net", "key": "k" } } })),
        ("envs", json!({ "envs": ["net"] })),
        ("files", json!({ "workspaceTemplate": { "spec": { "podTemplate": { "spec": pod } } } })),
    ] {
        stack(&world, name, &spec, &ran);
    }
    stack(&world, "other", &json!({ "envs": ["db"], "envSecrets": ["net"] }), &ran);
    stack(&world, "new", &json!({ "envs": ["net"] }), &json!({ "currentUpdate": { "name": "u" } }));
    stack(&world, "waits", &json!({}), &json!({ "driftless": { "waitsFor": "s", "inputs": "digest" } }));
    let outputs: Vec<StackOutputs> =
        serde_json::from_value(json!([{ "kind": "Secret", "name": "db" }, { "kind": "ConfigMap", "name": "net" }])).unwrap();
    let hint = Hint::new(key("pulumi.com/v1", "Stack", "s"));
    let woken = |outputs: &[StackOutputs]| {
        while world.receive().is_some() {}
        world.drive(reconciler(&world).wake_dependents(&hint, outputs)).unwrap().unwrap();
        let name = |message| match message {
            Message::Launch(hint) => format!("{} {}", hint.update.kind, hint.update.name),
            Message::Hint(hint) => format!("hint {}", hint.object.name),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| world.receive()).map(name).collect::<std::collections::BTreeSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(woken(&[]), set(&["hint waits", "Stack waits"]));
    let readers = ["Stack all", "Stack config", "Stack env", "Stack envs", "Stack files", "Stack map"];
    assert_eq!(woken(&outputs), set(&[&readers[..], &["Stack waits", "Update u", "hint waits"]].concat()));
}
