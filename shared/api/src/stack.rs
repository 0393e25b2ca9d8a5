use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{ObjectReference, ProjectInfo, StackOutputs, StackPlan, json, template};

/// The `spec` of a Stack: a Pulumi stack that Driftless keeps in sync with its source. The same in
/// `v1` and `v1alpha1`.
#[expect(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "pulumi.com",
    version = "v1",
    kind = "Stack",
    namespaced,
    status = "StackStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "pulumi",
    doc = "A Pulumi stack that Driftless keeps in sync with its source.",
    selectable = ".spec.programRef.name",
    selectable = ".spec.fluxSource.sourceRef.name",
    selectable = ".status.driftless.waitsFor",
    selectable = ".status.driftless.repository",
    printcolumn(name = "Stack", type_ = "string", json_path = ".spec.stack", priority = 10),
    printcolumn(name = "Last Update", type_ = "string", json_path = ".status.lastUpdate.state"),
    printcolumn(name = "Age", type_ = "date", json_path = ".status.lastUpdate.lastResyncTime"),
    printcolumn(name = "Last Commit", type_ = "string", json_path = ".status.lastUpdate.lastAttemptedCommit", priority = 10),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reconciling", type_ = "string", json_path = r#".status.conditions[?(@.type=="Reconciling")].reason"#),
    printcolumn(name = "Stalled", type_ = "string", json_path = r#".status.conditions[?(@.type=="Stalled")].reason"#),
    printcolumn(name = "Drifted", type_ = "string", json_path = r#".status.conditions[?(@.type=="Drifted")].status"#),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".status.driftless.suspended"),
    printcolumn(name = "Permalink", type_ = "string", json_path = ".status.lastUpdate.permalink")
)]
#[serde(rename_all = "camelCase")]
pub struct StackSpec {
    /// Name of the Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    pub stack: String,
    /// Deprecated, see `envRefs`. A Secret whose key `accessToken` becomes `PULUMI_ACCESS_TOKEN`.
    pub access_token_secret: Option<String>,
    /// URL of the state backend, set as `PULUMI_BACKEND_URL`.
    pub backend: Option<String>,
    /// Git branch or ref to follow. `projectRepo` requires exactly one of `branch` and `commit`.
    pub branch: Option<String>,
    /// Git commit to run.
    pub commit: Option<String>,
    /// Configuration values of any JSON type, by key.
    #[schemars(schema_with = "json::any")]
    #[serde(default)]
    pub config: Option<Value>,
    /// Configuration values from `ConfigMap`s, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config_ref: BTreeMap<String, ConfigMapKey>,
    /// Run an update every `resyncFrequencySeconds`, even if nothing has changed.
    pub continue_resync_on_commit_match: Option<bool>,
    /// Destroy the resources of the stack before the Stack is deleted.
    pub destroy_on_finalize: Option<bool>,
    /// Fields that the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessStack>,
    /// Environment variables, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_refs: BTreeMap<String, ResourceRef>,
    /// Deprecated, see `envRefs`. Secrets whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_secrets: Vec<String>,
    /// Pulumi ESC environments to import, in order.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Deprecated, see `envRefs`. `ConfigMap`s whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub envs: Vec<String>,
    /// Fail if a refresh before the run finds changes. The Pulumi Kubernetes Operator accepts this
    /// field without effect.
    pub expect_no_refresh_changes: Option<bool>,
    /// Flux source of the project.
    pub flux_source: Option<FluxSource>,
    /// Credentials for `projectRepo`.
    pub git_auth: Option<GitAuth>,
    /// Deprecated, see `gitAuth`. A Secret with `sshPrivateKey` and `password`, `accessToken`, or
    /// `username` and `password`.
    pub git_auth_secret: Option<String>,
    /// Stacks in the same namespace that must have succeeded before this one runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<Prerequisite>,
    /// Run previews only: no resource is ever updated or destroyed.
    pub preview: Option<bool>,
    /// Program in the same namespace that is the source.
    pub program_ref: Option<ProgramReference>,
    /// URL of the git repository that is the source.
    pub project_repo: Option<String>,
    /// Refresh the state before each run.
    pub refresh: Option<bool>,
    /// Directory of the project within `projectRepo`.
    pub repo_dir: Option<String>,
    /// Interval in seconds between resyncs and between polls of `branch`. The minimum and the
    /// default are 60.
    pub resync_frequency_seconds: Option<i64>,
    /// Maximum interval in seconds between retries, if greater than zero. The default is one day.
    pub retry_max_backoff_duration_seconds: Option<i64>,
    /// Retry if another process holds the lock of the stack. The Pulumi Kubernetes Operator accepts
    /// this field without effect.
    pub retry_on_update_conflict: Option<bool>,
    /// Run the program during a destroy.
    pub run_program: Option<bool>,
    /// Deprecated, see `secretsRef`. Secret configuration values in clear text, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Secrets provider of the stack, used when the stack is created.
    pub secrets_provider: Option<String>,
    /// Secret configuration values, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets_ref: BTreeMap<String, ResourceRef>,
    /// `ServiceAccount` that the program uses.
    pub service_account_name: Option<String>,
    /// Fetch only the last commit.
    pub shallow: Option<bool>,
    /// Include the resources that depend on `targets`.
    pub target_dependents: Option<bool>,
    /// URNs of the only resources to update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Partial Update that is merged over each Update of the Stack.
    #[schemars(schema_with = "template::update")]
    #[serde(default)]
    pub update_template: Option<Value>,
    /// Fail if the backend does not have the stack, instead of creating it.
    pub use_local_stack_only: Option<bool>,
    /// Whether the Workspace is kept or deleted after a successful run.
    pub workspace_reclaim_policy: Option<WorkspaceReclaimPolicy>,
    /// Partial Workspace that is merged over the Workspace of the Stack.
    #[schemars(schema_with = "template::workspace")]
    #[serde(default)]
    pub workspace_template: Option<Value>,
}

