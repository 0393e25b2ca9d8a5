//! Keeps the dependencies that a run installed for later runs. Only the recorder creates cache
//! entries: the launch record names their keys, and a task's archive becomes an entry only after a
//! successful run.

use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Launch, LaunchCache, Outcome, Verdict,
    keys::{self, TaskFolder},
};
use driftless_kubernetes::Cluster;

use crate::{Error, Recorder};

/// The maximum number of entries that make room for a new one.
const MAX_EVICTED: usize = 32;

/// The entries that a run may change: those of what a Stack follows, which a preview and an Update
/// by hand are not.
fn changeable(launch: &Launch) -> Option<&LaunchCache> {
    let is_followed = !launch.preview && launch.request.as_ref().is_some_and(|request| request.stack.is_some());
    launch.cache.as_ref().filter(|_| is_followed)
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Deletes the entries that a run restored if it failed because of its packages or plugins: the
    /// next run installs them. The cache is a convenience: no error of it keeps an outcome from
    /// being recorded.
    pub(crate) async fn discard_cache(&self, launch: &Launch, outcome: &Outcome) {
        let (Some(cache), Some(installed), Verdict::Failed { .. }) = (changeable(launch), &outcome.installed, &outcome.verdict)
        else {
            return;
        };
        let unusable = installed.restored.iter().filter(|_| installed.unusable);
        for entry in unusable.filter_map(|layer| cache.entries.get(layer)) {
            if let Err(error) = self.objects.delete(entry).await {
                tracing::warn!(entry, %error, "cannot delete a cache entry");
            }
        }
    }

    /// Makes the archives of a successful run entries. An error ends that: the Update becomes
    /// complete only after it.
    pub(crate) async fn keep_cache(&self, launch: &Launch, task: &TaskFolder, outcome: &Outcome) {
        let (Some(cache), Some(installed), Verdict::Succeeded {}) = (changeable(launch), &outcome.installed, &outcome.verdict)
        else {
            return;
        };
        for layer in &installed.stored {
            let Some(entry) = cache.entries.get(layer) else { continue };
            if let Err(error) = self.keep_archive(&task.installed(*layer), entry).await {
                tracing::warn!(entry, %error, "cannot store a cache entry");
                return;
            }
        }
    }

    /// Makes an archive of a task an entry. Entries of its namespace make room for it, the least
    /// recently used first.
    async fn keep_archive(&self, archive: &str, entry: &str) -> Result<(), Error> {
        let (bytes, limit) =
            (self.objects.size(archive, 0).await?, self.settings.cache_entry_bytes.min(self.settings.cache_namespace_bytes));
        let Some(namespace) = keys::caches_of_namespace(entry).filter(|_| (1..=limit).contains(&bytes)) else {
            tracing::info!(archive, bytes, limit, "archive not stored: it exceeds the limit");
            return Ok(());
        };
        let mut stored = self.objects.size(&namespace, 0).await?.saturating_sub(self.objects.size(entry, 0).await?);
        if stored.saturating_add(bytes) > self.settings.cache_namespace_bytes {
            for key in self.least_recently_used(&namespace).await?.iter().filter(|key| *key != entry) {
                if stored.saturating_add(bytes) <= self.settings.cache_namespace_bytes {
                    break;
                }
                stored = stored.saturating_sub(self.objects.size(key, 0).await?);
                self.objects.delete(key).await?;
            }
        }
        if stored.saturating_add(bytes) > self.settings.cache_namespace_bytes {
            tracing::info!(
                archive,
                bytes,
                limit = self.settings.cache_namespace_bytes,
                "archive not stored: the cache of its namespace \
                 is full"
            );
            return Ok(());
        }
        self.objects.copy(archive, entry).await?;
        Ok(())
    }

    /// The entries of a namespace, by when they were last written: the launcher writes those that
    /// are used again each day.
    async fn least_recently_used(&self, namespace: &str) -> Result<Vec<String>, Error> {
        let mut entries = Vec::new();
        loop {
            let after = entries.last().map_or("", |(key, _): &(String, _)| key).to_owned();
            let page = self.objects.list_after(namespace, &after).await?;
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        entries.sort_by_key(|(_, written)| *written);
        Ok(entries.into_iter().map(|(key, _)| key).take(MAX_EVICTED).collect())
    }
}
