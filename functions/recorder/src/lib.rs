//! The recorder writes down how a run ended, once, and makes it known: the outcome in the bucket first, then the outputs Secret; then
//! it gives the claim back, deletes what the task was given and what it left, and says last, on the Update, that all is done. A message
//! only says where to look; what happened is read from the task's folder and from ECS.

mod bound;
mod cache;
mod count;
mod facts;
mod give_back;
mod log;
mod outcome;
mod outputs;
mod owned;
mod publish;
mod report;
mod status;
mod stop;
mod tell;

use driftless_api::Update;
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    MAX_HOPS, Owner, RunHint, RunMessage, TaskRun, VERSION,
    keys::{self, Report},
};
use driftless_core::run::{Need, RunPlan, plan_run, run_violations};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_telemetry::metrics::{self, Metric};
use facts::Run;
use jiff::Timestamp;
use kube::ResourceExt as _;

/// What the recorder works with, for one cluster.
#[derive(Debug)]
pub struct Ports<'a, C, O, Q, T> {
    /// The cluster that the run is of.
    pub cluster: &'a C,
    /// Runs and tasks' folders.
    pub objects: &'a O,
    /// Where hints go.
    pub queues: &'a Q,
    /// Fargate.
    pub tasks: &'a T,
}

/// What an installation sets.
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

/// Why recording failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AWS.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
}

impl Error {
    /// Another look may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::Kubernetes(error) => error.is_transient(),
        }
    }
}

/// What a message makes due for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The run's end is recorded. Of a run that goes on nothing more is read.
    Outcome,
    /// The same, where a function asks for it: an event of the end may be lost, or its handling was interrupted.
    Repair,
    /// The run's progress is shown. That calls nothing that tenants share and is not requeued, because a task writes progress as often as it
    /// likes. The next progress shows what this one missed, and the sweep finds a run whose task ended.
    Progress,
}

/// The runs that a message may be about: the Updates to look at, and what is due for them. A live task that no run owns is stopped here.
pub async fn runs<O: Objects, T: Tasks>(
    objects: &O,
    tasks: &T,
    settings: &Settings,
    message: RunMessage,
    now: Timestamp,
) -> Result<Vec<(RunHint, Due)>, Error> {
    let folder = |arn: &str| (keys::task(&settings.task_role_id, arn), Due::Outcome);
    let reported = |key: &String| match keys::task_of_report(key)? {
        (folder, Report::Progress) => Some((folder, Due::Progress)),
        (folder, Report::Result) => Some((folder, Due::Outcome)),
    };
    let (folders, live): (Vec<_>, _) = match message {
        RunMessage::Hint(hint) => return Ok(vec![(hint, Due::Repair)]),
        RunMessage::Test => return Ok(Vec::new()),
        RunMessage::Objects(keys) => (keys.iter().filter_map(reported).collect(), None),
        RunMessage::Task { arn } => (vec![folder(&arn)], None),
        RunMessage::Live { arn } => (vec![folder(&arn)], Some(arn)),
    };
    let mut hints = Vec::new();
    for (folder, due) in folders {
        // Absent if the task was never given a run, or if all is recorded.
        if let Some(TaskRun { run, .. }) = objects.read(&folder.run()).await? {
            hints.push((RunHint { version: VERSION, update: run.update, uid: Some(run.uid), hops: 0 }, due));
        }
    }
    if let Some(arn) = live.filter(|_| hints.is_empty()) {
        stop::stop_orphan(tasks, settings, &arn, now).await?;
    }
    Ok(hints)
}

/// Merges a message into one about the end of the same task, and returns whether it did: a task's result and its stop are often in one batch.
#[must_use]
pub fn absorb(settings: &Settings, kept: &RunMessage, other: &RunMessage) -> bool {
    let ended = |message: &RunMessage| match message {
        RunMessage::Task { arn } => Some(keys::task(&settings.task_role_id, arn)),
        RunMessage::Objects(keys) => match keys.as_slice() {
            [key] => keys::task_of_report(key).filter(|(_, report)| *report == Report::Result).map(|(folder, _)| folder),
            _ => None,
        },
        RunMessage::Hint(_) | RunMessage::Live { .. } | RunMessage::Test => None,
    };
    kept == other || ended(kept).zip(ended(other)).is_some_and(|(kept, other)| kept == other)
}

/// After a cause that passes it is looked again after this long.
const PASSING_SECONDS: u16 = 15;

