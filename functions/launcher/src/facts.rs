//! Reads the facts that `plan_run` needs, each from where it lives.

use driftless_api::{Stack, Update};
use driftless_aws::{Objects, TaskState, Tasks};
use driftless_contract::{
    Launch, LaunchHint, Owner,
    keys::{self, RunFolder, TaskFolder},
};
use driftless_core::run::{Inbox, LaunchFacts, Need, Object, RunFacts, Standing};
use driftless_kubernetes::Cluster;
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Error, Ports, Settings, claim, identity, request::Request};

/// An Update and the known facts about its run.
pub(crate) struct Run {
    pub(crate) update: Update,
    pub(crate) folder: RunFolder,
    pub(crate) facts: RunFacts,
    /// The Stack that names the Update, as read from the cluster, whatever the Update itself claims.
    pub(crate) stack: Option<Stack>,
    /// The ARN of the task that owns the run.
    pub(crate) task: Option<String>,
    pub(crate) launch: Option<Launch>,
}

impl Run {
    pub(crate) fn new(settings: &Settings, hint: &LaunchHint, update: Update, now: Timestamp) -> Self {
        let folder = keys::run(&hint.update.cluster, &update.uid().unwrap_or_default());
        let facts = RunFacts { object: Object::Found(update.facts(&settings.system_namespace, now)), ..RunFacts::default() };
        Self { update, folder, facts, stack: None, task: None, launch: None }
    }

    /// Reads a fact. Returns `false` if only another function reads it.
    pub(crate) async fn read<C: Cluster, O: Objects, Q, T: Tasks>(
        &mut self,
        ports: &Ports<'_, C, O, Q, T>,
        settings: &Settings,
        need: Need,
        now: Timestamp,
    ) -> Result<bool, Error> {
        match need {
            Need::Outcome => {
                // One list call instead of three reads for a run without documents.
                let found = ports.objects.list_after(&self.folder, "").await?;
                let has = |document: &str| found.iter().any(|(key, _)| key == document);
                self.facts.outcome = Some(has(&self.folder.outcome()));
                self.facts.owner = (!has(&self.folder.owner())).then_some(None);
                self.facts.launch = (!has(&self.folder.launch())).then_some(None);
            }
            Need::Owner => {
                let owner = ports.objects.read(&self.folder.owner()).await?;
                self.facts.owner = Some(owner.as_ref().map(Owner::facts));
                self.task = owner.and_then(|owner| owner.task);
            }
            Need::Launch => {
                self.launch = ports.objects.read(&self.folder.launch()).await?;
                let facts = |launch: &Launch| LaunchFacts { readable: Request::recorded(launch).is_some(), ..launch.facts() };
                self.facts.launch = Some(self.launch.as_ref().map(facts));
            }
            Need::Watched => {
                let stack = self.update.stack(&settings.system_namespace);
                let own = || self.update.namespace().unwrap_or_default();
                let namespace = stack.map_or_else(own, |stack| stack.namespace);
                self.facts.watched = Some(settings.watch().is_ours(ports.cluster, &namespace).await?);
            }
            Need::Standing => self.facts.standing = Some(self.standing(ports.cluster, settings, now).await?),
            Need::Holds => self.facts.holds = Some(claim::is_held(ports, settings, &self.folder).await?),
            Need::Inbox => {
                let task = self.task.as_deref().unwrap_or_default();
                self.facts.inbox = Some(inbox(ports, settings, task, now).await?);
            }
            Need::Named | Need::Task | Need::Began | Need::Result => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether the recorder has done all that follows from the outcome: the Update is complete, and the folder of its
    /// task is empty. A concurrent launch may fill the folder later.
    pub(crate) async fn is_published<C, O: Objects, Q, T>(
        &self,
        ports: &Ports<'_, C, O, Q, T>,
        settings: &Settings,
    ) -> Result<bool, Error> {
        if !self.update.is_complete() {
            return Ok(false);
        }
        let owner = ports.objects.read(&self.folder.owner()).await?;
        let Some(task) = owner.and_then(|owner| owner.task) else { return Ok(true) };
        Ok(!ports.objects.exists(&keys::task(&settings.task_role_id, &task).run()).await?)
    }

    async fn standing<C: Cluster>(&mut self, cluster: &C, settings: &Settings, now: Timestamp) -> Result<Standing, Error> {
        let system = &settings.system_namespace;
        let Some(reference) = self.update.stack(system) else { return Ok(Standing::Current) };
        self.stack = cluster.get::<Stack>(&reference.namespace, &reference.name).await?;
        let Some(stack) = &self.stack else { return Ok(Standing::Foreign) };
        let run = self.update.run_of(&stack.uid().unwrap_or_default(), system);
        let is_generation = run.as_ref().map(|run| run.generation) == stack.metadata.generation;
        let is_named = run.is_some() && stack.names(&self.update.name_any());
        Ok(Standing::of_stack(is_named, stack.hold(&self.update.spec, now), is_generation))
    }
}

/// The content of a task's folder. What a task got is not read once the task has reported its result.
async fn inbox<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    task: &str,
    now: Timestamp,
) -> Result<Inbox, Error> {
    let folder = keys::task(&settings.task_role_id, task);
    let result = ports.objects.exists(&folder.result()).await?;
    let spec = !result && ports.objects.exists(&folder.spec()).await?;
    let old_tokens = spec && has_old_tokens(ports, settings, task, &folder, now).await?;
    Ok(Inbox { result, spec, old_tokens })
}

/// Returns whether the tokens of a live task are due for renewal.
async fn has_old_tokens<C, O: Objects, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    task: &str,
    folder: &TaskFolder,
    now: Timestamp,
) -> Result<bool, Error> {
    let written = ports.objects.modified(&folder.identity()).await?;
    let is_old = written.is_some_and(|at| identity::is_old(settings.token_seconds, at, now));
    Ok(is_old && matches!(ports.tasks.state(task).await?, TaskState::Alive { .. }))
}
