use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::{DynamicObject, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::json;

/// The kinds for which Flux itself creates artifacts of a project, as (API version, kind). Any
/// other object may be a source too, if it has a `status.artifact` of Flux's form. `HelmRepository`
/// is not one: its artifact is an index.
pub const KINDS: [(&str, &str); 5] = [
    ("source.toolkit.fluxcd.io/v1", "GitRepository"),
    ("source.toolkit.fluxcd.io/v1", "OCIRepository"),
    ("source.toolkit.fluxcd.io/v1", "Bucket"),
    ("source.toolkit.fluxcd.io/v1", "HelmChart"),
    ("source.toolkit.fluxcd.io/v1", "ExternalArtifact"),
];

/// The archive of a source, as in `status.artifact` of Flux.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["lastUpdateTime", "path", "revision", "url"]))]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Digest of the archive, such as `sha256:…`.
    pub digest: Option<String>,
    /// Time at which the archive was written.
    #[serde(default, deserialize_with = "json::lenient")]
    pub last_update_time: Option<Time>,
    /// Metadata from the source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Path of the archive in the storage of its producer.
    pub path: String,
    /// Revision of the source, in a form that the source defines.
    pub revision: String,
    /// Size of the archive in bytes, for information only.
    pub size: Option<i64>,
    /// URL of the archive.
    pub url: String,
}

/// A Flux source of any kind: the fields that a Stack needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// The object's API version; empty if absent.
    pub api_version: String,
    /// The object's kind; empty if absent.
    pub kind: String,
    /// `metadata`
    pub metadata: ObjectMeta,
    /// `spec.suspend`: the status is kept, whatever the source does.
    pub suspend: bool,
    /// `spec.verify` is set: only a verified artifact may be used.
    pub verify: bool,
    /// `status.artifact`. A source that is not ready may have its last good one.
    pub artifact: Option<Artifact>,
    /// `status.conditions`
    pub conditions: Vec<Condition>,
    /// `status.observedGeneration`. An `ExternalArtifact` has none.
    pub observed_generation: Option<i64>,
}

impl Source {
    /// Reads the object. A field that does not decode is absent, because an unknown kind may have
    /// any content there.
    #[must_use]
    pub fn from_object(object: &DynamicObject) -> Self {
        let types = object.types.clone().unwrap_or_default();
        Self {
            api_version: types.api_version,
            kind: types.kind,
            metadata: object.metadata.clone(),
            suspend: decode(&object.data, "/spec/suspend").unwrap_or_default(),
            verify: object.data.pointer("/spec/verify").is_some_and(|verify| !verify.is_null()),
            artifact: decode(&object.data, "/status/artifact"),
            conditions: decode::<Vec<Value>>(&object.data, "/status/conditions")
                .unwrap_or_default()
                .into_iter()
                .filter_map(|condition| serde_json::from_value(condition).ok())
                .collect(),
            observed_generation: decode(&object.data, "/status/observedGeneration"),
        }
    }
}

fn decode<T: DeserializeOwned>(data: &Value, pointer: &str) -> Option<T> {
    data.pointer(pointer).and_then(|value| T::deserialize(value).ok())
}
