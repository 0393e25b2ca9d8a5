//! Reads the facts that `plan_run` needs, each from where it lives.

use driftless_api::Update;
use driftless_aws::{Objects, Queues, TaskState, Tasks};
use driftless_contract::{
    Launch, ObjectKey, Outcome, Owner, RunHint, RunId,
    keys::{self, RunFolder, TaskFolder},
};
use driftless_core::run::{Need, Object, Question, RunFacts, TaskFacts, TaskResult};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Error, Ports, Settings, outcome::is_interrupted, report::reported};

/// A run and the known facts about it.
pub(crate) struct Run {
    pub(crate) folder: RunFolder,
    pub(crate) facts: RunFacts,
    pub(crate) update: Option<Update>,
    pub(crate) owner: Option<Owner>,
    /// The folder of the task that owns the run.
    pub(crate) task: Option<TaskFolder>,
    pub(crate) launch: Option<Launch>,
    /// The outcome, from the task's report.
    pub(crate) reported: Option<Outcome>,
    /// The report that the outcome was made from.
    pub(crate) result: Option<Vec<u8>>,
    /// The recorded outcome.
    pub(crate) outcome: Option<Outcome>,
    key: ObjectKey,
    uid: String,
}

impl Run {
    /// The run that a hint names. `None` if there is no Update of that name and no uid to find its run by.
    pub(crate) async fn find<C: Cluster, O, Q, T>(
        ports: &Ports<'_, C, O, Q, T>,
        settings: &Settings,
        hint: &RunHint,
        now: Timestamp,
    ) -> Result<Option<Self>, Error> {
        let key = &hint.update;
        let (update, is_readable) = match ports.cluster.get::<Update>(&key.namespace, &key.name).await {
            // Without this, its task could outlive every limit and keep its slot from other namespaces. Another release may be
            // able to read the Update, so only the limits end its task.
            Err(error @ KubernetesError::Unreadable { .. }) => {
                tracing::warn!(update = %key, %error, "cannot read an Update; its run is recorded without it");
                (None, false)
            }
            update => (update?, true),
        };
        let update = update.filter(|update| hint.uid.is_none() || update.uid() == hint.uid);
        let Some(uid) = hint.uid.clone().or_else(|| update.as_ref()?.uid()) else { return Ok(None) };
        let object = match &update {
            Some(update) => Object::Found(update.facts(&settings.system_namespace, now)),
            None if is_readable => Object::Gone,
            None => Object::Unreadable,
        };
        let facts = RunFacts { object, question: Question::End, start_seconds: settings.start_seconds, ..RunFacts::default() };
        let folder = keys::run(&key.cluster, &uid);
        let (owner, task, launch, reported, result, outcome) = (None, None, None, None, None, None);
        Ok(Some(Self { folder, facts, update, owner, task, launch, reported, result, outcome, key: key.clone(), uid }))
    }

    /// Sets the owner of the run, as read or written.
    pub(crate) fn set_owner(&mut self, settings: &Settings, owner: Option<Owner>) {
        self.facts.owner = Some(owner.as_ref().map(Owner::facts));
        let arn = owner.as_ref().and_then(|owner| owner.task.as_deref());
        self.task = arn.map(|arn| keys::task(&settings.task_role_id, arn));
        self.owner = owner;
    }

    /// The run, as recorded by its launch.
    pub(crate) fn id(&self) -> RunId {
        let without_launch = || RunId { update: self.key.clone(), uid: self.uid.clone(), claim: String::new() };
        self.launch.as_ref().map_or_else(without_launch, |launch| launch.run.clone())
    }

    /// Reads the launch record if it was not read before. Every outcome needs it to name its run and the claim to release.
    pub(crate) async fn read_launch<C, O: Objects, Q, T>(&mut self, ports: &Ports<'_, C, O, Q, T>) -> Result<(), Error> {
        if self.facts.launch.is_none() {
            self.launch = ports.objects.read(&self.folder.launch()).await?;
            self.facts.launch = Some(self.launch.as_ref().map(Launch::facts));
        }
        Ok(())
    }

    /// Reads a fact. Returns `false` if only the launcher reads it, so that there is nothing to record.
    pub(crate) async fn read<C: Cluster, O: Objects, Q: Queues, T: Tasks>(
        &mut self,
        ports: &Ports<'_, C, O, Q, T>,
        settings: &Settings,
        need: Need,
        now: Timestamp,
    ) -> Result<bool, Error> {
        match need {
            Need::Outcome => {
                self.outcome = ports.objects.read(&self.folder.outcome()).await?;
                self.facts.outcome = Some(self.outcome.is_some());
            }
            Need::Owner => {
                let owner = ports.objects.read(&self.folder.owner()).await?;
                self.set_owner(settings, owner);
            }
            Need::Launch => self.read_launch(ports).await?,
            Need::Task => {
                let arn = self.owner.as_ref().and_then(|owner| owner.task.as_deref()).unwrap_or_default();
                let task = match ports.tasks.state(arn).await? {
                    TaskState::Alive { end, .. } => TaskFacts::Alive { end },
                    TaskState::Stopped { end } => TaskFacts::Stopped { end },
                    TaskState::Missing => TaskFacts::Missing,
                };
                if !matches!(task, TaskFacts::Alive { .. }) && self.reported.is_none() {
                    // The task may have written them between the first read and its end.
                    (self.facts.result, self.facts.began) = (None, None);
                }
                self.facts.task = Some(task);
            }
            Need::Began => {
                let Some(task) = &self.task else { return Ok(false) };
                // The runner writes its progress before it calls Pulumi, and the lock before the operation.
                let began = ports.objects.exists(&task.progress()).await? || ports.objects.exists(&task.lock()).await?;
                self.facts.began = Some(began);
            }
            Need::Result => {
                self.read_launch(ports).await?;
                let (Some(task), Some(owner)) = (&self.task, &self.owner) else { return Ok(false) };
                (self.reported, self.result) = reported(ports, task, self, owner, now).await?.unzip();
                let result = |outcome: &Outcome| TaskResult { interrupted: is_interrupted(outcome) };
                self.facts.result = Some(self.reported.as_ref().map(result));
            }
            Need::Watched | Need::Standing | Need::Named | Need::Holds | Need::Inbox => return Ok(false),
        }
        Ok(true)
    }
}
