//! The launcher starts the task of an Update, once: it reads what the run needs, takes the claim of the Pulumi stack, writes the
//! launch down, calls `RunTask`, makes the task the run's owner, and gives it what it is to do. Each step is written down before the
//! next, so that another launch of the same Update goes on where this one ended.
//!
//! It does not decide whether to run: an Update of a Stack runs only while the Stack names it.

mod admission;
mod claim;
mod compare;
mod identity;
mod inputs;
mod spec;
mod workspace;

use driftless_api::{DriftlessUpdate, Stack, Update, names};
use driftless_aws::{Objects, Queues, TaskState, Tasks};
use driftless_contract::{
    Hint, Launch, LaunchHint, MAX_HOPS, ObjectKey, Operation, Owner, RunHint, RunLimits, RunSpec, SealedInputs, TaskRun, VERSION,
    from_json, keys, to_json,
};
use driftless_core::{Limits, TaskShape};
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventType};
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
    /// How many runs of a cluster may go on at once.
    pub limits: Limits,
    /// How long a run may take that has no word of its own for it.
    pub run_limits: RunLimits,
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
    match key.kind.as_str() {
        "Stack" => return compare::compare(ports, settings, key, now).await,
        "Workspace" => return workspace::look(ports, settings, hint, now).await,
        _ => {}
    }
    let Some(update) = ports.cluster.get::<Update>(&key.namespace, &key.name).await? else { return Ok(()) };
    let folder = keys::run(&key.cluster, &update.uid().unwrap_or_default());
    if ports.objects.exists(&format!("{folder}outcome")).await? {
        // Also if all is done by its status: a launch that was overtaken may have taken the claim or written a spec after that.
        return tell_recorder(ports, hint, &update).await;
    }
    if update.is_complete() && !is_ours(ports, settings, &update, &folder).await? {
        // Another operator's.
        return Ok(());
    }
    if let Some(owner) = owner(ports, &folder).await? {
        match owner.task {
            Some(task) if update.metadata.deletion_timestamp.is_some() => {
                ports.tasks.stop(&task, "its Update was deleted").await?;
            }
            Some(task) => tend(ports, settings, hint, &update, &task, now).await?,
            None => {}
        }
        return tell_recorder(ports, hint, &update).await;
    }
    let age = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
    let standing = standing(ports, settings, &update).await?;
    let released = !update.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER);
    if standing == Standing::Foreign && update.is_complete() && released {
        // History: what the bucket had of it has expired.
        return Ok(());
    }
    // One that another operator made for a Stack and did not end is nobody's now.
    let inherited = update.spec.driftless.is_none() && update.stack(&settings.system_namespace).is_some();
    if update.metadata.deletion_timestamp.is_some() || inherited || standing == Standing::Foreign && age > ABANDONED_AFTER {
        return close(ports, hint, &update, &folder, now).await;
    }
    if standing == Standing::Foreign {
        tracing::info!(update = %key, "not launched: its Stack does not name it as its current Update");
        return Ok(());
    }
    match launch(ports, settings, hint, &update, &folder, now).await {
        Ok(()) => Ok(()),
        Err(Stop::Fail(error)) => Err(error),
        Err(Stop::Wait(reason, message)) => {
            tracing::info!(update = %key, reason, message, "waiting");
            if standing == Standing::Outdated {
                return close(ports, hint, &update, &folder, now).await;
            }
            let message = format!("{message}; looked at again within a minute");
            set_status(ports, settings, hint, &update, |update| update.set_waiting(reason, &message, now)).await?;
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

/// Only S3 says that such an Update is over: what its status says may be anybody's word.
async fn is_ours<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    folder: &str,
) -> Result<bool, Error> {
    let made = match update.stack(&settings.system_namespace) {
        Some(_) => update.spec.driftless.as_ref().is_some_and(|ours| ours.stack_generation.is_some()),
        None => spec::is_kept(update),
    };
    Ok(made || ports.objects.exists(&format!("{folder}launch")).await?)
}

/// Whether an Update is to be run.
#[derive(Clone, Copy, PartialEq)]
enum Standing {
    /// Its Stack names it, or it has none.
    Current,
    /// Its Stack names it and asks for something else by now: once it cannot begin, it need not.
    Outdated,
    /// Its Stack does not name it.
    Foreign,
}

async fn standing<C: Cluster, O, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
) -> Result<Standing, Error> {
    let Some(owner) = update.stack(&settings.system_namespace) else { return Ok(Standing::Current) };
    let stack = ports.cluster.get::<Stack>(&owner.namespace, &owner.name).await?;
    let named = stack.as_ref().and_then(|stack| stack.status.as_ref()?.current_update.as_ref()?.name.as_deref());
    let run = stack.as_ref().and_then(|stack| update.run_of(&stack.uid().unwrap_or_default(), &settings.system_namespace));
    Ok(match run.filter(|_| named == update.metadata.name.as_deref()) {
        Some(run) if stack.and_then(|stack| stack.metadata.generation) == Some(run.generation) => Standing::Current,
        Some(_) => Standing::Outdated,
        None => Standing::Foreign,
    })
}

