//! An error in the template.

/// An error in the template.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Error {
    place: String,
    message: String,
}

impl Error {
    pub(crate) fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}
