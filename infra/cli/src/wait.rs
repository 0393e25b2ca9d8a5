//! `wait`: until a commit is applied, or a run has ended.

use std::time::Duration;

use driftless_api::{Stack, Update};
use driftless_core::{LastUpdate, LastUpdateState, Operation, Stack as CoreStack};
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::{
    Error, Result,
    cluster::Cluster,
    render::short,
    view::{self, Phase},
};

/// The time between two reads of an object.
const PERIOD: Duration = Duration::from_secs(2);
/// A commit may be abbreviated to as many digits.
const MIN_DIGITS: usize = 7;

/// Whether a revision of a source, such as `main@sha1:0c1d…`, is this commit. The commit may be
/// abbreviated.
#[must_use]
pub fn is_commit(revision: &str, commit: &str) -> bool {
    let hash = revision.rsplit([':', '/', '@']).next().unwrap_or(revision);
    let abbreviated = commit.len() >= MIN_DIGITS && hash.to_lowercase().starts_with(&commit.to_lowercase());
    revision == commit || abbreviated
}

/// Whether a Stack has applied its spec, and this commit if one is named. `Err` if its last update
/// was of that commit and failed.
pub fn applied(stack: &Stack, commit: Option<&str>) -> Result<bool> {
    let core = CoreStack::from(stack);
    let Some(last) = core.status.last_update.as_ref() else { return Ok(false) };
    let is_current = last.generation == core.generation && last.reconcile_request == core.reconcile_request;
    let LastUpdate { state, operation, last_attempted_commit, last_successful_commit, message, name, .. } = last;
    match state {
        LastUpdateState::Succeeded => {
            let is_commit = commit.is_none_or(|commit| is_commit(last_successful_commit.as_str(), commit));
            let is_applied = is_commit && is_current;
            if is_applied && *operation == Some(Operation::Preview) {
                let name = &core.name;
                return Err(Error::failed(format!("Stack {name:?} only previews (spec.preview); no commit is applied")));
            }
            Ok(is_applied && core.status.current_update.is_none())
        }
        // The platform failed, not the commit: the run is repeated.
        LastUpdateState::Failed if core.status.platform_failures.is_some() => Ok(false),
        LastUpdateState::Failed => {
            let is_commit = commit.is_none_or(|commit| is_commit(last_attempted_commit.as_str(), commit));
            if is_commit && is_current { Err(Error::failed(format!("Update {name} failed: {message}"))) } else { Ok(false) }
        }
        LastUpdateState::Unknown => Ok(false),
    }
}

/// The time limit of a command that waits.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    timeout: Duration,
}

impl Deadline {
    /// After this time from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self { end: Instant::now() + timeout, timeout }
    }

    /// Sleeps until the next read, or fails if the time is up. `last` says what was seen last.
    async fn pause(self, last: &str) -> Result<()> {
        if Instant::now() >= self.end {
            return Err(Error::TimedOut(format!("timed out after {}s: {last}", self.timeout.as_secs())));
        }
        tokio::time::sleep_until((Instant::now() + PERIOD).min(self.end)).await;
        Ok(())
    }
}

/// Waits until a Stack has applied a commit. Calls `note` with each new state.
pub async fn until_applied(
    cluster: &Cluster,
    name: &str,
    commit: Option<&str>,
    deadline: Deadline,
    mut note: impl FnMut(&str),
) -> Result<()> {
    let mut told = String::new();
    loop {
        let stack: Stack = cluster.get(name).await?;
        if applied(&stack, commit)? {
            return Ok(());
        }
        let core = CoreStack::from(&stack);
        let (_, state, message) = view::state(&core);
        let last = core.status.last_update.as_ref().map(|last| short(last.last_attempted_commit.as_str()));
        let seen = match last.filter(|_| message.is_empty()) {
            Some(last) => format!("{state}, its last update ran {last}"),
            None if message.is_empty() => state,
            None => format!("{state}: {message}"),
        };
        if seen != told {
            note(&seen);
            told.clone_from(&seen);
        }
        deadline.pause(&format!("Stack {name:?} is {told}")).await?;
    }
}

/// Waits until the run of an Update has ended, and fails if the run did.
pub async fn until_complete(cluster: &Cluster, update: &Update, deadline: Deadline, mut note: impl FnMut(&str)) -> Result<()> {
    let name = update.name_any();
    let mut told = String::new();
    loop {
        let update: Update = cluster.get(&name).await?;
        let seen = match view::phase(&update) {
            Phase::Succeeded => return Ok(()),
            Phase::Failed(reason) => {
                let message = view::condition(&update, "Failed").map(|failed| failed.message.clone()).unwrap_or_default();
                return Err(Error::failed(format!("Update {name} failed: {reason}: {message}")));
            }
            Phase::Running => "its task runs".to_owned(),
            Phase::Waiting(reason, message) if !reason.is_empty() => format!("it waits: {reason}: {message}"),
            Phase::Waiting(..) => "its task has not started".to_owned(),
        };
        if seen != told {
            note(&format!("Update {name}: {seen}"));
            told = seen;
        }
        deadline.pause(&format!("Update {name}: {told}")).await?;
    }
}
