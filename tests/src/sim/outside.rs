//! The outside world: users, Flux, the API server's own controllers, and the senders of hints.

use std::{collections::HashMap, io::Write as _, rc::Rc};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use driftless_api::{Program, Source, Stack, Tree, Update, Workspace, finalizer, names, uid_of};
use driftless_contract::{Hint, ObjectKey, keys};
use driftless_core::{LastUpdateState, PlanState, Proposal, Readiness, Stack as CoreStack, StackReason};
use driftless_kubernetes::Cluster as _;
use driftless_source::Digest;
use driftless_testkit::World;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    approvals,
    hostile::{self, Attack},
    ledger::Ledger,
    objects::{
        CANARY, Field, GUARDED, NAMESPACE, PROGRAM, QUIET, QUIET_STACK, REPOSITORY, SECRET, STACK, STACK_KIND, STACKS, annotate,
        delete, delete_in, edit, edit_marker, get, get_in, key, key_in, raise_generation, stack_key,
    },
    script::Action,
};

/// The Service that serves archives, by the name in the fetcher's settings.
pub(super) const SERVICE: &str = "source-controller.flux-system";

/// The forwarder's memory of an object: its relevant fields, and whether it is a Stack's Update.
type Facet = (String, bool, Option<i64>, bool, String, Value, Value);

/// The annotations of a Stack whose drift is found and fixed.
const WATCHED: [(&str, Option<&str>); 2] = [(names::DRIFT_SCHEDULE, Some("1m")), (names::REMEDIATE, Some(names::ALWAYS))];

/// The world outside.
#[derive(Default)]
pub(super) struct Outside {
    facets: HashMap<ObjectKey, Facet>,
    pushes: u32,
    /// The number of requests and of Secrets that users wrote.
    written: u32,
    /// The number of Updates that users created.
    made: u32,
    /// The namespace of the Stacks is terminating.
    pub(super) terminated: bool,
}

