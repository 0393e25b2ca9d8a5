use driftless_core::{EmbeddedMetadata, EnvFromSource, EnvVar, KeySelector, ResourceRequirements, TaskFields};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{ProjectInfo, Tree, json};

/// The `spec` of a Workspace: the environment of runs, without secret values. The Pulumi Kubernetes
/// Operator keeps a pod for it. Driftless starts a task from it for each run.
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
    doc = "The environment in which a Pulumi project runs.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address")
)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceSpec {
    /// Fields that the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessWorkspace>,
    /// Environment variables.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// `ConfigMap`s and Secrets whose keys become environment variables. `env` takes precedence,
    /// and a later entry over an earlier one.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// Flux artifact that is the source.
    pub flux: Option<FluxArtifact>,
    /// Git repository that is the source.
    pub git: Option<WorkspaceGit>,
    /// Image with `pulumi` and the runtime of the program.
    pub image: Option<String>,
    /// Pull policy of the image.
    pub image_pull_policy: Option<String>,
    /// Directory of the image that is the source.
    pub local: Option<LocalSource>,
    /// Partial pod template that is merged over the generated one.
    pub pod_template: Option<PodTemplate>,
    /// Name and runtime of a project without a source or a program.
    pub project_info: Option<ProjectInfo>,
    /// Verbosity of the log of `pulumi`; 0 is off.
    pub pulumi_log_level: Option<i32>,
    /// CPU and memory of a run.
    pub resources: Option<ResourceRequirements>,
    /// Security profile: `restricted` or `baseline`.
    #[schemars(extend("default" = "restricted"))]
    pub security_profile: Option<String>,
    /// `ServiceAccount` that the program uses.
    #[schemars(extend("default" = "default"))]
    pub service_account_name: Option<String>,
    /// Partial metadata that is merged over that of the Service.
    pub service_template: Option<ServiceTemplate>,
    /// Stacks to prepare, in order.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<WorkspaceStack>,
}

impl WorkspaceSpec {
    /// The fields that a run's task is made of. `at` is the field in which the user wrote this
    /// spec: `spec`, or `spec.workspaceTemplate.spec` of a Stack.
    #[must_use]
    pub fn task<'a>(&'a self, at: &'a str) -> TaskFields<'a> {
        let sources = [("git", self.git.is_some()), ("flux", self.flux.is_some()), ("local", self.local.is_some())];
        let pod = self.pod_template.as_ref();
        TaskFields {
            at,
            source: sources.into_iter().find(|(_, set)| *set).map(|(field, _)| field),
            image: self.image.as_deref(),
            image_pull_policy: self.image_pull_policy.as_deref(),
            resources: self.resources.as_ref(),
            env: &self.env,
            env_from: &self.env_from,
            pod: pod.and_then(|pod| pod.spec.as_ref()).unwrap_or(&Value::Null),
            pod_metadata: pod.and_then(|pod| pod.metadata.as_ref()),
            service_metadata: self.service_template.as_ref().and_then(|service| service.metadata.as_ref()),
            log_level: self.pulumi_log_level,
            security_profile: self.security_profile.as_deref(),
        }
    }
}

/// Fields of a Workspace that the Pulumi Kubernetes Operator does not have.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriftlessWorkspace {
    /// Stored tree of the last run of the Stack that owns the Workspace.
    pub tree: Option<Tree>,
}

/// A Flux artifact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FluxArtifact {
    /// Digest of the artifact, such as `sha256:…`.
    pub digest: Option<String>,
    /// Directory of the project within the source.
    pub dir: Option<String>,
    /// URL of the artifact: the `status.artifact.url` of a Flux source in the same namespace.
    pub url: Option<String>,
}

/// A git repository at a commit.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkspaceGit {
    /// Credentials for the repository.
    pub auth: Option<WorkspaceGitAuth>,
    /// Directory of the project within the source.
    pub dir: Option<String>,
    /// Branch, tag, full ref, or full commit ID; the default branch if it is not set.
    pub r#ref: Option<String>,
    /// Has no effect, because only the commit itself is fetched.
    pub shallow: Option<bool>,
    /// URL of the repository.
    pub url: Option<String>,
}

/// Credentials for git.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceGitAuth {
    /// A GitHub App.
    pub github_app: Option<WorkspaceGithubApp>,
    /// Password, or passphrase of the SSH key.
    pub password: Option<KeySelector>,
    /// SSH key, in PEM form.
    pub ssh_private_key: Option<KeySelector>,
    /// A personal access token.
    pub token: Option<KeySelector>,
    /// User name.
    pub username: Option<KeySelector>,
}

/// An installation of a GitHub App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceGithubApp {
    /// ID of the App.
    #[serde(rename = "appID")]
    pub app_id: KeySelector,
    /// ID of the installation.
    #[serde(rename = "installationID")]
    pub installation_id: KeySelector,
    /// Private key of the App, in PEM form.
    pub private_key: KeySelector,
}

/// A directory of the image.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LocalSource {
    /// Path of the directory.
    pub dir: Option<String>,
}

/// A partial pod template.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels and annotations.
    pub metadata: Option<EmbeddedMetadata>,
    /// Spec of a pod, as in Kubernetes. The API server does not validate it.
    #[schemars(schema_with = "json::object")]
    pub spec: Option<Value>,
}

/// A partial Service with metadata only.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceTemplate {
    /// Labels and annotations.
    pub metadata: Option<EmbeddedMetadata>,
}

/// A stack to prepare.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStack {
    /// Configuration of the stack.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigItem>,
    /// Create the stack if the backend does not have it.
    pub create: Option<bool>,
    /// Pulumi ESC environments to import, in order.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Name of the stack: `stack`, `org/stack` or `org/project/stack`.
    pub name: String,
    /// Secrets provider of the stack, used when the stack is created.
    pub secrets_provider: Option<String>,
}

/// A configuration value.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigItem {
    /// Key of the value. A key without a colon belongs to the namespace of the project.
    pub key: String,
    /// Whether the key is a path into a structured value.
    pub path: Option<bool>,
    /// Whether the value is stored encrypted.
    pub secret: Option<bool>,
    /// The value, of any JSON type.
    #[schemars(schema_with = "json::any")]
    #[serde(default)]
    pub value: Option<Value>,
    /// Source of the value, instead of `value`.
    pub value_from: Option<ConfigValueFrom>,
}

/// Source of a configuration value.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfigValueFrom {
    /// Name of an environment variable.
    pub env: Option<String>,
    /// Whether the value is JSON.
    pub json: Option<bool>,
    /// Path of a file.
    pub path: Option<String>,
}

/// The `status` of a Workspace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceStatus {
    /// Address of the agent of the Pulumi Kubernetes Operator. Not used by Driftless.
    pub address: Option<String>,
    /// Conditions `Ready` and `Stalled`.
    #[schemars(schema_with = "json::conditions")]
    #[serde(deserialize_with = "json::lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Fields that the Pulumi Kubernetes Operator does not have.
    pub driftless: Option<DriftlessWorkspaceStatus>,
    /// The last reconciled generation.
    pub observed_generation: Option<i64>,
    /// Version of `pulumi` in the image.
    pub pulumi_version: Option<String>,
}

/// Fields of the status of a Workspace that the Pulumi Kubernetes Operator does not have. They are
/// for people: Driftless decides nothing from them.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftlessWorkspaceStatus {
    /// ARN of the ECS task definition of its runs.
    pub task_definition: Option<String>,
}
