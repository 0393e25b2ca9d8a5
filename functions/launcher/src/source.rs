//! The source that a Workspace names itself: what the fetcher found, and whether to request another
//! fetch.

use driftless_api::OwnSource;
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{ArtifactDigest, FetchOutcome, FetchRequest, FetchedArtifact, ObjectKey, VERSION, keys};
use driftless_core::{FetchFailure, fetch_again};
use driftless_kubernetes::Cluster;
use jiff::{SignedDuration, Timestamp};

use crate::{Error, Launcher};

/// A fetch is requested again if the last one is older than this. A tree that was just requested is
/// kept at least this long.
const RECENT: SignedDuration = SignedDuration::from_hours(12);

/// A source that cannot be used is not requested for this long.
const REFUSED: SignedDuration = SignedDuration::from_mins(10);

/// The state of a source.
#[derive(Debug, PartialEq)]
pub(crate) enum Source {
    There(FetchedArtifact),
    /// The message of the wait.
    Fetching(String),
    Failed {
        words: String,
        /// No retry until the source changes.
        terminal: bool,
    },
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Returns the state of a Workspace's source and requests a fetch if one is due. If the source
    /// may change, a run starts only from a fetch after `since`, and earlier failures do not delay
    /// it.
    pub(crate) async fn own_source(
        &self,
        workspace: &ObjectKey,
        hops: u8,
        own: &OwnSource<'_>,
        since: Option<Timestamp>,
    ) -> Result<Source, Error> {
        let fingerprint = own.fingerprint();
        let outcome = self.objects.read(&keys::fetch(workspace)).await?;
        let outcome = outcome.filter(|outcome| outcome.subject == fingerprint);
        let (source, ask) = judge(own, outcome.as_ref(), since, self.now);
        if ask {
            // Reconciliations that know the same request within moments of each other and are
            // deduplicated; a later request must not be.
            let known = outcome.map(|outcome| outcome.at.to_string()).unwrap_or_default();
            let moment = (self.now.as_second() / 10).to_string();
            let deduplication = keys::hash(&["launcher", &keys::fetch(workspace), &fingerprint, &known, &moment]);
            let request =
                FetchRequest { version: VERSION, source: workspace.clone(), collect: false, hops: hops.saturating_add(1) };
            self.queues.fetch(&request, &deduplication).await?;
        }
        Ok(source)
    }

    /// Why a source that an Update names cannot be used, if the fetcher refused this digest or the
    /// source's kind. It is requested again ten minutes after its rest, because the installation
    /// may serve and allow its kind by then.
    pub(crate) async fn refused_source(&self, source: &ObjectKey, digest: &ArtifactDigest) -> Result<Option<String>, Error> {
        let outcome = self.objects.read(&keys::fetch(source)).await?;
        let outcome = outcome.filter(|outcome| [digest.as_str(), ""].contains(&outcome.subject.as_str()));
        let outcome = outcome.filter(|outcome| self.now.duration_since(outcome.rests_until()) < REFUSED);
        Ok(outcome.and_then(|outcome| outcome.failure).filter(|failure| failure.terminal).map(|failure| failure.message))
    }
}

/// Returns the state of a source, and whether to request a fetch now. A resting source is not
/// requested, because the fetcher drops the request.
fn judge(own: &OwnSource<'_>, outcome: Option<&FetchOutcome>, since: Option<Timestamp>, now: Timestamp) -> (Source, bool) {
    let fetching = || (Source::Fetching(format!("fetching {own}")), true);
    let Some(outcome) = outcome else { return fetching() };
    let FetchOutcome { at, artifact, failures, failure, .. } = outcome;
    let rested = outcome.rests_until();
    let fetching = || {
        if rested <= now {
            return fetching();
        }
        let rested = rested.strftime("%H:%M:%SZ");
        (Source::Fetching(format!("next fetch of {own} at {rested}, after a slow one")), false)
    };
    let is_before = since.is_some_and(|since| *at < since);
    match (artifact, failure) {
        (Some(_), None) if is_before && own.is_followed() || since.is_some() && now.duration_since(*at) > RECENT => fetching(),
        (Some(artifact), None) => (Source::There(artifact.clone()), false),
        (None, None) => fetching(),
        (_, Some(failure)) => {
            let (terminal, message) = (failure.terminal, failure.message.clone());
            let failure = FetchFailure { at: rested, message, terminal, failures: *failures };
            let (due, words) = fetch_again(&failure, is_before, now);
            (Source::Failed { words: format!("{own}: {words}"), terminal: due.is_none() }, due.is_some_and(|due| due <= now))
        }
    }
}

