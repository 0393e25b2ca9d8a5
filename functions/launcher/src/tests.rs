use std::collections::BTreeMap;

use driftless_api::{Workspace, names};
use driftless_contract::{
    FetchFailure, FetchOutcome, FetchedArtifact, Identity, ObjectKey, Operation, Resources, RunMessage, RunSpec,
};
use driftless_core::Admissions;
use driftless_testkit::{CLUSTER, Faults, Message, World, emf};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use super::*;

pub(crate) fn quiet() -> World {
    World::new(1, Faults::NONE)
}

pub(crate) fn settings() -> Settings {
    Settings {
        system_namespace: "driftless".into(),
        namespaces: WatchNamespaces::All,
        task_role_id: "AROA".into(),
        default_image: "pulumi".into(),
        spot: true,
        limits: Limits::default(),
        run_limits: RunLimits { silence_seconds: Some(900), max_seconds: None },
        token_seconds: 3600,
        fresh_key: vec![7; 32].into(),
    }
}

pub(crate) fn looked(world: &World, hint: &LaunchHint) {
    look_with(world, &settings(), hint);
}

fn look_with(world: &World, settings: &Settings, hint: &LaunchHint) {
    let ports = Ports { cluster: world, objects: world, queues: world, tasks: world };
    world.drive(handle(&ports, settings, hint, world.now())).unwrap().unwrap();
}

fn key(kind: &str, namespace: &str, name: &str) -> ObjectKey {
    let api_version = if kind == "Stack" { "pulumi.com/v1" } else { "auto.pulumi.com/v1alpha1" };
    let [cluster, api_version, kind] = [CLUSTER, api_version, kind].map(String::from);
    ObjectKey { cluster, api_version, kind, namespace: namespace.into(), name: name.into() }
}

fn hint(name: &str) -> LaunchHint {
    LaunchHint { version: VERSION, update: key("Update", "n", name), hops: 0 }
}

fn insert(world: &World, key: &ObjectKey, more: &Value) {
    let mut metadata = json!({ "namespace": key.namespace, "name": key.name, "uid": format!("uid-{}", key.name) });
    metadata = driftless_api::merge(metadata, more.get("metadata").unwrap_or(&json!({})));
    let base = json!({ "apiVersion": key.api_version, "kind": key.kind });
    let mut object = driftless_api::merge(base, more);
    object["metadata"] = metadata;
    world.insert(object);
}

fn workspace(world: &World, spec: &Value) {
    insert(world, &key("Workspace", "n", "w"), &json!({ "spec": spec }));
}

fn project() -> Value {
    json!({ "projectInfo": { "name": "shop", "runtime": "yaml" } })
}

/// An Update that a user made, of the stack that has its name.
fn by_hand(world: &World, name: &str, spec: &Value) {
    let base = json!({ "workspaceName": "w", "stackName": name, "type": "up" });
    insert(world, &key("Update", "n", name), &json!({ "spec": driftless_api::merge(base, spec) }));
}

fn update(world: &World, name: &str) -> Update {
    serde_json::from_value(world.object(&key("Update", "n", name)).unwrap()).unwrap()
}

/// The reason and the words of what it waits for.
fn waits(world: &World, name: &str) -> (String, String) {
    let ours = update(world, name).status.unwrap_or_default().driftless.unwrap_or_default();
    (ours.waiting_reason.unwrap_or_default(), ours.waiting_for.unwrap_or_default())
}

/// What is in the folder of the only task.
fn inbox(world: &World) -> BTreeMap<String, Vec<u8>> {
    let [task] = &world.live_tasks()[..] else { panic!("{:?}", world.live_tasks()) };
    let folder = format!("{}in/", keys::task("AROA", keys::task_id(&task.arn)));
    let of_task = |(key, content): (String, Vec<u8>)| Some((key.strip_prefix(&folder)?.to_owned(), content));
    world.objects().into_iter().filter_map(of_task).collect()
}

