//! The launcher starts the task of an Update, once: it reads what the run needs, takes the claim of the Pulumi stack, writes the
//! launch down, calls `RunTask`, makes the task the run's owner, and gives it what it is to do. Each step is written down before the
//! next, so that another launch of the same Update goes on where this one ended.
//!
//! It does not decide whether to run: an Update of a Stack runs only while the Stack names it.

mod admission;
mod claim;
mod compare;
mod files;
mod identity;
mod inbox;
mod inputs;
mod read;
mod request;
mod source;
mod spec;
mod status;
mod workspace;

use driftless_api::{DriftlessUpdate, PodFields, Stack, Update, finalizer};
use driftless_aws::{Objects, Queues, Started, Tasks};
use driftless_contract::{
    Launch, LaunchHint, MAX_HOPS, ObjectKey, Owner, Refused, RunHint, RunLimits, TaskSize, TriedArchitecture, VERSION,
    keys::{self, RunFolder},
};
use driftless_core::{Architecture, DefaultSize, Limits, TaskShape, WatchNamespaces, start_backoff};
use driftless_kubernetes::{Cluster, Error as KubernetesError, Watch};
use driftless_telemetry::metrics::{self, Metric};
use inbox::{fill, tend};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use request::Request;
use secrecy::SecretSlice;
use status::{set_status, show_running};

/// An Update that waits is looked at again after this long.
const WAIT_SECONDS: u16 = 15;
/// The sweep hints an Update that is older than this once a minute.
const SWEPT_AFTER: SignedDuration = SignedDuration::from_mins(1);
/// By then the sweep has begun another row of looks: each goes on by itself, and there would be more and more of them.
const WAIT_HOPS: u8 = 8;
/// An Update of a Stack that does not name it was created too late. One that is older than this is given up.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// What the launcher works with, for one cluster.
#[derive(Debug)]
pub struct Ports<'a, C, O, Q, T> {
    /// The cluster that the hint speaks of.
    pub cluster: &'a C,
    /// Trees, runs and tasks' folders.
    pub objects: &'a O,
    /// Where later looks go.
    pub queues: &'a Q,
    /// Fargate.
    pub tasks: &'a T,
}

/// What an installation sets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the claims.
    pub system_namespace: String,
    /// Where it acts.
    pub namespaces: WatchNamespaces,
    /// The task role's unique id (`AROA…`): the first part of `aws:userid` in a task.
    pub task_role_id: String,
    /// The image of a Workspace that names none.
    pub default_image: String,
    /// The processor of a task whose Workspace selects none.
    pub default_architecture: Architecture,
    /// What becomes of fields that only say where or how a pod runs.
    pub pod_fields: PodFields,
    /// The size of a run whose Workspace does not say.
    pub default_size: DefaultSize,
    /// Whether what changes nothing, or asks for it, is started on Fargate Spot.
    pub spot: bool,
    /// How many runs of a cluster may go on at once.
    pub limits: Limits,
    /// How long a run may take. The annotation of an Update can only shorten it.
    pub run_limits: RunLimits,
    /// For how long a run's tokens are asked for; they are replaced at half their life.
    pub token_seconds: u32,
    /// 32 random bytes: the key of all digests of inputs, if there is none yet.
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

/// The reason of an Update whose spec cannot be run.
const INVALID: &str = "SpecInvalid";
/// The reason of an Update for which there is no task for want of capacity, because of a quota, or because AWS throttles.
const NOT_STARTED: &str = "TaskNotStarted";
/// The reason of an Update for which there is no task because of the installation or the account.
const REFUSED: &str = "TaskRefused";

/// Why a launch goes no further.
enum Stop {
    /// Not now: the reason and the words of the Update's condition.
    Wait(&'static str, String),
    /// It failed.
    Fail(Error),
}

impl Stop {
    fn wait(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Wait(reason, message.into())
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::wait(INVALID, message)
    }
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            // The user can mend it: a Workspace, a Secret or a ServiceAccount that the run names.
            Error::Kubernetes(error @ KubernetesError::Unreadable { .. }) => Self::invalid(error.to_string()),
            error => Self::Fail(error),
        }
    }
}

