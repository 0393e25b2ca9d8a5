//! This task: its settings, and how ECS's metadata endpoint describes it.

use std::{ffi::OsString, path::PathBuf};

use backon::{ExponentialBuilder, Retryable as _};
use jiff::Timestamp;
use serde::Deserialize;

use crate::{BucketEndpoint, CredentialsEndpoint};

/// The settings of a task at its start.
#[derive(Clone)]
pub struct Settings {
    /// The bucket.
    pub bucket: BucketEndpoint,
    /// The id of the task role, which is the first part of the folder's name.
    pub role_id: String,
    /// The endpoint of the task's own credentials.
    pub credentials: CredentialsEndpoint,
    /// ECS's metadata endpoint of this container.
    pub metadata: String,
    /// Additional CA certificates, as PEM.
    pub certificates: Option<PathBuf>,
    /// The container's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// [`driftless_contract::SHARE`].
    pub share: PathBuf,
    /// [`driftless_contract::SECRETS`].
    pub secrets: PathBuf,
    /// `/proc/vmstat`, which counts the processes that the kernel has killed for lack of memory. A
    /// Fargate task has its own kernel.
    pub vmstat: PathBuf,
    /// This program, for [`driftless_contract::Lock`]: called as `hold PROGRAM ARGUMENTS…` it waits
    /// for a byte on its standard input and then becomes PROGRAM, with the same process id.
    pub runner: PathBuf,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl Settings {
    /// A directory for Pulumi's events, for archives, and for Pulumi's home if the image has none.
    /// It is deleted with the task's disk.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.share.join(".driftless")
    }
}

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
