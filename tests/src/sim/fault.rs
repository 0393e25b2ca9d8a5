//! Single faults: runs that are calm except for one fault.

use std::{fmt, str::FromStr};

/// The only fault of an otherwise calm run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The number of the call of a port, or of the message, counted from 0.
    pub at: u64,
}

/// The kinds of single faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The invocation ends before the call.
    CrashBefore,
    /// The invocation ends after the call.
    CrashAfter,
    /// The call fails and has no effect.
    Transient,
    /// The call has its effect and fails.
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
