use super::GitError;
use crate::{Error, Refusal};

/// Why git returned no answer.
pub(super) enum Stop {
    /// The object that names the repository, the repository, or the server.
    Git(GitError),
    /// The tree.
    Refused(Refusal),
    /// A call of the API server or the bucket failed.
    Failed(Error),
    /// The server has used its share of this instance's time. That is not the fault of the source:
    /// a later request may reach another instance.
    Later,
}

impl From<GitError> for Stop {
    fn from(error: GitError) -> Self {
        Self::Git(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
