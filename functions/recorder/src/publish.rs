//! Publishes a recorded outcome and releases what the run held.

use std::collections::BTreeSet;

use driftless_api::{StackReference, Update, UpdateStatus, finalizer};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    FailureReason, Hint, Launch, Layer, ObjectKey, Outcome, RunHint, Verdict,
    keys::{self, TaskFolder},
};
use driftless_core::run::{Completion, HandOver, hand_over};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use kube::ResourceExt as _;

use crate::{Due, Error, Recorder, facts::Run, release::has_updated, status};

/// The result, the end of the task and its progress are separate messages, and each may write the
/// Update at the same time.
const STATUS_TRIES: u32 = 3;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Publishes the recorded outcome of a run after it has stopped the task.
    pub(crate) async fn end(&self, hint: &RunHint, due: &Due, run: Run) -> Result<(), Error> {
        let is_launch_known = run.facts.launch.is_some();
        let Run { folder, update, owner, task, launch, result, outcome: Some(outcome), .. } = run else { return Ok(()) };
        if self.renew_log_link(update.as_ref(), &outcome).await? {
            return Ok(());
        }
        // Another release may have written the record and the outcome.
        let launch = if is_launch_known { launch } else { self.objects.read_if_valid(&folder.launch()).await? };
        let arn = owner.and_then(|owner| owner.task);
        // A task can report a result and run on. Its claim and slot are released only after ECS
        // accepted the stop.
        if let Some(arn) = &arn {
            self.tasks.stop(arn, "run is recorded").await?;
        }
        let task_of = arn.as_deref().zip(task.as_ref()).map(|(arn, task)| (arn, task, result));
        let recorded = Recorded { outcome: &outcome, launch: launch.as_ref(), task: task_of };
        let published = self.publish(hint, update, recorded).await?;
        if let Some(update) = published {
            self.hand_over(hint, due, update).await?;
        }
        // Last: until then, a message about the task finds its run. After a crash, only that
        // message is delivered again.
        if let Some(task) = &task {
            self.objects.delete(&task.run()).await?;
        }
        Ok(())
    }

    /// Publishes an outcome and releases what the run held. Every step is idempotent. Returns the
    /// completed Update, if it exists.
    pub(crate) async fn publish(
        &self,
        hint: &RunHint,
        update: Option<Update>,
        Recorded { outcome, launch, task }: Recorded<'_>,
    ) -> Result<Option<Update>, Error> {
        let (arn, task, result) = match task {
            Some((arn, task, result)) => (Some(arn), Some(task), result),
            None => (None, None, None),
        };
        let secret = match (&update, task) {
            (Some(update), Some(task)) => self.store_outputs(update, outcome, task, result).await?,
            _ => None,
        };
        self.delete_documents(outcome, task).await?;
        self.release(hint, update.as_ref(), outcome).await?;
        self.write_plan_record(launch, outcome).await?;
        self.write_audit_record(update.as_ref(), launch, arn, outcome).await?;
        let archives = stored_layers(outcome);
        if let Some(task) = task.filter(|_| !archives.is_empty()) {
            // After the claim is free: an archive takes some seconds to copy.
            if let Some(launch) = launch {
                self.keep_cache(launch, task, outcome).await;
            }
            self.delete(&archives.into_iter().map(|layer| task.installed(layer)).collect::<Vec<_>>()).await?;
        }
        let Some(mut update) = update else { return Ok(None) };
        // After the release of the claim, because no other run waits for a log.
        let log = match task {
            Some(task) => status::Log {
                config_map: self.finish_log(&update, task).await?,
                link: self.keep_log(&update, outcome, task).await?,
            },
            None => status::Log::default(),
        };
        // Last: the sweep hints an incomplete Update, and its finalizer prevents its deletion. A
        // user may have written a complete status, which is corrected here.
        let mut tries = STATUS_TRIES;
        loop {
            let told = update.is_complete();
            let (message, secret, log) = (update.spec.message.clone(), secret.clone(), log.clone());
            let fill = |status: &mut UpdateStatus| status::fill(status, outcome, arn, message, secret, log);
            if !update.set_complete(failure(&outcome.verdict), self.now, fill) {
                break;
            }
            tries -= 1;
            match self.cluster.replace_status(&update).await {
                Ok(written) => {
                    update = written;
                    if !told {
                        self.publish_events(&update, outcome).await;
                    }
                    break;
                }
                // A requeue would leave the Update incomplete for 15 s after its Stack is Ready.
                Err(KubernetesError::Conflict { .. }) if tries > 0 => {
                    let key = &outcome.run.update;
                    let found = self.cluster.get::<Update>(&key.namespace, &key.name).await?;
                    let Some(found) = found.filter(|found| found.uid() == update.uid()) else { return Ok(None) };
                    update = found;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(update))
    }

    /// Hints the Stack of a complete Update, or releases an Update without a Stack.
    async fn hand_over(&self, hint: &RunHint, due: &Due, mut update: Update) -> Result<(), Error> {
        let system = &self.settings.system_namespace;
        let completion = if *due == Due::Repair { Completion::Repair } else { Completion::Event };
        match hand_over(&update.facts(system, self.now), completion) {
            HandOver::Nothing => {}
            HandOver::HintStack => {
                let Some(StackReference { name, namespace, .. }) = update.stack(system) else { return Ok(()) };
                let stack = ObjectKey { namespace, ..hint.update.sibling("pulumi.com/v1", "Stack", &name) };
                self.queues.hint(&Hint::new(stack), 0).await?;
            }
            HandOver::HintUpdate => self.queues.hint(&Hint::new(hint.update.clone()), 0).await?,
            HandOver::Release => {
                finalizer::remove(&mut update);
                self.cluster.patch_metadata(&update).await?;
            }
        }
        Ok(())
    }

    /// Deletes what the task received and what it reported, and the record of an earlier run's lock
    /// that this run removed or did not find. Before the claim is released, because the next run
    /// may leave a lock. The log stays in the folder until that expires, because a copy of it may
    /// still be in progress, and so do policy packs, which have no secrets. `in/run` stays until
    /// everything is published.
    async fn delete_documents(&self, outcome: &Outcome, task: Option<&TaskFolder>) -> Result<(), Error> {
        let mut keys = Vec::new();
        if has_updated(outcome) {
            keys.push(keys::lock(&outcome.run.update.cluster, &outcome.run.claim).to_string());
        }
        if let Some(task) = task {
            let tree = task.tree();
            let kept = stored_layers(outcome);
            let archives = Layer::ALL.into_iter().filter(|layer| !kept.contains(layer)).map(|layer| task.installed(layer));
            keys.extend([&*task.spec(), &*task.identity(), &*task.result(), &*task.lock(), &*task.progress()].map(String::from));
            keys.extend([tree.pack(), tree.manifest()]);
            keys.extend(Layer::ALL.map(|layer| task.restored(layer)).into_iter().chain(archives));
        }
        self.delete(&keys).await
    }

    async fn delete(&self, keys: &[String]) -> Result<(), Error> {
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        if keys.is_empty() { Ok(()) } else { Ok(self.objects.delete_all(&keys).await?) }
    }
}

/// A run whose outcome is recorded.
pub(crate) struct Recorded<'a> {
    pub(crate) outcome: &'a Outcome,
    pub(crate) launch: Option<&'a Launch>,
    /// The task's ARN, its folder, and its report if that was read.
    pub(crate) task: Option<(&'a str, &'a TaskFolder, Option<Vec<u8>>)>,
}

/// The layers whose archives the task stored in its folder.
fn stored_layers(outcome: &Outcome) -> BTreeSet<Layer> {
    outcome.installed.as_ref().map(|installed| installed.stored.clone()).unwrap_or_default()
}

/// The reason and the message of a run that did not succeed.
fn failure(verdict: &Verdict) -> Option<(&str, &str)> {
    match verdict {
        Verdict::Succeeded {} => None,
        Verdict::Failed { reason, message, .. } => Some((reason.as_str(), message)),
        Verdict::Aborted { message } => Some((FailureReason::Aborted.as_str(), message)),
    }
}
