//! The launcher starts the task of an Update, once: it reads what the run needs, takes the claim of the Pulumi stack, writes the
//! launch down, calls `RunTask`, makes the task the run's owner, and gives it what it is to do. Each step is written down before the
//! next, so that another launch of the same Update goes on where this one ended.
//!
//! It does not decide whether to run: an Update of a Stack runs only while the Stack names it.

mod claim;
mod compare;
mod inputs;
mod spec;

use driftless_api::{Stack, Update};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Hint, Launch, LaunchHint, MAX_HOPS, ObjectKey, Owner, RunHint, RunId, RunSpec, SealedInputs, TaskRun, VERSION, from_json,
    keys, to_json,
};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use secrecy::SecretSlice;

/// An Update that waits is looked at again after this long.
const WAIT_SECONDS: u16 = 15;
/// By then the sweep has begun another row of looks: each goes on by itself, and there would be more and more of them.
const WAIT_HOPS: u8 = 8;
/// An Update of a Stack that does not name it was created too late. One that is older than this is given up.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Tries to write a status over a version that somebody else changes.
const STATUS_TRIES: usize = 3;

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
    /// The task role's unique id (`AROA…`): the first part of `aws:userid` in a task.
    pub task_role_id: String,
    /// The image of a Workspace that names none.
    pub default_image: String,
    /// 32 random bytes: the key of all digests of inputs, if there is none yet.
    pub fresh_key: SecretSlice<u8>,
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
    /// A document in the bucket that this release cannot read.
    #[error(transparent)]
    Document(#[from] driftless_contract::InvalidMessage),
}

impl Error {
    /// Another look may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::Kubernetes(error) => error.is_transient(),
            Self::Document(_) => false,
        }
    }
}

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
        Self::wait("SpecInvalid", message)
    }
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.into())
    }
}

/// Looks at an Update. For a cause that passes another look is booked; an error is one that does not.
pub async fn handle<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    now: Timestamp,
) -> Result<(), Error> {
    match look(ports, settings, hint, now).await {
        Err(error) if error.is_transient() => {
            tracing::warn!(update = %hint.update, %error, "looking again later");
            look_later(ports, hint).await
        }
        other => other,
    }
}

