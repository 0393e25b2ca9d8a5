use jiff::{SignedDuration, Timestamp};

use crate::{
    Asked, Inputs, LastUpdateState, Operation, Revision, SourceRef, Stack, drift, metadata as names,
    retry::{self, Retry},
};

/// Whether a Stack wants a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Nothing is to be run now.
    Synced,
    /// A run is wanted.
    Run(Why),
}

/// Why a run is wanted. It displays as PKO's text in the Update's message and in an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The Stack never ran.
    Initial,
    /// The spec changed.
    Generation(i64),
    /// It is being deleted.
    Deletion,
    /// A user requested it.
    Request(String),
    /// The source changed.
    Commit(Revision),
    /// A Secret or ConfigMap that it refers to changed.
    Inputs,
    /// The resync period has elapsed.
    Resync(SignedDuration),
    /// A failure is retried.
    Backoff(SignedDuration),
    /// This number of resources drifted, and the drift is to be fixed.
    Drift(u32),
    /// This number of resources drifted, and the state is to take the drift over.
    Adoption(u32),
}

impl Why {
    /// What a run for this reason answers.
    pub(crate) fn asked(&self, source: Option<&SourceRef>) -> Asked {
        match self {
            Self::Initial | Self::Generation(_) => Asked::Spec,
            Self::Request(_) => Asked::Annotation(names::RECONCILIATION_REQUEST),
            Self::Drift(_) => Asked::Annotation(names::REMEDIATE),
            Self::Adoption(_) => Asked::Annotation(names::ADOPT),
            Self::Deletion => Asked::Event("deletion of the Stack".into()),
            Self::Commit(commit) => Asked::Event(pushed(source, commit)),
            Self::Inputs => Asked::Event("change of a Secret or ConfigMap".into()),
            Self::Resync(period) => Asked::Event(format!("resync every {}", go_duration(*period))),
            Self::Backoff(cooldown) => Asked::Event(format!("retry after {}", go_duration(*cooldown))),
        }
    }
}

/// A source and the revision that it offers.
fn pushed(source: Option<&SourceRef>, commit: &Revision) -> String {
    let (kind, name) = match source {
        // The URL of a git repository is in the spec.
        Some(source @ SourceRef::Git(_)) => return format!("{} at {commit}", source.field()),
        Some(source) => {
            let (_, kind, name) = source.object();
            (kind, name)
        }
        None => return commit.to_string(),
    };
    format!("{kind} {name} at {commit}")
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Initial => f.write_str("Initial stack update"),
            Self::Generation(generation) => write!(f, "New stack generation: {generation}"),
            Self::Deletion => f.write_str("Stack marked for deletion"),
            Self::Request(request) => write!(f, "Sync request: {request:?}"),
            Self::Commit(commit) => write!(f, "New commit detected: {commit:?}"),
            Self::Inputs => f.write_str("Change of a Secret or ConfigMap detected"),
            Self::Resync(period) => write!(f, "Resync time elapsed: {}", go_duration(*period)),
            Self::Drift(count) => write!(f, "Drift detected: {count} resource(s)"),
            Self::Adoption(count) => write!(f, "Drift to adopt: {count} resource(s)"),
            Self::Backoff(cooldown) => write!(f, "Backoff time elapsed: {}", go_duration(*cooldown)),
        }
    }
}

/// A duration in whole seconds as Go prints it: `1h0m0s`, `1m30s`, `10s`.
pub(crate) fn go_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s}s"),
        _ => format!("{h}h{m}m{s}s"),
    }
}

/// Returns whether the Stack wants a run at `commit`, given what is known of its inputs.
#[must_use]
pub fn is_synced(stack: &Stack, commit: &Revision, inputs: Option<&Inputs>, now: Timestamp) -> Sync {
    let has_run = stack.status.has_succeeded();
    let adopted = drift::to_adopt(stack).filter(|_| has_run).map(|drift| Why::Adoption(drift.count));
    let is_changed = inputs.is_some_and(|inputs| inputs.changed);
    match by_source_and_time(stack, commit, now) {
        Sync::Synced if stack.deleting => Sync::Synced,
        Sync::Synced if is_changed => Sync::Run(Why::Inputs),
        Sync::Synced => {
            let why = adopted.or_else(|| drift::to_remediate(stack).filter(|_| has_run).map(|drift| Why::Drift(drift.count)));
            why.map_or(Sync::Synced, Sync::Run)
        }
        // A resync would replace the plan of an adoption that waits for its approval, each time
        // that it is due.
        Sync::Run(resync @ Why::Resync(_)) => Sync::Run(adopted.filter(|_| !is_changed).unwrap_or(resync)),
        sync @ Sync::Run(_) => sync,
    }
}

