use aws_config::SdkConfig;
use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry};
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, RunHint, TaskHint, keys, to_json};

use crate::{Error, Queues, Result, sdk::failure};

/// The maximum number of messages of one SQS call.
pub const BATCH: usize = 10;

/// The URLs of the queues. A process has only those of the queues that it may send to.
#[derive(Clone, Debug, Default)]
pub struct QueueUrls {
    /// `HINTS_QUEUE_URL`
    pub hints: Option<String>,
    /// `SOURCES_QUEUE_URL`
    pub sources: Option<String>,
    /// `LAUNCHES_QUEUE_URL`
    pub launches: Option<String>,
    /// `RUNS_QUEUE_URL`
    pub runs: Option<String>,
}

/// The real queues.
#[derive(Clone, Debug)]
pub struct Sqs {
    client: Client,
    urls: QueueUrls,
}

impl Sqs {
    /// The queues at those URLs. Sending to a queue without one is [`Error::Permanent`].
    #[must_use]
    pub fn new(config: &SdkConfig, urls: QueueUrls) -> Self {
        Self { client: Client::new(config), urls }
    }

    async fn send(&self, queue: &str, url: &str, group: String, body: String, delay_seconds: u16) -> Result<()> {
        let request = self.client.send_message().queue_url(url).message_body(body).delay_seconds(delay_seconds.into());
        let request = request.message_group_id(group);
        request.send().await.map(drop).map_err(|error| failure(format!("sqs:SendMessage {queue}"), &error))
    }
}

impl Queues for Sqs {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> Result<()> {
        let url = configured(self.urls.hints.as_ref(), "HINTS_QUEUE_URL")?;
        self.send("hints", url, tenant(&hint.object), to_json(hint), delay_seconds).await
    }

    async fn hints(&self, hints: &[Hint]) -> Result<Vec<usize>> {
        let call = "sqs:SendMessageBatch hints";
        let entries = hints.iter().enumerate().map(|(position, hint)| {
            let entry = SendMessageBatchRequestEntry::builder().id(position.to_string()).message_body(to_json(hint));
            let entry = entry.message_group_id(tenant(&hint.object));
            entry.build().map_err(|error| Error::Permanent { call: call.into(), message: error.to_string() })
        });
        let entries = entries.collect::<Result<Vec<_>>>()?;
        let url = configured(self.urls.hints.as_ref(), "HINTS_QUEUE_URL")?;
        let request = self.client.send_message_batch().queue_url(url).set_entries(Some(entries));
        let answer = request.send().await.map_err(|error| failure(call, &error))?;
        Ok(answer.failed().iter().filter_map(|failed| failed.id().parse().ok()).collect())
    }

    async fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> Result<()> {
        let url = configured(self.urls.launches.as_ref(), "LAUNCHES_QUEUE_URL")?;
        self.send("launches", url, tenant(&hint.update), to_json(hint), delay_seconds).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> Result<()> {
        let url = configured(self.urls.runs.as_ref(), "RUNS_QUEUE_URL")?;
        self.send("runs", url, tenant(&hint.update), to_json(hint), delay_seconds).await
    }

    async fn task(&self, hint: &TaskHint) -> Result<()> {
        let url = configured(self.urls.runs.as_ref(), "RUNS_QUEUE_URL")?;
        // The cluster and the namespace of a task are not known here.
        self.send("runs", url, "tasks".into(), to_json(hint), 0).await
    }

    async fn fetch(&self, request: &FetchRequest, deduplication: &str) -> Result<()> {
        let url = configured(self.urls.sources.as_ref(), "SOURCES_QUEUE_URL")?;
        let group = group(&request.source);
        let send = self.client.send_message().queue_url(url).message_body(to_json(request));
        let send = send.message_group_id(group).message_deduplication_id(keys::hash(&[deduplication]));
        send.send().await.map(drop).map_err(|error| failure("sqs:SendMessage sources", &error))
    }
}

/// The message group on a standard queue, by which SQS keeps the messages of one namespace from
/// delaying those of others.
fn tenant(object: &ObjectKey) -> String {
    keys::hash(&[&object.cluster, &object.namespace])
}

/// The message group of a source, of which one message at a time is delivered. A namespace has two
/// groups, so that its sources, however many and slow, occupy at most two fetchers.
fn group(source: &ObjectKey) -> String {
    let half = if keys::hash(&[&keys::fetch(source)]).as_bytes().first().is_some_and(|digit| digit % 2 == 0) { "0" } else { "1" };
    keys::hash(&[&source.cluster, &source.namespace, half])
}

fn configured<'a>(url: Option<&'a String>, variable: &str) -> Result<&'a String> {
    url.ok_or_else(|| Error::Permanent { call: "sqs:SendMessage".into(), message: format!("{variable} is not set") })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::{Arc, Mutex},
    };

    use serde_json::Value;

    use super::*;
    use crate::sdk::tests::service;

    fn source(namespace: &str, kind: &str, name: &str) -> ObjectKey {
        let [cluster, api_version, kind, namespace, name] = ["c", "", kind, namespace, name].map(String::from);
        ObjectKey { cluster, api_version, kind, namespace, name }
    }

    #[tokio::test]
    async fn fetch_requests_are_sent_to_the_groups_of_their_sources() {
        let groups = Arc::new(Mutex::new(Vec::new()));
        let sent = Arc::clone(&groups);
        let config = service(move |_, body| {
            let message: Value = serde_json::from_str(body).unwrap();
            sent.lock().unwrap().push(message["MessageGroupId"].as_str().unwrap().to_owned());
            (200, r#"{ "MessageId": "m" }"#.into())
        });
        let urls = QueueUrls { sources: Some("https://sqs/1/sources.fifo".into()), ..QueueUrls::default() };
        let queues = Sqs::new(&config.await, urls);
        let sources = ["a", "b"].map(|namespace| source(namespace, "Stack", "s"));
        for source in &sources {
            let request = FetchRequest::fetch(source.clone(), 0);
            queues.fetch(&request, "once").await.unwrap();
        }
        assert_eq!(*groups.lock().unwrap(), sources.each_ref().map(group));
    }

    #[test]
    fn sources_of_one_namespace_share_two_fifo_groups() {
        let groups = |namespace| (0..50).map(|n| group(&source(namespace, "Stack", &format!("s{n}")))).collect::<BTreeSet<_>>();
        assert_eq!((groups("a").len(), groups("b").len()), (2, 2));
        assert!(groups("a").is_disjoint(&groups("b")));
        assert_eq!(group(&source("a", "GitRepository", "s")), group(&source("a", "gitrepository", "s")), "a collection's name");
        assert_eq!(tenant(&source("a", "Stack", "s")), tenant(&source("a", "Update", "u")));
        assert_ne!(tenant(&source("a", "Stack", "s")), tenant(&source("b", "Stack", "s")));
    }
}
