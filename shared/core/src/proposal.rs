//! The plans of a guarded Stack, as its status has them.

use jiff::Timestamp;

use crate::{Operation, PlanHash, PlannedChanges, Revision};

/// The state of a guarded Stack's plans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanStatus {
    /// The Stack was guarded at the last reconciliation. If the cluster is not, the removal of the
    /// annotation has no effect.
    pub guarded: bool,
    /// The cluster demanded plans of it when that was last read.
    pub governed: bool,
    /// The Update of the proposal in progress.
    pub current: Option<String>,
    /// The Update of the last recorded proposal.
    pub last: Option<String>,
    /// The last plan.
    pub proposal: Option<Proposal>,
    /// At the last reconciliation, the cluster checked approvals and the Stack took those of plans
    /// of pull requests. Only one that appears after that was checked.
    pub takes_early: bool,
    /// The approval of a plan that only a pull request has shown.
    pub early: Option<EarlyApproval>,
    /// The approved plan that a run has used, or whose approval the cluster did not check, until
    /// its annotation is gone. The approval counts for no run.
    pub spent: Option<PlanHash>,
}

/// The approval of a plan that only a pull request has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyApproval {
    /// The [`PlannedChanges::early_hash`] of the plan.
    pub hash: PlanHash,
    /// The user who approved it.
    pub by: Option<String>,
    /// When it counts no more.
    pub expires: Timestamp,
}

impl EarlyApproval {
    /// Returns whether it is of this plan, with these changes.
    pub(crate) fn is_of(&self, plan: &PlannedChanges) -> bool {
        plan.early_hash().as_ref() == Some(&self.hash)
    }
}

/// The last plan of a Stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Its state.
    pub state: PlanState,
    /// Its first changes; `None` if the preview failed.
    pub plan: Option<PlannedChanges>,
    /// What it is a plan for.
    pub wish: Wish,
    /// The Update that made it.
    pub update: String,
    /// It was shown without an approval in a cluster with the policy. An approval that was there
    /// before was not checked.
    pub offered: bool,
    /// The policy of the cluster that requires an approval, regardless of the Stack's annotation.
    pub demanded: Option<String>,
    /// The user who approved or rejected it.
    pub by: Option<String>,
    /// When another one is made for the same wish; `None` if only another wish leads to another
    /// one.
    pub expires: Option<Timestamp>,
    /// What happened to the plan before it, or why the preview failed.
    pub note: String,
    /// The number of failed previews in a row.
    pub failures: i64,
    /// When the preview failed; `None` for a plan, which has its own time.
    pub failed_at: Option<Timestamp>,
}

impl Proposal {
    /// When it had read its inputs, if that is known.
    pub(crate) fn made(&self) -> Option<Timestamp> {
        self.plan.as_ref().map(|plan| plan.made_at).or(self.failed_at)
    }
}

/// What a run is wanted for. Another wish needs another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The operation, which is never a preview.
    pub operation: Operation,
    /// The revision of the source. Empty for a destroy: what it deletes follows from the state, so
    /// a new revision needs no new plan.
    pub commit: Revision,
    /// The generation of the Stack.
    pub generation: i64,
    /// The reconciliation request that it answers.
    pub reconcile_request: String,
    /// It refreshes first.
    pub refresh: bool,
    /// A digest of what it applies from Secrets and ConfigMaps; `None` if that is not known, or it
    /// applies none.
    pub inputs: Option<String>,
}

/// The state of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanState {
    /// It waits for an approval.
    Proposed,
    /// It was approved, or needs no approval, and is about to be applied.
    Approved,
    /// It was rejected.
    Rejected,
    /// It was not approved in time.
    Expired,
    /// It changed before it was applied. Nothing was touched.
    Stale,
    /// It was applied.
    Applied,
    /// The run that applied it failed, so a part of it may be applied.
    Partly,
    /// It had no changes.
    NoChanges,
    /// The preview failed.
    Failed,
    /// A pull request shows it. It is never applied.
    Preview,
}

impl PlanState {
    /// All states.
    pub const ALL: [Self; 10] = [
        Self::Proposed,
        Self::Approved,
        Self::Rejected,
        Self::Expired,
        Self::Stale,
        Self::Applied,
        Self::Partly,
        Self::NoChanges,
        Self::Failed,
        Self::Preview,
    ];

    /// The name in a status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Proposed => "Proposed",
            Self::Approved => "Approved",
            Self::Rejected => "Rejected",
            Self::Expired => "Expired",
            Self::Stale => "Stale",
            Self::Applied => "Applied",
            Self::Partly => "Partly",
            Self::NoChanges => "NoChanges",
            Self::Failed => "Failed",
            Self::Preview => "Preview",
        }
    }

    /// The state of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Returns whether it may still be applied.
    #[must_use]
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Proposed | Self::Approved | Self::Rejected)
    }
}