fn spec(world: &World) -> RunSpec {
    from_json("spec", &inbox(world)["spec"]).unwrap()
}

fn identity(world: &World) -> Identity {
    from_json("identity", &inbox(world)["identity"]).unwrap()
}

fn received(world: &World) -> Vec<Message> {
    std::iter::from_fn(|| world.receive()).collect()
}

fn tells_recorder_of(messages: &[Message], name: &str) -> bool {
    let is = |message: &Message| matches!(message, Message::Run(RunMessage::Hint(hint)) if hint.update.name == name);
    messages.iter().any(is)
}

#[test]
fn an_update_made_by_hand_runs_what_its_workspace_is_when_it_starts_and_is_kept() {
    let world = quiet();
    workspace(&world, &driftless_api::merge(project(), &json!({ "pulumiLogLevel": 3 })));
    by_hand(&world, "u", &json!({ "type": "refresh", "message": "m" }));
    // Whatever step a launch ends before, the next one goes on.
    for call in 0..40 {
        world.crash_before_call(call);
        let ports = Ports { cluster: &world, objects: &world, queues: &world, tasks: &world };
        let _ = world.drive(handle(&ports, &settings(), &hint("u"), world.now()));
    }
    workspace(&world, &project());
    looked(&world, &hint("u"));
    let spec = spec(&world);
    assert_eq!((spec.operation, spec.create, spec.identity), (Operation::Refresh, true, true));
    assert_eq!((spec.log_level, spec.limits), (Some(3), settings().run_limits));
    assert!(identity(&world).cluster.token.ends_with("of n/default for kubernetes"));
    let update = update(&world, "u");
    assert_eq!(update.finalizers(), [names::FINALIZER]);
    let ours = update.status.unwrap().driftless.unwrap();
    let task = world.live_tasks().remove(0).arn;
    assert_eq!((ours.task.as_deref(), ours.log), (Some(task.as_str()), Some(world.log_url(&task))));
}

#[test]
fn what_is_wrong_with_an_update_made_by_hand_is_waited_for_in_words() {
    let limit = |word: &str| json!({ "metadata": { "annotations": { names::MAX_DURATION: word } } });
    let capacity = json!({ "metadata": { "annotations": { names::CAPACITY: "cheap" } } });
    let no_ref = json!({ "git": { "url": "u" } });
    let git = json!({ "git": { "url": "u", "ref": "main" } });
    let local = json!({ "local": { "dir": "/app" } });
    let tree = json!({ "driftless": { "tree": { "digest": "sha256:1", "source": { "kind": "GitRepository", "name": "g", "apiVersion": "x/v1" } } } });
    let sizes = driftless_api::merge(project(), &json!({ "serviceAccountName": "gone" }));
    for (of, spec, more, reason, words) in [
        (None, json!({}), json!({}), "WorkspaceNotFound", "Workspace \"w\" is not there"),
        (None, json!({ "workspaceName": null }), json!({}), "SpecInvalid", "spec.workspaceName is missing"),
        (Some(project()), json!({ "stackName": null }), json!({}), "SpecInvalid", "spec.stackName is missing"),
        (Some(project()), json!({ "type": "apply" }), json!({}), "SpecInvalid", "use up, preview, refresh or destroy"),
        (Some(project()), json!({}), limit("1h-5m"), "SpecInvalid", "is \"1h-5m\"; write a duration"),
        (Some(project()), json!({}), limit("99999999999999999999h"), "SpecInvalid", "write a duration"),
        (Some(project()), json!({}), limit("0s"), "SpecInvalid", "write a duration"),
        (Some(project()), json!({}), capacity, "SpecInvalid", "is \"cheap\"; write \"spot\" or \"on-demand\", or remove it"),
        (Some(no_ref), json!({}), json!({}), "SpecInvalid", "Workspace \"w\": spec.git.ref is missing; write a branch"),
        (Some(git), json!({}), json!({}), "SourceNotFetched", "Workspace \"w\": fetching spec.git at main"),
        (Some(local), json!({}), json!({}), "SpecInvalid", "Workspace \"w\": spec.local has no meaning on Fargate; remove it"),
        (Some(json!({})), json!({}), json!({}), "SpecInvalid", "Workspace \"w\": no source; set one of spec.git"),
        (Some(tree), json!({}), json!({}), "TreeNotFound", "it was asked for again"),
        (Some(sizes), json!({}), json!({}), "ServiceAccountNotFound", "ServiceAccount \"gone\" is not there"),
    ] {
        let world = quiet();
        if let Some(of) = &of {
            workspace(&world, of);
        }
        by_hand(&world, "u", &spec);
        let object = world.object(&key("Update", "n", "u")).unwrap();
        insert(&world, &key("Update", "n", "u"), &driftless_api::merge(object, &more));
        looked(&world, &hint("u"));
        let (found, said) = waits(&world, "u");
        assert!(
            found == reason && said.contains(words) && said.ends_with("; looked at again within a minute"),
            "{found}: {said}"
        );
        assert!(world.live_tasks().is_empty() && world.objects().is_empty());
        let fetches = received(&world).into_iter().filter(|message| matches!(message, Message::Fetch(_))).count();
        assert_eq!(fetches, usize::from(matches!(reason, "TreeNotFound" | "SourceNotFetched")));
    }
}