/// The first rule that matches decides, in PKO's order. A destroy does not depend on the source.
fn by_source_and_time(stack: &Stack, commit: &Revision, now: Timestamp) -> Sync {
    let Some(last) = &stack.status.last_update else { return Sync::Run(Why::Initial) };
    if last.generation != stack.generation {
        return Sync::Run(if stack.deleting { Why::Deletion } else { Why::Generation(stack.generation) });
    }
    if last.reconcile_request != stack.reconcile_request {
        return Sync::Run(Why::Request(stack.reconcile_request.clone()));
    }
    let since = last.last_resync_time.map_or(SignedDuration::MAX, |then| now.duration_since(then));
    match last.state {
        LastUpdateState::Succeeded if stack.deleting && last.operation == Some(Operation::Destroy) => Sync::Synced,
        LastUpdateState::Succeeded if stack.deleting => Sync::Run(Why::Deletion),
        LastUpdateState::Succeeded if last.last_successful_commit != *commit => Sync::Run(Why::Commit(commit.clone())),
        LastUpdateState::Succeeded if !stack.spec.continue_resync_on_commit_match => Sync::Synced,
        LastUpdateState::Succeeded if since >= retry::resync_period(&stack.spec) => {
            Sync::Run(Why::Resync(retry::resync_period(&stack.spec)))
        }
        LastUpdateState::Failed if !stack.deleting && last.last_attempted_commit != *commit => {
            Sync::Run(Why::Commit(commit.clone()))
        }
        LastUpdateState::Failed => match retry::retry(stack, last.failures) {
            Retry::After(cooldown) if since >= cooldown => Sync::Run(Why::Backoff(cooldown)),
            Retry::After(_) | Retry::Conflict | Retry::GivenUp => Sync::Synced,
        },
        LastUpdateState::Succeeded | LastUpdateState::Unknown => Sync::Synced,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::FieldOwner;

    fn owner(name: &str, changed: &str, spec: bool, annotations: &[&str]) -> FieldOwner {
        let annotations = annotations.iter().map(|name| (*name).to_owned()).collect();
        FieldOwner { name: name.into(), changed: changed.parse().ok(), spec, annotations }
    }

    fn by(asked: &Asked) -> Option<String> {
        let owners = [
            owner("kustomize-controller", "2026-11-26T12:01:00Z", true, &[names::DRIFT_SCHEDULE, names::REMEDIATE]),
            owner("kubectl-edit", "2026-11-26T12:02:00Z", true, &[]),
            owner("kubectl-driftless", "2026-11-26T12:03:00Z", false, &[names::RECONCILIATION_REQUEST]),
            owner("kubectl-annotate", "2026-11-26T12:00:00Z", false, &[names::RECONCILIATION_REQUEST]),
            owner("driftless-reconciler", "2026-11-26T12:04:00Z", false, &[]),
        ];
        let annotations = [(names::DRIFT_SCHEDULE.to_owned(), "6h".to_owned())].into();
        asked.by(&owners, &annotations)
    }

    #[test]
    fn requester_is_the_last_client_that_changed_what_the_run_answers() {
        let flux = SourceRef::Flux {
            api_version: "source.toolkit.fluxcd.io/v1".into(),
            kind: "GitRepository".into(),
            name: "shop".into(),
            dir: String::new(),
        };
        let minute = SignedDuration::from_mins(1);
        for (why, requester) in [
            (Why::Initial, Some("kubectl-edit")),
            (Why::Generation(2), Some("kubectl-edit")),
            (Why::Request("now".into()), Some("kubectl-driftless")),
            (Why::Drift(1), Some("kustomize-controller")),
            (Why::Adoption(1), None),
            (Why::Deletion, Some("deletion of the Stack")),
            (Why::Commit("main@sha1:7d".into()), Some("GitRepository shop at main@sha1:7d")),
            (Why::Inputs, Some("change of a Secret or ConfigMap")),
            (Why::Resync(minute), Some("resync every 1m0s")),
            (Why::Backoff(minute), Some("retry after 1m0s")),
        ] {
            assert_eq!(by(&why.asked(Some(&flux))).as_deref(), requester, "{why:?}");
        }
        assert_eq!(by(&Asked::Schedule(names::DRIFT_SCHEDULE)).as_deref(), Some("driftless.dev/drift-schedule: 6h"));
        assert_eq!(Asked::Spec.by(&[], &BTreeMap::new()), None, "the API server names no client");
    }

    #[test]
    fn push_to_a_repository_of_the_spec_shows_no_url() {
        let git = crate::GitSource { repo: "https://token@git.example/a.git".into(), ..crate::GitSource::default() };
        let asked = Why::Commit("7d".into()).asked(Some(&SourceRef::Git(git)));
        assert_eq!(by(&asked).as_deref(), Some("spec.projectRepo at 7d"));
    }
}
