use std::{
    collections::HashSet,
    fmt,
    time::{Duration, SystemTime},
};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use driftless_contract::InvalidMessage;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use crate::dead_letters::{Cause, DeadLetters, group, sent};

/// Reserved at the end of an invocation for dead letters and the response, a half each.
const MARGIN: Duration = Duration::from_secs(2);

/// The number of messages of a batch that are handled concurrently, so that one that waits for a
/// dead cluster delays no other. Each may hold a page of 500 objects, some 40 MiB, and a function
/// has 256 MiB.
const AT_ONCE: usize = 4;

/// Handles a batch of an SQS event source. Returns the messages that SQS should deliver again: each
/// that failed, that cannot be read or for which no time was left, and every later one of the same
/// FIFO group. Messages of a standard queue are handled concurrently, those of a FIFO queue one
/// after another. A message whose attempts are used up is moved to `dead_letters` instead.
///
/// `absorb(kept, other)` merges two messages with the same request and returns whether it did; they
/// are handled once. `handle` is stopped at its next `await` when the invocation's time is up,
/// which has to be as harmless as a crash at that point.
pub async fn batch<M, E: fmt::Display>(
    event: SqsEvent,
    dead_letters: &DeadLetters,
    deadline: SystemTime,
    parse: impl Fn(&str) -> Result<M, InvalidMessage>,
    absorb: impl Fn(&mut M, &M) -> bool,
    handle: impl AsyncFn(M) -> Result<(), E>,
) -> SqsBatchResponse {
    batch_sent(event, dead_letters, deadline, |body, _| parse(body), absorb, handle).await
}

/// The same, with the time at which each message was sent.
pub async fn batch_sent<M, E: fmt::Display>(
    event: SqsEvent,
    dead_letters: &DeadLetters,
    deadline: SystemTime,
    parse: impl Fn(&str, Option<Timestamp>) -> Result<M, InvalidMessage>,
    absorb: impl Fn(&mut M, &M) -> bool,
    handle: impl AsyncFn(M) -> Result<(), E>,
) -> SqsBatchResponse {
    let deadline = instant(deadline);
    let mut answer = Answer::default();
    // Boxed, because the compiler would otherwise lay out every call below as one value.
    let attempt = async |message, records: &[SqsMessage]| {
        if Instant::now() >= deadline {
            // It did not fail itself.
            return Err((None, "the invocation ran out of time before it".into()));
        }
        let attempt = async {
            for record in records {
                if dead_letters.has_crashed(record, now()).await {
                    return Err((Some(Cause::Crashed), "its earlier attempts ended without a response".into()));
                }
            }
            handle(message).await.map_err(|error| (Some(Cause::Failed), error.to_string()))
        };
        let timed_out = |_| Err((Some(Cause::TimedOut), "the invocation ran out of time".into()));
        timeout_at(deadline, Box::pin(attempt)).await.unwrap_or_else(timed_out)
    };
    let messages = distinct(event, parse, absorb, &mut answer);
    let (ordered, free): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|(_, records)| records.iter().any(|record| group(record).is_some()));
    let free = free.into_iter().map(async |(message, records)| {
        let result = attempt(message, &records).await;
        (records, result)
    });
    let mut handled = stream::iter(free).buffer_unordered(AT_ONCE);
    while let Some((records, result)) = handled.next().await {
        if let Err((cause, error)) = result {
            answer.fail(records, cause, &error);
        }
    }
    for (message, records) in ordered {
        if answer.is_blocked(&records) {
            answer.fail(records, None, "an earlier message of the group failed");
        } else if let Err((cause, error)) = attempt(message, &records).await {
            answer.fail(records, cause, &error);
        }
    }
    answer.response(dead_letters, deadline + MARGIN / 2).await
}

/// The messages in the order of their first records, each with all its records. An unreadable
/// message counts as failed.
fn distinct<M>(
    event: SqsEvent,
    parse: impl Fn(&str, Option<Timestamp>) -> Result<M, InvalidMessage>,
    absorb: impl Fn(&mut M, &M) -> bool,
    answer: &mut Answer,
) -> Vec<(M, Vec<SqsMessage>)> {
    let mut messages: Vec<(M, Vec<SqsMessage>)> = Vec::new();
    for record in event.records {
        match parse(record.body.as_deref().unwrap_or_default(), sent(&record)) {
            Ok(message) => match messages.iter_mut().find_map(|(kept, records)| absorb(kept, &message).then_some(records)) {
                Some(records) => records.push(record),
                None => messages.push((message, vec![record])),
            },
            Err(error) => answer.fail(vec![record], Some(Cause::Unreadable), &error),
        }
    }
    messages
}

