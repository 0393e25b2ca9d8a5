use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};

use crate::{FetchFailure, source::fetch_again};

/// A fetch is requested again if the last one is older than this. A tree that was just requested is
/// kept at least this long.
const RECENT: SignedDuration = SignedDuration::from_hours(12);

/// A source that cannot be used is not requested for this long.
const REFUSED: SignedDuration = SignedDuration::from_mins(10);

/// The last fetch of a source, with `T` as what it stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchFacts<T> {
    /// When it began.
    pub at: Timestamp,
    /// The end of the source's rest after it.
    pub rests_until: Timestamp,
    /// What the source had at the last fetch that succeeded.
    pub artifact: Option<T>,
    /// Why it failed.
    pub failure: Option<FetchFailure>,
}

/// The state of the source that a Workspace names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnSourceState<T> {
    /// A run can use it.
    There(T),
    /// A fetch is requested. The message of the wait.
    Fetching(String),
    /// The last fetch failed.
    Failed {
        /// Why, and when it is fetched again.
        words: String,
        /// No retry until the source changes.
        terminal: bool,
    },
}

impl<T> OwnSourceState<T> {
    /// Decides the state of the source `own`, and whether to request a fetch now. If the source may
    /// change (`is_followed`), a run starts only from a fetch after `since`, and earlier failures
    /// do not delay it. A resting source is not requested, because the fetcher drops the request.
    #[must_use]
    pub fn of(
        own: impl Display,
        is_followed: bool,
        fetch: Option<FetchFacts<T>>,
        since: Option<Timestamp>,
        now: Timestamp,
    ) -> (Self, bool) {
        let fetching = || (Self::Fetching(format!("fetching {own}")), true);
        let Some(FetchFacts { at, rests_until, artifact, failure }) = fetch else { return fetching() };
        let fetching = || {
            if rests_until <= now {
                return fetching();
            }
            let rested = rests_until.strftime("%H:%M:%SZ");
            (Self::Fetching(format!("next fetch of {own} at {rested}, after a slow one")), false)
        };
        let is_before = since.is_some_and(|since| at < since);
        match (artifact, failure) {
            (Some(_), None) if is_before && is_followed || since.is_some() && now.duration_since(at) > RECENT => fetching(),
            (Some(artifact), None) => (Self::There(artifact), false),
            (None, None) => fetching(),
            (_, Some(failure)) => {
                let (due, words) = fetch_again(&failure, is_before, now);
                let state = Self::Failed { words: format!("{own}: {words}"), terminal: due.is_none() };
                (state, due.is_some_and(|due| due <= now))
            }
        }
    }
}

