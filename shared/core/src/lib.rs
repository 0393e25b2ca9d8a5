//! The decisions of Driftless, and nothing else: no I/O, no clock, no environment, no randomness.
//! Time is an argument, and effects are returned as data.
//!
//! - [`decide`] turns the facts about a Stack into its status, effects and the next requeue.
//! - [`observe`] turns the end of a run into the Stack's status.
//! - [`run::plan_run`] turns the facts about an Update's run into what to do for it.
//! - [`due`] says whether the sweep should hint a Stack.
//! - [`violations`] lists the invariants that a plan breaks. The reconciler does not carry out such
//!   a plan and uses [`refused`] in its place.

mod admission;
mod annotations;
mod approval;
mod approval_policy;
mod backoff;
mod bound;
mod cache;
mod change_request;
mod decide;
mod drift;
mod drifted;
mod due;
mod duration;
mod finalize;
mod governance;
mod governed;
mod ids;
mod invariants;
mod life;
mod merge;
pub mod metadata;
mod model;
mod names;
mod observe;
mod operation;
mod outputs;
mod overdue;
mod own_source;
mod paths;
mod plan;
mod plan_summary;
mod planned;
mod pod;
mod policy;
mod prerequisites;
mod proposal;
mod pull_request;
mod pulumi_version;
mod reasons;
mod repository;
mod requester;
mod retention;
mod retry;
pub mod run;
mod run_outcome;
mod schedule;
mod shape;
mod source;
mod status;
mod synced;
mod task_end;
mod templates;
mod terms;
mod ttl;
mod validate;
mod watch;
mod window;
mod workspace;

pub use admission::{Admissions, Applicant, Limits};
pub use annotations::Annotations;
pub use approval_policy::{ApprovalPolicy, ApprovalSettings, Guard};
pub use backoff::is_backing_off;
pub use cache::{CacheNames, Layer, Program, Variable, cache_names};
pub use change_request::{ChangeRequest, Previewed, PreviewedChange};
pub use decide::{REFUSED_SECONDS, decide, frequent_resync};
pub use drifted::{Drift, DriftSettings, DriftedResource, Ignored, Remediate};
pub use due::{due, its_turn};
pub use duration::duration;
pub use governance::{Governance, PlanPolicy, PlanRule, PolicyPack, RuleAction};
pub use ids::{ArtifactDigest, Claim, Revision, Uid};
pub use invariants::{refused, violations};
pub use merge::merge;
pub use model::*;
pub use names::{PROJECT_FILES, apply_name, check_name, hash, invalid_digest, invalid_object, proposal_name, update_name};
pub use observe::observe;
pub use operation::Operation;
pub use outputs::{ExistingOutputs, Output, OutputData, OutputKind, OutputStep, output_data, output_keys, output_step};
pub use overdue::TaskLimits;
pub use own_source::{FetchFacts, OwnSourceState, refused_source};
pub use paths::{needed, paths};
pub use plan::{Effect, EventType, NewTree, NewUpdate, Plan};
pub use plan_summary::{preview_summary, summary};
pub use planned::{ChangeKind, Listed, PlanHash, PlanParts, PlannedChange, PlannedChanges, PlannedLeaf};
pub use pod::{
    EmbeddedMetadata, EnvFromSource, EnvVar, EnvVarSource, FieldSelector, FileKeySelector, KeySelector, ObjectSelector, Quantity,
    ResourceClaim, ResourceFieldSelector, ResourceRequirements,
};
pub use policy::MAX_EXPRESSION_BYTES;
pub use prerequisites::{MAX_PREREQUISITES, Upstream, UpstreamChange, Walk, has_unmet};
pub use proposal::{EarlyApproval, PlanState, PlanStatus, Proposal, Wish};
pub use pull_request::unfit_pull_request;
pub use pulumi_version::old_pulumi;
pub use reasons::{DriftReason, EventReason, StackReason};
pub use repository::{git_refs, git_variables, login_in, repository};
pub use requester::{Asked, FieldOwner};
pub use retention::{Retention, StoredTree};
pub use retry::{MAX_FAILURES, cooldown, platform_cooldown};
pub use run_outcome::{FailureReason, RunOutcome};
pub use schedule::Schedule;
pub use shape::{
    Architecture, DefaultSize, FileSource, InitContainer, KeyToPath, Mount, MountedFiles, MountedObject, PodFields,
    RUNNER_VOLUME, SECRETS, SHARE, TaskFields, TaskShape,
};
pub use source::{FluxSource, SLOW_FETCH, Verification, is_answered, rest};
pub use status::{
    CurrentUpdate, DriftStatus, DriftVerdict, Expiry, LastUpdate, LastUpdateState, PlatformFailures, Readiness, StackStatus,
};
pub use synced::{Sync, Why, is_synced};
pub use task_end::{
    Cause, EXIT_NO_RUN, EXIT_REFUSED, EXIT_UNREACHABLE, MORE_DISK, MORE_MEMORY, OTHER_IMAGE, SELECT_ARCHITECTURE, StopCode,
    TaskEnd,
};
pub use templates::{merged, unplannable, update_refused, workspace_refused};
pub use terms::{Purpose, RunTerms, Template};
pub use ttl::Ttl;
pub use validate::invalid_spec;
pub use watch::WatchNamespaces;
pub use window::{InvalidWindow, Window};
pub use workspace::{ConfigItem, ConfigSource, KeyRef, Workspace, workspace};
