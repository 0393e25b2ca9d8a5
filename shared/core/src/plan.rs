use jiff::Timestamp;

use crate::{
    ArtifactDigest, Asked, ChangeRequest, CurrentUpdate, EventReason, Operation, PlanHash, Revision, SourceRef, StackStatus,
    Workspace,
};

/// The result of a reconciliation of a Stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The new status. It is written before [`Plan::effects`] are carried out, so that each effect
    /// is already on record.
    pub status: StackStatus,
    /// The effects, in this order. Each is idempotent; the next reconciliation repairs a crash
    /// between two of them.
    pub effects: Vec<Effect>,
    /// When to requeue. Equal to `status.next_reconciliation` if that changed, else `None`: the
    /// requeue was sent before, or the answer of the fetcher comes first.
    pub requeue_at: Option<Timestamp>,
}

/// An effect of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Add Driftless's finalizer to the Stack. Always the first, so that each run that starts can
    /// also be ended.
    AddFinalizer,
    /// Request the tree of this source from the fetcher.
    Fetch(SourceRef),
    /// Apply the Workspace, create the Update if it does not exist, and send it to the launcher.
    Run(Box<NewUpdate>),
    /// Create the drift check's Update if it does not exist, and send it to the launcher.
    CheckDrift(Box<NewUpdate>),
    /// Create the proposal's Update if it does not exist, and send it to the launcher. It previews
    /// its operation.
    Propose(Box<NewUpdate>),
    /// Empty the annotations of an approval that a run has used.
    SpendApproval,
    /// Send the current Update, or that of the drift check, to the launcher, because the Stack
    /// changed.
    Launch {
        /// The Update's namespace.
        namespace: String,
        /// The Update's name.
        update: String,
    },
    /// The Update's outcome is on the Stack: remove Driftless's finalizer from the Update, and
    /// delete it if it is not in the Stack's namespace.
    ReleaseUpdate {
        /// The Update's namespace.
        namespace: String,
        /// The Update's name.
        update: String,
    },
    /// Ask the launcher to compare the Secrets and ConfigMaps that the Stack refers to with what
    /// the last run read.
    CompareInputs,
    /// Hint the Stacks that wait for this one.
    WakeDependents,
    /// Delete the Workspace if it exists, and publish an Event about it.
    ReclaimWorkspace,
    /// Annotate a prerequisite to request a run of it.
    RequestReconcile {
        /// The Stack's name.
        stack: String,
        /// The annotation's value.
        request: String,
    },
    /// Publish an Event on the Stack.
    Event {
        /// Normal or Warning.
        event_type: EventType,
        /// The reason.
        reason: EventReason,
        /// The note.
        note: String,
        /// The revision of the source that it concerns, if any.
        revision: Option<Revision>,
        /// The pull request that shows it.
        change_request: Option<ChangeRequest>,
    },
    /// Delete the Stack, whose life has ended, and publish an Event about it.
    DeleteStack,
    /// Remove Driftless's finalizer from the Stack. Always the last.
    RemoveFinalizer,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// No problem.
    Normal,
    /// A problem.
    Warning,
}

/// An Update to create.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are pulumi's flags")]
pub struct NewUpdate {
    /// The identity of the run.
    pub current: CurrentUpdate,
    /// Pulumi's operation.
    pub operation: Operation,
    /// The reason for the run, for Pulumi's update message.
    pub message: String,
    /// What the run answers.
    pub asked: Asked,
    /// `--target`
    pub targets: Vec<String>,
    /// `--target-dependents`
    pub target_dependents: bool,
    /// `--refresh`
    pub refresh: bool,
    /// Refresh first, and fail if that changes anything.
    pub expect_no_refresh_changes: bool,
    /// `--run-program`
    pub run_program: bool,
    /// The tree to run; `None` to destroy from the state alone, see [`Workspace::project`].
    pub tree: Option<NewTree>,
    /// The environment, without secret values.
    pub workspace: Workspace,
    /// The last run failed, as it does when Fargate Spot reclaims its capacity, so this one runs on
    /// demand.
    pub on_demand: bool,
    /// The approved plan that it applies.
    pub plan: Option<PlanHash>,
}

/// The tree of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTree {
    /// The source of the tree.
    pub source: SourceRef,
    /// The digest of the tree, as the source names it.
    pub digest: ArtifactDigest,
    /// The directories and files of the tree that the run gets; empty for the whole tree.
    pub paths: Vec<String>,
    /// The digest of [`NewTree::paths`], if there are any.
    pub scope: Option<String>,
}
