use driftless_core::Effect;
use driftless_testkit::emf::written;

use super::*;

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
