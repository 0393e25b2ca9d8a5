//! `PlanPolicy`: the rules of a cluster about the plans of its Stacks.

use std::collections::BTreeMap;

use driftless_core::{self as core, MAX_EXPRESSION_BYTES};
use kube::{
    CustomResource, ResourceExt as _,
    core::{DynamicObject, ObjectMeta},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::names;

/// API version and plural of [`PlanPolicy`].
pub const PLAN_POLICIES: (&str, &str) = ("driftless.dev/v1alpha1", "planpolicies");
/// The maximum number of rules of a policy.
const MAX_RULES: usize = 50;
/// The maximum number of policy packs of a policy. Each is a process beside each preview.
const MAX_PACKS: usize = 5;

/// Rules about the plans of all Stacks in the selected namespaces.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "driftless.dev",
    version = "v1alpha1",
    kind = "PlanPolicy",
    plural = "planpolicies",
    derive = "PartialEq",
    doc = "Rules about the plans of Stacks, for a whole cluster.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PlanPolicySpec {
    /// Namespaces whose Stacks the rules are for; all without it. A selector without a term selects
    /// all, too.
    pub namespace_selector: Option<NamespaceSelector>,
    /// Policy packs of Pulumi that each plan of an update of the Stacks, and the update itself, is
    /// held to.
    #[schemars(length(max = MAX_PACKS))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy_packs: Vec<PlanPolicyPack>,
    /// The rules. Without any, the changes of the Stacks go through plans all the same.
    #[schemars(length(max = MAX_RULES))]
    #[serde(default)]
    pub rules: Vec<PlanPolicyRule>,
}

/// Policy pack of Pulumi: a directory of the artifact of a Flux source.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanPolicyPack {
    /// Digest of the artifact, as in `status.artifact.digest` of the source. A run does not start
    /// with any other content.
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// Directory of the pack, which has its `PulumiPolicy.yaml`; the root of the artifact without
    /// it.
    #[schemars(length(max = 256), regex(pattern = "^([A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*)?$"))]
    pub dir: Option<String>,
    /// Name of the pack, for messages.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Source that offers the artifact.
    pub source_ref: PlanPolicySource,
}

/// Flux source of a policy pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanPolicySource {
    /// Kind of the source, in the API group `source.toolkit.fluxcd.io`.
    #[schemars(regex(pattern = "^(GitRepository|OCIRepository|Bucket|ExternalArtifact)$"))]
    pub kind: String,
    /// Name of the source.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the source.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub namespace: String,
}

/// Rule about plans.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanPolicyRule {
    /// What follows if the expression is true.
    pub action: PlanPolicyAction,
    /// CEL expression about the plan, with the variables `stack`, `operation`, `counts`, `changes`,
    /// `unknown` and `unstable`. A rule whose expression cannot be evaluated denies the plan.
    #[schemars(length(min = 1, max = MAX_EXPRESSION_BYTES))]
    pub expression: String,
    /// Text for users.
    #[schemars(length(max = 256))]
    pub message: Option<String>,
    /// Name of the rule, for messages.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// What follows if the expression of a rule is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlanPolicyAction {
    /// The plan is not applied.
    Deny,
    /// The plan needs an approval.
    RequireApproval,
    /// The plan is shown with a warning.
    Warn,
}

/// Selects namespaces by their labels. All terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSelector {
    /// Terms about a label.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<NamespaceRequirement>,
    /// Labels with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Term about a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceRequirement {
    /// Name of the label.
    pub key: String,
    /// How the label relates to the values.
    pub operator: SelectorOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label relates to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// It has one of them.
    In,
    /// It has none of them, or does not exist.
    NotIn,
    /// It exists.
    Exists,
    /// It does not exist.
    DoesNotExist,
}

impl NamespaceSelector {
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |NamespaceRequirement { key, operator, values }: &NamespaceRequirement| {
            let value = labels.get(key);
            match operator {
                SelectorOperator::In => value.is_some_and(|value| values.contains(value)),
                SelectorOperator::NotIn => value.is_none_or(|value| !values.contains(value)),
                SelectorOperator::Exists => value.is_some(),
                SelectorOperator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value)) && self.match_expressions.iter().all(holds)
    }
}

