use serde::Deserialize;

use crate::{Document as _, InvalidMessage, RunHint, TaskHint, VERSION};

/// A message of the `runs` queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunMessage {
    /// Driftless's own hint.
    Hint(RunHint),
    /// S3 reports that these objects were written. The keys are decoded.
    Objects(Vec<String>),
    /// The place where tasks run reports that a task's state changed.
    Task {
        /// The task's name in the place where it runs: an ARN of ECS.
        task: String,
    },
    /// The sweeper found a live task.
    Live {
        /// The task's name in the place where it runs: an ARN of ECS.
        task: String,
    },
    /// S3's test message from when the notification was configured.
    Test,
}

/// Reads a message of the `runs` queue: Driftless's own, an S3 notification or an ECS task state
/// change. Unused fields of the AWS messages are ignored.
pub fn parse_run_message(body: &str) -> Result<RunMessage, InvalidMessage> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Foreign {
        S3 {
            #[serde(rename = "Records")]
            records: Vec<Record>,
        },
        Test {
            #[serde(rename = "Event")]
            event: String,
        },
        Ecs {
            detail: Detail,
        },
        Live(TaskHint),
    }
    #[derive(Deserialize)]
    struct Record {
        s3: S3,
    }
    #[derive(Deserialize)]
    struct S3 {
        object: Object,
    }
    #[derive(Deserialize)]
    struct Object {
        key: String,
    }
    #[derive(Deserialize)]
    struct Detail {
        #[serde(rename = "taskArn")]
        task_arn: String,
    }
    match serde_json::from_str::<Foreign>(body) {
        Ok(Foreign::S3 { records }) => {
            Ok(RunMessage::Objects(records.iter().map(|record| form_decode(&record.s3.object.key)).collect()))
        }
        Ok(Foreign::Ecs { detail }) => Ok(RunMessage::Task { task: detail.task_arn }),
        Ok(Foreign::Live(TaskHint { version: VERSION, task })) => Ok(RunMessage::Live { task }),
        Ok(Foreign::Test { event }) if event == "s3:TestEvent" => Ok(RunMessage::Test),
        Ok(Foreign::Test { .. } | Foreign::Live(_)) | Err(_) => RunHint::parse(body.as_bytes()).map(RunMessage::Hint),
    }
}

/// S3 notifications have form-encoded keys: `+` is a space, other characters are `%XX`.
fn form_decode(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| key.get(i + 1..i + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok())).flatten();
        match (bytes[i], hex) {
            (_, Some(byte)) => {
                decoded.push(byte);
                i += 2;
            }
            (b'+', None) => decoded.push(b' '),
            (byte, None) => decoded.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectKey, to_json};

    #[test]
    fn the_runs_queue_carries_messages_of_ours_of_s3_and_of_ecs() {
        let s3 = r#"{"Records":[{"eventName":"ObjectCreated:Put","s3":{"object":{"key":"tasks/AROA%3Aabc/out/a+b%2Bc"}}}]}"#;
        assert_eq!(parse_run_message(s3).unwrap(), RunMessage::Objects(vec!["tasks/AROA:abc/out/a b+c".into()]));
        let ecs = r#"{"source":"aws.ecs","detail":{"taskArn":"arn:aws:ecs:r:1:task/c/t","lastStatus":"STOPPED"}}"#;
        assert_eq!(parse_run_message(ecs).unwrap(), RunMessage::Task { task: "arn:aws:ecs:r:1:task/c/t".into() });
        let test = r#"{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"b"}"#;
        assert_eq!(parse_run_message(test).unwrap(), RunMessage::Test);
        let live = TaskHint { version: VERSION, task: "arn:aws:ecs:r:1:task/c/t".into() };
        assert_eq!(parse_run_message(&to_json(&live)).unwrap(), RunMessage::Live { task: live.task });
        let update = ObjectKey {
            cluster: "c".into(),
            api_version: "auto.pulumi.com/v1alpha1".into(),
            kind: "Update".into(),
            namespace: "n".into(),
            name: "u".into(),
        };
        let hint = RunHint { version: VERSION, update, uid: Some("u".into()), hops: 3 };
        assert_eq!(parse_run_message(&to_json(&hint)).unwrap(), RunMessage::Hint(hint));
    }

    #[test]
    fn a_message_of_another_release_or_shape_is_refused_without_its_values() {
        let error = parse_run_message(r#"{"version":2,"update":{}}"#).unwrap_err().to_string();
        assert_eq!(error, "a message of the runs queue of version 2; this release reads version 1");
        let error = parse_run_message(r#"{"version":1,"hops":"canary"}"#).unwrap_err().to_string();
        assert!(!error.contains("canary"), "{error}");
    }
}
