//! The source that a Workspace names itself: a git repository, or an artifact of a Flux source of
//! its namespace. Its credentials belong to the Workspace, so its tree does too.

use driftless_api::{OwnSource, Workspace};
use driftless_aws::{Objects, Queues};
use driftless_contract::ObjectKey;
use driftless_kubernetes::Cluster;

use crate::{Answer, Error, Fetcher, transport::Artifacts};

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    pub(crate) async fn fetch_of_workspace(
        &self,
        key: &ObjectKey,
        is_resting: impl Fn(&str) -> bool,
    ) -> Result<Option<Answer>, Error> {
        let Some(workspace) = self.cluster.get::<Workspace>(&key.namespace, &key.name).await? else { return Ok(None) };
        let Ok(Some(source)) = workspace.own_source() else { return Ok(None) };
        let subject = source.fingerprint();
        if is_resting(&subject) {
            return Ok(None);
        }
        match source {
            OwnSource::Git { url, reference, dir, auth, .. } => {
                self.fetch_git_of_workspace(key, (url, reference, dir, auth), &subject).await
            }
            OwnSource::Flux { url, digest, .. } => {
                let result = self.fetch_flux_of_workspace(key, (url, digest)).await?;
                Ok(Some((subject, result)))
            }
        }
    }
}
