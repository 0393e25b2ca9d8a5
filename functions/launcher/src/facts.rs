//! Reads the facts that `plan_run` needs, each from where it lives.

use driftless_api::{Stack, Update, uid_of};
use driftless_aws::{Objects, Queues, TaskState, Tasks};
use driftless_contract::{
    Launch, LaunchHint, Owner,
    keys::{self, RunFolder, TaskFolder},
};
use driftless_core::run::{Hold, LaunchFacts, Need, Object, RunFacts, Standing, TaskFolderFacts, may_be_demanded};
use driftless_kubernetes::Cluster;
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Error, Launcher, Settings, identity, request::Request};

/// An Update and the known facts about its run.
pub(crate) struct Run {
    pub(crate) update: Update,
    pub(crate) cluster: String,
    pub(crate) folder: RunFolder,
    pub(crate) facts: RunFacts,
    /// The Stack that names the Update, as read from the cluster, whatever the Update itself
    /// claims.
    pub(crate) stack: Option<Stack>,
    /// The ARN of the task that owns the run.
    pub(crate) task: Option<String>,
    pub(crate) launch: Option<Launch>,
}

impl Run {
    pub(crate) fn new(settings: &Settings, hint: &LaunchHint, update: Update, now: Timestamp) -> Self {
        let folder = keys::run(&hint.update.cluster, &uid_of(&update));
        let facts = RunFacts { object: Object::Found(update.facts(&settings.system_namespace, now)), ..RunFacts::default() };
        Self { update, cluster: hint.update.cluster.clone(), folder, facts, stack: None, task: None, launch: None }
    }
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Reads a fact. Returns `false` if only another function reads it.
    pub(crate) async fn read_fact(&self, run: &mut Run, need: Need) -> Result<bool, Error> {
        match need {
            Need::Outcome => {
                // One list call instead of three reads for a run without documents.
                let found = self.objects.list_after(&run.folder, "").await?;
                let has = |document: &str| found.iter().any(|(key, _)| key == document);
                run.facts.outcome = Some(has(&run.folder.outcome()));
                run.facts.owner = (!has(&run.folder.owner())).then_some(None);
                run.facts.launch = (!has(&run.folder.launch())).then_some(None);
            }
            Need::Owner => {
                let owner = self.objects.read(&run.folder.owner()).await?;
                run.facts.owner = Some(owner.as_ref().map(Owner::facts));
                run.task = owner.and_then(|owner| owner.task);
            }
            Need::Launch => {
                run.launch = self.objects.read(&run.folder.launch()).await?;
                let facts = |launch: &Launch| LaunchFacts { readable: Request::recorded(launch).is_some(), ..launch.facts() };
                run.facts.launch = Some(run.launch.as_ref().map(facts));
            }
            Need::Watched => {
                let stack = run.update.stack(&self.settings.system_namespace);
                let own = || run.update.namespace().unwrap_or_default();
                let namespace = stack.map_or_else(own, |stack| stack.namespace);
                run.facts.watched = Some(self.settings.watch().is_ours(self.cluster, &namespace).await?);
            }
            Need::Standing => run.facts.standing = Some(self.standing(run).await?),
            Need::Holds => run.facts.holds = Some(self.holds_claim_or_slot(&run.folder).await?),
            Need::TaskFolder => {
                let task = run.task.as_deref().unwrap_or_default();
                run.facts.task_folder = Some(self.task_folder_facts(task).await?);
            }
            Need::Named | Need::Task | Need::Began | Need::Result => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether the recorder has done all that follows from the outcome: the Update is
    /// complete, and the folder of its task is empty. A concurrent launch may fill the folder
    /// later.
    pub(crate) async fn is_published(&self, run: &Run) -> Result<bool, Error> {
        if !run.update.is_complete() {
            return Ok(false);
        }
        let owner = self.objects.read(&run.folder.owner()).await?;
        let Some(task) = owner.and_then(|owner| owner.task) else { return Ok(true) };
        Ok(!self.objects.exists(&keys::task(&self.settings.task_role_id, &task).run()).await?)
    }

    async fn standing(&self, run: &mut Run) -> Result<Standing, Error> {
        let system = &self.settings.system_namespace;
        let Some(reference) = run.update.stack(system) else { return Ok(Standing::Current) };
        run.stack = self.cluster.get::<Stack>(&reference.namespace, &reference.name).await?;
        let Some(stack) = &run.stack else { return Ok(Standing::Foreign) };
        let of_stack = run.update.run_of(&uid_of(stack), system);
        let is_generation = of_stack.as_ref().map(|of_stack| of_stack.generation) == stack.metadata.generation;
        let is_named = of_stack.is_some() && stack.names(&run.update.name_any());
        let spec = &run.update.spec;
        let (changes, plan) = (!spec.changes_nothing(), spec.plan());
        let created = run.update.metadata.creation_timestamp.as_ref().map(|created| created.0);
        let mut hold = driftless_core::Stack::from(stack).hold(changes, plan.as_ref(), self.now);
        if may_be_demanded(hold, changes, plan.as_ref(), created, self.now)
            && self.demands(&run.cluster, &reference.namespace).await?.is_some()
        {
            hold = Some(Hold::Unapproved);
        }
        Ok(Standing::of_stack(is_named, hold, is_generation))
    }

    /// The content of a task's folder. What a task got is not read once the task has reported its
    /// result.
    async fn task_folder_facts(&self, task: &str) -> Result<TaskFolderFacts, Error> {
        let folder = keys::task(&self.settings.task_role_id, task);
        let result = self.objects.exists(&folder.result()).await?;
        let spec = !result && self.objects.exists(&folder.spec()).await?;
        let old_tokens = spec && self.has_old_tokens(task, &folder).await?;
        Ok(TaskFolderFacts { result, spec, old_tokens })
    }

    /// Returns whether the tokens of a live task are due for renewal.
    async fn has_old_tokens(&self, task: &str, folder: &TaskFolder) -> Result<bool, Error> {
        let written = self.objects.modified(&folder.identity()).await?;
        let is_old = written.is_some_and(|at| identity::is_old(self.settings.token_seconds, at, self.now));
        Ok(is_old && matches!(self.tasks.state(task).await?, TaskState::Alive { .. }))
    }
}