/// Looks at an Update. For a cause that passes another look is booked; an error is one that does not.
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

/// Books another look after one that failed, if the cause passes; else the error.
pub async fn failed<Q: Queues>(queues: &Q, hint: &LaunchHint, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(KubernetesError::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that is an event.
        tracing::warn!(update = %hint.update, %error, "nothing is done: an object cannot be read");
        metrics::count_one(Metric::UnreadableObjects, "launcher", &hint.update.cluster, &hint.update, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(update = %hint.update, %error, "looking again later");
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
    let folder = keys::run(&key.cluster, &update.uid().unwrap_or_default());
    if ports.objects.exists(&folder.outcome()).await? {
        // Also if all is done by its status: a launch that was overtaken may have taken the claim or written a spec after that.
        return tell_recorder(ports, hint, &update).await;
    }
    if update.is_complete() && !is_ours(ports, settings, &update, &folder).await? {
        // Another operator's.
        return Ok(());
    }
    if let Some(owner) = ports.objects.read(&folder.owner()).await? {
        match owner.task {
            Some(task) if update.metadata.deletion_timestamp.is_some() => {
                ports.tasks.stop(&task, "Update was deleted").await?;
            }
            Some(task) => {
                let launch = ports.objects.read(&folder.launch()).await?;
                tend(ports, settings, hint, &update, launch.as_ref(), &task, now).await?;
            }
            None => {}
        }
        return tell_recorder(ports, hint, &update).await;
    }
    let stack = update.stack(&settings.system_namespace);
    let names_stack = stack.is_some();
    let namespace = stack.as_ref().map_or(&key.namespace, |stack| &stack.namespace);
    if !settings.watch().is_ours(ports.cluster, namespace).await? {
        // Nothing begins. What a launch that did not come to its end may hold is given back.
        let is_recorded = ports.objects.exists(&folder.launch()).await?;
        return if is_recorded { give_up(ports, hint, &update, &folder, now).await } else { Ok(()) };
    }
    let age = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
    let (standing, stack) = standing(ports, settings, &update).await?;
    if standing == Standing::Foreign && update.is_complete() && !finalizer::is_on(&update) {
        // History: what the bucket had of it has expired.
        return Ok(());
    }
    // One that another operator made for a Stack and did not end is nobody's now.
    let inherited = update.spec.driftless.is_none() && names_stack;
    if update.metadata.deletion_timestamp.is_some() || inherited || standing == Standing::Foreign && age > ABANDONED_AFTER {
        return give_up(ports, hint, &update, &folder, now).await;
    }
    if standing == Standing::Foreign {
        tracing::info!(update = %key, "not launched: its Stack does not name it as its current Update");
        return Ok(());
    }
    if standing == Standing::Suspended {
        if claim::is_held(ports, settings, &folder).await? {
            return give_up(ports, hint, &update, &folder, now).await;
        }
        let message = "Stack is suspended; remove driftless.dev/suspend and spec.driftless.suspend to start the run";
        return set_status(ports, settings, hint, &update, |update| update.set_waiting("StackSuspended", message, now)).await;
    }
    let recorded = ports.objects.read(&folder.launch()).await?;
    let refused = recorded.as_ref().and_then(|record| record.refused);
    if standing == Standing::Outdated && refused.is_some() {
        return give_up(ports, hint, &update, &folder, now).await;
    }
    let since = recorded.as_ref().map(|record| record.refused.map_or(now, |refused| refused.since));
    match launch(ports, settings, hint, &update, stack.as_ref(), recorded, now).await {
        Ok(()) => Ok(()),
        Err(Stop::Fail(error)) => Err(error),
        Err(Stop::Wait(reason, message)) => {
            tracing::info!(update = %key, reason, message, "waiting");
            let fields = [("cluster", key.cluster.as_str()), ("reason", reason), ("update", &key.to_string())];
            metrics::emit(&[(Metric::Waits, 1.0)], &fields, now);
            if standing == Standing::Outdated {
                return give_up(ports, hint, &update, &folder, now).await;
            }
            let next = next_try(reason, since, age, now);
            let message = match (reason, next) {
                (INVALID, _) => message,
                (NOT_STARTED | REFUSED, Some(seconds)) => format!("{message}; next try in {seconds}s"),
                _ => format!("{message}; next try within 1m"),
            };
            set_status(ports, settings, hint, &update, |update| update.set_waiting(reason, &message, now)).await?;
            match next.filter(|_| hint.hops < WAIT_HOPS) {
                Some(seconds) => look_later(ports.queues, hint, seconds).await,
                None => Ok(()),
            }
        }
    }
}

/// Returns after how many seconds a waiting Update is reconciled again; `None` leaves that to the sweep.
fn next_try(reason: &str, refused_since: Option<Timestamp>, age: SignedDuration, now: Timestamp) -> Option<u16> {
    match (reason, refused_since) {
        // Only a change of the Update or its Stack ends this, and that is an event.
        (INVALID, _) => None,
        (NOT_STARTED | REFUSED, Some(since)) => u16::try_from(start_backoff(since, now).as_secs()).ok(),
        // There is no task definition, so that no launch record says since when.
        (NOT_STARTED | REFUSED, None) => (age < SWEPT_AFTER).then_some(WAIT_SECONDS),
        _ => Some(WAIT_SECONDS),
    }
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

/// Gives a run up that no task owns, and has that recorded.
async fn give_up<C, O: Objects, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    hint: &LaunchHint,
    update: &Update,
    folder: &RunFolder,
    now: Timestamp,
) -> Result<(), Error> {
    close(ports, folder, None, now).await?;
    tell_recorder(ports, hint, update).await
}

/// Closes a run that no task owns: whoever comes later starts nothing. `refused` is why its Update cannot be run, if that is the cause.
/// `false` if it has an owner.
async fn close<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    folder: &RunFolder,
    refused: Option<String>,
    now: Timestamp,
) -> Result<bool, Error> {
    let closed = Owner { version: VERSION, task: None, refused, at: now };
    Ok(ports.objects.write_once(&folder.owner(), &closed).await?)
}

/// Only S3 says that such an Update is over: what its status says may be anybody's word.
async fn is_ours<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    folder: &RunFolder,
) -> Result<bool, Error> {
    let made = match update.stack(&settings.system_namespace) {
        Some(_) => update.spec.driftless.as_ref().is_some_and(|ours| ours.stack_generation.is_some()),
        None => spec::is_kept(update),
    };
    Ok(made || ports.objects.exists(&folder.launch()).await?)
}

