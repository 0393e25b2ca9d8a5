//! The status of an Update: the progress of its run, and its end.

use driftless_api::{LogLink, ProjectInfo, Update, UpdateProgress, UpdateStatus, UpdateStep};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Document as _, Outcome, Progress, ResourceStep, Verdict, keys::TaskFolder};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::{Error, Recorder, log};

/// The maximum length of a step, in bytes, because the tenant's program may have written the
/// progress.
const MAX_STEP: usize = 1024;

/// Where the log of a recorded run is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The name of the ConfigMap with its last part.
    pub(crate) config_map: Option<String>,
    /// The link to the whole log.
    pub(crate) link: Option<LogLink>,
}

/// Pulumi's operations with their short form in a summary. Unchanged resources are left out.
const SIGNS: [(&str, char); 5] = [("create", '+'), ("update", '~'), ("replace", '±'), ("delete", '-'), ("import", '=')];

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Shows the progress and the log of a live run. A status is a view: if it cannot be read or
    /// written, it is left to the next reconciliation.
    pub(crate) async fn show_progress(&self, mut update: Update, task: &TaskFolder) -> Result<(), Error> {
        let Some(document) = self.read_report(&task.progress()).await? else { return Ok(()) };
        let progress = match Progress::parse(&document) {
            Ok(progress) => progress,
            Err(error) => {
                tracing::warn!(task = &**task, %error, "cannot read the progress of a task");
                return Ok(());
            }
        };
        let created = update.creation_timestamp().map_or(self.now, |created| created.0);
        let current = progress.current.map(|step| step[..step.floor_char_boundary(MAX_STEP)].to_owned());
        let shown = UpdateProgress {
            current,
            dependencies: progress.dependencies.map(|summary| summary[..summary.floor_char_boundary(MAX_STEP)].to_owned()),
            done: progress.done.into(),
            failed: progress.failed.into(),
            phase: Some(format!("{:?}", progress.phase).to_lowercase()),
            planned: progress.planned.into(),
            started: progress.started.into(),
            time: Some(whole(progress.at.clamp(created, self.now.max(created)))),
        };
        if update.is_complete() {
            return Ok(());
        }
        // The end of the run reports why there is none.
        let log = if progress.log_chunks == Some(0) { Ok(None) } else { self.copy_log(&update, task, log::SOME).await };
        let log = log.inspect_err(|error| tracing::info!(task = &**task, %error, "cannot copy the log of a run")).ok().flatten();
        let link = if update.needs_log_link(self.now) { Some(self.log_link(&task.live_log()).await?) } else { None };
        if !update.set_progress(shown, log, link) {
            return Ok(());
        }
        match self.cluster.replace_status(&update).await {
            Ok(_) | Err(KubernetesError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes an outcome into the Update's status; the result depends on nothing else. `task` is the
/// ARN of the owner, which a short run may end before its launcher has shown it. `message` is the
/// one in the Update's spec, which Pulumi repeats for an operation that changed something.
pub(crate) fn fill(
    status: &mut UpdateStatus,
    outcome: &Outcome,
    task: Option<&str>,
    message: Option<String>,
    secret: Option<String>,
    log: Log,
) {
    status.start_time = outcome.started_at.map(whole);
    status.end_time = Some(whole(outcome.ended_at));
    status.permalink.clone_from(&outcome.permalink);
    status.outputs = secret;
    status.project_info =
        outcome.project.as_ref().map(|project| ProjectInfo { name: project.name.clone(), runtime: project.runtime.clone() });
    status.message = match &outcome.verdict {
        Verdict::Succeeded {} => message.filter(|_| !outcome.preview),
        Verdict::Failed { message, .. } | Verdict::Aborted { message } => Some(message.clone()),
    };
    let changes = outcome.changes.iter().map(|(operation, count)| (operation.clone(), i64::try_from(*count).unwrap_or(i64::MAX)));
    let ours = status.driftless.get_or_insert_default();
    ours.changes = changes.collect();
    ours.duration = outcome.started_at.map(|started| words(outcome.ended_at.duration_since(started)));
    ours.image_pull = outcome.pull_millis.map(|millis| words(SignedDuration::from_millis(i64::try_from(millis).unwrap_or(0))));
    ours.dependencies = outcome.installed.as_ref().map(|installed| installed.summary.clone());
    (ours.log_config_map, ours.log_link) = (log.config_map, log.link);
    let step = |step: &ResourceStep| UpdateStep {
        duration: words(SignedDuration::from_secs(i64::try_from(step.seconds).unwrap_or(i64::MAX))),
        failed: step.failed,
        operation: step.operation.clone(),
        start_time: Some(whole(step.started_at)),
        urn: step.urn.clone(),
    };
    ours.steps = outcome.steps.iter().map(step).collect();
    ours.summary = summary(outcome);
    if let Some(task) = task {
        ours.task = Some(task.to_owned());
    }
}

/// Kubernetes stores whole seconds. Without rounding, the time that is read back would differ and
/// every reconciliation would write it again.
fn whole(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// A duration in Go's format, in whole seconds.
fn words(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// The changes that a run made or found. `None` for a failed run that reported none.
fn summary(outcome: &Outcome) -> Option<String> {
    let count = |operation| outcome.changes.get(operation).filter(|count| **count > 0);
    let changed: Vec<_> = SIGNS.iter().filter_map(|(operation, sign)| Some(format!("{sign}{}", count(*operation)?))).collect();
    let changed = changed.join(" ");
    match (&outcome.drift, changed.is_empty(), &outcome.verdict) {
        (Some(drift), _, _) if drift.count == 0 => Some("no drift".into()),
        (Some(_), _, _) => Some(format!("drift {changed}")),
        (None, false, _) => Some(changed),
        (None, true, Verdict::Succeeded {}) => Some("no changes".into()),
        (None, true, Verdict::Failed { .. } | Verdict::Aborted { .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_as_go_does() {
        for (seconds, expected) in [(-5, "0s"), (0, "0s"), (59, "59s"), (72, "1m12s"), (3600, "1h0m0s"), (46_805, "13h0m5s")] {
            assert_eq!(words(SignedDuration::from_secs(seconds)), expected);
        }
    }
}
