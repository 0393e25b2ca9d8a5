//! Ends tasks from outside: nothing that runs in a task is trusted to end it.

use driftless_aws::{Objects, TaskState, Tasks};
use driftless_contract::{Launch, Owner, keys};
use driftless_core::TaskLimits;
use jiff::{SignedDuration, Timestamp};

use crate::{Error, Ports, Settings};

/// Stops the live task of a run if nothing wants it any more, or if it is overdue. The run is recorded when ECS reports that the task
/// stopped.
pub(crate) async fn stop_overdue<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    launch: Option<&Launch>,
    owner: &Owner,
    is_wanted: bool,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(arn) = &owner.task else { return Ok(()) };
    let max_seconds = launch.and_then(|launch| launch.request.as_ref()?.limits.max_seconds);
    let limits = TaskLimits { start_seconds: settings.start_seconds, max_seconds };
    let age = now.duration_since(owner.at);
    let progress = keys::task(&settings.task_role_id, arn).progress();
    let has_begun = !limits.must_have_begun(age) || ports.objects.exists(&progress).await?;
    let why = if is_wanted { limits.overdue(age, has_begun) } else { Some("Update was deleted".into()) };
    if let Some(why) = why {
        tracing::warn!(task = arn, why, "stopping a task");
        ports.tasks.stop(arn, &why).await?;
    }
    Ok(())
}

/// Stops a live task that no run owns: a launch lost it, or its run is over and recorded. A new task has its run within moments.
pub(crate) async fn stop_orphan<T: Tasks>(tasks: &T, settings: &Settings, arn: &str, now: Timestamp) -> Result<(), Error> {
    let TaskState::Alive { created: Some(created), .. } = tasks.state(arn).await? else { return Ok(()) };
    if now.duration_since(created) > SignedDuration::from_secs(settings.start_seconds.into()) {
        tracing::warn!(task = arn, "stopping a task without a run");
        tasks.stop(arn, "task owns no run").await?;
    }
    Ok(())
}
