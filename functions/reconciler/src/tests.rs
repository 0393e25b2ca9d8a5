use driftless_api::{StackOutputs, names};
use driftless_contract::{FetchOutcome, FetchedArtifact, StackId, VERSION, to_json};
use driftless_core::SourceRef;
use driftless_testkit::{CLUSTER, Faults, Message, World};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

mod dependents;
mod fan_out;
mod refused;

const SYSTEM: &str = "driftless";
/// What Driftless's reconciler writes into an Update.
const MADE_BY_US: &str = r#"{ "commit": "c", "stackGeneration": 1 }"#;

fn key(api_version: &str, kind: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: CLUSTER.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: "n".into(),
        name: name.into(),
    }
}

fn update_key() -> ObjectKey {
    key("auto.pulumi.com/v1alpha1", "Update", "u")
}

fn reconcile(world: &World, object: ObjectKey) {
    take(world, &Hint::new(object));
}

fn take(world: &World, hint: &Hint) {
    world.drive(reconciler(world).handle(hint)).unwrap().unwrap();
}

fn reconciler(world: &World) -> Reconciler<'_, World, World, World> {
    let retention = Retention { keep: SignedDuration::from_hours(48), grace: SignedDuration::from_hours(24) };
    let settings = Settings {
        system_namespace: SYSTEM,
        namespaces: WatchNamespaces::All,
        retention,
        resync_seconds: 600,
        min_resync_seconds: 60,
        pod_fields: PodFields::Ignore,
    };
    Reconciler { cluster: world, objects: world, queues: world, settings, now: world.now() }
}

/// The kinds that were hinted: to the launcher, and to the reconciler.
fn hinted(world: &World) -> (Vec<String>, Vec<String>) {
    let (mut launches, mut hints) = (Vec::new(), Vec::new());
    for message in world.sent() {
        match message {
            Message::Launch(hint) => launches.push(hint.update.kind),
            Message::Hint(hint) => hints.push(hint.object.kind),
            other => panic!("{other:?}"),
        }
    }
    (launches, hints)
}

/// An Update and the facts about it.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so or not, whatever the others are")]
struct Said {
    /// Complete since an hour ago, by its status.
    complete: bool,
    finalizer: bool,
    of_stack: bool,
    ours: bool,
    /// The Stack names it.
    current: bool,
    /// The outcome is in the bucket.
    outcome: bool,
    /// A reader asked for its log this number of minutes ago.
    log_asked: Option<i64>,
    ttl: Option<&'static str>,
}

const RECORDED: Said = Said {
    complete: true,
    finalizer: true,
    of_stack: true,
    ours: true,
    current: false,
    outcome: true,
    log_asked: None,
    ttl: None,
};

fn world(said: Said) -> World {
    let world = World::new(0, Faults::NONE);
    let current = if said.current { "u" } else { "another" };
    world.insert(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "spec": { "stack": "dev" },
        "metadata": { "namespace": "n", "name": "s", "uid": "stack-uid", "finalizers": [names::FINALIZER] },
        "status": { "currentUpdate": { "name": current, "generation": 1, "commit": "c" } },
    }));
    let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "stack-uid" });
    let condition = json!({
        "type": "Complete", "status": "True", "reason": "Updated", "message": "",
        "lastTransitionTime": (world.now() - SignedDuration::from_hours(1)).to_string(),
    });
    let ours: Value = serde_json::from_str(MADE_BY_US).unwrap();
    world.insert(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {
            "namespace": "n", "name": "u", "uid": "uid",
            "annotations": said.log_asked.map(|minutes| {
                json!({ names::LOG_REQUESTED_AT: (world.now() - SignedDuration::from_mins(minutes)).to_string() })
            }),
            "finalizers": said.finalizer.then_some(names::FINALIZER).into_iter().collect::<Vec<_>>(),
            "ownerReferences": said.of_stack.then_some(owner).into_iter().collect::<Vec<_>>(),
        },
        "spec": { "type": "up", "ttlAfterCompleted": said.ttl, "driftless": said.ours.then_some(ours) },
        "status": { "conditions": said.complete.then_some(condition).into_iter().collect::<Vec<_>>() },
    }));
    if said.outcome {
        let outcome = format!("{}outcome", keys::run(CLUSTER, &"uid".into()));
        world.drive(world.put(&outcome, b"{}".to_vec())).unwrap().unwrap();
    }
    world
}

