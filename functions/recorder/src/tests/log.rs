//! The log of a run in its ConfigMap.

use driftless_contract::keys::{MAX_LOG_CHUNK_BYTES, MAX_LOG_CHUNKS};

use super::*;

fn running() -> World {
    world(&of_stack(), &json!({ "driftless": { "task": "arn" } }))
}

/// Stores a part as the task does.
fn log(world: &World, number: u16, text: impl Into<Vec<u8>>) {
    world.drive(world.put(&keys::task(ROLE, "t").log_chunk(number), text.into())).unwrap().unwrap();
}

fn config_map(world: &World) -> Option<Value> {
    world.cluster().into_iter().find(|object| object["kind"] == "ConfigMap")
}

/// The data of the ConfigMap.
fn shown(world: &World) -> Value {
    config_map(world).map_or(Value::Null, |found| found["data"].clone())
}

fn not_stored(world: &World) -> Vec<String> {
    world.events().into_iter().filter(|event| event.contains(" LogNotStored: ")).collect()
}

/// A run that logs a line, shows its progress and ends, and is recorded twice.
fn run_to_its_end(world: &World) {
    log(world, 1, "a\n");
    progress(world, 1);
    show(world);
    assert_eq!(ours(world)["summary"], "1/20", "the progress shows although the log is not stored");
    report(world, &succeeded(world));
    reconcile(world);
    reconcile(world);
}

#[test]
fn log_grows_during_the_run_and_is_complete_at_its_end() {
    let world = running();
    log(&world, 1, "a\n");
    progress(&world, 1);
    show(&world);
    let created = config_map(&world).unwrap();
    assert_eq!(created["data"], json!({ "0001": "a\n" }));
    let owner = &created["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Update"), &json!("uid")));
    assert_eq!((&created["metadata"]["namespace"], &created["metadata"]["name"]), (&json!("n"), &json!("u-log")));
    assert_eq!(ours(&world)["logConfigMap"], "u-log");
    // A copied part is not read again.
    log(&world, 1, "something else");
    let _: Vec<_> = world.written();
    show(&world);
    assert!(world.written().is_empty(), "nothing changed");
    log(&world, 2, "b\n");
    progress(&world, 2);
    show(&world);
    assert_eq!(shown(&world), json!({ "0001": "a\n", "0002": "b\n" }));
    log(&world, 3, "c\n");
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!(shown(&world), json!({ "0001": "a\n", "0002": "b\n", "0003": "c\n" }));
    assert_eq!((&ours(&world)["logConfigMap"], &ours(&world)["summary"]), (&json!("u-log"), &json!("no changes")));
    let _: Vec<_> = world.written();
    reconcile(&world);
    assert!(world.written().is_empty(), "all is told");
    assert_eq!(not_stored(&world), Vec::<String>::new());
}

#[test]
fn log_is_whole_after_a_crash_before_any_call() {
    for calls in 0..60 {
        let world = running();
        log(&world, 1, "a\n");
        log(&world, 2, "b\n");
        report(&world, &succeeded(&world));
        world.crash_before_call(calls);
        let crashed = handled(&world).is_none();
        if crashed {
            reconcile(&world);
        }
        assert_eq!(shown(&world), json!({ "0001": "a\n", "0002": "b\n" }), "after a crash before call {calls}");
        assert_eq!(ours(&world)["logConfigMap"], "u-log");
        if !crashed {
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn run_without_a_log_has_no_config_map() {
    let world = running();
    progress(&world, 1);
    show(&world);
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!((config_map(&world), &ours(&world)["logConfigMap"]), (None, &Value::Null));
}

#[test]
fn last_512_kib_of_a_log_are_kept() {
    let world = running();
    for number in 1..=MAX_LOG_CHUNKS {
        log(&world, number, "x".repeat(MAX_LOG_CHUNK_BYTES));
    }
    progress(&world, 1);
    show(&world);
    let keys = |world: &World| shown(world).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let last = |last: u16| (last - 7..=last).map(|number| format!("{number:04}"));
    assert_eq!(keys(&world), ["0000".to_owned()].into_iter().chain(last(20)).collect::<Vec<_>>(), "some at once");
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!(keys(&world), ["0000".to_owned()].into_iter().chain(last(MAX_LOG_CHUNKS)).collect::<Vec<_>>());
    let note = shown(&world)["0000"].as_str().unwrap().to_owned();
    assert!(note.starts_with("[earlier lines are left out: only the last 512 KiB are here; "), "{note}");
}

#[test]
fn log_is_bounded_and_has_no_control_characters() {
    let world = running();
    log(&world, 1, *b"\x1b[2Jq\xff\r\0\xc2\x9b\n\tz");
    log(&world, 2, vec![0; 1 << 20]);
    log(&world, 3, "not given");
    log(&world, 4, "after the gap");
    world.archive(&keys::task(ROLE, "t").log_chunk(3));
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!(update(&world)["status"]["conditions"][2]["status"], "True");
    let replaced = char::REPLACEMENT_CHARACTER.to_string();
    let first = "?[2Jq????\n\tz".replace('?', &replaced);
    assert_eq!(shown(&world), json!({ "0001": first, "0002": replaced.repeat(MAX_LOG_CHUNK_BYTES) }));
}

#[test]
fn foreign_config_map_is_not_changed() {
    for owners in
        [json!([]), json!([{ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "name": "u", "uid": "older" }])]
    {
        let world = running();
        let metadata = json!({ "namespace": "n", "name": "u-log", "ownerReferences": owners });
        world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "0001": "theirs" } }));
        let before = config_map(&world);
        run_to_its_end(&world);
        assert_eq!((config_map(&world), &ours(&world)["logConfigMap"]), (before, &Value::Null));
        let told = "Update n/u Warning LogNotStored: ConfigMap \"u-log\" exists and does not belong to this Update; delete it and run again";
        assert_eq!(not_stored(&world), [told]);
    }
}

