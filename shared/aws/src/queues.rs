use aws_config::SdkConfig;
use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry};
use driftless_contract::{FetchRequest, Hint, LaunchHint, RunHint, TaskHint, keys, to_json};

use crate::{Error, Queues, Result, sdk::failure};

/// As many messages as SQS takes in one call.
pub const BATCH: usize = 10;

/// Where the queues are. A process has the URLs only of those that it may send to.
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
    /// The queues at those URLs. Sending to one that has none is [`Error::Permanent`].
    #[must_use]
    pub fn new(config: &SdkConfig, urls: QueueUrls) -> Self {
        Self { client: Client::new(config), urls }
    }

    async fn send(&self, queue: &str, url: &str, body: String, delay_seconds: u16) -> Result<()> {
        let request = self.client.send_message().queue_url(url).message_body(body).delay_seconds(delay_seconds.into());
        request.send().await.map(drop).map_err(|error| failure(format!("sqs:SendMessage {queue}"), &error))
    }
}

impl Queues for Sqs {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> Result<()> {
        let url = configured(self.urls.hints.as_ref(), "HINTS_QUEUE_URL")?;
        self.send("hints", url, to_json(hint), delay_seconds).await
    }

    async fn hints(&self, hints: &[Hint]) -> Result<Vec<usize>> {
        let call = "sqs:SendMessageBatch hints";
        let entries = hints.iter().enumerate().map(|(position, hint)| {
            let entry = SendMessageBatchRequestEntry::builder().id(position.to_string()).message_body(to_json(hint));
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
        self.send("launches", url, to_json(hint), delay_seconds).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> Result<()> {
        let url = configured(self.urls.runs.as_ref(), "RUNS_QUEUE_URL")?;
        self.send("runs", url, to_json(hint), delay_seconds).await
    }

    async fn task(&self, hint: &TaskHint) -> Result<()> {
        let url = configured(self.urls.runs.as_ref(), "RUNS_QUEUE_URL")?;
        self.send("runs", url, to_json(hint), 0).await
    }

    async fn fetch(&self, request: &FetchRequest, deduplication: &str) -> Result<()> {
        let url = configured(self.urls.sources.as_ref(), "SOURCES_QUEUE_URL")?;
        let group = keys::hash(&[&keys::fetch(&request.source)]);
        let send = self.client.send_message().queue_url(url).message_body(to_json(request));
        let send = send.message_group_id(group).message_deduplication_id(keys::hash(&[deduplication]));
        send.send().await.map(drop).map_err(|error| failure("sqs:SendMessage sources", &error))
    }
}

fn configured<'a>(url: Option<&'a String>, variable: &str) -> Result<&'a String> {
    url.ok_or_else(|| Error::Permanent { call: "sqs:SendMessage".into(), message: format!("{variable} is not set") })
}
