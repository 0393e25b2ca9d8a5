//! The refusals of a source.

use driftless_source::{DigestMismatch, InvalidDigest};

use crate::{
    git::{Fields, GitError},
    remedy::{kind_remedy, limit_remedy},
};

/// Why there is no tree. The message goes into a condition: it has no content, and no digest but
/// the source's own.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The source places its artifact where it must not be fetched from.
    #[error("{field} is {value:?}: {why}")]
    Artifact {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The fact, as the end of the message.
        why: String,
    },
    /// A kind whose artifact is no project.
    #[error("kind {kind} of {group:?} is not supported as a source{}", kind_remedy(.group, .kind))]
    Kind {
        /// The API group.
        group: String,
        /// The kind.
        kind: String,
    },
    /// A kind that cannot be read.
    #[error("{message}{}", kind_remedy(.group, .kind))]
    Unreadable {
        /// The API group.
        group: String,
        /// The kind.
        kind: String,
        /// The API server's message.
        message: String,
    },
    /// An object that this release cannot read.
    #[error("{0}")]
    Object(String),
    /// The digest in the source's status is invalid.
    #[error("status.artifact.digest: {0}")]
    Digest(#[from] InvalidDigest),
    /// The content does not match the digest.
    #[error(transparent)]
    Mismatch(#[from] DigestMismatch),
    /// The artifact was replaced or deleted.
    #[error("artifact no longer exists; wait for the next artifact of the source")]
    Gone,
    /// The same for the artifact of a Workspace.
    #[error("spec.flux.url is {url:?}, which no longer exists; set url and digest to those of the current status.artifact")]
    Outdated {
        /// `spec.flux.url`
        url: String,
    },
    /// The archive is too large.
    #[error("archive is too large, the maximum is {limit} bytes; source is not fetched; raise MaxArchiveBytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The namespace has reached its quota.
    #[error(
        "namespace {namespace:?} stores {stored} bytes of sources, the maximum is {limit}; source is not fetched; raise \
         MaxTreeBytesPerNamespace, or wait until unused trees expire (TreeRetentionDays)"
    )]
    Quota {
        /// The namespace.
        namespace: String,
        /// The size of its trees.
        stored: u64,
        /// The limit.
        limit: u64,
    },
    /// The download failed.
    #[error("the artifact could not be fetched: {0}")]
    Unreachable(String),
    /// The content is invalid.
    #[error("{0}{remedy}", remedy = limit_remedy(.0))]
    Content(#[from] driftless_source::Refusal),
    /// The scratch space or the archive could not be read or written.
    #[error("the archive could not be read: {0}")]
    Io(#[from] std::io::Error),
    /// A git error: the repository, the connection or the content.
    #[error("{}", error.words(fields))]
    Git {
        /// The error of git.
        error: GitError,
        /// The names of the fields that define it.
        fields: &'static Fields,
    },
    /// The Program cannot be written as YAML.
    #[error("the Program could not be written as YAML: {0}")]
    Program(String),
}

impl Refusal {
    /// Returns whether the same source always fails.
    pub(crate) fn is_terminal(&self) -> bool {
        match self {
            Self::Artifact { .. }
            | Self::Kind { .. }
            | Self::Unreadable { .. }
            | Self::Object(_)
            | Self::Digest(_)
            | Self::TooLarge { .. }
            | Self::Content(_)
            | Self::Program(_) => true,
            Self::Git { error, .. } => error.is_terminal(),
            // A proxy or a cache on the way may have damaged the content.
            Self::Mismatch(_) | Self::Gone | Self::Outdated { .. } | Self::Unreachable(_) | Self::Io(_) | Self::Quota { .. } => {
                false
            }
        }
    }
}
