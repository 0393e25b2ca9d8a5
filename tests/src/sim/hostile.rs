//! The hostile tenant: it writes anything that the API server accepts into its own namespace.
//! `runner.rs` has the behaviour of its tasks.

use driftless_api::{Update, Workspace, names};
use driftless_kubernetes::Cluster as _;
use driftless_testkit::World;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::objects::{
    HOSTILE, NAMESPACE, QUIET, REPOSITORY, STACK, STACK_KIND, UPDATE_KIND, delete_in, edit, edit_marker, key_in, list,
    raise_generation,
};

const WORKSPACE_KIND: (&str, &str) = ("auto.pulumi.com/v1alpha1", "Workspace");

/// A write of the hostile tenant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attack {
    /// A new Update that claims to be of the quiet Stack.
    MakeUpdate,
    /// Its own Stack's spec, which leads to another run.
    EditStack,
    /// Its own Stack's status: a copy of the quiet Stack's, or none.
    ForgeStack,
    /// The status of one of its Updates: complete or running, with a task of the quiet namespace.
    ForgeUpdate,
    /// The owner of one of its Updates.
    ForgeOwner,
    /// The spec of one of its Updates. The API server refuses the change after the launch; the
    /// simulation does not.
    EditUpdate,
    RemoveFinalizers,
    DeleteUpdate,
    /// A Workspace: a new one, or another owner, shape or source for one that is there.
    PutWorkspace,
    DeleteWorkspace,
    /// Annotations and labels of its Stack or of one of its Updates.
    Annotate,
    /// Ends the drift checks of its Stack, without which the simulation would never come to rest.
    Unwatch,
}

impl Attack {
    pub(super) const ALL: [Self; 14] = [
        Self::MakeUpdate,
        Self::MakeUpdate,
        Self::MakeUpdate,
        Self::EditStack,
        Self::ForgeStack,
        Self::ForgeUpdate,
        Self::ForgeOwner,
        Self::EditUpdate,
        Self::RemoveFinalizers,
        Self::DeleteUpdate,
        Self::PutWorkspace,
        Self::DeleteWorkspace,
        Self::Annotate,
        Self::Annotate,
    ];
}

/// Carries out an attack. The tenant knows every name and uid of the quiet namespace and writes to
/// its own namespace only.
pub(super) fn attack(attack: Attack, choice: u32, world: &World) {
    let victim = world.object(&key_in(QUIET, STACK_KIND, STACK)).unwrap_or_default();
    let own = key_in(HOSTILE, STACK_KIND, STACK);
    let updates: Vec<Update> = list(world, Some(HOSTILE));
    let update = updates.get(choice as usize % updates.len().max(1));
    let name = update.map(ResourceExt::name_any).unwrap_or_default();
    let update_key = key_in(HOSTILE, UPDATE_KIND, &name);
    match attack {
        Attack::MakeUpdate => make_update(choice, &victim, world),
        Attack::EditStack => edit(world, &own, edit_marker),
        Attack::ForgeStack => edit(world, &own, |stack| {
            stack["status"] = if choice.is_multiple_of(3) { Value::Null } else { victim["status"].clone() };
            if choice % 3 == 1 && update.is_some() {
                stack["status"]["currentUpdate"]["name"] = json!(name);
            }
        }),
        Attack::ForgeUpdate => {
            let Some(mut update) = update.cloned() else { return };
            let task = world.live_tasks().into_iter().find(|task| task.run.update.namespace == QUIET);
            let task = task.map_or_else(|| "arn:aws:ecs:eu-west-1:000000000000:task/driftless/none".into(), |task| task.arn);
            if choice.is_multiple_of(3) {
                update.set_running(&task, "https://example.com", None, world.now());
            } else {
                update.set_complete(None, world.now(), |status| status.driftless.get_or_insert_default().task = Some(task));
            }
            // Calls never fail in a calm world.
            let _: Option<_> = world.drive(world.replace_status(&update));
        }
        Attack::ForgeOwner => edit(world, &update_key, |update| {
            update["metadata"]["ownerReferences"] = owner(choice, &victim, world);
        }),
        Attack::EditUpdate => edit(world, &update_key, destroy_without_inputs),
        Attack::RemoveFinalizers => {
            let key = if choice.is_multiple_of(4) { own } else { update_key };
            if let Some(mut object) = world.object(&key) {
                object["metadata"]["finalizers"] = Value::Null;
                world.insert(object);
            }
        }
        Attack::DeleteUpdate => delete_in::<Update>(world, HOSTILE, &name),
        Attack::PutWorkspace => put_workspace(choice, &victim, world),
        Attack::DeleteWorkspace => delete_in::<Workspace>(world, HOSTILE, &workspace_name(choice, &victim)),
        Attack::Annotate => {
            let (key, marks) = (if choice.is_multiple_of(2) { own } else { update_key }, marks(&victim));
            edit(world, &key, |object| {
                for choice in [choice / 2, choice / 32] {
                    let (field, name, value) = &marks[choice as usize % marks.len()];
                    object["metadata"][*field][*name] = json!(value);
                }
            });
        }
        Attack::Unwatch => edit(world, &own, |stack| {
            if let Some(annotations) = stack["metadata"]["annotations"].as_object_mut() {
                annotations.remove(names::DRIFT_SCHEDULE);
            }
        }),
    }
}

