//! The plans of a guarded Stack, in its status.

use std::collections::BTreeMap;

use driftless_core::{self as core, ChangeKind, Listed, Operation, PlanHash, PlanState, PlannedChange, PlannedLeaf, Wish};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{condition::cut, json};

/// The plans of a Stack with the annotation `driftless.dev/approval`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StackPlan {
    /// User who approved the plan. Absent for a plan that needs no approval.
    pub approved_by: Option<String>,
    /// The first changes: replaces, then deletes, then the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PlannedResource>,
    /// Number of all changes.
    pub changes_total: Option<u32>,
    /// Revision of the source that the plan is for.
    pub commit: Option<String>,
    /// Number of resources by kind of change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u32>,
    /// Update of the proposal in progress.
    pub current_update: Option<String>,
    /// What in the cluster demands the approval of the plan, whatever the Stack says.
    pub demanded_by: Option<String>,
    /// What the hash of the plan covers.
    pub digests: Option<PlanDigests>,
    /// Approval of a plan that only a pull request has shown.
    pub early_approval: Option<EarlyApproval>,
    /// Time at which another plan is made.
    #[serde(deserialize_with = "json::lenient")]
    pub expires_at: Option<Time>,
    /// Number of failed previews in a row.
    pub failures: Option<i64>,
    /// Generation of the Stack that the plan is for.
    pub generation: Option<i64>,
    /// Whether the cluster asks for plans of the Stack's changes, by a `PlanPolicy` or an
    /// annotation of the Namespace.
    pub governed: Option<bool>,
    /// Whether the changes of the Stack go through plans.
    pub guarded: Option<bool>,
    /// Hash of the plan, which is what a user approves: 64 hexadecimal digits.
    pub hash: Option<String>,
    /// Keyed digest of the values from Secrets and `ConfigMap`s that the plan is for.
    pub inputs: Option<String>,
    /// Update of the last recorded proposal.
    pub last_update: Option<String>,
    /// Time at which the plan was made, or its preview failed.
    #[serde(deserialize_with = "json::lenient")]
    pub made_at: Option<Time>,
    /// What became of the plan before it, or why there is no plan.
    pub note: Option<String>,
    /// Whether the plan was shown without an approval while the cluster enforced who may approve.
    pub offered: Option<bool>,
    /// Operation that the plan is for: `up` or `destroy`.
    pub operation: Option<String>,
    /// Reconciliation request that the plan is for.
    pub reconcile_request: Option<String>,
    /// Whether the run that the plan is for refreshes first.
    pub refresh: Option<bool>,
    /// Approved hash that a run has used, or that the cluster did not check. It counts for no run.
    pub spent: Option<String>,
    /// `Proposed`, `Approved`, `Rejected`, `Expired`, `Stale`, `Applied`, `Partly`, `NoChanges`,
    /// `Failed`, or `Preview` for the plan of a pull request.
    pub state: Option<String>,
    /// Whether the approval of a plan of a pull request counts from now on.
    pub takes_early_approvals: Option<bool>,
    /// The first inputs that are only known when the plan is applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<PlannedValue>,
    /// Number of all these inputs.
    pub unknown_total: Option<u32>,
    /// The first inputs that are different in each preview, such as generated names. The hash does
    /// not cover their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unstable: Vec<PlannedValue>,
    /// Number of all these inputs.
    pub unstable_total: Option<u32>,
    /// Update that made the plan.
    pub update: Option<String>,
}

/// Approval of a plan that only a pull request has shown.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EarlyApproval {
    /// User who approved it.
    pub approved_by: Option<String>,
    /// Time at which it counts no more.
    #[serde(deserialize_with = "json::lenient")]
    pub expires_at: Option<Time>,
    /// Hash of the plan.
    pub hash: String,
}

/// Change of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedResource {
    /// Kind of change: `create`, `update`, `delete`, `replace`, `forget`, `import`, `options`,
    /// `refresh` or `outputs`.
    pub change: String,
    /// Paths of the first properties that change, such as `tags.owner`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<String>,
    /// The first properties whose change replaces the resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced_by: Vec<String>,
    /// URN of the resource.
    pub urn: String,
}

/// Input of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlannedValue {
    /// Path of the input.
    pub property: String,
    /// URN of the resource.
    pub urn: String,
}

/// What the hash of a plan covers, as digests.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlanDigests {
    /// Of the Pulumi stack, its backend, the operation, its flags and the inputs.
    pub binding: String,
    /// Version of Pulumi.
    pub pulumi: String,
    /// Of the steps, properties and options of all resources.
    pub resources: String,
    /// Of the state of the Pulumi stack.
    pub state: String,
    /// Of the source, if the plan has inputs that it does not cover.
    pub tree: Option<String>,
    /// Version of the canonical form.
    pub version: u32,
}

