//! The terms of an Update that a Stack creates: what its run may do, and what the template of the
//! Stack may change in it.

use crate::{Annotations, NewUpdate, Operation, PlanHash};

/// The purpose of an Update that a Stack creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It runs its operation.
    Run,
    /// It makes the plan of a run, with the flags of that run.
    Proposal,
    /// It checks for drift.
    Check,
}

/// The part of the template of a Stack that applies to an Update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// All of it, but no other `refresh` than that of the run.
    All,
    /// All but its `type`, which applies to runs that create something. With it, a destroy would
    /// leave the resources in place and be repeated for ever.
    AllButOperation,
    /// The metadata. The spec is meant for runs that change resources.
    Metadata,
}

/// What the run of an Update may do. The template of the Stack cannot change the fields that PKO
/// does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a run")]
pub struct RunTerms {
    /// Pulumi's operation.
    pub operation: Operation,
    /// The part of the Stack's template that applies.
    pub template: Template,
    /// It refreshes the state and takes over what it reads.
    pub adopts: bool,
    /// Refresh first, and fail if that changes anything.
    pub expect_no_refresh_changes: bool,
    /// It changes nothing, whatever its operation is.
    pub preview_only: bool,
    /// It makes a plan for an approval.
    pub proposes: bool,
    /// The approved plan that it applies.
    pub plan: Option<PlanHash>,
    /// Its inputs are kept for the destroy of the Stack.
    pub seals: bool,
    /// It writes the objects for the outputs of the Stack.
    pub writes_outputs: bool,
    /// `--refresh`; `None` if the operation has no such flag.
    pub refresh: Option<bool>,
    /// `--run-program`; `None` if the operation has no such flag.
    pub run_program: Option<bool>,
    /// `--target-dependents`; `None` if the operation has no such flag.
    pub target_dependents: Option<bool>,
    /// The value of the annotation for its capacity; `None` leaves it to the launcher.
    pub capacity: Option<String>,
}

impl NewUpdate {
    /// The terms on which it runs. `destroy_on_finalize` and the annotations are the Stack's.
    #[must_use]
    pub fn terms(&self, purpose: Purpose, destroy_on_finalize: bool, annotations: Annotations<'_>) -> RunTerms {
        let (is_run, is_check) = (purpose == Purpose::Run, purpose == Purpose::Check);
        let is_forward = matches!(self.operation, Operation::Up | Operation::Preview);
        let operation = if purpose == Purpose::Proposal && is_forward { Operation::Preview } else { self.operation };
        let plan = self.plan.clone().filter(|_| is_run);
        RunTerms {
            operation,
            template: match operation {
                Operation::Refresh => Template::Metadata,
                Operation::Up | Operation::Preview if is_run && plan.is_none() => Template::All,
                Operation::Destroy | Operation::Up | Operation::Preview => Template::AllButOperation,
            },
            adopts: operation == Operation::Refresh && !is_check,
            expect_no_refresh_changes: self.expect_no_refresh_changes && !is_check,
            preview_only: is_check || purpose == Purpose::Proposal && !is_forward,
            proposes: purpose == Purpose::Proposal,
            plan,
            seals: is_run && operation != Operation::Destroy && destroy_on_finalize && !annotations.never_seals(),
            writes_outputs: is_run && operation == Operation::Up,
            refresh: is_forward.then_some(self.refresh),
            run_program: (!is_forward && !is_check).then_some(self.run_program),
            target_dependents: is_forward.then_some(self.target_dependents),
            capacity: annotations.capacity(self.on_demand).map(ToOwned::to_owned),
        }
    }
}