impl Outside {
    /// Carries out an action. Returns the webhook's hint for it, if there is one.
    pub(super) fn act(&mut self, action: Action, world: &World, ledger: &mut Ledger) -> Option<Hint> {
        ledger.tell(|| format!("user: {action:?}"));
        // No object can be created any more, and the existing ones are being deleted.
        if self.terminated && action.needs_namespace() {
            return None;
        }
        match action {
            Action::CreateStack(stack) => create_stack(world, NAMESPACE, stack),
            Action::CreateProgram => world.insert(program(NAMESPACE, 1, false, &Value::Null)),
            Action::EditStack(stack) => edit(world, &stack_key(stack), edit_marker),
            Action::Request(stack) => {
                let request = self.number().to_string();
                edit(world, &stack_key(stack), |stack| {
                    stack["metadata"]["annotations"][names::RECONCILIATION_REQUEST] = json!(request);
                });
            }
            Action::Suspend(stack, suspend) => {
                annotate(world, &stack_key(stack), &[(names::SUSPEND, Some(if suspend { "true" } else { "false" }))]);
            }
            Action::Watch(stack, true) => annotate(world, &stack_key(stack), &WATCHED),
            Action::Adopt(stack) => adopt(world, stack)?,
            Action::Watch(stack, false) => annotate(world, &stack_key(stack), &[(names::DRIFT_SCHEDULE, None)]),
            Action::Guard(stack, policy) => guard(world, ledger, stack, policy),
            Action::Policy(intact) => approvals::write_policy(world, intact, ledger),
            Action::GiveAway(away) => {
                ledger.given_away = away.then(|| world.now());
                world.label_namespace(NAMESPACE, if away { "false" } else { "true" });
            }
            Action::DeleteStack(stack) => {
                ledger.delete_by_user(STACKS[stack].0);
                delete::<Stack>(world, STACKS[stack].0);
            }
            Action::Retries { stack, limit, first_backoff_seconds } => edit(world, &stack_key(stack), |stack| {
                edit_marker(stack);
                stack["spec"]["driftless"]["retries"] = json!({ "limit": limit, "firstBackoffSeconds": first_backoff_seconds });
            }),
            Action::Ttl { stack, minutes } => annotate(world, &stack_key(stack), &[(names::TTL, Some(&format!("{minutes}m")))]),
            Action::DeleteUpdateOf { stack, force } => {
                let current = get::<Stack>(world, STACKS[stack].0).and_then(|stack| stack.status?.current_update?.name);
                let update = get::<Update>(world, &current?)?;
                if force {
                    ledger.forget(&uid_of(&update));
                    edit(world, &key(("auto.pulumi.com/v1alpha1", "Update", &update.name_any())), |update| {
                        update["metadata"]["finalizers"] = Value::Null;
                    });
                }
                delete::<Update>(world, &update.name_any());
            }
            Action::EditProgram { broken } => edit(world, &key(PROGRAM), |object| {
                let generation = raise_generation(object);
                *object = program(NAMESPACE, generation, broken, object);
            }),
            Action::Refuse(refuse) => ledger.refuses = refuse,
            Action::EditSecret => write_secret(world, NAMESPACE, self.number()),
            Action::Settle(namespace) => {
                write_secret(world, namespace, self.number());
                world.insert(program(namespace, 1, false, &Value::Null));
                create_stack(world, namespace, QUIET_STACK);
            }
            Action::EditQuietStack => {
                let key = key_in(QUIET, STACK_KIND, STACK);
                edit(world, &key, edit_marker);
                ledger.want(world.object(&key).as_ref());
            }
            Action::EditQuietSecret => write_secret(world, QUIET, self.number()),
            Action::DeleteQuietStack => {
                delete_in::<Secret>(world, QUIET, SECRET);
                ledger.delete_by_user(STACK);
                delete_in::<Stack>(world, QUIET, STACK);
                ledger.want(world.object(&key_in(QUIET, STACK_KIND, STACK)).as_ref());
            }
            Action::Attack(attack, choice) => {
                let before = world.cluster();
                hostile::attack(attack, choice, world);
                if world.cluster() != before {
                    ledger.stats.attacks += 1;
                    match attack {
                        Attack::PutWorkspace | Attack::DeleteWorkspace => ledger.stats.workspaces += 1,
                        Attack::Annotate => ledger.stats.annotations += 1,
                        _ => {}
                    }
                }
            }
            Action::CreateUpdate { stack, operation } => {
                self.made += 1;
                create_update(world, &made_by_hand(self.made), stack, operation);
            }
            Action::DeleteUpdate => delete::<Update>(world, &made_by_hand(self.made)),
            Action::TerminateNamespace => {
                self.terminated = true;
                ledger.stats.terminations += 1;
                for (name, ..) in STACKS {
                    ledger.delete_by_user(name);
                }
                world.terminate_namespace(NAMESPACE);
            }
            Action::Push { broken } => return Some(self.push(broken, world, ledger)),
        }
        None
    }

    /// A number that no request and no Secret has yet.
    fn number(&mut self) -> u32 {
        self.written += 1;
        self.written
    }

    /// A commit: source-controller makes an archive of it, and notification-controller sends an
    /// event.
    fn push(&mut self, broken: bool, world: &World, ledger: &mut Ledger) -> Hint {
        self.pushes += 1;
        let revision = format!("main@sha1:{}", self.pushes);
        let path = format!("gitrepository/{NAMESPACE}/{}/{}.tar.gz", REPOSITORY.2, self.pushes);
        let archive = archive(&revision, broken);
        // Only the newest archive is kept.
        ledger.archives = [(path.clone(), Rc::from(archive.as_slice()))].into();
        let key = key(REPOSITORY);
        let mut object = world.object(&key).unwrap_or_else(
            || json!({ "apiVersion": key.api_version, "kind": key.kind, "metadata": { "namespace": NAMESPACE, "name": key.name } }),
        );
        object["status"]["artifact"] = json!({
            "digest": Digest::sha256(&archive).to_string(),
            "lastUpdateTime": world.now().to_string(),
            "path": path,
            "revision": revision,
            "url": format!("http://{SERVICE}.svc.cluster.local./{path}"),
        });
        world.insert(object);
        Hint { revision: Some(revision), ..Hint::new(key) }
    }

