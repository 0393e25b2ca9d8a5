use jiff::Timestamp;

use crate::{Stack, drift::next_check};

/// Whether the sweep should hint a Stack: something about it was not looked at yet, a booked look or one for drift is overdue, or its turn for a
/// look without any reason has come. Turns come every `period_seconds`, spread over the Stacks by their uid, so that what no event
/// told of is seen within that time. `tick_seconds` is the time between two sweeps.
#[must_use]
pub fn due(stack: &Stack, period_seconds: i64, tick_seconds: i64, now: Timestamp) -> bool {
    let status = &stack.status;
    let unseen = status.observed_generation != Some(stack.generation)
        || status.observed_reconcile_request != stack.reconcile_request
        || status.readiness.is_none()
        || status.suspended != stack.suspended
        || stack.drift.is_none() && status.drift.checked.is_some()
        || stack.deleting;
    let check = next_check(stack).filter(|_| status.drift.current.is_none());
    let overdue = status.next_look.into_iter().chain(check).any(|at| at <= now);
    unseen || overdue || its_turn(&stack.uid, period_seconds, tick_seconds, now)
}

/// Whether the turn of something has come at this tick, by its uid or name. Everything has one turn in `period_seconds`.
#[must_use]
pub fn its_turn(uid: &str, period_seconds: i64, tick_seconds: i64, now: Timestamp) -> bool {
    let ticks = (period_seconds / tick_seconds.max(1)).max(1);
    let slot = i64::try_from(spread(uid) >> 1).unwrap_or(0) % ticks;
    now.as_second() / tick_seconds.max(1) % ticks == slot
}

/// A number by which things are spread over time, by their uid or name. FNV-1a: any hash that spreads them and never changes will do.
pub(crate) fn spread(uid: &str) -> u64 {
    uid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
