use jiff::Timestamp;

use crate::{CurrentUpdate, EventReason, Operation, SourceRef, StackStatus, Workspace};

/// What a look at a Stack leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The status to be. Written before [`Plan::effects`] are carried out, so that what they do is already on record.
    pub status: StackStatus,
    /// What is to be done, in this order. Each may be repeated without harm; a crash between two is repaired by the next look.
    pub effects: Vec<Effect>,
    /// A look to book. The same time as in `status.next_look` when that changed, else `None`: it is booked already, or the answer of the
    /// fetcher comes before it.
    pub look_at: Option<Timestamp>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put our finalizer on the Stack. Always the first: nothing is begun that could not be ended.
    AddFinalizer,
    /// Ask the fetcher for the tree of this source.
    Fetch(SourceRef),
    /// Create or change the Workspace, create the Update, if it is not there, and tell the launcher to look at it.
    Run(Box<NewUpdate>),
    /// Create the Update that looks for drift, if it is not there, and tell the launcher to look at it.
    CheckDrift(Box<NewUpdate>),
    /// Tell the launcher to look at the current Update, or at the one that looks for drift, because the Stack changed.
    Launch {
        /// The Update's namespace.
        namespace: String,
        /// The Update's name.
        update: String,
    },
    /// The Update's outcome is on the Stack: take our finalizer off the Update, and delete it if it is not in the Stack's namespace.
    ReleaseUpdate {
        /// The Update's namespace.
        namespace: String,
        /// The Update's name.
        update: String,
    },
    /// Have the launcher compare the Secrets and ConfigMaps that the Stack refers to with what the last run read.
    CompareInputs,
    /// Look at the Stacks that wait for this one.
    WakeDependents,
    /// Delete the Workspace, if it is there, and tell of it.
    ReclaimWorkspace,
    /// Annotate a prerequisite so that it runs again.
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
        /// The revision of the source that it is about, if it is about one.
        revision: Option<String>,
    },
    /// Take our finalizer off the Stack. Always the last.
    RemoveFinalizer,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// All is well.
    Normal,
    /// It is not.
    Warning,
}

/// An Update to create.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are pulumi's flags")]
pub struct NewUpdate {
    /// Which run it is.
    pub current: CurrentUpdate,
    /// What it does.
    pub operation: Operation,
    /// Why, for its message.
    pub message: String,
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
    /// What it runs; `None` to destroy from the state alone, see [`Workspace::project`].
    pub tree: Option<NewTree>,
    /// The environment, without secret values.
    pub workspace: Workspace,
    /// The last one failed, as it does when Fargate Spot takes its capacity back: this one has to get through, and is on demand.
    pub on_demand: bool,
}

/// The tree of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTree {
    /// Where the tree is from.
    pub source: SourceRef,
    /// The digest of the tree, as the source names it.
    pub digest: String,
    /// The directories and files of the tree that the run gets; empty for all of it.
    pub paths: Vec<String>,
    /// The digest of [`NewTree::paths`], if there are any.
    pub scope: Option<String>,
}
