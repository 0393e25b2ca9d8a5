//! The recorder writes down how a run ended, once, and makes it known: the outcome in the bucket first, then the outputs Secret; then
//! it gives the claim back, deletes what the task was given and what it left, and says last, on the Update, that all is done. A message
//! only says where to look; what happened is read from the task's folder and from ECS.

mod bound;
mod count;
mod facts;
mod give_back;
mod log;
mod outputs;
mod owned;
mod status;
mod stop;
mod tell;

use std::collections::BTreeMap;

use driftless_api::{StackReference, Update, finalizer};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Document as _, Hint, Key, Launch, Lock, MAX_HOPS, ObjectKey, Outcome, Owner, Phase, RunHint, RunId, RunMessage, RunResult,
    TaskRun, TaskSize, TriedArchitecture, UnfitArchitecture, VERSION, Verdict,
    keys::{self, Report, TaskFolder},
    parsed, reason,
};
use driftless_core::{
    Cause, SELECT_ARCHITECTURE, StopCode, TaskEnd,
    run::{Ending, Need, RunPlan, plan_run, run_violations},
};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_telemetry::metrics::{self, Metric};
use facts::Run;
use give_back::give_back;
use jiff::Timestamp;
use kube::ResourceExt as _;
use sha2::{Digest as _, Sha256};

/// The maximum size of a document of a task that is read, in bytes. What is kept of it is less.
const MAX_REPORT: u64 = 4 << 20;
/// The maximum size of a lock that is kept for the next run, in bytes. The runner's own is about 200 bytes.
const MAX_LOCK: usize = 4 << 10;

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
        RunMessage::Hint(hint) => return Ok(vec![(hint, Due::Outcome)]),
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

/// The result, the end of the task and its progress are messages of their own, and each may write the Update at the same time.
const STATUS_TRIES: u32 = 3;

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
        Due::Outcome => look(ports, settings, hint, now).await,
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
        Due::Outcome => RunHint::after(hint.hops, hint.update.clone(), hint.uid.clone()),
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
                let outcome = conclude(ports, &run, ending, now).await?;
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
                return Box::pin(end(ports, settings, hint, run, now)).await;
            }
            // The launcher's, or it goes on: the progress of its task shows how far it is.
            RunPlan::Leave | RunPlan::Start | RunPlan::Wait { .. } | RunPlan::Supply { .. } => return Ok(()),
        }
    }
}

/// Publishes the recorded outcome of a run, after its task was told to stop.
async fn end<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &RunHint,
    run: Run,
    now: Timestamp,
) -> Result<(), Error> {
    let Run { update, owner, task, result, outcome: Some(outcome), .. } = run else { return Ok(()) };
    // A task can report a result and go on. Its claim and slot are released only after ECS accepted the stop.
    if let Some(arn) = owner.and_then(|owner| owner.task) {
        ports.tasks.stop(&arn, "run is recorded").await?;
    }
    publish(ports, settings, hint, update, &outcome, task.as_ref().map(|task| (task, result)), now).await?;
    // Last: until then, a message about the task finds its run. After a crash, that message is all that comes again.
    if let Some(task) = &task {
        ports.objects.delete(&task.run()).await?;
    }
    Ok(())
}

