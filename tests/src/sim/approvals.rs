//! Guarded Stacks: the users who approve their plans, an intruder, and the checks of what was run.

use std::collections::BTreeMap;

use driftless_api::{POLICY, Stack, names, uid_of};
use driftless_contract::{Launch, PlanHash, PlanMode, PlanRequest, PlannedChanges, RunSource, RunSpec};
use driftless_core::{ChangeKind, Listed, Operation, PlanParts, PlanState, Uid};
use driftless_testkit::World;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Breakage,
    chances::Dice,
    ledger::{LOOK, Ledger},
    objects::{STACK_KIND, annotate, key_in, secret_in, stacks},
};

/// How often the users read the plans, in seconds.
pub(super) const REVIEW_SECONDS: i64 = 60;
/// The policy and its binding, as shipped.
const SHIPPED: &str = include_str!("../../../infra/kubernetes/approval.yaml");
const APPROVER: &str = "alice";
const INTRUDER: &str = "mallory";

impl Ledger {
    /// A user turned the guard of a Stack on, or off.
    pub(super) fn guard(&mut self, uid: &Uid, annotation: Option<&str>) {
        let (now, guarded) = (self.now, &mut self.approvals.guarded);
        match annotation {
            Some(policy) => _ = guarded.insert(uid.clone(), (now, policy == "required")),
            None => _ = guarded.remove(uid),
        }
    }

    /// Checks the launch of a task for a guarded Stack.
    pub(super) fn see_guarded_launch(&mut self, launch: &Launch) {
        let Some(request) = &launch.request else { return };
        let Some(stack) = request.stack.as_ref().filter(|_| !launch.preview) else { return };
        let Some((since, all)) = self.approvals.guarded.get(&stack.uid).copied() else { return };
        if self.now.duration_since(since) <= LOOK {
            return;
        }
        let permits = match &request.plan {
            Some(PlanMode::Apply { hash, .. }) => {
                let plan = (stack.uid.clone(), hash.clone());
                let is_approved = self.approvals.approved.contains_key(&plan);
                is_approved || !needs_approval(self.approvals.plans.get(&plan).copied().flatten(), all)
            }
            Some(PlanMode::Propose { .. }) | None => false,
        };
        let update = &launch.run.update;
        self.check(permits, || format!("13: {update} begins, and its Stack needs an approval: {:?}", request.plan));
    }

    /// The plan that a runner makes for a spec. `pack` is the content of its tree.
    pub(super) fn plan(
        &mut self,
        spec: &RunSpec,
        request: &PlanRequest,
        stack: &Uid,
        pulumi_stack: &str,
        pack: &[u8],
    ) -> PlannedChanges {
        let content = content(spec, pack);
        let operation = if spec.operation == Operation::Preview { Operation::Up } else { spec.operation };
        let (version, deployed) = self.approvals.deployed.get(pulumi_stack).cloned().unwrap_or_default();
        let is_same = match operation {
            // The live resources may have changed back since the check.
            Operation::Refresh => version % 4 == 0,
            _ => deployed.as_ref() == Some(&content) && !spec.refresh,
        };
        let resources = hash(&[operation.as_str(), &content, &spec.refresh.to_string()]);
        let kind = match (operation, spec.refresh, resources.as_str().as_bytes().first()) {
            (Operation::Destroy, ..) => ChangeKind::Delete,
            (Operation::Refresh, ..) | (_, true, _) => ChangeKind::Refresh,
            (_, false, Some(b'0'..=b'7')) => ChangeKind::Replace,
            (..) => ChangeKind::Update,
        };
        let parts = PlanParts {
            version: 1,
            binding: request.binding.clone(),
            state: hash(&[pulumi_stack, &version.to_string()]),
            pulumi: "v3".into(),
            tree: None,
            resources,
        };
        let plan = PlannedChanges {
            hash: hash(&[parts.binding.as_str(), parts.state.as_str(), parts.resources.as_str()]),
            parts,
            operation,
            counts: if is_same { BTreeMap::new() } else { [(kind, 1)].into() },
            changes: Listed::default(),
            unknown: Listed::default(),
            unstable: Listed::default(),
            advice: Vec::new(),
            made_at: self.now,
        };
        let flags = (&spec.stack, &spec.config, spec.refresh, &spec.inputs, spec.create, operation);
        let inputs = format!("{stack} {}", serde_json::to_string(&flags).unwrap_or_default());
        let bound = self.approvals.bound.entry(request.binding.clone()).or_insert_with(|| inputs.clone()) == &inputs;
        let known = self.approvals.bindings.entry(format!("{inputs} {content}")).or_insert_with(|| request.binding.clone());
        let (name, is_known) = (&spec.run.update.name, *known == request.binding);
        self.check(is_known, || format!("13: the plan of {name} has another binding for the same inputs"));
        self.check(bound, || format!("13: the plan of {name} has the same binding for other inputs"));
        self.stats.plans += 1;
        self.approvals.previewed.insert(stack.clone(), secret_in(spec));
        self.approvals.plans.insert((stack.clone(), plan.hash.clone()), (!plan.is_empty()).then_some(kind));
        plan
    }

