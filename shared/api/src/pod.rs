//! Kubernetes' own types, as far as a Workspace has them. Not those of k8s-openapi, which are as strict as their version and lack
//! both the defaults and `fileKeyRef`.
//!
//! Each schema states its map type, even where it is the default: see `template`.

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
    /// The variable's name.
    pub name: String,
    /// The variable's value.
    pub value: Option<String>,
    /// Where the value is instead.
    pub value_from: Option<EnvVarSource>,
}

/// Where the value of an environment variable is: exactly one of these.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// In a key of a `ConfigMap`.
    pub config_map_key_ref: Option<KeySelector>,
    /// In a field of the pod.
    pub field_ref: Option<FieldSelector>,
    /// In a file of a volume.
    pub file_key_ref: Option<FileKeySelector>,
    /// In the resources of a container.
    pub resource_field_ref: Option<ResourceFieldSelector>,
    /// In a key of a Secret.
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
    /// The object or its key may be missing.
    pub optional: Option<bool>,
}

/// A field of a pod.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct FieldSelector {
    /// The API version that the path is of.
    pub api_version: Option<String>,
    /// The path of the field.
    pub field_path: String,
}

/// A key of a file with environment variables, in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct FileKeySelector {
    /// The key.
    pub key: String,
    /// The file or its key may be missing.
    #[serde(default)]
    pub optional: bool,
    /// The path of the file within the volume.
    pub path: String,
    /// The name of the volume.
    pub volume_name: String,
}

/// A resource of a container.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct ResourceFieldSelector {
    /// The container's name.
    pub container_name: Option<String>,
    /// The unit that the value is given in.
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
    /// What precedes each key in the variable's name.
    pub prefix: Option<String>,
    /// The Secret.
    pub secret_ref: Option<ObjectSelector>,
}

/// A `ConfigMap` or Secret in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ObjectSelector {
    /// The object's name.
    #[serde(default)]
    pub name: String,
    /// It may be missing.
    pub optional: Option<bool>,
}

/// What a container asks for and what it gets at most.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
#[serde(default)]
pub struct ResourceRequirements {
    /// Resource claims of the pod that the container uses.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ResourceClaim>,
    /// What it gets at most, by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// What it asks for, by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// A resource claim.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "granular"))]
pub struct ResourceClaim {
    /// The claim's name in the pod's spec.
    pub name: String,
    /// One request of the claim; all of them if it is not there.
    pub request: Option<String>,
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