#[test]
fn update_status_is_trusted_only_as_history() {
    let by_hand = Said { of_stack: false, ours: false, ..RECORDED };
    let running = Said { complete: false, outcome: false, current: true, ..RECORDED };
    for (what, said, launched, told, kept) in [
        ("not complete", running, true, false, true),
        ("recorded, and the Stack does not know yet", Said { current: true, ..RECORDED }, false, true, true),
        ("recorded, and the Stack knows", RECORDED, false, true, false),
        ("forged, while it runs", Said { complete: true, ..running }, true, true, true),
        ("forged, and not the Stack's current one", Said { outcome: false, ..RECORDED }, true, true, true),
        ("another operator's", Said { outcome: false, ours: false, ..RECORDED }, false, true, false),
        ("another operator's that did not end", Said { ours: false, ..running }, true, false, true),
        ("made by hand, and recorded", by_hand, true, false, true),
        ("made by hand, and forged", Said { outcome: false, ..by_hand }, true, false, true),
    ] {
        let world = world(said);
        reconcile(&world, update_key());
        let of = |kind: &str, is: bool| is.then(|| kind.to_owned()).into_iter().collect::<Vec<_>>();
        assert_eq!(hinted(&world), (of("Update", launched), of("Stack", told)), "{what}");
        let finalizers = world.object(&update_key()).unwrap()["metadata"]["finalizers"].to_string();
        assert_eq!(finalizers.contains(names::FINALIZER), kept, "{what}");
    }
    let released = world(Said { finalizer: false, outcome: false, ..by_hand });
    reconcile(&released, update_key());
    assert_eq!(hinted(&released), (vec![], vec![]), "long ago");
}

#[test]
fn request_for_a_log_reaches_the_recorder_for_half_an_hour() {
    let released = Said { finalizer: false, ..RECORDED };
    let by_hand = Said { of_stack: false, ours: false, ..released };
    for (said, passed) in [
        (Said { log_asked: Some(1), ..released }, true),
        (Said { log_asked: Some(1), ..by_hand }, true),
        (Said { log_asked: Some(31), ..released }, false),
        (released, false),
    ] {
        let world = world(said);
        reconcile(&world, update_key());
        assert_eq!(hinted(&world).0.len(), usize::from(passed), "{:?}", said.log_asked);
    }
}

#[test]
fn forged_complete_status_does_not_prevent_the_run() {
    let world = world(Said { current: true, outcome: false, finalizer: false, ..RECORDED });
    reconcile(&world, update_key());
    assert_eq!(hinted(&world), (vec![], vec!["Stack".into()]));
    reconcile(&world, key("pulumi.com/v1", "Stack", "s"));
    assert_eq!(hinted(&world).0, ["Update"]);
    assert!(world.object(&update_key()).is_some());
}

#[test]
fn deleted_live_update_is_reconciled_immediately() {
    for of_stack in [true, false] {
        for complete in [true, false] {
            let said = Said { current: of_stack, ours: of_stack, of_stack, outcome: false, complete, ..RECORDED };
            let world = world(Said { ttl: Some("1m"), ..said });
            let mut update = world.object(&update_key()).unwrap();
            update["metadata"]["deletionTimestamp"] = world.now().to_string().into();
            world.insert(update);
            reconcile(&world, update_key());
            assert_eq!(hinted(&world).0, ["Update"]);
            assert!(world.object(&update_key()).is_some(), "its run is not over");
        }
    }
}

#[test]
fn update_is_deleted_after_its_ttl() {
    let released = Said { finalizer: false, ttl: Some("30m"), ..RECORDED };
    for (what, said, kept) in [
        ("its time is over", released, false),
        ("made by hand", Said { of_stack: false, ours: false, ..released }, false),
        ("another operator's", Said { ours: false, outcome: false, ..released }, false),
        ("not yet", Said { ttl: Some("61m"), ..released }, true),
        ("for ever", Said { ttl: None, ..released }, true),
        ("no duration", Said { ttl: Some("soon"), ..released }, true),
        ("never", Said { ttl: Some("-1h"), ..released }, true),
        ("the Stack's current one", Said { current: true, ..released }, true),
        ("not released", Said { finalizer: true, current: true, ..released }, true),
        ("not complete", Said { complete: false, ..released }, true),
    ] {
        let world = world(said);
        reconcile(&world, update_key());
        assert_eq!(world.object(&update_key()).is_some(), kept, "{what}");
    }
}

