use std::collections::BTreeMap;

use driftless_contract::{EVENT_REPORTER, Hint, ObjectKey};
use serde::Deserialize;

/// The API group of Flux's sources.
const SOURCES: &str = "source.toolkit.fluxcd.io";

/// Flux's kinds by group, with the reasons that mean that there is an artifact, or that objects
/// were applied. kustomize-controller reports applied objects while it is still `Progressing`,
/// before it waits for their health, and again at the end, with every interval.
const KINDS: [(&str, &[&str], &[&str]); 3] = [
    (
        SOURCES,
        &["GitRepository", "OCIRepository", "Bucket", "HelmChart", "ExternalArtifact"],
        &["NewArtifact", "Succeeded", "ChartPullSucceeded", "ChartPackageSucceeded"],
    ),
    ("kustomize.toolkit.fluxcd.io", &["Kustomization"], &["Progressing", "ReconciliationSucceeded"]),
    (
        "helm.toolkit.fluxcd.io",
        &["HelmRelease"],
        &[
            "InstallSucceeded",
            "UpgradeSucceeded",
            "RollbackSucceeded",
            "UninstallSucceeded",
            "TestSucceeded",
            "DriftCorrected",
            "ReconciliationSucceeded",
        ],
    ),
];

/// The fields that are read of an event of Flux's notification-controller. Any release may add more
/// fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    involved_object: InvolvedObject,
    reason: String,
    #[serde(default)]
    severity: String,
    #[serde(default)]
    reporting_controller: String,
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

impl Event {
    /// The hint for the source with a new artifact, or for what applied objects; `None` for any
    /// other event.
    pub(crate) fn hint(self, cluster: &str) -> Option<Hint> {
        let InvolvedObject { api_version, kind, namespace, name } = self.involved_object;
        let (group, _) = api_version.split_once('/')?;
        let (_, kinds, reasons) = KINDS.into_iter().find(|(known, ..)| *known == group)?;
        // An error may come with the reason of the previous success.
        let good = reasons.contains(&self.reason.as_str()) && self.severity != "error";
        if !kinds.contains(&kind.as_str()) || !good || self.reporting_controller == EVENT_REPORTER {
            return None;
        }
        // Only a source has a revision to wait for.
        let revision = if group == SOURCES { revision(self.metadata) } else { None };
        Some(Hint { revision, ..Hint::new(ObjectKey { cluster: cluster.into(), api_version, kind, namespace, name }) })
    }
}

/// On the wire the key is `revision`; in Flux's own documents, and in events that did not pass its
/// notification-controller, it has the group as a prefix.
fn revision(mut metadata: BTreeMap<String, String>) -> Option<String> {
    metadata.remove("revision").or_else(|| metadata.remove(&format!("{SOURCES}/revision")))
}