/// The outcome of a run that ended.
async fn conclude<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    run: &Run,
    ending: Ending,
    now: Timestamp,
) -> Result<Outcome, Error> {
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
        drift: None,
        preview: launch.is_some_and(|launch| launch.preview),
        platform_failure: false,
        inputs: launch.and_then(|launch| launch.inputs.clone()),
        operated: Some(false),
        started_at: None,
        ended_at: now,
        recorded_at: Some(now),
    };
    match (ending, task, reported) {
        (Ending::Reported { end }, Some(task), Some(outcome)) => {
            if outcome.verdict != (Verdict::Succeeded {}) {
                keep_lock(ports, task, &id, None).await?;
            }
            other_architecture(ports, launch, taken_away(outcome.clone(), &end)).await
        }
        (Ending::Lost { end, cause, began }, Some(task), _) => {
            // The task may have lived on, and taken the lock, after this reconciliation began.
            keep_lock(ports, task, &id, Some(end.at.map_or(now, |at| at.max(now)))).await?;
            let next = if end.is_other_architecture() { next_architecture(ports, launch).await? } else { None };
            let remedy = next.unwrap_or_else(|| end.remedy().into());
            let size = launch.and_then(|launch| launch.size);
            Ok(Outcome {
                platform_failure: matches!(cause, Cause::Platform | Cause::Spot),
                operated: Some(ports.objects.exists(&task.lock()).await?),
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

/// Adds what becomes of a run whose pulumi could not be run on the task's processor.
async fn other_architecture<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    launch: Option<&Launch>,
    mut outcome: Outcome,
) -> Result<Outcome, Error> {
    if let Verdict::Failed { reason, message, .. } = &mut outcome.verdict
        && reason == reason::OTHER_ARCHITECTURE
    {
        let next = next_architecture(ports, launch).await?;
        message.push_str("; ");
        message.push_str(next.as_deref().unwrap_or(SELECT_ARCHITECTURE));
    }
    Ok(outcome)
}

/// Records that the images are not built for the task's processor, and returns the end of the message. `None` if the Workspace selects the
/// processor.
async fn next_architecture<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    launch: Option<&Launch>,
) -> Result<Option<String>, Error> {
    let Some((run, tried)) = launch.and_then(|launch| Some((&launch.run, launch.tried.as_ref()?))) else { return Ok(None) };
    let TriedArchitecture { images, architecture, other_failed } = tried;
    let unfit = UnfitArchitecture { version: VERSION, architecture: *architecture };
    ports.objects.write(&keys::architecture(&run.update, images), &unfit).await?;
    let other = architecture.other();
    Ok(Some(if *other_failed {
        format!(
            "an image is not built for {architecture}, and before this one was not built for {other}; build all images of the run for one \
             processor; its next run has {other}"
        )
    } else {
        format!("an image is not built for {architecture}; the next run with these images has {other}")
    }))
}

/// Why there is no result, in ECS's words, and the remedy.
fn without_result(cause: Cause, words: &str, remedy: &str, size: Option<TaskSize>) -> String {
    match cause {
        Cause::Program => format!("the task ended without a result: {words}"),
        Cause::Platform => format!("the task ended without a result: {words}; {remedy}"),
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
const SPOT: &str = "Fargate Spot took the capacity back";

/// Whether the task was told to stop before the run was done.
fn is_interrupted(outcome: &Outcome) -> bool {
    matches!(&outcome.verdict, Verdict::Failed { reason, .. } if reason == reason::INTERRUPTED)
}

/// Marks a run as failed by the platform if AWS or a person stopped its task, or if S3 failed its runner.
fn taken_away(mut outcome: Outcome, end: &TaskEnd) -> Outcome {
    let is_taken_away = end.is_taken_away() && is_interrupted(&outcome);
    if let Verdict::Failed { reason, message, .. } = &mut outcome.verdict {
        outcome.platform_failure =
            is_taken_away || [reason::PLATFORM_FAILURE, reason::OTHER_ARCHITECTURE].contains(&reason.as_str());
        match end.code {
            Some(StopCode::Spot) if is_taken_away => message.insert_str(0, &format!("{SPOT}: ")),
            Some(StopCode::Outside) if is_taken_away => {
                message.insert_str(0, &format!("the task was stopped ({}); {}: ", end.words, end.remedy()));
            }
            _ if is_taken_away => message.insert_str(0, &format!("AWS stopped the task ({}): ", end.words)),
            _ => {}
        }
    }
    outcome
}

/// What the runner reported, without the outputs' secret values, and the report itself.
async fn reported<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    task: &TaskFolder,
    run: &Run,
    owner: &Owner,
    now: Timestamp,
) -> Result<Option<(Outcome, Vec<u8>)>, Error> {
    let Some(document) = report(ports.objects, &task.result()).await? else { return Ok(None) };
    // The task wrote it, and what ran in the task may have: it is an answer even if it is no result.
    let result = if parsed(&document) > bound::MAX_PARSED {
        Err("the task's result has too many values; let the program have smaller outputs".into())
    } else {
        RunResult::parse(&document).map_err(|error| {
            if document.is_empty() {
                "the task's result is empty, or is stored so that it cannot be read".into()
            } else if document.len() as u64 == MAX_REPORT {
                format!("the task's result has more than {} MiB; let the program have smaller outputs", MAX_REPORT >> 20)
            } else {
                format!("the task reported {error}")
            }
        })
    };
    let result = result.unwrap_or_else(|message: String| RunResult::new(bound::unknown(&message), owner.at, now));
    let result = bound::bounded(result, owner.at, now);
    let operated = !matches!(result.verdict, Verdict::Failed { phase, .. } if phase != Phase::Run);
    let (id, preview) = (run.id(), run.launch.as_ref().is_some_and(|launch| launch.preview));
    let outcome = Outcome {
        version: VERSION,
        outputs: result.outputs.as_ref().map(|all| outputs::shown(all, &result.left_out, &outputs::name(&id.update.name))),
        run: id,
        verdict: result.verdict,
        result_sha256: Some(sha256(&document)),
        project: result.project,
        permalink: result.permalink,
        changes: result.changes,
        pending_operations: result.pending_operations,
        failures: result.failures,
        drift: result.drift.filter(|_| preview),
        preview,
        platform_failure: false,
        inputs: result.inputs,
        operated: Some(operated),
        started_at: Some(result.started_at),
        ended_at: result.ended_at,
        recorded_at: Some(now),
    };
    Ok(Some((outcome, document)))
}

/// Reads up to [`MAX_REPORT`] bytes of what a task wrote. An object that S3 has and does not return counts as empty: the end of a run
/// does not depend on how its task stored a report.
async fn report<O: Objects, D>(objects: &O, key: &Key<D>) -> Result<Option<Vec<u8>>, Error> {
    match objects.get_range(key, 0, MAX_REPORT).await {
        Err(driftless_aws::Error::Permanent { call, message }) => {
            tracing::warn!(call, message, "a report of a task cannot be read");
            Ok(Some(Vec::new()))
        }
        document => Ok(document?),
    }
}

fn sha256(document: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(document))
}

/// Keeps what a dead pulumi wrote into the backend's lock, so that the next run of the same stack can remove it. It is dead if the task is
/// (`gone`), or if the runner says so.
async fn keep_lock<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    task: &TaskFolder,
    run: &RunId,
    gone: Option<Timestamp>,
) -> Result<(), Error> {
    let Some(document) = report(ports.objects, &task.lock()).await? else { return Ok(()) };
    let lock = match Lock::parse(&document) {
        Ok(lock) if document.len() <= MAX_LOCK => lock,
        // The task wrote it: the record of its end does not depend on that.
        other => {
            let error = other.err().map_or_else(|| "too large".into(), |error| error.to_string());
            tracing::warn!(update = %run.update, error, "a lock that the run may have left is not known");
            return Ok(());
        }
    };
    let Some(not_after) = lock.not_after.or(gone) else { return Ok(()) };
    let key = keys::lock(&run.update.cluster, &run.claim);
    let older = ports.objects.read_if_valid(&key).await?;
    let lock = Lock { not_after: Some(not_after), ..lock }.after(older.as_ref());
    Ok(ports.objects.write(&key, &lock).await?)
}

/// Makes an outcome known and gives back what the run held. Every step may be done again.
async fn publish<C: Cluster, O: Objects, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &RunHint,
    update: Option<Update>,
    outcome: &Outcome,
    task: Option<(&TaskFolder, Option<Vec<u8>>)>,
    now: Timestamp,
) -> Result<(), Error> {
    let (task, result) = task.unzip();
    let secret = match (&update, task) {
        (Some(update), Some(task)) => outputs::store(ports, update, outcome, task, result.flatten(), now).await?,
        _ => None,
    };
    give_back(ports, settings, hint, update.as_ref(), outcome).await?;
    if let Some(task) = task {
        tidy(ports, task).await?;
    }
    let Some(mut update) = update else { return Ok(()) };
    // After the claim is free: no other run waits for a log.
    let log = match task {
        Some(task) => log::finish(ports, settings, &update, task, now).await?,
        None => None,
    };
    let failure = match &outcome.verdict {
        Verdict::Succeeded {} => None,
        Verdict::Failed { reason, message, .. } => Some((reason.as_str(), message.as_str())),
        Verdict::Aborted { message } => Some(("Aborted", message.as_str())),
    };
    // Last: until an Update is complete the sweep has it looked at, and its finalizer keeps it there. A status that is complete may be
    // anybody's word: what it says of the run is put right.
    let mut tries = STATUS_TRIES;
    loop {
        let told = update.is_complete();
        let message = update.spec.message.clone();
        if !update.set_complete(failure, now, |status| status::fill(status, outcome, message, secret.clone(), log.clone())) {
            break;
        }
        tries -= 1;
        match ports.cluster.replace_status(&update).await {
            Ok(written) => {
                update = written;
                if !told {
                    tell::tell(ports, settings, &update, outcome, now).await;
                }
                break;
            }
            // A requeue would leave the Update incomplete for 15 s after its Stack is Ready.
            Err(KubernetesError::Conflict { .. }) if tries > 0 => {
                let key = &outcome.run.update;
                let found = ports.cluster.get::<Update>(&key.namespace, &key.name).await?;
                let Some(found) = found.filter(|found| found.uid() == update.uid()) else { return Ok(()) };
                update = found;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(StackReference { name, namespace, .. }) = update.stack(&settings.system_namespace) {
        let stack = ObjectKey { namespace, ..outcome.run.update.sibling("pulumi.com/v1", "Stack", &name) };
        // A hint is a repair: the Stack may name another Update by now. The reconciliation of this one releases it, and hints the Stack.
        let object = if hint.hops > 0 { hint.update.clone() } else { stack };
        ports.queues.hint(&Hint::new(object), 0).await?;
    } else if finalizer::is_on(&update) {
        // No Stack has to learn of it.
        finalizer::remove(&mut update);
        ports.cluster.patch_metadata(&update).await?;
    }
    Ok(())
}

/// Deletes what the task was given and what it left. The log stays in the folder until that expires: a copy of it may still be
/// under way. `in/run` stays until all is told.
async fn tidy<C, O: Objects, Q, T>(ports: &Ports<'_, C, O, Q, T>, task: &TaskFolder) -> Result<(), Error> {
    let keys: [&str; 7] =
        [&task.spec(), &task.identity(), &task.result(), &task.pack(), &task.manifest(), &task.lock(), &task.progress()];
    Ok(ports.objects.delete_all(&keys).await?)
}

#[cfg(test)]
mod tests;