/// Whether an Update is to be run.
#[derive(Clone, Copy, PartialEq)]
enum Standing {
    /// Its Stack names it, or it has none.
    Current,
    /// Its Stack names it and asks for something else by now: once it cannot begin, it need not.
    Outdated,
    /// Its Stack names it and is suspended.
    Suspended,
    /// Its Stack does not name it.
    Foreign,
}

/// The standing of an Update, and the Stack that it is of: the one that the cluster has, not the one that the Update names.
async fn standing<C: Cluster, O, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
) -> Result<(Standing, Option<Stack>), Error> {
    let Some(owner) = update.stack(&settings.system_namespace) else { return Ok((Standing::Current, None)) };
    let stack = ports.cluster.get::<Stack>(&owner.namespace, &owner.name).await?;
    let named = stack.as_ref().is_some_and(|stack| stack.names(&update.name_any()));
    let run = stack.as_ref().and_then(|stack| update.run_of(&stack.uid().unwrap_or_default(), &settings.system_namespace));
    let standing = match run.filter(|_| named) {
        Some(_) if stack.as_ref().is_some_and(Stack::is_suspended) => Standing::Suspended,
        Some(run) if stack.as_ref().and_then(|stack| stack.metadata.generation) == Some(run.generation) => Standing::Current,
        Some(_) => Standing::Outdated,
        None => Standing::Foreign,
    };
    Ok((standing, stack))
}

