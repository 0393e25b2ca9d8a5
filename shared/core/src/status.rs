use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::{ChangeRequest, Drift, Operation, PlanStatus, Revision, StackReason, run::WaitReason};

/// A Stack's `status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StackStatus {
    /// The generation of the last reconciliation.
    pub observed_generation: Option<i64>,
    /// The reconciliation request that was last observed.
    pub observed_reconcile_request: String,
    /// The conditions; `None` before the first reconciliation.
    pub readiness: Option<Readiness>,
    /// The Update that is live or about to be created.
    pub current_update: Option<CurrentUpdate>,
    /// The Update that was recorded last.
    pub last_update: Option<LastUpdate>,
    /// Outputs of the last successful `up`, secret ones masked.
    pub outputs: Option<BTreeMap<String, Value>>,
    /// Name and runtime of the project of the last successful run, or of the last run if none
    /// succeeded.
    pub project: Option<(String, String)>,
    /// Whether Pulumi's operation started in any of its runs, so that its stack may have resources;
    /// `None` if that is not known.
    pub operated: Option<bool>,
    /// Whether any of its runs started; `None` if another operator ran it and that is not known.
    pub ran: Option<bool>,
    /// The last run failed because another process held the backend's lock.
    pub conflict: bool,
    /// The last runs, if they are not counted as tries; `None` if Pulumi decided how the last run
    /// ended.
    pub platform_failures: Option<PlatformFailures>,
    /// The first of the Stacks that this one waits for. When that one succeeds, this one is
    /// reconciled.
    pub waits_for: Option<String>,
    /// The state of drift.
    pub drift: DriftStatus,
    /// The announced end of its life.
    pub expiry: Option<Expiry>,
    /// The pull request that shows the results of its previews.
    pub change_request: Option<ChangeRequest>,
    /// The state of its plans, if it is guarded.
    pub plan: PlanStatus,
    /// It was suspended at the last reconciliation.
    pub suspended: bool,
    /// A digest of what the last run read from Secrets and ConfigMaps.
    pub inputs: Option<String>,
    /// The digest of the paths that the Stack uses in the tree of the last successful run, if it
    /// names them.
    pub scope: Option<String>,
    /// When the next reconciliation is due without an event. The sweep repairs the loss of its
    /// message.
    pub next_reconciliation: Option<Timestamp>,
}

impl StackStatus {
    /// Returns whether its last update succeeded. Drift alone starts a run only then.
    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        self.last_update.as_ref().is_some_and(|last| last.state == LastUpdateState::Succeeded)
    }
}

/// Runs in a row that do not count as tries: the platform failed them, or they were abandoned
/// before they started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlatformFailures {
    /// The number of those that the platform failed.
    pub count: i64,
    /// Pulumi has not run this generation and request yet: its first failure is still not counted,
    /// as in PKO.
    pub fresh: bool,
}

/// The state of a Stack's drift.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriftStatus {
    /// The Update of the current check.
    pub current: Option<String>,
    /// The Update of the last check that had a result.
    pub last: Option<String>,
    /// When a check was last recorded.
    pub checked: Option<Timestamp>,
    /// The result; `None` before the first one.
    pub verdict: Option<DriftVerdict>,
    /// The last update was an adoption, and failed.
    pub adoption_failed: bool,
}

/// The condition `Drifted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriftVerdict {
    /// False: the live resources match what was applied.
    None,
    /// False: an update that refreshed succeeded after drift was found.
    Remediated,
    /// False: the state has taken over the drift that was found.
    Adopted,
    /// True.
    Found(Drift),
    /// Unknown, for that reason.
    Unknown(String),
}

/// The three combinations of the conditions `Ready`, `Reconciling` and `Stalled` (kstatus).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Ready is True; the others are absent.
    Ready,
    /// A run is live, or the Stack waits for something.
    Reconciling {
        /// The reason.
        reason: StackReason,
        /// What it waits for.
        message: String,
    },
    /// A person has to act, here or at the source.
    Stalled {
        /// The reason.
        reason: StackReason,
        /// The fact and the remedy.
        message: String,
    },
}

impl Readiness {
    /// The readiness of a Stack whose run waits, from the reason on its Update and the message.
    #[must_use]
    pub fn waiting(why: Option<WaitReason>, message: impl Into<String>) -> Self {
        if why == Some(WaitReason::SpecInvalid) {
            Self::stalled(StackReason::SpecInvalid, message)
        } else {
            Self::processing(message)
        }
    }

    /// The readiness of a Stack that has a live run or waits.
    #[must_use]
    pub fn processing(message: impl Into<String>) -> Self {
        Self::Reconciling { reason: StackReason::StackProcessing, message: message.into() }
    }

    /// The readiness of a Stack that needs a person.
    #[must_use]
    pub fn stalled(reason: StackReason, message: impl Into<String>) -> Self {
        Self::Stalled { reason, message: message.into() }
    }
}

/// `status.currentUpdate`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentUpdate {
    /// The Update's name.
    pub name: String,
    /// The Stack's generation that it runs.
    pub generation: i64,
    /// The reconciliation request that it answers.
    pub reconcile_request: String,
    /// The revision that it runs.
    pub commit: Revision,
}

/// `status.lastUpdate`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastUpdate {
    /// The Update's name.
    pub name: String,
    /// The Stack's generation that it ran.
    pub generation: i64,
    /// The reconciliation request that it answered.
    pub reconcile_request: String,
    /// Its operation; `None` if an older operator did not record it.
    pub operation: Option<Operation>,
    /// How it ended.
    pub state: LastUpdateState,
    /// Why it failed.
    pub message: String,
    /// The revision that it ran.
    pub last_attempted_commit: Revision,
    /// The revision of the last successful run.
    pub last_successful_commit: Revision,
    /// A link to the update in Pulumi Cloud.
    pub permalink: Option<String>,
    /// When it was recorded.
    pub last_resync_time: Option<Timestamp>,
    /// Failures since the last success or change, not counting the first.
    pub failures: i64,
}

/// `status.lastUpdate.state`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastUpdateState {
    /// `succeeded`
    Succeeded,
    /// `failed`
    Failed,
    /// Any other value, from another operator. It is left unchanged.
    Unknown,
}

/// The end of a Stack as it was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// When the Stack is deleted; if something prevents that, when its TTL ends.
    pub at: Timestamp,
    /// What prevents the deletion, with the remedy.
    pub blocked: Option<String>,
}
