//! The scenarios: their start, and their users' actions.

use std::rc::Rc;

use driftless_api::{Stack, Update};
use driftless_contract::{Hint, LaunchHint, VERSION, keys};
use driftless_core::Limits;
use driftless_kubernetes::Cluster;
use driftless_source::{Digest, Manifest, Tree};
use driftless_testkit::{Faults, Message, World};
use serde_json::json;

use super::{
    Bounds, Breakage, Case,
    objects::{BY_HAND, NAMESPACE, STACK, get_object, key, list, put, stack_key},
    ports::Rules,
    state::{Scenario, State, User},
};
use crate::scenario::SYSTEM;

const UPDATE: (&str, &str) = ("auto.pulumi.com/v1alpha1", "Update");

/// A scenario and its first state.
pub(super) fn start(case: Case, left: Bounds, breakage: Option<Breakage>) -> (Scenario, State) {
    let reconciles = matches!(case, Case::Finalize | Case::Successor);
    let users: &[User] = match case {
        Case::Launch | Case::Claim | Case::Limit => &[],
        Case::Finalize => &[("deletes the Stack", delete_stack)],
        Case::Successor => &[("edits the Stack", edit_stack)],
    };
    let constant_kinds: &[&str] = if reconciles { &[] } else { &["Stack"] };
    let limits = Limits { runs: (case == Case::Limit).then_some(1), runs_per_namespace: None };
    let scenario = Scenario { rules: Rc::new(Rules { breakage, constant_kinds }), limits, reconciles, users };

    // The steps before the scenario starts.
    let before = Scenario { rules: Rc::new(Rules { breakage: None, constant_kinds: &[] }), limits, reconciles: true, users: &[] };
    let world = World::new(0, Faults::NONE);
    world.number_by_subject();
    create_source(&world);
    world.insert(json!({
        "apiVersion": "pulumi.com/v1",
        "kind": "Stack",
        "metadata": { "namespace": NAMESPACE, "name": STACK },
        "spec": {
            "stack": "dev",
            "fluxSource": { "sourceRef": { "apiVersion": SOURCE.0, "kind": SOURCE.1, "name": SOURCE.2 } },
            "destroyOnFinalize": true,
        },
    }));
    let mut state = State::new(world, vec![Message::Hint(Hint::new(stack_key()))], left);
    let is_launch = |message: &Message| matches!(message, Message::Launch(hint) if hint.update.kind == "Update");
    let is_stack = |message: &Message| matches!(message, Message::Hint(hint) if hint.object.kind == "Stack");
    state.run_until(&before, |state| state.queue().iter().any(is_launch));
    if case == Case::Successor {
        let is_recorded = |state: &State| list::<Update>(&state.world).iter().all(Update::is_complete);
        state.run_until(&before, |state| is_recorded(state) && state.queue().iter().any(is_stack));
        state.forget_messages(|message| !is_stack(message));
    } else {
        state.forget_messages(|message| !is_launch(message));
    }
    match case {
        Case::Claim => create_by_hand(&mut state, "organization/p/dev", &scenario),
        Case::Limit => {
            create_by_hand(&mut state, "prod", &scenario);
            // As left by earlier runs.
            let metadata = json!({ "namespace": SYSTEM, "name": keys::ADMISSIONS });
            state.world.insert(json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata }));
        }
        Case::Launch | Case::Finalize | Case::Successor => {}
    }
    drop(state.world.written());
    (scenario, state)
}

const SOURCE: (&str, &str, &str) = ("source.toolkit.fluxcd.io/v1", "GitRepository", "shop");

/// A Flux source whose tree is stored.
fn create_source(world: &World) {
    let digest = Digest::sha256(b"archive").to_string();
    let (api_version, kind, name) = SOURCE;
    world.insert(json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "namespace": NAMESPACE, "name": name },
        "status": {
            "artifact": {
                "digest": digest,
                "lastUpdateTime": world.now().to_string(),
                "path": "gitrepository/team/shop/1.tar.gz",
                "revision": "main@sha1:1",
                "url": "http://source-controller.flux-system.svc.cluster.local./gitrepository/team/shop/1.tar.gz",
            },
        },
    }));
    let content = "name: p\nruntime: yaml\n";
    let mut spool = Vec::new();
    // A file of this size exceeds no limit.
    if let Ok(tree) = Tree::from_files([("Pulumi.yaml", content.as_bytes())], &mut spool) {
        let folder = keys::tree(&key(api_version, kind, NAMESPACE, name), &digest.as_str().into());
        put(world, &format!("{folder}manifest"), String::from_utf8_lossy(&Manifest::of(&tree).to_bytes()).into());
        put(world, &format!("{folder}pack"), content.into());
    }
}

/// A user's Update, in the Workspace of the Stack.
fn create_by_hand(state: &mut State, pulumi_stack: &str, scenario: &Scenario) {
    state.world.insert(json!({
        "apiVersion": UPDATE.0,
        "kind": UPDATE.1,
        "metadata": { "namespace": NAMESPACE, "name": BY_HAND },
        "spec": { "type": "up", "stackName": pulumi_stack, "workspaceName": STACK },
    }));
    let update = key(UPDATE.0, UPDATE.1, NAMESPACE, BY_HAND);
    state.send(Message::Launch(LaunchHint { version: VERSION, update, hops: 0 }), scenario);
}

fn delete_stack(world: &World) -> Option<Hint> {
    let stack = get_object::<Stack>(world, &stack_key())?;
    // Calls never fail in this world, and the object was not written in between.
    _ = world.drive(Cluster::delete(world, &stack));
    Some(Hint::new(stack_key()))
}

fn edit_stack(world: &World) -> Option<Hint> {
    let mut stack = world.object(&stack_key())?;
    stack["metadata"]["generation"] = json!(stack["metadata"]["generation"].as_i64()? + 1);
    stack["spec"]["config"] = json!({ "p:marker": "2" });
    world.insert(stack);
    Some(Hint::new(stack_key()))
}