async fn launch<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    folder: &str,
    now: Timestamp,
) -> Result<(), Stop> {
    let prepared = spec::prepare(ports, settings, hint, update, now).await?;
    let kept = match &prepared.kept {
        Some(ours) => Some(keep(ports.cluster, update, ours).await?),
        None => None,
    };
    let update = kept.as_ref().unwrap_or(update);
    // The claim is in the record before it is taken, and a run that was given up before takes none: the recorder knows what to give back.
    let record = record(ports, settings, &prepared, folder, now).await?;
    if record.run != prepared.run {
        tracing::info!(update = %hint.update, "given up: what it reads names another backend or project than when it was recorded");
        return Ok(close(ports, hint, update, folder, now).await?);
    }
    if owner(ports, folder).await?.is_some() {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    if settings.limits.any() {
        // Neither is given back here, as another look at the same Update may go on with it. So the place comes first: one that waits for
        // a place holds nobody up at the stack, and one that waits for its claim takes up no place.
        claim::is_ours(ports, &settings.system_namespace, &record.run).await?;
        admission::enter(ports, settings, update, &prepared, now).await?;
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
    if !fill(ports, settings, update, &prepared, &task, now).await? {
        return Ok(tell_recorder(ports, hint, update).await?);
    }
    show_running(ports, settings, hint, update, &task, now).await?;
    tracing::info!(update = %hint.update, task, "launched");
    Ok(())
}

/// Keeps an Update that a user made until its end is recorded, and with it what it runs: neither a later change of its Workspace nor a
/// retry makes it another run.
async fn keep<C: Cluster>(cluster: &C, update: &Update, ours: &DriftlessUpdate) -> Result<Update, KubernetesError> {
    let mut update = update.clone();
    update.spec.driftless = Some(ours.clone());
    update.finalizers_mut().retain(|finalizer| finalizer != names::FINALIZER);
    update.finalizers_mut().push(names::FINALIZER.to_owned());
    cluster.replace(&update).await
}

/// The task definition of a shape.
async fn definition<T: Tasks>(tasks: &T, settings: &Settings, mut shape: TaskShape) -> Result<String, Error> {
    shape.image.get_or_insert_with(|| settings.default_image.clone());
    Ok(tasks.definition(&shape).await?)
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
    let launch = Launch {
        version: VERSION,
        run: prepared.run.clone(),
        client_token: format!("{}-0", prepared.run.uid),
        task_definition: definition(ports.tasks, settings, prepared.shape.clone()).await?,
        project: prepared.project.clone(),
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
async fn fill<C: Cluster, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    prepared: &spec::Prepared,
    task: &str,
    now: Timestamp,
) -> Result<bool, Stop> {
    let identity = match &prepared.account {
        Ok(account) => match identity::tokens(ports.cluster, account).await {
            Err(KubernetesError::NamespaceTerminating { message, .. }) if prepared.spec.operation == Operation::Destroy => {
                Err(message)
            }
            Err(KubernetesError::Permanent { message, .. }) if prepared.is_last => Err(message),
            tokens => Ok(tokens.map_err(identity::refused)?),
        },
        Err(words) => Err(words.clone()),
    };
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
    if let Ok(identity) = &identity {
        ports.objects.put(&format!("{inbox}identity"), to_json(identity).into_bytes()).await?;
    }
    let spec = RunSpec { identity: identity.is_ok(), ..prepared.spec.clone() };
    ports.objects.put(&format!("{inbox}spec"), to_json(&spec).into_bytes()).await?;
    if let Err(words) = identity {
        let note = format!(
            "the run has neither a token for the cluster nor one for an AWS role: {words}. What can only be reached with them cannot be \
             destroyed"
        );
        ports.cluster.event(update, EventType::Warning, "NoIdentity", &note, now).await;
    }
    Ok(!take_back(ports, &prepared.run.update, &prepared.run.uid, &inbox).await?)
}

/// Deletes the secrets of a task's inbox if the outcome was recorded meanwhile: whoever did it has tidied up before they came. Whether
/// it was.
async fn take_back<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    update: &ObjectKey,
    uid: &str,
    inbox: &str,
) -> Result<bool, Error> {
    let over = ports.objects.exists(&format!("{}outcome", keys::run(&update.cluster, uid))).await?;
    if over {
        for secret in ["spec", "identity"] {
            ports.objects.delete(&format!("{inbox}{secret}")).await?;
        }
    }
    Ok(over)
}

/// Looks after a run that a task owns.
async fn tend<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    task: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let folder = keys::task(&settings.task_role_id, keys::task_id(task));
    if ports.objects.exists(&format!("{folder}out/result")).await? {
        return Ok(());
    }
    let done = if ports.objects.exists(&format!("{folder}in/spec")).await? {
        renew(ports, settings, hint, update, task, now).await
    } else {
        fill_again(ports, settings, hint, update, task, now).await
    };
    match done {
        Ok(()) => show_running(ports, settings, hint, update, task, now).await,
        Err(Stop::Fail(error)) => Err(error),
        // The task gives up by itself when nothing comes, and is recorded as such.
        Err(Stop::Wait(reason, message)) => {
            tracing::warn!(update = %hint.update, reason, message, "cannot give the task what it needs");
            Ok(())
        }
    }
}

/// Gives the owner what it is to do if a launch ended between the ticket and that.
async fn fill_again<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    task: &str,
    now: Timestamp,
) -> Result<(), Stop> {
    let prepared = spec::prepare(ports, settings, hint, update, now).await?;
    fill(ports, settings, update, &prepared, task, now).await.map(drop)
}

