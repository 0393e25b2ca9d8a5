//! The fields of an object that the forwarder reads. A tenant chooses how large an object is and
//! how deep it is nested, so everything else is skipped: `serde_json` skips without recursion, and
//! fails only on deep nesting that it has to read.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher as _},
};

use driftless_api::{is_stack, names};
use driftless_contract::PREFIX;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object of a kind that is known only at run time: its place, and the hashes of its relevant
/// fields.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// The namespace, the name and the resource version.
    metadata: ObjectMeta,
    /// The hash of what users request.
    pub(crate) asked: u64,
    /// The hash of its status.
    pub(crate) shown: u64,
    /// It is being deleted.
    pub(crate) deleting: bool,
    /// A Stack owns it.
    pub(crate) of_stack: bool,
    /// A reader asks for a link to its log.
    pub(crate) asks_for_log: bool,
}

impl Resource for Watched {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
struct Parts {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "readable")]
    status: Status,
}

/// Reads what the forwarder needs of an object's metadata: not `managedFields`, which are nested as
/// deep as the object.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        annotations: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        namespace: read.namespace,
        name: read.name,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        annotations: read.annotations,
        owner_references: read.owner_references,
        ..ObjectMeta::default()
    })
}

#[derive(Default, Deserialize)]
struct Status {
    artifact: Option<Artifact>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Artifact {
    revision: Option<String>,
    digest: Option<String>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: Option<String>,
}

/// A status of another form, such as that of another controller's kind, counts as absent, so that
/// it does not make the object unreadable.
fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let status = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(status.get()).unwrap_or_default())
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Parts::deserialize(deserializer)?;
        let [asked, shown] = hashes(&parts);
        let ObjectMeta { namespace, name, resource_version, deletion_timestamp, owner_references, annotations, .. } =
            parts.metadata;
        Ok(Self {
            metadata: ObjectMeta { namespace, name, resource_version, ..ObjectMeta::default() },
            asked,
            shown,
            deleting: deletion_timestamp.is_some(),
            of_stack: owner_references.is_some_and(|owners| owners.iter().any(is_stack)),
            asks_for_log: annotations.is_some_and(|annotations| annotations.contains_key(names::LOG_REQUESTED_AT)),
        })
    }
}

/// The relevant fields: what users request, an artifact in the status, and the end of an Update.
/// Driftless's functions write all other status fields.
fn hashes(Parts { metadata, status }: &Parts) -> [u64; 2] {
    let is_ours = |name: &str| name.split_once('/').is_some_and(|(prefix, _)| prefix == PREFIX);
    let is_request = |name: &str| name == names::RECONCILIATION_REQUEST || is_ours(name);
    let requests: Vec<_> = metadata.annotations.iter().flatten().filter(|(name, _)| is_request(name)).collect();
    let artifact = status.artifact.as_ref().map(|artifact| (&artifact.revision, &artifact.digest));
    let complete = status.conditions.iter().flatten().find(|condition| condition.type_ == "Complete");
    let complete = complete.map(|condition| &condition.status);
    [hash((&metadata.uid, metadata.generation, metadata.deletion_timestamp.is_some(), requests)), hash((artifact, complete))]
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deeply_nested_value_is_skipped() {
        let deep = format!("{}1{}", "{\"a\":[".repeat(500), "]}".repeat(500));
        let metadata = |more: &str| format!(r#""metadata": {{ "namespace": "n", "name": "s", "generation": 7 {more} }}"#);
        let artifact = r#""artifact": { "revision": "r" }"#;
        let plain = format!(r#"{{ {}, "status": {{ {artifact} }} }}"#, metadata(""));
        let managed = metadata(&format!(r#", "managedFields": [{{ "fieldsV1": {deep} }}]"#));
        let nested =
            format!(r#"{{ "program": {deep}, {managed}, "status": {{ "outputs": {deep}, {artifact} }}, "spec": {deep} }}"#);
        let read = |text: &str| serde_json::from_str::<Watched>(text).unwrap();
        assert_eq!((read(&nested).asked, read(&nested).shown), (read(&plain).asked, read(&plain).shown));
        assert_eq!(read(&nested).metadata.name.as_deref(), Some("s"));
    }

    #[test]
    fn status_of_another_form_counts_as_absent() {
        let hash = |status: serde_json::Value| {
            let object = json!({ "metadata": { "name": "s" }, "status": status });
            serde_json::from_value::<Watched>(object).unwrap().shown
        };
        for status in [json!(7), json!({ "artifact": "none" }), json!({ "conditions": { "Complete": true } })] {
            assert_eq!(hash(status.clone()), hash(json!(null)), "{status}");
        }
        assert_ne!(hash(json!({ "artifact": { "revision": "r" } })), hash(json!(null)));
    }
}
