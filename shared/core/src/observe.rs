use jiff::Timestamp;

use crate::{
    ChangeRequest, DriftVerdict, Effect, EventReason, EventType, LastUpdate, LastUpdateState, Operation, PlanState,
    PlannedChanges, PlatformFailures, Previewed, PreviewedChange, Run, RunOutcome, Stack, StackStatus, approval::observe_applied,
    plan_summary::identity, preview_summary, pull_request,
};

/// Returns the Stack's status after the end of a run, and the Event about it. `now` is when the end
/// is recorded on the Stack.
#[must_use]
pub fn observe(stack: &Stack, run: &Run, outcome: &RunOutcome, now: Timestamp) -> (StackStatus, Effect) {
    let status = &stack.status;
    let mut plan = status.plan.clone();
    // A stale run changed nothing, so it is no update of the Stack.
    if let Some(stale) = observe_applied(&mut plan, run, outcome) {
        return (StackStatus { current_update: None, plan, ..status.clone() }, stale);
    }
    if stack.shown_for().is_some() {
        plan.proposal = pull_request::shown(run, outcome);
    }
    let previous = status.last_update.as_ref();
    // As in PKO, failures of several revisions are counted together, unless the Stack sets its own
    // limit.
    let is_retry = |last: &&LastUpdate| last.state == LastUpdateState::Failed && last.last_attempted_commit == run.commit;
    let same_request = previous
        .filter(|last| last.generation == run.generation && last.reconcile_request == run.reconcile_request)
        .filter(|last| stack.spec.retries.is_none() || is_retry(last));
    // A new request ends the count of platform failures, so that a change is tried at once.
    let platform = status.platform_failures.filter(|_| same_request.is_some());
    let fresh = same_request.is_none() || platform.is_some_and(|platform| platform.fresh);
    let counts = outcome.started && !outcome.platform_failure && !fresh;
    let failures = match (outcome.succeeded, same_request) {
        (true, _) | (false, None) => 0,
        (false, Some(last)) => last.failures.saturating_add(i64::from(counts)),
    };
    // An abandoned run leaves the count as it is.
    let count = platform.map_or(0, |platform| platform.count).saturating_add(outcome.platform_failure.into());
    let has_run = outcome.succeeded || outcome.started && !outcome.platform_failure;
    let platform_failures = (!has_run).then_some(PlatformFailures { count, fresh });
    let last_update = LastUpdate {
        name: run.name.clone(),
        generation: run.generation,
        reconcile_request: run.reconcile_request.clone(),
        operation: Some(run.operation),
        state: if outcome.succeeded { LastUpdateState::Succeeded } else { LastUpdateState::Failed },
        message: if outcome.succeeded { String::new() } else { outcome.message.clone() },
        last_attempted_commit: run.commit.clone(),
        last_successful_commit: if outcome.succeeded {
            run.commit.clone()
        } else {
            previous.map(|last| last.last_successful_commit.clone()).unwrap_or_default()
        },
        permalink: outcome.permalink.clone(),
        last_resync_time: Some(now),
        failures,
    };
    let conflict = !outcome.succeeded && outcome.conflict;
    let ever = |now: bool, before: Option<bool>| if now { Some(true) } else { before.or(previous.is_none().then_some(false)) };
    let (ran, operated) = (ever(outcome.started, status.ran), ever(outcome.operated, status.operated));
    let last_update = Some(last_update);
    let mut status =
        StackStatus { current_update: None, last_update, ran, operated, conflict, platform_failures, plan, ..status.clone() };
    status.drift.adoption_failed = run.adopts && !outcome.succeeded;
    // A first run that failed may have created resources, and their destroy needs the project.
    if outcome.succeeded || status.project.is_none() {
        status.project = outcome.project.clone().or(status.project);
    }
    // Nothing was left to adopt.
    let is_empty = outcome.plan.as_ref().is_some_and(|plan| plan.is_empty());
    let adopted = if is_empty { DriftVerdict::None } else { DriftVerdict::Adopted };
    // An adoption applies neither inputs nor the source. A failed run without a report keeps the
    // old digest; its next try reports a new one.
    if !run.adopts && (outcome.inputs.is_some() || outcome.succeeded) {
        status.inputs.clone_from(&outcome.inputs);
    }
    if outcome.succeeded {
        if !run.adopts {
            status.scope.clone_from(&run.scope);
        }
        status.drift.verdict = match (status.drift.verdict.take(), run.operation) {
            (Some(DriftVerdict::Found(_) | DriftVerdict::Unknown(_)), _) if run.adopts => Some(adopted),
            // A plan of a guarded Stack has read the live resources, and nothing was left to put
            // back.
            (Some(DriftVerdict::Found(_) | DriftVerdict::Unknown(_)), operation)
                if run.refresh && (operation == Operation::Up || is_empty) =>
            {
                Some(DriftVerdict::Remediated)
            }
            // The program was applied on the live values.
            (Some(DriftVerdict::Adopted), Operation::Up) => Some(DriftVerdict::Remediated),
            (verdict, _) => verdict,
        };
        if let Some(outputs) = &outcome.outputs {
            status.outputs = Some(outputs.clone());
        }
    }
    let (event_type, reason, note) = if outcome.succeeded && run.adopts && !is_empty {
        let note = "Adopted drift: the state is as the live resources; the next update changes them to what the program says";
        (EventType::Normal, EventReason::DriftAdopted, note.into())
    } else if let Some(found) = previewed(stack, outcome)
        // Other Stacks keep PKO's message, by which Alerts select Events.
        .filter(|_| outcome.succeeded && run.operation == Operation::Preview)
        .filter(|_| stack.change_request.is_some() || stack.shown_for().is_some())
    {
        let shown = status.plan.proposal.as_ref().filter(|proposal| proposal.state == PlanState::Preview && !found.is_empty());
        let plan = shown.and_then(|proposal| proposal.plan.as_ref()).map(identity).unwrap_or_default();
        (EventType::Normal, EventReason::StackCreated, format!("Preview succeeded: {}{plan}", preview_summary(&found)))
    } else if outcome.succeeded {
        (EventType::Normal, EventReason::StackCreated, "Successfully updated stack".into())
    } else if outcome.platform_failure {
        (
            EventType::Warning,
            EventReason::PlatformFailure,
            format!("run failed by the platform, not counted: {}", outcome.message),
        )
    } else {
        (EventType::Warning, EventReason::StackUpdateFailure, format!("Failed to update stack: {}", outcome.message))
    };
    let revision = Some(run.commit.clone()).filter(|commit| !commit.is_empty());
    let change_request = shown_on(stack, run, outcome);
    status.change_request = change_request.or(status.change_request);
    (status, Effect::Event { event_type, reason, note, revision, change_request })
}

/// The changes that a preview found, also if it made the plan of a pull request.
fn previewed(stack: &Stack, outcome: &RunOutcome) -> Option<Previewed> {
    let of_plan = |plan: &PlannedChanges| Previewed {
        counts: plan.counts.clone(),
        first: plan.changes.first.iter().map(|change| PreviewedChange { kind: change.kind, urn: change.urn.clone() }).collect(),
    };
    let plan = outcome.plan.as_deref().filter(|_| stack.shown_for().is_some());
    outcome.previewed.clone().or_else(|| plan.map(of_plan))
}

/// The pull request that shows the end of a run: of a preview that found changes or failed, and of
/// each one after that. The others leave no comment about a Stack that the pull request does not
/// touch.
fn shown_on(stack: &Stack, run: &Run, outcome: &RunOutcome) -> Option<ChangeRequest> {
    let number = stack.change_request.filter(|_| run.operation == Operation::Preview && !outcome.platform_failure)?;
    let is_news = !outcome.succeeded || previewed(stack, outcome).is_some_and(|found| !found.is_empty());
    (is_news || stack.status.change_request == Some(number)).then_some(number)
}
