//! Stops tasks from outside, because no process in a task is trusted to end it.

use driftless_aws::{TaskState, Tasks};
use driftless_kubernetes::CallError;
use jiff::{SignedDuration, Timestamp};

/// Stops a live task without a run: its launch lost it, or its run has ended and is recorded. A new
/// task gets its run within moments.
pub(crate) async fn stop_orphan<T: Tasks>(tasks: &T, start_seconds: u32, arn: &str, now: Timestamp) -> Result<(), CallError> {
    let TaskState::Alive { created: Some(created), .. } = tasks.state(arn).await? else { return Ok(()) };
    if now.duration_since(created) > SignedDuration::from_secs(start_seconds.into()) {
        tracing::warn!(task = arn, "stopping a task without a run");
        tasks.stop(arn, "task owns no run").await?;
    }
    Ok(())
}
