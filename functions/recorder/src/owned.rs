//! The objects that a run leaves beside its Update and that are deleted with the Update: the
//! outputs Secret and the ConfigMap with the log.

use driftless_api::{Update, names};
use kube::{Resource as _, ResourceExt, core::ObjectMeta};

/// The remedy if the API server refuses to write such an object.
pub(crate) const BIND: &str =
    "bind the ClusterRole driftless:run-outputs in this namespace (infra/kubernetes/runs) and run again";

/// The metadata for an object with this name.
pub(crate) fn metadata(update: &Update, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: update.namespace(),
        labels: Some([(names::AUTO_COMPONENT.to_owned(), names::AUTO_COMPONENT_UPDATE.to_owned())].into()),
        owner_references: update.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Returns whether an existing object of that name belongs to this Update.
pub(crate) fn is_of(object: &impl ResourceExt, update: &Update) -> bool {
    object.owner_references().iter().any(|owner| Some(&owner.uid) == update.metadata.uid.as_ref())
}

/// The message if it does not.
pub(crate) fn is_another(kind: &str, name: &str) -> String {
    format!("{kind} {name:?} exists and does not belong to this Update; delete it and run again")
}
