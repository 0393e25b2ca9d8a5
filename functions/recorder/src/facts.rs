//! Reads the facts that `plan_run` needs, each from where it lives.

use driftless_api::{Update, uid_of};
use driftless_aws::{Objects, Queues, TaskState, Tasks};
use driftless_contract::{
    Claim, Launch, ObjectKey, Outcome, Owner, RunHint, RunId, Uid, Verdict,
    keys::{self, RunFolder, TaskFolder},
};
use driftless_core::run::{Need, Object, Question, RunFacts, TaskFacts, TaskResult};
use driftless_kubernetes::{Cluster, Error as KubernetesError};

use crate::{Error, Recorder, Settings};

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
    uid: Uid,
}

impl Run {
    /// Sets the owner of the run, as read or written.
    pub(crate) fn set_owner(&mut self, settings: &Settings, owner: Option<Owner>) {
        self.facts.owner = Some(owner.as_ref().map(Owner::facts));
        let arn = owner.as_ref().and_then(|owner| owner.task.as_deref());
        self.task = arn.map(|arn| keys::task(&settings.task_role_id, arn));
        self.owner = owner;
    }

    /// The run, as recorded by its launch.
    pub(crate) fn id(&self) -> RunId {
        let without_launch = || RunId { update: self.key.clone(), uid: self.uid.clone(), claim: Claim::default() };
        self.launch.as_ref().map_or_else(without_launch, |launch| launch.run.clone())
    }
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// The run that a hint names. `None` if there is no Update of that name and no uid to find its
    /// run by.
    pub(crate) async fn find_run(&self, hint: &RunHint) -> Result<Option<Run>, Error> {
        let key = &hint.update;
        let (update, is_readable) = match self.cluster.get::<Update>(&key.namespace, &key.name).await {
            // Without this, its task could outlive every limit and keep its slot from other
            // namespaces. Another release may be able to read the Update, so only the limits end
            // its task.
            Err(error @ KubernetesError::Unreadable { .. }) => {
                tracing::warn!(update = %key, %error, "cannot read an Update; its run is recorded without it");
                (None, false)
            }
            update => (update?, true),
        };
        let update = update.filter(|update| hint.uid.as_ref().is_none_or(|uid| *uid == uid_of(update)));
        let Some(uid) = hint.uid.clone().or_else(|| update.as_ref().map(uid_of)) else { return Ok(None) };
        let object = match &update {
            Some(update) => Object::Found(update.facts(&self.settings.system_namespace, self.now)),
            None if is_readable => Object::Gone,
            None => Object::Unreadable,
        };
        let facts =
            RunFacts { object, question: Question::End, start_seconds: self.settings.start_seconds, ..RunFacts::default() };
        let folder = keys::run(&key.cluster, &uid);
        let (owner, task, launch, reported, result, outcome) = (None, None, None, None, None, None);
        Ok(Some(Run { folder, facts, update, owner, task, launch, reported, result, outcome, key: key.clone(), uid }))
    }

    /// Reads the launch record if it was not read before. Every outcome needs it to name its run
    /// and the claim to release.
    pub(crate) async fn read_launch(&self, run: &mut Run) -> Result<(), Error> {
        if run.facts.launch.is_none() {
            run.launch = self.objects.read(&run.folder.launch()).await?;
            run.facts.launch = Some(run.launch.as_ref().map(Launch::facts));
        }
        Ok(())
    }

    /// Reads a fact. Returns `false` if only the launcher reads it, so that there is nothing to
    /// record.
    pub(crate) async fn read_fact(&self, run: &mut Run, need: Need) -> Result<bool, Error> {
        match need {
            Need::Outcome => {
                run.outcome = self.objects.read(&run.folder.outcome()).await?;
                run.facts.outcome = Some(run.outcome.is_some());
            }
            Need::Owner => {
                let owner = self.objects.read(&run.folder.owner()).await?;
                run.set_owner(self.settings, owner);
            }
            Need::Launch => self.read_launch(run).await?,
            Need::Task => {
                let arn = run.owner.as_ref().and_then(|owner| owner.task.as_deref()).unwrap_or_default();
                let task = match self.tasks.state(arn).await? {
                    TaskState::Alive { end, .. } => TaskFacts::Alive { end },
                    TaskState::Stopped { end } => TaskFacts::Stopped { end },
                    TaskState::Missing => TaskFacts::Missing,
                };
                if !matches!(task, TaskFacts::Alive { .. }) && run.reported.is_none() {
                    // The task may have written them between the first read and its end.
                    (run.facts.result, run.facts.began) = (None, None);
                }
                run.facts.task = Some(task);
            }
            Need::Began => {
                let Some(task) = &run.task else { return Ok(false) };
                // The runner writes its progress when it starts Pulumi, and the lock before the
                // operation.
                let began = self.objects.exists(&task.progress()).await? || self.objects.exists(&task.lock()).await?;
                run.facts.began = Some(began);
            }
            Need::Result => {
                self.read_launch(run).await?;
                let (Some(task), Some(owner)) = (&run.task, &run.owner) else { return Ok(false) };
                (run.reported, run.result) = self.reported(task, run, owner).await?.unzip();
                let failure = |outcome: &Outcome| match outcome.verdict {
                    Verdict::Failed { reason, .. } => Some(reason),
                    Verdict::Succeeded {} | Verdict::Aborted { .. } => None,
                };
                run.facts.result = Some(run.reported.as_ref().map(|outcome| TaskResult { failure: failure(outcome) }));
            }
            Need::Watched | Need::Standing | Need::Named | Need::Holds | Need::TaskFolder => return Ok(false),
        }
        Ok(true)
    }
}
