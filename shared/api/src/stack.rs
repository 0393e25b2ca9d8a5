use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{ObjectReference, ProjectInfo, json, template};

/// The `spec` of a Stack: a Pulumi stack that is kept as its source says. The same in `v1` and `v1alpha1`.
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
    doc = "A Pulumi stack that is kept as its source says.",
    selectable = ".spec.programRef.name",
    selectable = ".spec.fluxSource.sourceRef.name",
    selectable = ".status.driftless.waitsFor",
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
    /// The Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    pub stack: String,
    /// Deprecated, see `envRefs`. A Secret whose key `accessToken` becomes `PULUMI_ACCESS_TOKEN`.
    pub access_token_secret: Option<String>,
    /// The URL of the state backend: `PULUMI_BACKEND_URL`.
    pub backend: Option<String>,
    /// The git branch or ref to follow. Exactly one of `branch` and `commit` goes with `projectRepo`.
    pub branch: Option<String>,
    /// The git commit to use.
    pub commit: Option<String>,
    /// Configuration by key: values of any JSON type.
    #[schemars(schema_with = "json::any")]
    #[serde(default)]
    pub config: Option<Value>,
    /// Configuration by key from `ConfigMap`s.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config_ref: BTreeMap<String, ConfigMapKey>,
    /// Run again every `resyncFrequencySeconds`, even if nothing changed.
    pub continue_resync_on_commit_match: Option<bool>,
    /// Destroy the stack's resources before the Stack goes.
    pub destroy_on_finalize: Option<bool>,
    /// What the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessStack>,
    /// Environment variables by name.
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
    /// Fail if a refresh before the run would change anything. PKO accepts it and does nothing.
    pub expect_no_refresh_changes: Option<bool>,
    /// The source is a Flux object.
    pub flux_source: Option<FluxSource>,
    /// The credentials for `projectRepo`.
    pub git_auth: Option<GitAuth>,
    /// Deprecated, see `gitAuth`. A Secret with `sshPrivateKey` and `password`, `accessToken`, or `username` and `password`.
    pub git_auth_secret: Option<String>,
    /// Stacks in the same namespace that must have succeeded first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<Prerequisite>,
    /// Only preview: nothing is ever updated or destroyed.
    pub preview: Option<bool>,
    /// The source is a Program.
    pub program_ref: Option<ProgramReference>,
    /// The source is a git repository: its URL.
    pub project_repo: Option<String>,
    /// Refresh the state before each run.
    pub refresh: Option<bool>,
    /// The project's directory within `projectRepo`.
    pub repo_dir: Option<String>,
    /// Seconds between resyncs and between looks at `branch`; 60 at least and by default.
    pub resync_frequency_seconds: Option<i64>,
    /// The most seconds between retries, if greater than zero; a day by default.
    pub retry_max_backoff_duration_seconds: Option<i64>,
    /// Try again while somebody else holds the stack's lock. PKO accepts it and does nothing.
    pub retry_on_update_conflict: Option<bool>,
    /// Run the program when destroying.
    pub run_program: Option<bool>,
    /// Deprecated, see `secretsRef`. Secret configuration by key, in clear.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// How the stack's secrets are encrypted, if the stack is created.
    pub secrets_provider: Option<String>,
    /// Secret configuration by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets_ref: BTreeMap<String, ResourceRef>,
    /// The `ServiceAccount` that the program is.
    pub service_account_name: Option<String>,
    /// Fetch only the last commit.
    pub shallow: Option<bool>,
    /// Include what depends on `targets`.
    pub target_dependents: Option<bool>,
    /// URNs of the only resources to update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Merged over each Update that is made.
    #[schemars(schema_with = "template::update")]
    #[serde(default)]
    pub update_template: Option<Value>,
    /// Fail if the backend does not have the stack, instead of creating it.
    pub use_local_stack_only: Option<bool>,
    /// What becomes of the Workspace after a successful run.
    pub workspace_reclaim_policy: Option<WorkspaceReclaimPolicy>,
    /// Merged over the Workspace that is made.
    #[schemars(schema_with = "template::workspace")]
    #[serde(default)]
    pub workspace_template: Option<Value>,
}

/// What the `spec` of a Stack has besides PKO's fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftlessStack {
    /// No run of it begins. One that is under way goes on. The annotation `driftless.dev/suspend` does the same, and is no change of the
    /// spec: a Stack that goes on has to run only if something else changed.
    pub suspend: Option<bool>,
}

/// A key of a `ConfigMap` in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigMapKey {
    /// The value is JSON.
    pub json: Option<bool>,
    /// The key.
    pub key: String,
    /// The `ConfigMap`'s name.
    pub name: String,
}

/// A value, or where it is. `type` says which of the other fields counts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRef {
    /// `Secret` or `Literal`. `Env` and `FS`, which spoke of the operator's own process, are refused, as in PKO.
    #[serde(rename = "type")]
    pub selector: String,
    /// For `Env`.
    pub env: Option<EnvSelector>,
    /// For `FS`.
    pub filesystem: Option<FileSelector>,
    /// For `Literal`.
    pub literal: Option<LiteralSelector>,
    /// For `Secret`.
    pub secret: Option<SecretSelector>,
}

/// A variable of the operator's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvSelector {
    /// The variable's name.
    pub name: String,
}

/// A file of the operator's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileSelector {
    /// The file's path.
    pub path: String,
}

/// A value in clear.
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
    /// The Secret's name.
    pub name: String,
    /// The Stack's own namespace, or nothing: another one is refused.
    pub namespace: Option<String>,
}

