//! The event that Lambda makes from a batch, and the evaluation of the response.

use std::collections::HashSet;

use aws_sdk_sqs::types::Message;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

/// An SQS event.
pub fn sqs(messages: &[Message], queue: &str, region: &str) -> Value {
    let records = messages.iter().map(|message| {
        let attributes = message
            .attributes()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.as_str().to_owned(), Value::from(value.as_str())));
        let custom = message.message_attributes().into_iter().flatten().map(|(name, attribute)| {
            let binary = attribute.binary_value().map(|value| STANDARD.encode(value.as_ref()));
            let value = json!({
                "stringValue": attribute.string_value(), "binaryValue": binary, "stringListValues": [], "binaryListValues": [],
                "dataType": attribute.data_type(),
            });
            (name.clone(), value)
        });
        json!({
            "messageId": message.message_id(), "receiptHandle": message.receipt_handle(), "body": message.body(),
            "attributes": attributes.collect::<Map<_, _>>(), "messageAttributes": custom.collect::<Map<_, _>>(),
            "md5OfBody": message.md5_of_body(), "eventSource": "aws:sqs", "eventSourceARN": queue, "awsRegion": region,
        })
    });
    json!({ "Records": records.collect::<Vec<_>>() })
}

/// The failed messages of a batch, from the function's response. `null` and an empty list mean
/// none; an unreadable response, or one that names a message outside the batch, means all.
pub fn failures(answer: &[u8], ids: &[&str]) -> HashSet<String> {
    let all = || ids.iter().map(|id| (*id).to_owned()).collect();
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return all() };
    let failures = match (&answer, &answer["batchItemFailures"]) {
        (Value::Null, _) | (Value::Object(_), Value::Null) => return HashSet::new(),
        (Value::Object(_), Value::Array(failures)) => failures,
        _ => return all(),
    };
    let failures: Option<HashSet<_>> =
        failures.iter().map(|failure| failure["itemIdentifier"].as_str().filter(|id| ids.contains(id)).map(Into::into)).collect();
    failures.unwrap_or_else(all)
}

/// The object that a message names, or the whole message if it is not one of Driftless's.
pub fn subject(body: &str) -> String {
    let message: Value = serde_json::from_str(body).unwrap_or_default();
    let subject = ["object", "update", "source"].into_iter().map(|name| &message[name]).find(|subject| subject.is_object());
    subject.map_or_else(|| body.to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::types::MessageSystemAttributeName;

    use super::*;

    #[test]
    fn an_event_has_the_fields_that_lambda_gives() {
        let message = Message::builder()
            .message_id("m1")
            .receipt_handle("r1")
            .body("{}")
            .md5_of_body("99914b932bd37a50b983c5e7c90ae93b")
            .attributes(MessageSystemAttributeName::ApproximateReceiveCount, "1")
            .attributes(MessageSystemAttributeName::MessageGroupId, "g")
            .build();
        let event = sqs(&[message], "arn:aws:sqs:us-east-1:1:q", "us-east-1");
        let expected = json!({ "Records": [{
            "messageId": "m1", "receiptHandle": "r1", "body": "{}", "attributes": { "ApproximateReceiveCount": "1", "MessageGroupId": "g" },
            "messageAttributes": {}, "md5OfBody": "99914b932bd37a50b983c5e7c90ae93b", "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:us-east-1:1:q", "awsRegion": "us-east-1",
        }]});
        assert_eq!(event, expected);
    }

    #[test]
    fn an_answer_fails_the_messages_that_it_names_and_a_wrong_answer_fails_all() {
        let ids = ["a", "b"];
        let failed = |answer: &str| {
            let mut failed: Vec<_> = failures(answer.as_bytes(), &ids).into_iter().collect();
            failed.sort();
            failed.join("")
        };
        for (answer, expected) in [
            ("null", ""),
            ("{}", ""),
            (r#"{"batchItemFailures":null}"#, ""),
            (r#"{"batchItemFailures":[]}"#, ""),
            (r#"{"batchItemFailures":[{"itemIdentifier":"b"}]}"#, "b"),
            (r#"{"batchItemFailures":[{"itemIdentifier":""}]}"#, "ab"),
            (r#"{"batchItemFailures":[{"itemIdentifier":null}]}"#, "ab"),
            (r#"{"batchItemFailures":[{"itemIdentifier":"c"}]}"#, "ab"),
            (r#"{"batchItemFailures":"b"}"#, "ab"),
            ("not json", "ab"),
            ("", "ab"),
            ("\"text\"", "ab"),
        ] {
            assert_eq!(failed(answer), expected, "{answer}");
        }
    }

    #[test]
    fn two_hints_about_one_object_have_one_subject() {
        let hint = |hops: u8| json!({ "version": 1, "object": { "kind": "Stack", "name": "s" }, "hops": hops }).to_string();
        assert_eq!(subject(&hint(0)), subject(&hint(3)));
        assert_ne!(subject(&hint(0)), subject("other"));
    }
}
