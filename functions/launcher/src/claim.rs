//! The claim of a Pulumi stack: a Lease in the system's own namespace, held by an Update's uid.

use driftless_contract::RunId;
use driftless_kubernetes::{Cluster, Error};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::core::ObjectMeta;

use crate::Stop;

/// Takes the claim for a run, or finds that it holds it. It is given back by the recorder.
pub(crate) async fn take<C: Cluster>(cluster: &C, namespace: &str, run: &RunId) -> Result<(), Stop> {
    let annotations = [("driftless.dev/update".to_owned(), format!("{}/{}", run.update.namespace, run.update.name))];
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(run.claim.clone()),
            namespace: Some(namespace.to_owned()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { holder_identity: Some(run.uid.clone()), ..LeaseSpec::default() }),
    };
    match cluster.create(&lease).await {
        Ok(_) => return Ok(()),
        Err(Error::Conflict { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let holder = cluster.get::<Lease>(namespace, &run.claim).await?;
    let identity = holder.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.as_ref());
    if identity == Some(&run.uid) {
        return Ok(());
    }
    let annotations = holder.and_then(|lease| lease.metadata.annotations).unwrap_or_default();
    let by = annotations.get("driftless.dev/update").map_or("another Update", String::as_str);
    Err(Stop::wait("StackClaimed", format!("the Pulumi stack is in use by {by}")))
}