/// A Flux object with an artifact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FluxSource {
    /// The project's directory within the artifact.
    pub dir: Option<String>,
    /// The object.
    pub source_ref: ObjectReference,
}

/// A Program in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramReference {
    /// The Program's name.
    pub name: String,
}

/// Credentials for git: one of these.
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
    /// The app's id.
    #[serde(rename = "appID")]
    pub app_id: ResourceRef,
    /// The installation's id.
    #[serde(rename = "installationID")]
    pub installation_id: ResourceRef,
    /// The app's private key, as PEM.
    pub private_key: ResourceRef,
}

/// An SSH key.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshAuth {
    /// The key's passphrase.
    pub password: Option<ResourceRef>,
    /// The key, as PEM.
    pub ssh_private_key: ResourceRef,
}

/// A Stack in the same namespace that must have succeeded first.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prerequisite {
    /// The Stack's name.
    pub name: String,
    /// What more is asked of it.
    pub requirement: Option<Requirement>,
}

/// What is asked of a prerequisite besides its last success.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    /// How long ago its last success may be, such as `1h30m`; after that it is asked to run again.
    pub succeeded_within_duration: Option<String>,
}

/// What becomes of a Workspace after a successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkspaceReclaimPolicy {
    /// It stays.
    Retain,
    /// It is deleted.
    Delete,
}

/// The `status` of a Stack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackStatus {
    /// `Ready`, `Reconciling` and `Stalled`, as kstatus has them.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The Update that is under way.
    pub current_update: Option<CurrentUpdate>,
    /// What the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessStackStatus>,
    /// The Update that was recorded last.
    pub last_update: Option<LastUpdate>,
    /// The generation that was looked at last.
    pub observed_generation: Option<i64>,
    /// The annotation `pulumi.com/reconciliation-request` that was looked at last.
    pub observed_reconcile_request: Option<String>,
    /// The outputs of the last successful update by name; a secret one is the string `[secret]`.
    #[schemars(schema_with = "json::any_map")]
    pub outputs: Option<BTreeMap<String, Value>>,
    /// The project of the last successful update.
    pub project_info: Option<ProjectInfo>,
}

/// The Update that is under way.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentUpdate {
    /// The revision of the source that it runs.
    pub commit: Option<String>,
    /// The Stack's generation that it runs.
    pub generation: Option<i64>,
    /// Its name.
    pub name: Option<String>,
    /// The reconciliation request that it answers.
    pub reconcile_request: Option<String>,
}

/// The Update that was recorded last.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastUpdate {
    /// How often it failed in a row.
    pub failures: Option<i64>,
    /// The Stack's generation that it ran.
    pub generation: Option<i64>,
    /// The revision of the source that it ran.
    pub last_attempted_commit: Option<String>,
    /// When it was recorded.
    #[serde(deserialize_with = "json::lenient")]
    pub last_resync_time: Option<Time>,
    /// The revision of the source that ran last with success.
    pub last_successful_commit: Option<String>,
    /// Why it failed.
    pub message: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its page in Pulumi Cloud.
    pub permalink: Option<String>,
    /// The reconciliation request that it answered.
    pub reconcile_request: Option<String>,
    /// `succeeded` or `failed`.
    pub state: Option<String>,
    /// `up`, `preview`, `refresh` or `destroy`.
    #[serde(rename = "type")]
    pub operation: Option<String>,
}

/// What the status of a Stack has besides PKO's fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessStackStatus {
    /// The last run failed because the stack is locked by somebody else.
    pub conflict: Option<bool>,
    /// What is known of drift, besides the condition `Drifted`.
    pub drift: Option<StackDrift>,
    /// A keyed digest of what the last run read from Secrets and `ConfigMap`s.
    pub inputs: Option<String>,
    /// When the Stack is looked at again, if no event comes before.
    #[serde(deserialize_with = "json::lenient")]
    pub next_look: Option<Time>,
    /// The last runs failed because of the platform under them: they are not counted in `lastUpdate.failures`.
    pub platform_failures: Option<PlatformFailures>,
    /// Whether the operation of any of its runs ever began, so that its stack may have resources. Absent if another operator, or an
    /// earlier release, ran it.
    pub operated: Option<bool>,
    /// Whether any of its runs ever began. Absent if another operator ran it.
    pub ran: Option<bool>,
    /// The digest of what the annotation `driftless.dev/paths` lists, in the tree that ran last with success.
    pub scope: Option<String>,
    /// No run of it begins before it is resumed.
    pub suspended: Option<bool>,
    /// The first of the prerequisites that it waits for.
    pub waits_for: Option<String>,
}

/// Runs in a row that the platform failed: an image that cannot be pulled, capacity, maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlatformFailures {
    /// How many. The back-off grows with it, up to 5 minutes.
    pub count: i64,
    /// Pulumi has not run this generation yet.
    pub fresh: bool,
}

/// What is known of a Stack's drift.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackDrift {
    /// How many resources are not as they were applied.
    pub count: Option<u32>,
    /// The Update that looks for drift now.
    pub current_check: Option<String>,
    /// The Update that looked for drift last.
    pub last_check: Option<String>,
    /// When that one was recorded.
    #[serde(deserialize_with = "json::lenient")]
    pub last_check_time: Option<Time>,
    /// The first of the resources that are not as they were applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<DriftedResource>,
}

/// A resource that is not as it was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftedResource {
    /// What happened to it: `update` or `delete`.
    pub change: String,
    /// The paths of the properties that differ, such as `tags.owner`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<String>,
    /// The resource.
    pub urn: String,
}