/// Fields of the `spec` of a Stack that the Pulumi Kubernetes Operator does not have.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftlessStack {
    /// Secrets and `ConfigMap`s in the same namespace that receive outputs after each successful
    /// update. They belong to the Stack and are deleted with it, or once the list no longer names
    /// them. An object that something else created stays unchanged.
    #[schemars(length(max = 20))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<StackOutputs>,
    /// Retries of a failed run. Without it, four runs of a generation may fail before the Stack
    /// waits for a change.
    pub retries: Option<StackRetries>,
    /// Start no runs of this Stack; a run in progress continues. The annotation
    /// `driftless.dev/suspend` has the same effect and does not change the spec, so the resumed
    /// Stack runs only if something else has changed.
    pub suspend: Option<bool>,
}

/// Retries of a failed run. A new revision of the source, a change of the spec and a reconciliation
/// request begin a new count. A destroy is retried until it succeeds, and a failure of the platform
/// is not counted.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StackRetries {
    /// Seconds before the first retry; each further one waits three times as long, up to
    /// `spec.retryMaxBackoffDurationSeconds`. The default is 10.
    #[schemars(range(min = 1, max = 86400))]
    pub first_backoff_seconds: Option<u32>,
    /// Number of retries that may follow a failed run.
    #[schemars(range(min = 0, max = 100))]
    pub limit: u32,
}

/// A key of a `ConfigMap` in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigMapKey {
    /// Whether the value is JSON.
    pub json: Option<bool>,
    /// The key.
    pub key: String,
    /// Name of the `ConfigMap`.
    pub name: String,
}

/// A value, or a reference to one. `type` selects the field that is used.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRef {
    /// `Secret` or `Literal`. `Env` and `FS`, which refer to the process of the operator, are
    /// refused, as by the Pulumi Kubernetes Operator.
    #[serde(rename = "type")]
    pub selector: String,
    /// Environment variable, for `Env`.
    pub env: Option<EnvSelector>,
    /// File, for `FS`.
    pub filesystem: Option<FileSelector>,
    /// Literal value, for `Literal`.
    pub literal: Option<LiteralSelector>,
    /// Key of a Secret, for `Secret`.
    pub secret: Option<SecretSelector>,
}

