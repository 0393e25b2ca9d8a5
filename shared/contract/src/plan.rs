//! Plans: what the launcher asks a run of a guarded Stack to do, and what is kept of the answer.

use std::fmt;

use driftless_core::{PlanHash, PlannedChanges};
use serde::{Deserialize, Serialize};

use crate::{RunId, Uid};

/// What a run of a guarded Stack may do, as its launch records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum PlanMode {
    /// Make a plan and change nothing.
    Propose {
        /// For a pull request: the Stack whose plan it is, in place of the run's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<Uid>,
    },
    /// Make a plan, and apply it if its hash is the approved one.
    Apply {
        /// The approved hash.
        hash: PlanHash,
        /// The user who approved it; absent for a plan that needs no approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        approved_by: Option<String>,
    },
}

impl PlanMode {
    /// The user who approved the plan that the run may apply.
    #[must_use]
    pub fn approved_by(&self) -> Option<String> {
        match self {
            Self::Propose { .. } => None,
            Self::Apply { approved_by, .. } => approved_by.clone(),
        }
    }
}

/// The part of a run's spec that makes it plan before it acts. A run with [`PlanRequest::approved`]
/// applies exactly that plan or changes nothing; one without changes nothing. Has no `Debug`,
/// because the key is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlanRequest {
    /// The key of the digests in the plan, 64 digits of hex: HMAC-SHA256 under
    /// [`crate::keys::INPUTS_KEY`] of `plan` and the uid of the Stack. It is equal for all runs of
    /// a Stack and of its pull requests, and masked in all output.
    pub key: String,
    /// The digest of what the launcher knows: stack, backend, operation, flags and inputs. The
    /// proposal and the run that applies it must have the same, so the operation in it is the one
    /// that is applied.
    pub binding: PlanHash,
    /// The digest of the tree within the paths of the Stack. Absent for a run without a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// The approved hash; absent for a proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<PlanHash>,
    /// The policy packs that the preview and the update are held to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<RunPack>,
}

/// A policy pack of a run. Its tree is in the folder of the task: see
/// [`crate::keys::TaskFolder::policy_pack`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunPack {
    /// The `PlanPolicy` that names it.
    pub policy: String,
    /// Its name there.
    pub name: String,
    /// Its directory within the tree; empty for the root.
    pub dir: String,
    /// See [`crate::RunSource::Tree`].
    pub manifest_sha256: String,
}

impl fmt::Display for RunPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, name, .. } = self;
        write!(f, "policy pack {name:?} of PlanPolicy {policy:?}")
    }
}

/// The record of a plan, for people: `plans/…`, written once, by the recorder. No secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlanRecord {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run that made the plan first.
    pub run: RunId,
    /// The plan.
    pub plan: PlannedChanges,
}