#[derive(Default)]
struct Answer {
    /// The failed records. Those without a cause did not fail themselves: an earlier message of
    /// their group did, or no time was left for them.
    failed: Vec<(SqsMessage, Option<Cause>)>,
    blocked: HashSet<String>,
}

impl Answer {
    fn is_blocked(&self, records: &[SqsMessage]) -> bool {
        records.iter().filter_map(group).any(|group| self.blocked.contains(group))
    }

    fn fail(&mut self, records: Vec<SqsMessage>, cause: Option<Cause>, why: &(impl fmt::Display + ?Sized)) {
        for record in records {
            tracing::error!(message.id = record.message_id, error = %why, "a message failed");
            self.blocked.extend(group(&record).cloned());
            self.failed.push((record, cause));
        }
    }

    /// The records to deliver again, after the others have become dead letters. A dead letter that
    /// is not sent by the deadline is delivered again.
    async fn response(self, dead_letters: &DeadLetters, deadline: Instant) -> SqsBatchResponse {
        let mut response = SqsBatchResponse::default();
        for (record, cause) in self.failed {
            let moved = async { matches!(cause, Some(cause) if dead_letters.takes(&record, cause).await) };
            if !timeout_at(deadline, moved).await.unwrap_or(false) {
                // Without an id the whole batch counts as failed, which is right: it is not from
                // SQS.
                response.add_failure(record.message_id.unwrap_or_default());
            }
        }
        response
    }
}

#[expect(clippy::disallowed_methods, reason = "a clock adapter: Lambda tells the deadline in wall time")]
fn instant(deadline: SystemTime) -> Instant {
    Instant::now() + deadline.duration_since(SystemTime::now()).unwrap_or_default().saturating_sub(MARGIN)
}