impl StackPlan {
    /// The state of plans, for a status.
    pub(crate) fn of(status: &core::PlanStatus) -> Self {
        let plan = Self {
            current_update: status.current.clone(),
            governed: status.governed.then_some(true),
            guarded: status.guarded.then_some(true),
            early_approval: status.early.as_ref().map(|early| EarlyApproval {
                approved_by: early.by.clone(),
                expires_at: Some(Time(early.expires)),
                hash: early.hash.to_string(),
            }),
            last_update: status.last.clone(),
            takes_early_approvals: status.takes_early.then_some(true),
            spent: status.spent.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        let Some(proposal) = &status.proposal else { return plan };
        let Wish { operation, commit, generation, reconcile_request, refresh, inputs } = &proposal.wish;
        let plan = Self {
            approved_by: proposal.by.clone(),
            commit: some(commit.as_str()),
            demanded_by: proposal.demanded.clone().map(cut),
            expires_at: proposal.expires.map(Time),
            failures: Some(proposal.failures).filter(|failures| *failures > 0),
            generation: Some(*generation),
            inputs: inputs.clone(),
            made_at: proposal.failed_at.map(Time),
            note: some(&proposal.note).map(cut),
            offered: proposal.offered.then_some(true),
            operation: Some(operation.as_str().into()),
            reconcile_request: some(reconcile_request),
            refresh: refresh.then_some(true),
            state: Some(proposal.state.as_str().into()),
            update: Some(proposal.update.clone()),
            ..plan
        };
        let Some(core::PlannedChanges { hash, parts, counts, changes, unknown, unstable, made_at, operation: _, advice: _ }) =
            &proposal.plan
        else {
            return plan;
        };
        Self {
            changes: changes.first.iter().map(resource).collect(),
            changes_total: Some(changes.count),
            counts: counts.iter().map(|(kind, count)| (kind.as_str().to_owned(), *count)).collect(),
            digests: Some(PlanDigests {
                binding: parts.binding.to_string(),
                pulumi: parts.pulumi.clone(),
                resources: parts.resources.to_string(),
                state: parts.state.to_string(),
                tree: parts.tree.clone(),
                version: parts.version,
            }),
            hash: Some(hash.to_string()),
            made_at: Some(Time(*made_at)),
            unknown: unknown.first.iter().map(value).collect(),
            unknown_total: Some(unknown.count).filter(|count| *count > 0),
            unstable: unstable.first.iter().map(value).collect(),
            unstable_total: Some(unstable.count).filter(|count| *count > 0),
            ..plan
        }
    }

    /// The state of plans that a status has. A plan that cannot be read is absent, so that it is
    /// made again.
    pub(crate) fn read(&self) -> core::PlanStatus {
        core::PlanStatus {
            guarded: self.guarded.unwrap_or_default(),
            governed: self.governed.unwrap_or_default(),
            current: self.current_update.clone(),
            last: self.last_update.clone(),
            proposal: self.proposal(),
            takes_early: self.takes_early_approvals.unwrap_or_default(),
            early: self.early_approval.as_ref().and_then(|early| {
                Some(core::EarlyApproval {
                    hash: PlanHash::parse(&early.hash)?,
                    by: early.approved_by.clone(),
                    expires: early.expires_at.as_ref().map(|Time(at)| *at)?,
                })
            }),
            spent: self.spent.as_deref().and_then(PlanHash::parse),
        }
    }

    fn proposal(&self) -> Option<core::Proposal> {
        let plan = self.planned();
        Some(core::Proposal {
            state: PlanState::parse(self.state.as_deref()?)?,
            failed_at: self.made_at.as_ref().filter(|_| plan.is_none()).map(|Time(at)| *at),
            plan,
            wish: Wish {
                operation: self.operation(),
                commit: self.commit.as_ref().map(Into::into).unwrap_or_default(),
                generation: self.generation?,
                reconcile_request: self.reconcile_request.clone().unwrap_or_default(),
                refresh: self.refresh.unwrap_or_default(),
                inputs: self.inputs.clone(),
            },
            update: self.update.clone()?,
            offered: self.offered.unwrap_or_default(),
            demanded: self.demanded_by.clone(),
            by: self.approved_by.clone(),
            expires: self.expires_at.as_ref().map(|Time(at)| *at),
            note: self.note.clone().unwrap_or_default(),
            failures: self.failures.unwrap_or_default(),
        })
    }

    fn operation(&self) -> Operation {
        self.operation.as_deref().and_then(Operation::parse).unwrap_or(Operation::Up)
    }

    fn planned(&self) -> Option<core::PlannedChanges> {
        let digests = self.digests.as_ref()?;
        let changes = self.changes.iter().map(|resource| {
            Some(PlannedChange {
                urn: resource.urn.clone(),
                resource_type: String::new(),
                kind: ChangeKind::parse(&resource.change)?,
                paths: resource.properties.clone(),
                replaced_by: resource.replaced_by.clone(),
            })
        });
        let leaves = |values: &[PlannedValue], count: Option<u32>| Listed {
            count: count.unwrap_or_default(),
            first: values.iter().map(|value| PlannedLeaf { urn: value.urn.clone(), path: value.property.clone() }).collect(),
        };
        Some(core::PlannedChanges {
            hash: PlanHash::parse(self.hash.as_deref()?)?,
            parts: core::PlanParts {
                version: digests.version,
                binding: PlanHash::parse(&digests.binding)?,
                resources: PlanHash::parse(&digests.resources)?,
                state: PlanHash::parse(&digests.state)?,
                pulumi: digests.pulumi.clone(),
                tree: digests.tree.clone(),
            },
            operation: self.operation(),
            counts: self.counts.iter().map(|(kind, count)| Some((ChangeKind::parse(kind)?, *count))).collect::<Option<_>>()?,
            changes: Listed { count: self.changes_total.unwrap_or_default(), first: changes.collect::<Option<_>>()? },
            unknown: leaves(&self.unknown, self.unknown_total),
            unstable: leaves(&self.unstable, self.unstable_total),
            advice: Vec::new(),
            made_at: self.made_at.as_ref().map(|Time(at)| *at)?,
        })
    }
}

fn resource(change: &PlannedChange) -> PlannedResource {
    PlannedResource {
        change: change.kind.as_str().into(),
        properties: change.paths.clone(),
        replaced_by: change.replaced_by.clone(),
        urn: change.urn.clone(),
    }
}

fn value(leaf: &PlannedLeaf) -> PlannedValue {
    PlannedValue { property: leaf.path.clone(), urn: leaf.urn.clone() }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
