//! The facts that a decision is made from, in the terms of Kubernetes and PKO.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    ApprovalSettings, ArtifactDigest, ChangeRequest, DriftSettings, Governance, Guard, Operation, PlanHash, PlannedChanges,
    Readiness, Revision, RunOutcome, StackStatus, Ttl, Uid, Window, run::UpdateFacts,
};

/// All facts about a Stack that a decision needs, read in one reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The Stack.
    pub stack: Stack,
    /// The source that its spec names; `None` where the spec names none, or more than one.
    pub source: Option<SourceState>,
    /// Whether the tree that the source names is stored.
    pub tree: TreeState,
    /// The Update that `status.currentUpdate` names.
    pub run: RunState,
    /// The Stacks that `spec.prerequisites` names, in its order; `None` for a missing one.
    pub prerequisites: Vec<Option<Prerequisite>>,
    /// The prerequisites of each Stack by name: all that can be reached from this one, if it waits
    /// for one of them.
    pub requires: BTreeMap<String, Vec<String>>,
    /// The Update that `status.driftless.drift` names as the current check.
    pub check: RunState,
    /// The Update that `status.driftless.plan` names as the current proposal.
    pub proposal: RunState,
    /// Whether the cluster enforces who may approve.
    pub guard: Guard,
    /// What the cluster demands of the Stack's plans. It is read where a run may start, and where a
    /// plan of a pull request was made.
    pub governance: Governance,
    /// The record of the plan that waits, of which the status has a part.
    pub planned: Option<PlannedChanges>,
    /// The Stack that [`Stack::pull_request_of`] names, if it exists.
    pub named: Option<Box<Stack>>,
    /// The state of the Secrets and ConfigMaps that the last run read; `None` if it is unknown, or
    /// a change of them does not matter.
    pub inputs: Option<Inputs>,
}

/// The Secrets and ConfigMaps that a Stack's runs read. Their changes cause no event: the launcher
/// compares them at intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// They differ from what the last run read.
    pub changed: bool,
    /// Their digest, if they were compared after the last run.
    pub digest: Option<String>,
    /// When they were last read.
    pub read: Timestamp,
    /// A prerequisite, direct or not, that was running or about to run then, and whose outputs may
    /// change them once more.
    pub waits_for: Option<String>,
}

/// A Stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stack {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: Uid,
    /// `metadata.generation`
    pub generation: i64,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// It has Driftless's finalizer.
    pub finalizer: bool,
    /// The annotation `pulumi.com/reconciliation-request`; empty if it is absent.
    pub reconcile_request: String,
    /// The annotation `driftless.dev/paths`, as written: the directories and files of the source
    /// that matter beside the project's own directory. `None`: the whole source matters.
    pub paths: Option<String>,
    /// No run of it may start.
    pub suspended: bool,
    /// The pull request that it previews.
    pub change_request: Option<ChangeRequest>,
    /// The Stack of its namespace whose plan it previews.
    pub pull_request_of: Option<String>,
    /// The annotation `driftless.dev/pull-requests`, as written.
    pub pull_requests: Option<String>,
    /// When its life ends; `None`: not by itself.
    pub ttl: Option<Ttl>,
    /// When its runs may start; `None`: at any time.
    pub window: Option<Window>,
    /// The settings of its drift checks; `None` without checks.
    pub drift: Option<DriftSettings>,
    /// Its changes need an approval; `None` if it does not ask for that.
    pub approval: Option<ApprovalSettings>,
    /// The settings of its plans if only the cluster asks for them.
    pub answers: ApprovalSettings,
    /// `spec`
    pub spec: StackSpec,
    /// `status`, as read.
    pub status: StackStatus,
}

