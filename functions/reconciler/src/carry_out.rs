//! Carries out a plan, commits first.

use driftless_api::{Stack, Update, Workspace, finalizer, names, uid_of};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchRequest, Hint, LaunchHint, ObjectKey, StackId, keys};
use driftless_core::{
    DriftStatus, DriftVerdict, Effect, NewUpdate, Operation, Plan, REFUSED_SECONDS, Readiness, Snapshot, SourceRef, StackStatus,
    refused, violations,
};
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventMarks, EventReason, EventType};
use driftless_telemetry::metrics::{self, Metric};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Error, Reconciler, stack_key};

/// The longest delay of an SQS message. The sweep hints what is due later.
const MAX_DELAY_SECONDS: i64 = 900;
/// The requeue delay after a conflict: the object changed during the reconciliation.
const CONFLICT_SECONDS: u16 = 1;

/// The recorder completes an Update within this time after it has recorded the outcome, unless it
/// is interrupted.
const RELEASE_SECONDS: u16 = 15;

/// A requeue with a longer delay follows from the elapsed time, so its hops start at zero.
const CHAIN_SECONDS: u16 = 5;

impl<C: Cluster, O: Objects, Q: Queues> Reconciler<'_, C, O, Q> {
    /// Carries out a plan, unless it breaks a rule of core. A conflict with another reconciliation
    /// ends this one and requeues. `loaded` has the facts that the plan was decided from, and the
    /// Updates of the Stack.
    pub(crate) async fn carry_out(
        &self,
        hint: &Hint,
        stack: Stack,
        loaded: (&Snapshot, Vec<Update>),
        plan: Plan,
    ) -> Result<(), Error> {
        let (snapshot, updates) = loaded;
        let rules = violations(snapshot, &plan, self.now);
        let plan = if rules.is_empty() {
            plan
        } else {
            tracing::error!(stack = %hint.object, ?rules, "plan refused: it breaks invariants");
            metrics::count_one(Metric::RefusedPlans, "reconciler", &hint.object.cluster, &hint.object, self.now);
            refused(snapshot, &rules)
        };
        // Before the status is written, because `nextLook` there says that the requeue is sent:
        // after a crash in between, it would never be sent again.
        if let Some(at) = plan.requeue_at {
            // Rounded up, because a message that arrives early finds nothing due.
            let seconds = (at.duration_since(self.now).as_millis() + 999) / 1000;
            if let Ok(delay) = u16::try_from(seconds.max(0))
                && i64::from(delay) <= MAX_DELAY_SECONDS
            {
                self.requeue(hint, delay).await?;
            }
        }
        match self.carry_out_effects(hint, stack, (snapshot, updates), &plan).await {
            Err(Error::Kubernetes(KubernetesError::Conflict { call, message })) => {
                tracing::info!(stack = %hint.object, call, message, "Stack changed during its reconciliation; requeued");
                self.requeue(hint, CONFLICT_SECONDS).await
            }
            other => other,
        }
    }

    async fn requeue(&self, hint: &Hint, delay: u16) -> Result<(), Error> {
        let here = hint.object.clone();
        if let Some(next) = if delay > CHAIN_SECONDS { Some(Hint::new(here)) } else { hint.next(here) } {
            self.queues.hint(&next, delay).await?;
        }
        Ok(())
    }

    async fn carry_out_effects(
        &self,
        hint: &Hint,
        mut stack: Stack,
        (snapshot, mut updates): (&Snapshot, Vec<Update>),
        plan: &Plan,
    ) -> Result<(), Error> {
        let mut effects = plan.effects.iter().peekable();
        if effects.next_if(|effect| matches!(effect, Effect::AddFinalizer)).is_some() {
            finalizer::add(&mut stack);
            stack = self.cluster.patch_metadata(&stack).await?;
        }
        if plan.status != snapshot.stack.status {
            stack.set_status(&plan.status, self.now);
            stack = self.cluster.replace_status(&stack).await?;
            count_drift(&snapshot.stack.status.drift, &plan.status.drift, &hint.object, self.now);
        }
        for effect in effects {
            match effect {
                // Done before all other effects.
                Effect::AddFinalizer => {}
                Effect::Fetch(source) => self.fetch(hint, source, snapshot).await?,
                Effect::Run(update) => {
                    let created = self.create_run(&stack, update).await;
                    if let Some(refusal) = self.launch_created(hint, &update.current.name, created).await? {
                        stack = self.show_refusal(hint, stack, (snapshot, plan), &refusal).await?;
                    }
                }
                Effect::CheckDrift(update) => {
                    let created = self.create_update(Update::of_check(&stack, update)).await;
                    if let Some(refusal) = self.launch_created(hint, &update.current.name, created).await? {
                        self.report_refusal(&stack, &refusal).await;
                    }
                }
                Effect::Propose(update) => {
                    let created = self.create_proposal(&stack, update).await;
                    if let Some(refusal) = self.launch_created(hint, &update.current.name, created).await? {
                        stack = self.show_refusal(hint, stack, (snapshot, plan), &refusal).await?;
                    }
                }
                Effect::SpendApproval => {
                    for name in [names::APPROVE, names::APPROVED_BY] {
                        stack.annotations_mut().insert(name.into(), String::new());
                    }
                    stack = self.cluster.patch_metadata(&stack).await?;
                }
                Effect::Launch { namespace, update } => self.launch(hint, update_key(&hint.object, namespace, update)).await?,
                Effect::CompareInputs => self.launch(hint, hint.object.clone()).await?,
                Effect::WakeDependents => self.wake_dependents(hint, stack.outputs()).await?,
                Effect::ReclaimWorkspace => self.reclaim_workspace(&stack).await?,
                Effect::ReleaseUpdate { namespace, update } => {
                    let read = updates.extract_if(.., |read| read.name_any() == *update).next();
                    self.release_update(hint, namespace, update, read).await?;
                }
                Effect::RequestReconcile { stack: name, request } => self.request_reconcile(hint, &stack, name, request).await?,
                Effect::Event { event_type, reason, note, revision, change_request } => {
                    let marks = EventMarks { revision: revision.as_ref(), change_request: *change_request };
                    self.cluster.event(&stack, *event_type, *reason, note, marks, self.now).await;
                }
                Effect::DeleteStack => self.delete_expired(&stack).await?,
                Effect::RemoveFinalizer => {
                    let (cluster, uid) = (&hint.object.cluster, uid_of(&stack));
                    let id = StackId { namespace: hint.object.namespace.clone(), uid };
                    self.objects.delete(&keys::inputs(cluster, &id.uid)).await?;
                    self.objects.delete(&keys::outputs(cluster, &id.uid)).await?;
                    self.objects.delete(&keys::sealed(cluster, &id)).await?;
                    finalizer::remove(&mut stack);
                    stack = self.cluster.patch_metadata(&stack).await?;
                }
            }
        }
        Ok(())
    }

    async fn fetch(&self, hint: &Hint, source: &SourceRef, snapshot: &Snapshot) -> Result<(), Error> {
        let (api_version, kind, name) = source.object();
        let source = hint.object.sibling(api_version, kind, name);
        // The Stacks of one source request it within moments of each other and are deduplicated; a
        // later request must not be.
        let moment = (self.now.as_second() / 10).to_string();
        let deduplication = keys::hash(&[&source.to_string(), &format!("{:?}", snapshot.source), &moment]);
        self.request_fetch(hint, source, &deduplication).await
    }

    /// Requests a source from the fetcher. SQS drops another request with the same deduplication id
    /// within five minutes.
    pub(crate) async fn request_fetch(&self, hint: &Hint, source: ObjectKey, deduplication: &str) -> Result<(), Error> {
        let request = FetchRequest::fetch(source, hint.hops.saturating_add(1));
        Ok(self.queues.fetch(&request, deduplication).await?)
    }

    /// Launches an Update that was created in this namespace. Returns why, if the API server
    /// refused it because of its template, a quota or an admission policy.
    async fn launch_created(
        &self,
        hint: &Hint,
        name: &str,
        created: Result<String, KubernetesError>,
    ) -> Result<Option<String>, Error> {
        match created {
            // Or an unreadable object of that name exists, such as a Workspace.
            Err(KubernetesError::Permanent { call, message } | KubernetesError::Unreadable { call, message }) => {
                let refusal = format!("API server refused the objects of a run: {message}; no run starts");
                tracing::warn!(call, refusal);
                Ok(Some(refusal))
            }
            created => self.launch(hint, update_key(&hint.object, &created?, name)).await.map(|()| None),
        }
    }

    async fn report_refusal(&self, stack: &Stack, refusal: &str) {
        let (event_type, reason) = (EventType::Warning, EventReason::UpdateRefused);
        self.cluster.event(stack, event_type, reason, refusal, EventMarks::default(), self.now).await;
    }

    /// Shows a refusal in the condition, reports it once by an Event, and requeues for the next
    /// try, unless that is done.
    async fn show_refusal(
        &self,
        hint: &Hint,
        mut stack: Stack,
        (snapshot, plan): (&Snapshot, &Plan),
        refusal: &str,
    ) -> Result<Stack, Error> {
        let remedy = "correct the template, the quota or the admission policy that this names";
        let message = format!("{refusal}; {remedy}; next try in {REFUSED_SECONDS}s");
        let readiness = Some(Readiness::processing(message));
        let before = &snapshot.stack.status;
        if readiness != before.readiness {
            self.report_refusal(&stack, refusal).await;
        }
        let at = Timestamp::from_second(self.now.as_second() + i64::from(REFUSED_SECONDS) + 1).ok();
        let booked = before.next_reconciliation.filter(|booked| *booked > self.now && Some(*booked) <= at);
        if booked.is_none() {
            self.requeue(hint, REFUSED_SECONDS).await?;
        }
        stack.set_status(&StackStatus { readiness, next_reconciliation: booked.or(at), ..plan.status.clone() }, self.now);
        Ok(self.cluster.replace_status(&stack).await?)
    }

    /// Creates the Workspace and the Update. Returns the Update's namespace: the system namespace
    /// for the destroy of a Stack in a terminating namespace.
    async fn create_run(&self, stack: &Stack, new: &NewUpdate) -> Result<String, KubernetesError> {
        let here = async {
            let workspace = self.cluster.apply(&Workspace::of_stack(stack, new)).await?;
            self.create_update(Update::of_stack(stack, &workspace, new)).await
        };
        match here.await {
            Err(KubernetesError::NamespaceTerminating { .. }) if new.operation == Operation::Destroy => {
                let update = Update::of_stack(stack, &Workspace::of_stack(stack, new), new);
                self.create_update(update.elsewhere(stack, self.settings.system_namespace)).await
            }
            created => created,
        }
    }

    /// Creates the Update of a proposal, in the same namespace as that of the run that will apply
    /// the plan.
    async fn create_proposal(&self, stack: &Stack, new: &NewUpdate) -> Result<String, KubernetesError> {
        let update = Update::of_proposal(stack, new);
        match self.create_update(update.clone()).await {
            Err(KubernetesError::NamespaceTerminating { .. }) if new.operation == Operation::Destroy => {
                self.create_update(update.elsewhere(stack, self.settings.system_namespace)).await
            }
            created => created,
        }
    }

    /// Creates an Update. An existing one was created by another reconciliation and counts if it is
    /// the same.
    async fn create_update(&self, update: Update) -> Result<String, KubernetesError> {
        let namespace = update.namespace().unwrap_or_default();
        match self.cluster.create(&update).await {
            Ok(_) => Ok(namespace),
            Err(KubernetesError::Conflict { call, message }) => {
                match self.cluster.get::<Update>(&namespace, &update.name_any()).await? {
                    Some(there) if there.spec == update.spec && there.owner_references() == update.owner_references() => {
                        Ok(namespace)
                    }
                    _ => Err(KubernetesError::Conflict { call, message }),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Sends an object to the launcher.
    pub(crate) async fn launch(&self, hint: &Hint, key: ObjectKey) -> Result<(), Error> {
        if let Some(launch) = LaunchHint::after(hint.hops, key) {
            self.queues.launch(&launch, 0).await?;
        }
        Ok(())
    }

    /// Removes Driftless's finalizer from an Update whose outcome is on the Stack. `read` is the
    /// Update as it was read for that.
    async fn release_update(&self, hint: &Hint, namespace: &str, name: &str, read: Option<Update>) -> Result<(), Error> {
        let is_conflict = |done: &Result<(), Error>| matches!(done, Err(Error::Kubernetes(KubernetesError::Conflict { .. })));
        if let Some(update) = read.filter(Update::is_complete) {
            let done = self.remove_finalizer(update).await;
            if !is_conflict(&done) {
                return done;
            }
        }
        match self.cluster.get::<Update>(namespace, name).await? {
            Some(update) if update.is_complete() => {
                let done = self.remove_finalizer(update).await;
                // Another reconciliation was faster. Otherwise the sweep finds the finalizer.
                if is_conflict(&done) { Ok(()) } else { done }
            }
            // The recorder has not completed it yet, and the Stack no longer names it: a
            // reconciliation of the Update releases it.
            Some(_) => match hint.next(update_key(&hint.object, namespace, name)) {
                Some(next) => Ok(self.queues.hint(&next, RELEASE_SECONDS).await?),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Deletes a Stack whose TTL has ended. An admission policy may refuse that, and each requeue
    /// leads to another try.
    pub(crate) async fn delete_expired(&self, stack: &Stack) -> Result<(), Error> {
        let (event_type, note) = match self.cluster.delete(stack).await {
            Ok(()) => (EventType::Normal, "TTL has ended; Stack deleted, and its resources are destroyed".to_owned()),
            Err(KubernetesError::Permanent { message, .. }) => (
                EventType::Warning,
                format!("TTL has ended, and the API server refused the deletion: {message}; allow it, or delete the Stack"),
            ),
            Err(error) => return Err(error.into()),
        };
        self.cluster.event(stack, event_type, EventReason::TtlExpired, &note, EventMarks::default(), self.now).await;
        Ok(())
    }

    /// Deletes the Workspace of a Stack that keeps none while no run is live.
    async fn reclaim_workspace(&self, stack: &Stack) -> Result<(), Error> {
        let workspace = self.cluster.get::<Workspace>(&stack.namespace().unwrap_or_default(), &stack.name_any()).await?;
        let ours = |workspace: &Workspace| {
            workspace.owner_references().iter().any(|owner| Some(&owner.uid) == stack.metadata.uid.as_ref())
        };
        if let Some(workspace) = workspace.filter(ours) {
            self.cluster.delete(&workspace).await?;
            self.cluster
                .event(
                    stack,
                    EventType::Normal,
                    EventReason::WorkspaceDeleted,
                    "Workspace deleted per reclaim policy",
                    EventMarks::default(),
                    self.now,
                )
                .await;
        }
        Ok(())
    }

    /// Removes Driftless's finalizer from an Update that its Stack no longer needs. An Update in
    /// the system namespace has no owner and is deleted first: the sweep finds it by its finalizer,
    /// so a crash between the two steps leaves no object behind.
    pub(crate) async fn remove_finalizer(&self, mut update: Update) -> Result<(), Error> {
        if update.namespace().as_deref() == Some(self.settings.system_namespace) {
            if update.metadata.deletion_timestamp.is_none() {
                self.cluster.delete(&update).await?;
            }
            // The deletion changed its version.
            let found = self.cluster.get::<Update>(self.settings.system_namespace, &update.name_any()).await?;
            let Some(found) = found.filter(|found| found.metadata.uid == update.metadata.uid) else { return Ok(()) };
            update = found;
        }
        if finalizer::is_on(&update) {
            finalizer::remove(&mut update);
            self.cluster.patch_metadata(&update).await?;
        }
        Ok(())
    }

    async fn request_reconcile(&self, hint: &Hint, stack: &Stack, name: &str, request: &str) -> Result<(), Error> {
        let namespace = stack.namespace().unwrap_or_default();
        let Some(mut prerequisite) = self.cluster.get::<Stack>(&namespace, name).await? else { return Ok(()) };
        prerequisite.annotations_mut().insert(names::RECONCILIATION_REQUEST.into(), request.into());
        self.cluster.patch_metadata(&prerequisite).await?;
        if let Some(next) = hint.next(stack_key(&hint.object, name)) {
            self.queues.hint(&next, 0).await?;
        }
        Ok(())
    }
}

/// Counts a check's result once: this reconciliation has recorded it.
fn count_drift(before: &DriftStatus, after: &DriftStatus, stack: &ObjectKey, now: Timestamp) {
    let found = match &after.verdict {
        Some(DriftVerdict::Found(drift)) => drift.count,
        Some(DriftVerdict::None) => 0,
        _ => return,
    };
    if before.last != after.last {
        let values = [(Metric::DriftChecks, 1.0), (Metric::DriftedResources, f64::from(found))];
        metrics::emit(&values, &[("cluster", &stack.cluster), ("stack", &stack.to_string())], now);
    }
}

pub(crate) fn update_key(stack: &ObjectKey, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.to_owned(), ..stack.sibling("auto.pulumi.com/v1alpha1", "Update", name) }
}