/// A variable of the environment of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvSelector {
    /// Name of the variable.
    pub name: String,
}

/// A file of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileSelector {
    /// Path of the file.
    pub path: String,
}

/// A value in clear text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiteralSelector {
    /// The value.
    pub value: String,
}

/// A key of a Secret.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretSelector {
    /// The key.
    pub key: String,
    /// Name of the Secret.
    pub name: String,
    /// Namespace of the Stack; any other namespace is refused.
    pub namespace: Option<String>,
}

/// A Flux object with an artifact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FluxSource {
    /// Directory of the project within the artifact.
    pub dir: Option<String>,
    /// Reference to the object.
    pub source_ref: ObjectReference,
}

/// A Program in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramReference {
    /// Name of the Program.
    pub name: String,
}

/// Credentials for git. One field must be set.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitAuth {
    /// A personal access token.
    pub access_token: Option<ResourceRef>,
    /// User name and password.
    pub basic_auth: Option<BasicAuth>,
    /// A GitHub App.
    pub github_app: Option<GithubAppAuth>,
    /// An SSH key.
    pub ssh_auth: Option<SshAuth>,
}

/// User name and password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// The password.
    pub password: ResourceRef,
    /// The user name.
    pub user_name: ResourceRef,
}

/// An installation of a GitHub App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GithubAppAuth {
    /// ID of the App.
    #[serde(rename = "appID")]
    pub app_id: ResourceRef,
    /// ID of the installation.
    #[serde(rename = "installationID")]
    pub installation_id: ResourceRef,
    /// Private key of the App, in PEM form.
    pub private_key: ResourceRef,
}

/// An SSH key.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshAuth {
    /// Passphrase of the key.
    pub password: Option<ResourceRef>,
    /// The key, in PEM form.
    pub ssh_private_key: ResourceRef,
}

/// A Stack in the same namespace that must have succeeded before.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prerequisite {
    /// Name of the Stack.
    pub name: String,
    /// Further requirement.
    pub requirement: Option<Requirement>,
}

/// A requirement for a prerequisite in addition to its success.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    /// Maximum age of its last success, such as `1h30m`. An older prerequisite is requested to run
    /// again.
    pub succeeded_within_duration: Option<String>,
}

/// Whether a Workspace is kept or deleted after a successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkspaceReclaimPolicy {
    /// The Workspace is kept.
    Retain,
    /// The Workspace is deleted.
    Delete,
}

/// The `status` of a Stack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackStatus {
    /// Conditions `Ready`, `Reconciling` and `Stalled` of kstatus, and `Drifted`.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The Update in progress.
    pub current_update: Option<CurrentUpdate>,
    /// Fields that the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessStackStatus>,
    /// The last recorded Update.
    pub last_update: Option<LastUpdate>,
    /// The last reconciled generation.
    pub observed_generation: Option<i64>,
    /// The last reconciled value of the annotation `pulumi.com/reconciliation-request`.
    pub observed_reconcile_request: Option<String>,
    /// Outputs of the last successful update, by name. The value of a secret output is `[secret]`.
    #[schemars(schema_with = "json::any_map")]
    pub outputs: Option<BTreeMap<String, Value>>,
    /// Project of the last successful update.
    pub project_info: Option<ProjectInfo>,
}

/// The Update in progress.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentUpdate {
    /// Revision of the source that the Update runs.
    pub commit: Option<String>,
    /// Generation of the Stack that the Update runs.
    pub generation: Option<i64>,
    /// Name of the Update.
    pub name: Option<String>,
    /// Reconciliation request that the Update answers.
    pub reconcile_request: Option<String>,
}

