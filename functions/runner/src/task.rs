//! This task, by ECS's metadata endpoint.

use backon::{ExponentialBuilder, Retryable as _};
use jiff::Timestamp;
use serde::Deserialize;

/// A task as ECS knows it.
pub(crate) struct Task {
    pub arn: String,
    /// The digest of this container's image; empty if ECS does not say.
    pub image: String,
    /// See [`driftless_contract::RunResult::pull_millis`].
    pub pull_millis: Option<u64>,
}

impl Task {
    pub(crate) async fn read(client: &reqwest::Client, metadata: &str) -> Result<Self, reqwest::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Document {
            #[serde(rename = "TaskARN")]
            arn: String,
            #[serde(default)]
            pull_started_at: String,
            #[serde(default)]
            pull_stopped_at: String,
        }
        #[derive(Deserialize)]
        struct Container {
            #[serde(rename = "ImageID", default)]
            image: String,
        }
        let get = async |url: &str| client.get(url).send().await?.error_for_status();
        let once = || async {
            let task: Document = get(&format!("{metadata}/task")).await?.json().await?;
            // Only the cache and a metric need more.
            let container: Option<Container> = async { get(metadata).await?.json().await }.await.ok();
            Ok((task, container))
        };
        let (task, container) = once.retry(ExponentialBuilder::default().with_max_times(5)).await?;
        let [started, stopped] = [task.pull_started_at, task.pull_stopped_at].map(|time| time.parse::<Timestamp>().ok());
        let pulled = started.zip(stopped).map(|(started, stopped)| stopped.duration_since(started));
        let pull_millis = pulled.and_then(|pulled| u64::try_from(pulled.as_millis()).ok());
        let image = container.map(|container| container.image).unwrap_or_default();
        Ok(Self { arn: task.arn, image, pull_millis })
    }
}