/// A Stack's `spec`. Field names and meanings are PKO's.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are PKO's fields")]
pub struct StackSpec {
    /// The Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    pub stack: String,
    /// `PULUMI_BACKEND_URL`
    pub backend: Option<String>,
    /// The sources that the spec names. Validation refuses any number other than one.
    pub sources: Vec<SourceRef>,
    /// Plain configuration by key.
    pub config: BTreeMap<String, Value>,
    /// Configuration from ConfigMaps.
    pub config_ref: BTreeMap<String, ConfigMapRef>,
    /// Secret configuration in clear (deprecated by PKO).
    pub secrets: BTreeMap<String, String>,
    /// Secret configuration.
    pub secrets_ref: BTreeMap<String, ResourceRef>,
    /// Environment variables.
    pub env_refs: BTreeMap<String, ResourceRef>,
    /// ConfigMaps whose keys are environment variables.
    pub envs: Vec<String>,
    /// Secrets whose keys are environment variables.
    pub env_secrets: Vec<String>,
    /// The Secret with `PULUMI_ACCESS_TOKEN` in its key `accessToken`.
    pub access_token_secret: Option<String>,
    /// Applies when the stack is created.
    pub secrets_provider: Option<String>,
    /// Pulumi ESC environments.
    pub environment: Vec<String>,
    /// `--target`
    pub targets: Vec<String>,
    /// `--target-dependents`
    pub target_dependents: bool,
    /// `--refresh`
    pub refresh: bool,
    /// Only previews are run.
    pub preview: bool,
    /// The template of its Updates makes another operation of an `up`.
    pub retyped: bool,
    /// Do not create the stack.
    pub use_local_stack_only: bool,
    /// Run every `resync_frequency_seconds` even if nothing changed.
    pub continue_resync_on_commit_match: bool,
    /// At least 60.
    pub resync_frequency_seconds: Option<i64>,
    /// The installation's period of `continueResyncOnCommitMatch` in seconds, for a spec without
    /// one.
    pub default_resync_seconds: i64,
    /// The shortest resync period that the installation allows.
    pub min_resync_seconds: i64,
    /// The maximum of the back-off, if greater than zero.
    pub retry_max_backoff_duration_seconds: Option<i64>,
    /// How often a failed run is retried; `None` as in PKO.
    pub retries: Option<Retries>,
    /// Stacks that must have succeeded before a run starts.
    pub prerequisites: Vec<PrerequisiteRef>,
    /// Destroy before the finalizer is removed.
    pub destroy_on_finalize: bool,
    /// Run the program when destroying.
    pub run_program: bool,
    /// Refresh before a run, and fail if that changes anything.
    pub expect_no_refresh_changes: bool,
    /// Retry if another process holds the stack's lock.
    pub retry_on_update_conflict: bool,
    /// `workspaceReclaimPolicy` is `Delete`: the Workspace is deleted while no run is wanted.
    pub reclaim_workspace: bool,
    /// It refers to Secrets or ConfigMaps, and a change of their content causes a run.
    pub watches_inputs: bool,
    /// The ServiceAccount that the program runs as.
    pub service_account_name: Option<String>,
    /// Why the templates are refused, or a field that has no meaning here: a run that ignored it
    /// would do something else. A message with the field and the remedy.
    pub refused: Option<String>,
    /// Why the `pulumi` of the Workspace template's image cannot set the configuration, with the
    /// remedy.
    pub old_pulumi: Option<String>,
    /// Fields of the Workspace template that only concern the pod. They are ignored.
    pub pod_only: Vec<String>,
    /// The URL of the backend, if it is a path on the disk of a task, which is lost with the task.
    pub task_backend: Option<String>,
}

/// How often a failed run is retried, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The number of retries that may follow a failed run of a revision, a generation and a
    /// reconciliation request.
    pub limit: i64,
    /// The delay before the first retry.
    pub first_backoff_seconds: Option<i64>,
}

/// The source that a spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRef {
    /// `programRef`
    Program {
        /// `programRef.name`
        name: String,
    },
    /// `fluxSource`
    Flux {
        /// `fluxSource.sourceRef.apiVersion`
        api_version: String,
        /// `fluxSource.sourceRef.kind`
        kind: String,
        /// `fluxSource.sourceRef.name`
        name: String,
        /// `fluxSource.dir`; empty for the root.
        dir: String,
    },
    /// `projectRepo` and its siblings.
    Git(GitSource),
}

/// A git repository that a Stack names itself. Its credentials belong to the Stack, so its tree is
/// stored under the Stack and shared with no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitSource {
    /// The Stack's name.
    pub stack: String,
    /// `projectRepo`
    pub repo: String,
    /// `branch`: a branch, or a ref such as `refs/tags/v1`.
    pub branch: String,
    /// `commit`: a commit, or a fixed tag or branch.
    pub commit: String,
    /// `repoDir`
    pub dir: String,
    /// How many forms of `gitAuth` are given; `None` if it is absent or `gitAuthSecret` takes
    /// precedence.
    pub auth_forms: Option<usize>,
    /// Changes with every field of the spec that affects what is fetched and how.
    pub fingerprint: String,
}

impl SourceRef {
    /// The field of the spec that names the source.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Program { .. } => "spec.programRef",
            Self::Flux { .. } => "spec.fluxSource",
            Self::Git(_) => "spec.projectRepo",
        }
    }

    /// API version, kind and name of the source object; for git, the Stack.
    #[must_use]
    pub fn object(&self) -> (&str, &str, &str) {
        match self {
            Self::Program { name } => ("pulumi.com/v1", "Program", name),
            Self::Flux { api_version, kind, name, .. } => (api_version, kind, name),
            Self::Git(git) => ("pulumi.com/v1", "Stack", &git.stack),
        }
    }

    /// The project's directory within the tree; empty for the root.
    #[must_use]
    pub fn dir(&self) -> &str {
        match self {
            Self::Flux { dir, .. } | Self::Git(GitSource { dir, .. }) => dir.trim_start_matches("./").trim_matches('/'),
            Self::Program { .. } => "",
        }
    }
}

