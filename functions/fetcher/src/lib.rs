//! Turns what a source offers into a stored tree: reads the source object, downloads the content,
//! verifies its digest, unpacks it within limits and stores it. The result is stored as a message
//! for the conditions of the objects that wait. A failed fetch is an answer, not an error, and
//! never blocks the other requests of its source.
//!
//! No code from a tree runs here.

mod collect;
mod flux;
pub mod git;
pub mod git_files;
mod guard;
mod program;
mod refusal;
mod remedy;
mod store;
mod transport;
mod workspace;

use driftless_aws::{Objects, Queues};
use driftless_contract::{
    FetchFailure, FetchKind, FetchOutcome, FetchRequest, FetchedArtifact, Hint, MAX_HOPS, ObjectKey, VERSION, keys,
};
use driftless_core::{Retention, WatchNamespaces, invalid_object, is_answered};
pub use driftless_kubernetes::CallError as Error;
use driftless_kubernetes::{Cluster, Error as KubernetesError, Watch};
use driftless_source::Limits;
use driftless_telemetry::metrics::{self, Metric};
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, setrlimit};

pub use guard::PrivateHosts;
pub use refusal::Refusal;
pub use transport::{Artifacts, Download, Place, Transport};

/// The settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bucket's name, for a Program's `status.artifact.url`.
    pub bucket: String,
    /// The namespace with the Updates of terminating namespaces.
    pub system_namespace: String,
    /// The namespace filter. Old trees are deleted in every namespace.
    pub namespaces: WatchNamespaces,
    /// How long trees are kept.
    pub retention: Retention,
    /// The Services that serve artifacts, as `<name>.<namespace>`, and other hosts; with a port
    /// other than 80 as `…:<port>`.
    pub services: Vec<String>,
    /// Kinds beside Flux's own whose `status.artifact` is used, as `<group>/<kind>`.
    pub source_kinds: Vec<String>,
    /// The maximum size of an archive, in bytes.
    pub max_archive_bytes: u64,
    /// The maximum size of all stored trees of a namespace, in bytes.
    pub max_tree_bytes: u64,
    /// The limits of an archive's content.
    pub limits: Limits,
    /// The git settings.
    pub git: git::Settings,
}

/// The fetcher, for one request of a cluster.
#[derive(Debug)]
pub struct Fetcher<'a, C, O, Q, A> {
    /// The cluster of the source.
    pub cluster: &'a C,
    /// The bucket with trees and fetches.
    pub objects: &'a O,
    /// The queue for hints.
    pub queues: &'a Q,
    /// The artifacts of Flux.
    pub artifacts: &'a A,
    /// The settings of the installation.
    pub settings: &'a Settings,
    /// When the invocation began to handle the request.
    pub now: Timestamp,
}

/// Limits this process's memory to 7/8 of the function's, in MiB. A git pack that needs more is
/// refused, because gitoxide allocates memory before it uses it. Without the limit the kernel would
/// kill the process, and no answer would be recorded.
pub fn limit_memory(function_mib: u64) -> std::io::Result<()> {
    let bytes = Some((function_mib << 20) / 8 * 7);
    Ok(setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })?)
}