    /// The forwarder's hint for a written object, if a relevant field changed.
    pub(super) fn forward(&mut self, key: &ObjectKey, object: Option<&Value>) -> Option<Hint> {
        let kind = key.kind.as_str();
        if !["Stack", "Program", "Update", "Workspace", "GitRepository"].contains(&kind) {
            return None;
        }
        let Some(object) = object else {
            let known = self.facets.remove(key);
            return known.is_none_or(|facet| !facet.1).then(|| Hint::new(key.clone()));
        };
        let metadata = &object["metadata"];
        let requests = [
            names::RECONCILIATION_REQUEST,
            names::SUSPEND,
            names::DRIFT_SCHEDULE,
            names::ADOPT,
            names::APPROVAL,
            names::APPROVE,
            names::REJECT,
        ]
        .map(|name| &metadata["annotations"][name]);
        let conditions = object["status"]["conditions"].as_array();
        let complete = conditions.into_iter().flatten().find(|condition| condition["type"] == "Complete");
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let of_stack = ["Update", "Workspace"].contains(&kind) && owners.into_iter().any(|owner| owner["kind"] == "Stack");
        let deleting = !metadata["deletionTimestamp"].is_null();
        let facet = (
            metadata["uid"].to_string(),
            of_stack,
            metadata["generation"].as_i64(),
            deleting,
            json!(requests).to_string(),
            if kind == "Program" { Value::Null } else { object["status"]["artifact"]["revision"].clone() },
            complete.map_or(Value::Null, |condition| condition["status"].clone()),
        );
        let changed = self.facets.insert(key.clone(), facet.clone()).as_ref() != Some(&facet);
        (changed && (!of_stack || deleting)).then(|| Hint::new(key.clone()))
    }
}

/// Kubernetes' garbage collector.
pub(super) fn collect_garbage(world: &World) {
    for (key, owners) in &world.orphans() {
        let ObjectKey { kind, namespace, name, .. } = key;
        match kind.as_str() {
            _ if !owners.is_empty() => {
                let Some(mut object) = world.object(key) else { continue };
                object["metadata"]["ownerReferences"] = json!(owners);
                world.insert(object);
            }
            "Update" => delete_in::<Update>(world, namespace, name),
            "Workspace" => delete_in::<Workspace>(world, namespace, name),
            "Secret" => delete_in::<Secret>(world, namespace, name),
            _ => {}
        }
    }
}

