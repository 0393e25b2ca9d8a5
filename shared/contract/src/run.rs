//! The inputs of a run: the launch record, its owner, and the documents in the task folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use driftless_core::run::{LaunchFacts, OwnerFacts};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Architecture, Layer, Lock, Operation, PlanMode, PlanRequest, ProjectInfo, RunId, Uid};

/// The run that a task's folder is for: `tasks/…/in/run`, written by the launcher and therefore
/// trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TaskRun {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
}

/// All parameters that start the task: `runs/…/launch`. A retry uses them again, so that the same
/// token comes with the same parameters; only [`Launch::attempt`] may change. No secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Launch {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// How often the place where tasks run answered that it starts none, for lack of capacity or
    /// because of a quota. ECS would answer the same to the same token for a day.
    pub attempt: u32,
    /// The definition of the task, by its name in the place where it runs. At ECS that is the full
    /// ARN of a task definition, because a newer revision of the family would be a different
    /// parameter.
    #[serde(rename = "taskDefinition")]
    pub definition: String,
    /// The project, for the outcome of a run without a report. Absent if its file cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectInfo>,
    /// See [`RunSpec::inputs`]; for the outcome of a run without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// See [`RunSpec::is_preview`].
    #[serde(default)]
    pub preview: bool,
    /// It is tried on Fargate Spot: see [`Launch::is_on_spot`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// The processor of the task, if its Workspace selects none and names images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<TriedArchitecture>,
    /// The size from the definition, from which the cost of the run is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TaskSize>,
    /// The entries of the cache that the run may restore and store. Absent if it has nothing to do
    /// with the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<LaunchCache>,
    /// The request of the run. `None` in a record of an earlier release, which starts no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RunRequest>,
    /// Set while no task was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// When the launch was decided.
    pub at: Timestamp,
}

/// The cache entries of a run, as the launcher named them: a task names neither a key nor a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LaunchCache {
    /// The key of each layer's entry.
    pub entries: BTreeMap<Layer, String>,
    /// Restore none of them, and replace them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refresh: bool,
    /// See [`RunCache::uncached`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncached: Option<String>,
}

/// The layers of the cache that a task restores and stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunCache {
    /// The layers whose archives are in the folder of the task: see
    /// [`crate::keys::TaskFolder::restored`].
    pub restored: BTreeSet<Layer>,
    /// The layers that are to be stored if the run installs them.
    pub stored: BTreeSet<Layer>,
    /// The maximum size of an archive, in bytes.
    pub max_bytes: u64,
    /// Why the packages of the program's language are installed in each run, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncached: Option<String>,
}

/// The failed tries to start a task. The delay of the next try depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The first.
    pub since: Timestamp,
    /// The last.
    pub last: Timestamp,
}

/// The part of an Update that a launch records. Later changes of the Update's spec, annotations or
/// owner references do not affect the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunRequest {
    /// The Update's spec. It has no secret values.
    pub spec: Value,
    /// The Stack of the run; absent for an Update without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackId>,
    /// The time limits of the run.
    #[serde(default)]
    pub limits: RunLimits,
    /// See [`RunSpec::not_secret`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_secret: Vec<String>,
    /// What the run may do, if its Stack is guarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanMode>,
}

/// The identity of a Stack that the launcher read from the API server, not of one that an Update
/// only names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StackId {
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: Uid,
}

/// The processor that images are tried on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TriedArchitecture {
    /// [`driftless_core::TaskShape::images`].
    pub images: String,
    /// The processor.
    pub architecture: Architecture,
    /// Some image was not built for the other processor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_failed: bool,
}

/// The processor that images are not built for, according to ECS or a task of the namespace:
/// `architectures/<cluster>/<namespace>/<images>`, written by the recorder. The next task of the
/// namespace that has these images, and whose Workspace selects no processor, uses the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UnfitArchitecture {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The processor.
    pub architecture: Architecture,
}

/// The size of a task on Fargate, which determines its price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TaskSize {
    /// CPU units; a vCPU has 1024.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl Launch {
    /// The facts for a decision. Whether this release can use the request is decided by the
    /// launcher.
    #[must_use]
    pub fn facts(&self) -> LaunchFacts {
        LaunchFacts {
            readable: self.request.is_some(),
            refused_since: self.refused.map(|refused| refused.since),
            max_seconds: self.request.as_ref().and_then(|request| request.limits.max_seconds),
        }
    }

    /// The token that makes a start idempotent, `clientToken` at ECS: the Update's uid and the
    /// attempt.
    #[must_use]
    pub fn token(&self) -> String {
        format!("{}-{}", self.run.uid, self.attempt)
    }

    /// Whether this attempt is on Fargate Spot: only the first one is, so that no attempt waits for
    /// Spot capacity twice.
    #[must_use]
    pub fn is_on_spot(&self) -> bool {
        self.spot && self.attempt == 0
    }
}

