//! The scenarios: their start, their users' actions, and their end.

use std::{iter, rc::Rc};

use driftless_api::{Stack, Update, finalizer, uid_of};
use driftless_contract::{Hint, LaunchHint, ObjectKey, Uid, VERSION, keys};
use driftless_core::{Admissions, Limits, Readiness, Stack as CoreStack};
use driftless_kubernetes::{Cluster, Object, Pages, Selector};
use driftless_source::{Digest, Manifest, Tree};
use driftless_testkit::{CLUSTER, Faults, Message, World};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    Bounds, Breakage, Case,
    outside::{get, get_object, put},
    ports::Rules,
    state::State,
};
use crate::scenario::SYSTEM;

const NAMESPACE: &str = "team";
const STACK: &str = "a";
const BY_HAND: &str = "by-hand";
const UPDATE: (&str, &str) = ("auto.pulumi.com/v1alpha1", "Update");

/// The name of a user's action, and the forwarder's hint for it.
type User = (&'static str, fn(&World) -> Option<Hint>);

/// See the module.
pub(super) struct Scenario {
    pub(super) rules: Rc<Rules>,
    pub(super) limits: Limits,
    /// Hints go to the reconciler; else they are lost.
    pub(super) reconciles: bool,
    pub(super) users: &'static [User],
}

impl Scenario {
    /// A scenario and its first state.
    pub(super) fn of(case: Case, left: Bounds, breakage: Option<Breakage>) -> (Self, State) {
        let reconciles = matches!(case, Case::Finalize | Case::Successor);
        let users: &[User] = match case {
            Case::Launch | Case::Claim | Case::Limit => &[],
            Case::Finalize => &[("deletes the Stack", delete_stack)],
            Case::Successor => &[("edits the Stack", edit_stack)],
        };
        let constant_kinds: &[&str] = if reconciles { &[] } else { &["Stack", "Workspace"] };
        let limits = Limits { runs: (case == Case::Limit).then_some(1), runs_per_namespace: None };
        let scenario = Self { rules: Rc::new(Rules { breakage, constant_kinds }), limits, reconciles, users };

        // The steps before the scenario starts.
        let before = Self { rules: Rc::new(Rules { breakage: None, constant_kinds: &[] }), limits, reconciles: true, users: &[] };
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

    /// The uid of the Stack, if it exists.
    pub(super) fn stack_uid(world: &World) -> Option<Uid> {
        world.object(&stack_key()).and_then(|stack| Some(stack["metadata"]["uid"].as_str()?.into()))
    }

    /// Names an object that is not in its final state.
    pub(super) fn unrest(&self, state: &State) -> Option<String> {
        let world = &state.world;
        for update in list::<Update>(world) {
            let name = update.name_any();
            let outcome = format!("{}outcome", keys::run(CLUSTER, &uid_of(&update)));
            if !update.is_complete() || get(world, &outcome).is_none() {
                return Some(format!("Update {name} has not ended"));
            }
            if finalizer::is_on(&update) && (self.reconciles || name == BY_HAND) {
                return Some(format!("Update {name} keeps its finalizer"));
            }
        }
        for lease in list::<Lease>(world) {
            let written = lease.annotations().values().next().map_or("", String::as_str);
            let is_used = |admissions: Admissions| !admissions.running.is_empty();
            let is_free = lease.name_any() == keys::ADMISSIONS && !serde_json::from_str(written).is_ok_and(is_used);
            if !is_free {
                return Some(format!("Lease {} is held: {written}", lease.name_any()));
            }
        }
        let is_left = |key: &&String| ["/in/spec", "/in/identity", "/out/result"].iter().any(|end| key.ends_with(end));
        if let Some(left) = world.objects().keys().find(is_left) {
            return Some(format!("{left} is left"));
        }
        let stack = get_object::<Stack>(world, &stack_key()).filter(|_| self.reconciles)?;
        let uid = uid_of(&stack);
        let CoreStack { status, deleting, generation, .. } = CoreStack::from(&stack);
        let is_ready = status.readiness == Some(Readiness::Ready) && status.current_update.is_none();
        let ran = state.ledger.ran(&uid);
        (deleting || !is_ready || ran != Some(generation)).then(|| format!("Stack is at {generation}, ran {ran:?}: {status:?}"))
    }
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

fn stack_key() -> ObjectKey {
    key("pulumi.com/v1", "Stack", NAMESPACE, STACK)
}

pub(super) fn key(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectKey {
    let [cluster, api_version, kind, namespace, name] = [CLUSTER, api_version, kind, namespace, name].map(String::from);
    ObjectKey { cluster, api_version, kind, namespace, name }
}

/// All objects of a kind.
pub(super) fn list<K: Object>(world: &World) -> Vec<K> {
    let mut pages = Pages::new(world, None, Selector::All);
    iter::from_fn(|| world.drive(pages.next())?.ok()?).flatten().collect()
}
