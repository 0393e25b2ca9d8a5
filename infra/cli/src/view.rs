//! What a Stack and an Update show of themselves.

use driftless_api::{DriftlessUpdateStatus, Stack, Update, names, uid_of};
use driftless_core::{DriftVerdict, LastUpdateState, Operation, Readiness, Stack as CoreStack};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use crate::render::Tone;

/// The state of a Stack in a word, its message, and the tone of both.
#[must_use]
pub fn state(stack: &CoreStack) -> (Tone, String, String) {
    if stack.status.observed_generation.is_some_and(|seen| seen != stack.generation) {
        let message = format!("generation {} is not reconciled yet", stack.generation);
        return (Tone::Busy, "NotReconciled".into(), message);
    }
    readiness(stack.status.readiness.as_ref(), stack.suspended)
}

/// A readiness in a word, its message, and the tone of both.
#[must_use]
pub fn readiness(readiness: Option<&Readiness>, suspended: bool) -> (Tone, String, String) {
    match readiness {
        None => (Tone::Busy, "NotReconciled".into(), "no reconciliation has written its status yet".into()),
        Some(Readiness::Ready) if suspended => (Tone::Faint, "Suspended".into(), String::new()),
        Some(Readiness::Ready) => (Tone::Good, "Ready".into(), String::new()),
        Some(Readiness::Reconciling { reason, message }) => (Tone::Busy, reason.to_string(), message.clone()),
        Some(Readiness::Stalled { reason, message }) => (Tone::Bad, reason.to_string(), message.clone()),
    }
}

/// Drift in a word: `yes`, `no`, `unknown`, or `-` where no check has ended.
#[must_use]
pub fn drift(stack: &CoreStack) -> (Tone, &'static str) {
    match &stack.status.drift.verdict {
        None => (Tone::Faint, "-"),
        Some(DriftVerdict::None | DriftVerdict::Remediated | DriftVerdict::Adopted) => (Tone::Plain, "no"),
        Some(DriftVerdict::Found(_)) => (Tone::Bad, "yes"),
        Some(DriftVerdict::Unknown(_)) => (Tone::Busy, "unknown"),
    }
}

/// The state of the last update in a word.
#[must_use]
pub fn last_state(state: LastUpdateState) -> &'static str {
    match state {
        LastUpdateState::Succeeded => "succeeded",
        LastUpdateState::Failed => "failed",
        LastUpdateState::Unknown => "ended",
    }
}

/// How far an Update is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has no task yet. The reason and the message of what it waits for, if it says so.
    Waiting(String, String),
    /// Its task runs.
    Running,
    /// Its run did what it was asked for.
    Succeeded,
    /// Its run failed, for this reason.
    Failed(String),
}

/// The Update's own part of the status.
#[must_use]
pub fn ours(update: &Update) -> DriftlessUpdateStatus {
    update.status.as_ref().and_then(|status| status.driftless.clone()).unwrap_or_default()
}

/// A condition of an Update.
#[must_use]
pub fn condition<'a>(update: &'a Update, type_: &str) -> Option<&'a Condition> {
    update.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// How far an Update is.
#[must_use]
pub fn phase(update: &Update) -> Phase {
    let failed = condition(update, "Failed").filter(|failed| failed.status == "True");
    match (update.is_complete(), failed) {
        (true, Some(failed)) => Phase::Failed(failed.reason.clone()),
        (true, None) => Phase::Succeeded,
        (false, _) if ours(update).task.is_some() => Phase::Running,
        (false, _) => {
            let DriftlessUpdateStatus { waiting_for, waiting_reason, .. } = ours(update);
            Phase::Waiting(waiting_reason.unwrap_or_default(), waiting_for.unwrap_or_default())
        }
    }
}

/// When an Update was created.
#[must_use]
pub fn created(update: &Update) -> Option<Timestamp> {
    update.creation_timestamp().map(|time| time.0)
}

/// When a run started, and when it ended.
#[must_use]
pub fn times(update: &Update) -> (Option<Timestamp>, Option<Timestamp>) {
    let status = update.status.clone().unwrap_or_default();
    (status.start_time.map(|time| time.0), status.end_time.map(|time| time.0))
}

/// What an Update does: `up`, `preview`, `refresh`, `destroy`, or `drift check`.
#[must_use]
pub fn operation(update: &Update) -> String {
    if update.labels().contains_key(names::DRIFT_CHECK) {
        return "drift check".into();
    }
    if update.spec.is_proposal() {
        return Operation::Preview.as_str().into();
    }
    update.spec.operation.clone().unwrap_or_else(|| "run".into())
}

/// The revision of the source that an Update runs, if it says so.
#[must_use]
pub fn revision(update: &Update) -> Option<&str> {
    update.spec.driftless.as_ref()?.commit.as_deref().filter(|commit| !commit.is_empty())
}

/// The Updates of a Stack, the newest first: its own, and those made by hand in its Workspace.
#[must_use]
pub fn updates_of(stack: &Stack, all: Vec<Update>) -> Vec<Update> {
    let uid = uid_of(stack);
    let workspace = stack.name_any();
    let mut found: Vec<_> = all
        .into_iter()
        .filter(|update| {
            update.owner_references().iter().any(|owner| uid == *owner.uid)
                || update.spec.workspace_name.as_ref() == Some(&workspace)
        })
        .collect();
    found.sort_by_key(|update| (std::cmp::Reverse(created(update)), update.name_any()));
    found
}