/// What a Stack still waits for. `None` if it is at rest: every desired change was run, or time
/// alone will not remove the obstacle.
pub(super) fn waits_for(world: &World, stack: &Stack) -> Option<String> {
    let CoreStack { namespace, name, generation, deleting, reconcile_request, status, spec, ttl, .. } = CoreStack::from(stack);
    // An end that destroys nothing is only announced.
    if ttl.is_some() && (spec.destroy_on_finalize || status.expiry.is_none()) {
        return Some(format!("Stack {name} is not at the end of its TTL: {ttl:?}, {status:?}"));
    }
    let known = STACKS.iter().find(|known| known.0 == name)?;
    let revision = match known.2 {
        Field::Program => {
            get_in::<Program>(world, &namespace, PROGRAM.2)?.metadata.generation.unwrap_or_default().to_string().into()
        }
        Field::Flux => {
            let object = world.drive(world.get_dynamic(&key(REPOSITORY))).and_then(Result::ok).flatten()?;
            Source::from_object(&object).artifact?.revision.into()
        }
    };
    if let (Some(prerequisite), Some(Readiness::Reconciling { reason: StackReason::PrerequisiteNotSatisfied, .. })) =
        (known.3, &status.readiness)
        && !deleting
    {
        let met = get::<Stack>(world, prerequisite).is_some_and(|stack| {
            let status = CoreStack::from(&stack).status;
            status.readiness == Some(Readiness::Ready) && waits_for(world, &stack).is_none()
        });
        return met.then(|| format!("Stack {name} waits for Stack {prerequisite}, which is Ready"));
    }
    if status.drift.current.is_some() || status.drift.checked.is_some() {
        return Some(format!("Stack {name} is not to look for drift any more: {:?}", status.drift));
    }
    let plans = &status.plan;
    let is_given_up = |Proposal { state, expires, wish, .. }: &Proposal| {
        let is_wanted = (wish.generation, &wish.reconcile_request, &wish.commit) == (generation, &reconcile_request, &revision);
        *state == PlanState::Failed && expires.is_none() && is_wanted
    };
    if plans.current.is_none() && plans.proposal.as_ref().is_some_and(is_given_up) {
        return None;
    }
    if plans.spent.is_some() {
        return Some(format!("Stack {name} still has an approval that a run has used: {plans:?}"));
    }
    let Some(last) = &status.last_update else { return Some(format!("Stack {name} never ran: {:?}", status.readiness)) };
    if (last.generation, &last.reconcile_request, &last.last_attempted_commit) != (generation, &reconcile_request, &revision) {
        let desired = format!("generation {generation}, request {reconcile_request:?}, revision {revision}");
        return Some(format!("Stack {name} did not run {desired}: {:?}, last {last:?}", status.readiness));
    }
    let rests = match &status.readiness {
        Some(Readiness::Ready) => !deleting && last.state == LastUpdateState::Succeeded,
        Some(Readiness::Stalled { reason: StackReason::UpdateFailed, .. }) => {
            !deleting && last.failures >= spec.retries.map_or(driftless_core::MAX_FAILURES, |retries| retries.limit)
        }
        Some(Readiness::Stalled { reason: StackReason::UpdateConflict, .. }) => status.conflict && !retries(&name),
        _ => false,
    };
    (!rests || status.current_update.is_some()).then(|| format!("Stack {name} does not rest: {status:?}"))
}

/// Asks to adopt the drift of the check that runs, or else of the last one.
fn adopt(world: &World, stack: usize) -> Option<()> {
    let drift = get::<Stack>(world, STACKS[stack].0)?.status?.driftless?.drift?;
    let check = drift.current_check.or(drift.last_check)?;
    annotate(world, &stack_key(stack), &[(names::ADOPT, Some(&check)), (names::REMEDIATE, None)]);
    Some(())
}

fn guard(world: &World, ledger: &mut Ledger, stack: usize, policy: Option<&str>) {
    if let Some(uid) = get::<Stack>(world, STACKS[stack].0).map(|stack| uid_of(&stack)) {
        ledger.guard(&uid, policy);
        annotate(world, &stack_key(stack), &[(names::APPROVAL, policy)]);
    }
}

fn create_stack(world: &World, namespace: &str, stack: usize) {
    let (name, pulumi_stack, field, prerequisite, _) = STACKS[stack];
    let (api_version, kind, source) = REPOSITORY;
    let mut spec = json!({
        "stack": pulumi_stack,
        "config": { "marker": "1" },
        "secretsRef": { "password": { "type": "Secret", "secret": { "name": SECRET, "key": "password" } } },
        // Also the Stack all of whose plans need an approval.
        "destroyOnFinalize": stack.is_multiple_of(2) || stack == GUARDED,
        "retryOnUpdateConflict": retries(name),
        "workspaceReclaimPolicy": if retries(name) { "Delete" } else { "Retain" },
    });
    match field {
        Field::Program => spec["programRef"] = json!({ "name": PROGRAM.2 }),
        Field::Flux => {
            spec["fluxSource"] =
                json!({ "sourceRef": { "apiVersion": api_version, "kind": kind, "name": source }, "dir": "infra" });
        }
    }
    if let Some(name) = prerequisite {
        spec["prerequisites"] = json!([{ "name": name }]);
    }
    // The API server keeps whole seconds, from which a TTL counts.
    let created = world.now().strftime("%FT%TZ").to_string();
    let mut metadata = json!({ "namespace": namespace, "name": name, "creationTimestamp": created });
    if retries(name) {
        metadata["annotations"] = json!({ names::CAPACITY: names::SPOT });
    }
    world.insert(json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec }));
}

