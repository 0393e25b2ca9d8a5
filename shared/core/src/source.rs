use jiff::{SignedDuration, Timestamp};

use crate::{
    ArtifactDigest, FetchFailure, Project, Readiness, Revision, SourceRef, SourceState, StackReason, StackStatus, TreeState,
};

/// A source that is missing, or whose fetch failed, is reconciled after this long even without an
/// event.
pub(crate) const SOURCE_RETRY_SECONDS: i64 = 30;

/// The delay of a fetch that keeps failing doubles up to this maximum.
const MAX_FETCH_RETRY_SECONDS: i64 = 600;

/// The maximum age of what is known of git when a run starts. Older knowledge is refreshed first.
const FRESH_SECONDS: i64 = 30;

/// The duration from which a fetch counts as slow.
pub const SLOW_FETCH: SignedDuration = SignedDuration::from_secs(10);
/// The rest of a source after a slow fetch, as a multiple of the fetch's duration: one source uses
/// at most a tenth of one fetcher.
const REST_FACTOR: i32 = 9;
/// The longest rest, reached when slow fetches keep failing and the rest doubles: a server that
/// only stalls uses a fortieth of one fetcher.
const MAX_REST: SignedDuration = SignedDuration::from_hours(1);
/// The maximum difference between the clocks of SQS and of a function.
const SKEW: SignedDuration = SignedDuration::from_secs(2);

/// The time after a fetch in which the source is not fetched again. `failures` counts fetches that
/// failed in a row, this one included.
#[must_use]
pub fn rest(took: SignedDuration, failures: u32) -> SignedDuration {
    if took < SLOW_FETCH {
        return SignedDuration::ZERO;
    }
    took.saturating_mul(REST_FACTOR).saturating_mul(2_i32.saturating_pow(failures.saturating_sub(1))).min(MAX_REST)
}

/// Returns whether the fetch that began at `fetched` answers a request: it read the source after
/// the request was sent.
#[must_use]
pub fn is_answered(sent: Timestamp, fetched: Timestamp) -> bool {
    fetched.duration_since(sent) > SKEW
}

