use jiff::{SignedDuration, Timestamp};

use super::WaitReason;
use crate::TaskEnd;

/// What is known of an Update and its run. A fact that may not matter is `None` until it is read.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    /// The object.
    pub object: Object,
    /// What is asked about a task that owns the run.
    pub question: Question,
    /// Whether the namespace is watched: that of its Stack if it has one, else its own.
    pub watched: Option<bool>,
    /// How the Stack and the Update stand to each other, by the Stack that exists.
    pub standing: Option<Standing>,
    /// Whether the Stack waits for the end of this Update.
    pub named: Option<bool>,
    /// Whether the outcome is recorded.
    pub outcome: Option<bool>,
    /// The owner of the run, if it has one.
    pub owner: Option<Option<OwnerFacts>>,
    /// The launch record, if there is one.
    pub launch: Option<Option<LaunchFacts>>,
    /// Whether a run without an owner holds its Pulumi stack or a slot: a launch took them and was interrupted.
    pub holds: Option<bool>,
    /// What kept the last try to start a task from it.
    pub block: Option<Block>,
    /// What is in the folder of the task that owns the run.
    pub inbox: Option<Inbox>,
    /// The task that owns the run, by the word of ECS.
    pub task: Option<TaskFacts>,
    /// Whether the task has shown progress, or holds the backend's lock: Pulumi may have begun.
    pub began: Option<bool>,
    /// The task's result, if it reported one.
    pub result: Option<Option<TaskResult>>,
    /// The task was told to stop.
    pub stopped: bool,
    /// The time that the installation gives a task until its first progress, in seconds. For [`Question::End`].
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

/// What an Update says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts of their own")]
pub struct UpdateFacts {
    /// How long ago it was created.
    pub age: SignedDuration,
    /// It is being deleted.
    pub deleting: bool,
    /// It has our finalizer.
    pub finalizer: bool,
    /// It is of a Stack.
    pub of_stack: bool,
    /// It has a snapshot of what it runs, `spec.driftless`. Driftless writes one into every Update that it runs.
    pub snapshot: bool,
    /// Driftless created it for a Stack, or keeps it for a user.
    pub ours: bool,
    /// Since when its status says that it is complete. That is no proof: users can write the status.
    pub complete_since: Option<Timestamp>,
    /// `spec.ttlAfterCompleted`
    pub ttl: Option<SignedDuration>,
    /// What its status says that it waits for.
    pub waiting: Option<WaitReason>,
    /// Its status shows a task.
    pub task: bool,
}

impl UpdateFacts {
    /// Its status says that it is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete_since.is_some()
    }

    /// Another operator created it for a Stack, and may not have ended it.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.of_stack && !self.snapshot
    }
}

/// What a function asks about a task that owns a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Question {
    /// What it needs: the launcher's.
    #[default]
    Supply,
    /// Whether it has ended: the recorder's.
    End,
}

/// How an Update and its Stack stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The Stack names the Update, or the Update has no Stack.
    Current,
    /// The Stack names the Update and has changed since: a run that cannot start need not.
    Outdated,
    /// The Stack names the Update and is suspended.
    Suspended,
    /// The Stack does not name the Update.
    Foreign,
}

impl Standing {
    /// Of an Update and the Stack that exists: whether that names the Update, is suspended, and is of the generation that the Update runs.
    #[must_use]
    pub fn of_stack(is_named: bool, is_suspended: bool, is_generation: bool) -> Self {
        match (is_named, is_suspended, is_generation) {
            (false, ..) => Self::Foreign,
            (true, true, _) => Self::Suspended,
            (true, false, true) => Self::Current,
            (true, false, false) => Self::Outdated,
        }
    }
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
    /// Its request can be read: another release may have written it in another form.
    pub readable: bool,
    /// Since when ECS starts no task for it.
    pub refused_since: Option<Timestamp>,
    /// The time that the run may take, in seconds.
    pub max_seconds: Option<u32>,
}

/// Why a run did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Something that passes or that a user can mend.
    Wait {
        /// The reason.
        reason: WaitReason,
        /// The fact, and its remedy.
        message: String,
        /// It is about what the run reads, not about what all runs share.
        is_of_inputs: bool,
    },
    /// The Update itself asks for what cannot be run: field, value and remedy.
    Invalid(String),
    /// What it reads names another backend or project than its launch record.
    OtherProject,
}

/// What is in the folder of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inbox {
    /// The task reported its result.
    pub result: bool,
    /// It has its spec, the last document that it is given.
    pub spec: bool,
    /// Its tokens are to be renewed before they expire.
    pub old_tokens: bool,
}

/// A task, by the word of ECS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskFacts {
    /// It runs, or is about to. `end` says why it is about to stop.
    Alive {
        /// Empty for a task that goes on.
        end: TaskEnd,
    },
    /// It stopped.
    Stopped {
        /// Why.
        end: TaskEnd,
    },
    /// ECS does not know it.
    Missing,
}

/// What a task reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// It was told to stop before it was done.
    pub interrupted: bool,
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
    /// [`RunFacts::inbox`]
    Inbox,
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

    pub(super) fn inbox(&self) -> Known<Inbox> {
        self.inbox.ok_or(Need::Inbox)
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
