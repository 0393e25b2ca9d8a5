use jiff::{SignedDuration, Timestamp};

use crate::{
    Inputs, LastUpdateState, Operation, Revision, Stack, drift,
    retry::{self, Retry},
};

/// Whether a Stack wants a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Nothing is to be run now.
    Synced,
    /// A run is wanted.
    Run(Why),
}

/// Why a run is wanted. It displays as PKO's text in the Update's message and in an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The Stack never ran.
    Initial,
    /// The spec changed.
    Generation(i64),
    /// It is being deleted.
    Deletion,
    /// A user requested it.
    Request(String),
    /// The source changed.
    Commit(Revision),
    /// A Secret or ConfigMap that it refers to changed.
    Inputs,
    /// The resync period has elapsed.
    Resync(SignedDuration),
    /// A failure is retried.
    Backoff(SignedDuration),
    /// This number of resources drifted, and the drift is to be fixed.
    Drift(u32),
    /// This number of resources drifted, and the state is to take the drift over.
    Adoption(u32),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Initial => f.write_str("Initial stack update"),
            Self::Generation(generation) => write!(f, "New stack generation: {generation}"),
            Self::Deletion => f.write_str("Stack marked for deletion"),
            Self::Request(request) => write!(f, "Sync request: {request:?}"),
            Self::Commit(commit) => write!(f, "New commit detected: {commit:?}"),
            Self::Inputs => f.write_str("Change of a Secret or ConfigMap detected"),
            Self::Resync(period) => write!(f, "Resync time elapsed: {}", go_duration(*period)),
            Self::Drift(count) => write!(f, "Drift detected: {count} resource(s)"),
            Self::Adoption(count) => write!(f, "Drift to adopt: {count} resource(s)"),
            Self::Backoff(cooldown) => write!(f, "Backoff time elapsed: {}", go_duration(*cooldown)),
        }
    }
}

/// A duration in whole seconds as Go prints it: `1h0m0s`, `1m30s`, `10s`.
pub(crate) fn go_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s}s"),
        _ => format!("{h}h{m}m{s}s"),
    }
}

/// Returns whether the Stack wants a run at `commit`, given what is known of its inputs.
#[must_use]
pub fn is_synced(stack: &Stack, commit: &Revision, inputs: Option<&Inputs>, now: Timestamp) -> Sync {
    let has_run = stack.status.has_succeeded();
    let adopted = drift::to_adopt(stack).filter(|_| has_run).map(|drift| Why::Adoption(drift.count));
    let is_changed = inputs.is_some_and(|inputs| inputs.changed);
    match by_source_and_time(stack, commit, now) {
        Sync::Synced if stack.deleting => Sync::Synced,
        Sync::Synced if is_changed => Sync::Run(Why::Inputs),
        Sync::Synced => {
            let why = adopted.or_else(|| drift::to_remediate(stack).filter(|_| has_run).map(|drift| Why::Drift(drift.count)));
            why.map_or(Sync::Synced, Sync::Run)
        }
        // A resync would replace the plan of an adoption that waits for its approval, each time
        // that it is due.
        Sync::Run(resync @ Why::Resync(_)) => Sync::Run(adopted.filter(|_| !is_changed).unwrap_or(resync)),
        sync @ Sync::Run(_) => sync,
    }
}

/// The first rule that matches decides, in PKO's order. A destroy does not depend on the source.
fn by_source_and_time(stack: &Stack, commit: &Revision, now: Timestamp) -> Sync {
    let Some(last) = &stack.status.last_update else { return Sync::Run(Why::Initial) };
    if last.generation != stack.generation {
        return Sync::Run(if stack.deleting { Why::Deletion } else { Why::Generation(stack.generation) });
    }
    if last.reconcile_request != stack.reconcile_request {
        return Sync::Run(Why::Request(stack.reconcile_request.clone()));
    }
    let since = last.last_resync_time.map_or(SignedDuration::MAX, |then| now.duration_since(then));
    match last.state {
        LastUpdateState::Succeeded if stack.deleting && last.operation == Some(Operation::Destroy) => Sync::Synced,
        LastUpdateState::Succeeded if stack.deleting => Sync::Run(Why::Deletion),
        LastUpdateState::Succeeded if last.last_successful_commit != *commit => Sync::Run(Why::Commit(commit.clone())),
        LastUpdateState::Succeeded if !stack.spec.continue_resync_on_commit_match => Sync::Synced,
        LastUpdateState::Succeeded if since >= retry::resync_period(&stack.spec) => {
            Sync::Run(Why::Resync(retry::resync_period(&stack.spec)))
        }
        LastUpdateState::Failed if !stack.deleting && last.last_attempted_commit != *commit => {
            Sync::Run(Why::Commit(commit.clone()))
        }
        LastUpdateState::Failed => match retry::retry(stack, last.failures) {
            Retry::After(cooldown) if since >= cooldown => Sync::Run(Why::Backoff(cooldown)),
            Retry::After(_) | Retry::Conflict | Retry::GivenUp => Sync::Synced,
        },
        LastUpdateState::Succeeded | LastUpdateState::Unknown => Sync::Synced,
    }
}