/// What the fetcher came to for the Workspace.
fn fetched(world: &World, subject: &str, result: Result<&str, &str>) {
    let workspace = key("Workspace", "n", "w");
    let digest = |revision: &str| format!("sha1:{revision}");
    let artifact = result.ok().map(|revision| FetchedArtifact { revision: revision.into(), digest: digest(revision) });
    if let Some(FetchedArtifact { digest, .. }) = &artifact {
        let folder = keys::tree(&workspace, digest);
        for part in ["pack", "manifest"] {
            world.drive(world.put(&format!("{folder}{part}"), b"{}".to_vec())).unwrap().unwrap();
        }
    }
    let failure = result.err().map(|message| FetchFailure { message: message.into(), terminal: false });
    let (failures, at, subject) = (u32::from(failure.is_some()), world.now(), subject.into());
    let outcome = FetchOutcome { version: VERSION, subject, at, artifact, failures, failure };
    world.drive(world.put(&keys::fetch(&workspace), to_json(&outcome).into_bytes())).unwrap().unwrap();
}

/// The fetch requests and the launch hints among the messages: of which object.
fn asked(world: &World) -> (Vec<String>, Vec<String>) {
    let (mut fetches, mut launches) = (Vec::new(), Vec::new());
    for message in received(world) {
        match message {
            Message::Fetch(request) => fetches.push(request.source.to_string()),
            Message::Launch(launch) => launches.push(launch.update.to_string()),
            _ => {}
        }
    }
    (fetches, launches)
}

