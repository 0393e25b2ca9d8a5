use jiff::{SignedDuration, Timestamp};

/// The shortest and the longest wait.
const WAIT_SECONDS: (i64, i64) = (15, 300);

/// How long a run that gets no task from the platform waits before the next try: a quarter of the
/// time that it has waited so far, between 15 s and 5 min. It therefore waits at most a quarter
/// longer than it has to, and the number of tries grows with the logarithm of that time.
#[must_use]
pub(crate) fn start_backoff(since: Timestamp, now: Timestamp) -> SignedDuration {
    let (shortest, longest) = WAIT_SECONDS;
    SignedDuration::from_secs((now.duration_since(since).as_secs() / 4).clamp(shortest, longest))
}

/// Returns whether the next try for such a run is not due yet, after the last one at `last`.
#[must_use]
pub fn is_backing_off(since: Timestamp, last: Timestamp, now: Timestamp) -> bool {
    now < last + start_backoff(since, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off() {
        let since = Timestamp::UNIX_EPOCH;
        let tries = |within: SignedDuration| {
            let next = |at: &Timestamp| Some(*at + start_backoff(since, *at));
            std::iter::successors(Some(since), next).take_while(|at| at.duration_since(since) < within).count()
        };
        assert_eq!(
            [1, 10, 60, 24 * 60].map(|minutes| tries(SignedDuration::from_mins(minutes))),
            [4, 15, 26, 302],
            "a minute, ten minutes, an hour, a day"
        );
        for (waited, wait) in [(-10, 15), (0, 15), (80, 20), (1200, 300), (100_000, 300)] {
            let now = since + SignedDuration::from_secs(waited);
            assert_eq!(start_backoff(since, now).as_secs(), wait, "{waited}");
            let due = now + SignedDuration::from_secs(wait);
            assert!(is_backing_off(since, now, due - SignedDuration::from_secs(1)) && !is_backing_off(since, now, due));
        }
    }
}
