//! A tenant's own Updates cannot reach another tenant's inputs.

use driftless_contract::{Env, Operation, SealedInputs, StackId};

use super::*;

/// The sealed inputs of the Stack `victim/s`.
fn sealed(world: &World) -> (String, Vec<u8>) {
    let stack = StackId { namespace: "victim".into(), uid: "uid-victim".into() };
    let env = vec![Env { name: "TOKEN".into(), value: "hunter2".into(), secret: true, below_identity: false }];
    let key = keys::sealed(CLUSTER, &stack);
    let document = to_json(&SealedInputs { version: VERSION, stack, env, config: Vec::new(), files: Vec::new() }).into_bytes();
    world.drive(world.put_sealed(&key, document.clone())).unwrap().unwrap();
    (key.to_string(), document)
}

/// A workspace that reads a Secret which does not exist.
fn waiting() -> Value {
    let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "gone", "key": "A" } } }]);
    driftless_core::merge(project(), &json!({ "env": env }))
}

fn owned_by_victim(api_version: &str) -> Value {
    json!([{ "apiVersion": api_version, "kind": "Stack", "name": "s", "uid": "uid-victim" }])
}

/// Changes the Update `n/u` as a tenant with the rights to it may.
fn change(world: &World, patch: &Value) {
    let update = world.object(&key("Update", "n", "u")).unwrap();
    world.insert(driftless_core::merge(update, patch));
}

/// A launch of `n/u` that was interrupted after its task became the owner and before the task got
/// its spec.
fn cut_short(world: &World) -> String {
    for call in 1.. {
        let world_before = world.objects().len();
        world.crash_before_call(call);
        let ended = world.drive(launcher(world, &settings()).handle(&hint("u")));
        assert!(ended.is_none() || world_before > 0, "the launch came to its end");
        if let Some(task) = world.live_tasks().pop()
            && world.objects().contains_key(&format!("{}owner", keys::run(CLUSTER, &"uid-u".into())))
        {
            return task.arn;
        }
    }
    unreachable!()
}

#[test]
fn forged_owner_of_a_running_update_reads_no_sealed_inputs() {
    for api_version in ["no.such/v1", "pulumi.com/v1"] {
        let world = quiet();
        let (_, document) = sealed(&world);
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        cut_short(&world);
        assert!(!task_folder(&world).contains_key("spec"));
        let spec = json!({ "type": "destroy", "driftless": { "workspace": waiting() } });
        change(&world, &json!({ "metadata": { "ownerReferences": owned_by_victim(api_version) }, "spec": spec }));
        reconcile(&world, &hint("u"));
        // The task does what the launch recorded, even after the Update has changed.
        let given = super::spec(&world);
        assert_eq!((given.operation, given.env.len()), (Operation::Up, 0), "{api_version}");
        assert!(!String::from_utf8(task_folder(&world)["spec"].clone()).unwrap().contains("hunter2"));
        assert!(world.objects().values().any(|kept| *kept == document), "the victim's copy is there and unchanged");
    }
}

#[test]
fn forged_owner_neither_replaces_nor_deletes_sealed_inputs() {
    for (seal, api_version) in [(true, "no.such/v1"), (false, "no.such/v1"), (true, "pulumi.com/v1"), (false, "pulumi.com/v1")] {
        let world = quiet();
        let (key, document) = sealed(&world);
        let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "mine", "key": "A" } } }]);
        world.insert(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "n", "name": "mine" }, "data": { "A": "YQ==" },
        }));
        let ours = json!({ "workspace": driftless_core::merge(project(), &json!({ "env": env })), "seal": seal });
        by_hand(&world, "u", &json!({ "driftless": ours }));
        change(&world, &json!({ "metadata": { "ownerReferences": owned_by_victim(api_version) } }));
        reconcile(&world, &hint("u"));
        assert_eq!(world.objects().get(&key), Some(&document), "{seal} {api_version}");
        let sealed = world.objects().into_keys().filter(|key| key.starts_with("sealed/")).count();
        assert_eq!(sealed, 1, "{seal} {api_version}");
    }
}

#[test]
fn updates_without_a_stack_share_no_sealed_inputs() {
    let world = quiet();
    world.insert(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "n", "name": "mine" }, "data": { "A": "YQ==" },
    }));
    let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "mine", "key": "A" } } }]);
    let ours = json!({ "workspace": driftless_core::merge(project(), &json!({ "env": env })), "seal": true });
    by_hand(&world, "u", &json!({ "driftless": ours }));
    reconcile(&world, &hint("u"));
    assert!(!world.objects().keys().any(|key| key.starts_with("sealed/")));
    by_hand(&world, "v", &json!({ "type": "destroy", "driftless": { "workspace": waiting() } }));
    reconcile(&world, &hint("v"));
    assert_eq!(waits(&world, "v").0, "InputNotFound");
}

#[test]
fn sealed_inputs_of_another_stack_are_not_used() {
    let world = quiet();
    let (_, document) = sealed(&world);
    of_stack(&world, "n", "destroy", &json!({}));
    change(&world, &json!({ "spec": { "driftless": { "workspace": waiting() } } }));
    let key = keys::sealed(CLUSTER, &StackId { namespace: "n".into(), uid: "uid-s".into() });
    world.drive(world.put(&key, document)).unwrap().unwrap();
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "InputNotFound");
}

#[test]
fn record_of_an_earlier_release_starts_no_run() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    let key = format!("{}launch", keys::run(CLUSTER, &"uid-u".into()));
    let launch = Launch::parse(&world.objects()[&key]).unwrap();
    world.drive(world.put(&key, to_json(&Launch { request: None, ..launch }).into_bytes())).unwrap().unwrap();
    reconcile(&world, &hint("u"));
    assert!(world.live_tasks().is_empty());
    assert!(tells_recorder_of(&received(&world), "u"));
}

