use serde::{Deserialize, Serialize};

use crate::PREFIX;

/// After this many hops a hint is not forwarded: its object waits for the sweep, whose hints start
/// at zero.
///
/// A whole run takes about a dozen hops, so only a cycle without progress reaches the limit.
pub const MAX_HOPS: u8 = 64;

/// Flux sends a notification before it writes the source's status: if the revision does not show
/// yet, the source is reconciled again after these numbers of seconds.
pub const REVISION_RETRY_SECONDS: [u16; 3] = [2, 8, 30];

/// An object in a cluster, by name. Flux sources are of many kinds, so the kind is a string and the
/// group travels with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ObjectKey {
    /// The cluster: a context of the functions' kubeconfig.
    pub cluster: String,
    /// The API version, such as `pulumi.com/v1`.
    pub api_version: String,
    /// The kind, such as `Stack`.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// The same place in the same namespace, but another object.
    #[must_use]
    pub fn sibling(&self, api_version: &str, kind: &str, name: &str) -> Self {
        Self { api_version: api_version.into(), kind: kind.into(), name: name.into(), ..self.clone() }
    }

    /// A git repository, by any of its URLs: not an object of the cluster, but what `projectRepo`
    /// of Stacks may name. `None` for a URL without a server.
    #[must_use]
    pub fn repository(cluster: &str, url: &str) -> Option<Self> {
        Some(Self {
            cluster: cluster.into(),
            api_version: format!("{PREFIX}/v1"),
            kind: "Repository".into(),
            namespace: String::new(),
            name: driftless_core::repository(url)?,
        })
    }

    /// The API group of [`ObjectKey::api_version`]; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{}", self.cluster, self.kind, self.namespace, self.name)
    }
}

/// The message of the `hints` queue: it names an object worth reconciling. It carries no facts, so
/// a lost, repeated, late, reordered or forged hint only causes a late or a needless
/// reconciliation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hint {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The object to reconcile.
    pub object: ObjectKey,
    /// The revision that the sender saw, if it may not show on the object yet (see
    /// [`REVISION_RETRY_SECONDS`]). For a repository, the push as Flux would write it:
    /// `refs/heads/main@sha1:<commit>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The number of reconciliations that did not find that revision.
    #[serde(default)]
    pub looks: u8,
    /// The number of messages that led to this one since the last outside event (see [`MAX_HOPS`]).
    #[serde(default)]
    pub hops: u8,
}

impl Hint {
    /// A hint from an outside event.
    #[must_use]
    pub fn new(object: ObjectKey) -> Self {
        Self { version: crate::VERSION, object, revision: None, looks: 0, hops: 0 }
    }

    /// Merges another hint if it requests the same reconciliation, so that a batch reconciles each
    /// object once.
    pub fn absorb(&mut self, other: &Self) -> bool {
        let same = self.object == other.object && (self.revision == other.revision || other.revision.is_none());
        if same {
            self.hops = self.hops.max(other.hops);
        }
        same
    }

    /// The hint that follows from this one, for `object`; `None` after [`MAX_HOPS`].
    #[must_use]
    pub fn next(&self, object: ObjectKey) -> Option<Self> {
        Self::after(self.hops, object)
    }

    /// The hint that follows from a message with that many hops; `None` after [`MAX_HOPS`].
    #[must_use]
    pub fn after(hops: u8, object: ObjectKey) -> Option<Self> {
        (hops < MAX_HOPS).then(|| Self { hops: hops + 1, ..Self::new(object) })
    }
}
