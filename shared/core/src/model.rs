//! The facts that a decision is made from, in the words of Kubernetes and PKO.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Drift, DriftSettings, Readiness, StackStatus, run::UpdateFacts};

/// Everything that is true of a Stack as far as a decision needs it, read in one look.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The Stack.
    pub stack: Stack,
    /// The source that its spec names; `None` where the spec names none, or more than one.
    pub source: Option<SourceState>,
    /// Whether the tree that the source speaks of is stored.
    pub tree: TreeState,
    /// The Update that `status.currentUpdate` names.
    pub run: RunState,
    /// The Stacks that `spec.prerequisites` names, in its order; `None` for one that is not there.
    pub prerequisites: Vec<Option<Prerequisite>>,
    /// Which Stacks a Stack requires, by its name: all that can be reached from this one, where it waits for one of them.
    pub requires: BTreeMap<String, Vec<String>>,
    /// The Update that `status.driftless.drift` names as the one that looks for drift now.
    pub check: RunState,
    /// What is known of the Secrets and ConfigMaps that the last run read; `None` if nothing is, or a change of them does not matter.
    pub inputs: Option<Inputs>,
}

/// The Secrets and ConfigMaps that a Stack's runs read. Nobody tells of their changes: the launcher compares them now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// They are not what the last run read.
    pub changed: bool,
    /// When they were read last.
    pub read: Timestamp,
}

/// A Stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stack {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.generation`
    pub generation: i64,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// The annotation `pulumi.com/reconciliation-request`; empty if it is not there.
    pub reconcile_request: String,
    /// The annotation `driftless.dev/paths`, as it was written: the directories and files of the source that matter beside the
    /// project's own directory. `None`: all of it does.
    pub paths: Option<String>,
    /// No run of it may begin.
    pub suspended: bool,
    /// Whether drift is looked for.
    pub drift: Option<DriftSettings>,
    /// `spec`
    pub spec: StackSpec,
    /// `status`, as it was read.
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
    /// The sources that the spec names. One is right; which they are is said when it is not.
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
    /// For a stack that is created.
    pub secrets_provider: Option<String>,
    /// Pulumi ESC environments.
    pub environment: Vec<String>,
    /// `--target`
    pub targets: Vec<String>,
    /// `--target-dependents`
    pub target_dependents: bool,
    /// `--refresh`
    pub refresh: bool,
    /// Only preview, ever.
    pub preview: bool,
    /// Do not create the stack.
    pub use_local_stack_only: bool,
    /// Run again every `resync_frequency_seconds` even if nothing changed.
    pub continue_resync_on_commit_match: bool,
    /// 60 at least.
    pub resync_frequency_seconds: Option<i64>,
    /// The period of `continueResyncOnCommitMatch` where the spec names none, in seconds: the installation's.
    pub default_resync_seconds: i64,
    /// No Stack of the installation is run again more often.
    pub min_resync_seconds: i64,
    /// Cap of the back-off, if greater than zero.
    pub retry_max_backoff_duration_seconds: Option<i64>,
    /// Stacks that have to have succeeded first.
    pub prerequisites: Vec<PrerequisiteRef>,
    /// Destroy before the finalizer goes.
    pub destroy_on_finalize: bool,
    /// Run the program when destroying.
    pub run_program: bool,
    /// Refresh before a run, and fail if that changes anything.
    pub expect_no_refresh_changes: bool,
    /// Try again when the stack is locked by somebody else.
    pub retry_on_update_conflict: bool,
    /// `workspaceReclaimPolicy` is `Delete`: the Workspace goes when nothing is to be run.
    pub reclaim_workspace: bool,
    /// It refers to Secrets or ConfigMaps, and a change of their content is to be run.
    pub watches_inputs: bool,
    /// The ServiceAccount that the program is.
    pub service_account_name: Option<String>,
    /// What is wrong with the templates, or with a field that means nothing here: a run without it would be another run. In words,
    /// with the field and the remedy.
    pub refused: Option<String>,
    /// Why the pulumi of the Workspace template's image cannot set the configuration, with the remedy.
    pub old_pulumi: Option<String>,
    /// Fields of the Workspace template that only say where or how a pod runs, and are ignored.
    pub pod_only: Vec<String>,
    /// The URL of the backend, if its files are certainly on the disk of a task, which ends with its run.
    pub task_backend: Option<String>,
}

/// Which source a spec names.
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

/// A git repository that a Stack names itself. Its credentials are the Stack's, so that the source is the Stack's own too: the object
/// that it is stored under is the Stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitSource {
    /// The Stack's name.
    pub stack: String,
    /// `projectRepo`
    pub repo: String,
    /// `branch`: a branch, or a ref such as `refs/tags/v1`.
    pub branch: String,
    /// `commit`: a commit, or a tag or branch that is not followed.
    pub commit: String,
    /// `repoDir`
    pub dir: String,
    /// How many of `gitAuth`'s forms are given; `None` where it is not there, or `gitAuthSecret` is and wins.
    pub auth_forms: Option<usize>,
    /// Changes with every field of the spec that says what is fetched and how.
    pub fingerprint: String,
}

