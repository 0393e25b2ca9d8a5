use driftless_core::rest;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ObjectKey;

/// The message of the `sources.fifo` queue: a tree is wanted, or some of a source's may be deleted. Either way the fetcher reads the
/// facts again. The two never overlap for one source, as all messages of a source have one group in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchRequest {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The source: a Flux source, a Program, a Stack that names a git repository, or a Workspace that names a source itself. To collect,
    /// as the bucket names it: see [`crate::keys::source_of_trees`].
    pub source: ObjectKey,
    /// Delete the trees of the source that nobody needs, instead of fetching one.
    #[serde(default)]
    pub collect: bool,
    /// See [`crate::Hint::hops`].
    #[serde(default)]
    pub hops: u8,
}

/// How the last fetch of a source ended: `fetches/<cluster>/<namespace>/<source>`. Written by the fetcher, read for the
/// conditions of those that want it. Holds no content of the source and no computed digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchOutcome {
    /// [`crate::VERSION`].
    pub version: u32,
    /// Which state of the source this is about: the digest that it named, for a Program its generation, and for git and a Workspace the
    /// fingerprint of the fields that say what to fetch.
    pub subject: String,
    /// When the fetch began.
    pub at: Timestamp,
    /// How long the fetch took, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took_seconds: u32,
    /// What the source offers, where no object says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<FetchedArtifact>,
    /// How often fetching this failed in a row.
    #[serde(default)]
    pub failures: u32,
    /// Why there is no tree; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FetchFailure>,
}

impl FetchOutcome {
    /// The end of the source's rest after a slow fetch; `at` if the fetch was not slow.
    #[must_use]
    pub fn rests_until(&self) -> Timestamp {
        let took = SignedDuration::from_secs(self.took_seconds.into());
        let rest = rest(took, self.failures);
        if rest.is_zero() { self.at } else { self.at.checked_add(took + rest).unwrap_or(self.at) }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// What a Stack's git repository, or a Workspace's source, had at the last look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchedArtifact {
    /// The commit's id; of an artifact, its digest.
    pub revision: String,
    /// The digest that the tree is stored under.
    pub digest: String,
}

/// Why a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchFailure {
    /// What is wrong and what would mend it, for the Stack's condition.
    pub message: String,
    /// The same content will fail again: not tried again until the source changes.
    pub terminal: bool,
}