/// A reference to a key of a ConfigMap, as in `configRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMapRef {
    /// The ConfigMap.
    pub name: String,
    /// Its key.
    pub key: String,
    /// The value is JSON.
    pub json: bool,
}

/// PKO's `ResourceRef`, as written: whether it is valid is a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRef {
    /// `type`
    pub selector: String,
    /// `secret`: namespace, name and key.
    pub secret: Option<(Option<String>, String, String)>,
    /// `literal.value`
    pub literal: Option<String>,
}

/// One of `spec.prerequisites`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrerequisiteRef {
    /// The Stack's name, in the same namespace.
    pub name: String,
    /// `requirement.succeededWithinDuration`
    pub succeeded_within_seconds: Option<i64>,
}

/// The facts about a prerequisite Stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Prerequisite {
    /// `metadata.generation`
    pub generation: i64,
    /// The annotation `pulumi.com/reconciliation-request`; empty if it is absent.
    pub reconcile_request: String,
    /// `status.lastUpdate`
    pub last_update: Option<crate::LastUpdate>,
}

/// The state of a source object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The object does not exist.
    NotFound,
    /// It exists and has nothing to fetch.
    NoArtifact {
        /// Why, if the source states a reason.
        why: String,
    },
    /// It must not be used, or its state cannot be read. The message has the fact and the remedy.
    Unfit {
        /// The fact and the remedy.
        why: String,
    },
    /// The revision is not known yet, so the fetcher has to find it: a Program whose artifact is of
    /// another generation, or a git repository that was not polled.
    Unknown {
        /// The state of the source that is requested, as text for a message.
        subject: String,
    },
    /// There is something to fetch.
    Artifact {
        /// `status.artifact.revision`, or the commit of git, as in PKO's status fields. Compared as
        /// text, never parsed.
        revision: Revision,
        /// `status.artifact.digest`, or the digest that the fetcher computed.
        digest: ArtifactDigest,
        /// When git was polled; `None` for a source that sends events, and for a commit that never
        /// changes.
        polled: Option<Timestamp>,
    },
}

/// Whether the tree of a source's artifact is stored. It is not checked where no run is wanted:
/// then it is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeState {
    /// Verified, unpacked and complete.
    Stored {
        /// Whether the tree has a Pulumi project.
        project: Project,
        /// A digest of the paths that the Stack uses, if it names them (see [`crate::paths`]).
        scope: Option<String>,
    },
    /// Not stored, or not known to be.
    Absent {
        /// How the last fetch of this artifact failed.
        failure: Option<FetchFailure>,
    },
}

/// Whether a tree has a Pulumi project where the spec says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Project {
    /// The directory is not in the tree.
    NoDirectory,
    /// The directory has no `Pulumi.yaml`.
    NoFile,
    /// It has one.
    There,
}

/// How a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchFailure {
    /// When it failed; for a source that rests after a slow fetch, the end of its rest.
    pub at: Timestamp,
    /// The fact and the remedy.
    pub message: String,
    /// A retry with the same content would fail too.
    pub terminal: bool,
    /// The number of failures in a row, including this one.
    pub failures: u32,
}

/// The state of the run that `status.currentUpdate` names.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// No current Update.
    None,
    /// The Update does not exist: it was never created, or it was deleted.
    Missing,
    /// The object of that name does not belong to this Stack, or cannot be read.
    Foreign,
    /// It has no outcome. With the facts about its Update, and the readiness of the Stack if the
    /// run waits.
    Live(Run, UpdateFacts, Option<Readiness>),
    /// Its outcome is recorded.
    Ended(Run, RunOutcome),
}

/// What a Stack's Update runs. Immutable once it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The Update's namespace: the Stack's, or the system namespace if the Stack's can no longer
    /// get new objects.
    pub namespace: String,
    /// The Update's name.
    pub name: String,
    /// The generation of the Stack that it runs.
    pub generation: i64,
    /// The Stack's reconciliation request at that time.
    pub reconcile_request: String,
    /// The revision of the source that it runs.
    pub commit: Revision,
    /// Its operation.
    pub operation: Operation,
    /// The digest of the paths in its tree that the Stack uses, if the Stack names them.
    pub scope: Option<String>,
    /// It refreshes first, so that it corrects drift.
    pub refresh: bool,
    /// It is a refresh by which the state takes drift over. It applies neither the source nor
    /// inputs.
    pub adopts: bool,
    /// The approved plan that it applies.
    pub plan: Option<PlanHash>,
}
