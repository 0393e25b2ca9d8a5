use std::{
    collections::{HashMap, HashSet},
    mem,
};

use kube::{Resource as _, runtime::watcher::Event};

use crate::watched::Watched;

/// A namespace and a name.
type Place = (String, String);

/// What hints an object besides the forwarder.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// Nothing, for a Flux source.
    #[default]
    Source,
    /// The fetcher hints a Program after it has written its status.
    Program,
    /// The sweep finds a changed Stack, at the latest at its turn.
    Stack,
    /// The sweep finds a changed Workspace. The launcher checks that of a Stack when it launches
    /// the Update for which the Workspace was changed.
    Workspace,
    /// The sweep finds an Update that is not complete, and functions hint a Stack whose Update
    /// changes its status.
    Update,
}

/// The objects of one kind, each as the hashes of its relevant fields.
#[derive(Default)]
pub(crate) struct Tracker {
    kind: Kind,
    /// The first list is complete.
    listed: bool,
    hashes: HashMap<Place, [u64; 2]>,
    /// During a list: the objects that it has not contained yet.
    missing: HashSet<Place>,
}

impl Tracker {
    /// A tracker for the kind with that name.
    pub(crate) fn new(kind: &str) -> Self {
        let kind = match kind {
            "Update" => Kind::Update,
            "Program" => Kind::Program,
            "Stack" => Kind::Stack,
            "Workspace" => Kind::Workspace,
            _ => Kind::Source,
        };
        Self { kind, ..Self::default() }
    }

    /// The objects to hint after this event. They include a deleted object, because others may wait
    /// for its deletion. A Stack's Update or Workspace is hinted only when it is deleted or a
    /// reader asks for its log, and a Program not for its status. The first list hints only what
    /// the sweep does not find, so that a start of the forwarder does not hint a whole cluster at
    /// once.
    pub(crate) fn changed(&mut self, event: Event<Watched>) -> Vec<Place> {
        match event {
            Event::Init => {
                self.missing = self.hashes.keys().cloned().collect();
                Vec::new()
            }
            Event::InitApply(object) => {
                let is_left = !self.listed && matches!(self.kind, Kind::Stack | Kind::Workspace | Kind::Update);
                self.see(&object).filter(|_| !is_left).into_iter().collect()
            }
            Event::Apply(object) => self.see(&object).into_iter().collect(),
            Event::InitDone => {
                self.listed = true;
                let gone = mem::take(&mut self.missing);
                self.hashes.retain(|place, _| !gone.contains(place));
                gone.into_iter().collect()
            }
            Event::Delete(object) => {
                let place = place(&object);
                self.hashes.remove(&place);
                if self.is_by_stack(&object) { Vec::new() } else { vec![place] }
            }
        }
    }

    /// Stores the hashes of an object, and returns its place if they changed.
    fn see(&mut self, object: &Watched) -> Option<Place> {
        let place = place(object);
        self.missing.remove(&place);
        let hashes = [object.asked, if self.kind == Kind::Program { 0 } else { object.shown }];
        let before = self.hashes.insert(place.clone(), hashes);
        let is_known = before == Some(hashes) || self.is_by_stack(object) && !object.deleting && !object.asks_for_log;
        (!is_known).then_some(place)
    }

    /// Returns whether the reconciler made an object for a Stack.
    fn is_by_stack(&self, object: &Watched) -> bool {
        matches!(self.kind, Kind::Update | Kind::Workspace) && object.of_stack
    }
}

