//! What becomes of an Update: whether its run starts, waits, goes on, is stopped, is abandoned, or has ended, and what becomes of the object
//! after that.
//!
//! [`plan_run`] and [`plan_update`] decide from [`RunFacts`]. A fact that is not read yet and matters is returned as a [`Need`]: the caller
//! reads it and asks again. A caller that cannot read it passes the Update on to the function that can: the reconciler to the launcher, the
//! launcher to the recorder. So each call of a port is made only for a decision that depends on it.

mod facts;
mod invariants;
mod plan;
mod reasons;
mod update;

pub use facts::{
    Block, Inbox, LaunchFacts, Need, Object, OwnerFacts, Question, RunFacts, Standing, TaskFacts, TaskResult, UpdateFacts,
};
pub use invariants::run_violations;
pub use plan::{Ending, RunPlan, plan_run};
pub use reasons::AbandonReason;

pub use crate::reasons::WaitReason;
pub use update::{UpdateEffect, plan_update};