#[test]
fn an_update_runs_what_the_branch_of_its_workspace_is_when_it_was_made_or_later() {
    let world = quiet();
    let source = json!({ "git": { "url": "u", "ref": "main", "dir": "app" } });
    workspace(&world, &source);
    let written: Workspace = serde_json::from_value(world.object(&key("Workspace", "n", "w")).unwrap()).unwrap();
    let subject = written.own_source().unwrap().unwrap().fingerprint();
    fetched(&world, &subject, Ok("old"));
    world.advance(SignedDuration::from_secs(60));
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "SourceNotFetched");
    assert_eq!(asked(&world).0, ["sim/Workspace/n/w"]);

    // It is told what is wrong, and is looked at when there is a tree.
    world.advance(SignedDuration::from_secs(2));
    fetched(&world, &subject, Err("no such host"));
    let of_workspace = LaunchHint { version: VERSION, update: key("Workspace", "n", "w"), hops: 0 };
    looked(&world, &of_workspace);
    let (fetches, launches) = asked(&world);
    assert!(fetches.is_empty() && launches.contains(&"sim/Update/n/u".to_owned()), "{fetches:?} {launches:?}");
    looked(&world, &hint("u"));
    let (reason, words) = waits(&world, "u");
    assert!(reason == "SourceUnavailable" && words.contains("spec.git at main: no such host; trying again at"), "{words}");
    assert_eq!(asked(&world).0, [""; 0]);
    fetched(&world, "of another spec", Ok("other"));
    looked(&world, &hint("u"));
    assert_eq!((waits(&world, "u").0.as_str(), asked(&world).0.len()), ("SourceNotFetched", 1));
    fetched(&world, &subject, Ok("new"));
    looked(&world, &of_workspace);
    assert_eq!(asked(&world).1, ["sim/Update/n/u"]);
    looked(&world, &hint("u"));
    assert_eq!(world.live_tasks().len(), 1);
    let ours = update(&world, "u").spec.driftless.unwrap();
    let tree = ours.tree.unwrap();
    assert_eq!(
        (ours.commit.as_deref(), tree.digest.as_deref(), tree.dir.as_deref()),
        (Some("new"), Some("sha1:new"), Some("app"))
    );
    assert_eq!(ours.workspace.unwrap().get("git"), None);

    // It stays what it is.
    fetched(&world, &subject, Ok("newer"));
    looked(&world, &hint("u"));
    assert_eq!(update(&world, "u").spec.driftless.unwrap().commit.as_deref(), Some("new"));
    looked(&world, &of_workspace);
    assert_eq!(asked(&world).1, [""; 0], "nobody waits");
}

#[test]
fn an_update_may_say_how_long_it_may_take() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let object = world.object(&key("Update", "n", "u")).unwrap();
    let annotated = json!({ "metadata": { "annotations": { names::MAX_DURATION: "1h30m" } } });
    insert(&world, &key("Update", "n", "u"), &driftless_api::merge(object, &annotated));
    looked(&world, &hint("u"));
    assert_eq!(spec(&world).limits, RunLimits { silence_seconds: Some(900), max_seconds: Some(5400) });
}

#[test]
fn a_running_update_that_is_deleted_is_stopped() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    received(&world);
    let running = update(&world, "u");
    world.drive(Cluster::delete(&world, &running)).unwrap().unwrap();
    looked(&world, &hint("u"));
    assert!(world.live_tasks().iter().all(|task| task.stopping));
    assert!(tells_recorder_of(&received(&world), "u"));
}

#[test]
fn tokens_are_replaced_at_half_their_life_while_the_task_lives() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    let first = identity(&world);
    world.advance(SignedDuration::from_mins(29));
    looked(&world, &hint("u"));
    assert!(identity(&world) == first);
    world.advance(SignedDuration::from_mins(1));
    looked(&world, &hint("u"));
    let second = identity(&world);
    assert!(second.cluster.token != first.cluster.token && second.expires_at == world.now() + SignedDuration::from_hours(1));

    world.advance(SignedDuration::from_mins(30));
    let before = world.objects();
    world.end_task(&world.live_tasks()[0].arn, "done");
    looked(&world, &hint("u"));
    assert_eq!(world.objects(), before);
}

