//! The Kubernetes port of the functions: a trait beside its one real implementation; the simulation
//! has the other.

pub mod admissions;
mod call;
mod client;
mod clusters;
mod failure;
mod kubeconfig;
mod pages;
mod watch;

use std::{collections::BTreeMap, fmt, future::Future};

pub use call::CallError;
pub use client::Client;
pub use clusters::{Clusters, LABELS_KEPT};
use driftless_contract::{ObjectKey, Revision};
use driftless_core::ChangeRequest;
pub use driftless_core::{EventReason, EventType};
use jiff::Timestamp;
use kube::{
    Resource,
    core::{DynamicObject, NamespaceResourceScope, ObjectMeta},
};
#[doc(hidden)]
pub use kubeconfig::Entry;
pub use pages::Pages;
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
pub use watch::{WATCH, Watch};

/// The maximum number of objects that [`Cluster::of_cluster`] reads.
pub const MAX_OF_CLUSTER: usize = 200;

/// Reads what decides about a namespace: all objects of a kind that belongs to the cluster, and the
/// Namespace, empty if it does not exist. The inner `Err` says why they cannot be read.
pub async fn rules_of<C: Cluster>(
    cluster: &C,
    (api_version, plural): (&str, &str),
    cluster_name: &str,
    namespace: &str,
) -> Result<std::result::Result<(Vec<DynamicObject>, ObjectMeta), String>> {
    let rules = match cluster.of_cluster(api_version, plural).await {
        Err(Error::Permanent { message, .. }) => return Ok(Err(message)),
        rules => rules?,
    };
    let key = ObjectKey {
        cluster: cluster_name.to_owned(),
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        namespace: String::new(),
        name: namespace.to_owned(),
    };
    match cluster.get_dynamic(&key).await {
        Err(Error::Permanent { message, .. }) => Ok(Err(message)),
        found => Ok(Ok((rules, found?.map(|found| found.metadata).unwrap_or_default()))),
    }
}

/// Annotation of an Event: the revision of the source that it concerns.
pub const EVENT_REVISION: &str = "driftless.dev/revision";

/// The annotations of an Event.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventMarks<'a> {
    /// The revision of the source that it concerns: [`EVENT_REVISION`].
    pub revision: Option<&'a Revision>,
    /// The pull request that shows it: [`driftless_core::metadata::CHANGE_REQUEST`].
    pub change_request: Option<ChangeRequest>,
}

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The object changed since it was read, or already exists: reconcile it once more.
    #[error("{call}: {message}")]
    Conflict {
        /// The call, such as `replace status of Stack a/b`.
        call: String,
        /// The API server's message.
        message: String,
    },
    /// A retry may succeed: throttled, timed out, unavailable, or refused with credentials that may
    /// have been replaced.
    #[error("{call}: {message}")]
    Transient {
        /// The call.
        call: String,
        /// The API server's message.
        message: String,
    },
    /// The namespace is terminating, so no object can be created in it.
    #[error("{call}: {message}")]
    NamespaceTerminating {
        /// The call.
        call: String,
        /// The API server's message.
        message: String,
    },
    /// The object exists, and this release cannot read it, because a tenant chose its content. Only
    /// a change of the object helps.
    #[error("{call}: {message}")]
    Unreadable {
        /// The call.
        call: String,
        /// The cause, without a value of the object.
        message: String,
    },
    /// A retry would fail too: denied, invalid, unknown kind.
    #[error("{call}: {message}")]
    Permanent {
        /// The call.
        call: String,
        /// The API server's message.
        message: String,
    },
}

impl Error {
    /// Returns whether a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        // A terminating namespace is soon deleted, together with the reconciled object.
        matches!(self, Self::Transient { .. } | Self::Conflict { .. } | Self::NamespaceTerminating { .. })
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A kind that the functions read or write: typed, namespaced and known at compile time.
pub trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}
impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The address of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its URL.
    pub server: String,
    /// The CA certificates of its certificate, as PEM; absent if the public CAs suffice.
    pub certificate_authority: Option<String>,
}

