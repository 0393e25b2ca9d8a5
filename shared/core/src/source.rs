use jiff::{SignedDuration, Timestamp};

use crate::{FetchFailure, Readiness, SourceRef, SourceState, StackStatus, TreeState, reason};

/// A source that is not there, or that could not be fetched, is looked at again after this long even if nothing is heard of it.
pub(crate) const SOURCE_RETRY_SECONDS: i64 = 30;

/// What a source gives to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved<'a> {
    /// A revision, and the digest of its tree.
    At { revision: &'a str, digest: &'a str },
    /// The fetcher has to make it first.
    ToBeMade { generation: i64 },
    /// Nothing; the condition says why.
    Unavailable(Readiness),
}

/// What the source gives.
pub(crate) fn resolve<'a>(source: &SourceRef, state: &'a SourceState) -> Resolved<'a> {
    let program = matches!(source, SourceRef::Program { .. });
    match state {
        SourceState::Artifact { revision, digest } => Resolved::At { revision, digest },
        SourceState::Outdated { generation } => Resolved::ToBeMade { generation: *generation },
        SourceState::NotFound if program => Resolved::Unavailable(unavailable(source, "unable to retrieve program for stack")),
        SourceState::NotFound => Resolved::Unavailable(unavailable(source, "could not resolve sourceRef")),
        SourceState::NoArtifact { why } if why.is_empty() => {
            Resolved::Unavailable(unavailable(source, "Flux source has no artifact"))
        }
        SourceState::NoArtifact { why } => {
            Resolved::Unavailable(unavailable(source, &format!("Flux source has no artifact: {why}")))
        }
    }
}

fn unavailable(source: &SourceRef, what: &str) -> Readiness {
    let named = source.object().map_or_else(String::new, |(_, kind, name)| format!(" ({kind} {name:?})"));
    Readiness::stalled(reason::SOURCE_UNAVAILABLE, format!("{what}{named}"))
}

/// What to do about a tree that is not stored: the condition, whether to ask for it now, and when to look again.
pub(crate) fn fetch(
    source: &SourceRef,
    subject: &str,
    tree: &TreeState,
    before: &StackStatus,
    now: Timestamp,
) -> (Readiness, bool, Option<Timestamp>) {
    let retry = |from: Timestamp| from + SignedDuration::from_secs(SOURCE_RETRY_SECONDS);
    let named = source.object().map_or_else(String::new, |(_, kind, name)| format!("{kind} {name:?}"));
    let TreeState::Absent { failure: Some(FetchFailure { at, message, terminal }) } = tree else {
        let readiness = Readiness::processing(format!("fetching {named} at {subject}"));
        // If this very thing was asked for, the answer is on its way until the look that was booked for it.
        let asked = before.next_look.filter(|at| *at > now && before.readiness.as_ref() == Some(&readiness));
        return (readiness, asked.is_none(), asked.or(Some(retry(now))));
    };
    let readiness = Readiness::stalled(reason::SOURCE_UNAVAILABLE, format!("{named} at {subject}: {message}"));
    let due = retry(*at) <= now;
    match (terminal, due) {
        (true, _) => (readiness, false, None),
        (false, true) => (readiness, true, Some(retry(now))),
        (false, false) => (readiness, false, Some(retry(*at))),
    }
}
