//! What a run waits for before it has a task: capacity, Spot or on demand, and a slot.

use driftless_api::names;
use driftless_core::Admissions;
use k8s_openapi::api::coordination::v1::Lease;

use super::*;

#[test]
fn refused_launch_uses_a_new_client_token() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    for _ in 0..2 {
        reconcile(&world, &hint("u"));
        let (reason, words) = waits(&world, "u");
        assert_eq!(reason, "TaskNotStarted");
        assert!(words.contains("Capacity is unavailable") && words.ends_with("; next try in 15s"), "{words}");
        world.advance(SignedDuration::from_secs(15));
    }
    world.set_faults(Faults::NONE);
    reconcile(&world, &hint("u"));
    assert_eq!(world.live_tasks().len(), 1);
}

/// The launch record of the Update `n/u`.
fn launch_record(world: &World) -> Launch {
    world.document(&keys::run(CLUSTER, &"uid-u".into()).launch()).unwrap()
}

#[test]
fn refused_launch_backs_off_despite_hints() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    let mut requeued = 0;
    for _ in 0..60 * 60 / 5 {
        reconcile(&world, &hint("u"));
        requeued += received(&world).iter().filter(|message| matches!(message, Message::Launch(_))).count();
        world.advance(SignedDuration::from_secs(5));
    }
    let tries = launch_record(&world).attempt;
    assert!((20..30).contains(&tries), "{tries} tries in an hour");
    assert!(waits(&world, "u").1.ends_with("; next try in 300s"), "{}", waits(&world, "u").1);
    assert!(requeued <= usize::try_from(tries).unwrap(), "{requeued} messages for {tries} tries");
    world.set_faults(Faults::NONE);
    world.advance(SignedDuration::from_secs(300));
    reconcile(&world, &hint("u"));
    assert_eq!(world.live_tasks().len(), 1);
}

#[test]
fn errors_of_ecs_are_conditions_and_fail_no_message() {
    let (call, message) = ("ecs:RunTask".to_owned(), "words".to_owned());
    for (error, expected) in [
        (driftless_aws::Error::Transient { call: call.clone(), message: message.clone() }, "TaskNotStarted"),
        (driftless_aws::Error::Permanent { call: call.clone(), message: message.clone() }, "TaskRefused"),
        (driftless_aws::Error::Invalid { call, message }, "SpecInvalid"),
    ] {
        let Stop::Wait(reason, told) = not_started(error) else { panic!("{expected}") };
        assert!(reason.as_str() == expected && told.contains("words"), "{reason}: {told}");
    }
}

#[test]
fn read_only_runs_use_spot_unless_configured() {
    let check = json!({ "type": "refresh", "driftless": { "previewOnly": true, "workspace": project() } });
    for (spec, capacity, allowed, spot) in [
        (json!({ "type": "preview" }), None, true, true),
        (check.clone(), None, true, true),
        (json!({ "type": "up" }), None, true, false),
        (json!({ "type": "refresh" }), None, true, false),
        (json!({ "type": "destroy" }), Some(names::SPOT), true, true),
        (check, Some(names::ON_DEMAND), true, false),
        (json!({ "type": "preview" }), Some(names::SPOT), false, false),
    ] {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &spec);
        let object = world.object(&key("Update", "n", "u")).unwrap();
        let annotated = json!({ "metadata": { "annotations": { names::CAPACITY: capacity } } });
        insert(&world, &key("Update", "n", "u"), &driftless_core::merge(object, &annotated));
        reconcile_with(&world, &Settings { spot: allowed, ..settings() }, &hint("u"));
        let live: Vec<_> = world.live_tasks().iter().map(|task| task.spot).collect();
        assert_eq!(live, [spot], "{spec} {capacity:?}");
    }
}

#[test]
fn run_without_spot_capacity_is_retried_on_demand() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({ "type": "preview" }));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "TaskNotStarted");
    world.set_faults(Faults::NONE);
    world.advance(SignedDuration::from_secs(15));
    reconcile(&world, &hint("u"));
    assert!(matches!(&world.live_tasks()[..], [task] if !task.spot));

    // A record of an earlier release does not have the field.
    let key = format!("{}launch", keys::run(CLUSTER, &"uid-u".into()));
    let mut written: Value = serde_json::from_slice(&world.objects()[&key]).unwrap();
    assert_eq!(written.as_object_mut().unwrap().remove("spot"), Some(json!(true)));
    let launch = Launch::parse(written.to_string().as_bytes()).unwrap();
    assert!(!Launch { attempt: 0, ..launch }.is_on_spot());
}

