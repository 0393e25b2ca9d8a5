use jiff::{SignedDuration, Timestamp};

use super::WaitReason;
use crate::{FailureReason, PlanHash, TaskEnd};

/// The facts about an Update and its run. A fact that may not matter is `None` until it is read.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    /// The Update object.
    pub object: Object,
    /// The question about a task that owns the run.
    pub question: Question,
    /// Whether the namespace filter includes its Stack's namespace, or its own if it has no Stack.
    pub watched: Option<bool>,
    /// The relation between the Update and the existing Stack.
    pub standing: Option<Standing>,
    /// Whether the Stack waits for the end of this Update.
    pub named: Option<bool>,
    /// Whether the outcome is recorded.
    pub outcome: Option<bool>,
    /// The owner of the run, if it has one.
    pub owner: Option<Option<OwnerFacts>>,
    /// The launch record, if there is one.
    pub launch: Option<Option<LaunchFacts>>,
    /// Whether a run without an owner holds its Pulumi stack or a slot: a launch took them and was
    /// interrupted.
    pub holds: Option<bool>,
    /// What prevented the last try to start a task.
    pub block: Option<Block>,
    /// The content of the folder of the task that owns the run.
    pub task_folder: Option<TaskFolderFacts>,
    /// The state of the task that owns the run.
    pub task: Option<TaskFacts>,
    /// Whether the task has shown progress, or holds the backend's lock: Pulumi may have started.
    pub began: Option<bool>,
    /// The task's result, if it reported one.
    pub result: Option<Option<TaskResult>>,
    /// The task was told to stop.
    pub stopped: bool,
    /// The time that the installation gives a task until its first progress, in seconds. For
    /// [`Question::End`].
    pub start_seconds: u32,
}

/// The Update object.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Object {
    /// It exists.
    Found(UpdateFacts),
    /// It exists, and this release cannot read it.
    Unreadable,
    /// It does not exist.
    #[default]
    Gone,
}

/// The facts that an Update states about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts of their own")]
pub struct UpdateFacts {
    /// How long ago it was created.
    pub age: SignedDuration,
    /// It is being deleted.
    pub deleting: bool,
    /// It has Driftless's finalizer.
    pub finalizer: bool,
    /// It belongs to a Stack.
    pub of_stack: bool,
    /// It has the spec of its run, `spec.driftless`. Driftless writes that into every Update that
    /// it runs.
    pub snapshot: bool,
    /// Driftless created it for a Stack, or has its finalizer on a user's Update.
    pub ours: bool,
    /// Since when its status says that it is complete. That is no proof, because users can write
    /// the status.
    pub complete_since: Option<Timestamp>,
    /// `spec.ttlAfterCompleted`
    pub ttl: Option<SignedDuration>,
    /// A reader asks for a new link to the log of its ended run.
    pub asks_for_log: bool,
    /// The waiting reason in its status.
    pub waiting: Option<WaitReason>,
    /// Its status shows a task.
    pub task: bool,
}

impl UpdateFacts {
    /// Returns whether its status says that it is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete_since.is_some()
    }

    /// Returns whether another operator created it for a Stack and may not have ended it.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.of_stack && !self.snapshot
    }
}

/// The question about a task that owns a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Question {
    /// What does the task need? The launcher's question.
    #[default]
    Supply,
    /// Has the task ended? The recorder's question.
    End,
}

/// The relation between an Update and its Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The Stack names the Update, or the Update has no Stack.
    Current,
    /// The Stack names the Update and has changed since, so a run that cannot start is abandoned.
    Outdated,
    /// The Stack names the Update and is suspended.
    Suspended,
    /// The Stack names the Update, which changes resources, and its maintenance window is closed.
    OutsideWindow,
    /// The Stack names the Update, which changes resources and does not apply its approved plan.
    Unapproved,
    /// The Stack does not name the Update.
    Foreign,
}

impl Standing {
    /// The relation, from whether the Stack names the Update, what holds it, and whether the Stack
    /// has the generation that the Update runs.
    #[must_use]
    pub fn of_stack(is_named: bool, hold: Option<Hold>, is_generation: bool) -> Self {
        match (is_named, hold, is_generation) {
            (false, ..) => Self::Foreign,
            (true, Some(Hold::Suspended), _) => Self::Suspended,
            (true, Some(Hold::OutsideWindow), _) => Self::OutsideWindow,
            (true, Some(Hold::Unapproved), _) => Self::Unapproved,
            (true, None, true) => Self::Current,
            (true, None, false) => Self::Outdated,
        }
    }
}

