use std::collections::BTreeMap;

use driftless_core::OutputKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A Secret or `ConfigMap` that receives outputs of a Stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackOutputs {
    /// Name of an output, by key of the object. Text is written as it is, any other value as JSON.
    /// Without `keys`, the object has all outputs under their own names; a `ConfigMap` has those
    /// that are not secret.
    #[schemars(extend("maxProperties" = 100))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, String>,
    /// `Secret` or `ConfigMap`. A `ConfigMap` receives no secret output.
    #[schemars(schema_with = "output_kind")]
    pub kind: OutputKind,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

fn output_kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Secret", "ConfigMap"] })
}
