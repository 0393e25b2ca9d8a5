use aws_config::SdkConfig;
use aws_lambda_events::sqs::SqsMessage;
use aws_sdk_sqs::{Client, error::BuildError, types::MessageAttributeValue};
use driftless_contract::keys;
use driftless_telemetry::metrics::{Metric, emit};
use jiff::Timestamp;

use crate::{Bucket, Error, Objects as _, Result, sdk::failure};

/// The dead-letter queue of a function. SQS moves a message by the number of times that it was
/// received, and that includes deliveries that Lambda throttled, of which the function knows
/// nothing. So the function records its own attempts in the bucket and moves the messages that use
/// them up, and the queue's own limit is out of reach.
///
/// An attempt is recorded when it fails, or before it begins if SQS delivered the message before: a
/// function that crashes can record nothing, and most messages succeed at their first delivery,
/// which costs no call.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    client: Client,
    bucket: Bucket,
    url: String,
    max_attempts: usize,
}

/// Why a message failed, without its content: the function's log has the error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// It is no message of this release.
    Unreadable,
    /// Its handler returned an error.
    Failed,
    /// Its handler did not end in the function's time limit.
    TimedOut,
    /// Its earlier attempts ended without a response.
    Crashed,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
            Self::Crashed => "crashed",
        }
    }
}

impl DeadLetters {
    /// The dead-letter queue at that URL, for messages whose `max_attempts` attempts failed.
    /// `bucket` holds the attempts.
    #[must_use]
    pub fn new(config: &SdkConfig, bucket: Bucket, url: String, max_attempts: usize) -> Self {
        Self { client: Client::new(config), bucket, url, max_attempts }
    }

    /// Records that an attempt begins, if SQS delivered the message before. Returns whether the
    /// attempts were used up already, which means that they ended without a response.
    pub(crate) async fn has_crashed(&self, record: &SqsMessage, now: Timestamp) -> bool {
        if receives(record) < 2 {
            return false;
        }
        if let (Some(sent), Some(queue)) = (sent(record), queue(record)) {
            let id = record.message_id.as_deref().unwrap_or_default();
            let age = now.duration_since(sent).as_secs_f64().max(0.0);
            emit(&[(Metric::RedeliveredMessageAge, age)], &[("queue", queue), ("message", id)], now);
        }
        self.attempts(record).await > Some(self.max_attempts)
    }

    /// Moves a failed message here if its attempts are used up. Returns whether it did; otherwise
    /// SQS delivers the message again.
    pub(crate) async fn takes(&self, record: &SqsMessage, cause: Cause) -> bool {
        // Boxed, because the compiler would otherwise lay out the calls as part of every handler.
        if Box::pin(self.attempts(record)).await < Some(self.max_attempts) {
            return false;
        }
        let sent = Box::pin(self.send(record, cause)).await;
        match &sent {
            Ok(()) => tracing::error!(message.id = record.message_id, "message moved to the dead-letter queue"),
            Err(error) => {
                tracing::error!(message.id = record.message_id, %error, "message not moved to the dead-letter queue, it is delivered again");
            }
        }
        sent.is_ok()
    }

    /// Records this attempt. Returns the number of recorded ones, `None` if the bucket is
    /// unavailable.
    async fn attempts(&self, record: &SqsMessage) -> Option<usize> {
        let folder = keys::attempts(record.message_id.as_deref()?);
        let recorded = async {
            self.bucket.put(&folder.attempt(receives(record)), Vec::new()).await?;
            self.bucket.list_after(&folder, "").await
        };
        match recorded.await {
            Ok(attempts) => Some(attempts.len()),
            Err(error) => {
                tracing::warn!(message.id = record.message_id, %error, "attempt not recorded");
                None
            }
        }
    }

    async fn send(&self, record: &SqsMessage, cause: Cause) -> Result<()> {
        let call = "sqs:SendMessage dead letters";
        let invalid = |error: BuildError| Error::Permanent { call: call.into(), message: error.to_string() };
        let text =
            |value: &str| MessageAttributeValue::builder().data_type("String").string_value(value).build().map_err(invalid);
        let id = record.message_id.as_deref().unwrap_or_default();
        let send = self.client.send_message().queue_url(&self.url).set_message_body(record.body.clone());
        let send = send.message_attributes("cause", text(cause.name())?).message_attributes("messageId", text(id)?);
        let send = send.set_message_group_id(record.attributes.get("MessageGroupId").cloned());
        // A message of a FIFO queue that is moved again, because Lambda did not get the response,
        // is one dead letter.
        let send = send.set_message_deduplication_id(group(record).map(|_| id.to_owned()));
        send.send().await.map(drop).map_err(|error| failure(call, &error))
    }
}

/// How often SQS delivered the message, including this time.
fn receives(record: &SqsMessage) -> u32 {
    record.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// The name of the queue.
fn queue(record: &SqsMessage) -> Option<&str> {
    record.event_source_arn.as_deref()?.rsplit(':').next()
}

/// The time when the message was sent.
pub(crate) fn sent(record: &SqsMessage) -> Option<Timestamp> {
    Timestamp::from_millisecond(record.attributes.get("SentTimestamp")?.parse().ok()?).ok()
}

/// The FIFO group. Messages of standard queues have a group too, which names their tenant and
/// orders nothing.
pub(crate) fn group(record: &SqsMessage) -> Option<&String> {
    record.attributes.get("MessageGroupId").filter(|_| record.attributes.contains_key("SequenceNumber"))
}