#[test]
fn each_look_that_waits_is_counted_and_a_start_once_with_how_long_it_took() {
    let world = quiet();
    let spec = json!({ "workspaceName": "w", "stackName": "u", "type": "up" });
    let created = json!({ "creationTimestamp": world.now().to_string() });
    insert(&world, &key("Update", "n", "u"), &json!({ "metadata": created, "spec": spec }));
    let ((), lines) = emf::written(|| looked(&world, &hint("u")));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (reason, _) = waits(&world, "u");
    let of = |line: &Value, names: [&str; 3]| names.map(|name| line[name].clone());
    assert_eq!(of(&lines[0], ["cluster", "reason", "Waits"]), [json!(CLUSTER), json!(reason), json!(1.0)]);
    workspace(&world, &project());
    world.advance(SignedDuration::from_secs(90));
    let ((), lines) = emf::written(|| {
        looked(&world, &hint("u"));
        looked(&world, &hint("u"));
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let name = key("Update", "n", "u").to_string();
    assert_eq!(of(&lines[0], ["cluster", "update", "StartDelay"]), [json!(CLUSTER), json!(name), json!(90.0)]);
    let launch: Launch = from_json("launch", &world.objects()[&format!("{}launch", keys::run(CLUSTER, "uid-u"))]).unwrap();
    assert_eq!(launch.size, Some(TaskSize { cpu: 512, memory_mib: 1024 }));
}

#[test]
fn a_launch_that_ecs_refuses_is_another_request_the_next_time() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    for _ in 0..2 {
        looked(&world, &hint("u"));
        let (reason, words) = waits(&world, "u");
        assert_eq!(reason, "TaskNotStarted");
        assert!(words.contains("Capacity is unavailable"), "{words}");
    }
    world.set_faults(Faults::NONE);
    looked(&world, &hint("u"));
    assert_eq!(world.live_tasks().len(), 1);
}

#[test]
fn what_changes_nothing_is_on_spot_unless_somebody_says_otherwise() {
    let check = json!({ "type": "refresh", "driftless": { "previewOnly": true, "workspace": project() } });
    for (spec, capacity, allowed, spot) in [
        (json!({ "type": "preview" }), None, true, true),
        (check.clone(), None, true, true),
        (json!({ "type": "up" }), None, true, false),
        (json!({ "type": "refresh" }), None, true, false),
        (json!({ "type": "destroy" }), Some(names::SPOT), true, true),
        (check, Some(names::ON_DEMAND), true, false),
        (json!({ "type": "preview" }), Some(names::SPOT), false, false),
    ] {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &spec);
        let object = world.object(&key("Update", "n", "u")).unwrap();
        let annotated = json!({ "metadata": { "annotations": { names::CAPACITY: capacity } } });
        insert(&world, &key("Update", "n", "u"), &driftless_api::merge(object, &annotated));
        look_with(&world, &Settings { spot: allowed, ..settings() }, &hint("u"));
        let live: Vec<_> = world.live_tasks().iter().map(|task| task.spot).collect();
        assert_eq!(live, [spot], "{spec} {capacity:?}");
    }
}

#[test]
fn what_finds_no_capacity_on_spot_is_tried_on_demand() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({ "type": "preview" }));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    looked(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "TaskNotStarted");
    world.set_faults(Faults::NONE);
    looked(&world, &hint("u"));
    assert!(matches!(&world.live_tasks()[..], [task] if !task.spot));

    // A record of the former release says nothing of it.
    let key = format!("{}launch", keys::run(CLUSTER, "uid-u"));
    let mut written: Value = serde_json::from_slice(&world.objects()[&key]).unwrap();
    assert_eq!(written.as_object_mut().unwrap().remove("spot"), Some(json!(true)));
    let launch: Launch = from_json("launch", written.to_string().as_bytes()).unwrap();
    assert!(!Launch { attempt: 0, ..launch }.is_on_spot());
}

#[test]
fn a_run_is_told_how_many_resources_the_last_one_left() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    assert_eq!(spec(&world).resources, None);

    let claim = spec(&world).run.claim;
    let left = to_json(&Resources { version: VERSION, count: 6 });
    let world = quiet();
    world.drive(world.put(&keys::resources(CLUSTER, &claim), left.into())).unwrap().unwrap();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    assert_eq!(spec(&world).resources, Some(6));
}

/// A Stack and its Update, with that status.
fn of_stack(world: &World, namespace: &str, operation: &str, status: &Value) {
    let current = json!({ "currentUpdate": { "name": "u" } });
    insert(world, &key("Stack", "n", "s"), &json!({ "spec": { "stack": "dev" }, "status": current }));
    let stack = json!({ "namespace": "n", "name": "s", "uid": "uid-s" });
    let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "uid-s" });
    let owners = if namespace == "n" { json!([owner]) } else { json!([]) };
    let ours = json!({ "stackGeneration": 1, "commit": "c", "workspace": project(), "stack": stack });
    let spec = json!({ "stackName": "dev", "type": operation, "driftless": ours });
    let more = json!({ "metadata": { "ownerReferences": owners }, "spec": spec, "status": status });
    insert(world, &key("Update", namespace, "u"), &more);
}

