//! What the recorder makes of what a run installed.

use driftless_contract::{Installed, LaunchCache, Layer, StackId};

use super::*;

const SCOPE: &str = "caches/c/n/gitrepository.app/default/";

/// A world with a run whose launch names entries, and the folder of its task.
fn launched(preview: bool) -> World {
    let world = world(&of_stack(), &json!({}));
    let key = keys::run(CLUSTER, &"uid".into()).launch();
    let entries = [Layer::Dependencies, Layer::Plugins].map(|layer| (layer, format!("{SCOPE}{}-0", layer.as_str()))).into();
    let cache = Some(LaunchCache { entries, refresh: false, uncached: None });
    let stack = Some(StackId { namespace: "n".into(), uid: "stack-uid".into() });
    let request = Some(RunRequest { spec: json!({}), stack, limits: RunLimits::default(), not_secret: Vec::new(), plan: None });
    let launch = Launch { cache, preview, request, ..world.document(&key).unwrap() };
    put(&world, &key, &to_json(&launch));
    world
}

/// Records a run with that report and archives of these sizes; returns the cache.
fn recorded(world: &World, verdict: Verdict, installed: Installed, archives: &[(Layer, usize)]) -> BTreeMap<String, usize> {
    for (layer, size) in archives {
        put(world, &format!("{TASK}out/cache/{}", layer.as_str()), &"x".repeat(*size));
    }
    report(world, &RunResult { verdict, installed: Some(installed), ..succeeded(world) });
    reconcile(world);
    let objects = world.objects();
    assert!(!objects.keys().any(|key| key.contains("/out/cache/")), "{:?}", objects.keys());
    let entry = |(key, content): (&String, &Vec<u8>)| Some((key.strip_prefix(SCOPE)?.to_owned(), content.len()));
    objects.iter().filter_map(entry).collect()
}

fn stored(layers: impl IntoIterator<Item = Layer>) -> Installed {
    Installed { stored: layers.into_iter().collect(), ..Installed::default() }
}

fn failed(message: &str) -> Verdict {
    Verdict::Failed { phase: Phase::Run, reason: FailureReason::Unknown, message: message.into() }
}

#[test]
fn archive_of_a_successful_run_becomes_the_entry_that_its_launch_names() {
    let archives = [(Layer::Dependencies, 60), (Layer::Plugins, 50)];
    let both = || stored([Layer::Dependencies, Layer::Plugins, Layer::Build]);
    let entries = |found: &[(&str, usize)]| found.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let kept: BTreeMap<_, _> = entries(&[("dependencies-0", 60), ("plugins-0", 50)]);
    assert_eq!(recorded(&launched(false), Verdict::Succeeded {}, both(), &archives), kept);
    let none = BTreeMap::new();
    assert_eq!(recorded(&launched(true), Verdict::Succeeded {}, both(), &archives), none, "a preview is not what is followed");
    assert_eq!(recorded(&launched(false), failed("Cannot find module"), both(), &archives), none);
    let by_hand = launched(false);
    let key = keys::run(CLUSTER, &"uid".into()).launch();
    let launch: Launch = by_hand.document(&key).unwrap();
    let request = launch.request.map(|request| RunRequest { stack: None, ..request });
    put(&by_hand, &key, &to_json(&Launch { request, ..launch }));
    assert_eq!(recorded(&by_hand, Verdict::Succeeded {}, both(), &archives), none, "an Update by hand stores nothing");
    let without_entries = world(&of_stack(), &json!({}));
    assert_eq!(recorded(&without_entries, Verdict::Succeeded {}, both(), &archives), none);
    let large = [(Layer::Dependencies, 101), (Layer::Plugins, 100)];
    assert_eq!(recorded(&launched(false), Verdict::Succeeded {}, both(), &large), entries(&[("plugins-0", 100)]));
}

#[test]
fn least_recently_used_entries_make_room_in_their_own_namespace() {
    let world = launched(false);
    let other = "caches/c/other/gitrepository.app/default/plugins-1";
    put(&world, other, &"x".repeat(240));
    for name in ["dependencies-1", "dependencies-2", "dependencies-3"] {
        world.advance(SignedDuration::from_mins(1));
        put(&world, &format!("{SCOPE}{name}"), &"x".repeat(80));
    }
    // The second one is used again.
    world.advance(SignedDuration::from_mins(1));
    put(&world, &format!("{SCOPE}dependencies-1"), &"x".repeat(80));
    let kept = recorded(&world, Verdict::Succeeded {}, stored([Layer::Plugins]), &[(Layer::Plugins, 90)]);
    let names: Vec<_> = kept.keys().map(String::as_str).collect();
    assert_eq!(names, ["dependencies-1", "dependencies-3", "plugins-0"]);
    assert!(world.objects().contains_key(other));
}

#[test]
fn unusable_packages_are_installed_next_time() {
    let of = |preview, verdict, unusable| {
        let world = launched(preview);
        put(&world, &format!("{SCOPE}dependencies-0"), "a");
        put(&world, &format!("{SCOPE}plugins-0"), "a");
        let restored = [Layer::Dependencies, Layer::Plugins].into();
        let installed = Some(Installed { restored, unusable, ..Installed::default() });
        report(&world, &RunResult { verdict, installed, ..succeeded(&world) });
        reconcile(&world);
        ["dependencies-0", "plugins-0"].map(|name| world.objects().contains_key(&format!("{SCOPE}{name}")))
    };
    let missing = || failed("Error: Cannot find module 'lodash'");
    assert_eq!(of(false, missing(), true), [false; 2]);
    assert_eq!(of(false, missing(), false), [true; 2]);
    assert_eq!(of(false, Verdict::Succeeded {}, true), [true; 2]);
    assert_eq!(of(true, missing(), true), [true; 2], "of a preview");
}

#[test]
fn cache_restore_is_measured_and_shown() {
    let world = launched(false);
    let installed = Installed {
        summary: "restored 98 MB in 0.6s".into(),
        restored: [Layer::Dependencies].into(),
        restored_bytes: 14_000_000,
        millis: 600,
        ..Installed::default()
    };
    report(&world, &RunResult { installed: Some(installed), pull_millis: Some(12_300), ..succeeded(&world) });
    let ((), lines) = emf::written(|| reconcile(&world));
    let names = ["CacheHits", "CacheMisses", "CacheRestoredBytes", "InstallDuration", "ImagePullDuration"];
    assert_eq!(values(&lines[0], &names), [json!(1.0), Value::Null, json!(14_000_000.0), json!(0.6), json!(12.3)]);
    let ours = update(&world)["status"]["driftless"].clone();
    assert_eq!((&ours["dependencies"], &ours["imagePull"]), (&json!("restored 98 MB in 0.6s"), &json!("12s")));
}
