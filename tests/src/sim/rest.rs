//! What has to be true of a plan, and when all is at rest.

use driftless_api::{Stack, Update, names};
use driftless_contract::{ObjectKey, keys};
use driftless_core::{Readiness, decide, violations};
use driftless_kubernetes::{Cluster, Object};
use driftless_testkit::{CLUSTER, World};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use super::{
    machine::{Machine, RETENTION},
    outside::{self, NAMESPACE},
};

impl Machine {
    /// The plan of a look at this time, before the checker.
    pub(super) fn check_plan(&self, object: &ObjectKey) {
        if object.kind != "Stack" {
            return;
        }
        let stack = self.calm.drive(Cluster::get::<Stack>(&self.calm, NAMESPACE, &object.name)).and_then(Result::ok).flatten();
        let Some(stack) = stack else { return };
        let calm = &self.calm;
        let ports = reconciler::Ports { cluster: calm, objects: calm, queues: calm, retention: RETENTION };
        let Some(Ok(snapshot)) = self.calm.drive(reconciler::snapshot(&ports, CLUSTER, &stack, self.world.now())) else { return };
        let plan = decide(&snapshot, self.world.now());
        let found = violations(&snapshot, &plan);
        let mut ledger = self.ledger.borrow_mut();
        if !found.is_empty() {
            ledger.violate(|| format!("{}: {plan:?} of {snapshot:?}", found.join(", ")));
        }
        let idle = plan.effects.is_empty() && plan.status == snapshot.stack.status && plan.look_at.is_none();
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
            self.waits = outside::stacks(world).iter().find_map(|stack| outside::waits_for(world, stack));
        }
        self.waits.clone()
    }

    /// What has to be true when all is at rest.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let leases: Vec<Lease> = list(&self.calm);
        if let Some(lease) = leases.first() {
            let by = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.values().next());
            return Err(format!("8: the claim {} of {by:?} is never given back", lease.name_any()));
        }
        for key in self.world.objects().keys() {
            if key.starts_with("tasks/") && (key.ends_with("in/spec") || key.ends_with("out/result")) {
                return Err(format!("6: {key} is left"));
            }
        }
        let stacks = outside::stacks(&self.calm);
        for update in list::<Update>(&self.calm) {
            let name = update.name_any();
            let outcome = format!("{}outcome", keys::run(CLUSTER, &update.uid().unwrap_or_default()));
            if !update.is_complete() || !self.world.objects().contains_key(&outcome) {
                return Err(format!("5: Update {name} is left without an outcome"));
            }
            if update.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER) {
                return Err(format!("4: Update {name} keeps its finalizer"));
            }
            if !stacks.iter().any(|stack| Some(stack.name_any().as_str()) == update.stack_name()) {
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
