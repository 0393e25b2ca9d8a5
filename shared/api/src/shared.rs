use driftless_core::Uid;
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
