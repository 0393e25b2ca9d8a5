//! The list of the runs with a slot and the waiting ones: an annotation of a Lease in the system's
//! own namespace.

use driftless_contract::{keys, to_json};
use driftless_core::Admissions;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt as _, core::ObjectMeta};

use crate::{Cluster, Result};

/// The list and its Lease; a new one if it does not exist. An unreadable list counts as empty: for
/// a time the limits may be exceeded, which is better than no runs at all.
///
/// # Errors
/// Those of the call.
pub async fn read<C: Cluster>(cluster: &C, system_namespace: &str) -> Result<(Lease, Admissions)> {
    let lease = cluster.get::<Lease>(system_namespace, keys::ADMISSIONS).await?.unwrap_or_else(|| {
        let (name, namespace) = (Some(keys::ADMISSIONS.into()), Some(system_namespace.into()));
        Lease { metadata: ObjectMeta { name, namespace, ..ObjectMeta::default() }, spec: None }
    });
    let written = lease.annotations().get(keys::ADMISSIONS_ANNOTATION).map(|written| serde_json::from_str(written));
    let all = written.transpose().unwrap_or_else(|error| {
        let (lease, annotation) = (keys::ADMISSIONS, keys::ADMISSIONS_ANNOTATION);
        tracing::warn!(lease, annotation, %error, "cannot read the list of slots; it counts as empty, and for now more runs \
             than the limit may start");
        None
    });
    Ok((lease, all.unwrap_or_default()))
}

/// Writes the list over the version that was read.
///
/// # Errors
/// [`crate::Error::Conflict`] if the Lease was changed since, and those of the call.
pub async fn write<C: Cluster>(cluster: &C, mut lease: Lease, all: &Admissions) -> Result<()> {
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), to_json(all));
    let written =
        if lease.metadata.resource_version.is_some() { cluster.replace(&lease).await } else { cluster.create(&lease).await };
    written.map(drop)
}
