//! The sweeper makes up for every event that was lost: on a schedule it hints what is due. It decides nothing else, and what it hints
//! goes the way of every other hint. Trees that are too old to be used it tells the fetcher of, which deletes what nobody needs.

use std::collections::BTreeSet;

use driftless_api::{Stack, Update, names};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchRequest, Hint, ObjectKey, VERSION, keys};
use driftless_core::{Retention, Stack as CoreStack, due, its_turn};
use driftless_kubernetes::Cluster;
use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt as _};

/// An Update that is not complete, or not released, is hinted when it is older than this: its launch, its record or the look at its
/// Stack may have got lost.
const UNFINISHED_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// The sources are collected in so many parts, so that the fetcher never has all at once.
const PARTS: i64 = 24;

/// What an installation sets.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time between two sweeps, in seconds: the schedule's.
    pub tick_seconds: i64,
    /// Every Stack is looked at once in this time, even if nothing is known to be due.
    pub period_seconds: i64,
    /// Every source is looked at once in this time for trees that nobody needs.
    pub collect_seconds: i64,
    /// How long trees are kept.
    pub retention: Retention,
}

/// Why a sweep failed. The next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AWS.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] driftless_kubernetes::Error),
}

/// Hints what is due in a cluster. How many hints were sent.
pub async fn sweep<C: Cluster, Q: Queues>(
    name: &str,
    cluster: &C,
    queues: &Q,
    settings: Settings,
    now: Timestamp,
) -> Result<usize, Error> {
    let mut hints = 0;
    for stack in cluster.list::<Stack>(None, None).await? {
        if due(&CoreStack::from(&stack), settings.period_seconds, settings.tick_seconds, now) {
            queues.hint(&Hint::new(key(name, &stack)), 0).await?;
            hints += 1;
        }
    }
    for update in cluster.list::<Update>(None, None).await? {
        let age = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
        let released = !update.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER);
        if !(update.is_complete() && released) && age > UNFINISHED_AFTER {
            queues.hint(&Hint::new(key(name, &update)), 0).await?;
            hints += 1;
        }
    }
    Ok(hints)
}

/// Asks for the collection of the sources that have a tree that is too old to be used, if it is time for some of them. The bucket is
/// listed whenever a part of the sources has its turn. How many sources there were.
pub async fn collect<O: Objects, Q: Queues>(
    name: &str,
    objects: &O,
    queues: &Q,
    settings: Settings,
    now: Timestamp,
) -> Result<usize, Error> {
    let part_seconds = (settings.collect_seconds / PARTS).max(settings.tick_seconds);
    if !its_turn(name, part_seconds, settings.tick_seconds, now) {
        return Ok(0);
    }
    let prefix = keys::trees_of_cluster(name);
    // The last object of the page before. If it is a manifest, its pack is on the next one and would look like half a tree.
    let mut seam: Option<(String, Timestamp)> = None;
    let mut sources = BTreeSet::new();
    loop {
        let page = objects.list_after(&prefix, seam.as_ref().map_or("", |(key, _)| key)).await?;
        let Some(last) = page.last().cloned() else { break };
        let listing = seam
            .iter()
            .filter(|(key, _)| key.ends_with("/manifest"))
            .chain(&page)
            .map(|(key, modified)| (key.as_str(), *modified));
        for (folder, tree) in keys::stored_trees(listing) {
            if settings.retention.has_expired(tree, now)
                && let Some(source) = keys::source_of_trees(name, folder)
                && its_turn(&source.to_string(), settings.collect_seconds, part_seconds, now)
            {
                sources.insert(source);
            }
        }
        seam = Some(last);
    }
    for source in &sources {
        let request = FetchRequest { version: VERSION, source: source.clone(), collect: true, hops: 0 };
        queues.fetch(&request, &format!("collect {source} {now}")).await?;
    }
    Ok(sources.len())
}

fn key<K: Resource<DynamicType = ()>>(cluster: &str, object: &K) -> ObjectKey {
    ObjectKey {
        cluster: cluster.to_owned(),
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use driftless_testkit::{CLUSTER, Faults, Message, World};

    use super::*;

    const SETTINGS: Settings = Settings {
        tick_seconds: 60,
        period_seconds: 600,
        collect_seconds: 86_400,
        retention: Retention { keep: SignedDuration::from_hours(48), grace: SignedDuration::from_hours(24) },
    };

    fn put(world: &World, name: &str, parts: &[&str]) {
        for part in parts {
            let key = format!("trees/{CLUSTER}/team/gitrepository.{name}/sha256-0/{part}");
            world.drive(world.put(&key, Vec::new())).unwrap().unwrap();
        }
    }

    /// The names of the sources that are asked for within a day, in order.
    fn day(world: &World) -> Vec<String> {
        let before = world.sent().len();
        for _ in 0..24 * 60 {
            world.drive(collect(CLUSTER, world, world, SETTINGS, world.now())).unwrap().unwrap();
            world.advance(SignedDuration::from_mins(1));
        }
        let asked = world.sent().into_iter().skip(before).map(|message| match message {
            Message::Fetch(FetchRequest { source, collect: true, .. }) => source.name,
            other => panic!("{other:?}"),
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort();
        asked
    }

    #[test]
    fn a_source_with_a_tree_that_is_too_old_is_asked_for_once_a_day() {
        let world = World::new(0, Faults::NONE);
        for name in ["a", "b.c", "d", "e", "f"] {
            put(&world, name, &["manifest", "pack"]);
        }
        assert_eq!(day(&world), Vec::<String>::new());
        world.advance(SignedDuration::from_hours(48));
        put(&world, "f", &["manifest"]);
        assert_eq!(day(&world), ["a", "b.c", "d", "e"]);
        assert_eq!(day(&world), ["a", "b.c", "d", "e"]);
    }

    #[test]
    fn a_pack_without_a_manifest_is_asked_for_too_and_other_clusters_are_left_alone() {
        let world = World::new(0, Faults::NONE);
        put(&world, "a", &["pack"]);
        world.drive(world.put("trees/other/team/gitrepository.z/sha256-0/pack", Vec::new())).unwrap().unwrap();
        world.advance(SignedDuration::from_hours(24));
        assert_eq!(day(&world), ["a"]);
    }

    #[test]
    fn the_sources_of_a_cluster_are_spread_over_the_day() {
        let world = World::new(0, Faults::NONE);
        for name in 0..240 {
            put(&world, &format!("s{name}"), &["manifest", "pack"]);
        }
        world.advance(SignedDuration::from_hours(72));
        let mut most = 0;
        for _ in 0..24 * 60 {
            most = most.max(world.drive(collect(CLUSTER, &world, &world, SETTINGS, world.now())).unwrap().unwrap());
            world.advance(SignedDuration::from_mins(1));
        }
        assert!((1..40).contains(&most), "{most} at once");
        assert_eq!(world.sent().len(), 240);
    }
}
