//! Stops tasks from outside, because no process in a task is trusted to end it.

use driftless_aws::{TaskState, Tasks};
use jiff::{SignedDuration, Timestamp};

use crate::{Error, Settings};

/// Stops a live task without a run: its launch lost it, or its run has ended and is recorded. A new
/// task gets its run within moments.
pub(crate) async fn stop_orphan<T: Tasks>(tasks: &T, settings: &Settings, arn: &str, now: Timestamp) -> Result<(), Error> {
    let TaskState::Alive { created: Some(created), .. } = tasks.state(arn).await? else { return Ok(()) };
    if now.duration_since(created) > SignedDuration::from_secs(settings.start_seconds.into()) {
        tracing::warn!(task = arn, "stopping a task without a run");
        tasks.stop(arn, "task owns no run").await?;
    }
    Ok(())
}
