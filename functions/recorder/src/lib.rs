//! Records how a run ended, exactly once, and publishes it. The outcome is written to the bucket
//! first, then the outputs Secret. Then the recorder deletes the content of the task folder,
//! releases the claim, and marks the Update complete as the last step. A message only names a run;
//! the facts are read from the task's folder and from ECS.

mod audit;
mod bound;
mod cache;
mod count;
mod document;
mod events;
mod facts;
mod log;
mod named;
mod outcome;
mod outputs;
mod owned;
mod publish;
mod release;
mod report;
mod status;
mod stop;

use driftless_api::{Update, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    MAX_HOPS, Owner, RunHint, RunMessage, TaskRun, VERSION,
    keys::{self, Report, TaskFolder},
};
use driftless_core::run::{Need, RunPlan, plan_run, run_violations};
pub use driftless_kubernetes::CallError as Error;
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_telemetry::metrics::{self, Metric};
use jiff::Timestamp;

/// The settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the claims.
    pub system_namespace: String,
    /// The task role's unique id (`AROA…`).
    pub task_role_id: String,
    /// A task without progress is stopped after this time, in seconds.
    pub start_seconds: u32,
    /// The maximum size of an entry of the cache of dependencies, in bytes.
    pub cache_entry_bytes: u64,
    /// The maximum size of all cache entries of a namespace, in bytes.
    pub cache_namespace_bytes: u64,
}

/// The recorder, for one message of a cluster.
#[derive(Debug)]
pub struct Recorder<'a, C, O, Q, T> {
    /// The cluster of the run.
    pub cluster: &'a C,
    /// The bucket with runs and task folders.
    pub objects: &'a O,
    /// The queues for hints.
    pub queues: &'a Q,
    /// Fargate.
    pub tasks: &'a T,
    /// The settings of the installation.
    pub settings: &'a Settings,
    /// When the invocation began to handle the message.
    pub now: Timestamp,
}

/// What a message requests for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Record the end of the run. Nothing more is read if the run is live.
    Outcome,
    /// The same, as requested by a function: an event of the end may be lost, or its handling was
    /// interrupted.
    Repair,
    /// Show the run's progress, which is in the folder of its task. That uses no resource that
    /// tenants share and is never requeued, because a task may write progress at any rate. The next
    /// progress shows what this one missed, and the sweep finds a run whose task has ended.
    Progress(TaskFolder),
}

/// The runs that a message may concern: their Updates, and what it requests for them. A live task
/// without a run is stopped here.
pub async fn runs<O: Objects, T: Tasks>(
    objects: &O,
    tasks: &T,
    settings: &Settings,
    message: RunMessage,
    now: Timestamp,
) -> Result<Vec<(RunHint, Due)>, Error> {
    let folder = |arn: &str| (keys::task(&settings.task_role_id, arn), Due::Outcome);
    let reported = |key: &String| match keys::task_of_report(key)? {
        (folder, Report::Progress) => Some((folder.clone(), Due::Progress(folder))),
        (folder, Report::Result) => Some((folder, Due::Outcome)),
    };
    let (folders, live): (Vec<_>, _) = match message {
        RunMessage::Hint(hint) => return Ok(vec![(hint, Due::Repair)]),
        RunMessage::Test => return Ok(Vec::new()),
        RunMessage::Objects(keys) => (keys.iter().filter_map(reported).collect(), None),
        RunMessage::Task { task } => (vec![folder(&task)], None),
        RunMessage::Live { task } => (vec![folder(&task)], Some(task)),
    };
    let mut hints = Vec::new();
    for (folder, due) in folders {
        // Absent if the task never got a run, or if everything is recorded.
        if let Some(TaskRun { run, .. }) = objects.read(&folder.run()).await? {
            hints.push((RunHint { version: VERSION, update: run.update, uid: Some(run.uid), hops: 0 }, due));
        }
    }
    if let Some(arn) = live.filter(|_| hints.is_empty()) {
        stop::stop_orphan(tasks, settings.start_seconds, &arn, now).await?;
    }
    Ok(hints)
}

/// Merges a message into another about the end of the same task, and returns whether it did: a
/// task's result and its stop are often in one batch.
#[must_use]
pub fn absorb(settings: &Settings, kept: &RunMessage, other: &RunMessage) -> bool {
    let ended = |message: &RunMessage| match message {
        RunMessage::Task { task } => Some(keys::task(&settings.task_role_id, task)),
        RunMessage::Objects(keys) => match keys.as_slice() {
            [key] => keys::task_of_report(key).filter(|(_, report)| *report == Report::Result).map(|(folder, _)| folder),
            _ => None,
        },
        RunMessage::Hint(_) | RunMessage::Live { .. } | RunMessage::Test => None,
    };
    kept == other || ended(kept).zip(ended(other)).is_some_and(|(kept, other)| kept == other)
}

