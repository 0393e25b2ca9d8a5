//! Kubernetes as the functions see it. The port is a trait beside its one real implementation; the simulation has the other.

pub mod admissions;
mod client;
mod clusters;
mod failure;
mod kubeconfig;
mod pages;
mod watch;

use std::{collections::BTreeMap, fmt, future::Future};

pub use client::Client;
pub use clusters::{Clusters, LABELS_KEPT};
use driftless_contract::ObjectKey;
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

/// Annotation of an Event: the revision of the source that it is about.
pub const EVENT_REVISION: &str = "driftless.dev/revision";

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The object changed since it was read, or is there already: look again.
    #[error("{call}: {message}")]
    Conflict {
        /// The call, such as `replace status of Stack a/b`.
        call: String,
        /// The API server's words.
        message: String,
    },
    /// It may succeed later: throttled, timed out, unavailable, or refused with credentials that may have been replaced.
    #[error("{call}: {message}")]
    Transient {
        /// The call.
        call: String,
        /// The API server's words.
        message: String,
    },
    /// The namespace is terminating: nothing can be created in it.
    #[error("{call}: {message}")]
    NamespaceTerminating {
        /// The call.
        call: String,
        /// The API server's words.
        message: String,
    },
    /// The API server has the object, and this release cannot read it: a tenant chose its content. Only a change of the object helps.
    #[error("{call}: {message}")]
    Unreadable {
        /// The call.
        call: String,
        /// Why, without a value of the object.
        message: String,
    },
    /// It will not: denied, invalid, unknown kind.
    #[error("{call}: {message}")]
    Permanent {
        /// The call.
        call: String,
        /// The API server's words.
        message: String,
    },
}

impl Error {
    /// Another look may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        // A namespace that terminates is soon gone, and what was looked at with it.
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

/// Where an API server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its URL.
    pub server: String,
    /// The authorities that its certificate is signed by, as PEM; absent where the public ones do.
    pub certificate_authority: Option<String>,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Page<K> {
    /// Its objects.
    pub objects: Vec<K>,
    /// Where the next page begins; absent at the end.
    pub next: Option<String>,
}

/// The merge patch of [`Cluster::patch_metadata`]. With the version in it a change by somebody else is a conflict.
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
    /// Where its API server is, for others than this client.
    fn endpoint(&self) -> Endpoint;
    /// The object, if it is there; [`Error::Unreadable`] for one that this release cannot read.
    fn get<K: Object>(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Option<K>>>;
    /// An object of a kind that is known only at run time. [`Error::Permanent`] for a kind that is not served, or may not be read.
    fn get_dynamic(&self, key: &ObjectKey) -> impl Future<Output = Result<Option<DynamicObject>>>;
    /// The first page, or the one that begins at `from`, of the objects of a namespace, or of all, that a field selector such as
    /// `spec.programRef.name=x` chooses. An object that is there all the while is on one of the pages; one that comes or goes between two of
    /// them may be.
    fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        field_selector: Option<&str>,
        from: Option<&str>,
    ) -> impl Future<Output = Result<Page<K>>>;
    /// What the label [`WATCH`] of a Namespace says, if it has one; `None` if there is no such Namespace.
    fn watch_label(&self, namespace: &str) -> impl Future<Output = Result<Option<Option<String>>>>;
    /// Has the next [`Cluster::watch_label`] of a namespace read the label, if an implementation keeps it.
    fn forget_label(&self, _namespace: &str) {}
    /// What it says on all Namespaces that have it, by their names.
    fn watch_labels(&self) -> impl Future<Output = Result<BTreeMap<String, String>>>;
    /// Creates an object; [`Error::Conflict`] if it is there.
    fn create<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's metadata and spec over the version that was read. What a user's object has and its type here does not is lost.
    fn replace<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's finalizers and annotations over the version that was read, and leaves the rest as the user wrote it. No
    /// annotation is taken away.
    fn patch_metadata<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Writes an object's status over the version that was read.
    fn replace_status<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Server-side apply of the fields that the object has, taking them from whoever else set them.
    fn apply<K: Object>(&self, object: &K) -> impl Future<Output = Result<K>>;
    /// Deletes this very version of an object; fine if it is gone, [`Error::Conflict`] if it changed.
    fn delete<K: Object>(&self, object: &K) -> impl Future<Output = Result<()>>;
    /// A token of a `ServiceAccount`, and when it expires: after `seconds`, or when the API server says. It is for the API server where no
    /// `audience` is named. [`Error::NamespaceTerminating`] where the namespace is about to go.
    fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> impl Future<Output = Result<(SecretString, Timestamp)>>;
    /// Tells people about an object, in at most 1024 bytes, and which revision of its source that is about. What cannot be told is
    /// logged: no look fails for it.
    fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        revision: Option<&str>,
        at: Timestamp,
    ) -> impl Future<Output = ()>;
}