impl SourceRef {
    /// The field of the spec that names it.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Program { .. } => "spec.programRef",
            Self::Flux { .. } => "spec.fluxSource",
            Self::Git(_) => "spec.projectRepo",
        }
    }

    /// API version, kind and name of the object that the source is: for git that is the Stack.
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

/// PKO's `ResourceRef`, as it was written: what is wrong with it is a decision.
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

/// What a Stack that is a prerequisite tells of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Prerequisite {
    /// `metadata.generation`
    pub generation: i64,
    /// The annotation; empty if it is not there.
    pub reconcile_request: String,
    /// `status.lastUpdate`
    pub last_update: Option<crate::LastUpdate>,
}

/// The state of a source object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The object is not there.
    NotFound,
    /// There, but with nothing to fetch. Words for the condition.
    NoArtifact {
        /// Why, if the source says it.
        why: String,
    },
    /// Whatever it offers is not to be used, or cannot be known. Words for the condition: what is wrong and what would mend it.
    Unfit {
        /// Why.
        why: String,
    },
    /// What it offers is not known yet: the fetcher has to find out. A Program whose artifact is not of its generation, or a git
    /// repository that was not looked at.
    Unknown {
        /// Which state of the source is asked for, in words.
        subject: String,
    },
    /// There is something to fetch.
    Artifact {
        /// `status.artifact.revision`, or the commit of git: the commit of PKO's fields. Compared as it is, never parsed.
        revision: String,
        /// `status.artifact.digest`, or what the fetcher says.
        digest: String,
        /// When git was asked; `None` for a source that tells of its changes itself, and for a commit that never changes.
        polled: Option<Timestamp>,
    },
}

/// Whether the tree of a source's artifact is stored. Nobody looks where no run is wanted: then it is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeState {
    /// Verified, unpacked and complete.
    Stored {
        /// Whether it has what a run begins with.
        project: Project,
        /// A digest of all that matters to the Stack, if it says what that is (see [`crate::paths`]).
        scope: Option<String>,
    },
    /// Not, or not known to be.
    Absent {
        /// How the last try to fetch this very artifact failed.
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
    /// It has.
    There,
}

/// How a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchFailure {
    /// When; for a source that rests after a slow fetch, the end of its rest.
    pub at: Timestamp,
    /// What is wrong and what would mend it.
    pub message: String,
    /// The same content fails again.
    pub terminal: bool,
    /// How often it failed in a row, this one counted.
    pub failures: u32,
}

/// The state of the run that `status.currentUpdate` names.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// No current Update.
    None,
    /// The Update is not there: it was never created, or somebody took it away.
    Missing,
    /// There is an object of that name which is not this Stack's, or cannot be read.
    Foreign,
    /// It has no outcome. What its Update says of itself, and how the Stack waits if it waits.
    Live(Run, UpdateFacts, Option<Readiness>),
    /// Its outcome is recorded.
    Ended(Run, RunOutcome),
}

/// What an Update of a Stack says that it is for. These cannot change once it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The Update's namespace: the Stack's, or the system's where nothing can be created in that any more.
    pub namespace: String,
    /// The Update's name.
    pub name: String,
    /// The generation of the Stack that it runs.
    pub generation: i64,
    /// The Stack's annotation at that time.
    pub reconcile_request: String,
    /// The revision of the source that it runs.
    pub commit: String,
    /// What it does.
    pub operation: Operation,
    /// The digest of all that matters to the Stack in its tree, if the Stack said what that is.
    pub scope: Option<String>,
    /// It takes what is there into the state first: what drifted is put back.
    pub refresh: bool,
}

/// What pulumi does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `pulumi up`
    Up,
    /// `pulumi preview`
    Preview,
    /// `pulumi refresh`
    Refresh,
    /// `pulumi destroy`
    Destroy,
}

impl Operation {
    /// The word of an Update's `spec.type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Preview => "preview",
            Self::Refresh => "refresh",
            Self::Destroy => "destroy",
        }
    }

    /// The operation of an Update's `spec.type`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Up, Self::Preview, Self::Refresh, Self::Destroy].into_iter().find(|operation| operation.as_str() == word)
    }
}

/// How a run ended, as recorded in S3.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts of their own")]
pub struct RunOutcome {
    /// A task owned it: something may have been done.
    pub started: bool,
    /// Pulumi's operation may have begun: the stack may have resources.
    pub operated: bool,
    /// It did what was asked.
    pub succeeded: bool,
    /// If it did not: why, secrets masked.
    pub message: String,
    /// It failed because the backend's lock was somebody else's.
    pub conflict: bool,
    /// It was told to stop before it was done.
    pub interrupted: bool,
    /// The platform under it failed: Pulumi never began, or its task was taken away. It does not count as a failure.
    pub platform_failure: bool,
    /// What drifted; of a check that succeeded.
    pub drift: Option<Drift>,
    /// Outputs, secret ones masked; `None` if the operation has none to tell.
    pub outputs: Option<BTreeMap<String, Value>>,
    /// The project's name and runtime.
    pub project: Option<(String, String)>,
    /// A link to the update in Pulumi Cloud.
    pub permalink: Option<String>,
    /// A digest of what it read from Secrets and ConfigMaps, if that is known.
    pub inputs: Option<String>,
}
