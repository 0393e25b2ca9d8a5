//! The types of Kubernetes that a Workspace uses. Those of k8s-openapi are not used, because they
//! are as strict as their version and lack the defaults and `fileKeyRef`.
//!
//! Each schema has its map type, even where that is the default: see `template`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

/// An environment variable.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    pub value: Option<String>,
    /// Source of the value, instead of `value`.
    pub value_from: Option<EnvVarSource>,
}

/// Source of the value of an environment variable. Exactly one field must be set.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// A key of a `ConfigMap`.
    pub config_map_key_ref: Option<KeySelector>,
    /// A field of the pod.
    pub field_ref: Option<FieldSelector>,
    /// A key of a file in a volume.
    pub file_key_ref: Option<FileKeySelector>,
    /// A resource of a container.
    pub resource_field_ref: Option<ResourceFieldSelector>,
    /// A key of a Secret.
    pub secret_key_ref: Option<KeySelector>,
}

/// A key of a Secret or `ConfigMap` in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct KeySelector {
    /// The key.
    pub key: String,
    /// The name of the Secret or `ConfigMap`.
    #[serde(default)]
    pub name: String,
    /// Whether the object or its key may be missing.
    pub optional: Option<bool>,
}

/// A field of a pod.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct FieldSelector {
    /// API version of the schema that the path uses.
    pub api_version: Option<String>,
    /// Path of the field.
    pub field_path: String,
}

/// A key of a file with environment variables, in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct FileKeySelector {
    /// The key.
    pub key: String,
    /// Whether the file or its key may be missing.
    #[serde(default)]
    pub optional: bool,
    /// Path of the file within the volume.
    pub path: String,
    /// Name of the volume.
    pub volume_name: String,
}

/// A resource of a container.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct ResourceFieldSelector {
    /// Name of the container.
    pub container_name: Option<String>,
    /// Unit of the value, by which the resource is divided.
    pub divisor: Option<Quantity>,
    /// The resource, such as `limits.memory`.
    pub resource: String,
}

/// All keys of a `ConfigMap` or Secret as environment variables.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(rename_all = "camelCase")]
pub struct EnvFromSource {
    /// The `ConfigMap`.
    pub config_map_ref: Option<ObjectSelector>,
    /// Prefix of the name of each variable.
    pub prefix: Option<String>,
    /// The Secret.
    pub secret_ref: Option<ObjectSelector>,
}

/// A `ConfigMap` or Secret in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ObjectSelector {
    /// Name of the object.
    #[serde(default)]
    pub name: String,
    /// Whether the object may be missing.
    pub optional: Option<bool>,
}

/// Compute resources of a container.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(default)]
pub struct ResourceRequirements {
    /// Resource claims of the pod that the container uses.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ResourceClaim>,
    /// Maximum amounts, by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// Requested amounts, by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// A resource claim.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
pub struct ResourceClaim {
    /// Name of the claim in the spec of the pod.
    pub name: String,
    /// One request of the claim; all requests if it is not set.
    pub request: Option<String>,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EmbeddedMetadata {
    /// Annotations, by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels, by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A quantity such as `500m` or `2Gi`, as written; a number becomes its digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value")]
pub struct Quantity(pub String);

impl From<Value> for Quantity {
    fn from(value: Value) -> Self {
        match value {
            Value::String(text) => Self(text),
            number => Self(number.to_string()),
        }
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}
