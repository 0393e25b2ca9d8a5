//! Decides what to do for an Update: its run starts, waits, continues, is stopped, is abandoned or
//! has ended; and what to do with the object afterwards.
//!
//! [`plan_run`] and [`plan_update`] decide from [`RunFacts`]. A [`Need`] names a fact that matters
//! and is not read yet: the caller reads it and calls again. A caller that cannot read it passes
//! the Update on to the function that can: the reconciler to the launcher, the launcher to the
//! recorder. So each call of a port is made only if a decision depends on it.

mod claim;
mod facts;
mod invariants;
mod plan;
mod reasons;
mod update;

pub use claim::{ClaimFacts, ClaimPlan, is_swept, plan_claim};
pub use facts::{
    Block, Hold, LaunchFacts, Need, Object, OwnerFacts, Question, RunFacts, Standing, TaskFacts, TaskFolderFacts, TaskResult,
    UpdateFacts, may_be_demanded,
};
pub use invariants::run_violations;
pub use plan::{Ending, RunPlan, plan_orphan, plan_run};
pub use reasons::AbandonReason;

pub use crate::reasons::WaitReason;
pub use update::{Completion, HandOver, UpdateEffect, hand_over, plan_update};