fn complete() -> Value {
    let at = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, is: &str| json!({ "type": kind, "status": is, "reason": "Updated", "message": "", "lastTransitionTime": at });
    json!({ "conditions": [condition("Progressing", "False"), condition("Failed", "False"), condition("Complete", "True")] })
}

#[test]
fn an_update_that_cannot_begin_gives_way_to_what_its_stack_says_now() {
    for (generation, given_up) in [(1, false), (2, true)] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["spec"]["driftless"]["workspace"]["envFrom"] = json!([{ "secretRef": { "name": "missing" } }]);
        world.insert(written);
        let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
        stack["metadata"]["generation"] = json!(generation);
        world.insert(stack);
        looked(&world, &hint("u"));
        let owner = world.drive(world.exists(&format!("{}owner", keys::run(CLUSTER, &update(&world, "u").uid().unwrap()))));
        assert_eq!(owner.unwrap().unwrap(), given_up, "{generation}");
        assert!(world.live_tasks().is_empty());
    }
    // It begins if it can: what it runs is not wrong.
    let world = quiet();
    of_stack(&world, "n", "up", &json!({}));
    let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
    stack["metadata"]["generation"] = json!(2);
    world.insert(stack);
    looked(&world, &hint("u"));
    assert!(inbox(&world).contains_key("spec"));
}

#[test]
fn an_update_of_a_suspended_stack_that_has_not_begun_waits() {
    for suspend in [
        json!({ "metadata": { "annotations": { names::SUSPEND: "true" } } }),
        json!({ "spec": { "driftless": { "suspend": true } } }),
    ] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let stack = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_api::merge(stack.clone(), &suspend));
        looked(&world, &hint("u"));
        assert_eq!(waits(&world, "u").0, "StackSuspended");
        assert!(world.live_tasks().is_empty());
        world.insert(stack);
        looked(&world, &hint("u"));
        assert_eq!(world.live_tasks().len(), 1);
        // One that has begun goes on.
        let resumed = world.object(&key("Stack", "n", "s")).unwrap();
        world.insert(driftless_api::merge(resumed, &suspend));
        looked(&world, &hint("u"));
        assert!(world.live_tasks().iter().all(|task| !task.stopping));
        assert_eq!(waits(&world, "u").0, "");
    }
}

#[test]
fn an_update_that_looks_for_drift_gives_way_to_one_that_does_not() {
    let check = |world: &World| {
        of_stack(world, "n", "refresh", &json!({}));
        let mut update = world.object(&key("Update", "n", "u")).unwrap();
        update["spec"]["driftless"]["previewOnly"] = json!(true);
        world.insert(update);
        let drift = json!({ "status": { "currentUpdate": null, "driftless": { "drift": { "currentCheck": "u" } } } });
        world.insert(driftless_api::merge(world.object(&key("Stack", "n", "s")).unwrap(), &drift));
        workspace(world, &project());
        by_hand(world, "up", &json!({ "stackName": "dev" }));
    };
    // It runs: its task is told to stop.
    let world = quiet();
    check(&world);
    looked(&world, &hint("u"));
    assert!(spec(&world).preview_only);
    looked(&world, &hint("up"));
    assert_eq!(waits(&world, "up").0, names::STACK_CLAIMED);
    assert!(matches!(&world.live_tasks()[..], [task] if task.stopping));
    assert!(tells_recorder_of(&received(&world), "u"));

    // It waits for capacity: it never begins.
    let world = quiet();
    check(&world);
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    looked(&world, &hint("u"));
    world.set_faults(Faults::NONE);
    looked(&world, &hint("up"));
    looked(&world, &hint("u"));
    assert!(world.live_tasks().is_empty());
    assert!(tells_recorder_of(&received(&world), "u"));

    // The other way round it waits.
    let world = quiet();
    check(&world);
    looked(&world, &hint("up"));
    looked(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, names::STACK_CLAIMED);
    assert!(matches!(&world.live_tasks()[..], [task] if !task.stopping));
}