/// The last recorded Update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastUpdate {
    /// Number of failures in a row.
    pub failures: Option<i64>,
    /// Generation of the Stack that the Update ran.
    pub generation: Option<i64>,
    /// Revision of the source that the Update ran.
    pub last_attempted_commit: Option<String>,
    /// Time at which the Update was recorded.
    #[serde(deserialize_with = "json::lenient")]
    pub last_resync_time: Option<Time>,
    /// Revision of the source of the last successful Update.
    pub last_successful_commit: Option<String>,
    /// Reason of the failure.
    pub message: Option<String>,
    /// Name of the Update.
    pub name: Option<String>,
    /// Page of the Update in Pulumi Cloud.
    pub permalink: Option<String>,
    /// Reconciliation request that the Update answered.
    pub reconcile_request: Option<String>,
    /// `succeeded` or `failed`.
    pub state: Option<String>,
    /// `up`, `preview`, `refresh` or `destroy`.
    #[serde(rename = "type")]
    pub operation: Option<String>,
}

/// Fields of the status of a Stack that the Pulumi Kubernetes Operator does not have.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessStackStatus {
    /// Number of the pull request that shows the results of the previews.
    pub change_request: Option<i64>,
    /// Whether the last run failed because another process had locked the stack.
    pub conflict: Option<bool>,
    /// Details of the condition `Drifted`.
    pub drift: Option<StackDrift>,
    /// The announced end of the Stack's life.
    pub expiry: Option<StackExpiry>,
    /// Keyed digest of the values that the last run read from Secrets and `ConfigMap`s.
    pub inputs: Option<String>,
    /// Time of the next reconciliation, unless an event causes an earlier one.
    #[serde(deserialize_with = "json::lenient")]
    pub next_look: Option<Time>,
    /// The last runs, if the platform failed them or if they never started. They are not counted in
    /// `lastUpdate.failures`.
    pub platform_failures: Option<PlatformFailures>,
    /// The plans of a Stack with the annotation `driftless.dev/approval`.
    pub plan: Option<StackPlan>,
    /// Whether the operation of any run has ever started, so the stack may have resources. Absent
    /// if another operator or an earlier release ran the Stack.
    pub operated: Option<bool>,
    /// Whether any run has ever started. Absent if another operator ran the Stack.
    pub ran: Option<bool>,
    /// The repository of `spec.projectRepo` as `host/path`, a selectable field: a push to the
    /// repository finds the Stack by it.
    pub repository: Option<String>,
    /// Digest of the paths in the annotation `driftless.dev/paths`, in the tree of the last
    /// successful run.
    pub scope: Option<String>,
    /// Whether the Stack is suspended.
    pub suspended: Option<bool>,
    /// The first prerequisite that the Stack waits for.
    pub waits_for: Option<String>,
}

/// Consecutive runs that the platform failed, such as by an image that cannot be pulled, a lack of
/// capacity, or maintenance; or that were abandoned before they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlatformFailures {
    /// Number of the runs that the platform failed. The back-off grows with it, up to 5 minutes.
    pub count: i64,
    /// Whether Pulumi has not run this generation yet.
    pub fresh: bool,
}

/// The announced end of a Stack with the annotation `driftless.dev/ttl`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackExpiry {
    /// What prevents the deletion. Absent if the Stack is deleted at `time`.
    pub blocked: Option<String>,
    /// Time at which the Stack is deleted or its TTL ends.
    #[serde(deserialize_with = "json::lenient")]
    pub time: Option<Time>,
}

/// The drift of a Stack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackDrift {
    /// Whether the last update was an adoption that failed. Its retry is another adoption.
    pub adoption_failed: Option<bool>,
    /// Number of drifted resources.
    pub count: Option<u32>,
    /// Update of the drift check in progress.
    pub current_check: Option<String>,
    /// Update of the last drift check that had a result.
    pub last_check: Option<String>,
    /// Time at which a drift check was last recorded.
    #[serde(deserialize_with = "json::lenient")]
    pub last_check_time: Option<Time>,
    /// The first drifted resources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<DriftedResource>,
}

/// A drifted resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftedResource {
    /// Kind of drift: `update` or `delete`.
    pub change: String,
    /// Paths of the properties that differ, such as `tags.owner`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<String>,
    /// URN of the resource.
    pub urn: String,
}
