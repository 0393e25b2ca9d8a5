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

/// A Pulumi YAML program: the content of `Pulumi.yaml` without name and runtime. Expressions are
/// any JSON and are kept unchanged.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramBody {
    /// Configuration values of the program, by name.
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

/// A configuration value of a program.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProgramConfiguration {
    /// Default value, used if the Stack sets none.
    #[schemars(schema_with = "json::any")]
    pub default: Option<Value>,
    /// Type of the value.
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
    /// Reads an existing resource instead of creating one.
    pub get: Option<ResourceGetter>,
    /// Options of the resource.
    pub options: Option<ResourceOptions>,
    /// Input properties, by name.
    #[schemars(schema_with = "json::any_map")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Value>,
    /// Type token of the resource, such as `aws:s3:Bucket`.
    #[schemars(length(min = 1))]
    pub r#type: String,
}

/// An existing resource to read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceGetter {
    /// ID of the resource.
    #[schemars(length(min = 1))]
    pub id: String,
    /// Known properties of the resource, if the ID alone does not identify it.
    #[schemars(schema_with = "json::any_map")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<String, Value>,
}

/// Options of a resource.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceOptions {
    /// Outputs to treat as secret, in addition to those that the provider marks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_secret_outputs: Vec<String>,
    /// Earlier URNs of the resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Maximum durations of the operations of the resource.
    pub custom_timeouts: Option<CustomTimeouts>,
    /// Delete the resource before its replacement is created.
    pub delete_before_replace: Option<bool>,
    /// Resources that must be created before this one.
    #[schemars(schema_with = "json::any_list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Value>,
    /// Properties whose changes are ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_changes: Vec<String>,
    /// ID of an existing resource to import.
    pub import: Option<String>,
    /// Parent of the resource.
    #[schemars(schema_with = "json::any")]
    pub parent: Option<Value>,
    /// Prevent deletion of the resource.
    pub protect: Option<bool>,
    /// Provider of the resource.
    #[schemars(schema_with = "json::any")]
    pub provider: Option<Value>,
    /// Providers of a component, by package.
    #[schemars(schema_with = "json::any_map")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, Value>,
    /// Version of the provider.
    pub version: Option<String>,
}

/// Maximum durations of the operations of a resource, such as `10m`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CustomTimeouts {
    /// Maximum duration of the creation.
    pub create: Option<String>,
    /// Maximum duration of the deletion.
    pub delete: Option<String>,
    /// Maximum duration of an update.
    pub update: Option<String>,
}

/// The `status` of a Program.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramStatus {
    /// Source artifact with the program.
    #[serde(deserialize_with = "json::lenient")]
    pub artifact: Option<Artifact>,
    /// Generation that the artifact contains.
    pub observed_generation: Option<i64>,
}
