//! The templates of a Stack: partial objects that are merged over the generated ones, so every
//! field is optional.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{
    JsonSchema, Schema, SchemaGenerator, json_schema,
    transform::{Transform, transform_subschemas},
};
use serde_json::Value;

use crate::{UpdateSpec, UpdateStatus, WorkspaceSpec, WorkspaceStatus};

/// The schema of `spec.workspaceTemplate`.
pub(crate) fn workspace(generator: &mut SchemaGenerator) -> Schema {
    template::<WorkspaceSpec, WorkspaceStatus>(generator)
}

/// The schema of `spec.updateTemplate`.
pub(crate) fn update(generator: &mut SchemaGenerator) -> Schema {
    template::<UpdateSpec, UpdateStatus>(generator)
}

fn template<Spec: JsonSchema, Status: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = json_schema!({
        "type": "object",
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": generator.subschema_for::<ObjectMeta>(),
            "spec": generator.subschema_for::<Spec>(),
            "status": generator.subschema_for::<Status>(),
        },
    });
    Relax.transform(&mut schema);
    schema
}

/// Turns a schema into that of a partial object: no field is required, has a default or is an enum,
/// lists have no keys, and fields that a template may not set are removed. Types of Kubernetes,
/// which have a map type, stay unchanged.
struct Relax;

impl Transform for Relax {
    fn transform(&mut self, schema: &mut Schema) {
        if schema.get("x-kubernetes-map-type").is_some() {
            return;
        }
        for constraint in ["required", "default", "enum", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"] {
            schema.remove(constraint);
        }
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            for fixed in ["driftless", "managedFields", "selfLink"] {
                properties.remove(fixed);
            }
        }
        transform_subschemas(self, schema);
    }
}
