use std::fmt;

/// Why a run was abandoned: no task ever owns it. Displays as the message of the Update and its
/// Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// The Update was deleted.
    Deleted,
    /// Another operator created the Update for a Stack.
    Inherited,
    /// It holds its Pulumi stack or a slot, and one of its inputs no longer exists. The message
    /// names it.
    InputsGone(String),
    /// The Update itself is invalid: field, value and remedy.
    Invalid(String),
    /// Its inputs name another backend or project than its launch record.
    OtherProject,
    /// The Stack changed while the run waited.
    Outdated,
    /// The maintenance window of its Stack closed while the run waited.
    OutsideWindow,
    /// It is a drift check, and another run of the same Pulumi stack is about to start.
    Preempted,
    /// Another release wrote the launch record in a form that this one cannot read.
    RecordUnreadable,
    /// The Stack does not name the Update.
    Superseded,
    /// It holds its Pulumi stack or a slot, and the Stack is suspended.
    Suspended,
    /// Its Stack requires an approval that it does not have.
    Unapproved,
    /// The namespace filter no longer includes the namespace.
    Unwatched,
    /// The Update cannot be read.
    UpdateUnreadable,
}

impl fmt::Display for AbandonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Self::Deleted => "its Update was deleted",
            Self::Inherited => "another operator created its Update; Driftless creates a new one",
            Self::InputsGone(message) => return write!(f, "run was abandoned before its task started: {message}"),
            Self::Invalid(message) => return write!(f, "{message}; this Update does not run; create another one"),
            Self::OtherProject => "its inputs name another backend or project than when its launch was recorded",
            Self::Outdated => "Stack changed while the run waited",
            Self::OutsideWindow => "the maintenance window closed while the run waited; another one starts when it opens",
            Self::Preempted => "drift check gave way to another run of the same Pulumi stack",
            Self::RecordUnreadable => "its launch record was written by another release of Driftless",
            Self::Superseded => "its Stack does not name its Update as the current one",
            Self::Suspended => "Stack is suspended, and other runs wait for its claim or slot",
            Self::Unapproved => "its Stack requires approvals, and it does not apply the approved plan",
            Self::Unwatched => "namespace filter no longer includes its namespace",
            Self::UpdateUnreadable => "this release of Driftless cannot read its Update",
        };
        write!(f, "run was abandoned before its task started: {reason}")
    }
}
