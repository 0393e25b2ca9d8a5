//! Starts the Fargate task for an Update, at most once. A launch is a sequence of durable steps: take the claim of the Pulumi
//! stack, write the launch record, call `RunTask`, make the task the owner, and fill its folder. Each step is recorded before the
//! next one, so a retry continues where the last attempt stopped.
//!
//! `driftless_core::run` decides whether a run starts, waits or is abandoned; [`facts`] reads the facts for that.

mod admission;
mod cache;
mod claim;
mod compare;
mod digest;
mod facts;
mod files;
mod identity;
mod images;
mod inbox;
mod inputs;
mod plan;
mod read;
mod request;
mod source;
mod spec;
mod status;
mod workspace;

use driftless_api::{DriftlessUpdate, PodFields, Update, finalizer};
use driftless_aws::{Objects, Queues, Started, Tasks};
use driftless_contract::{
    Hint, Launch, LaunchHint, MAX_HOPS, Owner, Refused, RunHint, RunLimits, TaskSize, TriedArchitecture, VERSION,
    keys::{self, RunFolder},
};
use driftless_core::{
    Architecture, DefaultSize, Limits, TaskShape, WatchNamespaces,
    run::{AbandonReason, Block, RunPlan, WaitReason, plan_run, run_violations},
    start_backoff,
};
use driftless_kubernetes::{Cluster, Error as KubernetesError, Watch};
use driftless_telemetry::metrics::{self, Metric};
use facts::Run;
pub use images::Images;
use inbox::{Supply, fill, supply};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use request::Request;
use secrecy::SecretSlice;
use status::{set_status, show_running};

/// The requeue delay after a transient error, in seconds.
const WAIT_SECONDS: u16 = 15;
/// The maximum number of requeues in a row for an Update that waits. The sweep starts a new series every minute.
const WAIT_HOPS: u8 = 8;

/// The ports of the launcher for one cluster.
#[derive(Debug)]
pub struct Ports<'a, C, O, Q, T> {
    /// The cluster that the hint names.
    pub cluster: &'a C,
    /// The bucket with trees, runs and task folders.
    pub objects: &'a O,
    /// The queues for requeues and hints.
    pub queues: &'a Q,
    /// Fargate.
    pub tasks: &'a T,
}

/// The settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the claims.
    pub system_namespace: String,
    /// The namespace filter.
    pub namespaces: WatchNamespaces,
    /// The task role's unique id (`AROA…`): the first part of `aws:userid` in a task.
    pub task_role_id: String,
    /// The images of runs whose Workspace names none.
    pub images: Images,
    /// The processor of a task whose Workspace selects none.
    pub default_architecture: Architecture,
    /// How fields that only concern the pod are treated.
    pub pod_fields: PodFields,
    /// The task size for a Workspace that sets none.
    pub default_size: DefaultSize,
    /// Whether runs that change nothing, or ask for it, start on Fargate Spot.
    pub spot: bool,
    /// The limits on concurrent runs of a cluster.
    pub limits: Limits,
    /// The time limits of a run. The annotation of an Update can only shorten them.
    pub run_limits: RunLimits,
    /// The requested lifetime of a run's tokens in seconds; they are renewed at half of it.
    pub token_seconds: u32,
    /// The maximum size of an entry of the cache of dependencies, in bytes. `None` if there is no cache.
    pub cache_entry_bytes: Option<u64>,
    /// 32 random bytes: the key of all digests of inputs, if none is stored yet.
    pub fresh_key: SecretSlice<u8>,
}

impl Settings {
    fn watch(&self) -> Watch<'_> {
        Watch { namespaces: self.namespaces, system_namespace: &self.system_namespace }
    }
}

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of AWS failed.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// A call of the API server failed.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
}

impl Error {
    /// Returns whether a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::Kubernetes(error) => error.is_transient(),
        }
    }
}

/// Why a launch stops.
enum Stop {
    /// It waits: the reason and the message of the Update's condition.
    Wait(WaitReason, String),
    /// It failed.
    Fail(Error),
}