/// Gives a task new tokens before the ones that it has expire.
async fn renew<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    task: &str,
    now: Timestamp,
) -> Result<(), Stop> {
    let inbox = format!("{}in/", keys::task(&settings.task_role_id, keys::task_id(task)));
    let written = ports.objects.modified(&format!("{inbox}identity")).await?;
    let is_old = written.is_some_and(|at| now.duration_since(at) >= identity::RENEW_AFTER);
    if !is_old || ports.tasks.state(task).await? != TaskState::Alive {
        return Ok(());
    }
    let snapshot = spec::snapshot(ports.cluster, settings, update).await?;
    let account = identity::account(ports.cluster, &snapshot.namespace, &snapshot.workspace).await?;
    let tokens = identity::tokens(ports.cluster, &account).await.map_err(identity::refused)?;
    ports.objects.put(&format!("{inbox}identity"), to_json(&tokens).into_bytes()).await?;
    take_back(ports, &hint.update, &update.uid().unwrap_or_default(), &inbox).await?;
    Ok(())
}

/// Says on an Update which task runs it, if it does not say so: a launch may have ended just before.
async fn show_running<C: Cluster, O, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    task: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let log = ports.tasks.log_url(task);
    set_status(ports, settings, hint, update, |update| {
        let shown = update.status.as_ref().and_then(|status| status.driftless.as_ref()?.task.as_deref());
        (shown != Some(task) || update.is_complete()) && update.set_running(task, &log, now)
    })
    .await
}

