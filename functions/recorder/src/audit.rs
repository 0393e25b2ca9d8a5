//! The records of a run for people: the audit record, and that of its plan.

use driftless_api::{Update, UpdateSpec};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{ArtifactDigest, AuditRecord, Launch, Outcome, PlanMode, PlanRecord, Revision, VERSION, Verdict, keys};
use driftless_kubernetes::Cluster;
use kube::ResourceExt as _;

use crate::{Error, Recorder};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Writes the audit record of a recorded run. The first record stays: after a crash, a second
    /// one could know less.
    pub(crate) async fn write_audit_record(
        &self,
        update: Option<&Update>,
        launch: Option<&Launch>,
        task: Option<&str>,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        self.objects.write_once(&keys::audit(outcome), &of(update, launch, task, outcome)).await?;
        Ok(())
    }

    /// Writes the record of the plan that a run made. Of equal plans, the first record stays.
    pub(crate) async fn write_plan_record(&self, launch: Option<&Launch>, outcome: &Outcome) -> Result<(), Error> {
        let stack = launch.and_then(|launch| launch.request.as_ref()?.stack.as_ref());
        let (Some(plan), Some(stack)) = (&outcome.plan, stack) else { return Ok(()) };
        let record = PlanRecord { version: VERSION, run: outcome.run.clone(), plan: plan.clone() };
        self.objects.write_once(&keys::plan(&outcome.run.update.cluster, &stack.uid, &plan.hash), &record).await?;
        Ok(())
    }
}

/// The record. What ran is in the launch record, because a user could have changed an Update that
/// never started.
fn of(update: Option<&Update>, launch: Option<&Launch>, task: Option<&str>, outcome: &Outcome) -> AuditRecord {
    let request = launch.and_then(|launch| launch.request.as_ref());
    let mode = request.and_then(|request| request.plan.as_ref());
    let launched = request.and_then(|request| serde_json::from_value::<UpdateSpec>(request.spec.clone()).ok());
    let spec = launched.or_else(|| update.map(|update| update.spec.clone())).unwrap_or_default();
    let ours = spec.driftless.unwrap_or_default();
    let is_of_stack = request.is_some_and(|request| request.stack.is_some());
    AuditRecord {
        version: VERSION,
        run: outcome.run.clone(),
        requested_by: ours.requested_by.filter(|_| is_of_stack).or_else(|| update.and_then(creator)),
        requested_at: update.and_then(|update| Some(update.creation_timestamp()?.0)),
        stack: request.and_then(|request| request.stack.clone()),
        stack_generation: ours.stack_generation,
        reconcile_request: ours.reconcile_request.filter(|request| !request.is_empty()),
        operation: spec.operation,
        preview: outcome.preview,
        targets: spec.target,
        commit: ours.commit.map(Revision::from),
        digest: ours.tree.and_then(|tree| tree.digest).map(ArtifactDigest::from),
        plan: outcome.plan.as_ref().map(|plan| plan.hash.clone()),
        approved_by: mode.and_then(PlanMode::approved_by),
        task: task.map(ToOwned::to_owned),
        outcome: match &outcome.verdict {
            Verdict::Succeeded {} => "succeeded".into(),
            Verdict::Failed { reason, .. } => reason.as_str().into(),
            Verdict::Aborted { .. } => "aborted".into(),
        },
        changes: outcome.changes.clone(),
        started_at: outcome.started_at,
        ended_at: outcome.ended_at,
    }
}

/// The client that wrote the Update first. The API server sets the name from the request, and its
/// own audit log has the user.
fn creator(update: &Update) -> Option<String> {
    let managers = update.metadata.managed_fields.iter().flatten().filter(|manager| manager.subresource.is_none());
    managers.min_by_key(|manager| manager.time.as_ref().map(|time| time.0)).and_then(|manager| manager.manager.clone())
}
