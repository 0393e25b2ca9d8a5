use driftless_core::{FetchFacts, rest};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{ArtifactDigest, ObjectKey, Revision};

/// The message of the `sources.fifo` queue: a request to fetch a tree, or to delete old trees of a
/// source. In both cases the fetcher reads the facts itself. The two never overlap for one source,
/// because all messages of a source have one group in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchRequest {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The source: a Flux source, a Program, a Stack that names a git repository, or a Workspace
    /// that names a source itself. For a collection, its name in the bucket: see
    /// [`crate::keys::source_of_trees`].
    pub source: ObjectKey,
    /// The work to do.
    #[serde(default, rename = "collect")]
    pub kind: FetchKind,
    /// See [`crate::Hint::hops`].
    #[serde(default)]
    pub hops: u8,
}

/// The work of a fetch request. In the message, whether to collect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum FetchKind {
    /// To fetch a tree of the source.
    #[default]
    Fetch,
    /// To delete the source's trees that no Update needs.
    Collect,
}

impl From<bool> for FetchKind {
    fn from(collect: bool) -> Self {
        if collect { Self::Collect } else { Self::Fetch }
    }
}

impl From<FetchKind> for bool {
    fn from(kind: FetchKind) -> Self {
        kind == FetchKind::Collect
    }
}

impl FetchRequest {
    /// Requests a tree of a source, after that many hops.
    #[must_use]
    pub fn fetch(source: ObjectKey, hops: u8) -> Self {
        Self { version: crate::VERSION, source, kind: FetchKind::Fetch, hops }
    }

    /// Requests the deletion of a source's old trees.
    #[must_use]
    pub fn collect(source: ObjectKey) -> Self {
        Self { version: crate::VERSION, source, kind: FetchKind::Collect, hops: 0 }
    }
}

/// How the last fetch of a source ended: `fetches/<cluster>/<namespace>/<source>`. Written by the
/// fetcher, read for the conditions of the objects that use the source. Holds no content of the
/// source and no computed digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchOutcome {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The state of the source that was fetched: the digest that it named, for a Program its
    /// generation, and for git and a Workspace the fingerprint of the fields that say what to
    /// fetch.
    pub subject: String,
    /// When the fetch began.
    pub at: Timestamp,
    /// How long the fetch took, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took_seconds: u32,
    /// The revision and digest of a source for which no Kubernetes object states them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<FetchedArtifact>,
    /// The number of failed fetches in a row.
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

    /// The facts for a decision about the source.
    #[must_use]
    pub fn facts(self) -> FetchFacts<FetchedArtifact> {
        let (at, rests_until, failures) = (self.at, self.rests_until(), self.failures);
        let failure = self.failure.map(|FetchFailure { message, terminal }| driftless_core::FetchFailure {
            at: rests_until,
            message,
            terminal,
            failures,
        });
        FetchFacts { at, rests_until, artifact: self.artifact, failure }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// What a Stack's git repository, or a Workspace's source, had at the last fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchedArtifact {
    /// The commit's id; for an artifact, its digest.
    pub revision: Revision,
    /// The digest that the tree is stored under.
    pub digest: ArtifactDigest,
}

/// Why a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchFailure {
    /// The fact and the remedy, for the Stack's condition.
    pub message: String,
    /// The same content would fail again, so there is no retry until the source changes.
    pub terminal: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document as _, to_json};

    #[test]
    fn fetch_request_has_the_form_of_earlier_releases() {
        let source = ObjectKey {
            cluster: "c".into(),
            api_version: "pulumi.com/v1".into(),
            kind: "Program".into(),
            namespace: "n".into(),
            name: "p".into(),
        };
        for (request, collect) in [(FetchRequest::fetch(source.clone(), 0), "false"), (FetchRequest::collect(source), "true")] {
            let json = to_json(&request);
            assert!(json.ends_with(&format!(r#","collect":{collect},"hops":0}}"#)), "{json}");
            assert_eq!(FetchRequest::parse(json.as_bytes()).unwrap(), request);
        }
    }
}
