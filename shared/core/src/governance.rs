//! What a cluster demands of its Stacks.

use crate::{ApprovalPolicy, ArtifactDigest};

/// What a cluster demands of a Stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Governance {
    /// It was not read, because no run starts now. What the status says counts.
    #[default]
    Unread,
    /// It cannot be read, for that reason. No run starts.
    Unreadable(String),
    /// It was read.
    Known {
        /// The least that the Namespace demands; see [`ApprovalPolicy`].
        floor: Option<ApprovalPolicy>,
        /// The policies that select the namespace.
        policies: Vec<PlanPolicy>,
    },
}

impl Governance {
    /// Returns whether a Stack's changes go through plans; `governed` is what counts if it was not
    /// read.
    #[must_use]
    pub fn governs(&self, governed: bool) -> bool {
        match self {
            Self::Unread => governed,
            Self::Unreadable(_) => true,
            Self::Known { floor, policies } => floor.is_some() || !policies.is_empty(),
        }
    }
}

/// The rules of a `PlanPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPolicy {
    /// Its name.
    pub name: String,
    /// Its rules, or why it cannot be read. Such a policy denies every plan.
    pub rules: Result<Vec<PlanRule>, String>,
    /// The policy packs that the programs are held to.
    pub packs: Vec<PolicyPack>,
}

/// A policy pack of Pulumi: a directory of what a Flux source offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPack {
    /// Its name, for messages.
    pub name: String,
    /// The kind of the source.
    pub kind: String,
    /// The namespace of the source.
    pub namespace: String,
    /// The name of the source.
    pub source: String,
    /// The digest of the source's artifact: no other content is used.
    pub digest: ArtifactDigest,
    /// The directory of the pack within the artifact; empty for its root.
    pub dir: String,
}

/// A rule about plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRule {
    /// Its name within the policy.
    pub name: String,
    /// A CEL expression, which is true for the plans that the rule concerns.
    pub expression: String,
    /// What follows then.
    pub action: RuleAction,
    /// The text for users; empty for none.
    pub message: String,
}

/// What follows if the expression of a rule is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// The plan is not applied.
    Deny,
    /// The plan needs an approval.
    RequireApproval,
    /// Users are told.
    Warn,
}
