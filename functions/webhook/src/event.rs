use std::collections::BTreeMap;

use driftless_contract::{Hint, ObjectKey};
use serde::Deserialize;

/// The API group of Flux's sources, and the kinds whose artifact a Stack can use.
const GROUP: &str = "source.toolkit.fluxcd.io";
const KINDS: [&str; 5] = ["GitRepository", "OCIRepository", "Bucket", "HelmChart", "ExternalArtifact"];

/// The reasons that mean: there is an artifact.
const REASONS: [&str; 4] = ["NewArtifact", "Succeeded", "ChartPullSucceeded", "ChartPackageSucceeded"];

/// A Flux event as the notification-controller sends it, as far as we read it. It may have more fields in any release.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    involved_object: InvolvedObject,
    reason: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InvolvedObject {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

pub(crate) fn parse(body: &[u8]) -> serde_json::Result<Event> {
    serde_json::from_slice(body)
}

impl Event {
    /// The hint for the source that has a new artifact; `None` if the event is about anything else.
    pub(crate) fn hint(self, cluster: &str) -> Option<Hint> {
        let InvolvedObject { api_version, kind, namespace, name } = self.involved_object;
        let (group, _) = api_version.split_once('/')?;
        if group != GROUP || !KINDS.contains(&kind.as_str()) || !REASONS.contains(&self.reason.as_str()) {
            return None;
        }
        let revision = revision(self.metadata);
        Some(Hint { revision, ..Hint::new(ObjectKey { cluster: cluster.into(), api_version, kind, namespace, name }) })
    }
}

/// On the wire the key is `revision`; Flux's own documents, and events that did not pass its notification-controller, have the
/// group before it.
fn revision(mut metadata: BTreeMap<String, String>) -> Option<String> {
    metadata.remove("revision").or_else(|| metadata.remove(&format!("{GROUP}/revision")))
}
