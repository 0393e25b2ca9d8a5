//! The interface between the processes: the messages on the queues, the documents in the bucket,
//! and their keys.
//!
//! Every document has a `version`, and a reader refuses unknown fields. Two releases that disagree
//! therefore fail at once: the message goes to its dead-letter queue with the reason in the log. No
//! message carries a fact to act on; see [`Hint`].

mod audit;
mod document;
mod fetch;
mod hint;
pub mod keys;
mod message;
mod outputs;
mod plan;
mod report;
mod run;
mod run_id;
mod run_message;

pub use audit::AuditRecord;
pub use document::{Document, InvalidMessage, Key, Rewritten, WrittenOnce, to_json};
pub use driftless_core::{Architecture, SECRETS, SHARE};
pub use driftless_core::{ArtifactDigest, Claim, Revision, Uid};
pub use driftless_core::{
    ChangeKind, Drift, DriftedResource, EXIT_NO_RUN, EXIT_REFUSED, EXIT_UNREACHABLE, FailureReason, Layer, Listed, MORE_DISK,
    MORE_MEMORY, OTHER_IMAGE, Operation, PROJECT_FILES, PlanHash, PlanParts, PlannedChange, PlannedChanges, PlannedLeaf,
    PreviewedChange,
};
pub use fetch::{FetchFailure, FetchKind, FetchOutcome, FetchRequest, FetchedArtifact};
pub use hint::{Hint, MAX_HOPS, ObjectKey, REVISION_RETRY_SECONDS};
pub use message::{LaunchHint, LaunchKind, RunHint, TaskHint};
pub use outputs::parsed;
pub use plan::{PlanMode, PlanRecord, PlanRequest, RunPack};
pub use report::{
    Installed, Lock, Outcome, OutputObjects, OutputValue, Phase, Progress, ProjectFile, ProjectInfo, ResourceFailure,
    ResourceStep, Resources, RunResult, Verdict,
};
pub use run::{
    ClusterAccess, Config, ConfigValue, Env, File, Identity, InputsRead, Launch, LaunchCache, Owner, ProjectedToken, Refused,
    RunCache, RunLimits, RunRequest, RunSource, RunSpec, SealedInputs, StackId, TaskRun, TaskSize, TriedArchitecture,
    UnfitArchitecture, WebIdentity,
};
pub use run_id::RunId;
pub use run_message::{RunMessage, parse_run_message};

/// The version that every message and document carries.
pub const VERSION: u32 = 1;

/// The prefix of every label, annotation and field group that PKO does not have.
pub const PREFIX: &str = "driftless.dev";

/// The `reportingController` of every Event of Driftless, whichever function publishes it. Events
/// that Flux sends back are recognised by it.
pub const EVENT_REPORTER: &str = "driftless";
