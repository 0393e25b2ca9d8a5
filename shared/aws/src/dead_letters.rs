use aws_config::SdkConfig;
use aws_lambda_events::sqs::SqsMessage;
use aws_sdk_sqs::{Client, error::BuildError, types::MessageAttributeValue};

use crate::{Error, Result, batch::group, sdk::failure};

/// The dead-letter queue of a function. SQS moves a message by the number of times that it was received, and that includes
/// deliveries that Lambda throttled, of which the function knows nothing. So the function moves the messages that fail in it, and
/// the queue's own limit is out of reach.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    client: Client,
    url: String,
    max_receives: u32,
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
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
        }
    }
}

impl DeadLetters {
    /// The dead-letter queue at that URL, for messages that fail when they have been received `max_receives` times or more.
    #[must_use]
    pub fn new(config: &SdkConfig, url: String, max_receives: u32) -> Self {
        Self { client: Client::new(config), url, max_receives }
    }

    /// Moves a failed message here if its receives are used up. Returns whether it did; otherwise SQS delivers the message again.
    pub(crate) async fn takes(&self, record: &SqsMessage, cause: Cause) -> bool {
        let count = record.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok());
        if count < Some(self.max_receives) {
            return false;
        }
        // Boxed, because the compiler would otherwise lay out the call as part of every handler.
        let sent = Box::pin(self.send(record, cause)).await;
        match &sent {
            Ok(()) => tracing::error!(message.id = record.message_id, "message moved to the dead-letter queue"),
            Err(error) => {
                tracing::error!(message.id = record.message_id, %error, "message not moved to the dead-letter queue, it is delivered again");
            }
        }
        sent.is_ok()
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
        // A message of a FIFO queue that is moved again, because Lambda did not get the response, is one dead letter.
        let send = send.set_message_deduplication_id(group(record).map(|_| id.to_owned()));
        send.send().await.map(drop).map_err(|error| failure(call, &error))
    }
}