async fn look_later<C, O, Q: Queues, T>(ports: &Ports<'_, C, O, Q, T>, hint: &LaunchHint) -> Result<(), Error> {
    match LaunchHint::after(hint.hops, hint.update.clone()) {
        Some(next) => Ok(ports.queues.launch(&next, WAIT_SECONDS).await?),
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
    if key.kind == "Stack" {
        return compare::compare(ports, settings, key, now).await;
    }
    let Some(update) = ports.cluster.get::<Update>(&key.namespace, &key.name).await? else { return Ok(()) };
    let folder = keys::run(&key.cluster, &update.uid().unwrap_or_default());
    if ports.objects.exists(&format!("{folder}outcome")).await? {
        // Also if all is done by its status: a launch that was overtaken may have taken the claim or written a spec after that.
        return tell_recorder(ports, hint, &update).await;
    }
    if update.is_complete() {
        // Another operator's, or somebody wrote its status.
        return Ok(());
    }
    if let Some(owner) = owner(ports, &folder).await? {
        if let Some(task) = owner.task {
            fill_again(ports, settings, hint, &update, &task).await?;
        }
        return tell_recorder(ports, hint, &update).await;
    }
    let age = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
    let current = is_current(ports, settings, &update).await?;
    // One that another operator made for a Stack and did not end is nobody's now.
    let inherited = update.spec.driftless.is_none() && update.stack(&settings.system_namespace).is_some();
    if update.metadata.deletion_timestamp.is_some() || inherited || !current && age > ABANDONED_AFTER {
        return close(ports, hint, &update, &folder, now).await;
    }
    if !current {
        tracing::info!(update = %key, "not launched: its Stack does not name it as its current Update");
        return Ok(());
    }
    match launch(ports, settings, hint, &update, &folder, now).await {
        Ok(()) => Ok(()),
        Err(Stop::Fail(error)) => Err(error),
        Err(Stop::Wait(reason, message)) => {
            tracing::info!(update = %key, reason, message, "waiting");
            set_status(ports, settings, hint, &update, |update| {
                !update.is_complete() && update.set_waiting(reason, &message, now)
            })
            .await?;
            if hint.hops < WAIT_HOPS { look_later(ports, hint).await } else { Ok(()) }
        }
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

/// Gives a run up that no task owns: whoever comes later starts nothing.
async fn close<C, O: Objects, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    hint: &LaunchHint,
    update: &Update,
    folder: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let closed = Owner { version: VERSION, task: None, at: now };
    ports.objects.put_new(&format!("{folder}owner"), to_json(&closed).into_bytes()).await?;
    tell_recorder(ports, hint, update).await
}

async fn owner<C, O: Objects, Q, T>(ports: &Ports<'_, C, O, Q, T>, folder: &str) -> Result<Option<Owner>, Error> {
    let document = ports.objects.get(&format!("{folder}owner")).await?;
    Ok(document.map(|document| from_json("owner", &document)).transpose()?)
}

/// An Update that a Stack owns runs while that Stack names it; one that nobody owns always may.
async fn is_current<C: Cluster, O, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
) -> Result<bool, Error> {
    let Some(owner) = update.stack(&settings.system_namespace) else { return Ok(true) };
    let stack = ports.cluster.get::<Stack>(&owner.namespace, &owner.name).await?;
    Ok(stack.is_some_and(|stack| {
        let current = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
        current.is_some_and(|current| current.name.as_deref() == update.metadata.name.as_deref())
            && update.run_of(&stack.uid().unwrap_or_default(), &settings.system_namespace).is_some()
    }))
}

async fn launch<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    folder: &str,
    now: Timestamp,
) -> Result<(), Stop> {
    let prepared = spec::prepare(ports, settings, &hint.update, update).await?;
    // The claim is in the record before it is taken, and a run that was given up before takes none: the recorder knows what to give back.
    let record = record(ports, settings, &prepared, folder, now).await?;
    if record.run != prepared.run {
        tracing::info!(update = %hint.update, "given up: what it reads names another backend or project than when it was recorded");
        return Ok(close(ports, hint, update, folder, now).await?);
    }
    if owner(ports, folder).await?.is_some() {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    claim::take(ports, &settings.system_namespace, &record.run).await?;
    let task = match ports.tasks.run(&record).await {
        Ok(task) => task,
        // No capacity or a quota: nothing failed that the user could mend.
        Err(driftless_aws::Error::Transient { message, .. }) => {
            return Err(Stop::wait("TaskNotStarted", format!("ECS did not start the task: {message}")));
        }
        Err(error) => return Err(error.into()),
    };
    let ticket = Owner { version: VERSION, task: Some(task.clone()), at: now };
    if !ports.objects.put_new(&format!("{folder}owner"), to_json(&ticket).into_bytes()).await?
        && owner(ports, folder).await?.and_then(|owner| owner.task).as_ref() != Some(&task)
    {
        // Another task owns the run, or it was given up: this one never gets anything to do.
        ports.tasks.stop(&task, "another task owns this run").await?;
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    if !fill(ports, settings, &prepared, &task).await? {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    set_status(ports, settings, hint, update, |update| !update.is_complete() && update.set_running(&task, now)).await?;
    tracing::info!(update = %hint.update, task, "launched");
    Ok(())
}

/// The launch record: this launch's, or that of one which got no further.
async fn record<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    prepared: &spec::Prepared,
    folder: &str,
    now: Timestamp,
) -> Result<Launch, Error> {
    let key = format!("{folder}launch");
    if let Some(document) = ports.objects.get(&key).await? {
        return Ok(from_json("launch record", &document)?);
    }
    let mut shape = prepared.shape.clone();
    shape.image.get_or_insert_with(|| settings.default_image.clone());
    let launch = Launch {
        version: VERSION,
        run: prepared.run.clone(),
        client_token: format!("{}-0", prepared.run.uid),
        task_definition: ports.tasks.definition(&shape).await?,
        inputs: prepared.spec.inputs.clone(),
        at: now,
    };
    if ports.objects.put_new(&key, to_json(&launch).into_bytes()).await? {
        return Ok(launch);
    }
    let document = ports.objects.get(&key).await?.unwrap_or_default();
    Ok(from_json("launch record", &document)?)
}

/// Gives the owner what it is to do. The spec comes last: a task that has it has all. `false` if the run is over.
async fn fill<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    prepared: &spec::Prepared,
    task: &str,
) -> Result<bool, Error> {
    let inbox = format!("{}in/", keys::task(&settings.task_role_id, keys::task_id(task)));
    let run = TaskRun { version: VERSION, run: prepared.run.clone() };
    ports.objects.put(&format!("{inbox}run"), to_json(&run).into_bytes()).await?;
    if let Some(tree) = &prepared.tree {
        ports.objects.put(&format!("{inbox}manifest"), tree.manifest.clone()).await?;
        ports.objects.copy(&format!("{}pack", tree.folder), &format!("{inbox}pack")).await?;
    }
    if let Some(key) = &prepared.seal {
        let RunSpec { env, config, .. } = &prepared.spec;
        let sealed = SealedInputs { version: VERSION, env: env.clone(), config: config.clone() };
        ports.objects.put_sealed(key, to_json(&sealed).into_bytes()).await?;
    }
    ports.objects.put(&format!("{inbox}spec"), to_json(&prepared.spec).into_bytes()).await?;
    // If the outcome was recorded meanwhile, whoever did it has tidied up before this came.
    let RunId { update, uid, .. } = &prepared.run;
    let over = ports.objects.exists(&format!("{}outcome", keys::run(&update.cluster, uid))).await?;
    if over {
        ports.objects.delete(&format!("{inbox}spec")).await?;
    }
    Ok(!over)
}

/// Gives the owner what it is to do if a launch ended between the ticket and that.
async fn fill_again<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    task: &str,
) -> Result<(), Error> {
    let folder = keys::task(&settings.task_role_id, keys::task_id(task));
    for there in ["in/spec", "out/result"] {
        if ports.objects.exists(&format!("{folder}{there}")).await? {
            return Ok(());
        }
    }
    match spec::prepare(ports, settings, &hint.update, update).await {
        Ok(prepared) => fill(ports, settings, &prepared, task).await.map(drop),
        Err(Stop::Fail(error)) => Err(error),
        // The task gives up by itself when nothing comes, and is recorded as such.
        Err(Stop::Wait(reason, message)) => {
            tracing::warn!(update = %hint.update, reason, message, "cannot give the task what it is to do");
            Ok(())
        }
    }
}

