use driftless_api::names;
use driftless_testkit::{CLUSTER, Faults, Message, World};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

const SYSTEM: &str = "driftless";
/// What our reconciler writes into an Update.
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

fn look(world: &World, object: ObjectKey) {
    let retention = Retention { keep: SignedDuration::from_hours(48), grace: SignedDuration::from_hours(24) };
    let settings = Settings { system_namespace: SYSTEM, retention, resync_seconds: 600 };
    let ports = Ports { cluster: world, objects: world, queues: world, settings };
    world.drive(handle(&ports, &Hint::new(object), world.now())).unwrap().unwrap();
}

/// The kinds that were hinted: to the launcher, and to us.
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

/// An Update as somebody says that it is.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so or not, whatever the others are")]
struct Said {
    /// By its status, an hour ago.
    complete: bool,
    finalizer: bool,
    of_stack: bool,
    ours: bool,
    /// The Stack names it.
    current: bool,
    /// The bucket says that its run is over.
    outcome: bool,
    ttl: Option<&'static str>,
}

const RECORDED: Said =
    Said { complete: true, finalizer: true, of_stack: true, ours: true, current: false, outcome: true, ttl: None };

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
            "finalizers": said.finalizer.then_some(names::FINALIZER).into_iter().collect::<Vec<_>>(),
            "ownerReferences": said.of_stack.then_some(owner).into_iter().collect::<Vec<_>>(),
        },
        "spec": { "type": "up", "ttlAfterCompleted": said.ttl, "driftless": said.ours.then_some(ours) },
        "status": { "conditions": said.complete.then_some(condition).into_iter().collect::<Vec<_>>() },
    }));
    if said.outcome {
        let outcome = format!("{}outcome", keys::run(CLUSTER, "uid"));
        world.drive(world.put(&outcome, b"{}".to_vec())).unwrap().unwrap();
    }
    world
}

#[test]
fn what_an_update_says_of_itself_is_believed_only_where_it_is_history() {
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
        look(&world, update_key());
        let of = |kind: &str, is: bool| is.then(|| kind.to_owned()).into_iter().collect::<Vec<_>>();
        assert_eq!(hinted(&world), (of("Update", launched), of("Stack", told)), "{what}");
        let finalizers = world.object(&update_key()).unwrap()["metadata"]["finalizers"].to_string();
        assert_eq!(finalizers.contains(names::FINALIZER), kept, "{what}");
    }
    let released = world(Said { finalizer: false, outcome: false, ..by_hand });
    look(&released, update_key());
    assert_eq!(hinted(&released), (vec![], vec![]), "long ago");
}

#[test]
fn a_stacks_update_runs_although_its_status_says_that_it_is_complete() {
    let world = world(Said { current: true, outcome: false, finalizer: false, ..RECORDED });
    look(&world, update_key());
    assert_eq!(hinted(&world), (vec![], vec!["Stack".into()]));
    look(&world, key("pulumi.com/v1", "Stack", "s"));
    assert_eq!(hinted(&world).0, ["Update"]);
    assert!(world.object(&update_key()).is_some());
}

#[test]
fn an_update_that_is_deleted_while_it_runs_is_looked_at_at_once() {
    for of_stack in [true, false] {
        for complete in [true, false] {
            let said = Said { current: of_stack, ours: of_stack, of_stack, outcome: false, complete, ..RECORDED };
            let world = world(Said { ttl: Some("1m"), ..said });
            let mut update = world.object(&update_key()).unwrap();
            update["metadata"]["deletionTimestamp"] = world.now().to_string().into();
            world.insert(update);
            look(&world, update_key());
            assert_eq!(hinted(&world).0, ["Update"]);
            assert!(world.object(&update_key()).is_some(), "its run is not over");
        }
    }
}

#[test]
fn an_update_is_deleted_when_its_time_is_over() {
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
        look(&world, update_key());
        assert_eq!(world.object(&update_key()).is_some(), kept, "{what}");
    }
}

#[test]
fn a_workspace_is_the_launchers() {
    let world = world(RECORDED);
    look(&world, key("auto.pulumi.com/v1alpha1", "Workspace", "w"));
    assert_eq!(hinted(&world), (vec!["Workspace".into()], vec![]));
}
