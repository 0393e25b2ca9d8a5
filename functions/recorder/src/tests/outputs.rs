//! The outputs of a run in their Secret.

use super::*;

#[test]
fn large_outputs_never_fail_a_run() {
    let world = world(&of_stack(), &json!({}));
    let text = |kib: usize| OutputValue { value: "x".repeat(kib << 10).into(), secret: false };
    let outputs = [("huge".to_owned(), text(1400)), ("large".to_owned(), text(300)), ("small".to_owned(), text(0))];
    report(&world, &RunResult { outputs: Some(outputs.into()), ..succeeded(&world) });
    reconcile(&world);
    let outcome = &world.objects()[&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))];
    assert!(outcome.len() < 4 << 10, "{}", outcome.len());
    let shown = Outcome::parse(outcome).unwrap().outputs.unwrap();
    let [huge, large] = ["huge", "large"].map(|name| shown[name].as_str().unwrap());
    assert!(
        huge.starts_with("[not stored: ") && large.contains("see key \"large\" of Secret \"u-stack-outputs\""),
        "{huge} {large}"
    );
    assert_eq!(shown["small"], "");
    let status = update(&world)["status"].clone();
    assert_eq!((&status["outputs"], &status["conditions"][1]["status"]), (&json!("u-stack-outputs"), &json!("False")));
    let stored = world.cluster().into_iter().find(|object| object["kind"] == "Secret").unwrap()["data"].clone();
    let lengths: Vec<_> =
        stored.as_object().unwrap().iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap().len())).collect();
    assert_eq!(lengths, [("large", ((300 << 10) + 2_usize).div_ceil(3) * 4), ("small", 4)], "in base64");
    assert!(world.events().iter().all(|event| !event.contains("OutputsNotStored")), "{:?}", world.events());
}

#[test]
fn foreign_secret_is_not_taken_for_the_outputs() {
    let secret = |uid: &str, value: &str| {
        let owner =
            json!({ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "name": "u", "uid": uid, "controller": true });
        let metadata = json!({ "namespace": "n", "name": "u-stack-outputs", "ownerReferences": [owner] });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": true, "data": { "n": value } })
    };
    let (written, forged) = ("MQ==", "Mg==");
    for (owner, value, accepted) in [("uid", written, true), ("uid-of-an-earlier-one", written, false), ("uid", forged, false)] {
        // Once the task's folder is empty, the outputs to write are unknown.
        for crashed in if value == forged { &[false][..] } else { &[false, true] } {
            let world = world(&of_stack(), &json!({}));
            world.insert(secret(owner, value));
            let outputs = Some([("n".to_owned(), OutputValue { value: 1.into(), secret: false })].into());
            report(&world, &RunResult { outputs, ..succeeded(&world) });
            if *crashed {
                // The reconciliation is interrupted when the folder is empty and the status is not
                // written.
                crash_before_write(&world);
            }
            reconcile(&world);
            let named = update(&world)["status"]["outputs"].clone();
            assert_eq!(named, if accepted { json!("u-stack-outputs") } else { Value::Null }, "{owner} {crashed}");
            let told = world.events().iter().any(|event| {
                event.starts_with(
                    "Update n/u Warning OutputsNotStored: Secret \"u-stack-outputs\" exists and does not belong to this Update",
                )
            });
            assert_eq!(told, !accepted);
        }
    }
}

#[test]
fn result_that_changed_after_its_outcome_is_not_stored() {
    let recorded = |n: u32| {
        let world = world(&of_stack(), &json!({}));
        let outputs = Some([("n".to_owned(), OutputValue { value: n.into(), secret: false })].into());
        report(&world, &RunResult { outputs, ..succeeded(&world) });
        world
    };
    let (first, world) = (recorded(1), recorded(2));
    reconcile(&first);
    let outcome = format!("{}outcome", keys::run(CLUSTER, &"uid".into()));
    put(&world, &outcome, str::from_utf8(&first.objects()[&outcome]).unwrap());
    reconcile(&world);
    let is_stored = |world: &World| world.cluster().iter().any(|object| object["kind"] == "Secret");
    assert_eq!((is_stored(&first), is_stored(&world)), (true, false));
}

/// The first reconciliation is interrupted before it writes the status.
fn crash_before_write(world: &World) {
    let before = world.cluster();
    for calls in 0..60 {
        let settings = settings();
        let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops: 0 };
        world.crash_before_call(calls);
        let recorder = recorder(world, &settings);
        assert!(world.drive(recorder.handle(&hint, Due::Outcome)).is_none(), "it never tidied up");
        assert_eq!(world.cluster(), before);
        if !world.objects().keys().any(|key| key.starts_with(TASK)) {
            return;
        }
    }
}