#[test]
fn annotation_only_shortens_the_limit_of_a_run() {
    for (max, annotation, expected) in
        [(Some(3600), "8760h", 3600), (Some(3600), "10m", 600), (None, "2h", 7200), (Some(3600), "1h", 3600)]
    {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        change(&world, &json!({ "metadata": { "annotations": { driftless_api::names::MAX_DURATION: annotation } } }));
        let run_limits = RunLimits { silence_seconds: None, max_seconds: max };
        reconcile_with(&world, &Settings { run_limits, ..settings() }, &hint("u"));
        assert_eq!(super::spec(&world).limits.max_seconds, Some(expected), "{max:?} {annotation}");
    }
}

#[test]
fn update_that_waits_for_its_inputs_reads_no_tree() {
    let world = quiet();
    let source = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "name": "app" });
    let tree = json!({ "digest": "sha256:00", "source": source });
    by_hand(&world, "u", &json!({ "driftless": { "workspace": waiting(), "tree": tree } }));
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "InputNotFound", "and not its source, which comes after");
}

#[test]
fn inputs_that_would_fill_the_function_are_invalid() {
    for (objects, bytes, last) in [(5, (1 << 20) - 1, "c4"), (201, 1, "c200")] {
        let world = quiet();
        let name = |number| format!("c{number}");
        for number in 0..objects {
            let metadata = json!({ "namespace": "n", "name": name(number) });
            let data = json!({ "A": "x".repeat(bytes) });
            world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data }));
        }
        let from: Vec<_> = (0..objects).map(|number| json!({ "configMapRef": { "name": name(number) } })).collect();
        by_hand(
            &world,
            "u",
            &json!({ "driftless": { "workspace": driftless_core::merge(project(), &json!({ "envFrom": from })) } }),
        );
        reconcile(&world, &hint("u"));
        let (reason, message) = waits(&world, "u");
        assert!(reason == "SpecInvalid" && message.contains(&format!("at ConfigMap {last:?}")), "{reason}: {message}");
        assert!(received(&world).is_empty(), "only an edit ends this");
    }
}

/// A world in which an Update mounts the ConfigMap `c` with this data.
fn mounting(data: &Value, mounts: &[Value]) -> World {
    let world = quiet();
    world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "n", "name": "c" }, "data": data }));
    let volumes = json!([{ "name": "v", "configMap": { "name": "c" } }]);
    let template = json!({ "spec": { "volumes": volumes, "containers": [{ "name": "pulumi", "volumeMounts": mounts }] } });
    let workspace = driftless_core::merge(project(), &json!({ "podTemplate": template }));
    by_hand(&world, "u", &json!({ "driftless": { "workspace": workspace } }));
    reconcile(&world, &hint("u"));
    world
}

#[test]
fn object_that_is_mounted_often_does_not_fill_the_function() {
    let mounts = |number| (0..number).map(|n| json!({ "name": "v", "mountPath": format!("/share/m{n}") })).collect::<Vec<_>>();
    let empty: Value = (0..400).map(|n| (format!("k{n}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    for (data, mounts, words) in [
        (json!({ "A": "x".repeat((1 << 20) - 100) }), mounts(5), "at ConfigMap \"c\", mounted at \"/share/m4\""),
        (empty.clone(), mounts(64), "the maximum of 1000 files and 4 MiB at ConfigMap \"c\", mounted at \"/share/m2\""),
    ] {
        let (reason, message) = waits(&mounting(&data, &mounts), "u");
        assert!(reason == "SpecInvalid" && message.contains(words), "{reason}: {message}");
    }
    let refused = refused(&mounting(&empty, &mounts(1000)), "u");
    assert!(refused.contains("volumeMounts has 1000 entries, the maximum is 64"), "{refused}");
}

#[test]
fn key_that_is_not_mounted_is_neither_counted_nor_compared() {
    let mount = |n| json!({ "name": "v", "mountPath": format!("/m{n}"), "subPath": "small" });
    let mounts: Vec<_> = (0..5).map(mount).collect();
    let given = ["x", "y"].map(|other| {
        let world = mounting(&json!({ "small": "1", "big": other.repeat(1 << 20) }), &mounts);
        let given = spec(&world);
        assert_eq!(given.files.len(), 5);
        given.inputs
    });
    assert!(given[0].is_some());
    assert_eq!(given[0], given[1]);
    let world = mounting(&json!({ "small": "2" }), &mounts);
    assert_ne!(spec(&world).inputs, given[0]);
}

#[test]
fn update_that_waits_for_its_claim_reads_no_tree() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "holder", &json!({ "stackName": "dev" }));
    reconcile(&world, &hint("holder"));
    by_hand(&world, "u", &json!({ "stackName": "dev" }));
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "StackClaimed");
    // Its inputs are gone, and it would report that if it got that far.
    let mut update = world.object(&key("Update", "n", "u")).unwrap();
    let missing = json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "gone", "key": "A" } } }]);
    let record = format!("{}launch", keys::run(CLUSTER, &"uid-u".into()));
    let mut launch: Value = serde_json::from_slice(&world.objects()[&record]).unwrap();
    launch["request"]["spec"]["driftless"]["workspace"]["env"] = missing.clone();
    world.drive(world.put(&record, launch.to_string().into_bytes())).unwrap().unwrap();
    update["spec"]["driftless"]["workspace"]["env"] = missing;
    world.insert(update);
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "StackClaimed", "and not its inputs and its tree, which come after");
}
