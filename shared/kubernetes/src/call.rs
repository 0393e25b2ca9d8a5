/// Why a function's work failed: a call of AWS, or of the API server.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A call of AWS failed.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// A call of the API server failed.
    #[error(transparent)]
    Kubernetes(#[from] crate::Error),
}

impl CallError {
    /// Returns whether a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::Kubernetes(error) => error.is_transient(),
        }
    }
}
