use std::collections::BTreeMap;

use driftless_aws::{Objects, Queues as _, Started, TaskState, Tasks};
use driftless_contract::{FetchRequest, Hint, Launch, RunId, VERSION};
use driftless_core::{StopCode, TaskEnd};
use driftless_kubernetes::{Cluster, Error, Page};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::json;

use super::*;

fn object(kind: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: CLUSTER.into(),
        api_version: "pulumi.com/v1".into(),
        kind: kind.into(),
        namespace: "n".into(),
        name: name.into(),
    }
}

fn secret(value: &str) -> Secret {
    let mut secret = Secret { data: Some(BTreeMap::from([("k".into(), ByteString(value.into()))])), ..Secret::default() };
    (secret.metadata.namespace, secret.metadata.name) = (Some("n".into()), Some("s".into()));
    secret
}

async fn secret_of(world: &World) -> Result<Option<Secret>, Error> {
    Cluster::get(world, "n", "s").await
}

fn quiet() -> World {
    World::new(0, Faults::NONE)
}

#[test]
fn a_write_over_another_version_is_a_conflict() {
    let world = quiet();
    let result: Result<(), Error> = world
        .drive(async {
            let first = world.create(&secret("a")).await?;
            assert!(matches!(world.create(&secret("b")).await, Err(Error::Conflict { .. })));
            let second = world.replace(&Secret { data: secret("b").data, ..first.clone() }).await?;
            assert!(matches!(world.replace(&first).await, Err(Error::Conflict { .. })));
            assert!(matches!(Cluster::delete(&world, &first).await, Err(Error::Conflict { .. })));
            Cluster::delete(&world, &second).await?;
            assert_eq!(secret_of(&world).await?, None);
            assert!(matches!(world.replace(&second).await, Err(Error::Conflict { .. })));
            Cluster::delete(&world, &second).await
        })
        .unwrap();
    result.unwrap();
}

#[test]
fn a_finalizer_keeps_a_deleted_object_until_it_is_taken_away() {
    let world = quiet();
    let result: Result<(), Error> = world
        .drive(async {
            let mut held = secret("a");
            held.metadata.finalizers = Some(vec!["driftless.dev/test".into()]);
            let held = world.create(&held).await?;
            Cluster::delete(&world, &held).await?;
            let mut held = secret_of(&world).await?.unwrap();
            assert!(held.metadata.deletion_timestamp.is_some());
            held.metadata.finalizers = None;
            world.replace(&held).await?;
            assert_eq!(secret_of(&world).await?, None);
            world.terminate_namespace("n");
            assert!(matches!(world.create(&secret("b")).await, Err(Error::NamespaceTerminating { .. })));
            Ok(())
        })
        .unwrap();
    result.unwrap();
}

#[test]
fn a_namespace_has_a_service_account_until_it_terminates() {
    let world = quiet();
    let token = |name| world.drive(world.service_account_token("n", name, None, 600)).unwrap();
    assert_eq!(token("default").unwrap().1, world.now() + SignedDuration::from_mins(10));
    assert!(matches!(token("other"), Err(Error::Permanent { .. })));
    world.terminate_namespace("n");
    assert!(matches!(token("default"), Err(Error::NamespaceTerminating { .. })));
}

#[test]
fn field_selectors_choose_by_path() {
    let world = quiet();
    for (name, program) in [("a", "x"), ("b", "y"), ("c", "x")] {
        world.insert(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "n", "name": name, "labels": { "program": program } },
        }));
    }
    let names = |selector: &str| {
        let secrets: Page<Secret> = world.drive(world.page(Some("n"), Some(selector), None)).unwrap().unwrap();
        secrets.objects.into_iter().filter_map(|secret| secret.metadata.name).collect::<Vec<_>>()
    };
    assert_eq!(names("metadata.labels.program=x"), ["a", "c"]);
    assert_eq!(names("metadata.labels.program=x,metadata.name!=a"), ["c"]);
    assert_eq!(world.written().len(), 3);
}

#[test]
fn a_delayed_message_comes_when_it_is_due_and_a_fifo_group_keeps_its_order() {
    let world = quiet();
    let fetch = |name| FetchRequest { version: VERSION, source: object("Program", name), collect: false, hops: 0 };
    let hint = Hint::new(object("Stack", "s"));
    world
        .drive(async {
            world.hint(&hint, 60).await?;
            world.fetch(&FetchRequest { hops: 1, ..fetch("p") }, "1").await?;
            world.fetch(&FetchRequest { hops: 2, ..fetch("p") }, "2").await?;
            world.fetch(&FetchRequest { hops: 3, ..fetch("p") }, "2").await
        })
        .unwrap()
        .unwrap();
    let hops = |message| match message {
        Some(Message::Fetch(request)) => request.hops,
        other => panic!("not a fetch request: {other:?}"),
    };
    assert_eq!(hops(world.receive()), 1);
    world.put_back(Message::Fetch(FetchRequest { hops: 1, ..fetch("p") }));
    assert_eq!(world.receive(), None, "what was put back blocks its group");
    world.advance(SignedDuration::from_secs(30));
    assert_eq!((hops(world.receive()), hops(world.receive())), (1, 2));
    assert_eq!(world.receive(), None, "the third was the second once more");
    world.advance(world.next_due().unwrap().duration_since(world.now()));
    assert_eq!(world.receive(), Some(Message::Hint(hint)));
}

#[test]
fn a_client_token_is_forgotten_an_hour_after_its_task_ended() {
    let world = quiet();
    let run = RunId { update: object("Update", "u"), uid: "uid".into(), claim: "claim".into() };
    let launch = Launch {
        version: VERSION,
        run,
        attempt: 0,
        task_definition: "d".into(),
        project: None,
        inputs: None,
        preview: false,
        refused: None,
        spot: true,
        tried: None,
        size: None,
        request: None,
        at: world.now(),
    };
    let start = || match world.drive(Tasks::run(&world, &launch)).unwrap().unwrap() {
        Started::Task { arn } => arn,
        Started::Refused { why } => panic!("{why}"),
    };
    let state = |arn: &str| world.drive(Tasks::state(&world, arn)).unwrap().unwrap();
    let first = start();
    assert_eq!(start(), first);
    world.end_task(&first, "done");
    assert_eq!(start(), first);
    let end = TaskEnd { code: Some(StopCode::Exited), words: "done".into(), ..TaskEnd::default() };
    assert_eq!(state(&first), TaskState::Stopped { end });
    world.advance(SignedDuration::from_mins(61));
    assert_ne!(start(), first);
    assert_eq!(state(&first), TaskState::Missing);
}

#[test]
fn a_crash_leaves_what_was_done_and_a_lost_answer_was_done() {
    let world = quiet();
    let process = async || {
        world.put("a", vec![]).await?;
        world.put("b", vec![]).await
    };
    world.crash_before_call(1);
    assert!(world.drive(process()).is_none());
    assert_eq!(world.objects().into_keys().collect::<Vec<_>>(), ["a"]);
    world.set_faults(Faults { lost_answer: 1000, ..Faults::NONE });
    assert!(world.drive(process()).unwrap().is_err());
    assert!(world.drive(world.put("b", vec![])).unwrap().is_err());
    assert_eq!(world.objects().into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let faults = Faults { crash: 100, transient: 200, lost_answer: 200, ..Faults::NONE };
    let history = |seed| {
        let world = World::new(seed, faults);
        (0..50).map(|_| world.drive(world.put("k", vec![])).map(|put| put.is_ok())).collect::<Vec<_>>()
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}
