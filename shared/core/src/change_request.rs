//! The pull request that a Stack previews.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    ChangeKind,
    bound::{self, MAX_URN_BYTES},
};

/// The number of a pull request or a merge request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRequest(pub u32);

impl ChangeRequest {
    /// Reads a number; `None` unless the text has only digits and the number is in range and not 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number > 0 && text.bytes().all(|byte| byte.is_ascii_digit())).map(Self)
    }
}

impl fmt::Display for ChangeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A resource that a preview would change. Changes are listed by kind and then by URN.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PreviewedChange {
    /// How it would change.
    pub kind: ChangeKind,
    /// Its URN.
    pub urn: String,
}

impl PreviewedChange {
    /// The maximum number of resources that a report names.
    pub const MAX: usize = 4;

    /// Returns as much as is kept of a report's list.
    #[must_use]
    pub fn bounded(changes: Vec<Self>) -> Vec<Self> {
        let change = |Self { kind, urn }| Self { kind, urn: bound::line(&urn, MAX_URN_BYTES) };
        changes.into_iter().take(Self::MAX).map(change).collect()
    }
}

/// The changes that a preview found. It has names and counts, and no property values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previewed {
    /// The number of resources by kind of change.
    pub counts: BTreeMap<ChangeKind, u32>,
    /// The first changes.
    pub first: Vec<PreviewedChange>,
}

impl Previewed {
    /// Returns whether the preview found no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.values().all(|count| *count == 0)
    }
}