/// What a run of a Stack would read from Secrets and ConfigMaps: `inputs/…`, written by the
/// launcher at each comparison. It reveals that they changed, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct InputsRead {
    /// [`crate::VERSION`].
    pub version: u32,
    /// See [`RunSpec::inputs`].
    pub digest: String,
    /// When they were read.
    pub at: Timestamp,
    /// A prerequisite, direct or not, that was running or about to run then, and whose outputs may
    /// change the inputs once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// The owner of a run: `runs/…/owner`, written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Owner {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The name of the task that owns the run; absent if the run was abandoned, so that no task can
    /// own it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Why the run was abandoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// When the record was written.
    pub at: Timestamp,
}

impl Owner {
    /// The facts for a decision.
    #[must_use]
    pub fn facts(&self) -> OwnerFacts {
        if self.task.is_some() { OwnerFacts::Task { since: self.at } } else { OwnerFacts::Closed }
    }
}

/// The spec of a run: `tasks/…/in/spec`, the last object that the launcher writes and the only one
/// with secrets. Deleted when the outcome is recorded. Has no `Debug`: see [`Env`] and [`Config`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "they are pulumi's flags")]
pub struct RunSpec {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// Pulumi's operation.
    pub operation: Operation,
    /// The Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    pub stack: String,
    /// Create the stack if the backend does not have it. A destroy creates none: a missing stack
    /// counts as destroyed.
    pub create: bool,
    /// `pulumi stack init --secrets-provider`, where the stack is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_provider: Option<String>,
    /// The source of the program.
    pub source: RunSource,
    /// Pulumi's environment, in order; a later entry of the same name wins.
    #[serde(default)]
    pub env: Vec<Env>,
    /// The files at the mount paths of the Workspace's volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// The stack's configuration.
    #[serde(default)]
    pub config: Vec<Config>,
    /// Pulumi ESC environments to import.
    #[serde(default)]
    pub environments: Vec<String>,
    /// The program has an identity: `in/identity` is written before the spec.
    #[serde(default)]
    pub identity: bool,
    /// The time limits of the run.
    #[serde(default)]
    pub limits: RunLimits,
    /// The update's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `--parallel`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<i32>,
    /// `--expect-no-changes`
    #[serde(default)]
    pub expect_no_changes: bool,
    /// `--refresh`
    #[serde(default)]
    pub refresh: bool,
    /// Refresh before the operation, and fail if that changes anything.
    #[serde(default)]
    pub expect_no_refresh_changes: bool,
    /// `--target`
    #[serde(default)]
    pub targets: Vec<String>,
    /// `--target-dependents`
    #[serde(default)]
    pub target_dependents: bool,
    /// `--replace`
    #[serde(default)]
    pub replace: Vec<String>,
    /// `--continue-on-error`
    #[serde(default)]
    pub continue_on_error: bool,
    /// After a destroy, remove the stack from the backend.
    #[serde(default)]
    pub remove: bool,
    /// `--run-program`
    #[serde(default)]
    pub run_program: bool,
    /// For a refresh: a drift check, which changes nothing and reports drift. With
    /// [`RunSpec::plan`], a proposal of a refresh or of a destroy, which changes nothing either.
    #[serde(default)]
    pub preview_only: bool,
    /// The verbosity of Pulumi's log on standard error; `None` for no log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<u32>,
    /// HMAC-SHA256 of what was read from Secrets and ConfigMaps, in hex, under a key that only the
    /// launcher has; absent if nothing was read. The runner repeats it in its result, because only
    /// the runner knows which of two specs it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// The locks that dead runs of this stack may have left. The runner removes these and no
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_lock: Option<Lock>,
    /// The number of resources that the last run left; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<u32>,
    /// The run's part of the cache of dependencies; absent if that is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<RunCache>,
    /// Outputs that are shown although they contain a value from a Secret. An output that Pulumi
    /// marks secret is never shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_secret: Vec<String>,
    /// Make a plan before the operation, and apply only the approved one. Absent unless the Stack
    /// is guarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanRequest>,
}

