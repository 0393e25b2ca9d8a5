//! The recorder in a world of fakes.

mod audit;
mod cache;
mod ends;
mod live;
mod log;
mod named;
mod outputs;
mod plan;
mod release;

use std::collections::BTreeMap;

use driftless_api::names;
use driftless_aws::Started;
use driftless_contract::{
    Document as _, Drift, DriftedResource, FailureReason, Launch, Lock, ObjectKey, Outcome, OutputValue, Phase, Progress,
    ResourceFailure, RunId, RunLimits, RunRequest, RunResult, TaskSize, TriedArchitecture, UnfitArchitecture, Verdict, to_json,
};
use driftless_core::{Admissions, Applicant, Architecture, StopCode, TaskEnd, TaskShape};
use driftless_testkit::{CLUSTER, Faults, Message, World, emf};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

const ROLE: &str = "AROA";
const TASK: &str = "tasks/AROA:t/";
const SYSTEM: &str = "driftless";
const CLAIM: &str = "claim-1";

fn settings() -> Settings {
    Settings {
        system_namespace: SYSTEM.into(),
        task_role_id: ROLE.into(),
        start_seconds: 900,
        cache_entry_bytes: 100,
        cache_namespace_bytes: 250,
    }
}

/// A world with the Update `n/u`, which a task owns.
fn world(metadata: &Value, status: &Value) -> World {
    let world = World::new(0, Faults::NONE);
    let mut update = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "spec": { "type": "up" }, "metadata": metadata, "status": status,
    });
    for (field, value) in [("namespace", "n"), ("name", "u"), ("uid", "uid")] {
        update["metadata"][field] = value.into();
    }
    world.insert(update);
    let folder = keys::run(CLUSTER, &"uid".into());
    let run = RunId { update: key("n", "u"), uid: "uid".into(), claim: CLAIM.into() };
    let at = world.now();
    let size = Some(TaskSize { cpu: 512, memory_mib: 2048 });
    let launch = Launch {
        version: VERSION,
        run,
        attempt: 0,
        definition: world.drive(world.definition(&TaskShape::default())).unwrap().unwrap(),
        project: None,
        inputs: None,
        preview: false,
        refused: None,
        spot: false,
        tried: None,
        size,
        cache: None,
        request: None,
        at,
    };
    put(&world, &format!("{folder}launch"), &to_json(&launch));
    let owner = Owner { version: VERSION, task: Some("arn:aws:ecs:r:1:task/c/t".into()), refused: None, at };
    put(&world, &format!("{folder}owner"), &to_json(&owner));
    world
}

/// Owned by a Stack.
fn of_stack() -> Value {
    json!({
        "finalizers": [names::FINALIZER],
        "ownerReferences": [{ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "stack-uid" }],
    })
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: CLUSTER.into(),
        api_version: "auto.pulumi.com/v1alpha1".into(),
        kind: "Update".into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn put(world: &World, key: &str, document: &str) {
    world.drive(world.put(key, document.into())).unwrap().unwrap();
}

fn succeeded(world: &World) -> RunResult {
    let [began, ended] = [300, 72_700].map(|millis| world.now() + SignedDuration::from_millis(millis));
    RunResult::new(Verdict::Succeeded {}, began, ended)
}

fn report(world: &World, result: &RunResult) {
    put(world, &format!("{TASK}out/result"), &to_json(result));
}

fn progress(world: &World, done: u32) {
    put(world, &format!("{TASK}out/progress"), &progress_at(world.now() + SignedDuration::from_millis(300), done));
}

/// The progress of a run that has done this many of 20 steps.
fn progress_at(at: Timestamp, done: u32) -> String {
    let current = Some("update urn:a".into());
    let (phase, log_chunks) = (Phase::Run, Some(1));
    to_json(&Progress {
        version: VERSION,
        at,
        phase,
        planned: 20,
        started: 9,
        done,
        failed: 1,
        current,
        log_chunks,
        dependencies: None,
    })
}

fn reconcile(world: &World) {
    handled(world).unwrap().unwrap();
}

/// Handles a message about the task's progress.
fn show(world: &World) {
    done(world, Due::Progress(keys::task(ROLE, "t"))).unwrap().unwrap();
}

/// Handles a message about the run; `None` if the fake world interrupted it.
fn handled(world: &World) -> Option<Result<(), Error>> {
    done(world, Due::Outcome)
}

fn done(world: &World, due: Due) -> Option<Result<(), Error>> {
    let settings = settings();
    let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops: 0 };
    let recorder = recorder(world, &settings);
    world.drive(recorder.handle(&hint, due))
}

