//! A task's report about its run, which the tenant's program may have written.

use driftless_aws::Objects as _;
use driftless_contract::{Launch, Owner, RunHint, RunId, VERSION, keys, to_json};
use driftless_testkit::{CLUSTER, Faults, World};
use jiff::SignedDuration;
use recorder::{Due, Recorder, Settings};
use serde_json::json;

use crate::objects::key;

/// The maximum size of an object in etcd, in bytes.
const MAX_OBJECT: usize = 3 << 19;

/// The input is everything that a task writes: its progress, its lock, its log and its result.
pub fn check(input: &[u8]) {
    let world = World::new(0, Faults::NONE);
    let update = key("auto.pulumi.com/v1alpha1", "Update", "u");
    let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "stack-uid" });
    world.insert(json!({
        "apiVersion": update.api_version, "kind": update.kind, "spec": { "type": "up" },
        "metadata": { "namespace": update.namespace, "name": update.name, "uid": "uid", "ownerReferences": [owner] },
        "status": { "driftless": { "task": "arn" } },
    }));
    let at = world.now();
    let launch = Launch {
        version: VERSION,
        run: RunId { update: update.clone(), uid: "uid".into(), claim: "claim".into() },
        attempt: 0,
        definition: "d".into(),
        project: None,
        inputs: None,
        preview: false,
        spot: false,
        tried: None,
        size: None,
        request: None,
        refused: None,
        cache: None,
        at,
    };
    let put = |key: String, content: &[u8]| {
        world.drive(world.put(&key, content.into())).expect("a world without faults").expect("a world without faults");
    };
    let folder = keys::run(CLUSTER, &"uid".into());
    put(format!("{folder}launch"), to_json(&launch).as_bytes());
    let owner = Owner { version: VERSION, task: Some("arn:aws:ecs:r:1:task/c/t".into()), refused: None, at };
    put(format!("{folder}owner"), to_json(&owner).as_bytes());
    let task = keys::task("AROA", "t");
    for name in ["progress", "lock", "log/0001", "result"] {
        put(format!("{task}out/{name}"), input);
    }
    let hint = RunHint { version: VERSION, update: update.clone(), uid: Some("uid".into()), hops: 0 };
    let settings = Settings {
        system_namespace: "driftless".into(),
        task_role_id: "AROA".into(),
        start_seconds: 900,
        cache_entry_bytes: 1 << 20,
        cache_namespace_bytes: 1 << 22,
    };
    let handled = |due| {
        let (world, settings, now) = (&world, &settings, world.now());
        let recorder = Recorder { cluster: world, objects: world, queues: world, tasks: world, settings, now };
        let done = world.drive(recorder.handle(&hint, due)).expect("a world without faults");
        done.expect("whatever a task writes");
    };
    handled(Due::Progress(task.clone()));
    handled(Due::Outcome);
    // By then a task that ECS does not know counts as gone, and so does one without a result.
    world.advance(SignedDuration::from_mins(11));
    handled(Due::Outcome);
    let recorded = (world.objects().get(&format!("{folder}outcome")).cloned(), world.object(&update));
    assert!(recorded.0.is_some(), "the run has no outcome");
    handled(Due::Outcome);
    handled(Due::Progress(task.clone()));
    assert!((world.objects().get(&format!("{folder}outcome")).cloned(), world.object(&update)) == recorded, "recorded twice");
    for object in world.cluster() {
        let bytes = object.to_string().len();
        assert!(bytes < MAX_OBJECT, "{} has {bytes} bytes", object["kind"]);
    }
    assert!(recorded.1.is_some_and(|update| update["status"].to_string().len() < 256 << 10), "the status is too long");
}
