//! Single faults: runs that are calm but for one thing.

use std::{fmt, str::FromStr};

/// The one thing that goes wrong in a run that is calm otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// At which call of a port, or with which message, counted from 0.
    pub at: u64,
}

/// What can go wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The invocation ends before the call.
    CrashBefore,
    /// The invocation ends after the call.
    CrashAfter,
    /// The call fails and has no effect.
    Transient,
    /// The call fails and has its effect.
    LostAnswer,
    /// The message is delivered twice.
    Duplicate,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::CrashBefore, Self::CrashAfter, Self::Transient, Self::LostAnswer, Self::Duplicate];
}

/// `CrashBefore:7`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}", self.kind, self.at)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(kind, at)| {
            let kind = FaultKind::ALL.into_iter().find(|known| format!("{known:?}") == kind)?;
            Some(Self { kind, at: at.parse().ok()? })
        });
        parsed.ok_or_else(|| format!("{text:?} is not KIND:NUMBER with a KIND of {:?}", FaultKind::ALL))
    }
}