/// Why a Stack starts no run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is suspended.
    Suspended,
    /// The run changes resources, and the maintenance window is closed.
    OutsideWindow,
    /// The run changes resources and does not apply the approved plan.
    Unapproved,
}

/// The reconciler read what the cluster demands when it created the Update; a younger one may start
/// without another read.
const FRESH: SignedDuration = SignedDuration::from_mins(1);

/// Returns whether what the cluster demands has to be read before the run of a Stack starts:
/// nothing else holds it, it changes resources without a plan, and its Update, created at that
/// time, may be older than a policy.
#[must_use]
pub fn may_be_demanded(
    hold: Option<Hold>,
    changes: bool,
    plan: Option<&PlanHash>,
    created: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    let is_fresh = created.is_some_and(|created| now.duration_since(created) <= FRESH);
    hold.is_none() && changes && plan.is_none() && !is_fresh
}

/// The owner of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OwnerFacts {
    /// A task.
    Task {
        /// Since when.
        since: Timestamp,
    },
    /// The run was abandoned.
    Closed,
}

/// The launch record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchFacts {
    /// This release can read its request; another release may have written it in another form.
    pub readable: bool,
    /// Since when no task could be started for it.
    pub refused_since: Option<Timestamp>,
    /// The time that the run may take, in seconds.
    pub max_seconds: Option<u32>,
}

/// Why a run cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// The cause is transient, or a user can fix it.
    Wait {
        /// The reason.
        reason: WaitReason,
        /// The fact, and its remedy.
        message: String,
        /// The cause is an input of this run, not a resource that all runs share.
        is_of_inputs: bool,
    },
    /// The Update itself is invalid: field, value and remedy.
    Invalid(String),
    /// Its inputs name another backend or project than its launch record.
    OtherProject,
    /// Its Stack names another Stack, whose plan it makes, than its launch record.
    Outdated,
}

/// The content of a task's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskFolderFacts {
    /// The task reported its result.
    pub result: bool,
    /// It has its spec, the last document that the launcher writes.
    pub spec: bool,
    /// Its tokens are due for renewal.
    pub old_tokens: bool,
}

/// The state of a task in the place where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskFacts {
    /// It runs or is about to. `end` says why it is about to stop.
    Alive {
        /// Empty for a task that is not about to stop.
        end: TaskEnd,
    },
    /// It stopped.
    Stopped {
        /// Why.
        end: TaskEnd,
    },
    /// It is not known there.
    Missing,
}

/// What a task reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// Why the run failed, if it did.
    pub failure: Option<FailureReason>,
}

/// A fact that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// [`RunFacts::watched`]
    Watched,
    /// [`RunFacts::standing`]
    Standing,
    /// [`RunFacts::named`]
    Named,
    /// [`RunFacts::outcome`]
    Outcome,
    /// [`RunFacts::owner`]
    Owner,
    /// [`RunFacts::launch`]
    Launch,
    /// [`RunFacts::holds`]
    Holds,
    /// [`RunFacts::task_folder`]
    TaskFolder,
    /// [`RunFacts::task`]
    Task,
    /// [`RunFacts::began`]
    Began,
    /// [`RunFacts::result`]
    Result,
}

type Known<T> = Result<T, Need>;

impl RunFacts {
    pub(super) fn watched(&self) -> Known<bool> {
        self.watched.ok_or(Need::Watched)
    }

    pub(super) fn standing(&self) -> Known<Standing> {
        self.standing.ok_or(Need::Standing)
    }

    pub(super) fn named(&self) -> Known<bool> {
        self.named.ok_or(Need::Named)
    }

    pub(super) fn outcome(&self) -> Known<bool> {
        self.outcome.ok_or(Need::Outcome)
    }

    pub(super) fn owner(&self) -> Known<Option<OwnerFacts>> {
        self.owner.ok_or(Need::Owner)
    }

    pub(super) fn launch(&self) -> Known<Option<LaunchFacts>> {
        self.launch.ok_or(Need::Launch)
    }

    pub(super) fn holds(&self) -> Known<bool> {
        self.holds.ok_or(Need::Holds)
    }

    pub(super) fn task_folder(&self) -> Known<TaskFolderFacts> {
        self.task_folder.ok_or(Need::TaskFolder)
    }

    pub(super) fn task(&self) -> Known<&TaskFacts> {
        self.task.as_ref().ok_or(Need::Task)
    }

    pub(super) fn began(&self) -> Known<bool> {
        self.began.ok_or(Need::Began)
    }

    pub(super) fn result(&self) -> Known<Option<TaskResult>> {
        self.result.ok_or(Need::Result)
    }
}
