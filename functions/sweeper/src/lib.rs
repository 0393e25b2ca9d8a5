//! Repairs the loss of any event: on a schedule it hints what is due. It decides nothing else, and
//! its hints take the path of every other hint. It also requests the deletion of old trees from the
//! fetcher, which deletes those that no object needs.

mod attend;
mod claims;
mod pass;
mod sweep;

use std::{collections::BTreeSet, time::Duration};

pub use attend::attend;
use driftless_aws::{BATCH, Objects, Queues};
use driftless_contract::{FetchRequest, Hint, keys};
use driftless_core::{Retention, its_turn};
use driftless_kubernetes::Watch;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
pub use pass::{Cursor, Endless};
pub use sweep::{Swept, sweep};

/// The maximum number of batches of hints in flight: those of a page on which every object is due
/// take five round trips.
const BATCHES_AT_ONCE: usize = 10;

/// The sources are collected in this many parts, so that the fetcher never gets all requests at
/// once.
const PARTS: i64 = 24;

/// The settings of an installation.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The namespace filter.
    pub watch: Watch<'a>,
    /// The time between two sweeps in seconds, by the schedule.
    pub tick_seconds: i64,
    /// Every Stack is reconciled once in this time, even if nothing is known to be due, in seconds.
    pub period_seconds: i64,
    /// The lifetime of a run's tokens, in seconds. They are renewed at half of it.
    pub token_seconds: i64,
    /// Every source is checked once in this time for trees that no object needs, in seconds.
    pub collect_seconds: i64,
    /// How long trees are kept.
    pub retention: Retention,
}

impl Settings<'_> {
    /// The period of hints for a live run, in seconds: short enough to renew its tokens, and to
    /// find an end whose event was lost.
    fn live_seconds(&self) -> i64 {
        (self.period_seconds / 2).min(self.token_seconds / 8)
    }

    /// The time from which a sweep that began at `tick` reads no further page, so that it ends
    /// before the next tick.
    #[must_use]
    pub fn late(&self, tick: Timestamp) -> Timestamp {
        tick + SignedDuration::from_secs(self.tick_seconds * 3 / 4)
    }
}

/// Why a sweep failed. The next one does the same work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of AWS failed.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// A call of the API server failed.
    #[error(transparent)]
    Kubernetes(#[from] driftless_kubernetes::Error),
    /// The API server's list does not end.
    #[error(transparent)]
    Endless(#[from] Endless),
    /// The cluster did not answer in time.
    #[error("sweep took longer than {0}s")]
    TooSlow(u64),
}

/// Runs the sweeps of the clusters concurrently, each within `limit`, and returns why some failed.
/// A slow or unreachable cluster delays no other.
pub async fn each_within<'a>(
    clusters: &'a [String],
    limit: Duration,
    sweep: impl AsyncFn(&'a str) -> Result<(), Error>,
) -> Vec<(&'a str, Error)> {
    let within = async |name: &'a str| {
        let swept = tokio::time::timeout(limit, sweep(name)).await;
        swept.unwrap_or(Err(Error::TooSlow(limit.as_secs()))).err().map(|error| (name, error))
    };
    join_all(clusters.iter().map(|name| within(name))).await.into_iter().flatten().collect()
}

/// Sends hints, and retries those that were refused once.
async fn send<Q: Queues>(queues: &Q, hints: &[Hint]) -> Result<(), Error> {
    let refused = try_to_send(queues, hints).await?;
    let refused = try_to_send(queues, &refused).await?;
    if refused.is_empty() {
        return Ok(());
    }
    let message = format!("SQS refused {} of {} messages twice", refused.len(), hints.len());
    Err(driftless_aws::Error::Transient { call: "sqs:SendMessageBatch hints".into(), message }.into())
}

