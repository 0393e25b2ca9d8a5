//! Strategic merge patches, with the merge rules of Kubernetes for the objects in a Stack's
//! templates.

use serde_json::{Map, Value};

/// The merge key of each list. A list that is not here is replaced as a whole.
const MERGE_KEYS: [(&str, &str); 14] = [
    ("conditions", "type"),
    ("config", "key"),
    ("containers", "name"),
    ("env", "name"),
    ("ephemeralContainers", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ownerReferences", "uid"),
    ("ports", "containerPort"),
    ("stacks", "name"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];
/// In a map or an item of a list: `delete` or `replace` the existing value instead of merging.
const DIRECTIVE: &str = "$patch";

/// Merges `patch` over `base`: maps by key, lists of maps by their merge key, `finalizers` as a
/// set; anything else is replaced. `null` and `$patch: delete` remove the existing value, `$patch:
/// replace` replaces it. The `value` of a configuration item is one value and is never merged.
#[must_use]
pub fn merge(base: Value, patch: &Value) -> Value {
    merge_field("", base, patch)
}

fn merge_field(field: &str, base: Value, patch: &Value) -> Value {
    let key = MERGE_KEYS.iter().find(|(list, _)| *list == field).map(|(_, key)| *key);
    match (base, patch) {
        (_, patch) if field == "value" => patch.clone(),
        (base, Value::Object(patch)) => merge_map(base, patch).into(),
        (base, Value::Array(patch)) => {
            let base = if let Value::Array(base) = base { base } else { Vec::new() };
            match key {
                Some(key) => merge_list(key, base, patch).into(),
                None if field == "finalizers" => union(base, patch).into(),
                None => patch.clone().into(),
            }
        }
        (_, patch) => patch.clone(),
    }
}

fn merge_map(base: Value, patch: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = match (base, directive(patch)) {
        (_, Some("delete")) => return Map::new(),
        (Value::Object(base), None) => base,
        _ => Map::new(),
    };
    for (field, patch) in patch.iter().filter(|(field, _)| *field != DIRECTIVE) {
        if patch.is_null() {
            merged.remove(field);
        } else {
            let base = merged.remove(field).unwrap_or_default();
            merged.insert(field.clone(), merge_field(field, base, patch));
        }
    }
    merged
}

fn merge_list(key: &str, base: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let directive = |item: &Value| item.as_object().and_then(directive).map(ToOwned::to_owned);
    let replaces = |item: &&Value| directive(item).as_deref() == Some("replace") && item.get(key).is_none();
    let mut merged = if patch.iter().any(|item| replaces(&item)) { Vec::new() } else { base };
    for item in patch.iter().filter(|item| !replaces(item)) {
        let same = |other: &Value| item.get(key).is_some_and(|key_value| other.get(key) == Some(key_value));
        if directive(item).as_deref() == Some("delete") {
            merged.retain(|other| !same(other));
        } else if let Some(other) = merged.iter_mut().find(|other| same(other)) {
            *other = merge_field("", other.take(), item);
        } else {
            merged.push(merge_field("", Value::Null, item));
        }
    }
    merged
}

fn union(mut base: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    for item in patch {
        if !base.contains(item) {
            base.push(item.clone());
        }
    }
    base
}

fn directive(patch: &Map<String, Value>) -> Option<&str> {
    patch.get(DIRECTIVE)?.as_str().filter(|directive| ["delete", "replace"].contains(directive))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_merged_as_kubernetes_does() {
        let env = |name: &str, value: &str| json!({ "name": name, "value": value });
        for (what, base, patch, expected) in [
            (
                "maps are merged",
                json!({ "a": { "x": 1 }, "b": 2 }),
                json!({ "a": { "y": 3 } }),
                json!({ "a": { "x": 1, "y": 3 }, "b": 2 }),
            ),
            ("null removes", json!({ "a": 1, "b": { "c": 2 } }), json!({ "a": null, "b": { "c": null } }), json!({ "b": {} })),
            ("null is not kept where nothing was", json!({}), json!({ "a": { "b": null, "c": 1 } }), json!({ "a": { "c": 1 } })),
            ("other lists are replaced", json!({ "target": ["a", "b"] }), json!({ "target": ["c"] }), json!({ "target": ["c"] })),
            (
                "a list may be emptied",
                json!({ "envFrom": [{ "prefix": "a" }] }),
                json!({ "envFrom": [] }),
                json!({ "envFrom": [] }),
            ),
            (
                "env is merged by its name, in its place",
                json!({ "env": [env("A", "1"), env("B", "2")] }),
                json!({ "env": [env("C", "3"), env("A", "4")] }),
                json!({ "env": [env("A", "4"), env("B", "2"), env("C", "3")] }),
            ),
            (
                "an item of a list is merged, not replaced",
                json!({ "stacks": [{ "name": "dev", "create": true, "config": [{ "key": "a", "value": { "x": 1 } }] }] }),
                json!({ "stacks": [{ "name": "dev", "config": [{ "key": "a", "value": { "y": null } }, { "key": "b", "value": "2" }] }] }),
                json!({ "stacks": [{ "name": "dev", "create": true, "config": [{ "key": "a", "value": { "y": null } }, { "key": "b", "value": "2" }] }] }),
            ),
            (
                "an item that is to be deleted",
                json!({ "env": [env("A", "1"), env("B", "2")] }),
                json!({ "env": [{ "name": "A", "$patch": "delete" }, { "name": "Z", "$patch": "delete" }] }),
                json!({ "env": [env("B", "2")] }),
            ),
            (
                "an item that is to be replaced",
                json!({ "stacks": [{ "name": "dev", "create": true }] }),
                json!({ "stacks": [{ "name": "dev", "$patch": "replace", "environment": ["e"] }] }),
                json!({ "stacks": [{ "name": "dev", "environment": ["e"] }] }),
            ),
            (
                "a whole list that is to be replaced",
                json!({ "env": [env("A", "1")] }),
                json!({ "env": [{ "$patch": "replace" }, env("B", "2")] }),
                json!({ "env": [env("B", "2")] }),
            ),
            (
                "a map that is to be replaced, and one to be deleted",
                json!({ "a": { "x": 1 }, "b": { "x": 1 } }),
                json!({ "a": { "$patch": "replace", "y": 2 }, "b": { "$patch": "delete" } }),
                json!({ "a": { "y": 2 }, "b": {} }),
            ),
            (
                "nested lists of a pod",
                json!({}),
                json!({ "spec": { "containers": [{ "name": "pulumi", "env": [env("A", "1"), { "name": "B", "$patch": "delete" }] }] } }),
                json!({ "spec": { "containers": [{ "name": "pulumi", "env": [env("A", "1")] }] } }),
            ),
            (
                "finalizers are a set",
                json!({ "finalizers": ["a"] }),
                json!({ "finalizers": ["b", "a"] }),
                json!({ "finalizers": ["a", "b"] }),
            ),
            (
                "what is of another type is replaced",
                json!({ "a": [1], "env": {} }),
                json!({ "a": { "b": 1 }, "env": [env("A", "1")] }),
                json!({ "a": { "b": 1 }, "env": [env("A", "1")] }),
            ),
            (
                "items without their key are added",
                json!({ "env": [1] }),
                json!({ "env": [2, { "value": "x" }] }),
                json!({ "env": [1, 2, { "value": "x" }] }),
            ),
            ("nothing", json!({ "a": 1 }), json!({}), json!({ "a": 1 })),
        ] {
            assert_eq!(merge(base, &patch), expected, "{what}");
        }
    }
}
