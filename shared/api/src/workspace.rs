use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{EnvFromSource, EnvVar, KeySelector, ProjectInfo, ResourceRequirements, Tree, json};

/// The `spec` of a Workspace: where and how runs take place, without secret values. PKO keeps a pod for it; here it is a record,
/// and a task is started from it for each run.
#[expect(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Workspace",
    namespaced,
    status = "WorkspaceStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "pulumi",
    doc = "Where and how the runs of a Pulumi project take place.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address")
)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceSpec {
    /// What the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessWorkspace>,
    /// Environment variables.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// `ConfigMap`s and Secrets whose keys become environment variables; `env` wins over them, and a later one over an earlier one.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// The source is a Flux artifact.
    pub flux: Option<FluxArtifact>,
    /// The source is a git repository.
    pub git: Option<WorkspaceGit>,
    /// The image with `pulumi` and the program's runtime.
    pub image: Option<String>,
    /// When the image is pulled.
    pub image_pull_policy: Option<String>,
    /// The source is a directory of the image.
    pub local: Option<LocalSource>,
    /// Merged over the pod's template.
    pub pod_template: Option<PodTemplate>,
    /// There is no source: a project of this name and runtime, without a program.
    pub project_info: Option<ProjectInfo>,
    /// The verbosity of `pulumi`'s log; 0 is off.
    pub pulumi_log_level: Option<i32>,
    /// What a run gets of CPU and memory.
    pub resources: Option<ResourceRequirements>,
    /// `restricted` or `baseline`.
    #[schemars(extend("default" = "restricted"))]
    pub security_profile: Option<String>,
    /// The `ServiceAccount` that the program is.
    #[schemars(extend("default" = "default"))]
    pub service_account_name: Option<String>,
    /// Merged over the Service's metadata.
    pub service_template: Option<ServiceTemplate>,
    /// The stacks to prepare, in order.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<WorkspaceStack>,
}

/// What a Workspace has besides PKO's fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriftlessWorkspace {
    /// The source as it was stored when the Stack that owns the Workspace was run last.
    pub tree: Option<Tree>,
}

/// A Flux artifact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FluxArtifact {
    /// The artifact's digest, such as `sha256:…`.
    pub digest: Option<String>,
    /// The project's directory within it.
    pub dir: Option<String>,
    /// Where it is: the `status.artifact.url` of a Flux source of the same namespace.
    pub url: Option<String>,
}

/// A git repository at a commit.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkspaceGit {
    /// The credentials.
    pub auth: Option<WorkspaceGitAuth>,
    /// The project's directory within it.
    pub dir: Option<String>,
    /// A branch, a tag, a full ref, or a commit by its whole id; the default branch if it is missing.
    pub r#ref: Option<String>,
    /// Changes nothing: only that commit is fetched.
    pub shallow: Option<bool>,
    /// The repository's URL.
    pub url: Option<String>,
}

/// Credentials for git.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceGitAuth {
    /// A GitHub App.
    pub github_app: Option<WorkspaceGithubApp>,
    /// The password, or the SSH key's passphrase.
    pub password: Option<KeySelector>,
    /// The SSH key, as PEM.
    pub ssh_private_key: Option<KeySelector>,
    /// A personal access token.
    pub token: Option<KeySelector>,
    /// The user name.
    pub username: Option<KeySelector>,
}

/// An installation of a GitHub App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceGithubApp {
    /// The app's id.
    #[serde(rename = "appID")]
    pub app_id: KeySelector,
    /// The installation's id.
    #[serde(rename = "installationID")]
    pub installation_id: KeySelector,
    /// The app's private key, as PEM.
    pub private_key: KeySelector,
}

/// A directory of the image.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LocalSource {
    /// The directory's path.
    pub dir: Option<String>,
}

/// What is merged over a pod's template.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels and annotations.
    pub metadata: Option<EmbeddedMetadata>,
    /// A pod's spec, as Kubernetes has it. Not checked by the API server.
    #[schemars(schema_with = "json::object")]
    pub spec: Option<Value>,
}

/// What is merged over a Service's metadata.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceTemplate {
    /// Labels and annotations.
    pub metadata: Option<EmbeddedMetadata>,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EmbeddedMetadata {
    /// Annotations by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A stack to prepare.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStack {
    /// Its configuration.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigItem>,
    /// Create it if the backend does not have it.
    pub create: Option<bool>,
    /// Pulumi ESC environments to import, in order.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// `stack`, `org/stack` or `org/project/stack`.
    pub name: String,
    /// How its secrets are encrypted, if it is created.
    pub secrets_provider: Option<String>,
}

/// A configuration value.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigItem {
    /// Its key; without a colon, the project's name precedes it.
    pub key: String,
    /// The key is a path into a structured value.
    pub path: Option<bool>,
    /// It is stored encrypted.
    pub secret: Option<bool>,
    /// The value, of any JSON type.
    #[schemars(schema_with = "json::any")]
    #[serde(default)]
    pub value: Option<Value>,
    /// Where the value is instead.
    pub value_from: Option<ConfigValueFrom>,
}

/// Where a configuration value is.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfigValueFrom {
    /// In an environment variable.
    pub env: Option<String>,
    /// It is JSON.
    pub json: Option<bool>,
    /// In a file.
    pub path: Option<String>,
}

/// The `status` of a Workspace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceStatus {
    /// Where PKO's agent listens. Not used here.
    pub address: Option<String>,
    /// `Ready` and `Stalled`.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessWorkspaceStatus>,
    /// The generation that was looked at last.
    pub observed_generation: Option<i64>,
    /// The version of `pulumi` in the image.
    pub pulumi_version: Option<String>,
}

/// What the status of a Workspace has besides PKO's fields. For people: nothing is decided from it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessWorkspaceStatus {
    /// The ARN of the ECS task definition that its runs are started from.
    pub task_definition: Option<String>,
}
