//! The requester of a run, as far as the API server can tell. A client chooses the name of its field
//! manager, so a name is a hint and no proof.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::{Revision, SourceRef, Why, metadata as names, synced::go_duration};

/// What a run of a Stack answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A change of the spec.
    Spec,
    /// An annotation that a client set for this run.
    Annotation(&'static str),
    /// The schedule in an annotation.
    Schedule(&'static str),
    /// No client: this event.
    Event(String),
}

/// A client that owns fields of a Stack, by its field manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldOwner {
    /// The name that the client chose.
    pub name: String,
    /// When it last changed its fields.
    pub changed: Option<Timestamp>,
    /// It owns fields of the spec.
    pub spec: bool,
    /// The annotations that it owns.
    pub annotations: BTreeSet<String>,
}

impl Asked {
    pub(crate) fn of(why: &Why, source: Option<&SourceRef>) -> Self {
        match why {
            Why::Initial | Why::Generation(_) => Self::Spec,
            Why::Request(_) => Self::Annotation(names::RECONCILIATION_REQUEST),
            Why::Drift(_) => Self::Annotation(names::REMEDIATE),
            Why::Adoption(_) => Self::Annotation(names::ADOPT),
            Why::Deletion => Self::Event("deletion of the Stack".into()),
            Why::Commit(commit) => Self::Event(pushed(source, commit)),
            Why::Inputs => Self::Event("change of a Secret or ConfigMap".into()),
            Why::Resync(period) => Self::Event(format!("resync every {}", go_duration(*period))),
            Why::Backoff(cooldown) => Self::Event(format!("retry after {}", go_duration(*cooldown))),
        }
    }

    /// The requester: the last client that changed what the run answers, the schedule or the event.
    #[must_use]
    pub fn by(&self, owners: &[FieldOwner], annotations: &BTreeMap<String, String>) -> Option<String> {
        let last = |owns: &dyn Fn(&FieldOwner) -> bool| {
            let last = owners.iter().filter(|owner| owns(owner)).max_by_key(|owner| owner.changed);
            last.map(|owner| owner.name.clone())
        };
        match self {
            Self::Spec => last(&|owner| owner.spec),
            Self::Annotation(name) => last(&|owner| owner.annotations.contains(*name)),
            Self::Schedule(name) => annotations.get(*name).map(|schedule| format!("{name}: {schedule}")),
            Self::Event(event) => Some(event.clone()),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

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
            assert_eq!(by(&Asked::of(&why, Some(&flux))).as_deref(), requester, "{why:?}");
        }
        assert_eq!(by(&Asked::Schedule(names::DRIFT_SCHEDULE)).as_deref(), Some("driftless.dev/drift-schedule: 6h"));
        assert_eq!(Asked::Spec.by(&[], &BTreeMap::new()), None, "the API server names no client");
    }

    #[test]
    fn push_to_a_repository_of_the_spec_shows_no_url() {
        let git = crate::GitSource { repo: "https://token@git.example/a.git".into(), ..crate::GitSource::default() };
        let asked = Asked::of(&Why::Commit("7d".into()), Some(&SourceRef::Git(git)));
        assert_eq!(by(&asked).as_deref(), Some("spec.projectRepo at 7d"));
    }
}
