//! The AWS ports of the functions: the bucket, the queues, the tasks and the keys of clusters. Each
//! port is a trait beside its one real implementation; the simulation has the other.

mod account;
mod batch;
mod dead_letters;
mod definition;
mod objects;
mod queues;
mod refusal;
mod sdk;
mod tasks;

use std::{fs::File, future::Future};

pub use account::Account;
pub use batch::{batch, batch_sent};
pub use dead_letters::DeadLetters;
pub use definition::TaskSettings;
use driftless_contract::{
    Document, FetchRequest, Hint, InvalidMessage, Key, LaunchHint, Rewritten, RunHint, TaskHint, WrittenOnce, to_json,
};
use driftless_core::{TaskEnd, TaskShape};
use jiff::{SignedDuration, Timestamp};
pub use objects::Bucket;
pub use queues::{BATCH, QueueUrls, Sqs};
pub use sdk::config;
use secrecy::SecretString;
pub use tasks::Ecs;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A retry may succeed: throttled, timed out, no capacity, unavailable.
    #[error("{call}: {message}")]
    Transient {
        /// The call, such as `s3:GetObject runs/…`.
        call: String,
        /// The service's message.
        message: String,
    },
    /// The service refuses the content of a tenant's spec.
    #[error("{call}: {message}")]
    Invalid {
        /// The call.
        call: String,
        /// The service's message.
        message: String,
    },
    /// A retry would fail too: denied, malformed, or a bug of Driftless.
    #[error("{call}: {message}")]
    Permanent {
        /// The call.
        call: String,
        /// The service's message.
        message: String,
    },
}

impl Error {
    /// Returns whether a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Transient { .. })
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// How long a link works.
pub const LINK_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// A link that reads one object without credentials. Anyone who has it can read the object, so it
/// belongs in no log and no Event.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    /// The URL.
    pub url: String,
    /// When it stops working.
    pub expires: Timestamp,
}

/// The bucket. Strongly consistent; every write is atomic.
pub trait Objects {
    /// The object's content, if it exists.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>>>;
    /// Up to `size` bytes of the object from `offset` on, if it exists and is longer than `offset`.
    /// A size of 0 needs no call and returns an empty content for any object.
    fn get_range(&self, key: &str, offset: u64, size: u64) -> impl Future<Output = Result<Option<Vec<u8>>>>;
    /// When the object was last written, if it exists.
    fn modified(&self, key: &str) -> impl Future<Output = Result<Option<Timestamp>>>;
    /// The object's content and when it was written, if it exists.
    fn get_modified(&self, key: &str) -> impl Future<Output = Result<Option<(Vec<u8>, Timestamp)>>> {
        async {
            let Some(modified) = self.modified(key).await? else { return Ok(None) };
            Ok(self.get(key).await?.map(|content| (content, modified)))
        }
    }
    /// Returns whether the object exists.
    fn exists(&self, key: &str) -> impl Future<Output = Result<bool>> {
        async { Ok(self.modified(key).await?.is_some()) }
    }
    /// The next objects whose keys begin with `prefix` and come after `after`, in the order of
    /// their keys, with the times of their last writes. Some hundreds at a time; none at the end.
    fn list_after(&self, prefix: &str, after: &str) -> impl Future<Output = Result<Vec<(String, Timestamp)>>>;
    /// The total size in bytes of all objects whose keys begin with `prefix`, each counted as at
    /// least `least`. One call per thousand objects.
    fn size(&self, prefix: &str, least: u64) -> impl Future<Output = Result<u64>>;
    /// Writes the object, whether or not it exists.
    fn put(&self, key: &str, content: Vec<u8>) -> impl Future<Output = Result<()>>;
    /// Writes the object, whether or not it exists, encrypted under the key of
    /// [`Bucket::sealing_with`]: only a reader who may use that key can read it.
    fn put_sealed(&self, key: &str, content: Vec<u8>) -> impl Future<Output = Result<()>>;
    /// Writes a file's whole content, whether or not the object exists. Memory stays bounded
    /// whatever the file's size.
    fn put_file(&self, key: &str, file: &File) -> impl Future<Output = Result<()>>;
    /// Writes the object if it does not exist; `false` if it exists with other content, which
    /// stays.
    fn put_new(&self, key: &str, content: Vec<u8>) -> impl Future<Output = Result<bool>>;
    /// Copies an object within the bucket; `false` if it does not exist. A copy that takes 20 s
    /// fails.
    fn copy(&self, from: &str, to: &str) -> impl Future<Output = Result<bool>>;
    /// A link that reads the object, also one that is written later, with the rights of this
    /// caller. It needs no call, and stops with the caller's credentials if these expire first.
    fn link(&self, key: &str, now: Timestamp) -> impl Future<Output = Result<Link>>;
    /// Deletes the object if it exists.
    fn delete(&self, key: &str) -> impl Future<Output = Result<()>>;
    /// Deletes those of up to 1,000 objects that exist. After an error, some of them may be
    /// deleted.
    fn delete_all(&self, keys: &[&str]) -> impl Future<Output = Result<()>> {
        async move {
            for key in keys {
                self.delete(key).await?;
            }
            Ok(())
        }
    }

