//! Outputs in the objects that a Stack names.

use super::*;

/// A world whose Update `n/u` has these entries in `spec.driftless.outputs`.
fn wanting(outputs: &Value) -> World {
    let world = world(&of_stack(), &json!({}));
    want(&world, outputs);
    world
}

fn want(world: &World, outputs: &Value) {
    let mut changed = update(world);
    changed["spec"]["driftless"] = json!({ "outputs": outputs });
    world.insert(changed);
}

/// Records another run, which reports these outputs with a flag whether they are secret.
fn run(world: &World, outputs: &[(&str, Value, bool)]) {
    let folder = keys::run(CLUSTER, &"uid".into());
    for key in [format!("{folder}outcome"), format!("{TASK}out/result")] {
        world.drive(world.delete_all(&[key.as_str()])).unwrap().unwrap();
    }
    let mut fresh = update(world);
    fresh["status"] = json!({});
    fresh["metadata"]["finalizers"] = json!([names::FINALIZER]);
    world.insert(fresh);
    let run = RunId { update: key("n", "u"), uid: "uid".into(), claim: CLAIM.into() };
    put(world, &format!("{TASK}in/run"), &to_json(&TaskRun { version: VERSION, run }));
    world.advance(SignedDuration::from_secs(60));
    let output =
        |(name, value, secret): &(&str, Value, bool)| ((*name).to_owned(), OutputValue { value: value.clone(), secret: *secret });
    report(world, &RunResult { outputs: Some(outputs.iter().map(output).collect()), ..succeeded(world) });
    reconcile(world);
}

fn object(world: &World, kind: &str, name: &str) -> Option<Value> {
    let found = world.cluster().into_iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)?;
    Some(found.clone())
}

fn told(world: &World) -> Vec<String> {
    world.events().into_iter().filter(|event| event.starts_with("Stack n/s Warning OutputsNotStored")).collect()
}

fn encoded(value: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(value.as_bytes().to_vec())).unwrap()
}

#[test]
fn named_objects_belong_to_the_stack_and_have_the_mapped_outputs() {
    let world = wanting(&json!([
        { "kind": "Secret", "name": "db", "keys": { "PASSWORD": "password", "URL": "url" } },
        { "kind": "ConfigMap", "name": "net", "keys": { "PORTS": "ports" } },
        { "kind": "ConfigMap", "name": "all" },
    ]));
    run(&world, &[("password", json!("hunter2"), true), ("url", json!("pg://db"), false), ("ports", json!([1, 2]), false)]);
    let [secret, map, all] =
        [("Secret", "db"), ("ConfigMap", "net"), ("ConfigMap", "all")].map(|(kind, name)| object(&world, kind, name).unwrap());
    assert_eq!(secret["data"], json!({ "PASSWORD": encoded("hunter2"), "URL": encoded("pg://db") }));
    assert_eq!((&map["data"], &all["data"]), (&json!({ "PORTS": "[1,2]" }), &json!({ "ports": "[1,2]", "url": "pg://db" })));
    for object in [&secret, &map, &all] {
        let owner = json!([{ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "stack-uid" }]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
        assert_eq!(object["metadata"]["labels"], json!({ "app.kubernetes.io/managed-by": "driftless" }));
    }
    assert_eq!(told(&world), Vec::<String>::new());
    let clear = |object: &Value| object["kind"] != "Secret" && object.to_string().contains("hunter2");
    assert!(!world.cluster().iter().any(clear) && !world.events().iter().any(|event| event.contains("hunter2")));
}

#[test]
fn unchanged_outputs_do_not_write_the_object_again() {
    let world = wanting(&json!([{ "kind": "ConfigMap", "name": "net", "keys": { "A": "a" } }]));
    let version = |world: &World| object(world, "ConfigMap", "net").unwrap()["metadata"]["resourceVersion"].clone();
    run(&world, &[("a", json!("1"), false), ("b", json!("1"), false)]);
    let first = version(&world);
    run(&world, &[("a", json!("1"), false), ("b", json!("2"), false)]);
    assert_eq!(version(&world), first);
    run(&world, &[("a", json!("2"), false), ("b", json!("2"), false)]);
    assert_ne!(version(&world), first);
    assert_eq!(object(&world, "ConfigMap", "net").unwrap()["data"], json!({ "A": "2" }));
}

#[test]
fn keys_and_objects_that_the_spec_no_longer_has_are_removed() {
    let world = wanting(&json!([
        { "kind": "Secret", "name": "db", "keys": { "A": "a", "B": "b" } }, { "kind": "ConfigMap", "name": "net" },
    ]));
    let outputs = [("a", json!("1"), false), ("b", json!("2"), false)];
    run(&world, &outputs);
    want(&world, &json!([{ "kind": "Secret", "name": "db", "keys": { "A": "a" } }]));
    run(&world, &outputs);
    assert_eq!(object(&world, "Secret", "db").unwrap()["data"], json!({ "A": encoded("1") }));
    assert_eq!(object(&world, "ConfigMap", "net"), None);
    want(&world, &json!([]));
    run(&world, &outputs);
    assert_eq!(object(&world, "Secret", "db"), None);
    assert_eq!(told(&world), Vec::<String>::new());
}

#[test]
fn foreign_object_is_neither_written_nor_deleted() {
    for (owner, annotation) in [("other-uid", "2026-01-01T00:00:00Z"), ("stack-uid", "")] {
        let world = wanting(&json!([{ "kind": "ConfigMap", "name": "net" }]));
        let annotations = if annotation.is_empty() { json!({}) } else { json!({ names::RECORDED_AT: annotation }) };
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": owner });
        let metadata = json!({ "namespace": "n", "name": "net", "annotations": annotations, "ownerReferences": [owner] });
        world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "mine": "1" } }));
        run(&world, &[("a", json!("1"), false)]);
        let message = "Stack n/s Warning OutputsNotStored: ConfigMap \"net\" exists and was not created by Driftless for this Stack, so \
                       it receives no outputs; delete it, or name another in spec.driftless.outputs";
        assert_eq!(told(&world).len(), 1);
        assert!(told(&world)[0].starts_with(message), "{:?}", told(&world));
        want(&world, &json!([]));
        run(&world, &[("a", json!("1"), false)]);
        assert_eq!(object(&world, "ConfigMap", "net").unwrap()["data"], json!({ "mine": "1" }));
        assert_eq!(update(&world)["status"]["conditions"][1]["status"], "False", "the run succeeded");
    }
}

