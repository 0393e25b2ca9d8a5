//! The fetcher turns what a source offers into a stored tree: it reads the source again, gets the content, verifies its digest before
//! anything is unpacked, unpacks it under limits and stores it. How it ended is written down in words for the Stacks that wait; a
//! failure is an answer, not an error, and never holds up the other requests of its source.
//!
//! Nothing from a tree is ever run here.

mod flux;
mod program;
mod proxy;
mod store;

use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchFailure, FetchOutcome, FetchRequest, Hint, MAX_HOPS, VERSION, keys, to_json};
use driftless_kubernetes::Cluster;
use driftless_source::{DigestMismatch, InvalidDigest, Limits};
use jiff::Timestamp;

pub use proxy::{Artifacts, Service, ServiceProxy};

/// What the fetcher works with, for one cluster.
#[derive(Debug)]
pub struct Ports<'a, C, O, Q, A> {
    /// The cluster that the source is in.
    pub cluster: &'a C,
    /// Trees and outcomes.
    pub objects: &'a O,
    /// Where hints go.
    pub queues: &'a Q,
    /// How artifacts are had.
    pub artifacts: &'a A,
}

/// What an installation sets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bucket's name, for a Program's `status.artifact.url`.
    pub bucket: String,
    /// The Services that artifacts may come from, as `<name>.<namespace>`.
    pub services: Vec<String>,
    /// The largest archive, in bytes.
    pub max_archive_bytes: u64,
    /// What an archive may hold.
    pub limits: Limits,
}

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AWS.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] driftless_kubernetes::Error),
}

impl Error {
    /// Another try may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::Kubernetes(error) => error.is_transient(),
        }
    }
}

/// Why there is no tree. The words go into the Stack's condition: they hold no content, and no digest but the source's own.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The source names its artifact in a way that is not to be followed.
    #[error("status.artifact.{field} is {value:?}: {why}")]
    Artifact {
        /// The field.
        field: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The digest that the source states is none.
    #[error("status.artifact.digest: {0}")]
    Digest(#[from] InvalidDigest),
    /// It is not what the source said.
    #[error(transparent)]
    Mismatch(#[from] DigestMismatch),
    /// It was superseded, or collected.
    #[error("the artifact is not there any more; the source will name a newer one")]
    Gone,
    /// It is too large.
    #[error("the archive is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// It could not be had.
    #[error("the artifact could not be fetched: {0}")]
    Unreachable(String),
    /// The content is at fault.
    #[error(transparent)]
    Content(#[from] driftless_source::Refusal),
    /// The scratch space or the archive could not be read or written.
    #[error("the archive could not be read: {0}")]
    Io(#[from] std::io::Error),
    /// A Program that is no YAML document.
    #[error("the Program could not be written as YAML: {0}")]
    Program(String),
}

impl Refusal {
    /// The same source will be refused again.
    fn is_terminal(&self) -> bool {
        match self {
            Self::Artifact { .. } | Self::Digest(_) | Self::TooLarge { .. } | Self::Content(_) | Self::Program(_) => true,
            // A proxy or a cache on the way may have garbled it.
            Self::Mismatch(_) | Self::Gone | Self::Unreachable(_) | Self::Io(_) => false,
        }
    }
}

/// What came of a request: which state of the source it is about, and why there is no tree, if there is none.
type Answer = (String, Result<(), Refusal>);

/// Answers a request and tells the Stacks that wait.
pub async fn handle<C: Cluster, O: Objects, Q: Queues, A: Artifacts>(
    ports: &Ports<'_, C, O, Q, A>,
    settings: &Settings,
    request: &FetchRequest,
    now: Timestamp,
) -> Result<(), Error> {
    let source = &request.source;
    let answer = match (source.group(), source.kind.as_str()) {
        ("pulumi.com", "Program") => program::fetch(ports, settings, source, now).await?,
        _ => flux::fetch(ports, settings, source).await?,
    };
    // Nothing to fetch: the Stack's own look tells what is missing.
    let Some((subject, result)) = answer else { return Ok(()) };
    let failure = result.err().map(|refusal| FetchFailure { terminal: refusal.is_terminal(), message: refusal.to_string() });
    tracing::info!(%source, subject, failure = failure.as_ref().map(|failure| &failure.message), "fetched");
    let outcome = FetchOutcome { version: VERSION, subject, at: now, failure };
    ports.objects.put(&keys::fetch(source), to_json(&outcome).into_bytes()).await?;
    if request.hops < MAX_HOPS {
        ports.queues.hint(&Hint { hops: request.hops + 1, ..Hint::new(source.clone()) }, 0).await?;
    }
    Ok(())
}
