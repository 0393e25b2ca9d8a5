//! Stops tasks from outside, because no process in a task is trusted to end it.

use driftless_aws::{TaskState, Tasks};
use driftless_core::run::{RunPlan, plan_orphan};
use driftless_kubernetes::CallError;
use jiff::Timestamp;

/// Stops a live task without a run.
pub(crate) async fn stop_orphan<T: Tasks>(tasks: &T, start_seconds: u32, arn: &str, now: Timestamp) -> Result<(), CallError> {
    let TaskState::Alive { created: Some(created), .. } = tasks.state(arn).await? else { return Ok(()) };
    if let RunPlan::Stop(why) = plan_orphan(created, start_seconds, now) {
        tracing::warn!(task = arn, "stopping a task without a run");
        tasks.stop(arn, &why).await?;
    }
    Ok(())
}
