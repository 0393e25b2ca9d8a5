use jiff::{SignedDuration, Timestamp};

use crate::{LastUpdate, LastUpdateState, Stack, StackSpec};

/// After this many counted failures nothing is tried again until something changes. The first failure of a generation is not
/// counted, so that a fresh one gets four tries.
pub const MAX_FAILURES: i64 = 3;

const FIRST_COOLDOWN_SECONDS: i64 = 10;
const COOLDOWN_FACTOR: i64 = 3;
const MAX_COOLDOWN_SECONDS: i64 = 24 * 60 * 60;
/// An attempt that the platform fails is billed a minute: two an hour cost little however long the cause lasts.
const MAX_PLATFORM_COOLDOWN_SECONDS: i64 = 30 * 60;
const MIN_RESYNC_SECONDS: i64 = 60;

/// What becomes of a Stack whose last run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It is tried again after this time.
    After(SignedDuration),
    /// Not until something changes: the lock is somebody else's, and nobody asked for patience.
    Conflict,
    /// Not until something changes: it failed too often.
    GivenUp,
}

/// Whether a failure is tried again. A Stack that is to go never gives up: nobody may be there to change anything.
pub(crate) fn retry(stack: &Stack, failures: i64) -> Retry {
    if let Some(platform) = stack.status.platform_failures {
        return Retry::After(platform_cooldown(platform.count));
    }
    let conflict = stack.status.conflict;
    if stack.deleting || conflict && stack.spec.retry_on_update_conflict {
        Retry::After(cooldown(&stack.spec, failures))
    } else if conflict {
        Retry::Conflict
    } else if failures >= MAX_FAILURES {
        Retry::GivenUp
    } else {
        Retry::After(cooldown(&stack.spec, failures))
    }
}

/// How long after a failure the next try waits: 10 s, 30 s, 90 s, up to the spec's cap. The first is never capped.
#[must_use]
pub fn cooldown(spec: &StackSpec, failures: i64) -> SignedDuration {
    capped(failures, spec.retry_max_backoff_duration_seconds.filter(|cap| *cap > 0).unwrap_or(MAX_COOLDOWN_SECONDS))
}

/// How long the next try waits after the `count`th platform failure in a row: 10 s, 30 s, 90 s, up to 30 min, without an end.
#[must_use]
pub fn platform_cooldown(count: i64) -> SignedDuration {
    capped(count.saturating_sub(1), MAX_PLATFORM_COOLDOWN_SECONDS)
}

fn capped(failures: i64, cap: i64) -> SignedDuration {
    let seconds = match u32::try_from(failures) {
        Ok(0) | Err(_) => FIRST_COOLDOWN_SECONDS,
        Ok(failures) => COOLDOWN_FACTOR.saturating_pow(failures).saturating_mul(FIRST_COOLDOWN_SECONDS).min(cap),
    };
    SignedDuration::from_secs(seconds)
}

/// The period of `continueResyncOnCommitMatch`: each costs a task.
pub(crate) fn resync_period(spec: &StackSpec) -> SignedDuration {
    let least = spec.min_resync_seconds.max(MIN_RESYNC_SECONDS);
    SignedDuration::from_secs(spec.resync_frequency_seconds.unwrap_or(spec.default_resync_seconds).max(least))
}

/// How often git is asked.
pub(crate) fn poll_period(spec: &StackSpec) -> SignedDuration {
    SignedDuration::from_secs(spec.resync_frequency_seconds.unwrap_or(MIN_RESYNC_SECONDS).max(MIN_RESYNC_SECONDS))
}

/// When a Stack that wants no run now wants one because time passed; `None` if never.
pub(crate) fn next_run(stack: &Stack, last: &LastUpdate) -> Option<Timestamp> {
    let wait = match last.state {
        LastUpdateState::Failed => match retry(stack, last.failures) {
            Retry::After(wait) => wait,
            Retry::Conflict | Retry::GivenUp => return None,
        },
        LastUpdateState::Succeeded if stack.spec.continue_resync_on_commit_match && !stack.deleting => resync_period(&stack.spec),
        _ => return None,
    };
    last.last_resync_time?.checked_add(wait).ok()
}