/// The facts about an object with an artifact of Flux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FluxSource<'a> {
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.suspend`
    pub suspend: bool,
    /// `spec.verify` is set.
    pub verify: bool,
    /// The condition `SourceVerified`.
    pub verified: Option<Verification<'a>>,
    /// The message of the condition `Ready`.
    pub ready: Option<&'a str>,
    /// `status.artifact`, if it has a digest.
    pub artifact: Option<SourceState>,
}

/// The condition `SourceVerified` of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification<'a> {
    /// Its status is `True`.
    pub is_true: bool,
    /// Its message.
    pub message: &'a str,
    /// It is of the source's generation.
    pub is_current: bool,
}

impl SourceState {
    /// The state of a source of Flux. The last good artifact is used even if the source is not
    /// ready, as by Flux's own consumers. The artifact of a deleted object, and one whose required
    /// verification is missing, are not used.
    #[must_use]
    pub fn of_flux(source: FluxSource<'_>) -> Self {
        let unfit = |why: String| Self::Unfit { why };
        let unverified = match source.verified.filter(|_| source.verify) {
            None if source.verify => Some("it is not verified yet"),
            Some(Verification { is_true: false, message, .. }) => Some(message),
            Some(Verification { is_current: false, .. }) => Some("only an earlier spec was verified"),
            None | Some(_) => None,
        };
        if source.deleting {
            return unfit("it is being deleted".into());
        }
        if let Some(why) = unverified {
            return unfit(format!("spec.verify requires a verified source: {why}"));
        }
        source.artifact.unwrap_or_else(|| {
            let why = if source.suspend { "it is suspended; resume it" } else { source.ready.unwrap_or_default() };
            Self::NoArtifact { why: why.to_owned() }
        })
    }
}

/// What a source offers to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved<'a> {
    /// A revision, the digest of its tree, and when git was polled, if the source has to be polled.
    At { revision: &'a Revision, digest: &'a ArtifactDigest, polled: Option<Timestamp> },
    /// The fetcher has to find the revision first.
    Unknown { subject: &'a str },
    /// Nothing; the condition says why.
    Unavailable(Readiness),
}

/// Returns what the source offers.
pub(crate) fn resolve<'a>(source: &SourceRef, state: &'a SourceState) -> Resolved<'a> {
    let program = matches!(source, SourceRef::Program { .. });
    let unavailable = |what: &str| Resolved::Unavailable(unavailable(source, what));
    match state {
        // Driftless has no rights to read one, and needs none to refuse it.
        _ if matches!(source, SourceRef::Flux { kind, .. } if kind == "HelmRepository") => {
            unavailable("a HelmRepository contains no project; use a HelmChart of it")
        }
        SourceState::Artifact { revision, digest, polled } => Resolved::At { revision, digest, polled: *polled },
        SourceState::Unknown { subject } => Resolved::Unknown { subject },
        SourceState::NotFound if program => unavailable("unable to retrieve program for stack"),
        SourceState::NotFound => unavailable("could not resolve sourceRef"),
        SourceState::NoArtifact { why } if why.is_empty() => unavailable("Flux source has no artifact"),
        SourceState::NoArtifact { why } => unavailable(&format!("Flux source has no artifact: {why}")),
        SourceState::Unfit { why } if program => unavailable(&format!("Program cannot be used: {why}")),
        SourceState::Unfit { why } => unavailable(&format!("Flux source cannot be used: {why}")),
    }
}

/// The condition for an unavailable source. The message begins as PKO's does and names the object.
fn unavailable(source: &SourceRef, what: &str) -> Readiness {
    Readiness::stalled(StackReason::SourceUnavailable, format!("{what} ({})", named(source)))
}

/// The source, as named in a message.
fn named(source: &SourceRef) -> String {
    match source {
        SourceRef::Git(git) => format!("git repository {:?}", git.repo),
        SourceRef::Program { .. } | SourceRef::Flux { .. } => {
            let (_, kind, name) = source.object();
            format!("{kind} {name:?}")
        }
    }
}

/// Returns whether git has to be polled before a run, because the last answer may be old.
pub(crate) fn is_stale(polled: Option<Timestamp>, now: Timestamp) -> bool {
    polled.is_some_and(|at| now.duration_since(at) > SignedDuration::from_secs(FRESH_SECONDS))
}

/// What to do about a tree that is not stored.
pub(crate) struct Fetch {
    pub(crate) readiness: Readiness,
    /// Request the fetch now.
    pub(crate) ask: bool,
    /// When the next try is due, or the answer is overdue.
    pub(crate) next_reconciliation: Option<Timestamp>,
    /// The fetch was requested. The fetcher hints the source when it answers, so that no requeue is
    /// needed: if a message is lost, the sweep finds the answer overdue.
    pub(crate) is_asked: bool,
}

/// Decides about a tree that is not stored. A request from a user does not wait for the next try.
pub(crate) fn fetch(
    source: &SourceRef,
    subject: &str,
    tree: &TreeState,
    before: &StackStatus,
    insisted: bool,
    now: Timestamp,
) -> Fetch {
    let after = |from: Timestamp, seconds: i64| from + SignedDuration::from_secs(seconds);
    let named = named(source);
    let TreeState::Absent { failure: Some(failure) } = tree else {
        let readiness = Readiness::processing(format!("fetching {named} at {subject}"));
        // If exactly this was requested before, the answer is expected until the time of the
        // requeue.
        let asked = before.next_reconciliation.filter(|at| *at > now && before.readiness.as_ref() == Some(&readiness));
        let next_reconciliation = asked.or(Some(after(now, SOURCE_RETRY_SECONDS)));
        return Fetch { readiness, ask: asked.is_none(), next_reconciliation, is_asked: true };
    };
    let again_at = |insisted, now| {
        let (due, words) = fetch_again(failure, insisted, now);
        (due, Readiness::stalled(StackReason::SourceUnavailable, format!("{named} at {subject}: {words}")))
    };
    let again = |insisted| again_at(insisted, now);
    // A user's request that comes while the source rests stays open until the rest ends.
    let (_, rests) = again_at(true, Timestamp::MIN);
    let (due, readiness) = again(insisted || before.readiness.as_ref() == Some(&rests));
    // A request stays open until there is an answer younger than it. The time of the requeue shows
    // when that answer is overdue.
    if let Some(next) = before.next_reconciliation.filter(|_| due.is_none_or(|due| due > now))
        && let (_, asked) = again(true)
        && before.readiness.as_ref() == Some(&asked)
        && next.duration_since(failure.at) >= SignedDuration::from_secs(SOURCE_RETRY_SECONDS)
    {
        let next_reconciliation = Some(if next > now { next } else { after(now, SOURCE_RETRY_SECONDS) });
        return Fetch { readiness: asked, ask: next <= now, next_reconciliation, is_asked: true };
    }
    let ask = due.is_some_and(|due| due <= now);
    let next_reconciliation = if ask { Some(after(now, SOURCE_RETRY_SECONDS)) } else { due };
    Fetch { readiness, ask, next_reconciliation, is_asked: ask }
}

/// When a failed fetch is retried, `None` if not before the source changes, and the message about
/// both. A request from a user does not wait.
#[must_use]
pub(crate) fn fetch_again(failure: &FetchFailure, insisted: bool, now: Timestamp) -> (Option<Timestamp>, String) {
    let FetchFailure { at, message, terminal, failures } = failure;
    let wait = SOURCE_RETRY_SECONDS.saturating_mul(2_i64.saturating_pow(failures.saturating_sub(1))).min(MAX_FETCH_RETRY_SECONDS);
    let due = match (insisted, terminal) {
        // The end of a rest is in the future.
        (true, _) => Some(now.max(*at)),
        (false, true) => None,
        (false, false) => at.checked_add(SignedDuration::from_secs(wait)).ok(),
    };
    let next = match due {
        None => "not retried until the source changes".to_owned(),
        Some(due) if due <= now => "retrying".to_owned(),
        Some(due) => format!("next try at {}", due.strftime("%H:%M:%SZ")),
    };
    (due, format!("{message}; {next}"))
}

/// Returns the condition for a stored tree that cannot run. No task starts for a run that is known
/// to fail.
pub(crate) fn unusable(source: &SourceRef, revision: &Revision, project: Project) -> Option<Readiness> {
    let field = match source {
        SourceRef::Git(_) => "spec.repoDir",
        SourceRef::Program { .. } | SourceRef::Flux { .. } => "spec.fluxSource.dir",
    };
    let (named, dir) = (named(source), source.dir());
    let what = match project {
        Project::NoDirectory => {
            format!("{named} at {revision} has no directory {dir:?}; correct {field}, or add it to the source")
        }
        Project::NoFile => {
            let place = if dir.is_empty() { "its root".into() } else { format!("{dir:?}") };
            format!("{named} at {revision} has no Pulumi.yaml in {place}; correct {field}, or add it to the source")
        }
        Project::There => return None,
    };
    Some(Readiness::stalled(StackReason::SourceUnavailable, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_source_takes_a_tenth_of_one_fetcher() {
        for (took, failures, resting) in [
            (0, 0, 0),
            (9, 9, 0),
            (10, 0, 90),
            (90, 0, 810),
            (90, 1, 810),
            (90, 2, 1620),
            (90, 3, 3240),
            (90, 4, 3600),
            (90, u32::MAX, 3600),
        ] {
            assert_eq!(rest(SignedDuration::from_secs(took), failures), SignedDuration::from_secs(resting), "{took} {failures}");
        }
    }

    #[test]
    fn request_is_answered_by_a_fetch_that_began_after_it() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (sent, fetched, answered) in [(100, 99, false), (100, 100, false), (100, 102, false), (100, 103, true)] {
            assert_eq!(is_answered(at(sent), at(fetched)), answered);
        }
    }
}
