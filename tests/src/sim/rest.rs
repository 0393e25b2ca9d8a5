//! The checks of plans, and of the state at rest.

use std::collections::BTreeMap;

use driftless_api::{Stack, Update, finalizer, uid_of};
use driftless_aws::Objects as _;
use driftless_contract::{ObjectKey, keys};
use driftless_core::{
    Admissions, Effect, LastUpdateState, PlanState, Readiness, Stack as CoreStack, StackReason, StackStatus, decide, violations,
};
use driftless_kubernetes::Cluster;
use driftless_testkit::{CLUSTER, World};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use reconciler::Reconciler;

use super::{
    machine::Machine,
    objects::{HOSTILE, NAMESPACE, QUIET, list, secret, stacks},
    outside::{unfinished, waits_for},
    tenants::revealed,
};
use crate::scenario::SYSTEM;

/// The kinds of objects that a terminated namespace may leave: those of other namespaces and of the
/// cluster.
const KINDS_LEFT: [&str; 5] = ["Lease", "Namespace", "Stack", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

impl Machine {
    /// Checks the bounds of tasks and of the quiet tenant's wait.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        let age = |since: Timestamp| self.world.now().duration_since(since.max(self.disturbed_until));
        if let Some(runner) = self.runners.iter().find(|runner| age(runner.began) > self.knobs.task_ends_within()) {
            return Err(format!("S3: task {} is not stopped", keys::task_id(&runner.arn)));
        }
        if let Some(violation) = self.ledger.borrow().overdue() {
            return Err(violation);
        }
        match self.ledger.borrow().wanted {
            Some((generation, since)) if age(since) > self.knobs.run_within() => {
                Err(format!("S9: generation {generation} of the Stack of the namespace {QUIET} is not run"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the plan of a reconciliation at this time.
    pub(super) fn check_plan(&self, object: &ObjectKey) {
        if object.kind != "Stack" || object.namespace == HOSTILE {
            return;
        }
        let stack =
            self.calm.drive(Cluster::get::<Stack>(&self.calm, &object.namespace, &object.name)).and_then(Result::ok).flatten();
        let Some(stack) = stack else { return };
        let calm = &self.calm;
        let (settings, now) = (self.knobs.reconciler(), self.world.now());
        let reconciler = Reconciler { cluster: calm, objects: calm, queues: calm, settings, now };
        let Some(Ok(snapshot)) = self.calm.drive(reconciler.snapshot(CLUSTER, &stack)) else { return };
        let plan = decide(&snapshot, now);
        let found = violations(&snapshot, &plan, now);
        let mut ledger = self.ledger.borrow_mut();
        if !found.is_empty() {
            ledger.violate(|| format!("{}: {plan:?} of {snapshot:?}", found.join(", ")));
        }
        // Inputs are compared for ever.
        let compares = |effect: &Effect| matches!(effect, Effect::CompareInputs | Effect::ReclaimWorkspace);
        let as_before = StackStatus { next_reconciliation: snapshot.stack.status.next_reconciliation, ..plan.status.clone() };
        let idle = plan.effects.iter().all(compares) && as_before == snapshot.stack.status;
        if self.at_rest_since.is_some() && !idle {
            ledger.violate(|| format!("7: Stack {} is at rest, and a look finds {plan:?}", object.name));
        }
    }

    /// What the world waits for, if it is not at rest.
    pub(super) fn waits_for(&mut self) -> Option<String> {
        if self.disturbed {
            return Some("the disturbance to end".into());
        }
        if self.is_outage() {
            return Some("the outage to end".into());
        }
        if !self.runners.is_empty() || !self.invocations.is_empty() {
            return Some("what runs to end".into());
        }
        if std::mem::take(&mut self.changed) {
            let world = &self.calm;
            let ledger = self.ledger.borrow();
            let of_stacks = stacks(world).iter().find_map(|stack| {
                let uid = uid_of(stack);
                let namespace = stack.namespace().unwrap_or_default();
                if self.outside.terminated && namespace == NAMESPACE {
                    let status = CoreStack::from(stack).status;
                    return Some(format!("Stack {} outlives its namespace: {status:?}", stack.name_any()));
                }
                let status = CoreStack::from(stack).status;
                let is_given_up =
                    status.plan.proposal.is_some_and(|plan| plan.state == PlanState::Failed && plan.expires.is_none());
                let ran_with = if is_given_up {
                    ledger.approvals.previewed.get(&uid).and_then(Option::as_deref)
                } else {
                    ledger.secret_of(&uid)
                };
                let held_back = matches!(
                    status.readiness,
                    Some(Readiness::Reconciling { reason: StackReason::PrerequisiteNotSatisfied, .. })
                );
                let stale = ran_with.is_some() && ran_with != secret(world, &namespace).as_deref() && !held_back;
                let waits = || stale.then(|| format!("Stack {} did not run what its Secret says now", stack.name_any()));
                waits_for(world, stack).or_else(waits)
            });
            let by_hand = || {
                let updates = list::<Update>(world, None)
                    .into_iter()
                    .filter(|update| update.stack(SYSTEM).is_none() && !is_hostile(update));
                updates.into_iter().find_map(|update| unfinished(world, &update))
            };
            self.waits = of_stacks.or_else(by_hand);
        }
        self.waits.clone()
    }

    /// The final state: the last successful runs, and the statuses of the Stacks, without the names
    /// of runs.
    pub(super) fn rest(&self) -> String {
        let stacks = stacks(&self.calm).into_iter().map(|stack| {
            let status = CoreStack::from(&stack).status;
            let last =
                status.last_update.map(|last| (last.generation, last.reconcile_request, last.last_successful_commit, last.state));
            format!("{}: {:?} {last:?} {:?}", stack.name_any(), status.readiness, status.outputs)
        });
        format!("{:#?}\n{}", self.ledger.borrow().effects(), stacks.collect::<Vec<_>>().join("\n"))
    }

    /// The state of each Stack that follows from its spec, source and Secret alone. `None` where
    /// chance decides: after a failed run, where users judge plans, and behind a prerequisite.
    pub(super) fn settled(&self) -> BTreeMap<String, Option<String>> {
        let ledger = self.ledger.borrow();
        let settled = stacks(&self.calm).into_iter().map(|stack| {
            let StackStatus { readiness, last_update, outputs, plan, .. } = CoreStack::from(&stack).status;
            let is_ready = readiness == Some(Readiness::Ready);
            let reason = match &readiness {
                Some(Readiness::Reconciling { reason, .. } | Readiness::Stalled { reason, .. }) => Some(*reason),
                Some(Readiness::Ready) | None => None,
            };
            let has_failed = last_update.as_ref().is_some_and(|last| last.state == LastUpdateState::Failed);
            let is_by_chance = has_failed || plan.proposal.is_some() || reason == Some(StackReason::PrerequisiteNotSatisfied);
            let last = last_update.map(|last| (last.generation, last.reconcile_request, last.last_successful_commit));
            let state = format!("{is_ready} {reason:?} {last:?} {:?} {outputs:?}", ledger.secret_of(&uid_of(&stack)));
            (stack.name_any(), (!is_by_chance).then_some(state))
        });
        settled.collect()
    }

    /// Checks the state at rest.
    pub(super) fn check_end(&self) -> Result<(), String> {
        for lease in list::<Lease>(&self.calm, None) {
            let written = lease.annotations().values().next().map_or("", String::as_str);
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            // A claim whose holder was deleted by force is only released when another run wants it.
            if holder.is_some_and(|uid| self.ledger.borrow().is_forgotten(&uid.into())) {
                continue;
            }
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
                .filter(|object| ![QUIET, HOSTILE].iter().any(|namespace| object["metadata"]["namespace"] == *namespace))
                .find(|object| !KINDS_LEFT.iter().any(|kind| object["kind"] == *kind))
        {
            return Err(format!("8: {} {} outlives its namespace", object["kind"], object["metadata"]["name"]));
        }
        let stacks: Vec<String> = stacks(&self.calm).iter().map(ResourceExt::name_any).collect();
        let messages = self.world.sent().into_iter().map(|message| format!("{message:?}"));
        if let Some(told) = self.world.events().into_iter().chain(messages).find(|told| revealed(told).next().is_some()) {
            return Err(format!("S1: an Event or a message has a Secret: {told}"));
        }
        if self.looks_at_rest > self.knobs.looks_at_rest() {
            return Err(format!("7: {} looks at what is at rest", self.looks_at_rest));
        }
        for update in list::<Update>(&self.calm, None).into_iter().filter(|update| !is_hostile(update)) {
            let name = update.name_any();
            let stack = update.stack(SYSTEM);
            if stack.is_none() && !update.is_complete() {
                // It waits for something that will never exist.
                continue;
            }
            let outcome = format!("{}outcome", keys::run(CLUSTER, &uid_of(&update)));
            if !update.is_complete() || self.world.written_at(&outcome).is_none() {
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

/// Returns whether a delayed reconciliation created an Update again: its Stack does not name it,
/// and no outcome is recorded.
pub(super) fn is_too_late(world: &World, update: &Update) -> bool {
    let Some(stack) = update.stack(SYSTEM) else { return false };
    let stack = world.drive(Cluster::get::<Stack>(world, &stack.namespace, &stack.name)).and_then(Result::ok).flatten();
    let outcome = keys::run(CLUSTER, &uid_of(update)).outcome();
    let is_recorded = matches!(world.drive(world.exists(&outcome)), Some(Ok(true)));
    !is_recorded && !stack.is_some_and(|stack| stack.names(&update.name_any()))
}

fn is_hostile(update: &Update) -> bool {
    update.namespace().as_deref() == Some(HOSTILE)
}
