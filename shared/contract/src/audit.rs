//! The audit record of a run.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ArtifactDigest, PlanHash, Revision, RunId, StackId};

/// The audit record of a run, for people: its requester, what it ran and changed, and its end. No
/// function decides anything from it, and none can replace or delete it. It has no message and no
/// value of a program, so no secret can be in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuditRecord {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// For a run that a Stack has decided: the client, the schedule or the event that it answers,
    /// else the client that created the Update. A client is the name of its field manager. Absent
    /// if the Update was gone when the run was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// When the Update was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// The Stack of the run; absent for an Update without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackId>,
    /// The generation of the Stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack_generation: Option<i64>,
    /// The value of the annotation `pulumi.com/reconciliation-request` that the run answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile_request: Option<String>,
    /// `up`, `preview`, `refresh` or `destroy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Whether it changed neither resources nor the state.
    pub preview: bool,
    /// The URNs of the only resources that it could change; all if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// The revision of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Revision>,
    /// The digest of the source's tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ArtifactDigest>,
    /// The hash of the plan that the run made; absent for a run that was asked for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanHash>,
    /// The user who approved the plan that the run was to apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// The task that ran; absent if none started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// `succeeded`, `aborted`, or the reason of the failure.
    pub outcome: String,
    /// Resource changes by operation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changes: BTreeMap<String, u64>,
    /// When the operation started; absent if Pulumi never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the run ended, or was found to be gone.
    pub ended_at: Timestamp,
}
