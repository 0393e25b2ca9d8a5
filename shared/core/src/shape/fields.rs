//! The fields of a pod template: which of them a task ignores or refuses, and how they are read.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fields of a pod that only concern where or how it runs. A task runs the same program without
/// them.
pub(super) const POD_ONLY: [&str; 24] = [
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostname",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "setHostnameAsFQDN",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
];
/// The same for a container.
pub(super) const CONTAINER_ONLY: [&str; 12] = [
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
];

/// The ignored fields of a map that are set.
pub(super) fn set_of<'a>(map: &'a Value, ignored: &'static [&'static str]) -> impl Iterator<Item = &'a str> {
    let set = map.as_object().into_iter().flatten().filter(|(_, value)| is_set(value));
    set.filter(|(field, value)| is_ignored(field, value, ignored)).map(|(field, _)| field.as_str())
}

/// Returns whether a run without this field is the same run.
fn is_ignored(field: &str, value: &Value, ignored: &[&str]) -> bool {
    ignored.contains(&field)
        && match field {
            // Every run has the token, and no setting can withhold it from the program.
            "automountServiceAccountToken" => *value != Value::Bool(false),
            // With other name servers or search domains the program would reach other hosts.
            "dnsConfig" => !is_set(&value["nameservers"]) && !is_set(&value["searches"]),
            // It may change the container that the program runs in; the other hooks run when the
            // container ends.
            "lifecycle" => !is_set(&value["postStart"]),
            _ => true,
        }
}

/// Refuses a map that sets a field other than these and the `ignored` ones.
pub(super) fn only(at: &str, map: &Value, fields: &[&str], ignored: &[&str]) -> Result<(), String> {
    if !matches!(map, Value::Object(_) | Value::Null) {
        return Err(format!("{at} is not an object"));
    }
    let is_known = |field: &str, value: &Value| fields.contains(&field) || is_ignored(field, value, ignored);
    let other = map.as_object().into_iter().flatten().find(|(field, value)| is_set(value) && !is_known(field, value));
    match other.map(|(field, _)| field.as_str()) {
        Some("lifecycle") => Err(format!(
            "{}; remove it, and run the command in the image or in an init container",
            meaningless(at, "lifecycle.postStart")
        )),
        Some(field) => Err(format!("{}; remove it", meaningless(at, field))),
        None => Ok(()),
    }
}

/// Reads a value; the error names the field.
pub(super) fn typed<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("{at}: {error}"))
}

/// The beginning of an error about a field that no task can have.
pub(super) fn meaningless(at: &str, field: &str) -> String {
    let dot = if field.starts_with('[') { "" } else { "." };
    format!("{at}{dot}{field} has no meaning on Fargate")
}

/// Returns whether Kubernetes accepts it as the name of a container or a volume.
pub(super) fn is_label(name: &str) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Returns whether a field has a value other than an empty one.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

/// The items of a list; none if it is no list.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
