use driftless_core::Uid;
use jiff::SignedDuration;
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// API version of the object, such as `source.toolkit.fluxcd.io/v1`.
    pub api_version: String,
    /// Kind of the object, such as `GitRepository`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

/// Name and runtime of a Pulumi project, which a destroy needs if the source no longer exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectInfo {
    /// Name of the project.
    pub name: String,
    /// Name of the runtime, such as `nodejs`.
    pub runtime: String,
}

/// The UID of an object; empty for one that is not stored.
#[must_use]
pub fn uid_of(object: &impl ResourceExt) -> Uid {
    object.uid().map(Uid::from).unwrap_or_default()
}

/// Parses a duration in the form of PKO's fields: `24h`, `1h30m0s`, `1.5h`. `None` if it is invalid or negative.
#[must_use]
pub fn duration(text: &str) -> Option<SignedDuration> {
    text.parse().ok().filter(|duration: &SignedDuration| !duration.is_negative())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_the_format_of_go() {
        for (text, seconds) in [("24h", 86_400), ("24h0m0s", 86_400), ("1h30m", 5_400), ("1.5h", 5_400), ("1500ms", 1), ("0s", 0)]
        {
            assert_eq!(duration(text).map(|duration| duration.as_secs()), Some(seconds), "{text}");
        }
        // Some parsers panic at the last two.
        for text in ["", "a day", "24", "-1h", "1h-5m", "99999999999999999999999h"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