#[test]
fn what_an_updates_status_says_stops_no_launch_of_ours() {
    let world = quiet();
    let forged = driftless_api::merge(complete(), &json!({ "driftless": { "task": "arn:aws:ecs:r:1:task/c/neighbour" } }));
    of_stack(&world, "n", "up", &forged);
    looked(&world, &hint("u"));
    assert!(inbox(&world).contains_key("spec"));
    assert!(!update(&world, "u").is_complete());

    // One that a user made and that began is ours as well.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    looked(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = forged;
    world.insert(written);
    looked(&world, &hint("u"));
    let task = update(&world, "u").status.unwrap().driftless.unwrap().task;
    assert_eq!(task, Some(world.live_tasks().remove(0).arn));

    // One that waits is not over either: nothing else would take our finalizer off it.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    by_hand(&world, "u", &json!({ "stackName": "a" }));
    looked(&world, &hint("a"));
    looked(&world, &hint("u"));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written);
    looked(&world, &hint("u"));
    assert_eq!((waits(&world, "u").0.as_str(), update(&world, "u").is_complete()), ("StackClaimed", false));

    // Another operator's is over.
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let mut written = world.object(&key("Update", "n", "u")).unwrap();
    written["status"] = complete();
    world.insert(written.clone());
    looked(&world, &hint("u"));
    assert!(world.live_tasks().is_empty() && world.objects().is_empty() && update(&world, "u").is_complete());
}

#[test]
fn a_destroy_in_a_terminating_namespace_goes_on_without_an_identity() {
    let world = quiet();
    world.terminate_namespace("n");
    of_stack(&world, "driftless", "destroy", &json!({}));
    looked(&world, &LaunchHint { update: key("Update", "driftless", "u"), ..hint("u") });
    let spec = spec(&world);
    assert!(!spec.identity && !inbox(&world).contains_key("identity"));
    let [event] = &world.events()[..] else { panic!("{:?}", world.events()) };
    assert!(
        event.starts_with("Update driftless/u Warning NoIdentity: ") && event.contains("ServiceAccount \"default\" is not there"),
        "{event}"
    );
}

fn admissions(world: &World) -> Admissions {
    let lease: Option<Lease> = world.drive(Cluster::get(world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
    serde_json::from_str(&lease.unwrap().annotations()[keys::ADMISSIONS_ANNOTATION]).unwrap()
}

#[test]
fn no_more_runs_than_may_go_on_are_started_and_who_waits_holds_no_claim() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "a", &json!({}));
    by_hand(&world, "b", &json!({ "stackName": "a" }));
    by_hand(&world, "c", &json!({}));
    let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
    look_with(&world, &limited, &hint("a"));
    look_with(&world, &limited, &hint("b"));
    assert_eq!(waits(&world, "b").0, "StackClaimed");
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-a"]);
    assert!(admissions(&world).waiting.is_empty(), "one that waits for its claim takes up no place");
    received(&world);
    let leases = |world: &World| world.cluster().into_iter().filter(|object| object["kind"] == "Lease").count();
    let before = leases(&world);
    for _ in 0..2 {
        look_with(&world, &limited, &hint("c"));
    }
    let (reason, words) = waits(&world, "c");
    assert_eq!(reason, "ConcurrencyLimit");
    assert!(words.starts_with("1 of at most 1 runs are under way"), "{words}");
    assert_eq!((leases(&world), world.live_tasks().len()), (before, 1));
    assert!(tells_recorder_of(&received(&world), "a"), "its place may be one that was not given back");

    let lease = world.drive(Cluster::get::<Lease>(&world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
    let (mut lease, mut all) = (lease.unwrap(), admissions(&world));
    assert!(all.release("uid-a"));
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), to_json(&all));
    world.drive(world.replace(&lease)).unwrap().unwrap();
    look_with(&world, &limited, &hint("c"));
    assert_eq!(world.live_tasks().len(), 2);
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-c"]);

    // A list that cannot be read is begun anew.
    let mut lease = world.drive(Cluster::get::<Lease>(&world, "driftless", keys::ADMISSIONS)).unwrap().unwrap().unwrap();
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), "{ not JSON".into());
    world.drive(world.replace(&lease)).unwrap().unwrap();
    by_hand(&world, "d", &json!({}));
    look_with(&world, &limited, &hint("d"));
    assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-d"]);
}

