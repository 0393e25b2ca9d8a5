use jiff::{SignedDuration, Timestamp};

use crate::{LastUpdate, LastUpdateState, Stack, StackSpec};

/// After this many counted failures nothing is tried again until something changes. The first failure of a generation is not
/// counted, so that a fresh one gets four tries.
pub const MAX_FAILURES: i64 = 3;

const FIRST_COOLDOWN_SECONDS: i64 = 10;
const COOLDOWN_FACTOR: i64 = 3;
const MAX_COOLDOWN_SECONDS: i64 = 24 * 60 * 60;
const MIN_RESYNC_SECONDS: i64 = 60;

/// How long after a failure the next try waits: 10 s, 30 s, 90 s, up to the spec's cap. The first is never capped.
#[must_use]
pub fn cooldown(spec: &StackSpec, failures: i64) -> SignedDuration {
    let cap = spec.retry_max_backoff_duration_seconds.filter(|cap| *cap > 0).unwrap_or(MAX_COOLDOWN_SECONDS);
    let seconds = match u32::try_from(failures) {
        Ok(0) | Err(_) => FIRST_COOLDOWN_SECONDS,
        Ok(failures) => COOLDOWN_FACTOR.saturating_pow(failures).saturating_mul(FIRST_COOLDOWN_SECONDS).min(cap),
    };
    SignedDuration::from_secs(seconds)
}

/// The period of `continueResyncOnCommitMatch`.
pub(crate) fn resync_period(spec: &StackSpec) -> SignedDuration {
    SignedDuration::from_secs(spec.resync_frequency_seconds.unwrap_or(MIN_RESYNC_SECONDS).max(MIN_RESYNC_SECONDS))
}

/// When a Stack that wants no run now wants one because time passed; `None` if never.
pub(crate) fn next_run(stack: &Stack, last: &LastUpdate) -> Option<Timestamp> {
    let wait = match last.state {
        LastUpdateState::Failed if last.failures < MAX_FAILURES => cooldown(&stack.spec, last.failures),
        LastUpdateState::Succeeded if stack.spec.continue_resync_on_commit_match && !stack.deleting => resync_period(&stack.spec),
        _ => return None,
    };
    last.last_resync_time?.checked_add(wait).ok()
}