    /// Returns whether another plan than this one was approved for a run.
    pub(super) fn is_stale(&mut self, spec: &RunSpec, plan: &PlannedChanges) -> bool {
        let approved = spec.plan.as_ref().and_then(|request| request.approved.as_ref());
        let is_stale = approved.is_some_and(|approved| *approved != plan.hash) && !self.approvals.are_ignored;
        self.stats.stale += u64::from(is_stale);
        if is_stale {
            // It touches nothing, so it is no failure that is counted.
            self.interrupt(&spec.run.uid);
        }
        is_stale
    }

    /// Records that a runner applies a plan.
    pub(super) fn apply_plan(&mut self, spec: &RunSpec, stack: &Uid, plan: &PlannedChanges) {
        let (name, found) = (&spec.run.update.name, (stack.clone(), plan.hash.clone()));
        self.stats.applied += 1;
        self.stats.destroys += u64::from(plan.operation == Operation::Destroy);
        let Some((_, all)) = self.approvals.guarded.get(stack).copied() else { return };
        if !needs_approval(plan.counts.keys().next().copied(), all) {
            return;
        }
        let unused = self.approvals.approved.get_mut(&found).filter(|unused| **unused > 0);
        let is_approved = unused.map(|unused| *unused -= 1).is_some();
        self.check(is_approved, || format!("13: {name} applies plan {}, which has no unused approval", plan.hash));
    }

    /// Records that a plan has no changes: the Pulumi stack is what the Stack wants.
    pub(super) fn is_deployed(&mut self, stack_uid: &Uid, spec: &RunSpec) {
        if spec.operation != Operation::Refresh {
            self.secrets.insert(stack_uid.clone(), secret_in(spec));
        }
    }

    /// What a Pulumi stack has after a run: the content of the run, or after a refresh what it had
    /// before.
    pub(super) fn content(&self, spec: &RunSpec, pulumi_stack: &str, pack: &[u8]) -> String {
        let deployed = self.approvals.deployed.get(pulumi_stack).and_then(|(_, deployed)| deployed.clone());
        if spec.operation == Operation::Refresh { deployed.unwrap_or_else(|| "refreshed".into()) } else { content(spec, pack) }
    }

    /// Records that an operation begins to change a Pulumi stack.
    pub(super) fn begin_change(&mut self, pulumi_stack: &str) {
        let (version, deployed) = self.approvals.deployed.entry(pulumi_stack.into()).or_default();
        (*version, *deployed) = (*version + 1, None);
    }

    /// Records that it succeeded.
    pub(super) fn end_change(&mut self, pulumi_stack: &str, content: String) {
        if let Some((_, deployed)) = self.approvals.deployed.get_mut(pulumi_stack) {
            *deployed = Some(content);
        }
    }
}

/// Returns whether a plan with changes of this kind needs an approval, if `all` do.
fn needs_approval(kind: Option<ChangeKind>, all: bool) -> bool {
    kind.is_some_and(|kind| all || kind == ChangeKind::Replace)
}

