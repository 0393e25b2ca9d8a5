//! What a run held is released, and the Updates that wait for it are woken.

use super::*;

#[test]
fn release_of_a_claim_wakes_the_waiting_updates() {
    let world = world(&of_stack(), &json!({}));
    let lease = |annotations: Value| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": SYSTEM, "name": CLAIM, "annotations": annotations },
            "spec": { "holderIdentity": "uid" },
        })
    };
    let waits = |namespace: &str, name: &str, operation: &str, reason: &str, created: u32| {
        world.insert(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "spec": { "type": operation },
            "metadata": { "namespace": namespace, "name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z") },
            "status": { "driftless": { "waitingReason": reason } },
        }));
    };
    waits("n", "younger", "up", "StackClaimed", 9);
    waits("n", "older", "up", "StackClaimed", 1);
    waits("n", "destroy", "destroy", "StackClaimed", 8);
    waits("n", "other", "up", "SecretNotFound", 2);
    waits("m", "elsewhere", "up", "StackClaimed", 2);
    waits(SYSTEM, "terminating", "destroy", "StackClaimed", 7);
    report(&world, &succeeded(&world));
    world.insert(lease(json!({})));
    reconcile(&world);
    assert_eq!(launches(&world), Vec::<String>::new(), "no launch has asked for it");
    world.insert(lease(json!({ names::WAITED: "true" })));
    reconcile(&world);
    let told = ["driftless/terminating", "n/destroy", "n/older", "n/younger"];
    assert_eq!(launches(&world), told);
    reconcile(&world);
    assert_eq!(launches(&world), told, "once");
}

#[test]
fn crash_after_the_release_of_a_claim_wakes_the_waiting_update() {
    for calls in 0..60 {
        let world = world(&of_stack(), &json!({}));
        world.insert(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": SYSTEM, "name": CLAIM, "annotations": { names::WAITED: "true" } },
            "spec": { "holderIdentity": "uid" },
        }));
        world.insert(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "spec": { "type": "up" },
            "metadata": { "namespace": "n", "name": "next", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "status": { "driftless": { "waitingReason": "StackClaimed" } },
        }));
        report(&world, &succeeded(&world));
        world.crash_before_call(calls);
        let crashed = handled(&world).is_none();
        if crashed {
            reconcile(&world);
        }
        assert!(launches(&world).contains(&"n/next".to_owned()), "after a crash before call {calls}");
        if !crashed {
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn release_of_a_slot_wakes_the_next_updates() {
    let applicant = |name: &str, since: i64| Applicant {
        namespace: "m".into(),
        counts_for: None,
        name: name.into(),
        destroys: false,
        since: Timestamp::from_second(since).unwrap(),
        seen: Timestamp::from_second(since).unwrap(),
    };
    let of = |names: &[&str]| (0..).zip(names).map(|(since, name)| ((*name).into(), applicant(name, since))).collect();
    let (mine, others) =
        (Admissions { running: of(&["other", "uid"]), waiting: of(&["a", "b", "c"]), ..Admissions::default() }, of(&["other"]));
    let without = Admissions { running: others, waiting: mine.waiting.clone(), ..Admissions::default() };
    for (written, expected, called) in [
        (Some(to_json(&mine)), Some(to_json(&without)), &["m/a", "m/b"][..]),
        (Some(to_json(&without)), Some(to_json(&without)), &[]),
        // The next launch writes a new list.
        (Some("{ not JSON".into()), Some("{ not JSON".into()), &[]),
        (None, None, &[]),
    ] {
        let world = world(&of_stack(), &json!({}));
        let annotations = written.map_or(json!({}), |written: String| json!({ keys::ADMISSIONS_ANNOTATION: written }));
        world.insert(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": SYSTEM, "name": keys::ADMISSIONS, "annotations": annotations },
        }));
        report(&world, &succeeded(&world));
        reconcile(&world);
        let lease = world.cluster().into_iter().find(|object| object["metadata"]["name"] == keys::ADMISSIONS).unwrap();
        let now = lease["metadata"]["annotations"][keys::ADMISSIONS_ANNOTATION].as_str();
        assert_eq!(now, expected.as_deref());
        assert_eq!(launches(&world), called);
    }
}
