//! Keeps what a run installed for later runs. Only the recorder writes cache entries: the launch record names their keys, and what a task
//! packed becomes an entry only after a successful run.

use driftless_aws::Objects;
use driftless_contract::{
    Launch, Layer, Outcome, Verdict,
    keys::{self, TaskFolder},
};

use crate::{Error, Settings};

/// The maximum number of entries that make room for a new one.
const MAX_EVICTED: usize = 32;

/// Keeps the layers that a run installed, or deletes the packages that a failed run restored. The cache is a convenience: no error of it
/// keeps an outcome from being recorded.
pub(crate) async fn update<O: Objects>(objects: &O, settings: &Settings, launch: &Launch, task: &TaskFolder, outcome: &Outcome) {
    let (Some(cache), Some(installed)) = (&launch.cache, &outcome.installed) else { return };
    let done = async {
        match &outcome.verdict {
            Verdict::Succeeded {} if !launch.preview => {
                for layer in &installed.stored {
                    if let Some(entry) = cache.entries.get(layer) {
                        keep(objects, settings, &task.installed(*layer), entry).await?;
                    }
                }
            }
            // A failure that no resource explains may come from the packages: the next run installs them.
            Verdict::Failed { .. } if outcome.failures.is_empty() && installed.restored.contains(&Layer::Dependencies) => {
                if let Some(entry) = cache.entries.get(&Layer::Dependencies) {
                    objects.delete(entry).await?;
                }
            }
            _ => {}
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = done.await {
        tracing::warn!(update = %outcome.run.update, %error, "the cache of dependencies is not up to date");
    }
}

/// Makes an archive of a task an entry. Entries of its namespace make room for it, the least recently used first.
async fn keep<O: Objects>(objects: &O, settings: &Settings, archive: &str, entry: &str) -> Result<(), Error> {
    let (bytes, limit) = (objects.size(archive, 0).await?, settings.cache_entry_bytes);
    let Some(namespace) = keys::caches_of_namespace(entry).filter(|_| (1..=limit).contains(&bytes)) else {
        tracing::info!(archive, bytes, limit, "an archive is not kept");
        return Ok(());
    };
    let is_full = async || -> Result<_, Error> {
        Ok(objects.size(&namespace, 0).await?.saturating_add(bytes) > settings.cache_namespace_bytes)
    };
    let mut evicted = if is_full().await? { least_recently_used(objects, &namespace).await? } else { Vec::new() }.into_iter();
    while is_full().await? {
        let Some(key) = evicted.next() else {
            tracing::info!(
                archive,
                bytes,
                limit = settings.cache_namespace_bytes,
                "an archive is not kept: the namespace is full"
            );
            return Ok(());
        };
        objects.delete(&key).await?;
    }
    objects.copy(archive, entry).await?;
    Ok(())
}

/// The entries of a namespace, by when they were last written: the launcher writes those that are used again each day.
async fn least_recently_used<O: Objects>(objects: &O, namespace: &str) -> Result<Vec<String>, Error> {
    let mut entries = Vec::new();
    loop {
        let after = entries.last().map_or("", |(key, _): &(String, _)| key).to_owned();
        let page = objects.list_after(namespace, &after).await?;
        if page.is_empty() {
            break;
        }
        entries.extend(page);
    }
    entries.sort_by_key(|(_, written)| *written);
    Ok(entries.into_iter().map(|(key, _)| key).take(MAX_EVICTED).collect())
}
