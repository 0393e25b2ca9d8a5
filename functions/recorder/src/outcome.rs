//! The outcome of a run: what its task reported, or why there is no report.

use std::collections::BTreeMap;

use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Document as _, FailureReason, Launch, Lock, Outcome, RunId, TaskSize, TriedArchitecture, UnfitArchitecture, VERSION, Verdict,
    keys::{self, TaskFolder},
};
use driftless_core::{Cause, SELECT_ARCHITECTURE, TaskEnd, run::Ending};
use driftless_kubernetes::Cluster;
use jiff::Timestamp;

use crate::{Error, Recorder, bound, facts::Run};

/// The maximum size of a lock that is kept for the next run, in bytes. The runner's own is about
/// 200 bytes.
pub(crate) const MAX_LOCK: usize = 4 << 10;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// The outcome of a run that ended.
    pub(crate) async fn conclude(&self, run: &Run, ending: Ending) -> Result<Outcome, Error> {
        let Run { launch, owner, task, reported, .. } = run;
        let launch = launch.as_ref();
        let id = run.id();
        let aborted = |message: String| Outcome {
            version: VERSION,
            run: id.clone(),
            verdict: Verdict::Aborted { message },
            result_sha256: None,
            outputs: None,
            project: launch.and_then(|launch| launch.project.clone()),
            permalink: None,
            changes: BTreeMap::new(),
            pending_operations: Vec::new(),
            failures: Vec::new(),
            steps: Vec::new(),
            drift: None,
            would_change: Vec::new(),
            plan: None,
            preview: launch.is_some_and(|launch| launch.preview),
            platform_failure: false,
            inputs: launch.and_then(|launch| launch.inputs.clone()),
            installed: None,
            pull_millis: None,
            operated: Some(false),
            started_at: None,
            ended_at: self.now,
            recorded_at: Some(self.now),
        };
        match (ending, task, reported) {
            (Ending::Reported { end, cause }, Some(task), Some(outcome)) => {
                if outcome.verdict != (Verdict::Succeeded {}) {
                    self.keep_lock(task, &id, None).await?;
                }
                if let Some(launch) = launch {
                    self.discard_cache(launch, outcome).await;
                }
                self.other_architecture(launch, with_cause(outcome.clone(), cause, &end)).await
            }
            (Ending::Lost { end, cause, began }, Some(task), _) => {
                // The task may have run on, and taken the lock, after this reconciliation began.
                self.keep_lock(task, &id, Some(end.at.map_or(self.now, |at| at.max(self.now)))).await?;
                let next = if end.is_other_architecture() { self.next_architecture(launch).await? } else { None };
                let remedy = next.unwrap_or_else(|| end.remedy().into());
                let size = launch.and_then(|launch| launch.size);
                Ok(Outcome {
                    platform_failure: cause.is_platform(),
                    operated: Some(self.objects.exists(&task.lock()).await?),
                    started_at: owner.as_ref().filter(|_| began).map(|owner| owner.at),
                    ..aborted(without_result(cause, &end.words, &remedy, size))
                })
            }
            (Ending::Abandoned | Ending::Reported { .. } | Ending::Lost { .. }, ..) => {
                let why = owner.as_ref().and_then(|owner| owner.refused.as_deref());
                Ok(aborted(why.map_or_else(|| ABANDONED.into(), bound::cut)))
            }
        }
    }

    /// Adds the remedy to the outcome of a run whose Pulumi cannot run on the task's processor.
    async fn other_architecture(&self, launch: Option<&Launch>, mut outcome: Outcome) -> Result<Outcome, Error> {
        if let Verdict::Failed { reason, message, .. } = &mut outcome.verdict
            && *reason == FailureReason::OtherArchitecture
        {
            let next = self.next_architecture(launch).await?;
            message.push_str("; ");
            message.push_str(next.as_deref().unwrap_or(SELECT_ARCHITECTURE));
        }
        Ok(outcome)
    }

    /// Records that the images are not built for the task's processor, and returns the end of the
    /// message. `None` if the Workspace selects the processor.
    async fn next_architecture(&self, launch: Option<&Launch>) -> Result<Option<String>, Error> {
        let Some((run, tried)) = launch.and_then(|launch| Some((&launch.run, launch.tried.as_ref()?))) else { return Ok(None) };
        let TriedArchitecture { images, architecture, other_failed } = tried;
        let unfit = UnfitArchitecture { version: VERSION, architecture: *architecture };
        self.objects.write(&keys::architecture(&run.update, images), &unfit).await?;
        let other = architecture.other();
        Ok(Some(if *other_failed {
            format!(
                "an image is not built for {architecture}, and before this one was not built for {other}; build all images of \
                 the run for one processor; its next run has {other}"
            )
        } else {
            format!("an image is not built for {architecture}; the next run with these images has {other}")
        }))
    }

    /// Records the content of the backend's lock that a dead Pulumi left, so that the next run of
    /// the same stack can remove it. Pulumi is dead if its task is (`gone`), or if the runner says
    /// so.
    async fn keep_lock(&self, task: &TaskFolder, run: &RunId, gone: Option<Timestamp>) -> Result<(), Error> {
        let Some(document) = self.read_report(&task.lock()).await? else { return Ok(()) };
        let lock = match Lock::parse(&document) {
            Ok(lock) if document.len() <= MAX_LOCK => lock,
            // The task wrote it, and a bad lock must not prevent the record of the end.
            other => {
                let error = other.err().map_or_else(|| "too large".into(), |error| error.to_string());
                tracing::warn!(update = %run.update, error, "cannot read the record of the lock that a run may have left");
                return Ok(());
            }
        };
        let Some(not_after) = lock.not_after.or(gone) else { return Ok(()) };
        let key = keys::lock(&run.update.cluster, &run.claim);
        let older = self.objects.read_if_valid(&key).await?;
        let lock = Lock { not_after: Some(not_after), ..lock }.after(older.as_ref());
        Ok(self.objects.write(&key, &lock).await?)
    }
}

