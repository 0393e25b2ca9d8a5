//! What has to be true of a plan, and when all is at rest.

use driftless_api::{Stack, Update, finalizer};
use driftless_contract::{ObjectKey, keys};
use driftless_core::{Admissions, Effect, Readiness, Stack as CoreStack, StackStatus, decide, reason, violations};
use driftless_kubernetes::{Cluster, Object};
use driftless_testkit::{CLUSTER, World};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::{
    machine::{Machine, RECONCILER},
    outside::{self, NAMESPACE},
};
use crate::scenario::SYSTEM;

impl Machine {
    /// The plan of a look at this time, before the checker.
    pub(super) fn check_plan(&self, object: &ObjectKey) {
        if object.kind != "Stack" {
            return;
        }
        let stack = self.calm.drive(Cluster::get::<Stack>(&self.calm, NAMESPACE, &object.name)).and_then(Result::ok).flatten();
        let Some(stack) = stack else { return };
        let calm = &self.calm;
        let ports = reconciler::Ports { cluster: calm, objects: calm, queues: calm, settings: RECONCILER };
        let Some(Ok(snapshot)) = self.calm.drive(reconciler::snapshot(&ports, CLUSTER, &stack, self.world.now())) else { return };
        let plan = decide(&snapshot, self.world.now());
        let found = violations(&snapshot, &plan);
        let mut ledger = self.ledger.borrow_mut();
        if !found.is_empty() {
            ledger.violate(|| format!("{}: {plan:?} of {snapshot:?}", found.join(", ")));
        }
        // Inputs are compared for ever.
        let compares = |effect: &Effect| matches!(effect, Effect::CompareInputs | Effect::ReclaimWorkspace);
        let as_before = StackStatus { next_look: snapshot.stack.status.next_look, ..plan.status.clone() };
        let idle = plan.effects.iter().all(compares) && as_before == snapshot.stack.status;
        if self.at_rest_since.is_some() && snapshot.stack.status.readiness == Some(Readiness::Ready) && !idle {
            ledger.violate(|| format!("7: Stack {} is at rest, and a look finds {plan:?}", object.name));
        }
    }

    /// What the world waits for, if it is not at rest.
    pub(super) fn waits_for(&mut self) -> Option<String> {
        if self.disturbed {
            return Some("the disturbance to end".into());
        }
        if !self.runners.is_empty() || !self.invocations.is_empty() {
            return Some("what is under way to end".into());
        }
        if std::mem::take(&mut self.changed) {
            let world = &self.calm;
            let ledger = self.ledger.borrow();
            let secret = outside::secret(world);
            let of_stacks = outside::stacks(world).iter().find_map(|stack| {
                let uid = stack.metadata.uid.as_deref().unwrap_or_default();
                if self.outside.terminated {
                    let status = CoreStack::from(stack).status;
                    return Some(format!("Stack {} outlives its namespace: {status:?}", stack.name_any()));
                }
                let ran_with = ledger.secret_of(uid);
                let held_back = matches!(
                    CoreStack::from(stack).status.readiness,
                    Some(Readiness::Reconciling { reason: reason::PREREQUISITE_NOT_SATISFIED, .. })
                );
                let stale = ran_with.is_some() && ran_with != secret.as_deref() && !held_back;
                let waits = || stale.then(|| format!("Stack {} did not run what its Secret says now", stack.name_any()));
                outside::waits_for(world, stack).or_else(waits)
            });
            let by_hand = || {
                let updates = list::<Update>(world).into_iter().filter(|update| update.stack(SYSTEM).is_none());
                updates.into_iter().find_map(|update| outside::unfinished(world, &update))
            };
            self.waits = of_stacks.or_else(by_hand);
        }
        self.waits.clone()
    }

    /// What has to be true when all is at rest.
    pub(super) fn check_end(&self) -> Result<(), String> {
        for lease in list::<Lease>(&self.calm) {
            let written = lease.annotations().values().next().map_or("", String::as_str);
            if lease.name_any() != keys::ADMISSIONS {
                return Err(format!("8: the claim {} of {written:?} is never given back", lease.name_any()));
            }
            let admissions: Admissions = serde_json::from_str(written).map_err(|error| format!("8: {error}: {written}"))?;
            if let Some(run) = admissions.running.values().next() {
                return Err(format!("8: the place of {run:?} is never given back"));
            }
        }
        for key in self.world.objects().keys() {
            if key.starts_with("tasks/") && ["in/spec", "in/identity", "out/result"].iter().any(|end| key.ends_with(end)) {
                return Err(format!("6: {key} is left"));
            }
        }
        if self.outside.terminated
            && let Some(object) = self
                .world
                .cluster()
                .iter()
                .find(|object| !["Lease", "Namespace", "Stack"].iter().any(|kind| object["kind"] == *kind))
        {
            return Err(format!("8: {} {} outlives its namespace", object["kind"], object["metadata"]["name"]));
        }
        let stacks: Vec<String> = outside::stacks(&self.calm).iter().map(ResourceExt::name_any).collect();
        for update in list::<Update>(&self.calm) {
            let name = update.name_any();
            let stack = update.stack(SYSTEM);
            if stack.is_none() && !update.is_complete() {
                // It waits for what nobody makes.
                continue;
            }
            let outcome = format!("{}outcome", keys::run(CLUSTER, &update.uid().unwrap_or_default()));
            if !update.is_complete() || !self.world.objects().contains_key(&outcome) {
                return Err(format!("5: Update {name} is left without an outcome"));
            }
            if finalizer::is_on(&update) {
                return Err(format!("4: Update {name} keeps its finalizer"));
            }
            if stack.is_some_and(|stack| !stacks.contains(&stack.name)) {
                return Err(format!("8: Update {name} outlives its Stack"));
            }
        }
        Ok(())
    }
}

pub(super) fn list<K: Object>(world: &World) -> Vec<K> {
    // Nothing fails in a calm world.
    world.drive(Cluster::list(world, None, None)).and_then(Result::ok).unwrap_or_default()
}
