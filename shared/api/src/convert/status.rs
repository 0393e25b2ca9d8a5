use driftless_core::{self as core, DriftReason, DriftVerdict, Operation, Readiness, StackReason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    CurrentUpdate, DriftedResource, DriftlessStackStatus, LastUpdate, PlatformFailures, ProjectInfo, Stack, StackDrift,
    StackExpiry, StackPlan, StackStatus, condition::set_condition, names,
};

const READY: &str = "Ready";
const RECONCILING: &str = "Reconciling";
const STALLED: &str = "Stalled";
const DRIFTED: &str = "Drifted";

impl Stack {
    /// Writes the status of a Stack. An unchanged condition keeps its time.
    pub fn set_status(&mut self, status: &core::StackStatus, now: Timestamp) {
        let before = self.status.take().unwrap_or_default();
        let generation = self.metadata.generation;
        self.status = Some(StackStatus {
            conditions: status
                .readiness
                .iter()
                .flat_map(conditions)
                .chain(drifted(&status.drift))
                .map(|new| set_condition(new, &before.conditions, generation, now))
                .collect(),
            current_update: status.current_update.as_ref().map(|current| CurrentUpdate {
                commit: some(current.commit.as_str()),
                generation: Some(current.generation),
                name: Some(current.name.clone()),
                reconcile_request: some(&current.reconcile_request),
            }),
            driftless: Some(DriftlessStackStatus {
                change_request: status.change_request.map(|core::ChangeRequest(number)| number.into()),
                conflict: status.conflict.then_some(true),
                expiry: status
                    .expiry
                    .as_ref()
                    .map(|core::Expiry { at, blocked }| StackExpiry { blocked: blocked.clone(), time: Some(Time(*at)) }),
                drift: Some(stack_drift(&status.drift)).filter(|drift| *drift != StackDrift::default()),
                inputs: status.inputs.clone(),
                next_look: status.next_reconciliation.map(Time),
                platform_failures: status
                    .platform_failures
                    .map(|core::PlatformFailures { count, fresh }| PlatformFailures { count, fresh }),
                plan: Some(StackPlan::of(&status.plan)).filter(|plan| *plan != StackPlan::default()),
                operated: status.operated,
                ran: status.ran,
                repository: self.spec.project_repo.as_deref().and_then(core::repository),
                scope: status.scope.clone(),
                suspended: status.suspended.then_some(true),
                waits_for: status.waits_for.clone(),
            })
            .filter(|ours| *ours != DriftlessStackStatus::default()),
            last_update: status.last_update.as_ref().map(last_update),
            observed_generation: status.observed_generation,
            observed_reconcile_request: some(&status.observed_reconcile_request),
            outputs: status.outputs.clone(),
            project_info: status.project.clone().map(|(name, runtime)| ProjectInfo { name, runtime }),
        });
    }
}

/// Type, status, reason and message of the conditions of a readiness.
fn conditions(readiness: &Readiness) -> Vec<(&'static str, &'static str, &'static str, String)> {
    match readiness {
        Readiness::Ready => {
            vec![(READY, "True", "ProcessingCompleted", "the stack has been processed and is up to date".into())]
        }
        Readiness::Reconciling { reason, message } => vec![
            (READY, "False", "NotReadyInProgress", "reconciliation is in progress".into()),
            (RECONCILING, "True", reason.as_str(), message.clone()),
        ],
        Readiness::Stalled { reason, message } => vec![
            (READY, "False", "NotReadyStalled", "reconciliation is stalled".into()),
            (STALLED, "True", reason.as_str(), message.clone()),
        ],
    }
}

/// The condition `Drifted`, if the state of drift is known.
fn drifted(drift: &core::DriftStatus) -> Option<(&'static str, &'static str, &'static str, String)> {
    let (status, reason, message) = match drift.verdict.as_ref()? {
        DriftVerdict::None => ("False", DriftReason::NoDrift, "live state matches the last update".into()),
        DriftVerdict::Remediated => ("False", DriftReason::Remediated, "an update has succeeded since".into()),
        DriftVerdict::Adopted => {
            let message =
                "the state has taken the drift over; the next update changes it back, unless the program has the same values";
            ("False", DriftReason::Adopted, message.into())
        }
        DriftVerdict::Found(found) => {
            let check = drift.last.as_deref().unwrap_or_default();
            (
                "True",
                DriftReason::DriftDetected,
                format!("{found}; to remediate it, annotate the Stack with {}={check}", names::REMEDIATE),
            )
        }
        DriftVerdict::Unknown(why) => ("Unknown", DriftReason::DriftCheckFailed, why.clone()),
    };
    Some((DRIFTED, status, reason.as_str(), message))
}

fn stack_drift(drift: &core::DriftStatus) -> StackDrift {
    let found = match &drift.verdict {
        Some(DriftVerdict::Found(found)) => Some(found),
        _ => None,
    };
    let resources = found.into_iter().flat_map(|found| &found.resources);
    StackDrift {
        adoption_failed: drift.adoption_failed.then_some(true),
        count: found.map(|found| found.count),
        current_check: drift.current.clone(),
        last_check: drift.last.clone(),
        last_check_time: drift.checked.map(Time),
        resources: resources
            .map(|core::DriftedResource { urn, change, properties }| DriftedResource {
                change: change.clone(),
                properties: properties.clone(),
                urn: urn.clone(),
            })
            .collect(),
    }
}