async fn launch<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    stack: Option<&Stack>,
    recorded: Option<Launch>,
    now: Timestamp,
) -> Result<(), Stop> {
    let folder = &keys::run(&hint.update.cluster, &update.uid().unwrap_or_default());
    let mut offer = None;
    let request = match &recorded {
        None => match Request::of(settings, update, stack) {
            Ok(request) => request,
            // As in PKO: its end says what is wrong, and the user makes another one.
            Err(why) if stack.is_none() => {
                let why = format!("{why}; this Update is not run, create another one");
                close(ports, folder, Some(why), now).await?;
                return Ok(tell_recorder(ports, hint, update).await?);
            }
            // An edit of the Stack ends this.
            Err(why) => return Err(Stop::invalid(why)),
        },
        Some(record) => match Request::recorded(record) {
            Some(request) => {
                // Before anything large is read: hundreds of Updates may wait for a claim or a slot.
                claim::is_ours(ports, &settings.system_namespace, &record.run, request.is_check(), now).await?;
                if settings.limits.any() {
                    offer = Some(admission::ask(ports, settings, update, &record.run, &request, now).await?);
                }
                request
            }
            None => return Ok(give_up(ports, hint, update, folder, now).await?),
        },
    };
    let prepared = match spec::prepare(ports, settings, hint, update, &request, now).await {
        // What it reads went away. Others need not wait for that.
        Err(Stop::Wait(reason, message)) if claim::is_held(ports, settings, folder).await? => {
            tracing::info!(update = %hint.update, reason, message, "given up: it holds its stack and cannot begin");
            return Ok(give_up(ports, hint, update, folder, now).await?);
        }
        Err(stop) => {
            if let (Stop::Wait(..), Some(offer)) = (&stop, offer) {
                offer.decline(ports.cluster, &update.uid().unwrap_or_default(), now).await;
            }
            return Err(stop);
        }
        Ok(prepared) => prepared,
    };
    let kept = match &prepared.kept {
        Some(ours) => Some(keep(ports.cluster, update, ours).await?),
        None => None,
    };
    let update = kept.as_ref().unwrap_or(update);
    // The claim is in the record before it is taken, and a run that was given up before takes none: the recorder knows what to give back.
    let (record, is_same) = if let Some(record) = recorded {
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
        tracing::info!(update = %hint.update, "given up: what it reads names another backend or project than when it was recorded");
        return Ok(give_up(ports, hint, update, folder, now).await?);
    }
    if ports.objects.exists(&folder.owner()).await? {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    if record.refused.is_some_and(|Refused { since, last }| now < last + start_backoff(since, last)) {
        // The last try has requeued the Update for the next one.
        return Ok(());
    }
    let is_check = prepared.spec.preview_only;
    if settings.limits.any() {
        // Neither is given back here, as another look at the same Update may go on with it. So the place comes first: one that waits for
        // a place holds nobody up at the stack, and one that waits for its claim takes up no place.
        claim::is_ours(ports, &settings.system_namespace, &record.run, is_check, now).await?;
        admission::ask(ports, settings, update, &record.run, &request, now).await?.take(ports.cluster).await?;
    }
    claim::take(ports, &settings.system_namespace, &record.run, is_check, now).await?;
    let task = match start(ports, &record, folder, now).await {
        Err(Stop::Wait(..)) if ports.objects.exists(&folder.owner()).await? => {
            // Another launch was quicker, and its run may be over: then the recorder gives back what this one just took.
            return Ok(tell_recorder(ports, hint, update).await?);
        }
        started => started?,
    };
    let ticket = Owner { version: VERSION, task: Some(task.clone()), refused: None, at: now };
    if ports.objects.write_once(&folder.owner(), &ticket).await? {
        // Once per run: only one ticket is ever written.
        let waited = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
        let fields = [("cluster", hint.update.cluster.as_str()), ("update", &hint.update.to_string())];
        metrics::emit(&[(Metric::StartDelay, waited.as_secs_f64().max(0.0))], &fields, now);
    } else if ports.objects.read(&folder.owner()).await?.and_then(|owner| owner.task).as_ref() != Some(&task) {
        // Another task owns the run, or it was given up: this one never gets anything to do.
        ports.tasks.stop(&task, "another task owns this run").await?;
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    if !fill(ports, settings, update, &prepared, &task, now).await? {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    show_running(ports, settings, hint, update, &task, now).await?;
    tracing::info!(update = %hint.update, task, "launched");
    Ok(())
}

/// The task of a launch record. That there is none, for want of capacity or because of a quota, is nothing that the user could mend.
async fn start<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    record: &Launch,
    folder: &RunFolder,
    now: Timestamp,
) -> Result<String, Stop> {
    let (attempt, stop) = match ports.tasks.run(record).await {
        Ok(Started::Task { arn }) => return Ok(arn),
        Ok(Started::Refused { why }) => {
            (record.attempt + 1, Stop::wait(NOT_STARTED, format!("ECS did not start the task: {why}")))
        }
        // It may have started one: the next try asks with the same token.
        Err(error) => (record.attempt, not_started(error)),
    };
    // Of launches at the same time the slower one may set the attempt back, which costs a look.
    let since = record.refused.map_or(now, |refused| refused.since);
    let next = Launch { attempt, refused: Some(Refused { since, last: now }), ..record.clone() };
    ports.objects.write(&folder.launch(), &next).await?;
    Err(stop)
}

/// Turns an error of ECS into the reason why an Update does not start yet. No error fails the message: the load passes, or the Update's
/// message names who has to act.
pub(crate) fn not_started(error: driftless_aws::Error) -> Stop {
    match error {
        driftless_aws::Error::Transient { message, .. } => {
            Stop::wait(NOT_STARTED, format!("ECS did not start the task: {message}"))
        }
        driftless_aws::Error::Invalid { message, .. } => Stop::invalid(format!("ECS refuses the task definition: {message}")),
        driftless_aws::Error::Permanent { call, message } => {
            tracing::error!(call, message, "ECS refuses to start tasks");
            Stop::wait(REFUSED, format!("ECS refuses to start the task: {message}"))
        }
    }
}

/// Keeps an Update that a user made until its end is recorded, and with it what it runs: neither a later change of its Workspace nor a
/// retry makes it another run.
async fn keep<C: Cluster>(cluster: &C, update: &Update, ours: &DriftlessUpdate) -> Result<Update, KubernetesError> {
    let mut update = update.clone();
    finalizer::add(&mut update);
    if update.spec.driftless.replace(ours.clone()).is_some() {
        // Its spec is immutable, down to the fields that our type leaves out.
        return cluster.patch_metadata(&update).await;
    }
    cluster.replace(&update).await
}

/// The task definition of a shape.
async fn definition<T: Tasks>(tasks: &T, settings: &Settings, mut shape: TaskShape) -> Result<String, Stop> {
    shape.image.get_or_insert_with(|| settings.default_image.clone());
    shape.architecture.get_or_insert(settings.default_architecture);
    tasks.definition(&shape).await.map_err(not_started)
}

/// The processor to try the images of a shape on: the other one, if they are not built for the one that was tried last. `None` if the
/// Workspace selects one, or names no image: the installation has chosen its image and processor.
async fn tried<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &ObjectKey,
    shape: &TaskShape,
) -> Result<Option<TriedArchitecture>, Error> {
    let images = shape.images(&settings.default_image).filter(|_| shape.architecture.is_none());
    let Some(images) = images else { return Ok(None) };
    // The next failure writes it again.
    let unfit = ports.objects.read_if_valid(&keys::architecture(update, &images)).await?;
    let architecture = unfit.map_or(settings.default_architecture, |unfit| unfit.architecture.other());
    Ok(Some(TriedArchitecture { images, architecture, other_failed: unfit.is_some() }))
}

/// Writes the launch record, or finds that of a launch at the same time.
async fn record<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    prepared: &spec::Prepared,
    request: &Request,
    folder: &RunFolder,
    now: Timestamp,
) -> Result<Launch, Stop> {
    let tried = tried(ports, settings, &prepared.run.update, &prepared.shape).await?;
    let architecture = tried.as_ref().map(|tried| tried.architecture).or(prepared.shape.architecture);
    let launch = Launch {
        version: VERSION,
        run: prepared.run.clone(),
        attempt: 0,
        task_definition: definition(ports.tasks, settings, TaskShape { architecture, ..prepared.shape.clone() }).await?,
        tried,
        project: prepared.project.clone(),
        inputs: prepared.spec.inputs.clone(),
        preview: prepared.spec.is_preview(),
        spot: request.spot,
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
