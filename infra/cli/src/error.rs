use std::process::ExitCode;

/// Why a command failed: the fact, its consequence and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The command did not do what it was asked for, or what it waited for has failed.
    #[error("{0}")]
    Failed(String),
    /// `diff` or `migrate` could not find out what it was asked for.
    #[error("{0}")]
    Unknown(String),
    /// The time was up before what it waited for had happened.
    #[error("{0}")]
    TimedOut(String),
}

impl Error {
    /// An error with this message.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// The exit code of the command: 1; 2 for an unknown answer, as of `kubectl diff`; 124 for the
    /// end of a timeout, as of `timeout(1)`.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Unknown(_) => ExitCode::from(2),
            Self::TimedOut(_) => ExitCode::from(124),
        }
    }
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;