/// What the cluster demands of the Stacks of a namespace: its policies and the annotation of the
/// Namespace, or why these cannot be read. What cannot be read demands the most.
#[must_use]
pub fn governance(read: Result<(Vec<DynamicObject>, ObjectMeta), String>) -> core::Governance {
    let (policies, namespace) = match read {
        Ok(read) => read,
        Err(why) => return core::Governance::Unreadable(format!("{why}; apply infra/kubernetes/rbac.yaml")),
    };
    let none = BTreeMap::new();
    let labels = namespace.labels.as_ref().unwrap_or(&none);
    let floor = namespace.annotations.as_ref().and_then(|annotations| annotations.get(names::APPROVAL));
    core::Governance::Known {
        floor: floor.map(|text| core::ApprovalPolicy::parse(text).unwrap_or_default()),
        policies: policies.iter().filter_map(|policy| selected(policy, labels)).collect(),
    }
}

/// The policy, if it selects a namespace with these labels.
fn selected(policy: &DynamicObject, labels: &BTreeMap<String, String>) -> Option<core::PlanPolicy> {
    let name = policy.name_any();
    let spec: PlanPolicySpec = match serde_json::from_value(policy.data["spec"].clone()) {
        Ok(spec) => spec,
        Err(error) => return Some(core::PlanPolicy { name, rules: Err(error.to_string()), packs: Vec::new() }),
    };
    let is_selected = spec.namespace_selector.as_ref().is_none_or(|selector| selector.selects(labels));
    is_selected.then(|| core::PlanPolicy {
        name,
        rules: Ok(spec.rules.into_iter().map(rule).collect()),
        packs: spec.policy_packs.into_iter().map(pack).collect(),
    })
}

fn pack(PlanPolicyPack { digest, dir, name, source_ref }: PlanPolicyPack) -> core::PolicyPack {
    let PlanPolicySource { kind, name: source, namespace } = source_ref;
    core::PolicyPack { name, kind, namespace, source, digest: digest.into(), dir: dir.unwrap_or_default() }
}

fn rule(rule: PlanPolicyRule) -> core::PlanRule {
    core::PlanRule {
        name: rule.name,
        expression: rule.expression,
        action: match rule.action {
            PlanPolicyAction::Deny => core::RuleAction::Deny,
            PlanPolicyAction::RequireApproval => core::RuleAction::RequireApproval,
            PlanPolicyAction::Warn => core::RuleAction::Warn,
        },
        message: rule.message.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use driftless_core::{ApprovalPolicy, Governance};
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, spec: &Value) -> DynamicObject {
        let object =
            json!({ "apiVersion": "driftless.dev/v1alpha1", "kind": "PlanPolicy", "metadata": { "name": name }, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn namespace(labels: &Value, annotations: &Value) -> ObjectMeta {
        serde_json::from_value(json!({ "name": "team-a", "labels": labels, "annotations": annotations })).unwrap()
    }

    fn names_of(governance: &Governance) -> Vec<&str> {
        let Governance::Known { policies, .. } = governance else { panic!("{governance:?}") };
        policies.iter().map(|policy| policy.name.as_str()).collect()
    }

    #[test]
    fn policies_select_namespaces_by_labels() {
        let term = |operator: &str, values: &Value| json!({ "namespaceSelector": { "matchExpressions": [{ "key": "env", "operator": operator, "values": values }] } });
        let all = vec![
            policy("all", &json!({})),
            policy("prod", &json!({ "namespaceSelector": { "matchLabels": { "env": "prod" } } })),
            policy("in", &term("In", &json!(["prod", "test"]))),
            policy("not-in", &term("NotIn", &json!(["prod"]))),
            policy("exists", &term("Exists", &json!([]))),
            policy("absent", &term("DoesNotExist", &json!([]))),
        ];
        for (labels, expected) in [
            (json!({ "env": "prod" }), vec!["all", "prod", "in", "exists"]),
            (json!({ "env": "dev" }), vec!["all", "not-in", "exists"]),
            (json!({}), vec!["all", "not-in", "absent"]),
        ] {
            assert_eq!(names_of(&governance(Ok((all.clone(), namespace(&labels, &json!({})))))), expected, "{labels}");
        }
    }

    #[test]
    fn unreadable_policy_denies_and_unreadable_floor_requires_approvals() {
        let rules = json!([{ "name": "r", "expression": "true", "action": "Forbid" }]);
        let broken = vec![policy("broken", &json!({ "rules": rules, "namespaceSelector": { "matchLabels": { "a": "b" } } }))];
        let demanded = governance(Ok((broken, namespace(&json!({}), &json!({ names::APPROVAL: "maybe" })))));
        let Governance::Known { floor, policies } = demanded else { panic!("{demanded:?}") };
        assert_eq!(floor, Some(ApprovalPolicy::Required));
        assert!(policies[0].rules.as_ref().unwrap_err().contains("Forbid"), "{policies:?}");
        let free = governance(Ok((Vec::new(), namespace(&json!({}), &json!({})))));
        assert_eq!(free, Governance::Known { floor: None, policies: Vec::new() });
    }
}