#[test]
fn dependents_are_hinted_after_a_crash_at_any_call() {
    let outcome = json!({
        "version": VERSION, "run": { "update": update_key(), "uid": "uid", "claim": "c" }, "verdict": { "kind": "succeeded" },
        "startedAt": "2020-01-01T00:00:00Z", "endedAt": "2020-01-01T00:01:00Z",
    });
    for calls in 0.. {
        let world = world(Said { current: true, ..RECORDED });
        world
            .drive(world.put(&format!("{}outcome", keys::run(CLUSTER, &"uid".into())), to_json(&outcome).into()))
            .unwrap()
            .unwrap();
        world.insert(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "namespace": "n", "name": "dependent" },
            "spec": { "stack": "dev", "programRef": { "name": "p" } }, "status": { "driftless": { "waitsFor": "s" } },
        }));
        world.crash_before_call(calls);
        let ended = world.drive(reconciler(&world).handle(&Hint::new(key("pulumi.com/v1", "Stack", "s")))).is_some();
        if !ended {
            // SQS delivers it once more, and the sweep finds an Update that no function released.
            reconcile(&world, key("pulumi.com/v1", "Stack", "s"));
            reconcile(&world, update_key());
        }
        let sent = world.sent();
        let waked = |message: &Message| matches!(message, Message::Hint(hint) if hint.object.name == "dependent");
        assert!(sent.iter().any(waked), "after {calls} calls: {sent:?}");
        assert_eq!(world.object(&update_key()).unwrap()["metadata"]["finalizers"], Value::Null, "after {calls} calls");
        if ended {
            assert!(calls > 5, "{calls}");
            return;
        }
    }
}

#[test]
fn stack_is_deleted_when_its_announced_end_has_come() {
    let world = World::new(0, Faults::NONE);
    let at = (world.now() - SignedDuration::from_mins(1)).to_string();
    world.insert(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "spec": { "stack": "dev", "programRef": { "name": "p" }, "destroyOnFinalize": true },
        "metadata": {
            "namespace": "n", "name": "s", "uid": "uid", "finalizers": [names::FINALIZER], "annotations": { names::TTL: "1h" },
            "creationTimestamp": (world.now() - SignedDuration::from_hours(2)).to_string(),
        },
        "status": { "driftless": { "expiry": { "time": at } } },
    }));
    let stack = key("pulumi.com/v1", "Stack", "s");
    let kept: Stack = world.drive(Cluster::get(&world, "n", "s")).unwrap().unwrap().unwrap();
    reconcile(&world, stack.clone());
    assert_ne!(world.object(&stack).unwrap()["metadata"]["deletionTimestamp"], Value::Null);
    assert!(world.events().iter().any(|event| event.contains("TTL has ended; Stack deleted")), "{:?}", world.events());

    // An admission policy may refuse it. No message fails.
    world.forbid("Stack");
    world.drive(reconciler(&world).delete_expired(&kept)).unwrap().unwrap();
    assert!(world.events().iter().any(|event| event.contains("the API server refused the deletion: ")), "{:?}", world.events());
}

#[test]
fn workspace_hint_is_passed_to_the_launcher() {
    let world = world(RECORDED);
    reconcile(&world, key("auto.pulumi.com/v1alpha1", "Workspace", "w"));
    assert_eq!(hinted(&world), (vec!["Workspace".into()], vec![]));
}