/// The metadata that the tenant writes into its objects: everything that has a meaning for the
/// functions, and the names of the quiet namespace.
fn marks(victim: &Value) -> [(&'static str, &'static str, String); 19] {
    let theirs = run_of(victim).unwrap_or(STACK);
    [
        ("annotations", names::RECONCILIATION_REQUEST, theirs.into()),
        ("annotations", names::PATHS, format!("../{QUIET}")),
        ("annotations", names::INPUTS, names::IGNORE.into()),
        ("annotations", names::SEAL, names::NEVER.into()),
        ("annotations", names::SUSPEND, "true".into()),
        ("annotations", names::SUSPEND, "false".into()),
        ("annotations", names::DRIFT_SCHEDULE, "1m".into()),
        ("annotations", names::DRIFT_SCHEDULE, "daily".into()),
        ("annotations", names::REMEDIATE, names::ALWAYS.into()),
        ("annotations", names::REMEDIATE, theirs.into()),
        ("annotations", names::MAX_DURATION, "1s".into()),
        ("annotations", names::MAX_DURATION, "for ever".into()),
        ("annotations", names::CAPACITY, names::SPOT.into()),
        ("annotations", names::CAPACITY, QUIET.into()),
        ("annotations", names::UPDATE, format!("{QUIET}/{theirs}")),
        ("labels", names::COMPONENT, QUIET.into()),
        ("labels", names::DRIFT_CHECK, "true".into()),
        ("labels", names::STACK_NAME, STACK.into()),
        ("labels", names::STACK_NAMESPACE, QUIET.into()),
    ]
}

/// Turns an Update whose task waits for its spec into a destroy of the quiet Stack that cannot read
/// its inputs: a launcher that trusts the Update gives the task the quiet Stack's sealed inputs.
pub(super) fn ambush(update: &str, choice: u64, world: &World) {
    let victim = world.object(&key_in(QUIET, STACK_KIND, STACK)).unwrap_or_default();
    edit(world, &key_in(HOSTILE, UPDATE_KIND, update), |update| {
        update["metadata"]["ownerReferences"] = owner(if choice.is_multiple_of(2) { 1 } else { 2 }, &victim, world);
        destroy_without_inputs(update);
    });
}

fn destroy_without_inputs(update: &mut Value) {
    raise_generation(update);
    update["spec"]["type"] = json!("destroy");
    update["spec"]["driftless"]["workspace"] = workspace("gone");
}

/// The owner of an Update: none, the quiet Stack with a wrong or the right group, or the tenant's
/// own Stack.
fn owner(choice: u32, victim: &Value, world: &World) -> Value {
    let own = world.object(&key_in(HOSTILE, STACK_KIND, STACK)).unwrap_or_default();
    let (api_version, stack) = match choice % 4 {
        0 => return Value::Null,
        1 => ("no.such/v1", victim),
        2 => (STACK_KIND.0, victim),
        _ => (STACK_KIND.0, &own),
    };
    let uid = stack["metadata"]["uid"].as_str().unwrap_or("none");
    json!([{ "apiVersion": api_version, "kind": STACK_KIND.1, "name": STACK, "uid": uid }])
}