fn place(object: &Watched) -> Place {
    let metadata = object.meta();
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `s`, with these fields instead.
    fn object(name: &str, changes: Value) -> Watched {
        let mut object = json!({ "metadata": { "namespace": "n", "name": name, "uid": name, "generation": 1 } });
        merge(&mut object, changes);
        serde_json::from_value(object).unwrap()
    }

    fn merge(into: &mut Value, from: Value) {
        match from {
            Value::Object(from) => from.into_iter().for_each(|(field, value)| merge(&mut into[field], value)),
            from => *into = from,
        }
    }

    /// The names of the hinted objects.
    fn changed(tracker: &mut Tracker, event: Event<Watched>) -> Vec<String> {
        let mut names: Vec<_> = tracker.changed(event).into_iter().map(|(_, name)| name).collect();
        names.sort();
        names
    }

    #[test]
    fn change_by_a_user_or_flux_is_hinted_once() {
        let mut tracker = Tracker::default();
        assert_eq!(changed(&mut tracker, Event::InitApply(object("s", json!({})))), ["s"], "the first list");
        for changes in [
            json!({ "metadata": { "generation": 2 } }),
            json!({ "metadata": { "annotations": { "pulumi.com/reconciliation-request": "now" } } }),
            json!({ "metadata": { "annotations": { "driftless.dev/suspend": "true" } } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "metadata": { "uid": "another" } }),
            json!({ "status": { "artifact": { "revision": "main@sha1:a", "digest": "sha256:b" } } }),
            json!({ "status": { "artifact": { "revision": "main@sha1:a", "digest": "sha256:c" } } }),
            json!({ "status": { "conditions": [{ "type": "Complete", "status": "False" }] } }),
            json!({ "status": { "conditions": [{ "type": "Complete", "status": "True" }] } }),
        ] {
            assert_eq!(changed(&mut tracker, Event::Apply(object("s", changes.clone()))), ["s"], "{changes}");
            assert!(changed(&mut tracker, Event::Apply(object("s", changes.clone()))).is_empty(), "{changes} again");
        }
    }

    #[test]
    fn own_status_write_is_not_hinted() {
        let mut tracker = Tracker::default();
        tracker.changed(Event::Apply(object("s", json!({}))));
        for changes in [
            json!({ "metadata": { "resourceVersion": "7", "labels": { "a": "b" }, "annotations": { "other": "now" } } }),
            json!({ "status": { "observedGeneration": 1, "lastUpdate": { "state": "succeeded" } } }),
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        ] {
            assert!(changed(&mut tracker, Event::Apply(object("s", changes.clone()))).is_empty(), "{changes}");
        }
    }

    #[test]
    fn update_of_a_stack_is_hinted_when_it_is_deleted_or_its_log_requested() {
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "s", "uid": "1" });
        let of_stack = |changes: Value| {
            let mut changes = changes;
            changes["metadata"]["ownerReferences"] = json!([owner]);
            object("u", changes)
        };
        let (complete, deleted) = (
            json!({ "status": { "conditions": [{ "type": "Complete", "status": "True" }] } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        );
        let mut updates = Tracker::new("Update");
        assert!(changed(&mut updates, Event::InitApply(of_stack(json!({})))).is_empty());
        assert!(changed(&mut updates, Event::Apply(of_stack(complete))).is_empty());
        for at in ["2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"] {
            let asks = json!({ "metadata": { "annotations": { "driftless.dev/log-requested-at": at } } });
            assert_eq!(changed(&mut updates, Event::Apply(of_stack(asks.clone()))), ["u"]);
            assert!(changed(&mut updates, Event::Apply(of_stack(asks))).is_empty());
        }
        assert_eq!(changed(&mut updates, Event::Apply(of_stack(deleted.clone()))), ["u"]);
        assert!(changed(&mut updates, Event::Delete(of_stack(deleted))).is_empty());
        assert_eq!(changed(&mut updates, Event::Apply(object("by-hand", json!({})))), ["by-hand"]);
        let mut workspaces = Tracker::new("Workspace");
        assert!(changed(&mut workspaces, Event::Apply(of_stack(json!({})))).is_empty());
        assert_eq!(changed(&mut workspaces, Event::Apply(object("by-hand", json!({})))), ["by-hand"]);
    }

    #[test]
    fn first_list_hints_only_what_the_sweep_does_not_find() {
        for (kind, hinted) in [("Stack", false), ("Workspace", false), ("Update", false), ("Program", true), ("Bucket", true)] {
            let mut tracker = Tracker::new(kind);
            tracker.changed(Event::Init);
            assert_eq!(changed(&mut tracker, Event::InitApply(object("a", json!({})))).len(), usize::from(hinted), "{kind}");
            tracker.changed(Event::InitDone);
            assert_eq!(changed(&mut tracker, Event::Apply(object("b", json!({})))), ["b"], "{kind}");
            // Changes from a time without an open watch.
            tracker.changed(Event::Init);
            assert_eq!(changed(&mut tracker, Event::InitApply(object("c", json!({})))), ["c"], "{kind}");
        }
    }

    #[test]
    fn artifact_of_a_program_is_not_hinted() {
        let artifact = json!({ "status": { "artifact": { "revision": "1", "digest": "sha256:b" } } });
        let mut programs = Tracker::new("Program");
        assert_eq!(changed(&mut programs, Event::Apply(object("p", json!({})))), ["p"]);
        assert!(changed(&mut programs, Event::Apply(object("p", artifact))).is_empty());
        assert_eq!(changed(&mut programs, Event::Apply(object("p", json!({ "metadata": { "generation": 2 } })))), ["p"]);
    }

    #[test]
    fn object_deleted_between_two_lists_is_hinted() {
        let mut tracker = Tracker::default();
        for name in ["a", "b", "c"] {
            tracker.changed(Event::Apply(object(name, json!({}))));
        }
        assert_eq!(changed(&mut tracker, Event::Delete(object("c", json!({})))), ["c"]);
        assert!(changed(&mut tracker, Event::Init).is_empty());
        assert!(changed(&mut tracker, Event::InitApply(object("a", json!({})))).is_empty(), "unchanged since the last list");
        assert_eq!(changed(&mut tracker, Event::InitDone), ["b"]);
        assert_eq!(changed(&mut tracker, Event::Apply(object("b", json!({})))), ["b"], "it is back");
    }
}
