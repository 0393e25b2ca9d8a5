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