fn put(world: &World, kind: &str, namespace: &str, name: &str, labels: &Value, spec: &Value) {
    let metadata = json!({ "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "labels": labels });
    world.insert(json!({ "apiVersion": "pulumi.com/v1", "kind": kind, "metadata": metadata, "spec": spec, "program": {} }));
}

#[test]
fn spec_of_the_user_is_kept_with_empty_and_unknown_fields() {
    let world = World::new(0, Faults::NONE);
    let stack = key("pulumi.com/v1", "Stack", "s");
    let spec = json!({ "stack": "dev", "programRef": { "name": "p" }, "prerequisites": [], "envs": [], "later": { "a": 1 } });
    put(&world, "Stack", "n", "s", &json!({}), &spec);
    let requires = json!([{ "name": "s", "requirement": { "succeededWithinDuration": "1m" } }]);
    put(
        &world,
        "Stack",
        "n",
        "dependent",
        &json!({}),
        &json!({ "stack": "dev", "programRef": { "name": "p" }, "prerequisites": requires }),
    );
    let artifact =
        json!({ "digest": "sha256:00", "revision": "1", "path": "p", "url": "u", "lastUpdateTime": world.now().to_string() });
    world.insert(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": { "namespace": "n", "name": "p" }, "program": {},
        "status": { "observedGeneration": 1, "artifact": artifact },
    }));
    let as_written = |what: &str, finalizers: &Value| {
        let Value::Object(now) = world.object(&stack).unwrap() else { panic!("{what}") };
        let metadata = &now["metadata"];
        assert_eq!((&now["spec"], &metadata["generation"], &metadata["finalizers"]), (&spec, &json!(1), finalizers), "{what}");
        metadata["annotations"].clone()
    };
    reconcile(&world, stack.clone());
    as_written("it gets our finalizer", &json!([names::FINALIZER]));

    let mut old = world.object(&stack).unwrap();
    let ran = (world.now() - SignedDuration::from_hours(1)).to_string();
    old["status"]["lastUpdate"] = json!({ "name": "u", "generation": 1, "state": "succeeded", "lastResyncTime": ran });
    old["metadata"]["finalizers"] = json!(["other", names::FINALIZER]);
    old["metadata"]["annotations"] = json!({ "note": "one" });
    world.insert(old.clone());
    reconcile(&world, key("pulumi.com/v1", "Stack", "dependent"));
    let annotations = as_written("it is asked to run", &old["metadata"]["finalizers"]);
    assert_eq!(annotations, json!({ "note": "one", names::RECONCILIATION_REQUEST: "after-u" }));

    let mut deleted = world.object(&stack).unwrap();
    deleted["metadata"]["deletionTimestamp"] = world.now().to_string().into();
    world.insert(deleted);
    reconcile(&world, stack.clone());
    as_written("it loses our finalizer", &json!(["other"]));
}

/// The hints in the queue, and their delays in seconds.
fn booked(world: &World) -> Vec<(Hint, i64)> {
    let begin = world.now();
    let mut booked = Vec::new();
    while let Some(due) = world.next_due() {
        world.advance(due.duration_since(world.now()));
        while let Some(message) = world.receive() {
            if let Message::Hint(hint) = message {
                booked.push((hint, world.now().duration_since(begin).as_secs()));
            }
        }
    }
    booked
}

#[test]
fn timed_requeue_resets_hops_and_immediate_hint_counts_one() {
    let world = World::new(0, Faults::NONE);
    put(&world, "Stack", "n", "s", &json!({}), &json!({ "stack": "dev", "programRef": { "name": "p" } }));
    let stack = key("pulumi.com/v1", "Stack", "s");
    let last = Hint { hops: MAX_HOPS, ..Hint::new(stack.clone()) };
    take(&world, &last);
    assert_eq!(booked(&world), [(Hint::new(stack.clone()), 30)], "its source is not there");
    let away = || driftless_kubernetes::Error::Transient { call: "get".into(), message: "away".into() };
    let hint = Hint { hops: 3, ..last.clone() };
    world.drive(failed(&world, &hint, away().into(), world.now())).unwrap().unwrap();
    assert_eq!(booked(&world), [(Hint { hops: 4, ..hint.clone() }, 15)], "a cluster that is away");
    world.drive(failed(&world, &last, away().into(), world.now())).unwrap().unwrap();
    assert_eq!(booked(&world), [], "the sweep goes on with it");
    let denied = driftless_kubernetes::Error::Permanent { call: "connect".into(), message: "no such cluster".into() };
    assert!(world.drive(failed(&world, &hint, denied.into(), world.now())).unwrap().is_err());
}

