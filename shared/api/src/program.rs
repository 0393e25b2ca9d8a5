use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{Artifact, json};

/// The root of a Program: it has `program` where other objects have `spec`.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "pulumi.com",
    version = "v1",
    kind = "Program",
    namespaced,
    no_spec,
    status = "ProgramStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "pulumi",
    doc = "A Pulumi YAML program that Stacks can refer to.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.artifact.url")
)]
pub struct ProgramRoot {
    /// The program.
    pub program: Option<ProgramBody>,
}

/// A Pulumi YAML program: what a `Pulumi.yaml` has besides name and runtime. Expressions are any JSON and stay as they were written.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramBody {
    /// Configuration that the program takes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, ProgramConfiguration>,
    /// Outputs by name.
    #[schemars(schema_with = "json::any_map")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    /// Versions of packages, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
    /// Resources by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, ProgramResource>,
    /// Intermediate values by name.
    #[schemars(schema_with = "json::any_map")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
}

/// A configuration value that a program takes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProgramConfiguration {
    /// Its value if the Stack gives none.
    #[schemars(schema_with = "json::any")]
    pub default: Option<Value>,
    /// Its type.
    pub r#type: Option<ConfigurationType>,
}

/// The type of a configuration value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConfigurationType {
    /// Text.
    String,
    /// A number.
    Number,
    /// A list of numbers.
    #[serde(rename = "List<Number>")]
    Numbers,
    /// A list of texts.
    #[serde(rename = "List<String>")]
    Strings,
}

/// A resource of a program.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramResource {
    /// An existing resource to read, instead of one to make.
    pub get: Option<ResourceGetter>,
    /// How it is handled.
    pub options: Option<ResourceOptions>,
    /// Its inputs by name.
    #[schemars(schema_with = "json::any_map")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Value>,
    /// Its type token, such as `aws:s3:Bucket`.
    #[schemars(length(min = 1))]
    pub r#type: String,
}

/// An existing resource to read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceGetter {
    /// Its id.
    #[schemars(length(min = 1))]
    pub id: String,
    /// What is known of it, where the id is not enough to find it.
    #[schemars(schema_with = "json::any_map")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<String, Value>,
}

/// How a resource is handled.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceOptions {
    /// Outputs that are secret although the provider does not say so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_secret_outputs: Vec<String>,
    /// URNs that the resource had.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How long its operations may take.
    pub custom_timeouts: Option<CustomTimeouts>,
    /// Delete it before its replacement is made.
    pub delete_before_replace: Option<bool>,
    /// Resources that come first.
    #[schemars(schema_with = "json::any_list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Value>,
    /// Properties whose changes do not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_changes: Vec<String>,
    /// The id of an existing resource to take over.
    pub import: Option<String>,
    /// Its parent.
    #[schemars(schema_with = "json::any")]
    pub parent: Option<Value>,
    /// It must not be deleted.
    pub protect: Option<bool>,
    /// Its provider.
    #[schemars(schema_with = "json::any")]
    pub provider: Option<Value>,
    /// Its providers by package, for a component.
    #[schemars(schema_with = "json::any_map")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, Value>,
    /// The version of its provider.
    pub version: Option<String>,
}

/// How long the operations of a resource may take, such as `10m`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CustomTimeouts {
    /// To create it.
    pub create: Option<String>,
    /// To delete it.
    pub delete: Option<String>,
    /// To update it.
    pub update: Option<String>,
}

/// The `status` of a Program.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramStatus {
    /// The program as a source.
    #[serde(deserialize_with = "json::lenient")]
    pub artifact: Option<Artifact>,
    /// The generation that the artifact is of.
    pub observed_generation: Option<i64>,
}
