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
            pull_started_at: Option<Timestamp>,
            pull_stopped_at: Option<Timestamp>,
        }
        #[derive(Deserialize)]
        struct Container {
            #[serde(rename = "ImageID", default)]
            image: String,
        }
        let get = async |url: &str| client.get(url).send().await?.error_for_status();
        let once = || async {
            let task: Document = get(&format!("{metadata}/task")).await?.json().await?;
            let container: Container = get(metadata).await?.json().await?;
            Ok((task, container))
        };
        let (task, container) = once.retry(ExponentialBuilder::default().with_max_times(5)).await?;
        let pulled = task.pull_started_at.zip(task.pull_stopped_at).map(|(started, stopped)| stopped.duration_since(started));
        let pull_millis = pulled.and_then(|pulled| u64::try_from(pulled.as_millis()).ok());
        Ok(Self { arn: task.arn, image: container.image, pull_millis })
    }
}
