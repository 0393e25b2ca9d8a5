//! Reconciliations of Updates in a world of fakes.

mod abandoned;
mod approval;
mod attacks;
mod by_hand;
mod cache;
mod capacity;
mod inputs;
mod namespaces;
mod policy_packs;
mod pull_requests;
mod running;
mod stacks;

use std::collections::BTreeMap;

use driftless_contract::{
    ConfigValue, Document as _, File, Identity, ObjectKey, RunLimits, RunMessage, RunSpec, StackId, UnfitArchitecture, to_json,
};
use driftless_core::{Architecture, DefaultSize, Limits, PodFields, WatchNamespaces};
use driftless_testkit::{CLUSTER, Faults, Message, World};
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
        images: Images::new(&[], "pulumi".into()).unwrap(),
        default_architecture: Architecture::Amd64,
        pod_fields: PodFields::Ignore,
        default_size: DefaultSize { cpu: 512, memory_mib: 1024 },
        spot: true,
        limits: Limits::default(),
        run_limits: RunLimits { silence_seconds: Some(900), max_seconds: None },
        token_seconds: 3600,
        cache_entry_bytes: Some(1 << 20),
        fresh_key: vec![7; 32].into(),
    }
}

pub(crate) fn reconcile(world: &World, hint: &LaunchHint) {
    reconcile_with(world, &settings(), hint);
}

fn reconcile_with(world: &World, settings: &Settings, hint: &LaunchHint) {
    world.drive(launcher(world, settings).handle(hint)).unwrap().unwrap();
}

/// A launcher whose ports are this world.
pub(crate) fn launcher<'a>(world: &'a World, settings: &'a Settings) -> Launcher<'a, World, World, World, World> {
    Launcher { cluster: world, objects: world, queues: world, tasks: world, settings, now: world.now() }
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
    metadata = driftless_core::merge(metadata, more.get("metadata").unwrap_or(&json!({})));
    let base = json!({ "apiVersion": key.api_version, "kind": key.kind });
    let mut object = driftless_core::merge(base, more);
    object["metadata"] = metadata;
    world.insert(object);
}

fn workspace(world: &World, spec: &Value) {
    insert(world, &key("Workspace", "n", "w"), &json!({ "spec": spec }));
}

fn project() -> Value {
    json!({ "projectInfo": { "name": "shop", "runtime": "yaml" } })
}

/// A user's Update of the stack with the same name.
fn by_hand(world: &World, name: &str, spec: &Value) {
    let base = json!({ "workspaceName": "w", "stackName": name, "type": "up" });
    insert(world, &key("Update", "n", name), &json!({ "spec": driftless_core::merge(base, spec) }));
}

fn update(world: &World, name: &str) -> Update {
    serde_json::from_value(world.object(&key("Update", "n", name)).unwrap()).unwrap()
}

/// The reason and message of its wait.
fn waits(world: &World, name: &str) -> (String, String) {
    let ours = update(world, name).status.unwrap_or_default().driftless.unwrap_or_default();
    (ours.waiting_reason.unwrap_or_default(), ours.waiting_for.unwrap_or_default())
}

/// Why an Update has no task and never will.
fn refused(world: &World, name: &str) -> String {
    let owner = &world.objects()[&format!("{}owner", keys::run(CLUSTER, &format!("uid-{name}").into()))];
    let Owner { task, refused, .. } = Owner::parse(owner).unwrap();
    assert_eq!(task, None);
    refused.unwrap()
}

/// The content of the folder of the only task.
fn task_folder(world: &World) -> BTreeMap<String, Vec<u8>> {
    let [task] = &world.live_tasks()[..] else { panic!("{:?}", world.live_tasks()) };
    let folder = format!("{}in/", keys::task("AROA", keys::task_id(&task.arn)));
    let of_task = |(key, content): (String, Vec<u8>)| Some((key.strip_prefix(&folder)?.to_owned(), content));
    world.objects().into_iter().filter_map(of_task).collect()
}

fn spec(world: &World) -> RunSpec {
    RunSpec::parse(&task_folder(world)["spec"]).unwrap()
}

fn identity(world: &World) -> Identity {
    Identity::parse(&task_folder(world)["identity"]).unwrap()
}

fn received(world: &World) -> Vec<Message> {
    std::iter::from_fn(|| world.receive()).collect()
}

fn tells_recorder_of(messages: &[Message], name: &str) -> bool {
    let is = |message: &Message| matches!(message, Message::Run(RunMessage::Hint(hint)) if hint.update.name == name);
    messages.iter().any(is)
}

/// A Stack and its Update with this status.
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
