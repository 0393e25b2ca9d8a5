use std::sync::{Mutex, PoisonError};

use driftless_telemetry::metrics::{self, Metric};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};

/// The time between two reports of refused calls.
const PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The calls that were refused for their signature and are not reported yet. Anyone can make these
/// calls: a log line and a metric for each would let a stranger raise the operator's bill.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    calls: u32,
    reported: Option<Timestamp>,
}

impl Refusals {
    /// Counts a refused call, and reports all unreported ones, at most once a minute. Every answer,
    /// refused or not, is an occasion to report.
    pub(crate) fn after(&self, status: StatusCode, now: Timestamp) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.calls = counted.calls.saturating_add(u32::from(status == StatusCode::UNAUTHORIZED));
        let is_due = counted.reported.is_none_or(|at| now.duration_since(at) >= PERIOD);
        if counted.calls == 0 || !is_due {
            return;
        }
        // Neither path nor cluster is logged, because the caller chose both.
        tracing::warn!(calls = counted.calls, "notifications refused: unknown cluster or bad signature");
        metrics::emit(&[(Metric::SignaturesRefused, counted.calls.into())], &[("function", "webhook")], now);
        *counted = Counted { calls: 0, reported: Some(now) };
    }
}