/// The desired state of a run: its tree and its configuration; nothing for a destroy.
fn content(spec: &RunSpec, pack: &[u8]) -> String {
    if spec.operation == Operation::Destroy {
        return String::new();
    }
    let source = match &spec.source {
        RunSource::Tree { .. } => "tree",
        RunSource::Project(_) => "project",
    };
    let config = serde_json::to_string(&spec.config).unwrap_or_default();
    hash(&[source, &String::from_utf8_lossy(pack), &config]).to_string()
}

pub(super) fn hash(parts: &[&str]) -> PlanHash {
    PlanHash::from(<[u8; 32]>::from(Sha256::digest(parts.join("\n"))))
}

/// Writes the policy and its binding as they are shipped, or so that they forbid nothing.
pub(super) fn write_policy(world: &World, intact: bool, ledger: &mut Ledger) {
    ledger.approvals.policy = intact;
    for mut object in shipped() {
        if !intact && object["kind"] == "ValidatingAdmissionPolicyBinding" {
            object["spec"]["validationActions"] = json!(["Audit"]);
        }
        world.insert(object);
    }
}

/// The policy and its binding.
pub(super) fn shipped() -> impl Iterator<Item = Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(SHIPPED).unwrap_or_default();
    objects.into_iter().filter(|object| object["metadata"]["name"] == POLICY)
}

/// The users read the plans of the guarded Stacks. `calm`: they approve all, so that everything
/// settles.
pub(super) fn review(world: &World, ledger: &mut Ledger, dice: &mut Dice, calm: bool, breakage: Option<Breakage>) {
    for stack in stacks(world) {
        let (read, choice) = (calm || dice.chance(700), if calm { 0 } else { dice.below(10) });
        if read {
            review_one(world, ledger, &stack, choice, breakage);
        }
    }
}

fn review_one(world: &World, ledger: &mut Ledger, stack: &Stack, choice: u32, breakage: Option<Breakage>) {
    let uid = uid_of(stack);
    let annotations = stack.metadata.annotations.clone().unwrap_or_default();
    let plan = stack.status.as_ref().and_then(|status| status.driftless.as_ref()?.plan.as_ref());
    let hash = plan.and_then(|plan| PlanHash::parse(plan.hash.as_deref()?));
    let (Some(plan), Some(hash), true) = (plan, hash, annotations.contains_key(names::APPROVAL)) else { return };
    let key = key_in(&stack.namespace().unwrap_or_default(), STACK_KIND, &stack.name_any());
    let write = |changes: &[(&str, Option<&str>)]| annotate(world, &key, changes);
    let is_set = |name: &str| annotations.get(name).map(String::as_str) == Some(hash.as_str());
    match plan.state.as_deref().and_then(PlanState::parse) {
        Some(PlanState::Proposed) if !ledger.approvals.policy => {
            // An approval that no reconciliation sees before the policy is back counts if its plan
            // was shown before.
            let is_void = plan.offered != Some(true) || breakage == Some(Breakage::Policies);
            if is_void && !is_set(names::APPROVE) {
                ledger.tell(|| format!("intruder: approves {hash}"));
                write(&[(names::APPROVE, Some(hash.as_str())), (names::APPROVED_BY, Some(INTRUDER))]);
            }
        }
        Some(PlanState::Proposed) if choice == 9 => write(&[(names::REJECT, Some(hash.as_str()))]),
        Some(PlanState::Proposed) if choice == 8 => {
            let other: String = hash.as_str()[..8].chars().chain(hash.as_str()[8..].chars().rev()).collect();
            write(&[(names::APPROVE, Some(&other)), (names::APPROVED_BY, Some(APPROVER))]);
        }
        Some(PlanState::Proposed) if !is_set(names::APPROVE) => {
            ledger.stats.approvals += 1;
            ledger.tell(|| format!("user: approves {hash}"));
            *ledger.approvals.approved.entry((uid, hash.clone())).or_default() += 1;
            write(&[(names::APPROVE, Some(hash.as_str())), (names::APPROVED_BY, Some(APPROVER))]);
        }
        Some(PlanState::Rejected) => write(&[(names::REJECT, None)]),
        _ => {}
    }
}
