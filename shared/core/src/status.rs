use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::{Drift, Operation, StackReason, run::WaitReason};

/// A Stack's `status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StackStatus {
    /// The generation that was looked at last.
    pub observed_generation: Option<i64>,
    /// The annotation that was looked at last.
    pub observed_reconcile_request: String,
    /// The conditions; `None` before the first look.
    pub readiness: Option<Readiness>,
    /// The Update that is under way.
    pub current_update: Option<CurrentUpdate>,
    /// The Update that was recorded last.
    pub last_update: Option<LastUpdate>,
    /// Outputs of the last successful `up`, secret ones masked.
    pub outputs: Option<BTreeMap<String, Value>>,
    /// Name and runtime of the project that ran last with success, or at all if none did.
    pub project: Option<(String, String)>,
    /// Whether the operation of any of its runs ever began, so that its stack may have resources; `None` if that is not known.
    pub operated: Option<bool>,
    /// Whether any of its runs ever began; `None` if another operator ran it and that is not known.
    pub ran: Option<bool>,
    /// The last run failed because the backend's lock was somebody else's.
    pub conflict: bool,
    /// The platform failures of the last runs; `None` if Pulumi decided how the last run ended.
    pub platform_failures: Option<PlatformFailures>,
    /// The first of the Stacks that this one waits for. When that one succeeds, this one is looked at.
    pub waits_for: Option<String>,
    /// What is known of drift.
    pub drift: DriftStatus,
    /// It was suspended when it was looked at.
    pub suspended: bool,
    /// A digest of what the last run read from Secrets and ConfigMaps.
    pub inputs: Option<String>,
    /// The digest of all that matters to the Stack in the tree that ran last with success, if the Stack said what that is.
    pub scope: Option<String>,
    /// When a look is booked. A look at that time needs no event; the sweep makes up for one that got lost.
    pub next_look: Option<Timestamp>,
}

/// Runs in a row that the platform failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlatformFailures {
    /// How many, one at least.
    pub count: i64,
    /// Pulumi has not run this generation and request yet: its first failure is still not counted, as in PKO.
    pub fresh: bool,
}

/// What is known of a Stack's drift.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriftStatus {
    /// The Update that looks for it now.
    pub current: Option<String>,
    /// The Update that looked for it last.
    pub last: Option<String>,
    /// When that one was recorded.
    pub checked: Option<Timestamp>,
    /// What was found; `None` if nothing was found out yet.
    pub verdict: Option<DriftVerdict>,
}

/// The condition `Drifted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriftVerdict {
    /// False: everything is as it was applied.
    None,
    /// False: an update that refreshed succeeded after drift was found.
    Remediated,
    /// True.
    Found(Drift),
    /// Unknown, for that reason.
    Unknown(String),
}

/// The three arrangements of the conditions `Ready`, `Reconciling` and `Stalled` (kstatus).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Ready is True; the others are absent.
    Ready,
    /// Something is under way or waits.
    Reconciling {
        /// The reason.
        reason: StackReason,
        /// What it waits for.
        message: String,
    },
    /// Somebody has to do something, here or at the source.
    Stalled {
        /// The reason.
        reason: StackReason,
        /// What is wrong and what would mend it.
        message: String,
    },
}

impl Readiness {
    /// The readiness of a Stack whose run waits for what `message` says, by the reason on its Update.
    #[must_use]
    pub fn waiting(why: Option<WaitReason>, message: impl Into<String>) -> Self {
        if why == Some(WaitReason::SpecInvalid) {
            Self::stalled(StackReason::SpecInvalid, message)
        } else {
            Self::processing(message)
        }
    }

    /// Under way.
    #[must_use]
    pub fn processing(message: impl Into<String>) -> Self {
        Self::Reconciling { reason: StackReason::StackProcessing, message: message.into() }
    }

    /// Needs somebody.
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
    /// The annotation that it answers.
    pub reconcile_request: String,
    /// The revision that it runs.
    pub commit: String,
}

/// `status.lastUpdate`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastUpdate {
    /// The Update's name.
    pub name: String,
    /// The Stack's generation that it ran.
    pub generation: i64,
    /// The annotation that it answered.
    pub reconcile_request: String,
    /// What it did; `None` if an older operator did not say.
    pub operation: Option<Operation>,
    /// How it ended.
    pub state: LastUpdateState,
    /// Why it failed.
    pub message: String,
    /// The revision that it ran.
    pub last_attempted_commit: String,
    /// The revision that ran last with success.
    pub last_successful_commit: String,
    /// A link to it in Pulumi Cloud.
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
    /// Anything else: another operator's, left alone.
    Unknown,
}
