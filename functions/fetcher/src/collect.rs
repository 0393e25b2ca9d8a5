//! Deletes the trees that no Update needs, and refreshes those that are requested again.
//! `driftless_core::Retention` has the rule and the reason why it never deletes a tree that a run
//! needs.

use std::collections::BTreeSet;

use driftless_api::{Source, Stack, Update, Workspace};
use driftless_aws::{Objects, Queues};
use driftless_contract::{
    ArtifactDigest, ObjectKey,
    keys::{self, TreeFolder},
};
use driftless_core::{Retention, SourceRef};
use driftless_kubernetes::{Cluster, Error as KubernetesError, Pages, Selector};
use jiff::Timestamp;

use crate::{Error, Fetcher, transport::Artifacts};

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    /// Deletes the trees of a source that are too old to be used and that no object names. If
    /// neither a Stack nor a Workspace names the source, the result of its last fetch is deleted
    /// with its last tree.
    pub(crate) async fn collect(&self, source: &ObjectKey) -> Result<(), Error> {
        let listing = list(self.objects, &keys::trees(source)).await?;
        let trees = keys::stored_trees(listing.iter().map(|(key, modified)| (key.as_str(), *modified)));
        let expired: Vec<_> = trees.iter().filter(|(_, tree)| self.settings.retention.has_expired(**tree, self.now)).collect();
        if expired.is_empty() {
            return Ok(());
        }
        // After the ages: see the rule.
        let mut named = self.digests_of_updates(source).await?;
        let is_used = self.digests_of_stacks(source, &mut named).await? || self.is_of_workspace(source).await?;
        // For git, no Kubernetes object has the current revision.
        let offered = self.outcome_before(source).await?.and_then(|outcome| outcome.artifact);
        named.extend(offered.filter(|_| is_used).map(|artifact| artifact.digest));
        let complete = trees.iter().filter(|(_, tree)| is_used && tree.manifest.is_some());
        let newest = complete.max_by_key(|(_, tree)| tree.manifest).map(|(folder, _)| folder);
        let named: BTreeSet<_> = named.iter().map(|digest| keys::tree(source, digest)).collect();
        let mut deleted = 0;
        for (folder, _) in expired {
            // The newest was requested last: a destroy may need it when the source is gone.
            if named.contains(folder) || newest == Some(folder) {
                continue;
            }
            // A tree exists if its manifest does: a crash here leaves a pack, which expires by
            // itself.
            self.objects.delete(&folder.manifest()).await?;
            self.objects.delete(&folder.pack()).await?;
            tracing::info!(tree = %folder, "deleted an unused tree");
            deleted += 1;
        }
        if deleted == trees.len() && !is_used {
            self.objects.delete(&keys::fetch(source)).await?;
        }
        Ok(())
    }

    /// The digests that Updates name, finished or not: in the namespace, and in the system
    /// namespace for a terminating one.
    async fn digests_of_updates(&self, source: &ObjectKey) -> Result<BTreeSet<ArtifactDigest>, Error> {
        let namespaces = BTreeSet::from([source.namespace.as_str(), self.settings.system_namespace.as_str()]);
        let mut named = BTreeSet::new();
        for namespace in namespaces {
            // An unreadable Update is left out here, and cannot be launched either.
            let mut pages = Pages::<_, Update>::new(self.cluster, Some(namespace), Selector::All);
            while let Some(page) = pages.next().await? {
                named.extend(page.into_iter().filter_map(|update| update.spec.driftless?.tree?.digest).map(ArtifactDigest::from));
            }
        }
        Ok(named)
    }

    /// Adds the digests that the source offers now, if a Stack uses it. Returns whether one does.
    async fn digests_of_stacks(&self, source: &ObjectKey, named: &mut BTreeSet<ArtifactDigest>) -> Result<bool, Error> {
        let wanted = |reference: SourceRef| {
            let (api_version, kind, name) = reference.object();
            let wanted = source.sibling(api_version, kind, name);
            (keys::trees(&wanted) == keys::trees(source)).then_some(wanted)
        };
        let mut sources = BTreeSet::new();
        let mut pages = Pages::<_, Stack>::new(self.cluster, Some(&source.namespace), Selector::All);
        while let Some(page) = pages.next().await? {
            sources.extend(page.iter().flat_map(Stack::sources).filter_map(wanted));
        }
        for key in &sources {
            match self.cluster.get_dynamic(key).await {
                Ok(object) => {
                    named.extend(
                        object.and_then(|object| Source::from_object(&object).artifact?.digest).map(ArtifactDigest::from),
                    );
                }
                // A kind that is not served or cannot be read, or an unreadable object, is of no
                // use to a Stack.
                Err(KubernetesError::Permanent { message, .. } | KubernetesError::Unreadable { message, .. }) => {
                    tracing::warn!(source = %key, message, "cannot read a source");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!sources.is_empty())
    }

    /// Returns whether it is the source of a Workspace that names one itself.
    async fn is_of_workspace(&self, source: &ObjectKey) -> Result<bool, Error> {
        // The kind is in lower case: see `keys::source_of_trees`.
        if source.kind != "workspace" {
            return Ok(false);
        }
        let workspace = self.cluster.get::<Workspace>(&source.namespace, &source.name).await?;
        Ok(workspace.is_some_and(|workspace| matches!(workspace.own_source(), Ok(Some(_)))))
    }
}

async fn list<O: Objects>(objects: &O, prefix: &str) -> Result<Vec<(String, Timestamp)>, Error> {
    let mut all = Vec::<(String, Timestamp)>::new();
    loop {
        let page = objects.list_after(prefix, all.last().map_or("", |(key, _)| key)).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Returns whether a tree is stored. A tree that is nearly too old is refreshed: its manifest is
/// written again.
pub(crate) async fn is_stored<O: Objects>(
    objects: &O,
    folder: &TreeFolder,
    retention: Retention,
    now: Timestamp,
) -> Result<bool, Error> {
    let manifest = folder.manifest();
    let Some(modified) = objects.modified(&manifest).await? else { return Ok(false) };
    if !retention.wants_renewal(modified, now) {
        return Ok(true);
    }
    match objects.get(&manifest).await? {
        Some(content) if objects.exists(&folder.pack()).await? => {
            objects.put(&manifest, content).await?;
            Ok(true)
        }
        // A manifest without its pack is no tree: it is deleted, and the tree is stored again.
        _ => {
            objects.delete(&manifest).await?;
            Ok(false)
        }
    }
}
