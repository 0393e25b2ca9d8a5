use jiff::Timestamp;

use crate::{Stack, drift::next_check, schedule::spread};

/// Returns whether the sweep should hint a Stack: it has a change that no reconciliation has seen,
/// a requeue or a drift check is overdue, or its regular turn has come ([`its_turn`]).
#[must_use]
pub fn due(stack: &Stack, its_turn: bool, now: Timestamp) -> bool {
    let status = &stack.status;
    let unseen = status.observed_generation != Some(stack.generation)
        || status.observed_reconcile_request != stack.reconcile_request
        || status.readiness.is_none()
        || status.suspended != stack.suspended
        || stack.drift.is_none() && status.drift.checked.is_some()
        || stack.deleting;
    let check = next_check(stack).filter(|_| status.drift.current.is_none());
    let overdue = status.next_reconciliation.into_iter().chain(check).any(|at| at <= now);
    unseen || overdue || its_turn
}

/// Returns whether an object has its turn at the tick `now` or at one of the ticks before, `ticks`
/// in all. Each object has one turn in `period_seconds`, at a tick that depends on its uid or name,
/// so that a change without an event is seen within that time. `tick_seconds` is the time between
/// two ticks.
#[must_use]
pub fn its_turn(uid: &str, period_seconds: i64, tick_seconds: i64, ticks: i64, now: Timestamp) -> bool {
    let all = (period_seconds / tick_seconds.max(1)).max(1);
    let slot = i64::try_from(spread(uid) >> 1).unwrap_or(0) % all;
    (now.as_second() / tick_seconds.max(1) - slot).rem_euclid(all) < ticks
}
