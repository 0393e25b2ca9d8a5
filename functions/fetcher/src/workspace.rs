//! The source that a Workspace names itself: a git repository, or an artifact of a Flux source of its namespace. Its credentials
//! belong to the Workspace, so its tree does too.

use driftless_api::{OwnSource, Workspace};
use driftless_aws::{Objects, Queues};
use driftless_contract::ObjectKey;
use driftless_kubernetes::Cluster;
use jiff::Timestamp;

use crate::{Answer, Error, Ports, Settings, flux, git, transport::Artifacts};

pub(crate) async fn fetch<C: Cluster, O: Objects, Q: Queues, A: Artifacts>(
    ports: &Ports<'_, C, O, Q, A>,
    settings: &Settings,
    key: &ObjectKey,
    is_resting: impl Fn(&str) -> bool,
    now: Timestamp,
) -> Result<Option<Answer>, Error> {
    let Some(workspace) = ports.cluster.get::<Workspace>(&key.namespace, &key.name).await? else { return Ok(None) };
    let Ok(Some(source)) = workspace.own_source() else { return Ok(None) };
    let subject = source.fingerprint();
    if is_resting(&subject) {
        return Ok(None);
    }
    match source {
        OwnSource::Git { url, reference, dir, auth, .. } => {
            git::fetch_of_workspace(ports, settings, key, (url, reference, dir, auth), &subject, now).await
        }
        OwnSource::Flux { url, digest, .. } => {
            let result = flux::fetch_of_workspace(ports, settings, key, (url, digest), now).await?;
            Ok(Some((subject, result)))
        }
    }
}
