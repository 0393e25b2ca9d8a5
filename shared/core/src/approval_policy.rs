use std::collections::BTreeSet;

use crate::{ChangeKind, PlannedChanges};

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
