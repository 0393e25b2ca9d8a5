//! Starts the Fargate task for an Update, at most once. A launch is a sequence of durable steps:
//! write the launch record, take the slot and the claim of the Pulumi stack, call `RunTask`, make
//! the task the owner, and fill its folder. Each step is recorded before the next one, so a retry
//! continues where the last attempt stopped.
//!
//! `driftless_core::run` decides whether a run starts, waits or is abandoned; [`facts`] reads the
//! facts for that.

mod admission;
mod cache;
mod claim;
mod compare;
mod digest;
mod facts;
mod files;
mod identity;
mod images;
mod inputs;
mod launcher;
mod plan;
mod policy_packs;
mod read;
mod request;
mod snapshot;
mod source;
mod spec;
mod status;
mod task_folder;
mod workspace;

use driftless_api::{DriftlessUpdate, Update, finalizer, uid_of};
use driftless_aws::{Objects, Queues, Started, Tasks};
use driftless_contract::{
    Hint, Launch, LaunchHint, LaunchKind, MAX_HOPS, Owner, Refused, RunHint, RunId, TaskSize, TriedArchitecture, VERSION,
    keys::{self, RunFolder},
};
use driftless_core::{
    TaskShape, is_backing_off,
    run::{AbandonReason, Block, Completion, HandOver, RunPlan, WaitReason, hand_over, plan_run, run_violations},
};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_telemetry::metrics::{self, Metric};
use facts::Run;
pub use images::Images;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
pub(crate) use launcher::Stop;
pub use launcher::{Error, Launcher, Settings};
use request::Request;
use task_folder::Supply;

