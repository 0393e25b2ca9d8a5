//! The cache entries of a run: named when its launch is recorded, and copied into the folder of its
//! task.

use std::collections::BTreeSet;

use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Launch, LaunchCache, RunCache, RunSource, TriedArchitecture,
    keys::{self, TaskFolder},
};
use driftless_core::{CacheNames, Program, Variable, cache_names};
use driftless_kubernetes::Cluster;
use driftless_source::Manifest;
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};

use crate::{Launcher, Settings, request::CacheMode, spec::Prepared};

/// An entry that was last written longer ago than this is written again when it is used: S3 deletes
/// an entry by the time since then.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Names the entries of a run, on the processor that was tried for it. `None` for a run without a
/// stored source, or without an identity.
pub(crate) fn entries(
    settings: &Settings,
    prepared: &Prepared,
    mode: CacheMode,
    tried: Option<&TriedArchitecture>,
    now: Timestamp,
) -> Option<LaunchCache> {
    if settings.cache_entry_bytes.is_none() || mode == CacheMode::Off {
        return None;
    }
    let image = prepared.shape.image.as_deref().unwrap_or_else(|| settings.images.of(prepared.project.as_ref()));
    let architecture = tried.map(|tried| tried.architecture).or(prepared.shape.architecture);
    let architecture = architecture.unwrap_or(settings.default_architecture);
    let (tree, project) = (prepared.tree.as_ref()?, prepared.project.as_ref()?);
    let RunSource::Tree { dir, paths, .. } = &prepared.spec.source else { return None };
    let manifest = Manifest::parse(&tree.manifest).ok()?;
    // `paths` leaves the other files out of the run.
    let is_given = |path: &str| {
        let below = |part: &String| path.strip_prefix(part.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        paths.is_empty() || paths.iter().any(below)
    };
    let files = manifest.files.iter().map(|(path, file)| (path.as_str(), file.digest.as_str()));
    let files: Vec<_> = files.filter(|(path, _)| is_given(path)).collect();
    let links: Vec<_> = manifest.links.keys().map(String::as_str).filter(|path| is_given(path)).collect();
    let variables: Vec<_> = prepared.spec.env.iter().map(variable).collect();
    let mounted: Vec<_> = prepared.spec.files.iter().map(|file| file.path.as_str()).collect();
    let program = Program {
        runtime: &project.runtime,
        dir: dir.trim_matches('/'),
        files: &files,
        links: &links,
        digest: manifest.digest_of("").map_or("", |digest| digest.as_str()),
        image,
        architecture,
        variables: &variables,
        mounted: &mounted,
    };
    let CacheNames { layers, uncached } = cache_names(&program, now);
    let folder = keys::cache(&tree.source, prepared.account.as_ref().ok()?.name());
    let entries = layers.into_iter().map(|(layer, name)| (layer, folder.entry(layer, &name))).collect();
    Some(LaunchCache { entries, refresh: mode == CacheMode::Refresh, uncached })
}

fn variable(env: &driftless_contract::Env) -> Variable<'_> {
    Variable { name: &env.name, value: &env.value, secret: env.secret }
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Copies the entries that are there into the folder of a task; deletes them if the run
    /// replaces them. An entry that does not fit the inputs any more, which may have changed since
    /// the launch was recorded, is left out. The cache is a convenience: no error of it keeps a run
    /// from starting.
    pub(crate) async fn give_cache(&self, prepared: &Prepared, launch: &Launch, folder: &TaskFolder) -> Option<RunCache> {
        let recorded = launch.cache.as_ref()?;
        let current = entries(self.settings, prepared, CacheMode::On, launch.tried.as_ref(), self.now)?;
        let entries: Vec<_> = recorded.entries.iter().filter(|(layer, key)| current.entries.get(*layer) == Some(*key)).collect();
        // Only what a Stack follows is stored.
        let is_kept = prepared.stores && !prepared.spec.is_preview();
        let given = try_join_all(entries.iter().map(async |(layer, key)| {
            if recorded.refresh {
                // Only a run that stores its own packages replaces an entry.
                return if is_kept { self.objects.delete(key).await.map(|()| None) } else { Ok(None) };
            }
            let is_there = self.copy_cache_entry(key, &folder.restored(**layer)).await?;
            Ok(is_there.then_some(**layer))
        }));
        let restored = match given.await {
            Ok(layers) => layers.into_iter().flatten().collect(),
            Err(error) => {
                tracing::warn!(folder = &**folder, %error, "cannot copy cache entries; the run installs its dependencies");
                BTreeSet::new()
            }
        };
        let stored = entries.into_iter().map(|(layer, _)| *layer).filter(|_| is_kept).collect();
        let max_bytes = self.settings.cache_entry_bytes?;
        Some(RunCache { restored, stored, max_bytes, uncached: current.uncached })
    }

    /// Copies an entry, if it is there, and writes it again if it was not used for a day. Each copy
    /// has a time limit, see [`Objects::copy`].
    async fn copy_cache_entry(&self, key: &str, copy: &str) -> driftless_aws::Result<bool> {
        let Some(written) = self.objects.modified(key).await? else { return Ok(false) };
        let is_there = self.objects.copy(key, copy).await?;
        if is_there && self.now.duration_since(written) > RENEW_AFTER {
            // The next run renews it.
            let renewed = self.objects.copy(copy, key).await;
            renewed.map_or_else(|error| tracing::warn!(key, %error, "cannot renew a cache entry"), drop);
        }
        Ok(is_there)
    }
}