impl Stop {
    fn wait(reason: WaitReason, message: impl Into<String>) -> Self {
        Self::Wait(reason, message.into())
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::wait(WaitReason::SpecInvalid, message)
    }
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            // The user can fix it: a Workspace, a Secret or a ServiceAccount that the run names.
            Error::Kubernetes(error @ KubernetesError::Unreadable { .. }) => Self::invalid(error.to_string()),
            error => Self::Fail(error),
        }
    }
}

/// Reconciles an Update. A transient error leads to a requeue; any other is returned.
pub async fn handle<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    now: Timestamp,
) -> Result<(), Error> {
    if hint.hops >= MAX_HOPS {
        metrics::count_one(Metric::HopsExhausted, "launcher", &hint.update.cluster, &hint.update, now);
    }
    match look(ports, settings, hint, now).await {
        Err(error) => failed(ports.queues, hint, error, now).await,
        Ok(()) => Ok(()),
    }
}

/// Requeues after a transient error; returns any other error.
pub async fn failed<Q: Queues>(queues: &Q, hint: &LaunchHint, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(KubernetesError::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that sends an event.
        tracing::warn!(update = %hint.update, %error, "reconciliation skipped: cannot read an object");
        metrics::count_one(Metric::UnreadableObjects, "launcher", &hint.update.cluster, &hint.update, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(update = %hint.update, %error, "requeued after a transient error");
    metrics::count_one(Metric::TransientFailures, "launcher", &hint.update.cluster, &hint.update, now);
    look_later(queues, hint, WAIT_SECONDS).await
}

async fn look_later<Q: Queues>(queues: &Q, hint: &LaunchHint, seconds: u16) -> Result<(), Error> {
    match LaunchHint::after(hint.hops, hint.update.clone()) {
        Some(next) => Ok(queues.launch(&next, seconds).await?),
        None => Ok(()),
    }
}

async fn look<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    now: Timestamp,
) -> Result<(), Error> {
    let key = &hint.update;
    match key.kind.as_str() {
        "Stack" | "Workspace" if !settings.watch().is_ours(ports.cluster, &key.namespace).await? => return Ok(()),
        "Stack" => return compare::compare(ports, settings, key, now).await,
        "Workspace" => return workspace::look(ports, settings, hint, now).await,
        _ => {}
    }
    let Some(update) = ports.cluster.get::<Update>(&key.namespace, &key.name).await? else { return Ok(()) };
    let mut run = Run::new(settings, hint, update, now);
    // A concurrent launch may take the claim after the run has ended.
    let mut tried = false;
    loop {
        let plan = match plan_run(&run.facts, now) {
            Ok(plan) => plan,
            Err(need) if run.read(ports, settings, need, now).await? => continue,
            Err(_) => break,
        };
        let rules = run_violations(&run.facts, &plan);
        debug_assert_eq!(rules, [""; 0], "{key}");
        if !rules.is_empty() {
            tracing::error!(update = %key, ?rules, "plan refused: it breaks invariants");
            metrics::count_one(Metric::RefusedPlans, "launcher", &key.cluster, key, now);
            return Ok(());
        }
        tracing::info!(update = %key, ?plan, "planned");
        match plan {
            RunPlan::Start => {
                tried = true;
                match launch(ports, settings, hint, &run, now).await {
                    Ok(Launched::Here) => return Ok(()),
                    Ok(Launched::Elsewhere) => break,
                    Ok(Launched::Blocked(block)) => run.facts.block = Some(block),
                    Err(Stop::Wait(reason, message)) => {
                        run.facts.block = Some(Block::Wait { reason, message, is_of_inputs: false });
                    }
                    Err(Stop::Fail(error)) => return Err(error),
                }
            }
            RunPlan::Wait { reason, message, requeue } => {
                let fields = [("cluster", key.cluster.as_str()), ("reason", reason.as_str()), ("update", &key.to_string())];
                metrics::emit(&[(Metric::Waits, 1.0)], &fields, now);
                set_status(ports, settings, hint, &run.update, |update| update.set_waiting(reason, &message, now)).await?;
                return match requeue.filter(|_| hint.hops < WAIT_HOPS) {
                    Some(seconds) => look_later(ports.queues, hint, seconds).await,
                    None => Ok(()),
                };
            }
            RunPlan::Leave if run.facts.owner.flatten().is_none() => return Ok(()),
            RunPlan::Supply { fill, renew } => {
                supply(ports, settings, hint, &run, Supply { fill, renew }, now).await?;
                break;
            }
            RunPlan::Stop(why) => {
                ports.tasks.stop(run.task.as_deref().unwrap_or_default(), &why).await?;
                break;
            }
            RunPlan::Abandon(reason) => {
                close(ports, &run.folder, &reason, now).await?;
                break;
            }
            RunPlan::Publish if !tried && !run.update.asks_for_log(now) && run.is_published(ports, settings).await? => {
                return hint_completed(ports, settings, hint, &run.update).await;
            }
            RunPlan::Leave | RunPlan::AskAgain { .. } | RunPlan::Conclude(_) | RunPlan::Publish => break,
        }
    }
    tell_recorder(ports, hint, &run.update).await
}

/// Hints an Update of a Stack that was completed since the reconciliation that launched it. Its Stack may have recorded the outcome
/// before that, and then only this hint or the sweep releases the Update.
async fn hint_completed<C, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
) -> Result<(), Error> {
    let is_kept = finalizer::is_on(update) && update.stack(&settings.system_namespace).is_some();
    if let Some(next) = Hint::after(hint.hops, hint.update.clone()).filter(|_| is_kept) {
        ports.queues.hint(&next, 0).await?;
    }
    Ok(())
}

