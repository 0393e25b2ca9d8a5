use jiff::{SignedDuration, Timestamp};

use crate::{LastUpdate, LastUpdateState, Stack, StackSpec};

/// After this many counted failures there is no retry until something changes. The first failure of
/// a generation is not counted, so a new generation gets four tries.
pub const MAX_FAILURES: i64 = 3;

const FIRST_COOLDOWN_SECONDS: i64 = 10;
const COOLDOWN_FACTOR: i64 = 3;
const MAX_COOLDOWN_SECONDS: i64 = 24 * 60 * 60;
/// As between the kubelet's pulls of an image: a Stack recovers within this time after the cause is
/// gone. A failed attempt is billed for a minute.
const MAX_PLATFORM_COOLDOWN_SECONDS: i64 = 5 * 60;
const MIN_RESYNC_SECONDS: i64 = 60;

/// What follows the failed run of a Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A retry after this time.
    After(SignedDuration),
    /// No retry until something changes: another process holds the lock, and
    /// `retryOnUpdateConflict` is not set.
    Conflict,
    /// No retry until something changes: it failed too often.
    GivenUp,
}

/// Decides whether a failure is retried. A Stack that is being deleted is always retried, because
/// there may be no user left to change it.
pub(crate) fn retry(stack: &Stack, failures: i64) -> Retry {
    if let Some(platform) = stack.status.platform_failures {
        return Retry::After(platform_cooldown(platform.count));
    }
    let conflict = stack.status.conflict;
    let after = Retry::After(cooldown(&stack.spec, failures));
    if stack.deleting {
        return after;
    }
    match (conflict && !stack.spec.retry_on_update_conflict, stack.spec.retries) {
        (true, _) => Retry::Conflict,
        (false, Some(retries)) if failures >= retries.limit => Retry::GivenUp,
        (false, None) if !conflict && failures >= MAX_FAILURES => Retry::GivenUp,
        (false, _) => after,
    }
}

/// The delay between a failure and its retry: 10 s, 30 s, 90 s, up to the spec's maximum, or from
/// the spec's first delay. The first is never limited.
#[must_use]
pub fn cooldown(spec: &StackSpec, failures: i64) -> SignedDuration {
    let first = spec.retries.and_then(|retries| retries.first_backoff_seconds).unwrap_or(FIRST_COOLDOWN_SECONDS);
    capped(failures, first, spec.retry_max_backoff_duration_seconds.filter(|cap| *cap > 0).unwrap_or(MAX_COOLDOWN_SECONDS))
}

/// The delay after the `count`th platform failure in a row: 10 s, 30 s, 90 s, up to 5 min, without
/// a limit on the retries. After a run that never started it is 10 s.
#[must_use]
pub fn platform_cooldown(count: i64) -> SignedDuration {
    capped(count.saturating_sub(1), FIRST_COOLDOWN_SECONDS, MAX_PLATFORM_COOLDOWN_SECONDS)
}

fn capped(failures: i64, first: i64, cap: i64) -> SignedDuration {
    let seconds = match u32::try_from(failures) {
        Ok(0) | Err(_) => first,
        Ok(failures) => COOLDOWN_FACTOR.saturating_pow(failures).saturating_mul(first).min(cap),
    };
    SignedDuration::from_secs(seconds)
}

/// The period of `continueResyncOnCommitMatch`, which is limited because each run costs a task.
pub(crate) fn resync_period(spec: &StackSpec) -> SignedDuration {
    let least = spec.min_resync_seconds.max(MIN_RESYNC_SECONDS);
    SignedDuration::from_secs(spec.resync_frequency_seconds.unwrap_or(spec.default_resync_seconds).max(least))
}

/// How often git is polled.
pub(crate) fn poll_period(spec: &StackSpec) -> SignedDuration {
    SignedDuration::from_secs(spec.resync_frequency_seconds.unwrap_or(MIN_RESYNC_SECONDS).max(MIN_RESYNC_SECONDS))
}

/// When a Stack that wants no run now wants one because time has passed; `None` if never.
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