/// The answer to a request: the state of the source that it concerns (see
/// [`FetchOutcome::subject`]), and the error if there is no tree. For git it has the commit, which
/// no Kubernetes object states.
type Answer = (String, Result<Option<FetchedArtifact>, Refusal>);

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    /// Answers a fetch request and hints its source. A transient error leaves the request
    /// unanswered, because a failed message would block its FIFO group; the objects that need the
    /// source request it again.
    pub async fn handle(&self, request: &FetchRequest, sent: Timestamp, clock: impl Fn() -> Timestamp) -> Result<(), Error> {
        if request.hops >= MAX_HOPS {
            metrics::count_one(Metric::HopsExhausted, "fetcher", &request.source.cluster, &request.source, self.now);
        }
        self.answer(request, sent, clock).await.or_else(|error| failed(request, error, self.now))
    }

    async fn answer(&self, request: &FetchRequest, sent: Timestamp, clock: impl Fn() -> Timestamp) -> Result<(), Error> {
        let source = &request.source;
        if request.kind == FetchKind::Collect {
            // The sweep requests it again the next day, and a failed message would block fetches of
            // the source until then.
            if let Err(error) = self.collect(source).await {
                tracing::error!(%source, %error, "cannot delete unused trees; retried within a day");
            }
            return Ok(());
        }
        if let Some(why) = invalid_object("source", &source.api_version, &source.kind, &source.name) {
            // The object that names this source reports the error. A part of it would become a key,
            // which would be too long or the key of another source.
            tracing::warn!(namespace = source.namespace, why, "not fetched");
            return Ok(());
        }
        let before = self.outcome_before(source).await?;
        if before.as_ref().is_some_and(|before| is_answered(sent, before.at)) {
            tracing::info!(%source, "fetch skipped: the last fetch began after the request was sent");
            return Ok(());
        }
        // The namespace may have left the filter since the request.
        let watch = Watch { namespaces: self.settings.namespaces, system_namespace: &self.settings.system_namespace };
        if !watch.is_ours(self.cluster, &source.namespace).await? {
            return Ok(());
        }
        self.retract(source, before.as_ref()).await?;
        let is_resting = |subject: &str| {
            let rests = before.as_ref().is_some_and(|before| before.subject == subject && self.now < before.rests_until());
            if rests {
                tracing::info!(%source, "fetch skipped: source rests after a slow fetch");
            }
            rests
        };
        let answer = match (source.group(), source.kind.as_str()) {
            ("pulumi.com", "Program") => self.fetch_program(source).await,
            ("pulumi.com", "Stack") => self.fetch_git(source, is_resting).await,
            ("auto.pulumi.com", "Workspace") => self.fetch_of_workspace(source, is_resting).await,
            _ => self.fetch_flux(source, is_resting).await,
        };
        let answer = match answer {
            // A user's Update may wait for it. No state of the source is known, so the answer has
            // no subject.
            Err(Error::Kubernetes(error @ KubernetesError::Unreadable { .. })) => {
                Some((String::new(), Err(Refusal::Object(error.to_string()))))
            }
            answer => answer?,
        };
        // Nothing to fetch: the object that names the source reports what is missing.
        let Some((subject, result)) = answer else { return Ok(()) };
        let had_less_time = matches!(&result, Err(Refusal::Git { error, .. }) if error.had_less_time());
        let (artifact, failure) = match result {
            Ok(artifact) => (artifact, None),
            Err(refusal) => (None, Some(FetchFailure { terminal: refusal.is_terminal(), message: refusal.to_string() })),
        };
        tracing::info!(%source, subject, failure = failure.as_ref().map(|failure| &failure.message), "fetched");
        let failures_before = before.filter(|before| before.subject == subject).map_or(0, |before| before.failures);
        let failures = match &failure {
            None => 0,
            Some(_) if had_less_time => failures_before.max(1),
            Some(_) => 1 + failures_before,
        };
        let took_seconds = clock().duration_since(self.now).as_secs().try_into().unwrap_or_default();
        let outcome = FetchOutcome { version: VERSION, subject, at: self.now, took_seconds, artifact, failures, failure };
        self.objects.write(&keys::fetch(source), &outcome).await?;
        if request.hops < MAX_HOPS {
            self.queues.hint(&Hint { hops: request.hops + 1, ..Hint::new(source.clone()) }, 0).await?;
        }
        Ok(())
    }

    /// Marks the last failure of a source as not terminal before the next fetch. If that fetch
    /// stores its tree and fails to write its outcome, a terminal failure would block the source
    /// once the tree has expired.
    async fn retract(&self, source: &ObjectKey, before: Option<&FetchOutcome>) -> Result<(), Error> {
        let Some((before, failure)) = before.and_then(|before| Some((before, before.failure.as_ref()?))) else { return Ok(()) };
        if failure.terminal {
            let failure = Some(FetchFailure { terminal: false, ..failure.clone() });
            self.objects.write(&keys::fetch(source), &FetchOutcome { failure, ..before.clone() }).await?;
        }
        Ok(())
    }

    /// The result of the last fetch of a source. An invalid document is replaced.
    pub(crate) async fn outcome_before(&self, source: &ObjectKey) -> Result<Option<FetchOutcome>, Error> {
        Ok(self.objects.read_if_valid(&keys::fetch(source)).await?)
    }
}

/// Leaves a request unanswered after a transient error, such as a cluster that cannot be reached;
/// returns any other error.
pub fn failed(request: &FetchRequest, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(KubernetesError::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that sends an event.
        tracing::warn!(source = %request.source, %error, "fetch skipped: cannot read an object");
        metrics::count_one(Metric::UnreadableObjects, "fetcher", &request.source.cluster, &request.source, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(source = %request.source, %error, "fetch failed; the objects that need the source request it again");
    metrics::count_one(Metric::TransientFailures, "fetcher", &request.source.cluster, &request.source, now);
    Ok(())
}

#[cfg(test)]
mod tests;