async fn tell_recorder<C, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    hint: &LaunchHint,
    update: &Update,
) -> Result<(), Error> {
    if let Some(next) = RunHint::after(hint.hops, hint.update.clone(), update.uid()) {
        ports.queues.run(&next, 0).await?;
    }
    Ok(())
}

/// Closes a run without an owner, so that no task ever owns it. Returns `false` if it has an owner.
async fn close<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    folder: &RunFolder,
    reason: &AbandonReason,
    now: Timestamp,
) -> Result<bool, Error> {
    let closed = Owner { version: VERSION, task: None, refused: Some(reason.to_string()), at: now };
    Ok(ports.objects.write_once(&folder.owner(), &closed).await?)
}

/// The result of a try to start a run's task.
enum Launched {
    /// A task has everything that it needs.
    Here,
    /// A concurrent launch won, or the run has ended: the recorder continues.
    Elsewhere,
    /// No task was started.
    Blocked(Block),
}

async fn launch<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    run: &Run,
    now: Timestamp,
) -> Result<Launched, Stop> {
    let Run { update, folder, stack, .. } = run;
    let recorded = run.launch.as_ref().and_then(|record| Some((record.clone(), Request::recorded(record)?)));
    let mut offer = None;
    let request = match &recorded {
        None => match Request::of(settings, update, stack.as_ref()) {
            Ok(request) => request,
            Err(why) => return Ok(Launched::Blocked(Block::Invalid(why))),
        },
        Some((record, request)) => {
            // Before large reads, because hundreds of Updates may wait for a claim or a slot.
            claim::is_ours(ports, &settings.system_namespace, &record.run, request.is_check(), now).await?;
            if settings.limits.any() {
                offer = Some(admission::ask(ports, settings, update, &record.run, request, now).await?);
            }
            request.clone()
        }
    };
    let prepared = match spec::prepare(ports, settings, hint, update, &request, now).await {
        Ok(prepared) => prepared,
        Err(Stop::Wait(reason, message)) => {
            if let Some(offer) = offer {
                offer.decline(ports.cluster, &update.uid().unwrap_or_default(), now).await;
            }
            return Ok(Launched::Blocked(Block::Wait { reason, message, is_of_inputs: true }));
        }
        Err(Stop::Fail(error)) => return Err(Stop::Fail(error)),
    };
    if let Some(message) = plan::excluded(ports.cluster, &hint.update.cluster, update, &request, &prepared).await? {
        return Ok(Launched::Blocked(Block::Wait { reason: WaitReason::ApprovalRequired, message, is_of_inputs: true }));
    }
    let kept = match &prepared.kept {
        Some(ours) => Some(keep(ports.cluster, update, ours).await?),
        None => None,
    };
    let update = kept.as_ref().unwrap_or(update);
    // The claim is in the record before it is taken, so the recorder knows what to release. A run that was abandoned earlier
    // takes none.
    let (record, is_same) = if let Some((record, _)) = recorded {
        (record, true)
    } else {
        // The spec includes the snapshot that `keep` wrote.
        let request = Request { spec: update.spec.clone(), ..request.clone() };
        let record = record(ports, settings, &prepared, &request, folder, now).await?;
        // A concurrent launch may have recorded a spec that has changed since.
        let is_same = record.request == Some(request.to_record());
        (record, is_same)
    };
    if !is_same || record.run != prepared.run {
        return Ok(Launched::Blocked(Block::OtherProject));
    }
    if ports.objects.exists(&folder.owner()).await? {
        return Ok(Launched::Elsewhere);
    }
    if record.refused.is_some_and(|Refused { since, last }| now < last + start_backoff(since, last)) {
        // The last try has requeued the Update for the next one.
        return Ok(Launched::Here);
    }
    let is_check = prepared.spec.preview_only;
    if settings.limits.any() {
        // Neither is released on a failure here, because a concurrent reconciliation of the same Update may use it. The slot is
        // taken first: a run that waits for a slot blocks no run of its stack, and a run that waits for its claim occupies no
        // slot.
        claim::is_ours(ports, &settings.system_namespace, &record.run, is_check, now).await?;
        admission::ask(ports, settings, update, &record.run, &request, now).await?.take(ports.cluster).await?;
    }
    claim::take(ports, &settings.system_namespace, &record.run, is_check, now).await?;
    let task = match start(ports, &record, folder, now).await {
        Err(Stop::Wait(..)) if ports.objects.exists(&folder.owner()).await? => {
            // A concurrent launch won and its run may have ended: then the recorder releases what this launch took.
            return Ok(Launched::Elsewhere);
        }
        started => started?,
    };
    let ticket = Owner { version: VERSION, task: Some(task.clone()), refused: None, at: now };
    if ports.objects.write_once(&folder.owner(), &ticket).await? {
        // Once per run, because only one owner is ever written.
        let waited = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
        let fields = [("cluster", hint.update.cluster.as_str()), ("update", &hint.update.to_string())];
        metrics::emit(&[(Metric::StartDelay, waited.as_secs_f64().max(0.0))], &fields, now);
    } else if ports.objects.read(&folder.owner()).await?.and_then(|owner| owner.task).as_ref() != Some(&task) {
        // Another task owns the run, or it was abandoned, so this task never gets a spec.
        ports.tasks.stop(&task, "another task owns this run").await?;
        return Ok(Launched::Elsewhere);
    }
    if !fill(ports, settings, update, &prepared, &record, &task, now).await? {
        return Ok(Launched::Elsewhere);
    }
    show_running(ports, settings, hint, update, &task, now).await?;
    tracing::info!(update = %hint.update, task, "launched");
    Ok(Launched::Here)
}