/// The requeue delay after a transient error, in seconds.
const WAIT_SECONDS: u16 = 15;
/// The maximum number of requeues in a row for an Update that waits. The sweep starts a new series
/// every minute.
const WAIT_HOPS: u8 = 8;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Reconciles an Update. A transient error leads to a requeue; any other is returned.
    pub async fn handle(&self, hint: &LaunchHint) -> Result<(), Error> {
        if hint.hops >= MAX_HOPS {
            metrics::count_one(Metric::HopsExhausted, "launcher", &hint.update.cluster, &hint.update, self.now);
        }
        match self.reconcile(hint).await {
            Err(error) => failed(self.queues, hint, error, self.now).await,
            Ok(()) => Ok(()),
        }
    }

    async fn reconcile(&self, hint: &LaunchHint) -> Result<(), Error> {
        let key = &hint.update;
        match hint.kind() {
            LaunchKind::Update => {}
            _ if !self.settings.watch().is_ours(self.cluster, &key.namespace).await? => return Ok(()),
            LaunchKind::Stack => return self.compare_inputs(key).await,
            LaunchKind::Workspace => return self.reconcile_workspace(hint).await,
        }
        let Some(update) = self.cluster.get::<Update>(&key.namespace, &key.name).await? else { return Ok(()) };
        let mut run = Run::new(self.settings, hint, update, self.now);
        // A concurrent launch may take the claim after the run has ended.
        let mut tried = false;
        loop {
            let plan = match plan_run(&run.facts, self.now) {
                Ok(plan) => plan,
                Err(need) if self.read_fact(&mut run, need).await? => continue,
                Err(_) => break,
            };
            let rules = run_violations(&run.facts, &plan);
            debug_assert_eq!(rules, [""; 0], "{key}");
            if !rules.is_empty() {
                tracing::error!(update = %key, ?rules, "plan refused: it breaks invariants");
                metrics::count_one(Metric::RefusedPlans, "launcher", &key.cluster, key, self.now);
                return Ok(());
            }
            tracing::info!(update = %key, ?plan, "planned");
            match plan {
                RunPlan::Start => {
                    tried = true;
                    let launched = self.launch(hint, &run).await;
                    if !matches!(launched, Err(Stop::Fail(_))) {
                        self.reconcile_workspace_of_stack(hint, &run).await;
                    }
                    match launched {
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
                    metrics::emit(&[(Metric::Waits, 1.0)], &fields, self.now);
                    self.set_status(hint, &run.update, |update| update.set_waiting(reason, &message, self.now)).await?;
                    return match requeue.filter(|_| hint.hops < WAIT_HOPS) {
                        Some(seconds) => requeue_in(self.queues, hint, seconds).await,
                        None => Ok(()),
                    };
                }
                RunPlan::Leave if run.facts.owner.flatten().is_none() => return Ok(()),
                RunPlan::Supply { fill, renew } => {
                    self.supply(hint, &run, Supply { fill, renew }).await?;
                    break;
                }
                RunPlan::Stop(why) => {
                    self.tasks.stop(run.task.as_deref().unwrap_or_default(), &why).await?;
                    break;
                }
                RunPlan::Abandon(reason) => {
                    self.abandon(&run.folder, &reason).await?;
                    break;
                }
                RunPlan::Publish if !tried && !run.update.asks_for_log(self.now) && self.is_published(&run).await? => {
                    return self.hint_completed(hint, &run.update).await;
                }
                RunPlan::Leave | RunPlan::AskAgain { .. } | RunPlan::Conclude(_) | RunPlan::Publish => break,
            }
        }
        self.hint_recorder(hint, &run.update).await
    }

    /// Has an Update released that was completed since the reconciliation that launched it. The
    /// recorder releases one without a Stack.
    async fn hint_completed(&self, hint: &LaunchHint, update: &Update) -> Result<(), Error> {
        let object = match hand_over(&update.facts(&self.settings.system_namespace, self.now), Completion::Earlier) {
            HandOver::Nothing | HandOver::HintStack => return Ok(()),
            HandOver::Release => return self.hint_recorder(hint, update).await,
            HandOver::HintUpdate => hint.update.clone(),
        };
        if let Some(next) = Hint::after(hint.hops, object) {
            self.queues.hint(&next, 0).await?;
        }
        Ok(())
    }

    async fn hint_recorder(&self, hint: &LaunchHint, update: &Update) -> Result<(), Error> {
        if let Some(next) = RunHint::after(hint.hops, hint.update.clone(), Some(uid_of(update))) {
            self.queues.run(&next, 0).await?;
        }
        Ok(())
    }

    /// Closes a run without an owner, so that no task ever owns it. Returns `false` if it has an
    /// owner.
    async fn abandon(&self, folder: &RunFolder, reason: &AbandonReason) -> Result<bool, Error> {
        let closed = Owner { version: VERSION, task: None, refused: Some(reason.to_string()), at: self.now };
        Ok(self.objects.write_once(&folder.owner(), &closed).await?)
    }

    async fn launch(&self, hint: &LaunchHint, run: &Run) -> Result<Launched, Stop> {
        let Run { update, folder, stack, .. } = run;
        let recorded = run.launch.as_ref().and_then(|record| Some((record.clone(), Request::recorded(record)?)));
        // Also for a recorded run: the consent may have been withdrawn since.
        let named = match self.named(stack.as_ref(), recorded.as_ref().map(|(_, request)| request)).await? {
            Ok(named) => named,
            Err(block) => return Ok(Launched::Blocked(block)),
        };
        let mut offer = None;
        let request = match &recorded {
            None => match Request::of(self.settings, update, stack.as_ref(), named.as_ref()) {
                Ok(request) => request,
                Err(why) => return Ok(Launched::Blocked(Block::Invalid(why))),
            },
            Some((record, request)) => {
                // Before large reads, because hundreds of Updates may wait for a claim or a slot.
                self.has_claim(&record.run, request.is_check()).await?;
                if self.settings.limits.any() {
                    offer = Some(self.ask_for_slot(update, &record.run, request).await?);
                }
                request.clone()
            }
        };
        let prepared = match self.prepare(hint, update, &request).await {
            Ok(prepared) => prepared,
            Err(Stop::Wait(reason, message)) => {
                if let Some(offer) = offer {
                    offer.decline(self.cluster, &uid_of(update), self.now).await;
                }
                return Ok(Launched::Blocked(Block::Wait { reason, message, is_of_inputs: true }));
            }
            Err(Stop::Fail(error)) => return Err(Stop::Fail(error)),
        };
        if let Some(message) = self.guard_against(hint, update, &request, &prepared).await? {
            return Ok(Launched::Blocked(Block::Wait { reason: WaitReason::ApprovalRequired, message, is_of_inputs: true }));
        }
        let kept = match &prepared.kept {
            Some(ours) => Some(self.keep_update(update, ours).await?),
            None => None,
        };
        let update = kept.as_ref().unwrap_or(update);
        // The claim is in the record before it is taken, so the recorder knows what to release. A
        // run that was abandoned earlier takes none.
        let (record, is_same) = if let Some((record, _)) = recorded {
            (record, true)
        } else {
            // The spec includes the snapshot that `keep_update` wrote.
            let request = Request { spec: update.spec.clone(), ..request.clone() };
            let record = self.write_launch_record(&prepared, &request, folder).await?;
            // A concurrent launch may have recorded a spec that has changed since.
            let is_same = record.request == Some(request.to_record());
            (record, is_same)
        };
        if !is_same || record.run != prepared.run {
            return Ok(Launched::Blocked(Block::OtherProject));
        }
        if self.objects.exists(&folder.owner()).await? {
            return Ok(Launched::Elsewhere);
        }
        if record.refused.is_some_and(|Refused { since, last }| is_backing_off(since, last, self.now)) {
            // The last try has requeued the Update for the next one.
            return Ok(Launched::Here);
        }
        self.take_slot_and_claim(update, &record.run, &request).await?;
        let Some(task) = self.own_task(hint, update, &record, folder).await? else { return Ok(Launched::Elsewhere) };
        if !self.fill_task_folder(update, &prepared, &record, &task).await? {
            return Ok(Launched::Elsewhere);
        }
        self.show_running(hint, update, &task).await?;
        tracing::info!(update = %hint.update, task, "launched");
        Ok(Launched::Here)
    }

    /// Takes what limits the runs. Neither is released on a failure here, because a concurrent
    /// reconciliation of the same Update may use it. The slot is taken first: a run that waits for
    /// a slot blocks no run of its stack, and a run that waits for its claim occupies no slot.
    async fn take_slot_and_claim(&self, update: &Update, run: &RunId, request: &Request) -> Result<(), Stop> {
        let is_check = request.is_check();
        if self.settings.limits.any() {
            self.has_claim(run, is_check).await?;
            self.ask_for_slot(update, run, request).await?.take(self.cluster).await?;
        }
        self.take_claim(run, is_check).await
    }

    /// Starts the task of a launch record and makes it the owner of the run. `None` if the run has
    /// another owner or has ended.
    async fn own_task(
        &self,
        hint: &LaunchHint,
        update: &Update,
        record: &Launch,
        folder: &RunFolder,
    ) -> Result<Option<String>, Stop> {
        let task = match self.start_task(record, folder).await {
            // A concurrent launch won and its run may have ended: then the recorder releases what
            // this launch took.
            Err(Stop::Wait(..)) if self.objects.exists(&folder.owner()).await? => return Ok(None),
            started => started?,
        };
        let owner = Owner { version: VERSION, task: Some(task.clone()), refused: None, at: self.now };
        if self.objects.write_once(&folder.owner(), &owner).await? {
            // Once per run, because only one owner is ever written.
            let waited = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| self.now.duration_since(created.0));
            let fields = [("cluster", hint.update.cluster.as_str()), ("update", &hint.update.to_string())];
            metrics::emit(&[(Metric::StartDelay, waited.as_secs_f64().max(0.0))], &fields, self.now);
        } else if self.objects.read(&folder.owner()).await?.and_then(|owner| owner.task).as_ref() != Some(&task) {
            // Another task owns the run, or it was abandoned, so this task never gets a spec.
            self.tasks.stop(&task, "another task owns this run").await?;
            return Ok(None);
        }
        Ok(Some(task))
    }

    /// Starts the task of a launch record. A user cannot fix a lack of capacity or a quota, so a
    /// refusal is no error of the Update.
    async fn start_task(&self, record: &Launch, folder: &RunFolder) -> Result<String, Stop> {
        let (attempt, stop) = match self.tasks.run(record).await {
            Ok(Started::Task { task }) => return Ok(task),
            Ok(Started::Refused { why }) => {
                (record.attempt + 1, Stop::wait(WaitReason::TaskNotStarted, format!("ECS did not start the task: {why}")))
            }
            // ECS may have started a task: the next try uses the same token.
            Err(error) => (record.attempt, not_started(error)),
        };
        // Of concurrent launches the slower one may write an older attempt, which costs one more
        // try.
        let since = record.refused.map_or(self.now, |refused| refused.since);
        let next = Launch { attempt, refused: Some(Refused { since, last: self.now }), ..record.clone() };
        self.objects.write(&folder.launch(), &next).await?;
        Err(stop)
    }

    /// Keeps a user's Update, and what it runs, until its outcome is recorded: neither a later
    /// change of its Workspace nor a retry changes the run.
    async fn keep_update(&self, update: &Update, ours: &DriftlessUpdate) -> Result<Update, KubernetesError> {
        let mut update = update.clone();
        finalizer::add(&mut update);
        if update.spec.driftless.replace(ours.clone()).is_some() {
            // Its spec is immutable, including the fields that Driftless's type leaves out.
            return self.cluster.patch_metadata(&update).await;
        }
        self.cluster.replace(&update).await
    }

    /// The definition of tasks of a shape, with this image if the shape names none.
    async fn definition(&self, image: &str, mut shape: TaskShape) -> Result<String, Stop> {
        shape.image.get_or_insert_with(|| image.to_owned());
        shape.architecture.get_or_insert(self.settings.default_architecture);
        self.tasks.definition(&shape).await.map_err(not_started)
    }

    /// The processor on which to try the images of a shape: the other one if they are not built for
    /// the last one. `None` if the Workspace selects a processor or names no image, because then
    /// the installation has chosen both.
    async fn architecture_to_try(&self, prepared: &spec::Prepared, image: &str) -> Result<Option<TriedArchitecture>, Error> {
        let (update, shape) = (&prepared.run.update, &prepared.shape);
        let images = shape.images(image).filter(|_| shape.architecture.is_none());
        let Some(images) = images else { return Ok(None) };
        // The next failure writes the document again.
        let unfit = self.objects.read_if_valid(&keys::architecture(update, &images)).await?;
        let architecture = unfit.map_or(self.settings.default_architecture, |unfit| unfit.architecture.other());
        Ok(Some(TriedArchitecture { images, architecture, other_failed: unfit.is_some() }))
    }

    /// Writes the launch record, or returns that of a concurrent launch.
    async fn write_launch_record(
        &self,
        prepared: &spec::Prepared,
        request: &Request,
        folder: &RunFolder,
    ) -> Result<Launch, Stop> {
        let image = self.settings.images.of(prepared.project.as_ref());
        let tried = self.architecture_to_try(prepared, image).await?;
        let architecture = tried.as_ref().map(|tried| tried.architecture).or(prepared.shape.architecture);
        let cache = cache::entries(self.settings, prepared, request.cache, tried.as_ref(), self.now);
        let launch = Launch {
            version: VERSION,
            run: prepared.run.clone(),
            attempt: 0,
            definition: self.definition(image, TaskShape { architecture, ..prepared.shape.clone() }).await?,
            tried,
            project: prepared.project.clone(),
            inputs: prepared.spec.inputs.clone(),
            preview: prepared.spec.is_preview(),
            spot: request.spot,
            cache,
            request: Some(request.to_record()),
            refused: None,
            size: Some(TaskSize { cpu: prepared.shape.cpu, memory_mib: prepared.shape.memory_mib }),
            at: self.now,
        };
        if self.objects.write_once(&folder.launch(), &launch).await? {
            return Ok(launch);
        }
        Ok(self.objects.read(&folder.launch()).await?.unwrap_or(launch))
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
    requeue_in(queues, hint, WAIT_SECONDS).await
}

async fn requeue_in<Q: Queues>(queues: &Q, hint: &LaunchHint, seconds: u16) -> Result<(), Error> {
    match LaunchHint::after(hint.hops, hint.update.clone()) {
        Some(next) => Ok(queues.launch(&next, seconds).await?),
        None => Ok(()),
    }
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

/// Turns an error of ECS into the reason why an Update does not start yet. No error fails the
/// message: it is transient, or the Update's message names who has to act.
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

#[cfg(test)]
mod tests;