/// Which objects of a kind a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector<'a> {
    /// All.
    All,
    /// Those that a field selector such as `spec.programRef.name=x` selects; [`term`] writes one.
    Fields(&'a str),
    /// Those that a label selector such as `app=x,tier=y` selects.
    Labels(&'a str),
}

/// A term of a field selector, for any value.
#[must_use]
pub fn term(field: &str, value: &str) -> String {
    let escaped = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
    format!("{field}={escaped}")
}

/// A page of a list.
#[derive(Clone, Debug)]
pub struct Page<K> {
    /// Its objects.
    pub objects: Vec<K>,
    /// The token of the next page; absent at the end.
    pub next: Option<String>,
}

/// The merge patch of [`Cluster::patch_metadata`]. It contains the version, so that a concurrent
/// change is a conflict.
#[must_use]
pub fn metadata_patch<K: Object>(object: &K) -> serde_json::Value {
    let ObjectMeta { uid, resource_version, finalizers, annotations, .. } = object.meta();
    let finalizers = finalizers.as_deref().unwrap_or_default();
    let annotations: BTreeMap<_, _> = annotations.iter().flatten().collect();
    let metadata = serde_json::json!({
        "uid": uid, "resourceVersion": resource_version, "finalizers": finalizers, "annotations": annotations,
    });
    serde_json::json!({ "metadata": metadata })
}

/// One cluster.
pub trait Cluster {
    /// The address of its API server, for other clients.
    fn endpoint(&self) -> Endpoint;
    /// The object, if it exists; [`Error::Unreadable`] if this release cannot read it.
    fn get<K: Object>(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Option<K>>>;
    /// An object of a kind that is known only at run time; one without a namespace is of the
    /// cluster. [`Error::Permanent`] for a kind that is not served or cannot be read.
    fn get_dynamic(&self, key: &ObjectKey) -> impl Future<Output = Result<Option<DynamicObject>>>;
    /// All objects of a kind that belongs to the cluster. Empty for a kind without a definition.
    /// [`Error::Permanent`] if there are more than [`MAX_OF_CLUSTER`], or they cannot be read.
    fn of_cluster(&self, api_version: &str, plural: &str) -> impl Future<Output = Result<Vec<DynamicObject>>>;
    /// The first page, or the one at `from`, of the selected objects of a namespace, or of all. An
    /// object that exists the whole time is on one of the pages; one that is created or deleted
    /// between two of them may be.
    fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        selector: Selector<'_>,
        from: Option<&str>,
    ) -> impl Future<Output = Result<Page<K>>>;
    /// The value of the label [`WATCH`] of a Namespace, if it has one; `None` if the Namespace does
    /// not exist.
    fn watch_label(&self, namespace: &str) -> impl Future<Output = Result<Option<Option<String>>>>;
    /// Makes the next [`Cluster::watch_label`] of a namespace read the label, if an implementation
    /// caches it.
    fn forget_label(&self, _namespace: &str) {}
    /// The values of that label on all Namespaces that have it, by name.
    fn watch_labels(&self) -> impl Future<Output = Result<BTreeMap<String, String>>>;
    /// Creates an object; [`Error::Conflict`] if it exists.
    fn create<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's metadata and spec over the version that was read. Fields of a user's
    /// object that its type here lacks are lost.
    fn replace<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's finalizers and annotations over the version that was read, and leaves the
    /// rest as the user wrote it. It removes no annotation.
    fn patch_metadata<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's status over the version that was read.
    fn replace_status<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Server-side apply of the object's fields, with ownership taken from other field managers.
    fn apply<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Deletes exactly this version of an object; succeeds if it no longer exists,
    /// [`Error::Conflict`] if it changed.
    fn delete<K: Object>(&self, object: &K) -> impl Future<Output = Result<()>>;
    /// A token of a `ServiceAccount`, and when it expires: after `seconds`, or at the API server's
    /// choice. Without an `audience` it is for the API server. [`Error::NamespaceTerminating`] if
    /// the namespace is terminating.
    fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> impl Future<Output = Result<(SecretString, Timestamp)>>;
    /// Publishes an Event about an object, with a note of at most 1024 bytes. A failure is logged
    /// and fails no reconciliation.
    fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        marks: EventMarks<'_>,
        at: Timestamp,
    ) -> impl Future<Output = ()>;
}
