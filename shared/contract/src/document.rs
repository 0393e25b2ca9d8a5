//! How messages and documents are written and read, and the type of each.

use std::{fmt, marker::PhantomData, ops::Deref};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    AuditRecord, FetchOutcome, FetchRequest, Hint, Identity, InputsRead, Launch, LaunchHint, Lock, Outcome, OutputObjects, Owner,
    PlanRecord, Progress, Resources, RunHint, RunResult, RunSpec, SealedInputs, TaskHint, TaskRun, UnfitArchitecture, VERSION,
};

/// A message or document that this release cannot read. The cause is a bug or another release,
/// never a transient condition: a message belongs in the dead-letter queue.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMessage {
    /// Not JSON, or not of the shape. Values are not repeated, because they could be secret.
    #[error("not a {what} that this release can read: {error}")]
    Shape {
        /// The expected type.
        what: &'static str,
        /// The position and cause.
        error: String,
    },
    /// Written by another release.
    #[error("a {what} of version {found}; this release reads version {VERSION}")]
    Version {
        /// The expected type.
        what: &'static str,
        /// The version found.
        found: u32,
    },
}

/// A message of a queue or a document of the bucket: JSON with a `version`.
pub trait Document: Serialize + DeserializeOwned {
    /// The name of the type in errors.
    const NAME: &'static str;

    /// Reads a document and checks its version.
    fn parse(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // serde_json quotes the offending value in type errors; line and column are enough.
        let shape = |error: serde_json::Error| InvalidMessage::Shape {
            what: Self::NAME,
            error: format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()),
        };
        let Versioned { version } = serde_json::from_slice(bytes).map_err(shape)?;
        if version != VERSION {
            return Err(InvalidMessage::Version { what: Self::NAME, found: version });
        }
        serde_json::from_slice(bytes).map_err(shape)
    }
}

/// A document that is written at most once: the first writer wins.
pub trait WrittenOnce: Document {}

/// A document that a later write replaces.
pub trait Rewritten: Document {}

macro_rules! documents {
    ($($name:literal $of:ident $($written:ident)*;)*) => {
        $(
            impl Document for $of {
                const NAME: &'static str = $name;
            }
            $(impl $written for $of {})*
        )*
    };
}

documents! {
    "hint" Hint;
    "fetch request" FetchRequest;
    "launch hint" LaunchHint;
    "message of the runs queue" RunHint;
    "message of the runs queue" TaskHint;
    "fetch outcome" FetchOutcome Rewritten;
    "digest of inputs" InputsRead Rewritten;
    // Only ever written encrypted.
    "sealed inputs" SealedInputs;
    // Written once, then replaced with a higher number of attempts.
    "launch record" Launch WrittenOnce Rewritten;
    "owner" Owner WrittenOnce;
    "outcome" Outcome WrittenOnce;
    "audit record" AuditRecord WrittenOnce;
    "plan" PlanRecord WrittenOnce;
    "task's run" TaskRun Rewritten;
    "run spec" RunSpec Rewritten;
    "identity" Identity Rewritten;
    "progress" Progress Rewritten;
    "result" RunResult WrittenOnce;
    "lock" Lock Rewritten;
    "resources" Resources Rewritten;
    "objects with outputs" OutputObjects Rewritten;
    "architecture" UnfitArchitecture Rewritten;
}

/// The key of an object in the bucket that holds a `D`.
pub struct Key<D> {
    key: String,
    document: PhantomData<fn() -> D>,
}

impl<D> Key<D> {
    pub(crate) fn new(key: String) -> Self {
        Self { key, document: PhantomData }
    }
}

impl<D> Deref for Key<D> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.key
    }
}

impl<D> fmt::Display for Key<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// Writes a value of this crate or of core as JSON.
///
/// # Panics
/// Never: all these types have string keys and no failing serializer.
#[must_use]
#[expect(clippy::expect_used, reason = "documents of this crate always serialize")]
pub fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("a document of this crate serializes")
}