#[test]
fn images_that_are_not_built_for_a_processor_are_tried_on_the_other() {
    let arm = json!({ "podTemplate": { "spec": { "nodeSelector": { "kubernetes.io/arch": "arm64" } } } });
    let of = |fields: &Value, unfit: Option<Architecture>| {
        let world = quiet();
        if let Some(architecture) = unfit {
            let images = TaskShape { image: Some("own".into()), ..TaskShape::default() }.images("pulumi").unwrap();
            let unfit = to_json(&UnfitArchitecture { version: VERSION, architecture });
            world.drive(world.put(&keys::architecture(&key("Update", "n", "u"), &images), unfit.into_bytes())).unwrap().unwrap();
        }
        workspace(&world, &driftless_core::merge(project(), fields));
        by_hand(&world, "u", &json!({ "type": "preview" }));
        reconcile(&world, &hint("u"));
        let launch = launch_record(&world);
        assert_eq!(launch.tried.as_ref().is_some_and(|tried| tried.other_failed), unfit.is_some() && launch.tried.is_some());
        (launch.tried.map(|tried| tried.architecture), launch.definition)
    };
    let own = json!({ "image": "own" });
    let (tried, on_amd64) = of(&own, None);
    assert_eq!(tried, Some(Architecture::Amd64));
    let (tried, on_arm64) = of(&own, Some(Architecture::Amd64));
    assert_eq!(tried, Some(Architecture::Arm64));
    assert_ne!(on_arm64, on_amd64);
    assert_eq!(of(&own, Some(Architecture::Arm64)), (Some(Architecture::Amd64), on_amd64));
    // The Workspace selects the processor, or the installation the image.
    assert_eq!(of(&driftless_core::merge(own, &arm), Some(Architecture::Arm64)), (None, on_arm64));
    assert_eq!(of(&json!({}), Some(Architecture::Amd64)).0, None);
}

fn admissions(world: &World) -> Admissions {
    let lease: Option<Lease> = world.drive(Cluster::get(world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
    serde_json::from_str(&lease.unwrap().annotations()[keys::ADMISSIONS_ANNOTATION]).unwrap()
}

/// Releases the slot of a run, as the recorder does.
fn release(world: &World, uid: &str) {
    let lease = world.drive(Cluster::get::<Lease>(world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
    let (mut lease, mut all) = (lease.unwrap(), admissions(world));
    assert!(all.release(&uid.into()));
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), to_json(&all));
    world.drive(world.replace(&lease)).unwrap().unwrap();
}

#[test]
fn runs_stay_within_max_runs_and_waiting_ones_hold_no_claim() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    by_hand(&world, "b", &json!({ "stackName": "a" }));
    by_hand(&world, "c", &json!({}));
    let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
    reconcile_with(&world, &limited, &hint("a"));
    reconcile_with(&world, &limited, &hint("b"));
    assert_eq!(waits(&world, "b").0, "StackClaimed");
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-a"]);
    assert!(admissions(&world).waiting.is_empty(), "one that waits for its claim takes up no place");
    received(&world);
    let leases = |world: &World| world.cluster().into_iter().filter(|object| object["kind"] == "Lease").count();
    let before = leases(&world);
    for _ in 0..2 {
        reconcile_with(&world, &limited, &hint("c"));
    }
    let (reason, words) = waits(&world, "c");
    assert_eq!(reason, "ConcurrencyLimit");
    assert!(words.starts_with("waiting for a slot: other runs come first"), "{words}");
    assert_eq!((leases(&world), world.live_tasks().len()), (before, 1));
    assert!(tells_recorder_of(&received(&world), "a"), "its place may be one that was not given back");
    reconcile_with(&world, &limited, &hint("c"));
    assert!(!tells_recorder_of(&received(&world), "a"), "not again before its entry is renewed");

    release(&world, "uid-a");
    reconcile_with(&world, &limited, &hint("c"));
    assert_eq!(world.live_tasks().len(), 2);
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-c"]);

    // An unreadable list is replaced by a new one.
    let mut lease = world.drive(Cluster::get::<Lease>(&world, "driftless", keys::ADMISSIONS)).unwrap().unwrap().unwrap();
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), "{ not JSON".into());
    world.drive(world.replace(&lease)).unwrap().unwrap();
    by_hand(&world, "d", &json!({}));
    reconcile_with(&world, &limited, &hint("d"));
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-d"]);
}

#[test]
fn run_that_gets_a_slot_and_cannot_begin_leaves_it_to_the_next() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
    reconcile_with(&world, &limited, &hint("a"));
    // It waits for a slot. Then its Secret is deleted, and the slot is released.
    let secret = |data: Value| {
        let metadata = json!({ "namespace": "n", "name": "s" });
        world.insert(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data }));
    };
    secret(json!({ "A": "YQ==" }));
    let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "A" } } }]);
    workspace(&world, &driftless_core::merge(project(), &json!({ "env": env })));
    by_hand(&world, "b", &json!({}));
    reconcile_with(&world, &limited, &hint("b"));
    assert_eq!(admissions(&world).waiting.into_keys().collect::<Vec<_>>(), ["uid-b"]);
    secret(json!({}));
    release(&world, "uid-a");
    reconcile_with(&world, &limited, &hint("b"));
    assert!(waits(&world, "b").0.starts_with("Input"), "{:?}", waits(&world, "b"));
    let all = admissions(&world);
    assert!(all.waiting.is_empty() && all.running.is_empty(), "{all:?}");
}

#[test]
fn run_for_a_terminating_namespace_counts_for_that_of_its_stack() {
    let world = quiet();
    of_stack(&world, "driftless", "destroy", &json!({}));
    let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
    reconcile_with(&world, &limited, &LaunchHint { update: key("Update", "driftless", "u"), ..hint("u") });
    let all = admissions(&world);
    let places: Vec<_> = all.running.values().map(|run| (run.namespace.as_str(), run.counts_for.as_deref())).collect();
    assert_eq!(places, [("driftless", Some("n"))]);
}