#[expect(clippy::disallowed_methods, reason = "a clock adapter: SQS tells when a message was sent in wall time")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the deadline is in wall time")]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeSet,
        fs,
        future::pending,
        path::Path,
        sync::{Arc, Mutex},
    };

    use aws_config::{BehaviorVersion, SdkConfig};
    use driftless_contract::{Document as _, FetchRequest, Hint, LaunchHint, ObjectKey, VERSION, parse_run_message, to_json};
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;
    use crate::{Bucket, sdk::tests::service};

    fn hint(name: &str, hops: u8) -> LaunchHint {
        let key = ObjectKey {
            cluster: "c".into(),
            api_version: "v1".into(),
            kind: "Update".into(),
            namespace: "n".into(),
            name: name.into(),
        };
        LaunchHint { version: VERSION, update: key, hops }
    }

    /// Records `0`, `1`, … of (FIFO group, body).
    fn event(records: &[(Option<&str>, String)]) -> SqsEvent {
        let record = |(id, (group, body)): (usize, &(Option<&str>, String))| {
            let attributes = group.map_or_else(|| json!({}), |group| json!({ "MessageGroupId": group, "SequenceNumber": "1" }));
            json!({ "messageId": id.to_string(), "body": body, "attributes": attributes })
        };
        serde_json::from_value(json!({ "Records": records.iter().enumerate().map(record).collect::<Vec<_>>() })).unwrap()
    }

    fn absorb(kept: &mut LaunchHint, other: &LaunchHint) -> bool {
        kept.update == other.update
    }

    /// Handles the batch with 60 s left. Returns the handled names and the failed ids.
    async fn run(event: SqsEvent, handle: impl AsyncFn(&str) -> Result<(), &'static str>) -> (Vec<String>, Vec<String>) {
        let config = SdkConfig::builder().behavior_version(BehaviorVersion::v2026_01_12()).build();
        run_with(&dead_letters(&config), event, handle).await
    }

    fn dead_letters(config: &SdkConfig) -> DeadLetters {
        DeadLetters::new(config, Bucket::new(config, "b".into()), "https://sqs/1/d".into(), 5)
    }

    async fn run_with(
        dead_letters: &DeadLetters,
        event: SqsEvent,
        handle: impl AsyncFn(&str) -> Result<(), &'static str>,
    ) -> (Vec<String>, Vec<String>) {
        let handled = RefCell::new(Vec::new());
        let look = async |hint: LaunchHint| {
            handled.borrow_mut().push(hint.update.name.clone());
            handle(&hint.update.name).await
        };
        let deadline = SystemTime::now() + Duration::from_mins(1);
        let response = batch(event, dead_letters, deadline, |body| LaunchHint::parse(body.as_bytes()), absorb, look).await;
        let failed = response.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect();
        (handled.into_inner(), failed)
    }

    #[test]
    fn every_sample_of_a_queue_is_read() {
        let hint = |body: &str| Hint::parse(body.as_bytes()).map(drop);
        let fetch = |body: &str| FetchRequest::parse(body.as_bytes()).map(drop);
        let launch = |body: &str| LaunchHint::parse(body.as_bytes()).map(drop);
        let run = |body: &str| parse_run_message(body).map(drop);
        for (function, read) in
            [("reconciler", &hint as &dyn Fn(&str) -> _), ("fetcher", &fetch), ("launcher", &launch), ("recorder", &run)]
        {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../events").join(function);
            let mut records = 0;
            for file in fs::read_dir(folder).unwrap() {
                let file = file.unwrap().path();
                let event: SqsEvent = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
                for record in &event.records {
                    let read: Result<(), InvalidMessage> = read(record.body.as_deref().unwrap());
                    read.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                    assert!(record.message_id.is_some());
                    assert_eq!(group(record).is_some(), function == "fetcher");
                    records += 1;
                }
            }
            assert!(records > 1, "{function}");
        }
    }

    #[tokio::test]
    async fn duplicate_messages_are_handled_once() {
        let event = event(&[(None, to_json(&hint("a", 0))), (None, to_json(&hint("b", 0))), (None, to_json(&hint("a", 3)))]);
        let (handled, failed) = run(event, async |name| if name == "a" { Err("no") } else { Ok(()) }).await;
        assert_eq!(handled, ["a", "b"]);
        assert_eq!(failed, ["0", "2"], "every record of the one that failed");
    }

    #[tokio::test]
    async fn a_message_that_cannot_be_read_fails_alone() {
        let (handled, failed) = run(event(&[(None, "{}".into()), (None, to_json(&hint("a", 0)))]), async |_| Ok(())).await;
        assert_eq!(handled, ["a"]);
        assert_eq!(failed, ["0"]);
    }

    #[tokio::test]
    async fn after_a_failure_the_rest_of_its_fifo_group_fails_too() {
        let records =
            [("g", "a"), ("h", "b"), ("g", "c"), ("h", "d")].map(|(group, name)| (Some(group), to_json(&hint(name, 0))));
        let (handled, failed) = run(event(&records), async |name| if name == "a" { Err("no") } else { Ok(()) }).await;
        assert_eq!(handled, ["a", "b", "d"]);
        assert_eq!(failed, ["0", "2"]);
    }

    #[tokio::test]
    async fn failure_on_a_standard_queue_fails_no_other_message_of_its_namespace() {
        let mut event = event(&[(Some("g"), to_json(&hint("a", 0))), (Some("g"), to_json(&hint("b", 0)))]);
        for record in &mut event.records {
            record.attributes.remove("SequenceNumber");
        }
        let (handled, failed) = run(event, async |name| if name == "a" { Err("no") } else { Ok(()) }).await;
        assert_eq!(handled, ["a", "b"]);
        assert_eq!(failed, ["0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn message_that_hangs_fails_alone() {
        let event = event(&["a", "b", "c", "d", "e", "f"].map(|name| (None, to_json(&hint(name, 0)))));
        let begin = Instant::now();
        let (_, failed) = run(event, async |name| {
            if name == "a" {
                pending::<()>().await;
            }
            sleep(Duration::from_secs(3)).await;
            Ok(())
        })
        .await;
        assert_eq!(failed, ["0"]);
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn few_messages_of_a_standard_queue_are_handled_at_once() {
        let event = event(&["a", "b", "c", "d", "e", "f"].map(|name| (None, to_json(&hint(name, 0)))));
        let begin = Instant::now();
        let (open, most) = (Cell::new(0), Cell::new(0));
        let (_, failed) = run(event, async |_| {
            open.set(open.get() + 1);
            most.set(most.get().max(open.get()));
            sleep(Duration::from_secs(3)).await;
            open.set(open.get() - 1);
            Ok(())
        })
        .await;
        assert_eq!((most.get(), begin.elapsed().as_secs(), failed.len()), (AT_ONCE, 6, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_of_a_fifo_queue_are_handled_in_order() {
        let event = event(&["c", "a", "b"].map(|name| (Some(name), to_json(&hint(name, 0)))));
        let begin = Instant::now();
        let (handled, failed) = run(event, async |_| {
            sleep(Duration::from_secs(3)).await;
            Ok(())
        })
        .await;
        assert_eq!((handled, failed.len(), begin.elapsed().as_secs()), (["c", "a", "b"].map(String::from).to_vec(), 0, 9));
    }

    #[tokio::test(start_paused = true)]
    async fn message_without_time_fails_before_the_lambda_timeout() {
        let event = event(&[(None, to_json(&hint("a", 0))), (None, to_json(&hint("b", 0)))]);
        let begin = Instant::now();
        let (_, failed) = run(event, async |_| pending().await).await;
        assert_eq!(failed, ["0", "1"]);
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn message_without_time_left_is_redelivered() {
        let aws = Aws::default();
        let mut event = event(&["a", "b", "c", "d", "e"].map(|name| (None, to_json(&hint(name, 0)))));
        event.records[4].attributes.insert("ApproximateReceiveCount".into(), "9".into());
        aws.has_attempts("4", 5);
        let (handled, failed) = run_with(&dead_letters(&aws.config().await), event, async |_| pending().await).await;
        assert_eq!((handled, failed.len(), aws.letters().len()), (["a", "b", "c", "d"].map(String::from).to_vec(), 5, 0));
        assert_eq!(aws.attempts("4"), 5, "it did not begin");
    }

    /// The bucket and the dead-letter queue.
    #[derive(Clone, Default)]
    struct Aws {
        keys: Arc<Mutex<BTreeSet<String>>>,
        letters: Arc<Mutex<Vec<Value>>>,
        /// The status of all answers of S3 and of SQS, if they fail.
        failing: Option<(u16, u16)>,
    }

    impl Aws {
        async fn config(&self) -> SdkConfig {
            let aws = self.clone();
            let (s3, sqs) = self.failing.unwrap_or((200, 200));
            let answer = move |head: &str, body: &str| {
                let target = head.split(' ').nth(1).unwrap();
                if let Some((_, prefix)) = target.split_once("prefix=") {
                    let prefix = prefix.split('&').next().unwrap().replace("%2f", "/");
                    let keys = aws.keys.lock().unwrap();
                    let item =
                        |key| format!("<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>");
                    let items: String = keys.iter().filter(|key| key.starts_with(&prefix)).map(item).collect();
                    (s3, format!("<ListBucketResult>{items}</ListBucketResult>"))
                } else if let Some((_, key)) = target.split_once("/b/") {
                    aws.keys.lock().unwrap().extend((s3 == 200).then(|| key.split('?').next().unwrap().to_owned()));
                    (s3, String::new())
                } else {
                    aws.letters.lock().unwrap().push(serde_json::from_str(body).unwrap());
                    (sqs, r#"{ "MessageId": "m" }"#.into())
                }
            };
            service(answer).await
        }

        fn letters(&self) -> Vec<Value> {
            self.letters.lock().unwrap().clone()
        }

        fn has_attempts(&self, id: &str, count: u32) {
            self.keys.lock().unwrap().extend((1..=count).map(|delivery| format!("attempts/{id}/{delivery}")));
        }

        fn attempts(&self, id: &str) -> usize {
            self.keys.lock().unwrap().iter().filter(|key| key.starts_with(&format!("attempts/{id}/"))).count()
        }
    }

    /// A record that SQS delivers for the `delivery`th time, after some attempts.
    struct Again<'a>(Option<&'a str>, String, u32, u32);

    /// Handles a batch in which all fail but `d`. Returns the failed ids.
    async fn fail_with(aws: &Aws, records: &[Again<'_>]) -> Vec<String> {
        let mut event = event(&records.iter().map(|Again(group, body, ..)| (*group, body.clone())).collect::<Vec<_>>());
        for (record, Again(.., delivery, attempts)) in event.records.iter_mut().zip(records) {
            record.attributes.insert("ApproximateReceiveCount".into(), delivery.to_string());
            aws.has_attempts(record.message_id.as_deref().unwrap(), *attempts);
        }
        let dead_letters = dead_letters(&aws.config().await);
        run_with(&dead_letters, event, async |name| if name == "d" { Ok(()) } else { Err("no") }).await.1
    }

    #[tokio::test]
    async fn message_that_fails_in_its_last_attempt_is_a_dead_letter() {
        let aws = Aws::default();
        let body = |name: &str| to_json(&hint(name, 0));
        let records = [
            Again(None, body("a"), 9, 4),
            Again(None, body("b"), 9, 3),
            Again(None, body("d"), 9, 4),
            Again(None, "{}".into(), 5, 4),
            Again(None, body("c"), 1, 0),
        ];
        let mut failed = fail_with(&aws, &records).await;
        failed.sort();
        assert_eq!(failed, ["1", "4"], "b and c have attempts left, and d succeeds");
        let mut letters: Vec<_> = aws.letters().iter().map(letter).collect();
        letters.sort_by_key(|[.., id]| id.to_string());
        let expected = |body: &str, cause: &str, id: &str| [json!("https://sqs/1/d"), json!(body), json!(cause), json!(id)];
        assert_eq!(letters, [expected(&records[0].1, "failed", "0"), expected("{}", "unreadable", "3")]);
        assert_eq!(["0", "1", "2", "3", "4"].map(|id| aws.attempts(id)), [5, 4, 5, 5, 1]);
    }

    /// The queue, the body, the cause and the message's ID.
    fn letter(letter: &Value) -> [Value; 4] {
        let attribute = |name: &str| letter["MessageAttributes"][name]["StringValue"].clone();
        [letter["QueueUrl"].clone(), letter["MessageBody"].clone(), attribute("cause"), attribute("messageId")]
    }

    #[tokio::test]
    async fn throttled_deliveries_do_not_count_as_attempts() {
        let aws = Aws::default();
        let failed = fail_with(&aws, &[Again(None, to_json(&hint("a", 0)), 900, 0)]).await;
        assert_eq!((failed, aws.letters().len(), aws.attempts("0")), (vec!["0".to_owned()], 0, 1));
    }

    #[tokio::test]
    async fn first_delivery_that_succeeds_costs_no_call() {
        let aws = Aws::default();
        let failed = fail_with(&aws, &[Again(None, to_json(&hint("d", 0)), 1, 0)]).await;
        assert_eq!((failed.len(), aws.attempts("0")), (0, 0));
    }

    #[tokio::test]
    async fn message_whose_attempts_got_no_response_is_not_handled_again() {
        let aws = Aws::default();
        let mut event = event(&[(None, to_json(&hint("d", 0)))]);
        event.records[0].attributes.insert("ApproximateReceiveCount".into(), "7".into());
        // The first delivery is not recorded, and those in which the function crashed have no end.
        aws.has_attempts("0", 5);
        let (handled, failed) = run_with(&dead_letters(&aws.config().await), event, async |_| Ok(())).await;
        assert_eq!((handled.len(), failed.len()), (0, 0));
        let [crashed] = &aws.letters()[..] else { panic!("{:?}", aws.letters()) };
        assert_eq!(letter(crashed)[2], "crashed");
    }

    #[tokio::test]
    async fn message_is_handled_and_no_dead_letter_while_the_bucket_is_unavailable() {
        let aws = Aws { failing: Some((403, 200)), ..Aws::default() };
        let body = |name: &str| to_json(&hint(name, 0));
        let failed = fail_with(&aws, &[Again(None, body("a"), 9, 9), Again(None, body("d"), 9, 9)]).await;
        assert_eq!((failed, aws.letters().len()), (vec!["0".to_owned()], 0));
    }

    #[tokio::test]
    async fn dead_letter_of_a_fifo_queue_keeps_its_group_and_those_behind_it_are_delivered_again() {
        let aws = Aws::default();
        let records = ["a", "b"].map(|name| Again(Some("g"), to_json(&hint(name, 0)), 5, 4));
        assert_eq!(fail_with(&aws, &records).await, ["1"]);
        let [letter] = &aws.letters()[..] else { panic!("{:?}", aws.letters()) };
        assert_eq!((&letter["MessageGroupId"], &letter["MessageDeduplicationId"]), (&json!("g"), &json!("0")));
    }

    #[tokio::test]
    async fn dead_letter_that_is_not_sent_is_delivered_again() {
        let aws = Aws { failing: Some((200, 403)), ..Aws::default() };
        let failed = fail_with(&aws, &[Again(None, to_json(&hint("a", 0)), 9, 4)]).await;
        assert_eq!((failed, aws.letters().len()), (vec!["0".to_owned()], 1));
    }
}