/// A workspace that reads a Secret.
fn workspace(secret: &str) -> Value {
    let env = json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": secret, "key": "password" } } }]);
    json!({ "projectInfo": { "name": "p", "runtime": "yaml" }, "env": env })
}

/// The name of the quiet Stack's run.
fn run_of(victim: &Value) -> Option<&str> {
    ["currentUpdate", "lastUpdate"].into_iter().find_map(|field| victim["status"][field]["name"].as_str())
}

/// The name of a Workspace: that of either tenant's Stack, that of the quiet Stack's run, or
/// another one.
fn workspace_name(choice: u32, victim: &Value) -> String {
    match choice % 4 {
        0 | 1 => STACK.into(),
        2 => run_of(victim).unwrap_or("w").into(),
        _ => "w".into(),
    }
}

fn put_workspace(choice: u32, victim: &Value, world: &World) {
    let key = key_in(HOSTILE, WORKSPACE_KIND, &workspace_name(choice, victim));
    let new =
        || json!({ "apiVersion": key.api_version, "kind": key.kind, "metadata": { "namespace": HOSTILE, "name": key.name } });
    let mut object = world.object(&key).unwrap_or_else(new);
    let artifact = world.object(&key_in(NAMESPACE, (REPOSITORY.0, REPOSITORY.1), REPOSITORY.2)).unwrap_or_default();
    let artifact = &artifact["status"]["artifact"];
    let update = world.object(&key_in(QUIET, UPDATE_KIND, run_of(victim).unwrap_or_default())).unwrap_or_default();
    object["spec"] = match choice / 4 % 6 {
        0 => workspace("db"),
        1 => workspace("gone"),
        2 => {
            json!({ "resources": { "limits": { "cpu": "4", "memory": "8Gi" } }, "projectInfo": { "name": "p", "runtime": "yaml" } })
        }
        3 => json!({ "resources": { "limits": { "cpu": "4000" } } }),
        // The source of another namespace, by its URL and by its tree.
        4 => json!({ "flux": { "url": artifact["url"], "digest": artifact["digest"] } }),
        _ => json!({ "driftless": { "tree": update["spec"]["driftless"]["tree"] } }),
    };
    raise_generation(&mut object);
    object["metadata"]["ownerReferences"] = owner(choice / 24, victim, world);
    object["metadata"]["labels"] = json!({ names::STACK_NAME: STACK, names::STACK_NAMESPACE: QUIET });
    world.insert(object);
}

fn make_update(choice: u32, victim: &Value, world: &World) {
    // The name of the quiet Stack's run, or another one.
    let name = run_of(victim).filter(|_| choice.is_multiple_of(3)).map_or_else(|| format!("u{choice}"), Into::into);
    let key = key_in(HOSTILE, UPDATE_KIND, &name);
    if world.object(&key).is_some() {
        return;
    }
    let driftless = json!({
        "commit": "1",
        "reconcileRequest": "",
        "seal": true,
        "stack": { "name": STACK, "namespace": QUIET, "uid": victim["metadata"]["uid"].as_str().unwrap_or_default() },
        "stackGeneration": 1,
        "workspace": workspace(if choice.is_multiple_of(2) { "gone" } else { "db" }),
    });
    // Without a snapshot, the Update runs in the Workspace as the tenant wrote it.
    let driftless = if choice % 7 < 2 { Value::Null } else { driftless };
    let operation = ["up", "destroy", "destroy", "refresh"][choice as usize / 4 % 4];
    world.insert(json!({
        "apiVersion": key.api_version,
        "kind": key.kind,
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "annotations": { names::MAX_DURATION: "8760h" },
            "finalizers": if choice.is_multiple_of(5) { Value::Null } else { json!([names::FINALIZER]) },
            "labels": { names::STACK_NAMESPACE: QUIET },
            "ownerReferences": owner(choice / 16, victim, world),
        },
        "spec": { "type": operation, "stackName": "quiet", "workspaceName": STACK, "driftless": driftless },
    }));
}
