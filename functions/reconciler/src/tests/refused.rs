use driftless_core::Effect;
use driftless_testkit::emf::written;

use super::*;

#[test]
fn refused_run_is_shown_and_tried_again_until_the_api_server_takes_it() {
    let world = World::new(0, Faults::NONE);
    // Its resources are destroyed from the state, so that it needs no source.
    world.insert(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "spec": { "stack": "dev", "programRef": { "name": "p" }, "destroyOnFinalize": true },
        "metadata": {
            "namespace": "n", "name": "s", "uid": "uid", "generation": 2, "finalizers": [names::FINALIZER],
            "deletionTimestamp": world.now().to_string(),
        },
        "status": {
            "lastUpdate": { "name": "u", "generation": 1, "type": "up", "state": "succeeded" },
            "projectInfo": { "name": "p", "runtime": "yaml" },
        },
    }));
    let key = key("pulumi.com/v1", "Stack", "s");
    let reconciling = || {
        let stack = world.object(&key).unwrap();
        let conditions = stack["status"]["conditions"].as_array().unwrap().clone();
        conditions.iter().find(|condition| condition["type"] == "Reconciling").map(|found| found["message"].to_string())
    };
    let events = || world.events().iter().filter(|event| event.contains("UpdateRefused")).count();
    world.forbid("Workspace");
    for tries in 1..4 {
        reconcile(&world, key.clone());
        let message = reconciling().unwrap();
        assert!(message.contains("refused the objects of a run: Workspace is forbidden; no run starts"), "{message}");
        reconcile(&world, key.clone());
        assert_eq!((events(), hinted(&world)), (1, (vec![], vec!["Stack".into(); tries])), "one requeue for each try");
        world.advance(SignedDuration::from_secs(i64::from(driftless_core::REFUSED_SECONDS) + 1));
    }
    world.allow("Workspace");
    reconcile(&world, key.clone());
    let message = reconciling().unwrap();
    assert!(!message.contains("refused") && events() == 1, "{message}");
}

#[test]
fn plan_that_breaks_a_rule_is_refused_as_a_whole() {
    let world = world(Said { complete: false, outcome: false, current: true, ..RECORDED });
    let key = key("pulumi.com/v1", "Stack", "s");
    let reconciler = reconciler(&world);
    let mut before = world.object(&key).unwrap();
    // A change of the Stack launches its run.
    before["metadata"]["generation"] = 2.into();
    world.insert(before);
    let before = world.object(&key).unwrap();
    let stack: Stack = world.drive(Cluster::get(&world, "n", "s")).unwrap().unwrap().unwrap();
    let snapshot = world.drive(reconciler.snapshot(CLUSTER, &stack)).unwrap().unwrap();
    let mut plan = decide(&snapshot, world.now());
    assert!(matches!(plan.effects[..], [Effect::Launch { .. }]), "{plan:?}");
    plan.effects.push(Effect::RemoveFinalizer);

    let hint = Hint::new(key.clone());
    let (done, metrics) = written(|| world.drive(reconciler.carry_out(&hint, stack, (&snapshot, Vec::new()), plan)).unwrap());
    done.unwrap();
    assert_eq!(metrics.len(), 1);
    assert_eq!((&metrics[0]["RefusedPlans"], &metrics[0]["object"]), (&json!(1.0), &json!(key.to_string())));
    assert_eq!(hinted(&world), (vec![], vec![]));
    let mut after = world.object(&key).unwrap();
    let stalled = after["status"]["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Stalled");
    let (reason, message) = (&stalled.unwrap()["reason"], stalled.unwrap()["message"].as_str().unwrap());
    assert_eq!(reason, "PlanRefused");
    assert!(
        message.contains("(4: the finalizer is removed while the Stack is not deleted or a run is in progress)"),
        "{message}"
    );
    after["status"].as_object_mut().unwrap().remove("conditions");
    for field in ["status", "spec"] {
        assert_eq!(after[field], before[field]);
    }
    assert_eq!(after["metadata"]["finalizers"], before["metadata"]["finalizers"]);

    // The next plan breaks no rule.
    reconcile(&world, key.clone());
    assert_eq!(hinted(&world).0, ["Update"]);
    assert!(!world.object(&key).unwrap()["status"].to_string().contains("PlanRefused"));
}