/// A recorder whose ports are this world.
fn recorder<'a>(world: &'a World, settings: &'a Settings) -> Recorder<'a, World, World, World, World> {
    Recorder { cluster: world, objects: world, queues: world, tasks: world, settings, now: world.now() }
}

/// The values of these metrics in a line, in this order.
fn values(line: &Value, names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| line[name].clone()).collect()
}

const RUN: [&str; 7] = ["cluster", "operation", "outcome", "RunsEnded", "RunDuration", "VcpuSeconds", "GbSeconds"];

#[test]
fn duplicate_messages_count_a_run_once() {
    let failed = |reason| Verdict::Failed { phase: Phase::Run, reason, message: "it fails".into() };
    for (verdict, outcome, seconds, billed) in [
        (Verdict::Succeeded {}, "Succeeded", 90.0, 90.0),
        (failed(FailureReason::Unknown), "Failed", 10.0, 60.0),
        (failed(FailureReason::PlatformFailure), "PlatformFailure", 10.0, 60.0),
    ] {
        let world = world(&of_stack(), &json!({}));
        // The times that a task reports prove nothing.
        let ended_at = world.now() + SignedDuration::from_hours(9000);
        report(&world, &RunResult { verdict, ended_at, ..succeeded(&world) });
        world.advance(SignedDuration::from_secs_f64(seconds));
        let ((), lines) = emf::written(|| {
            for _ in 0..3 {
                reconcile(&world);
            }
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let expected =
            [json!(CLUSTER), json!("up"), json!(outcome), json!(1.0), json!(seconds), json!(billed / 2.0), json!(billed * 2.0)];
        assert_eq!(values(&lines[0], &RUN), expected);
        assert_eq!(lines[0]["update"], key("n", "u").to_string());
    }
}

#[test]
fn abandoned_run_is_counted_separately_without_cost() {
    let world = world(&of_stack(), &json!({}));
    let closed = Owner { version: VERSION, task: None, refused: None, at: world.now() };
    put(&world, &format!("{}owner", keys::run(CLUSTER, &"uid".into())), &to_json(&closed));
    let ((), lines) = emf::written(|| {
        reconcile(&world);
        reconcile(&world);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let nothing = Value::Null;
    let expected = [json!(CLUSTER), json!("up"), json!("NeverBegan"), json!(1.0), nothing.clone(), nothing.clone(), nothing];
    assert_eq!(values(&lines[0], &RUN), expected);
}

#[test]
fn refused_update_fails_with_the_reason_of_the_refusal() {
    let world = world(&json!({}), &json!({}));
    let why = format!("spec.type is \"apply\"{}", "x".repeat(9 << 10));
    let closed = Owner { version: VERSION, task: None, refused: Some(why), at: world.now() };
    put(&world, &format!("{}owner", keys::run(CLUSTER, &"uid".into())), &to_json(&closed));
    reconcile(&world);
    let status = update(&world)["status"].clone();
    let conditions = ["status", "reason"].map(|field| [1, 2].map(|n| status["conditions"][n][field].clone()));
    assert_eq!(json!(conditions), json!([["True", "True"], ["Aborted", "Updated"]]));
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("spec.type is \"apply\"x") && message.len() <= 4 << 10, "{}", message.len());
}

#[test]
fn transient_failures_and_exhausted_hops_are_counted() {
    let world = world(&of_stack(), &json!({}));
    let settings = settings();
    world.set_faults(Faults { transient: 1000, ..Faults::NONE });
    for (hops, expected) in [(3, &["TransientFailures"][..]), (MAX_HOPS, &["HopsExhausted", "TransientFailures"])] {
        let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops };
        let recorder = Recorder {
            cluster: &world,
            objects: &world,
            queues: &world.calm(),
            tasks: &world,
            settings: &settings,
            now: world.now(),
        };
        let (done, lines) = emf::written(|| world.drive(recorder.handle(&hint, Due::Outcome)).unwrap());
        done.unwrap();
        let names: Vec<_> = lines.iter().map(|line| line["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"].clone()).collect();
        assert_eq!(names, expected);
        assert_eq!(values(&lines[0], &["cluster", "function"]), [CLUSTER, "recorder"]);
    }
}

fn update(world: &World) -> Value {
    world.object(&key("n", "u")).unwrap()
}

fn ours(world: &World) -> Value {
    update(world)["status"]["driftless"].clone()
}

/// Marks the run as launched without changes, or not.
fn set_preview(world: &World, preview: bool) {
    let key = format!("{}launch", keys::run(CLUSTER, &"uid".into()));
    let launch = Launch::parse(&world.objects()[&key]).unwrap();
    put(world, &key, &to_json(&Launch { preview, ..launch }));
}

/// The Updates that were hinted to the launcher, in order.
fn launches(world: &World) -> Vec<String> {
    let sent = world.sent().into_iter().filter_map(|message| match message {
        Message::Launch(hint) => Some(format!("{}/{}", hint.update.namespace, hint.update.name)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn failed_and_pending_resources_are_reported_once() {
    for (owned, told) in [(of_stack(), 2), (json!({}), 1)] {
        let world = world(&owned, &json!({}));
        let failures = (0..20).map(|n| ResourceFailure { urn: format!("urn:{n:02}"), message: "quota".into() }).collect();
        let pending_operations = vec!["creating urn:b".to_owned()];
        report(&world, &RunResult { failures, pending_operations, ..succeeded(&world) });
        reconcile(&world);
        reconcile(&world);
        let events = |word: &str| world.events().into_iter().filter(|event| event.contains(word)).collect::<Vec<_>>();
        assert!(world.events().iter().all(|event| event.contains(" Warning ")), "{:?}", world.events());
        assert_eq!(events("PendingOperations").len(), told);
        assert_eq!(events("creating urn:b").len(), told);
        assert_eq!(events("ResourceFailed").len(), 10 * told);
        assert_eq!(events("Update n/u Warning ResourceFailed: urn:03: quota").len(), 1);
        assert_eq!(events("Stack n/s Warning ResourceFailed: urn:03: quota").len(), told - 1);
    }
    let world = world(&of_stack(), &json!({}));
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!(world.events(), Vec::<String>::new());
}

#[test]
fn lock_of_a_killed_pulumi_is_kept_for_the_next_run() {
    let failed = Verdict::Failed { phase: Phase::Run, reason: FailureReason::Silent, message: "it hung".into() };
    let kept = |left: &str| {
        let world = world(&of_stack(), &json!({}));
        put(&world, &format!("{TASK}out/lock"), left);
        report(&world, &RunResult { verdict: failed.clone(), ..succeeded(&world) });
        reconcile(&world);
        assert_eq!(update(&world)["status"]["conditions"][2]["status"], "True");
        world.drive(world.exists(&keys::lock(CLUSTER, &CLAIM.into()))).unwrap().unwrap()
    };
    let at = Timestamp::UNIX_EPOCH;
    let lock =
        Lock { version: VERSION, host: "h".into(), pid: 1, not_before: at, not_after: None, removes: false, earlier: Vec::new() };
    assert!(!kept(&to_json(&lock)), "pulumi ended by itself");
    assert!(kept(&to_json(&Lock { not_after: Some(at), ..lock })));
    assert!(!kept("what is this"));
    let long = Lock {
        version: VERSION,
        host: "h".repeat(outcome::MAX_LOCK),
        pid: 1,
        not_before: at,
        not_after: Some(at),
        removes: false,
        earlier: Vec::new(),
    };
    assert!(!kept(&to_json(&long)), "a lock over the limit is not kept");
}

#[test]
fn update_shows_the_progress_of_a_live_run() {
    let world = world(&of_stack(), &json!({ "driftless": { "task": "arn" } }));
    progress(&world, 3);
    reconcile(&world);
    assert_eq!(ours(&world)["progress"], Value::Null, "a queue that all runs share waits for no task's progress");
    show(&world);
    let shown = json!({
        "current": "update urn:a", "done": 3, "failed": 1, "phase": "run", "planned": 20, "started": 9, "time": world.now().to_string(),
    });
    assert_eq!((&ours(&world)["progress"], &ours(&world)["summary"]), (&shown, &json!("3/20")));
    let _: Vec<_> = world.written();
    show(&world);
    assert!(world.written().is_empty(), "nothing changed");
    put(&world, &format!("{TASK}out/progress"), "what the program wrote");
    show(&world);
    assert_eq!(ours(&world)["progress"], shown);
    report(&world, &succeeded(&world));
    reconcile(&world);
    assert_eq!((&ours(&world)["progress"], &ours(&world)["summary"]), (&Value::Null, &json!("no changes")));
    progress(&world, 9);
    show(&world);
    assert_eq!(ours(&world)["progress"], Value::Null, "it came after the end");
}

#[test]
fn status_has_changes_and_duration() {
    let failed = || Verdict::Failed { phase: Phase::Run, reason: FailureReason::Unknown, message: "it fails".into() };
    for (changes, verdict, summary) in [
        (json!({ "create": 3, "update": 1, "delete": 2, "same": 7 }), Verdict::Succeeded {}, json!("+3 ~1 -2")),
        (json!({ "replace": 1, "import": 2, "create": 0 }), Verdict::Succeeded {}, json!("±1 =2")),
        (json!({ "same": 7 }), Verdict::Succeeded {}, json!("no changes")),
        (json!({ "create": 1 }), failed(), json!("+1")),
        (json!({}), failed(), Value::Null),
    ] {
        let world = world(&of_stack(), &json!({}));
        report(&world, &RunResult { changes: serde_json::from_value(changes).unwrap(), verdict, ..succeeded(&world) });
        world.advance(SignedDuration::from_secs(80));
        reconcile(&world);
        assert_eq!((&ours(&world)["duration"], &ours(&world)["summary"]), (&json!("1m12s"), &summary));
    }
}

#[test]
fn result_of_a_drift_check_is_recorded_and_shown() {
    let resource = |properties: usize| DriftedResource {
        urn: "urn:a".into(),
        change: "update".into(),
        properties: vec!["a\nb".into(); properties],
    };
    for (preview, count, changes, summary) in [
        (true, 0, json!({ "same": 7 }), "no drift"),
        (true, 200, json!({ "same": 7, "update": 199, "delete": 1 }), "drift ~199 -1"),
        (false, 200, json!({ "update": 1 }), "~1"),
    ] {
        let world = world(&of_stack(), &json!({}));
        set_preview(&world, preview);
        let drift = Some(Drift { count, resources: vec![resource(50); count as usize] });
        let changes = serde_json::from_value(changes).unwrap();
        report(&world, &RunResult { changes, drift, ..succeeded(&world) });
        reconcile(&world);
        assert_eq!(ours(&world)["summary"], summary);
        let outcome = &world.objects()[&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))];
        let Some(found) = Outcome::parse(outcome).unwrap().drift else {
            assert!(!preview, "only a run that looks has drift");
            continue;
        };
        assert_eq!((preview, found.count, found.resources.len()), (true, count, Drift::MAX_RESOURCES.min(count as usize)));
        assert!(found.resources.iter().all(|found| found.properties == ["a b"; Drift::MAX_PROPERTIES]), "{found:?}");
    }
}

#[test]
fn preview_keeps_the_record_of_the_run_before() {
    for (preview, left) in [(true, "known"), (false, "")] {
        let world = world(&of_stack(), &json!({}));
        set_preview(&world, preview);
        for key in [&*keys::lock(CLUSTER, &CLAIM.into()), &*keys::resources(CLUSTER, &CLAIM.into())] {
            put(&world, key, "known");
        }
        report(&world, &RunResult { changes: [("same".to_owned(), 3)].into(), ..succeeded(&world) });
        reconcile(&world);
        assert_eq!(update(&world)["status"]["conditions"][2]["status"], "True");
        let now = |key: &str| world.objects().get(key).map_or(String::new(), |kept| String::from_utf8_lossy(kept).into_owned());
        assert_eq!(now(&keys::lock(CLUSTER, &CLAIM.into())), left);
        assert_eq!(now(&keys::resources(CLUSTER, &CLAIM.into())) == "known", preview);
    }
}

#[test]
fn too_long_result_is_a_failure_that_names_the_cause() {
    let many = format!(r#"{{"version":1,"outputs":{{"a":{{"secret":false,"value":[{}0]}}}}}}"#, r#"{"a":0},"#.repeat(100_000));
    for (result, words) in [("x".repeat((5 << 20) + 1), "exceeds 4 MiB"), (many, "has too many values")] {
        let world = world(&of_stack(), &json!({}));
        put(&world, &format!("{TASK}out/result"), &result);
        reconcile(&world);
        let failed = update(&world)["status"]["conditions"].to_string();
        assert!(failed.contains(&format!("{words}; reduce the outputs of the program")), "{failed}");
    }
}

#[test]
fn resource_count_is_recorded_for_the_next_run() {
    let world = world(&of_stack(), &json!({}));
    let changes = [("same", 3), ("create", 2), ("replace", 1), ("delete", 7), ("delete-replaced", 1)];
    let changes = changes.map(|(operation, count)| (operation.to_owned(), count)).into();
    report(&world, &RunResult { changes, ..succeeded(&world) });
    reconcile(&world);
    assert_eq!(world.document(&keys::resources(CLUSTER, &CLAIM.into())).unwrap().count, 6);
}

#[test]
fn secrets_are_deleted_and_an_update_by_hand_is_released() {
    for (metadata, released) in [(json!({ "finalizers": [names::FINALIZER, "other/f"] }), true), (of_stack(), false)] {
        for calls in 0..60 {
            let world = world(&metadata, &json!({}));
            for name in ["in/identity", "out/lock"] {
                put(&world, &format!("{TASK}{name}"), "secret");
            }
            report(&world, &succeeded(&world));
            let settings = settings();
            let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops: 0 };
            world.crash_before_call(calls);
            let recorder = recorder(&world, &settings);
            let crashed = world.drive(recorder.handle(&hint, Due::Outcome)).is_none();
            if crashed {
                reconcile(&world);
            }
            assert!(!world.objects().keys().any(|key| key.starts_with("tasks/")), "{:?}", world.objects().keys());
            let finalizers = update(&world)["metadata"]["finalizers"].to_string();
            assert_eq!(finalizers.contains(names::FINALIZER), !released, "{finalizers} after a crash before call {calls}");
            if !crashed {
                break;
            }
            assert!(calls < 59, "it never ends");
        }
    }
}

#[test]
fn message_about_a_task_is_enough_after_a_crash_at_any_call() {
    for calls in 0..60 {
        let world = world(&of_stack(), &json!({}));
        let run = RunId { update: key("n", "u"), uid: "uid".into(), claim: CLAIM.into() };
        put(&world, &format!("{TASK}in/run"), &to_json(&TaskRun { version: VERSION, run }));
        report(&world, &succeeded(&world));
        let settings = settings();
        let recorded = || {
            world.drive(async {
                let message = RunMessage::Task { task: "arn:aws:ecs:r:1:task/c/t".into() };
                for (hint, due) in runs(&world, &world, &settings, message, world.now()).await.unwrap() {
                    let recorder = recorder(&world, &settings);
                    recorder.handle(&hint, due).await.unwrap();
                }
            })
        };
        world.crash_before_call(calls);
        let crashed = recorded().is_none();
        if crashed {
            recorded().unwrap();
        }
        let status = &update(&world)["status"];
        assert!(status["conditions"].to_string().contains("Complete"), "after a crash before call {calls}: {status}");
        let hinted = world.sent().iter().any(|message| matches!(message, Message::Hint(hint) if hint.object.kind == "Stack"));
        assert!(hinted, "after a crash before call {calls}");
        assert!(!world.objects().contains_key(&format!("{TASK}in/run")), "after a crash before call {calls}");
        if !crashed {
            break;
        }
        assert!(calls < 59, "it never ends");
    }
}

#[test]
fn forged_status_is_corrected() {
    let condition = json!({
        "type": "Complete", "status": "True", "reason": "Updated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let world = world(&of_stack(), &json!({ "conditions": [condition], "outputs": "theirs", "permalink": "https://evil" }));
    progress(&world, 1);
    reconcile(&world);
    assert_eq!(ours(&world), Value::Null, "of one that is complete no progress is shown");
    let outputs = Some([("n".to_owned(), OutputValue { value: 1.into(), secret: false })].into());
    report(&world, &RunResult { outputs, ..succeeded(&world) });
    world.advance(SignedDuration::from_secs(80));
    reconcile(&world);
    let status = update(&world)["status"].clone();
    assert_eq!((&status["outputs"], &status["permalink"]), (&json!("u-stack-outputs"), &Value::Null));
    assert_eq!(status["driftless"]["duration"], "1m12s");
    let _: Vec<_> = world.written();
    reconcile(&world);
    assert!(world.written().is_empty(), "now it is right");
}

#[test]
fn unreachable_cluster_is_requeued() {
    let passes = KubernetesError::Transient { call: "connect".into(), message: "throttled".into() };
    let stays = KubernetesError::Permanent { call: "connect".into(), message: "no such cluster".into() };
    for (error, again) in [(passes, true), (stays, false)] {
        let world = world(&of_stack(), &json!({}));
        let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops: 0 };
        assert_eq!(world.drive(failed(&world, &hint, Due::Outcome, error.into(), world.now())).unwrap().is_ok(), again);
        assert_eq!(world.sent().iter().any(|message| matches!(message, Message::Run(_))), again);
    }
}

#[test]
fn status_has_the_message_of_a_run_with_changes() {
    for (preview, expected) in [(false, json!("why")), (true, json!(null))] {
        let world = world(&of_stack(), &json!({}));
        world.insert(driftless_core::merge(update(&world), &json!({ "spec": { "message": "why" } })));
        let launch = format!("{}launch", keys::run(CLUSTER, &"uid".into()));
        let recorded = Launch::parse(&world.objects()[&launch]).unwrap();
        put(&world, &launch, &to_json(&Launch { preview, ..recorded }));
        report(&world, &succeeded(&world));
        reconcile(&world);
        assert_eq!(update(&world)["status"]["message"], expected, "preview: {preview}");
    }
}

#[test]
fn run_that_ends_before_its_launcher_has_shown_the_task_names_it() {
    for shown in [json!({}), json!({ "driftless": { "task": "arn:of:another", "log": "https://log" } })] {
        let world = world(&of_stack(), &shown);
        report(&world, &succeeded(&world));
        reconcile(&world);
        let ours = update(&world)["status"]["driftless"].clone();
        assert_eq!((&ours["task"], &ours["log"]), (&json!("arn:aws:ecs:r:1:task/c/t"), &shown["driftless"]["log"]));
    }
}

#[test]
fn update_that_changed_meanwhile_is_completed_at_once() {
    let world = world(&of_stack(), &json!({}));
    let running = update(&world);
    report(&world, &succeeded(&world));
    reconcile(&world);
    let outcome = world.objects()[&format!("{}outcome", keys::run(CLUSTER, &"uid".into()))].clone();
    let outcome = Outcome::parse(&outcome).unwrap();

    world.insert(running.clone());
    let stale: Update = serde_json::from_value(update(&world)).unwrap();
    world.insert(driftless_core::merge(running, &json!({ "metadata": { "annotations": { "a": "b" } } })));
    let settings = settings();
    let hint = RunHint { version: VERSION, update: key("n", "u"), uid: Some("uid".into()), hops: 0 };
    let run = publish::Recorded { outcome: &outcome, launch: None, task: None };
    let recorder = recorder(&world, &settings);
    let published = recorder.publish(&hint, Some(stale), run);
    world.drive(published).unwrap().unwrap();
    let found = update(&world);
    assert_eq!((&found["metadata"]["annotations"]["a"], &found["status"]["message"]), (&json!("b"), &json!(null)));
    assert_eq!(found["status"]["conditions"][2]["status"], "True");
}
