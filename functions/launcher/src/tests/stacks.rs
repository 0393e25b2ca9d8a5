//! Which Updates of a Stack start.

use driftless_api::{names, uid_of};

use super::*;

fn complete() -> Value {
    let at = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, is: &str| json!({ "type": kind, "status": is, "reason": "Updated", "message": "", "lastTransitionTime": at });
    json!({ "conditions": [condition("Progressing", "False"), condition("Failed", "False"), condition("Complete", "True")] })
}

#[test]
fn blocked_update_is_abandoned_after_a_change_of_its_stack() {
    for (generation, given_up) in [(1, false), (2, true)] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["spec"]["driftless"]["workspace"]["envFrom"] = json!([{ "secretRef": { "name": "missing" } }]);
        world.insert(written);
        let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
        stack["metadata"]["generation"] = json!(generation);
        world.insert(stack);
        reconcile(&world, &hint("u"));
        let owner = world.drive(world.exists(&format!("{}owner", keys::run(CLUSTER, &uid_of(&update(&world, "u"))))));
        assert_eq!(owner.unwrap().unwrap(), given_up, "{generation}");
        assert!(world.live_tasks().is_empty());
    }
    // It starts if it can: its spec is not wrong.
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
    stack["metadata"]["generation"] = json!(2);
    world.insert(stack);
    reconcile(&world, &hint("u"));
    assert!(task_folder(&world).contains_key("spec"));
}

#[test]
fn first_launch_checks_the_workspace_of_its_stack() {
    let from = |secret: &str| driftless_core::merge(project(), &json!({ "envFrom": [{ "secretRef": { "name": secret } }] }));
    for (spec, waits_for) in [(project(), ""), (from("missing"), "InputNotFound")] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        workspace(&world, &spec);
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["spec"]["workspaceName"] = json!("w");
        written["spec"]["driftless"]["workspace"] = spec;
        world.insert(written);
        reconcile(&world, &hint("u"));
        assert_eq!(waits(&world, "u").0, waits_for);
        let workspace = world.object(&key("Workspace", "n", "w")).unwrap();
        assert_eq!(workspace["status"]["conditions"][0]["reason"], "Succeeded", "{workspace}");
        // Only once: the sweep hints a Workspace that is not ready.
        world.insert(driftless_core::merge(workspace, &json!({ "status": { "conditions": null } })));
        reconcile(&world, &hint("u"));
        let workspace = world.object(&key("Workspace", "n", "w")).unwrap();
        assert_eq!(workspace["status"]["conditions"], Value::Null, "{workspace}");
    }
}

#[test]
fn waiting_update_of_a_suspended_stack_does_not_start() {
    for suspend in [
        json!({ "metadata": { "annotations": { names::SUSPEND: "true" } } }),
        json!({ "spec": { "driftless": { "suspend": true } } }),
    ] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let stack = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_core::merge(stack.clone(), &suspend));
        reconcile(&world, &hint("u"));
        assert_eq!(waits(&world, "u").0, "StackSuspended");
        assert!(world.live_tasks().is_empty());
        world.insert(stack);
        reconcile(&world, &hint("u"));
        assert_eq!(world.live_tasks().len(), 1);
        // A run that has started continues.
        let resumed = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_core::merge(resumed, &suspend));
        reconcile(&world, &hint("u"));
        assert!(world.live_tasks().iter().all(|task| !task.stopping));
        assert_eq!(waits(&world, "u").0, "");
    }
}

