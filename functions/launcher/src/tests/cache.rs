//! What a run is given of the cache of dependencies.

use driftless_api::names;
use driftless_contract::{LaunchCache, Layer, RunCache};
use driftless_source::{Manifest, Tree};

use super::*;

const FILES: [(&str, &str); 3] =
    [("app/Pulumi.yaml", "name: shop\nruntime: nodejs\n"), ("app/package.json", "{}"), ("app/package-lock.json", "{}")];

/// A world with the Update of a Stack whose tree has these files; the annotation of the Stack, and
/// more of the Update's spec.
fn world(files: &[(&str, &str)], annotation: Option<&str>, spec: &Value) -> World {
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let source = ObjectKey { api_version: "source.toolkit.fluxcd.io/v1".into(), ..key("GitRepository", "n", "app") };
    let folder = keys::tree(&source, &"sha256:0".into());
    let mut pack = Vec::new();
    let tree = Tree::from_files(files.iter().map(|(path, text)| (*path, text.as_bytes())), &mut pack).unwrap();
    for (key, content) in [(folder.pack(), pack), (folder.manifest(), Manifest::of(&tree).to_bytes())] {
        world.drive(world.put(&key, content)).unwrap().unwrap();
    }
    let mut update = world.object(&key("Update", "n", "u")).unwrap();
    let source = json!({ "apiVersion": source.api_version, "kind": source.kind, "name": source.name });
    update["spec"]["driftless"]["tree"] = json!({ "source": source, "digest": "sha256:0", "dir": "app" });
    update["spec"] = driftless_core::merge(update["spec"].take(), spec);
    world.insert(update);
    if let Some(annotation) = annotation {
        let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
        stack["metadata"]["annotations"] = json!({ names::CACHE: annotation });
        world.insert(stack);
    }
    world
}

/// The entries that the launch of an Update names.
fn entries(world: &World) -> Option<LaunchCache> {
    reconcile(world, &hint("u"));
    let launch: Launch = world.document(&keys::run(CLUSTER, &"uid-u".into()).launch()).unwrap();
    launch.cache
}

/// The key of a layer's entry of the first launch in a world.
fn entry(layer: Layer) -> String {
    entries(&world(&FILES, None, &json!({}))).unwrap().entries[&layer].clone()
}

fn put(world: &World, key: &str, content: &str) {
    world.drive(world.put(key, content.into())).unwrap().unwrap();
}

#[test]
fn launch_names_the_entries_within_the_scope_of_source_and_service_account() {
    let scope = format!("caches/{CLUSTER}/n/gitrepository.app/default/");
    let LaunchCache { entries: named, refresh, uncached } = entries(&world(&FILES, None, &json!({}))).unwrap();
    assert!(named.values().all(|key| key.starts_with(&scope)), "{named:?}");
    assert_eq!((named.len(), refresh, uncached), (3, false, None));
    let other = json!({ "driftless": { "workspace": { "serviceAccountName": "deployer" } } });
    let deployer = world(&FILES, None, &other);
    insert(&deployer, &ObjectKey { api_version: "v1".into(), ..key("ServiceAccount", "n", "deployer") }, &json!({}));
    let deployers = entries(&deployer).unwrap().entries;
    assert!(deployers.values().all(|key| key.contains("/deployer/")), "{deployers:?}");
    let unlocked = entries(&world(&FILES[..2], None, &json!({}))).unwrap();
    assert_eq!(unlocked.entries.keys().collect::<Vec<_>>(), [&Layer::Plugins]);
    assert!(unlocked.uncached.unwrap().starts_with("the source has no package-lock.json"));
    assert_eq!(entries(&world(&FILES, Some(names::OFF), &json!({}))), None);
}

#[test]
fn run_gets_copies_of_the_entries_that_are_there() {
    let (dependencies, plugins) = (entry(Layer::Dependencies), entry(Layer::Plugins));
    let given = |annotation, operation: &str| {
        let world = world(&FILES, annotation, &json!({ "type": operation }));
        put(&world, &dependencies, "packages");
        // Neither another namespace's entry nor one of another ServiceAccount is this run's.
        put(&world, &plugins.replace("/n/", "/m/"), "plugins");
        put(&world, &plugins.replace("/default/", "/deployer/"), "plugins");
        reconcile(&world, &hint("u"));
        let task_folder = task_folder(&world);
        let copies: Vec<_> = task_folder.keys().filter(|name| name.starts_with("cache/")).cloned().collect();
        (spec(&world).cache.unwrap(), copies, world.objects().contains_key(&dependencies))
    };
    let all = [Layer::Dependencies, Layer::Plugins, Layer::Build];
    let cache = |restored: &[Layer]| RunCache {
        restored: restored.iter().copied().collect(),
        stored: all.into(),
        max_bytes: 1 << 20,
        uncached: None,
    };
    assert_eq!(given(None, "up"), (cache(&[Layer::Dependencies]), vec!["cache/dependencies".to_owned()], true));
    assert_eq!(given(Some(names::REFRESH), "up"), (cache(&[]), vec![], false));
    let nothing = RunCache { stored: [].into(), ..cache(&[]) };
    assert_eq!(given(Some(names::REFRESH), "preview"), (nothing, vec![], true), "a preview replaces no entry");
}

#[test]
fn only_what_a_stack_follows_is_stored() {
    let preview = world(&FILES, None, &json!({ "type": "preview" }));
    reconcile(&preview, &hint("u"));
    assert!(spec(&preview).cache.unwrap().stored.is_empty());
    let by_hand = world(&FILES, None, &json!({}));
    let mut update = by_hand.object(&key("Update", "n", "u")).unwrap();
    update["metadata"]["ownerReferences"] = json!([]);
    update["spec"]["driftless"]["stack"] = Value::Null;
    by_hand.insert(update);
    reconcile(&by_hand, &hint("u"));
    assert!(spec(&by_hand).cache.unwrap().stored.is_empty());
}

#[test]
fn entry_that_is_used_is_written_again_each_day() {
    let dependencies = entry(Layer::Dependencies);
    for (hours, is_renewed) in [(23, false), (25, true)] {
        let world = world(&FILES, None, &json!({}));
        put(&world, &dependencies, "packages");
        let written = world.now();
        world.advance(SignedDuration::from_hours(hours));
        reconcile(&world, &hint("u"));
        assert_eq!(world.written_at(&dependencies).unwrap() > written, is_renewed, "{hours}");
        assert_eq!(world.objects()[&dependencies], b"packages");
    }
}

#[test]
fn annotation_with_another_word_is_refused() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let mut update = world.object(&key("Update", "n", "u")).unwrap();
    update["metadata"]["annotations"] = json!({ names::CACHE: "on" });
    world.insert(update);
    reconcile(&world, &hint("u"));
    let why = refused(&world, "u");
    assert!(why.starts_with(r#"the annotation driftless.dev/cache is "on"; write "off" or "refresh", or remove it"#), "{why}");
}