    /// Reads a document, if it exists. A document that this release cannot read is
    /// [`Error::Permanent`].
    fn read<D: Document>(&self, key: &Key<D>) -> impl Future<Output = Result<Option<D>>> {
        async move {
            let Some(content) = self.get(key).await? else { return Ok(None) };
            let invalid =
                |error: InvalidMessage| Error::Permanent { call: format!("s3:GetObject {key}"), message: error.to_string() };
            D::parse(&content).map(Some).map_err(invalid)
        }
    }
    /// Reads a dispensable document: one that this release cannot read counts as absent, and is
    /// logged.
    fn read_if_valid<D: Document>(&self, key: &Key<D>) -> impl Future<Output = Result<Option<D>>> {
        async move {
            let Some(content) = self.get(key).await? else { return Ok(None) };
            let invalid = |error: &InvalidMessage| tracing::warn!(key = &**key, %error, "document ignored: cannot read it");
            Ok(D::parse(&content).inspect_err(invalid).ok())
        }
    }
    /// Writes a document, whether or not it exists.
    fn write<D: Rewritten>(&self, key: &Key<D>, document: &D) -> impl Future<Output = Result<()>> {
        self.put(key, to_json(document).into_bytes())
    }
    /// Writes a document once; `false` if another one exists, which stays.
    fn write_once<D: WrittenOnce>(&self, key: &Key<D>, document: &D) -> impl Future<Output = Result<bool>> {
        self.put_new(key, to_json(document).into_bytes())
    }
}

/// The queues. Sending more than once is harmless everywhere.
pub trait Queues {
    /// Sends to `hints`; delivered after `delay_seconds`, which SQS limits to 900.
    fn hint(&self, hint: &Hint, delay_seconds: u16) -> impl Future<Output = Result<()>>;
    /// Sends up to [`BATCH`] hints to `hints` in one call, without delay. Returns the positions of
    /// those that were refused.
    fn hints(&self, hints: &[Hint]) -> impl Future<Output = Result<Vec<usize>>>;
    /// Sends to `launches`.
    fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> impl Future<Output = Result<()>>;
    /// Sends to `runs`.
    fn run(&self, hint: &RunHint, delay_seconds: u16) -> impl Future<Output = Result<()>>;
    /// Sends to `runs`, without delay.
    fn task(&self, hint: &TaskHint) -> impl Future<Output = Result<()>>;
    /// Sends to `sources.fifo`, in the group of its source. SQS drops a request within five minutes
    /// of another with the same `deduplication`.
    fn fetch(&self, request: &FetchRequest, deduplication: &str) -> impl Future<Output = Result<()>>;
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not stopped yet.
    Alive {
        /// Why it is about to stop; empty for a task that is not.
        end: TaskEnd,
        /// When its start was requested, if the place reports it.
        created: Option<Timestamp>,
    },
    /// Stopped.
    Stopped {
        /// How it stopped.
        end: TaskEnd,
    },
    /// Unknown there: too old, or too new.
    Missing,
}

impl TaskState {
    /// How the task ended or is about to; empty for a running task, or an unknown one.
    #[must_use]
    pub fn into_end(self) -> TaskEnd {
        match self {
            Self::Alive { end, .. } | Self::Stopped { end } => end,
            Self::Missing => TaskEnd::default(),
        }
    }
}

/// A page of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// Their names in the place where they run.
    pub tasks: Vec<String>,
    /// The token of the next page; `None` after the last one.
    pub next: Option<String>,
}

/// The answer to a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// The task that it started, now or earlier.
    Task {
        /// Its name in the place where it runs.
        task: String,
    },
    /// No task, and there will be none for the token of this attempt.
    Refused {
        /// The message, mostly about capacity or a quota.
        why: String,
    },
}

/// The place where tasks run. It names a task and a definition when it makes them; callers only
/// hand the names back.
pub trait Tasks {
    /// The definition of tasks of this shape, which is made if it does not exist. A shape that the
    /// place refuses is [`Error::Invalid`].
    fn definition(&self, shape: &TaskShape) -> impl Future<Output = Result<String>>;
    /// Starts the task of a launch record, or finds the one that was started earlier.
    fn run(&self, launch: &driftless_contract::Launch) -> impl Future<Output = Result<Started>>;
    /// The state of a task.
    fn state(&self, task: &str) -> impl Future<Output = Result<TaskState>>;
    /// The tasks without a requested stop, a page at a time; `from` is [`TaskPage::next`] of the
    /// previous page.
    fn live(&self, from: Option<&str>) -> impl Future<Output = Result<TaskPage>>;
    /// The page with the log of a task's main container; empty if this function has no settings for
    /// tasks.
    fn log_url(&self, task: &str) -> String;
    /// Stops a task: SIGTERM, and SIGKILL after its stop timeout. Harmless for a stopped task.
    fn stop(&self, task: &str, reason: &str) -> impl Future<Output = Result<()>>;
}

/// Credentials for clusters.
pub trait Keyring {
    /// The text of the Secrets Manager secret with that name or ARN.
    fn secret(&self, id: &str) -> impl Future<Output = Result<SecretString>>;
    /// A token for the API server of the EKS cluster of that name, like that of `aws eks
    /// get-token`, for this function's role. EKS accepts it for 15 minutes from `now` on. `region`
    /// is that of the STS endpoint that EKS calls; `None` for this function's own.
    fn eks_token(&self, cluster: &str, region: Option<&str>, now: Timestamp) -> impl Future<Output = Result<SecretString>>;
}