#[test]
fn drift_check_gives_way_to_an_update() {
    let check = |world: &World| {
        of_stack(world, "n", "refresh", &json!({}));
        let mut update = world.object(&key("Update", "n", "u")).unwrap();
        update["spec"]["driftless"]["previewOnly"] = json!(true);
        world.insert(update);
        let drift = json!({ "status": { "currentUpdate": null, "driftless": { "drift": { "currentCheck": "u" } } } });
        world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &drift));
        workspace(world, &project());
        by_hand(world, "up", &json!({ "stackName": "dev" }));
    };
    // It runs: its task is stopped.
    let world = quiet();
    check(&world);
    reconcile(&world, &hint("u"));
    assert!(spec(&world).preview_only);
    reconcile(&world, &hint("up"));
    assert_eq!(waits(&world, "up").0, "StackClaimed");
    assert!(matches!(&world.live_tasks()[..], [task] if task.stopping));
    assert!(tells_recorder_of(&received(&world), "u"));

    // It waits for capacity, and never starts.
    let world = quiet();
    check(&world);
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    reconcile(&world, &hint("up"));
    reconcile(&world, &hint("u"));
    assert!(world.live_tasks().is_empty());
    assert!(tells_recorder_of(&received(&world), "u"));

    // A drift check waits for another run. The recorder gets a hint about the holder only if the
    // sweep sends none: its Update is deleted, or complete by its status.
    let world = quiet();
    check(&world);
    reconcile(&world, &hint("up"));
    received(&world);
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "StackClaimed");
    assert!(matches!(&world.live_tasks()[..], [task] if !task.stopping));
    assert!(!tells_recorder_of(&received(&world), "up"));
    let mut holder = world.object(&key("Update", "n", "up")).unwrap();
    holder["status"] = complete();
    world.insert(holder);
    reconcile(&world, &hint("u"));
    assert!(tells_recorder_of(&received(&world), "up"));
}

#[test]
fn status_of_an_update_prevents_no_launch() {
    let world = quiet();
    let forged = driftless_core::merge(complete(), &json!({ "driftless": { "task": "arn:aws:ecs:r:1:task/c/neighbour" } }));
    of_stack(&world, "n", "up", &forged);
    reconcile(&world, &hint("u"));
    assert!(task_folder(&world).contains_key("spec"));
    assert!(!update(&world, "u").is_complete());

    // A user's Update whose run has started is Driftless's as well.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = forged;
    world.insert(written);
    reconcile(&world, &hint("u"));
    let task = update(&world, "u").status.unwrap().driftless.unwrap().task;
    assert_eq!(task, Some(world.live_tasks().remove(0).arn));

    // A waiting Update is not complete either: only its abandonment removes Driftless's finalizer.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    by_hand(&world, "u", &json!({ "stackName": "a" }));
    reconcile(&world, &hint("a"));
    reconcile(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written);
    reconcile(&world, &hint("u"));
    assert_eq!((waits(&world, "u").0.as_str(), update(&world, "u").is_complete()), ("StackClaimed", false));

    // Another operator's Update is complete.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written.clone());
    reconcile(&world, &hint("u"));
    assert!(world.live_tasks().is_empty() && world.objects().is_empty() && update(&world, "u").is_complete());
}