/// Does what is due for the run of an Update. For a cause that passes, the outcome is requeued; an error is one that does not.
pub async fn handle<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &RunHint,
    due: Due,
    now: Timestamp,
) -> Result<(), Error> {
    if hint.hops >= MAX_HOPS {
        metrics::count_one(Metric::HopsExhausted, "recorder", &hint.update.cluster, &hint.update, now);
    }
    let done = match due {
        Due::Outcome | Due::Repair => look(ports, settings, hint, due, now).await,
        Due::Progress => progress(ports, settings, hint, now).await,
    };
    match done {
        Err(error) => failed(ports.queues, hint, due, error, now).await,
        Ok(()) => Ok(()),
    }
}

/// Requeues an outcome after a cause that passes; else the error.
pub async fn failed<Q: Queues>(queues: &Q, hint: &RunHint, due: Due, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(KubernetesError::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that is an event.
        tracing::warn!(update = %hint.update, %error, "nothing is done: an object cannot be read");
        metrics::count_one(Metric::UnreadableObjects, "recorder", &hint.update.cluster, &hint.update, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(update = %hint.update, ?due, %error, "not done; an outcome is tried again, the next progress shows more");
    metrics::count_one(Metric::TransientFailures, "recorder", &hint.update.cluster, &hint.update, now);
    let next = match due {
        Due::Outcome | Due::Repair => RunHint::after(hint.hops, hint.update.clone(), hint.uid.clone()),
        Due::Progress => None,
    };
    match next {
        Some(next) => Ok(queues.run(&next, PASSING_SECONDS).await?),
        None => Ok(()),
    }
}

/// Shows the progress of a run that a task owns.
async fn progress<C: Cluster, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &RunHint,
    now: Timestamp,
) -> Result<(), Error> {
    let update = ports.cluster.get::<Update>(&hint.update.namespace, &hint.update.name).await?;
    let Some(update) = update.filter(|update| update.uid() == hint.uid) else { return Ok(()) };
    let folder = keys::run(&hint.update.cluster, hint.uid.as_deref().unwrap_or_default());
    let Some(Owner { task: Some(arn), at, .. }) = ports.objects.read(&folder.owner()).await? else { return Ok(()) };
    let task = keys::task(&settings.task_role_id, &arn);
    status::show_progress(ports, settings, update, &task, at, now).await
}

async fn look<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &RunHint,
    due: Due,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(mut run) = Run::find(ports, settings, hint, now).await? else { return Ok(()) };
    loop {
        let plan = match plan_run(&run.facts, now) {
            Ok(plan) => plan,
            Err(need) if run.read(ports, settings, need, now).await? => continue,
            Err(_) => return Ok(()),
        };
        let rules = run_violations(&run.facts, &plan);
        debug_assert_eq!(rules, [""; 0], "{}", hint.update);
        if !rules.is_empty() {
            tracing::error!(update = %hint.update, ?rules, "plan refused: it breaks rules");
            metrics::count_one(Metric::RefusedPlans, "recorder", &hint.update.cluster, &hint.update, now);
            return Ok(());
        }
        match plan {
            RunPlan::Stop(why) => {
                let arn = run.owner.as_ref().and_then(|owner| owner.task.as_deref()).unwrap_or_default();
                tracing::warn!(task = arn, why, "stopping a task");
                ports.tasks.stop(arn, &why).await?;
                run.facts.stopped = true;
            }
            RunPlan::Abandon(reason) => {
                let closed = Owner { version: VERSION, task: None, refused: Some(reason.to_string()), at: now };
                if !ports.objects.write_once(&run.folder.owner(), &closed).await? {
                    return Ok(());
                }
                run.set_owner(settings, Some(closed));
            }
            RunPlan::Conclude(ending) => {
                run.read_launch(ports).await?;
                let outcome = outcome::conclude(ports, settings, &run, ending, now).await?;
                let folder = &run.folder;
                if !ports.objects.write_once(&folder.outcome(), &outcome).await?
                    && ports.objects.read(&folder.outcome()).await?.is_some_and(|recorded| recorded != outcome)
                {
                    // Another recorder won the race and publishes its own outcome. If it crashes, SQS delivers its message again.
                    return Ok(());
                }
                tracing::info!(update = %hint.update, verdict = ?outcome.verdict, "recorded");
                if let Some(owner) = &run.owner {
                    count::ended(run.update.as_ref(), owner, run.launch.as_ref(), &outcome, now);
                }
                (run.facts.outcome, run.outcome) = (Some(true), Some(outcome));
            }
            RunPlan::Publish => {
                if run.facts.owner.is_none() {
                    run.read(ports, settings, Need::Owner, now).await?;
                }
                return Box::pin(publish::end(ports, settings, hint, due, run, now)).await;
            }
            // The launcher's, or it goes on: the progress of its task shows how far it is.
            RunPlan::Leave | RunPlan::Start | RunPlan::Wait { .. } | RunPlan::Supply { .. } => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