#[test]
fn secret_output_for_a_config_map_is_refused_by_name() {
    let world = wanting(&json!([{ "kind": "ConfigMap", "name": "net", "keys": { "A": "a", "P": "password" } }]));
    run(&world, &[("a", json!("1"), false), ("password", json!("hunter2"), true)]);
    assert_eq!(object(&world, "ConfigMap", "net").unwrap()["data"], json!({ "A": "1" }));
    let told = told(&world);
    assert!(
        told.len() == 1 && told[0].contains("output \"password\" is secret, so key \"P\" of ConfigMap \"net\" is left out"),
        "{told:?}"
    );
    // The output was not secret before.
    want(&world, &json!([{ "kind": "ConfigMap", "name": "net" }]));
    run(&world, &[("a", json!("1"), true)]);
    assert_eq!(object(&world, "ConfigMap", "net").unwrap()["data"], json!({}));
}

#[test]
fn every_interrupted_recording_writes_the_outputs_in_the_end() {
    for calls in 0..60 {
        let world = wanting(&json!([{ "kind": "Secret", "name": "db" }, { "kind": "ConfigMap", "name": "net" }]));
        report(
            &world,
            &RunResult {
                outputs: Some([("a".to_owned(), OutputValue { value: "1".into(), secret: false })].into()),
                ..succeeded(&world)
            },
        );
        world.crash_before_call(calls);
        let is_whole = handled(&world).is_some();
        if !is_whole {
            reconcile(&world);
        }
        let data = |kind, name| object(&world, kind, name).map(|object| object["data"].clone());
        assert_eq!(
            (data("Secret", "db"), data("ConfigMap", "net")),
            (Some(json!({ "a": encoded("1") })), Some(json!({ "a": "1" })))
        );
        if is_whole {
            return;
        }
    }
    panic!("it never ended");
}

#[test]
fn failed_run_leaves_the_outputs_of_the_last_success() {
    let world = wanting(&json!([{ "kind": "ConfigMap", "name": "net" }]));
    run(&world, &[("a", json!("1"), false)]);
    let before = object(&world, "ConfigMap", "net");
    let folder = keys::run(CLUSTER, &"uid".into());
    world.drive(world.delete_all(&[format!("{folder}outcome").as_str()])).unwrap().unwrap();
    let verdict = Verdict::Failed { phase: Phase::Run, reason: FailureReason::Unknown, message: "quota".into() };
    let outputs = Some([("a".to_owned(), OutputValue { value: "2".into(), secret: false })].into());
    report(&world, &RunResult { verdict, outputs, ..succeeded(&world) });
    reconcile(&world);
    assert_eq!(object(&world, "ConfigMap", "net"), before);
}
