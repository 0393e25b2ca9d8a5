use std::collections::BTreeSet;

use jiff::SignedDuration;

use crate::{ChangeKind, EarlyApproval, PlanHash, PlannedChanges};

/// A plan that is not approved within this time expires, unless the Stack sets another time.
const DEFAULT_TTL: SignedDuration = SignedDuration::from_hours(72);

/// Which plans of a guarded Stack need an approval: the annotation `driftless.dev/approval`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ApprovalPolicy {
    /// Every plan that changes something.
    #[default]
    Required,
    /// Plans with a change of one of these kinds.
    Unless(BTreeSet<ChangeKind>),
}

impl ApprovalPolicy {
    /// Parses the annotation. `Err` says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let remedy = "write \"required\", or \"unless \" and kinds of change such as replace,delete,forget,options";
        if text == "required" {
            return Ok(Self::Required);
        }
        let kinds = text.strip_prefix("unless ").ok_or_else(|| format!("{text:?}; {remedy}"))?;
        let kinds = kinds.split(',').map(|kind| ChangeKind::parse(kind.trim()).ok_or_else(|| format!("{text:?}; {remedy}")));
        Ok(Self::Unless(kinds.collect::<Result<_, _>>()?))
    }

    /// The policy that needs an approval wherever one of both does.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Unless(mut kinds), Self::Unless(others)) => {
                kinds.extend(others);
                Self::Unless(kinds)
            }
            (Self::Required, _) | (_, Self::Required) => Self::Required,
        }
    }

    /// The policy of a Stack that asks for no approvals: what the cluster demands is left.
    #[must_use]
    pub fn none() -> Self {
        Self::Unless(BTreeSet::new())
    }

    pub(crate) fn needs_approval(&self, plan: &PlannedChanges) -> bool {
        match self {
            Self::Required => !plan.is_empty(),
            Self::Unless(kinds) => kinds.iter().any(|kind| plan.count(*kind) > 0),
        }
    }
}

/// The annotations of a guarded Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalSettings {
    /// Which plans need an approval.
    pub policy: ApprovalPolicy,
    /// The approved plan.
    pub approved: Option<PlanHash>,
    /// The user who approved it. The admission policy of the cluster guarantees the name.
    pub approved_by: Option<String>,
    /// The rejected plan.
    pub rejected: Option<PlanHash>,
    /// The time after which a plan expires.
    pub ttl: SignedDuration,
}

impl Default for ApprovalSettings {
    fn default() -> Self {
        Self { policy: ApprovalPolicy::Required, approved: None, approved_by: None, rejected: None, ttl: DEFAULT_TTL }
    }
}

impl ApprovalSettings {
    /// Returns whether the plan needs no approval, or has one that no run has used.
    pub(crate) fn approves(
        &self,
        plan: &PlannedChanges,
        is_demanded: bool,
        early: Option<&EarlyApproval>,
        spent: Option<&PlanHash>,
    ) -> bool {
        let early = early.filter(|early| early.is_of(plan));
        let hash = Some(early.map_or(&plan.hash, |early| &early.hash));
        let is_approved = self.approved.as_ref() == hash && spent != hash;
        let is_rejected = self.rejected.as_ref().is_some_and(|rejected| *rejected == plan.hash || Some(rejected) == hash);
        !is_rejected && (is_approved || !is_demanded && !self.policy.needs_approval(plan))
    }
}

/// Whether the cluster enforces who may approve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The admission policy and its binding are as shipped; or the Stack is not guarded, and
    /// nothing depends on them.
    Intact,
    /// They are not, for that reason. No approval counts.
    Broken(String),
}