/// Why there is no result, in the terms of ECS, and the remedy.
fn without_result(cause: Cause, words: &str, remedy: &str, size: Option<TaskSize>) -> String {
    match cause {
        Cause::Program => format!("the task ended without a result: {words}"),
        Cause::Maintenance | Cause::Outside | Cause::Platform => {
            format!("the task ended without a result: {words}; {remedy}")
        }
        Cause::Spot => format!("{SPOT}: the task ended without a result: {words}"),
        Cause::OutOfMemory => {
            let size = size.map_or_else(String::new, |size| format!(" of {} MiB", size.memory_mib));
            format!("pulumi used more than the task's memory{size}: {words}; {remedy}")
        }
    }
}

/// The message of a run that an earlier release abandoned.
const ABANDONED: &str = "run was abandoned before its task started";

/// The beginning of the message of a run that Fargate Spot interrupted.
const SPOT: &str = "Fargate Spot reclaimed the capacity";

/// Adds the cause of a reported failure to its outcome.
fn with_cause(mut outcome: Outcome, cause: Option<Cause>, end: &TaskEnd) -> Outcome {
    outcome.platform_failure = cause.is_some_and(Cause::is_platform);
    if let Verdict::Failed { message, .. } = &mut outcome.verdict {
        let prefix = match cause {
            Some(Cause::Spot) => format!("{SPOT}: "),
            Some(Cause::Maintenance) => format!("AWS stopped the task ({}): ", end.words),
            Some(Cause::Outside) => format!("the task was stopped ({}); {}: ", end.words, end.remedy()),
            Some(Cause::Program | Cause::OutOfMemory | Cause::Platform) | None => return outcome,
        };
        message.insert_str(0, &prefix);
    }
    outcome
}
