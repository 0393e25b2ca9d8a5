//! What ends a run early: a stop from outside, or one of its limits.

use std::{cell::Cell, time::Duration};

use driftless_contract::{FailureReason, PREFIX, RunLimits};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::failure::Failure;

/// Why a run is to end, and how.
#[derive(Clone)]
pub(crate) struct Stop {
    pub why: Failure,
    pub patience: Patience,
}

/// How long Pulumi may take to end.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// After the first interrupt: it finishes the steps that it started, and saves its state.
    pub first: Duration,
    /// After the second interrupt: it drops its steps. Then it is killed.
    pub second: Duration,
    /// For a call that only reads and is therefore not interrupted.
    pub answer: Duration,
}

/// ECS kills the task after 120 s, and the result must be stored before that.
const ASKED: Patience =
    Patience { first: Duration::from_secs(100), second: Duration::from_secs(8), answer: Duration::from_secs(20) };

/// Only the runner itself ends this task, so Pulumi has more time.
const LIMIT: Patience =
    Patience { first: Duration::from_mins(10), second: Duration::from_mins(1), answer: Duration::from_mins(1) };

impl Stop {
    /// The task was stopped from outside.
    pub(crate) fn asked() -> Self {
        let message = "interrupted: task was stopped".into();
        Self { why: Failure { reason: FailureReason::Interrupted, message }, patience: ASKED }
    }

    fn silent(seconds: u32, doing: &str) -> Self {
        let message = format!(
            "interrupted: no engine event and no output for {seconds}s; the last step was {doing}; find out why it hangs, or \
             raise SilenceSeconds"
        );
        Self { why: Failure { reason: FailureReason::Silent, message }, patience: LIMIT }
    }

    fn timed_out(seconds: u32, doing: &str) -> Self {
        let message = format!(
            "interrupted: run exceeded its limit of {seconds}s; the last step was {doing}; raise MaxRunSeconds, or the \
             annotation {PREFIX}/max-duration of the Update"
        );
        Self { why: Failure { reason: FailureReason::TimedOut, message }, patience: LIMIT }
    }
}

/// Returns when the task was stopped from outside.
pub(crate) async fn asked(asked: &mut watch::Receiver<bool>) {
    if asked.wait_for(|asked| *asked).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns when the run is to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(stop)) => stop.clone(),
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

/// Returns when a part of the patience has elapsed, and how long it was. A further stop may shorten
/// it.
pub(crate) async fn lapsed(stop: &mut watch::Receiver<Option<Stop>>, part: fn(Patience) -> Duration) -> Duration {
    let mut limit = part(stopped(stop).await.patience);
    let began = Instant::now();
    loop {
        tokio::select! {
            () = sleep_until(began + limit) => return limit,
            Ok(()) = stop.changed() => limit = part(stopped(stop).await.patience),
        }
    }
}

/// Waits for what ends the run early. `heard` is the time of the last sign of life; `doing` names
/// the step in progress.
pub(crate) async fn due(
    told: &mut watch::Receiver<bool>,
    limits: RunLimits,
    heard: &Cell<Instant>,
    doing: impl Fn() -> String,
) -> Stop {
    tokio::select! {
        () = asked(told) => Stop::asked(),
        seconds = silence(limits.silence_seconds, heard) => Stop::silent(seconds, &doing()),
        seconds = elapsed(limits.max_seconds) => Stop::timed_out(seconds, &doing()),
    }
}

async fn silence(limit: Option<u32>, heard: &Cell<Instant>) -> u32 {
    let Some(seconds) = limit else { return std::future::pending().await };
    loop {
        let end = heard.get() + Duration::from_secs(seconds.into());
        if end <= Instant::now() {
            return seconds;
        }
        sleep_until(end).await;
    }
}

async fn elapsed(limit: Option<u32>) -> u32 {
    let Some(seconds) = limit else { return std::future::pending().await };
    sleep(Duration::from_secs(seconds.into())).await;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(silence_seconds: Option<u32>, max_seconds: Option<u32>) -> RunLimits {
        RunLimits { silence_seconds, max_seconds }
    }

    async fn first(limits: RunLimits, heard: &Cell<Instant>) -> (Failure, Duration) {
        let (_tell, mut told) = watch::channel(false);
        let began = Instant::now();
        let stop = due(&mut told, limits, heard, || "update urn:a".into()).await;
        assert_eq!(stop.patience.first, Duration::from_mins(10));
        (stop.why, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_sign_of_life() {
        let heard = Cell::new(Instant::now());
        let life = async {
            for _ in 0..5 {
                sleep(50 * SECOND).await;
                heard.set(Instant::now());
            }
            std::future::pending::<()>().await;
        };
        let (why, after) = tokio::select! { first = first(limits(Some(60), None), &heard) => first, () = life => unreachable!() };
        assert_eq!((why.reason, after.as_secs()), (FailureReason::Silent, 5 * 50 + 60));
        for part in ["60s", "update urn:a", "raise SilenceSeconds"] {
            assert!(why.message.contains(part), "{}", why.message);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn active_run_is_limited_in_total_time() {
        let heard = Cell::new(Instant::now() + 1000 * SECOND);
        let (why, after) = first(limits(Some(60), Some(90)), &heard).await;
        assert_eq!((why.reason, after.as_secs()), (FailureReason::TimedOut, 90));
        for part in ["90s", "update urn:a", "annotation driftless.dev/max-duration"] {
            assert!(why.message.contains(part), "{}", why.message);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stop_request_shortens_the_patience_of_a_limit() {
        let (tell, mut stop) = watch::channel(Some(Stop::silent(60, "x")));
        let began = Instant::now();
        let telling = async {
            sleep(30 * SECOND).await;
            tell.send_replace(Some(Stop::asked()));
        };
        let (lapsed, ()) = tokio::join!(lapsed(&mut stop, |patience| patience.first), telling);
        assert_eq!((lapsed, began.elapsed().as_secs()), (ASKED.first, ASKED.first.as_secs()));
        drop(tell);
    }

    #[tokio::test(start_paused = true)]
    async fn without_limits_only_a_request_ends_the_run() {
        let (tell, mut told) = watch::channel(false);
        let heard = Cell::new(Instant::now());
        let mut due = std::pin::pin!(due(&mut told, RunLimits::default(), &heard, String::new));
        assert!(tokio::time::timeout(Duration::from_hours(13), &mut due).await.is_err());
        tell.send_replace(true);
        let Stop { why, patience } = due.await;
        assert_eq!(why.reason, FailureReason::Interrupted);
        assert!(patience.first + patience.second < Duration::from_mins(2));
    }
}
