//! What a run has of the cache of dependencies: its entries, named when the launch is recorded, and copies of them in the folder of its task.

use std::collections::BTreeSet;

use driftless_aws::Objects;
use driftless_contract::{
    Architecture, LaunchCache, RunCache, RunSource,
    keys::{self, TaskFolder},
};
use driftless_core::{CacheNames, Program, Variable, cache_names};
use driftless_source::Manifest;
use jiff::{SignedDuration, Timestamp};

use crate::{Error, request::CacheMode, spec::Prepared};

/// An entry that was last written longer ago than this is written again when it is used: S3 deletes an entry by the time since then.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Names the entries of a run. `None` for a run without a stored source, or without an identity.
pub(crate) fn entries(
    prepared: &Prepared,
    mode: CacheMode,
    image: &str,
    architecture: Architecture,
    now: Timestamp,
) -> Option<LaunchCache> {
    if mode == CacheMode::Off {
        return None;
    }
    let (tree, project) = (prepared.tree.as_ref()?, prepared.project.as_ref()?);
    let RunSource::Tree { dir, .. } = &prepared.spec.source else { return None };
    let manifest = Manifest::parse(&tree.manifest).ok()?;
    let files: Vec<_> = manifest.files.iter().map(|(path, file)| (path.as_str(), file.digest.as_str())).collect();
    let variables: Vec<_> = prepared.spec.env.iter().map(variable).collect();
    let mounted: Vec<_> = prepared.spec.files.iter().map(|file| file.path.as_str()).collect();
    let program = Program {
        runtime: &project.runtime,
        dir: dir.trim_matches('/'),
        files: &files,
        digest: manifest.digest_of(dir).map_or("", |digest| digest.as_str()),
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

/// Copies the entries that are there into the folder of a task. The cache is a convenience: no error of it keeps a run from starting.
pub(crate) async fn give<O: Objects>(
    objects: &O,
    cache: &LaunchCache,
    is_kept: bool,
    max_bytes: u64,
    folder: &TaskFolder,
    now: Timestamp,
) -> RunCache {
    let restored = match copy(objects, cache, folder, now).await {
        Ok(restored) => restored,
        Err(error) => {
            tracing::warn!(folder = &**folder, %error, "cache entries are not copied; the run installs its dependencies");
            BTreeSet::new()
        }
    };
    let stored = if is_kept { cache.entries.keys().copied().collect() } else { BTreeSet::new() };
    RunCache { restored, stored, max_bytes, uncached: cache.uncached.clone() }
}

async fn copy<O: Objects>(
    objects: &O,
    cache: &LaunchCache,
    folder: &TaskFolder,
    now: Timestamp,
) -> Result<BTreeSet<driftless_contract::Layer>, Error> {
    let mut restored = BTreeSet::new();
    let scope = cache.entries.values().next().and_then(|key| key.rsplit_once('/')).filter(|_| !cache.refresh);
    let Some((scope, _)) = scope else { return Ok(restored) };
    for (key, written) in objects.list_after(&format!("{scope}/"), "").await? {
        let Some((layer, _)) = cache.entries.iter().find(|(_, entry)| **entry == key) else { continue };
        let copy = folder.restored(*layer);
        if !objects.copy(&key, &copy).await? {
            continue;
        }
        restored.insert(*layer);
        if now.duration_since(written) > RENEW_AFTER {
            objects.copy(&copy, &key).await?;
        }
    }
    Ok(restored)
}
