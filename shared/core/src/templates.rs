//! What the templates of a Stack make of its Workspace and its Updates, and which templates are
//! refused.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{DefaultSize, EmbeddedMetadata, Operation, TaskFields, duration, merge, metadata};

/// The metadata of a template, and its spec merged over another. The error names the field that
/// cannot be merged.
pub fn merged<Spec: Serialize + DeserializeOwned + Clone>(
    field: &str,
    base: &Spec,
    template: Option<&Value>,
) -> Result<(EmbeddedMetadata, Spec), String> {
    let Some(template) = template else { return Ok((EmbeddedMetadata::default(), base.clone())) };
    let invalid = |part: &str, error: serde_json::Error| format!("{field}.{part}: {error}");
    let base = serde_json::to_value(base).map_err(|error| invalid("spec", error))?;
    let metadata = template.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let spec = template.get("spec").map_or(base.clone(), |patch| merge(base, patch));
    Ok((
        serde_json::from_value(metadata).map_err(|error| invalid("metadata", error))?,
        serde_json::from_value(spec).map_err(|error| invalid("spec", error))?,
    ))
}

/// Why a Workspace's spec with the template of a Stack merged over it is refused, as a message. The
/// flags say whether it has `stacks` or `projectInfo`, which only the Stack's other fields set.
#[must_use]
pub fn workspace_refused(task: &TaskFields<'_>, has_stacks: bool, has_project: bool) -> Option<String> {
    let at = task.at;
    if has_stacks {
        Some(format!(
            "{at}.stacks is not supported in a template, because a run has the one Pulumi stack of its Stack; remove it"
        ))
    } else if has_project {
        Some(format!("{at}.projectInfo is not supported in a template; remove it, and set a source of the Stack"))
    } else {
        task.shape(DefaultSize::default()).err()
    }
}

/// Why an Update's spec with the template of a Stack merged over it is refused, as a message.
#[must_use]
pub fn update_refused(field: &str, operation: Option<&str>, ttl_after_completed: Option<&str>) -> Option<String> {
    if let Some(word) = operation.filter(|word| Operation::parse(word).is_none()) {
        return Some(format!("{field}.spec.type is {word:?}; use up, preview, refresh or destroy"));
    }
    let ttl = ttl_after_completed.filter(|ttl| duration(ttl).is_none());
    ttl.map(|ttl| format!("{field}.spec.ttlAfterCompleted is {ttl:?}; write a duration such as 24h"))
}

/// Why the runs of a guarded Stack, whose template sets this operation, cannot have a plan, as a
/// message.
#[must_use]
pub fn unplannable(field: &str, operation: Option<&str>) -> Option<String> {
    let operation = operation.filter(|word| *word != Operation::Up.as_str())?;
    let remedy = format!("remove it: a Stack with the annotation {} runs up", metadata::APPROVAL);
    Some(format!("{field}.spec.type is {operation:?}; {remedy}"))
}