impl RunSpec {
    /// The operation changes nothing. Pulumi's counts are then not those of the resources
    /// afterwards, and the end of the run says nothing about the backend's lock, because most
    /// versions take none for a preview.
    #[must_use]
    pub fn is_preview(&self) -> bool {
        let is_proposal = self.plan.as_ref().is_some_and(|plan| plan.approved.is_none());
        self.preview_only || self.operation == Operation::Preview || is_proposal
    }
}

/// The source of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RunSource {
    /// A stored tree: the task's `in/manifest` and `in/pack`.
    Tree {
        /// The project's directory within the tree; empty for its root.
        #[serde(default)]
        dir: String,
        /// The directories and files of the tree that the run gets; empty for the whole tree.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        paths: Vec<String>,
        /// The digest of the tree's `manifest` object, in hex, so that the run uses exactly the
        /// tree that was verified.
        manifest_sha256: String,
    },
    /// No source: a project of that name and runtime without a program. Enough to destroy from the
    /// state.
    Project(ProjectInfo),
}

/// The time limits of a run. A run that reaches one is interrupted, so that Pulumi saves its state,
/// and fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunLimits {
    /// The maximum of seconds without an engine event or output; heartbeats do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_seconds: Option<u32>,
    /// The maximum of seconds since the task's first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<u32>,
}

/// The identity of the program: its ServiceAccount's tokens. `tasks/…/in/identity`, written by the
/// launcher before the spec, and renewed before they expire while the run is live. Deleted with the
/// spec. Has no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Identity {
    /// [`crate::VERSION`].
    pub version: u32,
    /// For the Update's cluster: the files of a pod's
    /// `/var/run/secrets/kubernetes.io/serviceaccount`.
    pub cluster: ClusterAccess,
    /// For AWS, where the ServiceAccount names a role (`eks.amazonaws.com/role-arn`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_identity: Option<WebIdentity>,
    /// For the Workspace's projected volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projected: Vec<ProjectedToken>,
    /// When the first of the tokens expires.
    pub expires_at: Timestamp,
}

/// Access to a cluster as a ServiceAccount.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterAccess {
    /// The API server's URL.
    pub server: String,
    /// The CA certificates of its API server, as PEM; absent if the public ones suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<String>,
    /// The namespace of the ServiceAccount.
    pub namespace: String,
    /// The token.
    pub token: String,
}

/// The parameters of `sts:AssumeRoleWithWebIdentity`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WebIdentity {
    /// The role. Its own trust policy decides who may assume it.
    pub role_arn: String,
    /// The token, with the audience of STS.
    pub token: String,
}

/// A token of a projected volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProjectedToken {
    /// The file's absolute path.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// The token.
    pub token: String,
}

/// An environment variable. `Debug` shows the name only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Env {
    /// The variable's name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// It came from a Secret and is masked in all output.
    #[serde(default)]
    pub secret: bool,
    /// It came from `envFrom`, so the variables of the ServiceAccount's identity come after it, as
    /// in a pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub below_identity: bool,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").field("name", &self.name).field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// A file for Pulumi, at the mount path of the pod. `Debug` shows the path only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// The absolute path.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// Its content, in base64 in the document.
    #[serde(with = "base64_text")]
    pub content: Vec<u8>,
    /// It came from a Secret and is masked in all output.
    #[serde(default)]
    pub secret: bool,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("secret", &self.secret).finish_non_exhaustive()
    }
}

mod base64_text {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(content: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(content))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(|_| D::Error::custom("the content is not base64"))
    }
}

/// A configuration value. `Debug` shows the key only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// The key; without a `:` it belongs to the project's namespace.
    pub key: String,
    /// The key is a path into a structured value.
    #[serde(default)]
    pub path: bool,
    /// The value.
    pub value: ConfigValue,
    /// Stored encrypted, and masked in all output.
    #[serde(default)]
    pub secret: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("key", &self.key).field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// The sealed copy of a Stack's inputs (`sealed/…`). Only runs of that Stack use it. Has no
/// `Debug`: see [`Env`] and [`Config`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SealedInputs {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The Stack whose run read them.
    pub stack: StackId,
    /// See [`RunSpec::env`].
    pub env: Vec<Env>,
    /// See [`RunSpec::config`].
    pub config: Vec<Config>,
    /// See [`RunSpec::files`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
}

/// The form of a configuration value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConfigValue {
    /// A string for `pulumi config set`.
    String(String),
    /// Typed or structured; requires Pulumi 3.202.0.
    Json(Value),
    /// The token in this file ([`ProjectedToken::path`]). The runner gets the token itself, as
    /// [`ConfigValue::String`].
    Token(String),
}