#[test]
fn config_map_that_cannot_be_read_delays_no_run() {
    let world = running();
    let metadata = json!({ "namespace": "n", "name": "u-log" });
    world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": 7 }));
    log(&world, 1, "a\n");
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!(update(&world)["status"]["conditions"][1]["reason"], "UpdateSucceeded");
    let told = not_stored(&world);
    assert!(told.len() == 1 && told[0].contains("cannot read ConfigMap \"u-log\": "), "{told:?}");
}

#[test]
fn forbidden_log_fails_no_run_and_is_reported_once() {
    let world = running();
    world.forbid("ConfigMap");
    run_to_its_end(&world);
    let status = update(&world)["status"].clone();
    assert_eq!(
        (&status["conditions"][1]["reason"], &status["driftless"]["logConfigMap"]),
        (&json!("UpdateSucceeded"), &Value::Null)
    );
    let told = not_stored(&world);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("; bind the ClusterRole driftless:run-outputs in this namespace "), "{told:?}");
}

/// Stores the live log as the task does.
fn live_log(world: &World, text: impl Into<Vec<u8>>) {
    world.drive(world.put(&keys::task(ROLE, "t").live_log(), text.into())).unwrap().unwrap();
}

fn link(world: &World) -> (String, String) {
    let link = ours(world)["logLink"].clone();
    let text = |field: &str| link[field].as_str().unwrap_or_default().to_owned();
    (text("url"), text("expires"))
}

#[test]
fn link_to_a_live_log_is_renewed_before_it_expires() {
    let world = running();
    let shown_after = |minutes, done| {
        world.advance(SignedDuration::from_mins(minutes));
        progress(&world, done);
        show(&world);
        link(&world)
    };
    let first = shown_after(0, 1);
    assert!(first.0.starts_with(&format!("https://s3.example/{TASK}out/live-log?")), "{first:?}");
    assert_eq!(first.1, (world.now() + SignedDuration::from_hours(1)).to_string());
    assert_eq!(shown_after(29, 2), first);
    let second = shown_after(2, 3);
    assert_eq!(second.1, (world.now() + SignedDuration::from_hours(1)).to_string());
}

/// Asks for a new link to the log, as a reader of the Update does.
fn ask(world: &World) {
    let mut update = update(world);
    update["metadata"]["annotations"] = json!({ names::LOG_REQUESTED_AT: world.now().to_string() });
    world.insert(update);
}

#[test]
fn expired_link_is_renewed_for_a_reader_who_asks_as_long_as_the_log_is_kept() {
    let world = running();
    live_log(&world, "a\n");
    report(&world, &succeeded(&world));
    reconcile(&world);
    let first = link(&world);
    let status = update(&world)["status"].clone();
    ask(&world);
    reconcile(&world);
    assert_eq!(link(&world), first, "it still works");
    world.advance(SignedDuration::from_hours(30));
    ask(&world);
    live_log(&world, "forged\n");
    let sent = world.sent().len();
    reconcile(&world);
    let second = link(&world);
    assert_eq!(second.1, (world.now() + SignedDuration::from_hours(1)).to_string());
    assert_eq!(world.objects()[&format!("logs/{CLUSTER}/n/uid")], b"a\n");
    assert_eq!(world.sent().len(), sent, "nothing else is left to do");
    let mut rest = update(&world)["status"].clone();
    rest["driftless"]["logLink"] = status["driftless"]["logLink"].clone();
    assert_eq!(rest, status, "only the link changed");

    // The log is no longer kept: no message follows the Update itself.
    world.advance(SignedDuration::from_hours(2));
    ask(&world);
    for key in [format!("logs/{CLUSTER}/n/uid"), keys::task(ROLE, "t").live_log()] {
        world.drive(Objects::delete(&world, &key)).unwrap().unwrap();
    }
    let mut released = update(&world);
    released["metadata"]["finalizers"] = Value::Null;
    world.insert(released);
    reconcile(&world);
    assert_eq!(ours(&world)["logLink"], Value::Null);
    let loops =
        world.sent().into_iter().skip(sent).any(|message| matches!(message, Message::Hint(hint) if hint.object.kind == "Update"));
    assert!(!loops);
}

#[test]
fn whole_log_is_kept_apart_from_its_task_and_linked_once() {
    let world = running();
    live_log(&world, "a\nb\n");
    report(&world, &succeeded(&world));
    reconcile(&world);
    let key = format!("logs/{CLUSTER}/n/uid");
    assert_eq!(world.objects()[&key], b"a\nb\n");
    let first = link(&world);
    assert!(first.0.starts_with(&format!("https://s3.example/{key}?")), "{first:?}");
    // What the task writes after its end is not taken for its log.
    live_log(&world, "forged\n");
    let _: Vec<_> = world.written();
    reconcile(&world);
    assert_eq!((world.written().len(), link(&world), &*world.objects()[&key]), (0, first, &b"a\nb\n"[..]));

    let world = running();
    live_log(&world, vec![b'x'; keys::MAX_LIVE_LOG_BYTES + 1]);
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert!(!world.objects().contains_key(&key) && ours(&world)["logLink"] == Value::Null);
    assert_eq!(update(&world)["status"]["conditions"][2]["status"], "True");
}