/// The label of the namespace from now on.
fn label(world: &World, watch: &str) {
    world.label_namespace("n", watch);
}

#[test]
fn what_is_in_another_operators_namespace_is_not_touched() {
    let world = quiet();
    label(&world, "false");
    insert(
        &world,
        &key("Stack", "n", "s"),
        &json!({ "spec": { "stack": "dev" }, "status": { "currentUpdate": { "name": "theirs" } } }),
    );
    let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "uid-s" });
    let spec = json!({ "workspaceName": "w", "stackName": "dev", "type": "up" });
    insert(&world, &key("Update", "n", "theirs"), &json!({ "metadata": { "ownerReferences": [owner] }, "spec": spec }));
    workspace(&world, &json!({ "git": { "url": "u" } }));
    by_hand(&world, "u", &json!({}));
    world.advance(ABANDONED_AFTER * 2);
    let before = world.cluster();
    for object in [key("Stack", "n", "s"), key("Workspace", "n", "w"), key("Update", "n", "theirs"), key("Update", "n", "u")] {
        looked(&world, &LaunchHint { version: VERSION, update: object, hops: 0 });
    }
    assert_eq!((world.cluster(), world.events()), (before, vec![]));
    assert!(world.objects().is_empty() && received(&world).is_empty() && world.live_tasks().is_empty());

    label(&world, "true");
    looked(&world, &LaunchHint { version: VERSION, update: key("Update", "n", "theirs"), hops: 0 });
    assert!(tells_recorder_of(&received(&world), "theirs"), "now it is ours to end");
}

#[test]
fn what_began_while_a_namespace_was_ours_ends_and_nothing_else_begins() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "running", &json!({}));
    looked(&world, &hint("running"));
    by_hand(&world, "refused", &json!({}));
    world.set_faults(Faults { full: 1000, ..Faults::NONE });
    looked(&world, &hint("refused"));
    world.set_faults(Faults::NONE);
    received(&world);
    by_hand(&world, "new", &json!({}));
    label(&world, "false");
    for name in ["running", "refused", "new"] {
        looked(&world, &hint(name));
        // The recorder gives back what it held.
        assert_eq!(tells_recorder_of(&received(&world), name), name != "new", "{name}");
    }
    let owner = |name: &str| world.objects().get(&format!("{}owner", keys::run(CLUSTER, &format!("uid-{name}")))).cloned();
    let task = |name: &str| owner(name).map(|owner| from_json::<Owner>("owner", &owner).unwrap().task);
    assert!(matches!((task("running"), task("refused"), task("new")), (Some(Some(_)), Some(None), None)));
    assert_eq!(world.live_tasks().len(), 1);
    let update = update(&world, "running");
    world.drive(Cluster::delete(&world, &update)).unwrap().unwrap();
    looked(&world, &hint("running"));
    assert!(world.live_tasks()[0].stopping);
}

#[test]
fn a_destroy_for_a_terminating_namespace_is_begun_only_where_that_is_ours() {
    for (watch, tasks) in [("false", 0), ("true", 1)] {
        let world = quiet();
        of_stack(&world, "driftless", "destroy", &json!({}));
        label(&world, watch);
        looked(&world, &LaunchHint { version: VERSION, update: key("Update", "driftless", "u"), hops: 0 });
        assert_eq!(world.live_tasks().len(), tasks, "{watch}");
    }
}
