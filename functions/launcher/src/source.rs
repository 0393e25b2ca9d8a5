//! The source that a Workspace names itself: reads what the fetcher found, and requests a fetch.

use driftless_api::OwnSource;
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{ArtifactDigest, FetchOutcome, FetchRequest, FetchedArtifact, ObjectKey, keys};
use driftless_core::{OwnSourceState, refused_source};
use driftless_kubernetes::Cluster;
use jiff::Timestamp;

use crate::{Error, Launcher};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Returns the state of a Workspace's source and requests a fetch if one is due: see
    /// [`OwnSourceState::of`].
    pub(crate) async fn own_source(
        &self,
        workspace: &ObjectKey,
        hops: u8,
        own: &OwnSource<'_>,
        since: Option<Timestamp>,
    ) -> Result<OwnSourceState<FetchedArtifact>, Error> {
        let fingerprint = own.fingerprint();
        let outcome = self.objects.read(&keys::fetch(workspace)).await?;
        let outcome = outcome.filter(|outcome| outcome.subject == fingerprint);
        let known = outcome.as_ref().map(|outcome| outcome.at.to_string()).unwrap_or_default();
        let fetch = outcome.map(FetchOutcome::facts);
        let (source, ask) = OwnSourceState::of(own, own.is_followed(), fetch, since, self.now);
        if ask {
            // Reconciliations that know the same request within moments of each other and are
            // deduplicated; a later request must not be.
            let moment = (self.now.as_second() / 10).to_string();
            let deduplication = keys::hash(&["launcher", &keys::fetch(workspace), &fingerprint, &known, &moment]);
            let request = FetchRequest::fetch(workspace.clone(), hops.saturating_add(1));
            self.queues.fetch(&request, &deduplication).await?;
        }
        Ok(source)
    }

    /// Why a source that an Update names cannot be used, if the fetcher refused this digest or the
    /// source's kind.
    pub(crate) async fn refused_source(&self, source: &ObjectKey, digest: &ArtifactDigest) -> Result<Option<String>, Error> {
        let outcome = self.objects.read(&keys::fetch(source)).await?;
        let outcome = outcome.filter(|outcome| [digest.as_str(), ""].contains(&outcome.subject.as_str()));
        Ok(outcome.and_then(|outcome| refused_source(outcome.facts(), self.now)))
    }
}
