//! The requester of a run, as far as the API server can tell. A client chooses the name of its
//! field manager, so a name is a hint and no proof.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

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
