//! What the cluster demands of a plan: the rules of its policies, and the least that the Namespace
//! asks for.

use jiff::{SignedDuration, Timestamp};

use crate::{
    Governance, Operation, PlanState, PlannedChanges, Readiness, RunState, Snapshot, Stack, StackReason,
    policy::{Judgement, judge},
};

/// The rules that a message names.
const NAMED: usize = 3;

/// The record of a plan is stored before the plan is shown. One that is missing after this time has
/// expired before the plan.
const UNRECORDED: SignedDuration = SignedDuration::from_mins(10);

/// What the cluster says about a plan.
pub(crate) enum Ruling {
    /// The rules were applied.
    Judged(Judgement),
    /// They cannot be, for that reason.
    Unknown(String),
    /// They cannot be, because the record of the plan is missing.
    Unrecorded,
}

impl Ruling {
    /// Applies the rules to the pending plan of the Stack, of which its status has a part only.
    pub(crate) fn of(snapshot: &Snapshot, stack: &Stack) -> Self {
        let status = &stack.status.plan;
        let (floor, policies) = match &snapshot.governance {
            Governance::Unread => return Self::Judged(Judgement::default()),
            Governance::Unreadable(why) => return Self::Unknown(why.clone()),
            Governance::Known { floor, policies } => (floor, policies),
        };
        let is_judged = |state: PlanState| state.is_pending() || state == PlanState::Preview;
        let pending = status.proposal.as_ref().filter(|proposal| is_judged(proposal.state));
        let Some(plan) = pending.and_then(|proposal| proposal.plan.as_ref()) else { return Self::Judged(Judgement::default()) };
        let mut judgement = match (policies.as_slice(), full(snapshot, plan)) {
            ([], _) => Judgement::default(),
            // A plan of a pull request is judged as the one after the merge.
            (_, Some(full)) => judge(policies, snapshot.named.as_deref().unwrap_or(stack), full),
            (_, None) => return Self::Unrecorded,
        };
        if floor.as_ref().is_some_and(|floor| floor.needs_approval(plan)) {
            judgement.demands.push(format!("annotation driftless.dev/approval of Namespace {:?}", stack.namespace));
        }
        Self::Judged(judgement)
    }

    /// What demands an approval.
    pub(crate) fn demanded(&self) -> Option<String> {
        match self {
            Self::Judged(Judgement { demands, .. }) if !demands.is_empty() => Some(first(demands)),
            Self::Judged(_) | Self::Unknown(_) | Self::Unrecorded => None,
        }
    }

    /// Returns whether the plan has to be made again, because its record is gone.
    pub(crate) fn has_lost(&self, plan: &PlannedChanges, now: Timestamp) -> bool {
        matches!(self, Self::Unrecorded) && now.duration_since(plan.made_at) >= UNRECORDED
    }

    /// What the proposal says beside its changes.
    pub(crate) fn told(&self) -> String {
        let Self::Judged(Judgement { warnings, .. }) = self else { return String::new() };
        let warned = if warnings.is_empty() { String::new() } else { format!("; warning of {}", first(warnings)) };
        self.demanded().map_or(warned.clone(), |demanded| format!("{warned}; approval required by {demanded}"))
    }

    /// The condition if the plan must not be applied.
    pub(crate) fn refusal(&self, operation: Operation, what: &str) -> Option<Readiness> {
        let why = match self {
            Self::Judged(Judgement { denials, .. }) if denials.is_empty() => return None,
            Self::Judged(Judgement { denials, .. }) => {
                let remedy = match operation {
                    Operation::Destroy => "have the policy changed, or set spec.destroyOnFinalize to false to keep the resources",
                    Operation::Refresh => "have the policy changed, or remove the annotation driftless.dev/adopt",
                    Operation::Up | Operation::Preview => "push another change, or have the policy changed",
                };
                let message = format!("{what}; denied by {}; {remedy}", first(denials));
                return Some(Readiness::stalled(StackReason::PolicyViolation, message));
            }
            Self::Unknown(why) => why,
            Self::Unrecorded => "the record of the plan is not stored yet",
        };
        let message = format!("{what}; no plan is applied before the policies of the cluster are read: {why}");
        Some(Readiness::Reconciling { reason: StackReason::PolicyUnknown, message })
    }

    /// The texts of an Event about a new plan: denials, and warnings.
    pub(crate) fn news(&self) -> (Option<String>, Option<String>) {
        let Self::Judged(Judgement { denials, warnings, .. }) = self else { return (None, None) };
        let note = |texts: &[String]| (!texts.is_empty()).then(|| first(texts));
        (note(denials), note(warnings))
    }
}

/// All that is known of a plan: from the run that just made it, or from its record.
fn full<'a>(snapshot: &'a Snapshot, shown: &PlannedChanges) -> Option<&'a PlannedChanges> {
    let made = [&snapshot.proposal, &snapshot.run].into_iter().filter_map(|run| match run {
        RunState::Ended(_, outcome) => outcome.plan.as_deref(),
        RunState::None | RunState::Missing | RunState::Foreign | RunState::Live(..) => None,
    });
    made.chain(&snapshot.planned).find(|plan| {
        (plan.hash == shown.hash || plan.early_hash().as_ref() == Some(&shown.hash)) && plan.operation == shown.operation
    })
}

fn first(texts: &[String]) -> String {
    let more = if texts.len() > NAMED { format!("; and {} more", texts.len() - NAMED) } else { String::new() };
    format!("{}{more}", texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; "))
}