/// Why a source that an Update names cannot be used, if its last fetch failed with that content. It
/// is requested again ten minutes after its rest, because the installation may serve and allow its
/// kind by then.
#[must_use]
pub fn refused_source<T>(fetch: FetchFacts<T>, now: Timestamp) -> Option<String> {
    let is_recent = now.duration_since(fetch.rests_until) < REFUSED;
    fetch.failure.filter(|failure| is_recent && failure.terminal).map(|failure| failure.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const BRANCH: (&str, bool) = ("spec.git at main", true);
    const PINNED: (&str, bool) = ("spec.flux at sha256:0", false);

    fn ago(seconds: i64) -> Timestamp {
        NOW - SignedDuration::from_secs(seconds)
    }

    /// A fetch that took that many seconds, and failed for good or not.
    fn fetch(at: Timestamp, seconds: i64, failure: Option<bool>) -> FetchFacts<()> {
        let took = SignedDuration::from_secs(seconds);
        let rest = rest(took, failure.is_some().into());
        let rests_until = if rest.is_zero() { at } else { at + took + rest };
        let failure = failure.map(|terminal| FetchFailure { at: rests_until, message: "no".into(), terminal, failures: 1 });
        FetchFacts { at, rests_until, artifact: failure.is_none().then_some(()), failure }
    }

    fn judged((own, is_followed): (&str, bool), fetch: &FetchFacts<()>, since: Option<Timestamp>) -> (&'static str, bool) {
        match OwnSourceState::of(own, is_followed, Some(fetch.clone()), since, NOW) {
            (OwnSourceState::There(()), ask) => ("there", ask),
            (OwnSourceState::Fetching(_), ask) => ("fetching", ask),
            (OwnSourceState::Failed { terminal: false, .. }, ask) => ("failed", ask),
            (OwnSourceState::Failed { terminal: true, .. }, ask) => ("stalled", ask),
        }
    }

    fn words(fetch: Option<FetchFacts<()>>, since: Option<Timestamp>) -> (String, bool) {
        match OwnSourceState::of(BRANCH.0, BRANCH.1, fetch, since, NOW) {
            (OwnSourceState::There(()), ask) => (String::new(), ask),
            (OwnSourceState::Fetching(words) | OwnSourceState::Failed { words, .. }, ask) => (words, ask),
        }
    }

    #[test]
    fn run_uses_a_fetch_after_its_creation_unless_pinned() {
        let fetched = fetch(ago(10), 0, None);
        assert_eq!(words(None, None), ("fetching spec.git at main".into(), true));
        for since in [None, Some(ago(11)), Some(ago(10))] {
            assert_eq!(judged(BRANCH, &fetched, since), ("there", false));
        }
        assert_eq!(judged(BRANCH, &fetched, Some(ago(9))), ("fetching", true));
        assert_eq!(judged(PINNED, &fetched, Some(ago(9))), ("there", false));
    }

    #[test]
    fn expiring_tree_is_requested_before_its_use() {
        let old = fetch(NOW - RECENT - SignedDuration::from_secs(1), 0, None);
        for own in [BRANCH, PINNED] {
            assert_eq!(judged(own, &old, None), ("there", false));
            assert_eq!(judged(own, &old, Some(Timestamp::UNIX_EPOCH)), ("fetching", true));
            assert_eq!(judged(own, &fetch(NOW - RECENT, 0, None), Some(Timestamp::UNIX_EPOCH)), ("there", false));
        }
    }

    #[test]
    fn failed_fetch_is_requested_when_due_and_per_later_update() {
        for (own, failed, since, expected) in [
            (BRANCH, fetch(ago(29), 0, Some(false)), None, ("failed", false)),
            (BRANCH, fetch(ago(30), 0, Some(false)), None, ("failed", true)),
            (BRANCH, fetch(ago(29), 0, Some(false)), Some(ago(29)), ("failed", false)),
            (BRANCH, fetch(ago(29), 0, Some(false)), Some(ago(28)), ("failed", true)),
            (PINNED, fetch(ago(9999), 0, Some(true)), None, ("stalled", false)),
            (PINNED, fetch(ago(9999), 0, Some(true)), Some(ago(9998)), ("failed", true)),
        ] {
            assert_eq!(judged(own, &failed, since), expected, "{own:?} {failed:?} {since:?}");
        }
        let (words, _) = words(Some(fetch(NOW, 0, Some(false))), None);
        assert!(words.contains("spec.git at main: no; next try at"), "{words}");
    }

    #[test]
    fn slow_source_is_not_asked_for_before_its_rest_ends() {
        // Fetched in 20 s, so that it rests for 180 s afterwards.
        let slow = |at, failure| fetch(at, 20, failure);
        for (fetched, since, expected) in [
            (slow(ago(199), None), Some(ago(100)), ("fetching", false)),
            (slow(ago(200), None), Some(ago(100)), ("fetching", true)),
            (slow(ago(199), None), Some(ago(199)), ("there", false)),
            (slow(ago(199), Some(false)), None, ("failed", false)),
            (slow(ago(229), Some(false)), None, ("failed", false)),
            (slow(ago(230), Some(false)), None, ("failed", true)),
            (slow(ago(199), Some(false)), Some(ago(100)), ("failed", false)),
            (slow(ago(200), Some(false)), Some(ago(100)), ("failed", true)),
            (slow(ago(199), Some(true)), Some(ago(100)), ("failed", false)),
        ] {
            assert_eq!(judged(BRANCH, &fetched, since), expected, "{fetched:?} {since:?}");
        }
        let (words, _) = words(Some(slow(ago(199), None)), Some(ago(100)));
        assert_eq!(words, "next fetch of spec.git at main at 08:00:01Z, after a slow one");
    }

    #[test]
    fn refused_source_is_refused_for_ten_minutes_after_its_rest() {
        for (fetched, refused) in [
            (fetch(ago(599), 0, Some(true)), true),
            (fetch(ago(600), 0, Some(true)), false),
            (fetch(ago(799), 20, Some(true)), true),
            (fetch(ago(800), 20, Some(true)), false),
            (fetch(ago(1), 0, Some(false)), false),
            (fetch(ago(1), 0, None), false),
        ] {
            assert_eq!(refused_source(fetched.clone(), NOW).is_some(), refused, "{fetched:?}");
        }
    }
}
