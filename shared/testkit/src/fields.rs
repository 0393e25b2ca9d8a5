//! Fields of objects as JSON: selectors, merges and applies.

use std::{collections::BTreeSet, sync::LazyLock};

use driftless_api::crds;
use driftless_kubernetes::Selector;
use serde_json::{Map, Value, json};

/// The fields of Driftless's kinds that the API server can select by, each with its kind.
static SELECTABLE: LazyLock<BTreeSet<(String, String)>> = LazyLock::new(|| {
    let versions = crds::all().into_iter().flatten().flat_map(|crd| {
        let kind = crd.spec.names.kind;
        crd.spec.versions.into_iter().map(move |version| (kind.clone(), version))
    });
    let fields = versions.flat_map(|(kind, version)| {
        let fields = version.selectable_fields.into_iter().flatten();
        fields.map(move |field| (kind.clone(), field.json_path.trim_start_matches('.').to_owned()))
    });
    fields.collect()
});

/// The terms of a selector `a.b=c,d.e!=f`: field or label, value, and whether the object must have
/// it. A backslash escapes the next character of a value.
fn terms(selector: &str) -> Vec<(String, String, bool)> {
    let (mut terms, mut parts, mut characters) = (Vec::new(), [String::new(), String::new()], selector.chars());
    let mut is_value = false;
    loop {
        match characters.next() {
            Some('\\') => parts[usize::from(is_value)].extend(characters.next()),
            Some('=') if !is_value => is_value = true,
            Some(character) if character != ',' => parts[usize::from(is_value)].push(character),
            end => {
                let [name, value] = std::mem::take(&mut parts);
                is_value = false;
                let unequal = name.strip_suffix('!').map(ToOwned::to_owned);
                terms.push(unequal.map_or((name, value.clone(), true), |name| (name, value, false)));
                if end.is_none() {
                    return terms;
                }
            }
        }
    }
}

/// A field of a selector that the kind does not support.
pub(crate) fn unselectable(kind: &str, selector: Selector<'_>) -> Option<String> {
    let Selector::Fields(selector) = selector else { return None };
    let is_selectable = |field: &str| {
        ["metadata.name", "metadata.namespace"].contains(&field) || SELECTABLE.contains(&(kind.to_owned(), field.to_owned()))
    };
    terms(selector).into_iter().map(|(field, ..)| field).find(|field| !is_selectable(field))
}

/// An absent field counts as empty; an absent label has no value.
pub(crate) fn is_selected(object: &Value, selector: Selector<'_>) -> bool {
    match selector {
        Selector::All => true,
        Selector::Fields(fields) => terms(fields).into_iter().all(|(field, value, equal)| {
            let found = object.pointer(&format!("/{}", field.replace('.', "/")));
            let found = found.map_or_else(String::new, |value| value.as_str().map_or_else(|| value.to_string(), Into::into));
            (found == value) == equal
        }),
        Selector::Labels(labels) => terms(labels)
            .into_iter()
            .all(|(label, value, equal)| (object["metadata"]["labels"][label].as_str() == Some(&value)) == equal),
    }
}

/// Removes the fields that were applied before and are not now, unless another client has changed
/// them.
pub(crate) fn release(object: &mut Value, before: &Value, now: &Value) {
    let (Value::Object(object), Value::Object(before)) = (object, before) else { return };
    for (field, before) in before {
        let now = now.get(field);
        if now.is_none() && object.get(field) == Some(before) {
            object.remove(field);
        } else if let Some(value) = object.get_mut(field) {
            release(value, before, now.unwrap_or(&Value::Null));
        }
    }
}

/// A merge patch: objects are merged, everything else is replaced.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The fields of a value, which becomes an object if it is none.
pub(crate) fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object"),
    }
}

/// Removes empty metadata fields, which the API server does not store.
pub(crate) fn omit_empty(object: &mut Value) {
    let is_empty = |value: &Value| [json!({}), json!([])].contains(value);
    fields(&mut object["metadata"]).retain(|_, value| !is_empty(value));
}
