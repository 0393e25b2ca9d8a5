use driftless_aws::{Objects as _, Queues as _};
use driftless_contract::{FetchRequest, Hint, ObjectKey};
use jiff::SignedDuration;

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

fn quiet() -> World {
    World::new(0, Faults::NONE)
}

#[test]
fn delayed_message_arrives_when_due_and_fifo_keeps_order() {
    let world = quiet();
    let fetch = |name| FetchRequest::fetch(object("Program", name), 0);
    let hint = Hint::new(object("Stack", "s"));
    world
        .drive(async {
            world.hint(&hint, 60).await?;
            world.fetch(&FetchRequest { hops: 1, ..fetch("p") }, "1").await?;
            world.fetch(&FetchRequest { hops: 2, ..fetch("p") }, "2").await
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
    assert_eq!(world.receive(), None);
    world.advance(world.next_due().unwrap().duration_since(world.now()));
    assert_eq!(world.receive(), Some(Message::Hint(hint)));
}

/// The rest is in [`contract::queues`], where five minutes cannot pass.
#[test]
fn deduplication_ends_five_minutes_after_the_message_that_was_delivered() {
    let world = quiet();
    let request = FetchRequest::fetch(object("Program", "p"), 0);
    let delivered = [0, 4, 4].map(|minutes| {
        world.advance(SignedDuration::from_mins(minutes));
        world.drive(world.fetch(&request, "same")).unwrap().unwrap();
        world.receive().is_some()
    });
    assert_eq!(delivered, [true, false, true]);
}

#[test]
fn crash_keeps_earlier_effects_and_lost_answer_its_own() {
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