/// Changes the status of an Update whose outcome was not recorded when it was read, and tells its Stack if it changed. It is a view for
/// people: one that cannot be written in a few tries is left to the next look.
async fn set_status<C: Cluster, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    update: &Update,
    change: impl Fn(&mut Update) -> bool,
) -> Result<(), Error> {
    let (namespace, name) = (update.namespace().unwrap_or_default(), update.name_any());
    let mut update = update.clone();
    for again in 0..STATUS_TRIES {
        // It may have been recorded meanwhile.
        if again > 0 && update.is_complete() || !change(&mut update) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use driftless_contract::{Identity, RunMessage};
    use driftless_core::Admissions;
    use driftless_testkit::{CLUSTER, Faults, Message, World};
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn quiet() -> World {
        World::new(1, Faults::NONE)
    }

    pub(crate) fn settings() -> Settings {
        Settings {
            system_namespace: "driftless".into(),
            task_role_id: "AROA".into(),
            default_image: "pulumi".into(),
            limits: Limits::default(),
            run_limits: RunLimits { silence_seconds: Some(900), max_seconds: None },
            fresh_key: vec![7; 32].into(),
        }
    }

    pub(crate) fn looked(world: &World, hint: &LaunchHint) {
        look_with(world, &settings(), hint);
    }

    fn look_with(world: &World, settings: &Settings, hint: &LaunchHint) {
        let ports = Ports { cluster: world, objects: world, queues: world, tasks: world };
        world.drive(handle(&ports, settings, hint, world.now())).unwrap().unwrap();
    }

    fn key(kind: &str, namespace: &str, name: &str) -> ObjectKey {
        let api_version = if kind == "Stack" { "pulumi.com/v1" } else { "auto.pulumi.com/v1alpha1" };
        let [cluster, api_version, kind] = [CLUSTER, api_version, kind].map(String::from);
        ObjectKey { cluster, api_version, kind, namespace: namespace.into(), name: name.into() }
    }

    fn hint(name: &str) -> LaunchHint {
        LaunchHint { version: VERSION, update: key("Update", "n", name), hops: 0 }
    }

    fn insert(world: &World, key: &ObjectKey, more: &Value) {
        let mut metadata = json!({ "namespace": key.namespace, "name": key.name, "uid": format!("uid-{}", key.name) });
        metadata = driftless_api::merge(metadata, more.get("metadata").unwrap_or(&json!({})));
        let base = json!({ "apiVersion": key.api_version, "kind": key.kind });
        let mut object = driftless_api::merge(base, more);
        object["metadata"] = metadata;
        world.insert(object);
    }

    fn workspace(world: &World, spec: &Value) {
        insert(world, &key("Workspace", "n", "w"), &json!({ "spec": spec }));
    }

    fn project() -> Value {
        json!({ "projectInfo": { "name": "shop", "runtime": "yaml" } })
    }

    /// An Update that a user made, of the stack that has its name.
    fn by_hand(world: &World, name: &str, spec: &Value) {
        let base = json!({ "workspaceName": "w", "stackName": name, "type": "up" });
        insert(world, &key("Update", "n", name), &json!({ "spec": driftless_api::merge(base, spec) }));
    }

    fn update(world: &World, name: &str) -> Update {
        serde_json::from_value(world.object(&key("Update", "n", name)).unwrap()).unwrap()
    }

    /// The reason and the words of what it waits for.
    fn waits(world: &World, name: &str) -> (String, String) {
        let ours = update(world, name).status.unwrap_or_default().driftless.unwrap_or_default();
        (ours.waiting_reason.unwrap_or_default(), ours.waiting_for.unwrap_or_default())
    }

    /// What is in the folder of the only task.
    fn inbox(world: &World) -> BTreeMap<String, Vec<u8>> {
        let [task] = &world.live_tasks()[..] else { panic!("{:?}", world.live_tasks()) };
        let folder = format!("{}in/", keys::task("AROA", keys::task_id(&task.arn)));
        let of_task = |(key, content): (String, Vec<u8>)| Some((key.strip_prefix(&folder)?.to_owned(), content));
        world.objects().into_iter().filter_map(of_task).collect()
    }

    fn spec(world: &World) -> RunSpec {
        from_json("spec", &inbox(world)["spec"]).unwrap()
    }

    fn identity(world: &World) -> Identity {
        from_json("identity", &inbox(world)["identity"]).unwrap()
    }

    fn received(world: &World) -> Vec<Message> {
        std::iter::from_fn(|| world.receive()).collect()
    }

    fn tells_recorder_of(messages: &[Message], name: &str) -> bool {
        let is = |message: &Message| matches!(message, Message::Run(RunMessage::Hint(hint)) if hint.update.name == name);
        messages.iter().any(is)
    }

    #[test]
    fn an_update_made_by_hand_runs_what_its_workspace_is_when_it_starts_and_is_kept() {
        let world = quiet();
        workspace(&world, &driftless_api::merge(project(), &json!({ "pulumiLogLevel": 3 })));
        by_hand(&world, "u", &json!({ "type": "refresh", "message": "m" }));
        // Whatever step a launch ends before, the next one goes on.
        for call in 0..40 {
            world.crash_before_call(call);
            let ports = Ports { cluster: &world, objects: &world, queues: &world, tasks: &world };
            let _ = world.drive(handle(&ports, &settings(), &hint("u"), world.now()));
        }
        workspace(&world, &project());
        looked(&world, &hint("u"));
        let spec = spec(&world);
        assert_eq!((spec.operation, spec.create, spec.identity), (Operation::Refresh, true, true));
        assert_eq!((spec.log_level, spec.limits), (Some(3), settings().run_limits));
        assert!(identity(&world).cluster.token.ends_with("of n/default for kubernetes"));
        let update = update(&world, "u");
        assert_eq!(update.finalizers(), [names::FINALIZER]);
        let ours = update.status.unwrap().driftless.unwrap();
        let task = world.live_tasks().remove(0).arn;
        assert_eq!((ours.task.as_deref(), ours.log), (Some(task.as_str()), Some(world.log_url(&task))));
    }

    #[test]
    fn what_is_wrong_with_an_update_made_by_hand_is_waited_for_in_words() {
        let limit = |word: &str| json!({ "metadata": { "annotations": { names::MAX_DURATION: word } } });
        let git = json!({ "git": { "url": "u" } });
        let tree = json!({ "driftless": { "tree": { "digest": "sha256:1", "source": { "kind": "GitRepository", "name": "g", "apiVersion": "x/v1" } } } });
        let sizes = driftless_api::merge(project(), &json!({ "serviceAccountName": "gone" }));
        for (of, spec, more, reason, words) in [
            (None, json!({}), json!({}), "WorkspaceNotFound", "Workspace \"w\" is not there"),
            (None, json!({ "workspaceName": null }), json!({}), "SpecInvalid", "spec.workspaceName is missing"),
            (Some(project()), json!({ "stackName": null }), json!({}), "SpecInvalid", "spec.stackName is missing"),
            (Some(project()), json!({ "type": "apply" }), json!({}), "SpecInvalid", "use up, preview, refresh or destroy"),
            (Some(project()), json!({}), limit("1h-5m"), "SpecInvalid", "is \"1h-5m\"; write a duration"),
            (Some(project()), json!({}), limit("99999999999999999999h"), "SpecInvalid", "write a duration"),
            (Some(project()), json!({}), limit("0s"), "SpecInvalid", "write a duration"),
            (
                Some(git),
                json!({}),
                json!({}),
                "SpecInvalid",
                "Workspace \"w\": spec.git has no meaning here; a run takes its source",
            ),
            (Some(json!({})), json!({}), json!({}), "SpecInvalid", "there is nothing to run"),
            (Some(tree), json!({}), json!({}), "TreeNotFound", "it was asked for again"),
            (Some(sizes), json!({}), json!({}), "ServiceAccountNotFound", "ServiceAccount \"gone\" is not there"),
        ] {
            let world = quiet();
            if let Some(of) = &of {
                workspace(&world, of);
            }
            by_hand(&world, "u", &spec);
            let object = world.object(&key("Update", "n", "u")).unwrap();
            insert(&world, &key("Update", "n", "u"), &driftless_api::merge(object, &more));
            looked(&world, &hint("u"));
            let (found, said) = waits(&world, "u");
            assert!(
                found == reason && said.contains(words) && said.ends_with("; looked at again within a minute"),
                "{found}: {said}"
            );
            assert!(world.live_tasks().is_empty() && world.objects().is_empty());
            let fetches = received(&world).into_iter().filter(|message| matches!(message, Message::Fetch(_))).count();
            assert_eq!(fetches, usize::from(reason == "TreeNotFound"));
        }
    }

    #[test]
    fn an_update_may_say_how_long_it_may_take() {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        let object = world.object(&key("Update", "n", "u")).unwrap();
        let annotated = json!({ "metadata": { "annotations": { names::MAX_DURATION: "1h30m" } } });
        insert(&world, &key("Update", "n", "u"), &driftless_api::merge(object, &annotated));
        looked(&world, &hint("u"));
        assert_eq!(spec(&world).limits, RunLimits { silence_seconds: Some(900), max_seconds: Some(5400) });
    }

    #[test]
    fn a_running_update_that_is_deleted_is_stopped() {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        looked(&world, &hint("u"));
        received(&world);
        let running = update(&world, "u");
        world.drive(Cluster::delete(&world, &running)).unwrap().unwrap();
        looked(&world, &hint("u"));
        assert!(world.live_tasks().iter().all(|task| task.stopping));
        assert!(tells_recorder_of(&received(&world), "u"));
    }

    #[test]
    fn tokens_are_replaced_at_half_their_life_while_the_task_lives() {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        looked(&world, &hint("u"));
        let first = identity(&world);
        world.advance(SignedDuration::from_mins(29));
        looked(&world, &hint("u"));
        assert!(identity(&world) == first);
        world.advance(SignedDuration::from_mins(1));
        looked(&world, &hint("u"));
        let second = identity(&world);
        assert!(second.cluster.token != first.cluster.token && second.expires_at == world.now() + SignedDuration::from_hours(1));

        world.advance(SignedDuration::from_mins(30));
        let before = world.objects();
        world.end_task(&world.live_tasks()[0].arn, "done");
        looked(&world, &hint("u"));
        assert_eq!(world.objects(), before);
    }

    /// A Stack and its Update, with that status.
    fn of_stack(world: &World, namespace: &str, operation: &str, status: &Value) {
        let current = json!({ "currentUpdate": { "name": "u" } });
        insert(world, &key("Stack", "n", "s"), &json!({ "spec": { "stack": "dev" }, "status": current }));
        let stack = json!({ "namespace": "n", "name": "s", "uid": "uid-s" });
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "uid-s" });
        let owners = if namespace == "n" { json!([owner]) } else { json!([]) };
        let ours = json!({ "stackGeneration": 1, "commit": "c", "workspace": project(), "stack": stack });
        let spec = json!({ "stackName": "dev", "type": operation, "driftless": ours });
        let more = json!({ "metadata": { "ownerReferences": owners }, "spec": spec, "status": status });
        insert(world, &key("Update", namespace, "u"), &more);
    }

    fn complete() -> Value {
        let at = "2026-01-01T00:00:00Z";
        let condition = |kind: &str, is: &str| json!({ "type": kind, "status": is, "reason": "Updated", "message": "", "lastTransitionTime": at });
        json!({ "conditions": [condition("Progressing", "False"), condition("Failed", "False"), condition("Complete", "True")] })
    }

    #[test]
    fn an_update_that_cannot_begin_gives_way_to_what_its_stack_says_now() {
        for (generation, given_up) in [(1, false), (2, true)] {
            let world = quiet();
            of_stack(&world, "n", "up", &json!({}));
            let mut written = world.object(&key("Update", "n", "u")).unwrap();
            written["spec"]["driftless"]["workspace"]["envFrom"] = json!([{ "secretRef": { "name": "missing" } }]);
            world.insert(written);
            let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
            stack["metadata"]["generation"] = json!(generation);
            world.insert(stack);
            looked(&world, &hint("u"));
            let owner = world.drive(world.exists(&format!("{}owner", keys::run(CLUSTER, &update(&world, "u").uid().unwrap()))));
            assert_eq!(owner.unwrap().unwrap(), given_up, "{generation}");
            assert!(world.live_tasks().is_empty());
        }
        // It begins if it can: what it runs is not wrong.
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let mut stack = world.object(&key("Stack", "n", "s")).unwrap();
        stack["metadata"]["generation"] = json!(2);
        world.insert(stack);
        looked(&world, &hint("u"));
        assert!(inbox(&world).contains_key("spec"));
    }

    #[test]
    fn what_an_updates_status_says_stops_no_launch_of_ours() {
        let world = quiet();
        let forged = driftless_api::merge(complete(), &json!({ "driftless": { "task": "arn:aws:ecs:r:1:task/c/neighbour" } }));
        of_stack(&world, "n", "up", &forged);
        looked(&world, &hint("u"));
        assert!(inbox(&world).contains_key("spec"));
        assert!(!update(&world, "u").is_complete());

        // One that a user made and that began is ours as well.
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        looked(&world, &hint("u"));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["status"] = forged;
        world.insert(written);
        looked(&world, &hint("u"));
        let task = update(&world, "u").status.unwrap().driftless.unwrap().task;
        assert_eq!(task, Some(world.live_tasks().remove(0).arn));

        // One that waits is not over either: nothing else would take our finalizer off it.
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "a", &json!({}));
        by_hand(&world, "u", &json!({ "stackName": "a" }));
        looked(&world, &hint("a"));
        looked(&world, &hint("u"));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["status"] = complete();
        world.insert(written);
        looked(&world, &hint("u"));
        assert_eq!((waits(&world, "u").0.as_str(), update(&world, "u").is_complete()), ("StackClaimed", false));

        // Another operator's is over.
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({}));
        let mut written = world.object(&key("Update", "n", "u")).unwrap();
        written["status"] = complete();
        world.insert(written.clone());
        looked(&world, &hint("u"));
        assert!(world.live_tasks().is_empty() && world.objects().is_empty() && update(&world, "u").is_complete());
    }

    #[test]
    fn a_destroy_in_a_terminating_namespace_goes_on_without_an_identity() {
        let world = quiet();
        world.terminate_namespace("n");
        of_stack(&world, "driftless", "destroy", &json!({}));
        looked(&world, &LaunchHint { update: key("Update", "driftless", "u"), ..hint("u") });
        let spec = spec(&world);
        assert!(!spec.identity && !inbox(&world).contains_key("identity"));
        let [event] = &world.events()[..] else { panic!("{:?}", world.events()) };
        assert!(
            event.starts_with("Update driftless/u Warning NoIdentity: ")
                && event.contains("ServiceAccount \"default\" is not there"),
            "{event}"
        );
    }

    fn admissions(world: &World) -> Admissions {
        let lease: Option<Lease> = world.drive(Cluster::get(world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
        serde_json::from_str(&lease.unwrap().annotations()[keys::ADMISSIONS_ANNOTATION]).unwrap()
    }

    #[test]
    fn no_more_runs_than_may_go_on_are_started_and_who_waits_holds_no_claim() {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "a", &json!({}));
        by_hand(&world, "b", &json!({ "stackName": "a" }));
        by_hand(&world, "c", &json!({}));
        let limited = Settings { limits: Limits { runs: Some(1), runs_per_namespace: None }, ..settings() };
        look_with(&world, &limited, &hint("a"));
        look_with(&world, &limited, &hint("b"));
        assert_eq!(waits(&world, "b").0, "StackClaimed");
        assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-a"]);
        assert!(admissions(&world).waiting.is_empty(), "one that waits for its claim takes up no place");
        received(&world);
        let leases = |world: &World| world.cluster().into_iter().filter(|object| object["kind"] == "Lease").count();
        let before = leases(&world);
        for _ in 0..2 {
            look_with(&world, &limited, &hint("c"));
        }
        let (reason, words) = waits(&world, "c");
        assert_eq!(reason, "ConcurrencyLimit");
        assert!(words.starts_with("1 of at most 1 runs are under way"), "{words}");
        assert_eq!((leases(&world), world.live_tasks().len()), (before, 1));
        assert!(tells_recorder_of(&received(&world), "a"), "its place may be one that was not given back");

        let lease = world.drive(Cluster::get::<Lease>(&world, "driftless", keys::ADMISSIONS)).unwrap().unwrap();
        let (mut lease, mut all) = (lease.unwrap(), admissions(&world));
        assert!(all.release("uid-a"));
        lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), to_json(&all));
        world.drive(world.replace(&lease)).unwrap().unwrap();
        look_with(&world, &limited, &hint("c"));
        assert_eq!(world.live_tasks().len(), 2);
        assert_eq!(admissions(&world).running.into_keys().collect::<Vec<_>>(), ["uid-c"]);
    }
}