/// Starts the task of a launch record. A user cannot fix a lack of capacity or a quota, so a refusal is no error of the Update.
async fn start<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    record: &Launch,
    folder: &RunFolder,
    now: Timestamp,
) -> Result<String, Stop> {
    let (attempt, stop) = match ports.tasks.run(record).await {
        Ok(Started::Task { arn }) => return Ok(arn),
        Ok(Started::Refused { why }) => {
            (record.attempt + 1, Stop::wait(WaitReason::TaskNotStarted, format!("ECS did not start the task: {why}")))
        }
        // ECS may have started a task: the next try uses the same token.
        Err(error) => (record.attempt, not_started(error)),
    };
    // Of concurrent launches the slower one may write an older attempt, which costs one more try.
    let since = record.refused.map_or(now, |refused| refused.since);
    let next = Launch { attempt, refused: Some(Refused { since, last: now }), ..record.clone() };
    ports.objects.write(&folder.launch(), &next).await?;
    Err(stop)
}

/// Turns an error of ECS into the reason why an Update does not start yet. No error fails the message: it is transient, or the
/// Update's message names who has to act.
pub(crate) fn not_started(error: driftless_aws::Error) -> Stop {
    match error {
        driftless_aws::Error::Transient { message, .. } => {
            Stop::wait(WaitReason::TaskNotStarted, format!("ECS did not start the task: {message}"))
        }
        driftless_aws::Error::Invalid { message, .. } => Stop::invalid(format!("ECS refuses the task definition: {message}")),
        driftless_aws::Error::Permanent { call, message } => {
            tracing::error!(call, message, "ECS refuses to start tasks");
            Stop::wait(WaitReason::TaskRefused, format!("ECS refuses to start the task: {message}"))
        }
    }
}