/// Returns the refused hints.
async fn try_to_send<Q: Queues>(queues: &Q, hints: &[Hint]) -> Result<Vec<Hint>, Error> {
    let mut refused = Vec::new();
    for batches in hints.chunks(BATCH * BATCHES_AT_ONCE) {
        let batches: Vec<_> = batches.chunks(BATCH).collect();
        let answers = join_all(batches.iter().map(|batch| queues.hints(batch))).await;
        for (batch, answer) in batches.into_iter().zip(answers) {
            match answer {
                Ok(positions) => refused.extend(positions.into_iter().filter_map(|position| batch.get(position)).cloned()),
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, hints = batch.len(), "cannot send a batch of hints; retrying");
                    refused.extend_from_slice(batch);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(refused)
}

/// Requests a collection for the sources with a tree that is too old to be used, if their turn has
/// come. The bucket is listed whenever a part of the sources has its turn. Returns the number of
/// sources.
pub async fn collect<O: Objects, Q: Queues>(
    name: &str,
    objects: &O,
    queues: &Q,
    settings: Settings<'_>,
    now: Timestamp,
) -> Result<usize, Error> {
    let part_seconds = (settings.collect_seconds / PARTS).max(settings.tick_seconds);
    if !its_turn(name, part_seconds, settings.tick_seconds, 1, now) {
        return Ok(0);
    }
    let prefix = keys::trees_of_cluster(name);
    // The last object of the previous page. If it is a manifest, its pack is on the next page and
    // would look like half a tree.
    let mut seam: Option<(String, Timestamp)> = None;
    let mut sources = BTreeSet::new();
    loop {
        let page = objects.list_after(&prefix, seam.as_ref().map_or("", |(key, _)| key)).await?;
        let Some(last) = page.last().cloned() else { break };
        let listing =
            seam.iter().filter(|(key, _)| keys::is_manifest(key)).chain(&page).map(|(key, modified)| (key.as_str(), *modified));
        for (folder, tree) in keys::stored_trees(listing) {
            if settings.retention.has_expired(tree, now)
                && let Some(source) = keys::source_of_trees(name, &folder)
                && its_turn(&source.to_string(), settings.collect_seconds, part_seconds, 1, now)
            {
                sources.insert(source);
            }
        }
        seam = Some(last);
    }
    for source in &sources {
        let request = FetchRequest::collect(source.clone());
        queues.fetch(&request, &format!("collect {source} {now}")).await?;
    }
    Ok(sources.len())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use driftless_contract::{FetchKind, ObjectKey};
    use driftless_core::WatchNamespaces;
    use driftless_kubernetes::Cluster;
    use driftless_testkit::{CLUSTER, Faults, Message, World};
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;

    pub(crate) const SETTINGS: Settings<'_> = Settings {
        watch: Watch { namespaces: WatchNamespaces::All, system_namespace: "driftless" },
        tick_seconds: 60,
        period_seconds: 600,
        token_seconds: 1200,
        collect_seconds: 86_400,
        retention: Retention { keep: SignedDuration::from_hours(48), grace: SignedDuration::from_hours(24) },
    };

    /// A sweep of an instance that keeps a cursor, stopped after some pages.
    async fn sweep_pages(world: &World, cursor: &RefCell<Cursor>, pages: usize) -> Result<Swept, Error> {
        let left = Cell::new(pages);
        let is_late = || {
            left.set(left.get() - 1);
            left.get() == 0
        };
        super::sweep(CLUSTER, world, world, SETTINGS, cursor, is_late, world.now()).await
    }

    /// A whole sweep.
    async fn sweep<C: Cluster, Q: Queues>(
        name: &str,
        cluster: &C,
        queues: &Q,
        settings: Settings<'_>,
        now: Timestamp,
    ) -> Result<Swept, Error> {
        super::sweep(name, cluster, queues, settings, &RefCell::default(), || false, now).await
    }

    fn put(world: &World, name: &str, parts: &[&str]) {
        for part in parts {
            let key = format!("trees/{CLUSTER}/team/gitrepository.{name}/sha256-0/{part}");
            world.drive(world.put(&key, Vec::new())).unwrap().unwrap();
        }
    }

    /// The names of the sources that are requested within a day, in order.
    fn day(world: &World) -> Vec<String> {
        let before = world.sent().len();
        for _ in 0..24 * 60 {
            world.drive(collect(CLUSTER, world, world, SETTINGS, world.now())).unwrap().unwrap();
            world.advance(SignedDuration::from_mins(1));
        }
        let asked = world.sent().into_iter().skip(before).map(|message| match message {
            Message::Fetch(FetchRequest { source, kind: FetchKind::Collect, .. }) => source.name,
            other => panic!("{other:?}"),
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort();
        asked
    }

    #[test]
    fn source_with_an_old_tree_is_collected_once_a_day() {
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
    fn pack_without_a_manifest_is_collected_in_its_cluster_only() {
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

    /// The hinted names, in order.
    fn sent(world: &World) -> Vec<String> {
        let names = world.sent().into_iter().map(|message| match message {
            Message::Hint(hint) => hint.object.name,
            other => panic!("{other:?}"),
        });
        names.collect()
    }

    fn hinted(world: &World) -> Vec<String> {
        let mut names = sent(world);
        names.sort();
        names
    }

    fn insert(world: &World, kind: &str, name: &str, metadata: Value, spec: &Value, status: &Value) {
        let mut metadata = metadata;
        (metadata["namespace"], metadata["name"]) = ("n".into(), name.into());
        let api_version = "auto.pulumi.com/v1alpha1";
        world.insert(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, "status": status }));
    }

    fn is_true(condition: &str, now: Timestamp) -> Value {
        let at = now.to_string();
        json!([{ "type": condition, "status": "True", "reason": "r", "message": "", "lastTransitionTime": at }])
    }

    #[test]
    fn updates_and_workspaces_that_may_be_due_are_hinted() {
        let world = World::new(0, Faults::NONE);
        let complete = json!({ "conditions": is_true("Complete", world.now()) });
        let ttl = |ttl: &str| json!({ "ttlAfterCompleted": ttl });
        let finalizer = || json!({ "finalizers": [driftless_api::names::FINALIZER] });
        let running = || json!({ "driftless": { "task": "arn" } });
        for (name, metadata, spec, status) in [
            ("unfinished", json!({}), ttl("1m"), json!({})),
            ("stopping", json!({ "finalizers": ["f"], "deletionTimestamp": world.now().to_string() }), json!({}), running()),
            ("unreleased", finalizer(), ttl("1m"), complete.clone()),
            ("expired", json!({}), ttl("1m"), complete.clone()),
            ("kept", json!({}), ttl("1h"), complete.clone()),
            ("kept for ever", json!({}), json!({}), complete.clone()),
            ("going", json!({ "finalizers": ["other/f"], "deletionTimestamp": world.now().to_string() }), ttl("1m"), complete),
        ] {
            insert(&world, "Update", name, metadata, &spec, &status);
        }
        for (name, condition, observed) in [("ready", "Ready", 2), ("stale", "Ready", 1), ("stalled", "Stalled", 2)] {
            let status = json!({ "conditions": is_true(condition, world.now()), "observedGeneration": observed });
            insert(&world, "Workspace", name, json!({ "generation": 2 }), &json!({}), &status);
        }
        insert(&world, "Workspace", "new", json!({}), &json!({}), &json!({}));
        world.advance(SignedDuration::from_mins(2));
        let swept = world.drive(sweep(CLUSTER, &world, &world, SETTINGS, world.now())).unwrap().unwrap();
        let expected = ["expired", "new", "stale", "stalled", "stopping", "unfinished", "unreleased"];
        assert_eq!(hinted(&world), expected);
        assert_eq!(swept, Swept { stacks: Some(0), waiting: 1, running: 1, hints: 7 });
    }

    #[test]
    fn pass_continues_in_the_next_sweep_and_unfinished_updates_come_first_in_each() {
        let world = World::new(0, Faults::NONE);
        let names = |range: std::ops::Range<usize>| range.map(|number| format!("s{number:02}")).collect::<Vec<_>>();
        for name in names(0..20) {
            world.insert(json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "spec": { "stack": "dev" },
                "metadata": { "namespace": "n", "name": name, "uid": name },
            }));
        }
        insert(&world, "Update", "u", json!({}), &json!({}), &json!({}));
        let ended = json!({ "endTime": world.now().to_string(), "conditions": is_true("Complete", world.now()) });
        insert(&world, "Update", "v", json!({}), &json!({ "ttlAfterCompleted": "1m" }), &ended);
        world.advance(SignedDuration::from_mins(2));
        let cursor = RefCell::default();
        // Pages have three objects, and no Stack was reconciled yet, so that each is due.
        for (stacks, count, more) in [(0..9, None, &[][..]), (9..18, None, &[]), (18..20, Some(20), &["v"])] {
            let before = sent(&world).len();
            let swept = world.drive(sweep_pages(&world, &cursor, 3)).unwrap().unwrap();
            let mut expected = names(stacks);
            expected.extend(more.iter().chain(&["u"]).map(ToString::to_string));
            expected.sort();
            let mut now: Vec<_> = sent(&world).into_iter().skip(before).collect();
            assert_eq!(now.first().map(String::as_str), Some("u"));
            now.sort();
            assert_eq!((now, swept.stacks), (expected, count));
            world.advance(SignedDuration::from_mins(1));
        }
        // The next pass begins.
        let swept = world.drive(sweep_pages(&world, &cursor, 100)).unwrap().unwrap();
        assert_eq!(swept, Swept { stacks: Some(20), waiting: 1, running: 0, hints: 22 });
    }

    #[test]
    fn live_run_is_hinted_every_other_tick() {
        let world = World::new(0, Faults::NONE);
        insert(&world, "Update", "running", json!({}), &json!({}), &json!({ "driftless": { "task": "arn" } }));
        world.advance(SignedDuration::from_mins(1));
        for _ in 0..20 {
            world.advance(SignedDuration::from_secs(SETTINGS.tick_seconds));
            world.drive(sweep(CLUSTER, &world, &world, SETTINGS, world.now())).unwrap().unwrap();
        }
        assert_eq!(hinted(&world), ["running"; 10]);
    }

    #[test]
    fn outside_the_namespace_filter_only_own_updates_are_hinted() {
        let world = World::new(0, Faults::NONE);
        for (name, ours) in [("theirs", Value::Null), ("ours", json!({ "commit": "c" }))] {
            insert(&world, "Update", name, json!({}), &json!({ "driftless": ours }), &json!({}));
        }
        insert(&world, "Workspace", "new", json!({}), &json!({}), &json!({}));
        let metadata = json!({ "namespace": "n", "name": "stack" });
        let stack = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": { "stack": "dev" } });
        world.insert(stack);
        world.advance(SignedDuration::from_mins(2));
        let swept = |settings| world.drive(sweep(CLUSTER, &world, &world, settings, world.now())).unwrap().unwrap();
        world.label_namespace("n", "false");
        assert_eq!(swept(SETTINGS), Swept { stacks: Some(0), waiting: 1, running: 0, hints: 1 });
        assert_eq!(hinted(&world), ["ours"]);
        let watch = Watch { namespaces: WatchNamespaces::Labelled, ..SETTINGS.watch };
        world.label_namespace("n", "");
        assert_eq!(swept(Settings { watch, ..SETTINGS }).stacks, Some(0));
        let watch = Watch { system_namespace: "n", ..watch };
        assert_eq!(swept(Settings { watch, ..SETTINGS }).stacks, Some(1), "the system's own needs no label");
        world.label_namespace("n", "true");
        assert_eq!(swept(SETTINGS), Swept { stacks: Some(1), waiting: 2, running: 0, hints: 4 });
    }

    #[test]
    fn failed_page_loses_no_hint_of_other_pages_and_kinds() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let world = World::new(seed, Faults { transient: 150, ..Faults::NONE });
            for name in 0..7 {
                for kind in ["Update", "Workspace"] {
                    insert(&world, kind, &name.to_string(), json!({}), &json!({}), &json!({}));
                }
            }
            world.advance(SignedDuration::from_mins(2));
            let swept = world.drive(sweep(CLUSTER, &world, &world.calm(), SETTINGS, world.now())).unwrap();
            let sent = world.sent();
            let of_kind =
                |kind: &str| sent.iter().filter(|sent| matches!(sent, Message::Hint(hint) if hint.object.kind == kind)).count();
            seen.insert((of_kind("Update"), of_kind("Workspace"), swept.ok().map(|swept| swept.hints)));
        }
        // Pages have three objects.
        for expected in [(7, 7, Some(14)), (3, 7, None), (6, 7, None), (7, 0, None), (7, 7, None)] {
            assert!(seen.contains(&expected), "{expected:?} is not among {seen:?}");
        }
        assert!(seen.iter().all(|(updates, workspaces, _)| [0, 3, 6, 7].contains(updates) && [0, 3, 6, 7].contains(workspaces)));
        assert!(
            seen.iter()
                .all(|(updates, workspaces, swept)| swept.is_none_or(|hints| hints == updates + workspaces && hints == 14))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_cluster_delays_no_sweep_of_others() {
        let names = ["a", "hangs", "b", "fails"].map(String::from);
        let swept = std::cell::RefCell::new(Vec::new());
        let failed = each_within(&names, Duration::from_mins(4), async |name| {
            match name {
                "hangs" => std::future::pending().await,
                "fails" => return Err(Error::Endless(Endless("stacks".into()))),
                name => swept.borrow_mut().push(name.to_owned()),
            }
            Ok(())
        });
        let failed: Vec<_> = failed.await.into_iter().map(|(name, error)| format!("{name}: {error}")).collect();
        assert_eq!(swept.into_inner(), ["a", "b"]);
        assert_eq!(failed[0], "hangs: sweep took longer than 240s");
        assert!(failed[1].starts_with("fails: list of stacks does not end"), "{failed:?}");
    }

    #[test]
    fn hints_beyond_one_set_of_batches_are_all_sent() {
        let world = World::new(0, Faults::NONE);
        let name = |name: usize| {
            let (cluster, api_version, kind, namespace) = (CLUSTER.into(), "v1".into(), "Stack".into(), "n".into());
            ObjectKey { cluster, api_version, kind, namespace, name: format!("{name:03}") }
        };
        let hints: Vec<_> = (0..2 * BATCH * BATCHES_AT_ONCE + 5).map(|number| Hint::new(name(number))).collect();
        world.drive(send(&world, &hints)).unwrap().unwrap();
        assert_eq!(hinted(&world), hints.iter().map(|hint| hint.object.name.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn refused_hints_are_sent_once_more() {
        let (mut complete, mut failed) = (0, 0);
        for seed in 0..60 {
            let world = World::new(seed, Faults { transient: 60, ..Faults::NONE });
            for name in 10..35 {
                insert(&world, "Workspace", &name.to_string(), json!({}), &json!({}), &json!({}));
            }
            match world.drive(sweep(CLUSTER, &world.calm(), &world, SETTINGS, world.now())).unwrap() {
                Ok(Swept { hints, .. }) => {
                    assert_eq!((hints, hinted(&world)), (25, (10..35).map(|name| name.to_string()).collect()));
                    complete += 1;
                }
                Err(error) => {
                    assert!(matches!(&error, Error::Aws(error) if error.is_transient()), "{error}");
                    failed += 1;
                }
            }
        }
        // With 6 in 100 refused, hardly any would be complete without a retry.
        assert!(complete > 30 && failed > 0, "{complete} complete, {failed} failed");
    }
}