#[test]
fn crash_at_any_call_loses_no_requeue() {
    let mut calls = 0;
    loop {
        let world = World::new(0, Faults::NONE);
        put(&world, "Stack", "n", "s", &json!({}), &json!({ "stack": "dev", "programRef": { "name": "p" } }));
        let hint = Hint::new(key("pulumi.com/v1", "Stack", "s"));
        world.crash_before_call(calls);
        let crashed = world.drive(reconciler(&world).handle(&hint)).is_none();
        if crashed {
            // SQS delivers the message again.
            take(&world, &hint);
        }
        assert_ne!(booked(&world), [], "after a crash before call {calls}");
        if !crashed {
            break;
        }
        calls += 1;
    }
    assert!(calls > 3, "{calls} calls");
}

/// A Stack after its reconciliation, which has to make fewer calls than this.
fn reconciled_within(world: &World, calls: u32, name: &str) -> Value {
    let stack = key("pulumi.com/v1", "Stack", name);
    world.crash_before_call(calls);
    reconcile(world, stack.clone());
    world.object(&stack).unwrap()
}

#[test]
fn prerequisites_of_a_stack_are_read_in_bounded_calls() {
    let world = World::new(0, Faults::NONE);
    let stack = |name: &str, requires: &dyn Fn(usize) -> String, count: usize| {
        let requires: Vec<_> = (0..count).map(|n| json!({ "name": requires(n) })).collect();
        let spec = json!({ "stack": "dev", "programRef": { "name": "p" }, "prerequisites": requires });
        put(&world, "Stack", "n", name, &json!({}), &spec);
    };
    put(&world, "Program", "n", "p", &json!({}), &json!({}));
    for layer in 0..4 {
        for n in 0..100 {
            stack(&format!("s{layer}-{n}"), &|n| format!("s{}-{n}", layer + 1), 100);
        }
    }
    stack("many", &|n| format!("s0-{n}"), 101);
    let stalled = reconciled_within(&world, 20, "many")["status"]["conditions"].to_string();
    assert!(stalled.contains("spec.prerequisites has 101 entries, the maximum is 100"), "{stalled}");
    stack("most", &|n| format!("s0-{n}"), 100);
    let mut most = reconciled_within(&world, 300, "most");
    assert!(!most["status"]["conditions"].to_string().contains("SpecInvalid"), "{most}");
    most["metadata"]["finalizers"] = json!(["other", names::FINALIZER]);
    most["metadata"]["deletionTimestamp"] = world.now().to_string().into();
    world.insert(most);
    assert_eq!(reconciled_within(&world, 20, "most")["metadata"]["finalizers"], json!(["other"]), "it goes, and waits for none");
}

#[test]
fn fields_of_pods_stall_a_stack_where_the_installation_ignores_none() {
    for (pod_fields, stalls) in [(PodFields::Ignore, false), (PodFields::Refuse, true)] {
        let world = World::new(0, Faults::NONE);
        let template = json!({ "spec": { "podTemplate": { "spec": { "nodeSelector": { "disk": "ssd" } } } } });
        let spec = json!({ "stack": "dev", "programRef": { "name": "p" }, "workspaceTemplate": template });
        put(&world, "Stack", "n", "s", &json!({}), &spec);
        let (mut reconciler, stack) = (reconciler(&world), key("pulumi.com/v1", "Stack", "s"));
        reconciler.settings.pod_fields = pod_fields;
        world.drive(reconciler.handle(&Hint::new(stack.clone()))).unwrap().unwrap();
        let conditions = world.object(&stack).unwrap()["status"]["conditions"].to_string();
        let words = "spec.workspaceTemplate.spec.podTemplate.spec.nodeSelector has no meaning on Fargate, and this installation";
        assert_eq!(conditions.contains(words), stalls, "{conditions}");
    }
}

