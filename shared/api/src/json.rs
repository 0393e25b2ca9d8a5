//! Values of any form: their schemas, and reading that does not fail for one invalid field.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

/// JSON from users that is neither validated nor pruned.
pub(crate) fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of [`any`].
pub(crate) fn any_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": any(generator) })
}

/// A map of [`any`].
pub(crate) fn any_map(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": any(generator) })
}

/// An object whose fields are neither validated nor pruned.
pub(crate) fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Conditions, one of each type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut item = generator.subschema_for::<Condition>();
    if let Some(status) = item.pointer_mut("/properties/status").and_then(Value::as_object_mut) {
        status.insert("enum".into(), json!(["True", "False", "Unknown"]));
    }
    json_schema!({
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Reads a value, or uses the default for one that does not decode: the API server accepts times
/// that this type cannot hold, and one of them must not hide the object or a whole list.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Reads a list, and leaves out items that do not decode.
pub(crate) fn lenient_list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let items: Vec<Value> = lenient(deserializer)?;
    Ok(items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect())
}