#[test]
fn run_has_the_files_of_its_volumes_and_a_destroy_those_of_the_last_run() {
    let volumes = json!([
        { "name": "db", "secret": { "secretName": "s", "items": [{ "key": "A", "path": "d/password", "mode": 256 }] } },
        { "name": "ca", "configMap": { "name": "ca" } },
        { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "audience": "vault", "path": "t" } }] } },
    ]);
    let mounts = json!([
        { "name": "db", "mountPath": "/etc/db" },
        { "name": "ca", "mountPath": "/etc/ca/ca.crt", "subPath": "ca.crt" },
        { "name": "token", "mountPath": "/var/run/secrets/vault" },
    ]);
    let template = json!({ "spec": { "volumes": volumes, "containers": [{ "name": "pulumi", "volumeMounts": mounts }] } });
    let config = [("ca", "/etc/ca/ca.crt"), ("token", "/var/run/secrets/vault/t")]
        .map(|(key, path)| json!({ "key": key, "valueFrom": { "path": path }, "secret": true }));
    let stacks = json!([{ "name": "dev", "config": config }]);
    let of = |world: &World, operation: &str, template: &Value| {
        of_stack(world, "n", operation, &json!({}));
        let update = world.object(&key("Update", "n", "u")).unwrap();
        let ours = json!({ "seal": true, "workspace": { "podTemplate": template, "stacks": stacks } });
        world.insert(driftless_core::merge(update, &json!({ "spec": { "driftless": ours } })));
        reconcile(world, &hint("u"));
    };
    let insert = |world: &World, kind: &str, name: &str, data: Value| {
        world.insert(json!({ "apiVersion": "v1", "kind": kind, "metadata": { "namespace": "n", "name": name }, "data": data }));
    };
    let world = quiet();
    of(&world, "up", &template);
    assert!(waits(&world, "u").1.starts_with("Secret \"s\" not found; create it to start the run"));
    insert(&world, "Secret", "s", json!({ "A": "/w==", "B": "Yg==" }));
    insert(&world, "ConfigMap", "ca", json!({ "other": "x" }));
    reconcile(&world, &hint("u"));
    assert!(waits(&world, "u").1.contains("ConfigMap \"ca\" has no file \"ca.crt\", the subPath of \"/etc/ca/ca.crt\""));
    insert(&world, "ConfigMap", "ca", json!({ "ca.crt": "PEM", "other": "x" }));
    reconcile(&world, &hint("u"));
    let file = |path: &str, mode, content: &[u8], secret| File { path: path.into(), mode, content: content.into(), secret };
    let expected = [file("/etc/db/d/password", 0o400, b"\xff", true), file("/etc/ca/ca.crt", 0o644, b"PEM", false)];
    let given = spec(&world);
    assert_eq!(given.files, expected);
    assert!(given.inputs.is_some());
    let [token] = &identity(&world).projected[..] else { panic!("one token") };
    assert_eq!((token.path.as_str(), token.mode), ("/var/run/secrets/vault/t", 0o644));
    assert!(token.token.ends_with("for vault"), "{}", token.token);
    let values = |spec: RunSpec| spec.config.into_iter().map(|config| config.value).collect::<Vec<_>>();
    assert!(values(given) == [ConfigValue::String("PEM".into()), ConfigValue::String(token.token.clone())]);
    let sealed = world.objects()[&*keys::sealed(CLUSTER, &StackId { namespace: "n".into(), uid: "uid-s".into() })].clone();

    for (template, config, events) in [(template, 2, 0), (json!({}), 1, 1)] {
        let world = quiet();
        let key = keys::sealed(CLUSTER, &StackId { namespace: "n".into(), uid: "uid-s".into() });
        world.drive(world.put_sealed(&key, sealed.clone())).unwrap().unwrap();
        of(&world, "destroy", &template);
        assert_eq!(spec(&world).files, expected);
        assert_eq!(values(spec(&world)).len(), config);
        let told = world.events();
        assert_eq!(told.len(), events, "{told:?}");
        let words = "because its token is missing: key \"token\" at \"/var/run/secrets/vault/t\"; mount the token there";
        assert!(told.iter().all(|event| event.contains("ConfigLeftOut") && event.ends_with(words)), "{told:?}");
    }
}

#[test]
fn unreadable_record_of_locks_does_not_keep_a_run_from_starting() {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let claim = keys::claim("n", "https://api.pulumi.com", "organization/shop/dev");
    world.drive(world.put(&keys::lock(CLUSTER, &claim), b"{}".to_vec())).unwrap().unwrap();
    reconcile(&world, &hint("u"));
    assert_eq!(spec(&world).run.claim, claim);
    assert!(spec(&world).stale_lock.is_none());
}

#[test]
fn program_receives_its_commit_unless_disabled() {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let mut update = world.object(&key("Update", "n", "u")).unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let env = json!([{ "name": "PULUMI_GIT_HEAD_NAME", "value": "release" }]);
    update["spec"]["driftless"]["commit"] = json!(format!("main@sha1:{commit}"));
    update["spec"]["driftless"]["workspace"]["env"] = env;
    world.insert(update);
    reconcile(&world, &hint("u"));
    let spec = spec(&world);
    let found: BTreeMap<_, _> = spec.env.iter().map(|env| (env.name.as_str(), env.value.as_str())).collect();
    assert_eq!(found, [("PULUMI_GIT_HEAD", commit), ("PULUMI_GIT_HEAD_NAME", "release")].into());
}