/// Changes an Update's status, and tells its Stack if it changed. It is a view for people: one that cannot be written in a few tries is
/// left to the next look.
async fn set_status<C: Cluster, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    change: impl Fn(&mut Update) -> bool,
) -> Result<(), Error> {
    let (namespace, name) = (update.namespace().unwrap_or_default(), update.name_any());
    let mut update = update.clone();
    for _ in 0..STATUS_TRIES {
        if !change(&mut update) {
            return Ok(());
        }
        match ports.cluster.replace_status(&update).await {
            Ok(_) => return tell_stack(ports, settings, hint, &update).await,
            Err(KubernetesError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(fresh) = ports.cluster.get::<Update>(&namespace, &name).await? else { return Ok(()) };
        update = fresh;
    }
    Ok(())
}

/// The Stack shows what its run waits for.
async fn tell_stack<C, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
) -> Result<(), Error> {
    if let Some(stack) = update.stack(&settings.system_namespace).filter(|_| hint.hops < MAX_HOPS) {
        let object = hint.update.sibling("pulumi.com/v1", "Stack", &stack.name);
        let object = ObjectKey { namespace: stack.namespace, ..object };
        ports.queues.hint(&Hint { hops: hint.hops + 1, ..Hint::new(object) }, 0).await?;
    }
    Ok(())
}