fn made_by_hand(number: u32) -> String {
    format!("by-hand-{number}")
}

fn create_update(world: &World, name: &str, stack: usize, operation: &str) {
    let (workspace, pulumi_stack, ..) = STACKS[stack];
    world.insert(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Update",
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": { "type": operation, "stackName": pulumi_stack, "workspaceName": workspace },
    }));
}

/// What a user's Update still waits for. `None` if it has ended, or waits for something that will
/// never exist: its Workspace, or a tree that its source no longer has.
pub(super) fn unfinished(world: &World, update: &Update) -> Option<String> {
    let going = update.metadata.deletion_timestamp.is_some();
    if update.is_complete() && !going && !finalizer::is_on(update) {
        return None;
    }
    let workspace = get::<Workspace>(world, update.spec.workspace_name.as_deref().unwrap_or_default());
    let kept = || update.spec.driftless.as_ref()?.tree.clone();
    let tree = || kept().or_else(|| workspace.as_ref()?.spec.driftless.as_ref()?.tree.clone());
    let waits_for = update.status.as_ref().and_then(|status| status.driftless.as_ref()?.waiting_reason.as_deref());
    let in_vain = match waits_for {
        Some("WorkspaceNotFound") => workspace.is_none(),
        // It changes the Pulumi stack of a guarded Stack.
        Some("ApprovalRequired") => true,
        Some("TreeNotFound") => tree().is_some_and(|tree| !is_stored(world, &tree)),
        _ => false,
    };
    (going || !in_vain).then(|| format!("Update {} is not finished: {:?}", update.name_any(), update.status))
}

fn is_stored(world: &World, tree: &Tree) -> bool {
    let (Some(source), Some(digest)) = (&tree.source, &tree.digest) else { return false };
    let source = key((&source.api_version, &source.kind, &source.name));
    world.written_at(&format!("{}manifest", keys::tree(&source, &digest.into()))).is_some()
}

/// The Stacks that have `retryOnUpdateConflict`, and run on Spot.
fn retries(name: &str) -> bool {
    ["a", "b"].contains(&name)
}

fn write_secret(world: &World, namespace: &str, number: u32) {
    let value = format!("{namespace}{CANARY}{number}");
    let metadata = json!({ "namespace": namespace, "name": SECRET });
    world.insert(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": { "password": BASE64_STANDARD.encode(value) } }));
}

fn program(namespace: &str, generation: i64, broken: bool, before: &Value) -> Value {
    let mut object = before.clone();
    if object.is_null() {
        object = json!({ "apiVersion": PROGRAM.0, "kind": PROGRAM.1, "metadata": { "namespace": namespace, "name": PROGRAM.2 } });
    }
    let state = if broken { "broken" } else { "good" };
    object["program"] = json!({ "variables": { "marker": format!("state {generation}; {state}") } });
    object
}

/// Source-controller's archive of a commit: the project in `infra/`.
fn archive(revision: &str, broken: bool) -> Vec<u8> {
    let state = if broken { "broken" } else { "good" };
    let content = format!("name: shop\nruntime: yaml\nvariables: {{ marker: \"state {revision}; {state}\" }}\n");
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let written = archive
        .append_data(&mut header, "infra/Pulumi.yaml", content.as_bytes())
        .and_then(|()| archive.into_inner())
        .and_then(|mut gzip| gzip.flush().and_then(|()| gzip.finish()));
    // Writes to memory never fail, and an empty archive would be refused.
    written.unwrap_or_default()
}
