use std::fmt;

/// Why an Update waits: `status.driftless.waitingReason`, and the reason of its condition `Progressing`. A Workspace that is not ready has the
/// same reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A limit of concurrent runs is reached.
    ConcurrencyLimit,
    /// A Secret or a ConfigMap may not be read.
    InputForbidden,
    /// A Secret or a ConfigMap, or a key of one, does not exist.
    InputNotFound,
    /// The inputs name another backend or project than when the launch was recorded.
    InputsChanged,
    /// No token of the ServiceAccount may be requested.
    ServiceAccountForbidden,
    /// An annotation of the ServiceAccount is invalid.
    ServiceAccountInvalid,
    /// The ServiceAccount does not exist.
    ServiceAccountNotFound,
    /// The Workspace's own source is being fetched.
    SourceNotFetched,
    /// The Workspace's own source cannot be fetched.
    SourceUnavailable,
    /// The spec cannot be run.
    SpecInvalid,
    /// Another run uses the Pulumi stack.
    StackClaimed,
    /// The Stack is suspended.
    StackSuspended,
    /// ECS started no task: capacity, a quota, or throttling.
    TaskNotStarted,
    /// ECS refuses to start tasks: the installation or the account is the cause.
    TaskRefused,
    /// The source's tree is not stored.
    TreeNotFound,
    /// The Workspace does not exist.
    WorkspaceNotFound,
}

impl WaitReason {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::ConcurrencyLimit,
        Self::InputForbidden,
        Self::InputNotFound,
        Self::InputsChanged,
        Self::ServiceAccountForbidden,
        Self::ServiceAccountInvalid,
        Self::ServiceAccountNotFound,
        Self::SourceNotFetched,
        Self::SourceUnavailable,
        Self::SpecInvalid,
        Self::StackClaimed,
        Self::StackSuspended,
        Self::TaskNotStarted,
        Self::TaskRefused,
        Self::TreeNotFound,
        Self::WorkspaceNotFound,
    ];

    /// The word in a status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "ConcurrencyLimit",
            Self::InputForbidden => "InputForbidden",
            Self::InputNotFound => "InputNotFound",
            Self::InputsChanged => "InputsChanged",
            Self::ServiceAccountForbidden => "ServiceAccountForbidden",
            Self::ServiceAccountInvalid => "ServiceAccountInvalid",
            Self::ServiceAccountNotFound => "ServiceAccountNotFound",
            Self::SourceNotFetched => "SourceNotFetched",
            Self::SourceUnavailable => "SourceUnavailable",
            Self::SpecInvalid => "SpecInvalid",
            Self::StackClaimed => "StackClaimed",
            Self::StackSuspended => "StackSuspended",
            Self::TaskNotStarted => "TaskNotStarted",
            Self::TaskRefused => "TaskRefused",
            Self::TreeNotFound => "TreeNotFound",
            Self::WorkspaceNotFound => "WorkspaceNotFound",
        }
    }

    /// The reason of a word in a status.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a run is abandoned: no task owns it, and none ever will. Displays the message of the Update and its Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// The Update was deleted.
    Deleted,
    /// Another operator created the Update for a Stack.
    Inherited,
    /// It holds its Pulumi stack or a slot, and something that it reads is gone. The message says what.
    InputsGone(String),
    /// The Update itself cannot be run: field, value and remedy.
    Invalid(String),
    /// Its inputs name another backend or project than when its launch was recorded.
    OtherProject,
    /// The Stack changed while the run waited.
    Outdated,
    /// It is a drift check, and another run of the same Pulumi stack is to begin.
    Preempted,
    /// The launch record is of another release.
    RecordUnreadable,
    /// The Stack does not name the Update.
    Superseded,
    /// It holds its Pulumi stack or a slot, and the Stack is suspended.
    Suspended,
    /// The namespace is not watched any more.
    Unwatched,
    /// The Update cannot be read.
    UpdateUnreadable,
}

impl fmt::Display for AbandonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Self::Deleted => "its Update was deleted",
            Self::Inherited => "another operator created its Update; Driftless creates one of its own",
            Self::InputsGone(message) => return write!(f, "run was abandoned before its task started: {message}"),
            Self::Invalid(message) => return write!(f, "{message}; this Update is not run, create another one"),
            Self::OtherProject => "its inputs name another backend or project than when its launch was recorded",
            Self::Outdated => "the Stack changed while it waited",
            Self::Preempted => "it is a drift check, and another run of the same Pulumi stack is to begin",
            Self::RecordUnreadable => "its launch was recorded by another release of Driftless",
            Self::Superseded => "its Stack does not name its Update as the current one",
            Self::Suspended => "the Stack is suspended, and others wait for what it held",
            Self::Unwatched => "Driftless does not watch its namespace any more",
            Self::UpdateUnreadable => "this release of Driftless cannot read its Update",
        };
        write!(f, "run was abandoned before its task started: {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_wait_reason_is_read_back() {
        for reason in WaitReason::ALL {
            assert_eq!(WaitReason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(WaitReason::parse("Progressing"), None);
    }
}