/// Keeps a user's Update, and what it runs, until its outcome is recorded: neither a later change of its Workspace nor a retry
/// changes the run.
async fn keep<C: Cluster>(cluster: &C, update: &Update, ours: &DriftlessUpdate) -> Result<Update, KubernetesError> {
    let mut update = update.clone();
    finalizer::add(&mut update);
    if update.spec.driftless.replace(ours.clone()).is_some() {
        // Its spec is immutable, including the fields that Driftless's type leaves out.
        return cluster.patch_metadata(&update).await;
    }
    cluster.replace(&update).await
}

/// The task definition of a shape, with this image if the shape names none.
async fn definition<T: Tasks>(tasks: &T, settings: &Settings, image: &str, mut shape: TaskShape) -> Result<String, Stop> {
    shape.image.get_or_insert_with(|| image.to_owned());
    shape.architecture.get_or_insert(settings.default_architecture);
    tasks.definition(&shape).await.map_err(not_started)
}

/// The processor on which to try the images of a shape: the other one if they are not built for the last one. `None` if the
/// Workspace selects a processor or names no image, because then the installation has chosen both.
async fn tried<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    prepared: &spec::Prepared,
    image: &str,
) -> Result<Option<TriedArchitecture>, Error> {
    let (update, shape) = (&prepared.run.update, &prepared.shape);
    let images = shape.images(image).filter(|_| shape.architecture.is_none());
    let Some(images) = images else { return Ok(None) };
    // The next failure writes the document again.
    let unfit = ports.objects.read_if_valid(&keys::architecture(update, &images)).await?;
    let architecture = unfit.map_or(settings.default_architecture, |unfit| unfit.architecture.other());
    Ok(Some(TriedArchitecture { images, architecture, other_failed: unfit.is_some() }))
}

/// Writes the launch record, or returns that of a concurrent launch.
async fn record<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    prepared: &spec::Prepared,
    request: &Request,
    folder: &RunFolder,
    now: Timestamp,
) -> Result<Launch, Stop> {
    let image = settings.images.of(prepared.project.as_ref());
    let tried = tried(ports, settings, prepared, image).await?;
    let architecture = tried.as_ref().map(|tried| tried.architecture).or(prepared.shape.architecture);
    let cache = cache::entries(settings, prepared, request.cache, tried.as_ref(), now);
    let launch = Launch {
        version: VERSION,
        run: prepared.run.clone(),
        attempt: 0,
        task_definition: definition(ports.tasks, settings, image, TaskShape { architecture, ..prepared.shape.clone() }).await?,
        tried,
        project: prepared.project.clone(),
        inputs: prepared.spec.inputs.clone(),
        preview: prepared.spec.is_preview(),
        spot: request.spot,
        cache,
        request: Some(request.to_record()),
        refused: None,
        size: Some(TaskSize { cpu: prepared.shape.cpu, memory_mib: prepared.shape.memory_mib }),
        at: now,
    };
    if ports.objects.write_once(&folder.launch(), &launch).await? {
        return Ok(launch);
    }
    Ok(ports.objects.read(&folder.launch()).await?.unwrap_or(launch))
}

#[cfg(test)]
mod tests;