#[test]
fn object_outside_the_namespace_filter_is_not_touched() {
    let history = Said { outcome: false, ours: false, ttl: Some("1m"), ..RECORDED };
    let theirs = Said { complete: false, current: true, ..history };
    for (said, launched) in [
        (history, false),
        (theirs, false),
        (RECORDED, false),
        // It may have started while the namespace filter included the namespace.
        (Said { complete: false, outcome: false, current: true, ..RECORDED }, true),
    ] {
        let world = world(said);
        world.label_namespace("n", "false");
        let stack = key("pulumi.com/v1", "Stack", "s");
        let mut deleted = world.object(&stack).unwrap();
        deleted["metadata"]["deletionTimestamp"] = world.now().to_string().into();
        world.insert(deleted);
        let before = world.cluster();
        for object in [
            stack,
            update_key(),
            key("pulumi.com/v1", "Program", "p"),
            key("auto.pulumi.com/v1alpha1", "Workspace", "w"),
            key("source.toolkit.fluxcd.io/v1", "GitRepository", "g"),
        ] {
            reconcile(&world, object);
        }
        let launches = launched.then(|| "Update".to_owned()).into_iter().collect();
        assert_eq!((world.cluster(), world.events(), hinted(&world)), (before, vec![], (launches, vec![])));
    }
}

#[test]
fn object_that_cannot_be_read_fails_no_message_and_stalls_its_stack() {
    let world = World::new(0, Faults::NONE);
    let unreadable = |api_version: &str, kind: &str, name: &str| {
        let metadata = json!({ "namespace": "n", "name": name });
        world.insert(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": 7, "program": 7 }));
        key(api_version, kind, name)
    };
    let said = |name: &str, spec: Value| {
        put(&world, "Stack", "n", name, &json!({}), &driftless_core::merge(json!({ "stack": name }), &spec));
        let stack = key("pulumi.com/v1", "Stack", name);
        reconcile(&world, stack.clone());
        world.object(&stack).unwrap()["status"]["conditions"].to_string()
    };
    let program = json!({ "programRef": { "name": "deep" } });
    unreadable("pulumi.com/v1", "Program", "deep");
    let stalled = said("s", program.clone());
    assert!(stalled.contains("SourceUnavailable") && stalled.contains("Program cannot be used: "), "{stalled}");

    put(&world, "Program", "n", "p", &json!({}), &json!({}));
    let stack = unreadable("pulumi.com/v1", "Stack", "unreadable");
    let requires = json!({ "programRef": { "name": "p" }, "prerequisites": [{ "name": "unreadable" }] });
    let goes_on = said("requiring", requires);
    assert!(goes_on.contains("fetching Program"), "{goes_on}");
    for object in [stack, unreadable("auto.pulumi.com/v1alpha1", "Update", "u")] {
        let before = world.object(&object);
        reconcile(&world, object.clone());
        assert_eq!(world.object(&object), before);
    }
}

#[test]
fn deleted_stack_leaves_no_stored_inputs() {
    let world = World::new(0, Faults::NONE);
    let stack = key("pulumi.com/v1", "Stack", "s");
    put(&world, "Stack", "n", "s", &json!({}), &json!({ "stack": "dev" }));
    let mut deleted = world.object(&stack).unwrap();
    deleted["metadata"]["finalizers"] = json!([names::FINALIZER]);
    deleted["metadata"]["deletionTimestamp"] = world.now().to_string().into();
    world.insert(deleted);
    let id = StackId { namespace: "n".into(), uid: "n-s".into() };
    for key in [&*keys::inputs(CLUSTER, &id.uid), &*keys::sealed(CLUSTER, &id)] {
        world.drive(Objects::put(&world, key, b"{}".to_vec())).unwrap().unwrap();
    }
    reconcile(&world, stack.clone());
    assert!(world.object(&stack).is_none() && world.objects().is_empty(), "{:?}", world.objects().keys());
}

#[test]
fn lost_fetch_request_is_sent_again_after_30_seconds() {
    let world = World::new(0, Faults::NONE);
    let spec = json!({ "stack": "dev", "projectRepo": "https://git.example.com/acme/shop", "branch": "main" });
    put(&world, "Stack", "n", "s", &json!({}), &spec);
    for seconds in [0, 30] {
        world.advance(SignedDuration::from_secs(seconds));
        reconcile(&world, key("pulumi.com/v1", "Stack", "s"));
        let delivered: Vec<_> = std::iter::from_fn(|| world.receive()).collect();
        assert!(delivered.iter().any(|message| matches!(message, Message::Fetch(_))), "after {seconds} s: {delivered:?}");
    }
}
