use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ObjectKey;

/// The message of the `sources.fifo` queue: a tree is wanted. The fetcher reads the source again and fetches what it finds there;
/// the digest only says whether that was already done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchRequest {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The source: a Flux source or a Program.
    pub source: ObjectKey,
    /// See [`crate::Hint::hops`].
    #[serde(default)]
    pub hops: u8,
}

/// How the last fetch of a source ended: `fetches/<cluster>/<namespace>/<source>`. Written by the fetcher, read for the Stack's
/// condition. Holds no content of the source and no computed digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FetchOutcome {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The digest that the source named, or for a Program its generation: which state of the source this is about.
    pub subject: String,
    /// When it ended.
    pub at: Timestamp,
    /// Why there is no tree; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FetchFailure>,
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