#[cfg(test)]
mod tests {
    use driftless_contract::FetchFailure as Failed;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const BRANCH: OwnSource<'_> = OwnSource::Git { url: "u", reference: "main", auth: None, dir: "" };
    const PINNED: OwnSource<'_> = OwnSource::Flux { url: "u", digest: "sha256:0", dir: "" };

    fn ago(seconds: i64) -> Timestamp {
        NOW - SignedDuration::from_secs(seconds)
    }

    fn outcome(at: Timestamp, failure: Option<bool>) -> FetchOutcome {
        let artifact = FetchedArtifact { revision: "r".into(), digest: "d".into() };
        FetchOutcome {
            version: VERSION,
            subject: String::new(),
            at,
            took_seconds: 0,
            artifact: failure.is_none().then_some(artifact),
            failures: u32::from(failure.is_some()),
            failure: failure.map(|terminal| Failed { message: "no".into(), terminal }),
        }
    }

    fn judged(own: &OwnSource<'_>, outcome: &FetchOutcome, since: Option<Timestamp>) -> (&'static str, bool) {
        match judge(own, Some(outcome), since, NOW) {
            (Source::There(_), ask) => ("there", ask),
            (Source::Fetching(_), ask) => ("fetching", ask),
            (Source::Failed { terminal: false, .. }, ask) => ("failed", ask),
            (Source::Failed { terminal: true, .. }, ask) => ("stalled", ask),
        }
    }

    #[test]
    fn run_uses_a_fetch_after_its_creation_unless_pinned() {
        let fetched = outcome(ago(10), None);
        assert_eq!(judge(&BRANCH, None, None, NOW), (Source::Fetching("fetching spec.git at main".into()), true));
        for since in [None, Some(ago(11)), Some(ago(10))] {
            assert_eq!(judged(&BRANCH, &fetched, since), ("there", false));
        }
        assert_eq!(judged(&BRANCH, &fetched, Some(ago(9))), ("fetching", true));
        assert_eq!(judged(&PINNED, &fetched, Some(ago(9))), ("there", false));
    }

    #[test]
    fn expiring_tree_is_requested_before_its_use() {
        let old = outcome(NOW - RECENT - SignedDuration::from_secs(1), None);
        for own in [BRANCH, PINNED] {
            assert_eq!(judged(&own, &old, None), ("there", false));
            assert_eq!(judged(&own, &old, Some(Timestamp::UNIX_EPOCH)), ("fetching", true));
            assert_eq!(judged(&own, &outcome(NOW - RECENT, None), Some(Timestamp::UNIX_EPOCH)), ("there", false));
        }
    }

    #[test]
    fn failed_fetch_is_requested_when_due_and_per_later_update() {
        for (own, failed, since, expected) in [
            (BRANCH, outcome(ago(29), Some(false)), None, ("failed", false)),
            (BRANCH, outcome(ago(30), Some(false)), None, ("failed", true)),
            (BRANCH, outcome(ago(29), Some(false)), Some(ago(29)), ("failed", false)),
            (BRANCH, outcome(ago(29), Some(false)), Some(ago(28)), ("failed", true)),
            (PINNED, outcome(ago(9999), Some(true)), None, ("stalled", false)),
            (PINNED, outcome(ago(9999), Some(true)), Some(ago(9998)), ("failed", true)),
        ] {
            assert_eq!(judged(&own, &failed, since), expected, "{own} {failed:?} {since:?}");
        }
        let (words, _) = judge(&BRANCH, Some(&outcome(NOW, Some(false))), None, NOW);
        let words = format!("{words:?}");
        assert!(words.contains("spec.git at main: no; next try at"), "{words}");
    }

    #[test]
    fn slow_source_is_not_asked_for_before_its_rest_ends() {
        // Fetched in 20 s, so that it rests for 180 s afterwards.
        let slow = |at, failure| FetchOutcome { took_seconds: 20, ..outcome(at, failure) };
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
            assert_eq!(judged(&BRANCH, &fetched, since), expected, "{fetched:?} {since:?}");
        }
        let (words, _) = judge(&BRANCH, Some(&slow(ago(199), None)), Some(ago(100)), NOW);
        assert_eq!(words, Source::Fetching("next fetch of spec.git at main at 08:00:01Z, after a slow one".into()));
    }
}