/// The requeue delay after a transient error, in seconds.
const PASSING_SECONDS: u16 = 15;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Does what is requested for the run of an Update. A transient error requeues an outcome; any
    /// other is returned.
    pub async fn handle(&self, hint: &RunHint, due: Due) -> Result<(), Error> {
        if hint.hops >= MAX_HOPS {
            metrics::count_one(Metric::HopsExhausted, "recorder", &hint.update.cluster, &hint.update, self.now);
        }
        let done = match &due {
            Due::Outcome | Due::Repair => self.reconcile(hint, &due).await,
            Due::Progress(task) => self.publish_progress(hint, task).await,
        };
        match done {
            Err(error) => failed(self.queues, hint, due, error, self.now).await,
            Ok(()) => Ok(()),
        }
    }

    /// Shows the progress of a run. The launcher names a run only in the folder of the task that
    /// owns it.
    async fn publish_progress(&self, hint: &RunHint, task: &TaskFolder) -> Result<(), Error> {
        let update = self.cluster.get::<Update>(&hint.update.namespace, &hint.update.name).await?;
        let Some(update) = update.filter(|update| hint.uid.as_ref() == Some(&uid_of(update))) else { return Ok(()) };
        self.show_progress(update, task).await
    }

    async fn reconcile(&self, hint: &RunHint, due: &Due) -> Result<(), Error> {
        let Some(mut run) = self.find_run(hint).await? else { return Ok(()) };
        loop {
            let plan = match plan_run(&run.facts, self.now) {
                Ok(plan) => plan,
                Err(need) if self.read_fact(&mut run, need).await? => continue,
                Err(_) => return Ok(()),
            };
            let rules = run_violations(&run.facts, &plan);
            debug_assert_eq!(rules, [""; 0], "{}", hint.update);
            if !rules.is_empty() {
                tracing::error!(update = %hint.update, ?rules, "plan refused: it breaks invariants");
                metrics::count_one(Metric::RefusedPlans, "recorder", &hint.update.cluster, &hint.update, self.now);
                return Ok(());
            }
            match plan {
                RunPlan::Stop(why) => {
                    let arn = run.owner.as_ref().and_then(|owner| owner.task.as_deref()).unwrap_or_default();
                    tracing::warn!(task = arn, why, "stopping a task");
                    self.tasks.stop(arn, &why).await?;
                    run.facts.stopped = true;
                }
                RunPlan::Abandon(reason) => {
                    let closed = Owner { version: VERSION, task: None, refused: Some(reason.to_string()), at: self.now };
                    if !self.objects.write_once(&run.folder.owner(), &closed).await? {
                        return Ok(());
                    }
                    run.set_owner(self.settings, Some(closed));
                }
                RunPlan::Conclude(ending) => {
                    self.read_launch(&mut run).await?;
                    let outcome = self.conclude(&run, ending).await?;
                    let folder = &run.folder;
                    if !self.objects.write_once(&folder.outcome(), &outcome).await?
                        && self.objects.read(&folder.outcome()).await?.is_some_and(|recorded| recorded != outcome)
                    {
                        // Another recorder won the race and publishes its own outcome. If it
                        // crashes, SQS delivers its message again.
                        return Ok(());
                    }
                    tracing::info!(update = %hint.update, verdict = ?outcome.verdict, "recorded");
                    if let Some(owner) = &run.owner {
                        count::ended(run.update.as_ref(), owner, run.launch.as_ref(), &outcome, self.now);
                    }
                    (run.facts.outcome, run.outcome) = (Some(true), Some(outcome));
                }
                RunPlan::Publish => {
                    if run.facts.owner.is_none() {
                        self.read_fact(&mut run, Need::Owner).await?;
                    }
                    return Box::pin(self.end(hint, due, run)).await;
                }
                RunPlan::AskAgain { seconds } => {
                    if let Some(next) = RunHint::after(hint.hops, hint.update.clone(), hint.uid.clone()) {
                        self.queues.run(&next, seconds).await?;
                    }
                    return Ok(());
                }
                // The launcher acts, or the run continues and its progress shows in the status.
                RunPlan::Leave | RunPlan::Start | RunPlan::Wait { .. } | RunPlan::Supply { .. } => return Ok(()),
            }
        }
    }
}

/// Requeues an outcome after a transient error; returns any other error.
pub async fn failed<Q: Queues>(queues: &Q, hint: &RunHint, due: Due, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(KubernetesError::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that sends an event.
        tracing::warn!(update = %hint.update, %error, "reconciliation skipped: cannot read an object");
        metrics::count_one(Metric::UnreadableObjects, "recorder", &hint.update.cluster, &hint.update, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(update = %hint.update, ?due, %error, "transient error; an outcome is requeued, progress is skipped");
    metrics::count_one(Metric::TransientFailures, "recorder", &hint.update.cluster, &hint.update, now);
    let next = match due {
        Due::Outcome | Due::Repair => RunHint::after(hint.hops, hint.update.clone(), hint.uid.clone()),
        Due::Progress(_) => None,
    };
    match next {
        Some(next) => Ok(queues.run(&next, PASSING_SECONDS).await?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
