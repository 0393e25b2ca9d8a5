use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The object's API version, such as `source.toolkit.fluxcd.io/v1`.
    pub api_version: String,
    /// The object's kind, such as `GitRepository`.
    pub kind: String,
    /// The object's name.
    pub name: String,
}

/// What a destroy has to know of a project when its source is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectInfo {
    /// The project's name.
    pub name: String,
    /// The name of its runtime, such as `nodejs`.
    pub runtime: String,
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
    fn a_duration_is_gos_or_none() {
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
