use serde::{Deserialize, Serialize};

use crate::{Hint, ObjectKey, Uid, VERSION};

/// The message of the `launches` queue: an Update may need a task started or stopped, or the inputs
/// of a Stack's runs may have changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LaunchHint {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The Update to launch, the Workspace to check, or the Stack whose inputs are compared.
    pub update: ObjectKey,
    /// See [`crate::Hint::hops`].
    #[serde(default)]
    pub hops: u8,
}

/// The kind of object that a launch hint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchKind {
    /// An Update to launch.
    Update,
    /// A Workspace to check.
    Workspace,
    /// A Stack whose inputs are compared.
    Stack,
}

impl LaunchHint {
    /// The kind of the object.
    #[must_use]
    pub fn kind(&self) -> LaunchKind {
        match self.update.kind.as_str() {
            "Stack" => LaunchKind::Stack,
            "Workspace" => LaunchKind::Workspace,
            _ => LaunchKind::Update,
        }
    }

    /// Merges another message about the same object.
    pub fn absorb(&mut self, other: &Self) -> bool {
        let same = self.update == other.update;
        if same {
            self.hops = self.hops.max(other.hops);
        }
        same
    }

    /// The launch hint that follows from a message with that many hops; `None` after
    /// [`crate::MAX_HOPS`].
    #[must_use]
    pub fn after(hops: u8, update: ObjectKey) -> Option<Self> {
        Hint::after(hops, update).map(|hint| Self { version: VERSION, update: hint.object, hops: hint.hops })
    }
}

/// Driftless's own message of the `runs` queue: the run of an Update may have ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunHint {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The Update.
    pub update: ObjectKey,
    /// The Update's uid, if known: claim and slot of the run are released even if its Update no
    /// longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// See [`crate::Hint::hops`].
    #[serde(default)]
    pub hops: u8,
}

impl RunHint {
    /// The run hint that follows from a message with that many hops; `None` after
    /// [`crate::MAX_HOPS`].
    #[must_use]
    pub fn after(hops: u8, update: ObjectKey, uid: Option<Uid>) -> Option<Self> {
        Hint::after(hops, update).map(|hint| Self { version: VERSION, update: hint.object, uid, hops: hint.hops })
    }
}

/// The sweeper's message of the `runs` queue: a task is alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TaskHint {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The task's name in the place where it runs.
    pub task: String,
}