/// The state of drift, from the condition and the rest of the status.
fn drift_status(conditions: &[Condition], drift: Option<&StackDrift>) -> core::DriftStatus {
    let drift = drift.cloned().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition.type_ == DRIFTED);
    let verdict = condition.and_then(|condition| match (condition.status.as_str(), DriftReason::parse(&condition.reason)) {
        ("False", Some(DriftReason::NoDrift)) => Some(DriftVerdict::None),
        ("False", Some(DriftReason::Remediated)) => Some(DriftVerdict::Remediated),
        ("False", Some(DriftReason::Adopted)) => Some(DriftVerdict::Adopted),
        ("True", _) => Some(DriftVerdict::Found(core::Drift {
            count: drift.count?,
            resources: drift
                .resources
                .into_iter()
                .map(|DriftedResource { change, properties, urn }| core::DriftedResource { urn, change, properties })
                .collect(),
        })),
        ("Unknown", _) => Some(DriftVerdict::Unknown(condition.message.clone())),
        _ => None,
    });
    let checked = drift.last_check_time.map(|Time(at)| at);
    core::DriftStatus {
        current: drift.current_check,
        last: drift.last_check,
        checked,
        verdict,
        adoption_failed: drift.adoption_failed.unwrap_or_default(),
    }
}

fn last_update(last: &core::LastUpdate) -> LastUpdate {
    LastUpdate {
        failures: Some(last.failures),
        generation: Some(last.generation),
        last_attempted_commit: some(last.last_attempted_commit.as_str()),
        last_resync_time: last.last_resync_time.map(Time),
        last_successful_commit: some(last.last_successful_commit.as_str()),
        message: some(&last.message),
        name: Some(last.name.clone()),
        permalink: last.permalink.clone(),
        reconcile_request: some(&last.reconcile_request),
        state: match last.state {
            core::LastUpdateState::Succeeded => Some("succeeded".into()),
            core::LastUpdateState::Failed => Some("failed".into()),
            core::LastUpdateState::Unknown => None,
        },
        operation: last.operation.map(|operation| operation.as_str().into()),
    }
}

/// `None` for an empty string, which PKO leaves out.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl From<&StackStatus> for core::StackStatus {
    fn from(status: &StackStatus) -> Self {
        let ours = status.driftless.clone().unwrap_or_default();
        Self {
            observed_generation: status.observed_generation,
            observed_reconcile_request: status.observed_reconcile_request.clone().unwrap_or_default(),
            readiness: readiness(&status.conditions),
            current_update: status.current_update.as_ref().and_then(|current| {
                Some(core::CurrentUpdate {
                    name: current.name.clone()?,
                    generation: current.generation.unwrap_or_default(),
                    reconcile_request: current.reconcile_request.clone().unwrap_or_default(),
                    commit: current.commit.as_ref().map(Into::into).unwrap_or_default(),
                })
            }),
            last_update: status.last_update.as_ref().map(Into::into),
            outputs: status.outputs.clone(),
            project: status.project_info.clone().map(|ProjectInfo { name, runtime }| (name, runtime)),
            operated: ours.operated,
            ran: ours.ran,
            conflict: ours.conflict.unwrap_or_default(),
            platform_failures: ours
                .platform_failures
                .map(|PlatformFailures { count, fresh }| core::PlatformFailures { count, fresh }),
            plan: ours.plan.as_ref().map(StackPlan::read).unwrap_or_default(),
            waits_for: ours.waits_for.clone(),
            drift: drift_status(&status.conditions, ours.drift.as_ref()),
            expiry: ours
                .expiry
                .as_ref()
                .and_then(|StackExpiry { blocked, time }| Some(core::Expiry { at: time.as_ref()?.0, blocked: blocked.clone() })),
            change_request: ours.change_request.and_then(|number| u32::try_from(number).ok()).map(core::ChangeRequest),
            suspended: ours.suspended.unwrap_or_default(),
            inputs: ours.inputs.clone(),
            scope: ours.scope.clone(),
            next_reconciliation: ours.next_look.as_ref().map(|Time(at)| *at),
        }
    }
}

impl From<&LastUpdate> for core::LastUpdate {
    fn from(last: &LastUpdate) -> Self {
        Self {
            name: last.name.clone().unwrap_or_default(),
            generation: last.generation.unwrap_or_default(),
            reconcile_request: last.reconcile_request.clone().unwrap_or_default(),
            operation: last.operation.as_deref().and_then(Operation::parse),
            state: match last.state.as_deref() {
                Some("succeeded") => core::LastUpdateState::Succeeded,
                Some("failed") => core::LastUpdateState::Failed,
                _ => core::LastUpdateState::Unknown,
            },
            message: last.message.clone().unwrap_or_default(),
            last_attempted_commit: last.last_attempted_commit.as_ref().map(Into::into).unwrap_or_default(),
            last_successful_commit: last.last_successful_commit.as_ref().map(Into::into).unwrap_or_default(),
            permalink: last.permalink.clone(),
            last_resync_time: last.last_resync_time.as_ref().map(|Time(at)| *at),
            failures: last.failures.unwrap_or_default(),
        }
    }
}

/// The readiness that the conditions express; `None` for any other combination, so that it is
/// overwritten.
fn readiness(conditions: &[Condition]) -> Option<Readiness> {
    let is_true = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True");
    let known = |condition: &Condition| StackReason::parse(&condition.reason);
    match (is_true(READY), is_true(RECONCILING), is_true(STALLED)) {
        (Some(_), None, None) => Some(Readiness::Ready),
        (None, Some(condition), None) => {
            Some(Readiness::Reconciling { reason: known(condition)?, message: condition.message.clone() })
        }
        (None, None, Some(condition)) => {
            Some(Readiness::Stalled { reason: known(condition)?, message: condition.message.clone() })
        }
        _ => None,
    }
}
