//! The guarantees of [`Queues`], and of the messages that AWS itself sends to `runs`.

use anyhow::{Result, ensure};
use driftless_aws::{BATCH, Error, Objects, Queues};
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, RunHint, RunMessage, TaskHint, VERSION, keys};

use crate::Message;

/// The queues, and the bucket that sends to one of them.
pub trait Fixture {
    /// The implementation.
    type Port: Queues;
    /// The bucket.
    type Bucket: Objects;

    /// The implementation.
    fn port(&self) -> &Self::Port;

    /// The bucket.
    fn bucket(&self) -> &Self::Bucket;

    /// Receives all available messages from the queues, in the order of delivery.
    fn receive(&self) -> impl Future<Output = Result<Vec<Message>>>;
}

suite! {
    message_arrives_as_it_was_sent
    delayed_message_cannot_be_received_yet
    delay_of_more_than_900_seconds_is_refused
    same_hint_twice_arrives_twice
    batch_has_one_to_ten_hints
    fetch_with_the_same_deduplication_is_swallowed
    handled_fetch_still_swallows_its_duplicate
    deduplication_is_of_one_source
    fetches_of_a_source_arrive_in_order
    report_of_a_task_is_told_to_the_recorder
}

fn object(kind: &str, namespace: &str, name: &str) -> ObjectKey {
    let [cluster, api_version, kind, namespace, name] = ["contract", "pulumi.com/v1", kind, namespace, name].map(String::from);
    ObjectKey { cluster, api_version, kind, namespace, name }
}

fn hint(name: &str) -> Hint {
    Hint::new(object("Stack", "n", name))
}

fn fetch(namespace: &str, name: &str, hops: u8) -> FetchRequest {
    FetchRequest::fetch(object("Program", namespace, name), hops)
}

/// Standard queues deliver messages in any order.
fn sorted(messages: &[Message]) -> Vec<String> {
    let mut messages: Vec<_> = messages.iter().map(|message| format!("{message:?}")).collect();
    messages.sort();
    messages
}

/// Fails unless exactly these messages can be received.
async fn received<F: Fixture>(fixture: &F, expected: &[Message]) -> Result<()> {
    let (received, expected) = (sorted(&fixture.receive().await?), sorted(expected));
    ensure!(received == expected, "received {received:#?}, expected {expected:#?}");
    Ok(())
}

async fn message_arrives_as_it_was_sent<F: Fixture>(fixture: &F) -> Result<()> {
    let queues = fixture.port();
    fixture.receive().await?;
    let hint = Hint { revision: Some("main@sha1:0".into()), ..hint("one") };
    let launch = LaunchHint { version: VERSION, update: object("Update", "n", "u"), hops: 1 };
    let run = RunHint { version: VERSION, update: object("Update", "n", "u"), uid: Some("uid".into()), hops: 2 };
    let task = TaskHint { version: VERSION, task: "arn:aws:ecs:task".into() };
    queues.hint(&hint, 0).await?;
    ensure!(queues.hints(&[self::hint("two"), self::hint("three")]).await?.is_empty());
    queues.launch(&launch, 0).await?;
    queues.run(&run, 0).await?;
    queues.task(&task).await?;
    queues.fetch(&fetch("n", "arrives", 0), "arrives").await?;
    let expected = [
        Message::Hint(hint),
        Message::Hint(self::hint("two")),
        Message::Hint(self::hint("three")),
        Message::Launch(launch),
        Message::Run(RunMessage::Hint(run)),
        Message::Run(RunMessage::Live { task: task.task }),
        Message::Fetch(fetch("n", "arrives", 0)),
    ];
    received(fixture, &expected).await
}

async fn delayed_message_cannot_be_received_yet<F: Fixture>(fixture: &F) -> Result<()> {
    let queues = fixture.port();
    fixture.receive().await?;
    let update = object("Update", "n", "delayed");
    queues.hint(&hint("delayed"), 900).await?;
    queues.launch(&LaunchHint { version: VERSION, update: update.clone(), hops: 0 }, 900).await?;
    queues.run(&RunHint { version: VERSION, update, uid: None, hops: 0 }, 900).await?;
    received(fixture, &[]).await
}

async fn delay_of_more_than_900_seconds_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    let refused = fixture.port().hint(&hint("late"), 901).await;
    ensure!(matches!(refused, Err(Error::Permanent { .. })), "{refused:?}");
    Ok(())
}

async fn same_hint_twice_arrives_twice<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    for _ in 0..2 {
        fixture.port().hint(&hint("twice"), 0).await?;
    }
    received(fixture, &[Message::Hint(hint("twice")), Message::Hint(hint("twice"))]).await
}

async fn batch_has_one_to_ten_hints<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    let hints: Vec<_> = (0..=BATCH).map(|n| hint(&format!("batch-{n}"))).collect();
    for refused in [&hints[..], &[]] {
        let answer = fixture.port().hints(refused).await;
        ensure!(matches!(answer, Err(Error::Permanent { .. })), "{} hints: {answer:?}", refused.len());
    }
    ensure!(fixture.port().hints(&hints[..BATCH]).await?.is_empty());
    received(fixture, &hints[..BATCH].iter().cloned().map(Message::Hint).collect::<Vec<_>>()).await
}

async fn fetch_with_the_same_deduplication_is_swallowed<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    for (hops, deduplication) in [(0, "first"), (1, "first"), (2, "second")] {
        fixture.port().fetch(&fetch("n", "same", hops), deduplication).await?;
    }
    received(fixture, &[0, 2].map(|hops| Message::Fetch(fetch("n", "same", hops)))).await
}

async fn handled_fetch_still_swallows_its_duplicate<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    let request = fetch("n", "handled", 0);
    fixture.port().fetch(&request, "handled").await?;
    received(fixture, &[Message::Fetch(request.clone())]).await?;
    fixture.port().fetch(&request, "handled").await?;
    received(fixture, &[]).await
}

async fn deduplication_is_of_one_source<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    let requests = ["a", "b"].map(|namespace| fetch(namespace, "shared", 0));
    for request in &requests {
        fixture.port().fetch(request, "shared").await?;
    }
    received(fixture, &requests.map(Message::Fetch)).await
}

async fn fetches_of_a_source_arrive_in_order<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    let requests: Vec<_> = (0..5).map(|hops| fetch("n", "ordered", hops)).collect();
    for request in &requests {
        fixture.port().fetch(request, &format!("ordered {}", request.hops)).await?;
    }
    let received = fixture.receive().await?;
    ensure!(received == requests.into_iter().map(Message::Fetch).collect::<Vec<_>>(), "{received:#?}");
    Ok(())
}

async fn report_of_a_task_is_told_to_the_recorder<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.receive().await?;
    let task = keys::task("AROA", "contract");
    let key = |name: &str| format!("{task}{name}");
    for name in ["out/progress", "out/result", "out/lock", "in/spec"] {
        fixture.bucket().put_new(&key(name), b"{}".into()).await?;
    }
    let told = ["out/progress", "out/result"].map(|name| Message::Run(RunMessage::Objects(vec![key(name)])));
    received(fixture, &told).await
}
