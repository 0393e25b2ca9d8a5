use std::{
    collections::{HashMap, HashSet},
    mem,
};

use kube::{Resource as _, runtime::watcher::Event};

use crate::watched::Watched;

/// A namespace and a name.
type Place = (String, String);

/// The objects of one kind, each as the hashes of what matters about it.
#[derive(Default)]
pub(crate) struct Tracker {
    /// They are Updates.
    updates: bool,
    /// They are Programs.
    programs: bool,
    hashes: HashMap<Place, [u64; 2]>,
    /// While a list is under way: the objects that it did not show yet.
    missing: HashSet<Place>,
}

impl Tracker {
    /// Of the kind with that name.
    pub(crate) fn new(kind: &str) -> Self {
        Self { updates: kind == "Update", programs: kind == "Program", ..Self::default() }
    }

    /// The objects that deserve a look after this event. One that is gone does too: somebody may wait for it. Of a Stack's Update only a
    /// deletion does, and of a Program no status: functions write the rest, and hint what follows from it.
    pub(crate) fn changed(&mut self, event: Event<Watched>) -> Vec<Place> {
        match event {
            Event::Init => {
                self.missing = self.hashes.keys().cloned().collect();
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let place = place(&object);
                self.missing.remove(&place);
                let hashes = [object.asked, if self.programs { 0 } else { object.shown }];
                let before = self.hashes.insert(place.clone(), hashes);
                let is_known = before == Some(hashes) || self.is_run_of_stack(&object) && !object.deleting;
                if is_known { Vec::new() } else { vec![place] }
            }
            Event::InitDone => {
                let gone = mem::take(&mut self.missing);
                self.hashes.retain(|place, _| !gone.contains(place));
                gone.into_iter().collect()
            }
            Event::Delete(object) => {
                let place = place(&object);
                self.hashes.remove(&place);
                if self.is_run_of_stack(&object) { Vec::new() } else { vec![place] }
            }
        }
    }

    fn is_run_of_stack(&self, object: &Watched) -> bool {
        self.updates && object.of_stack
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

    /// The names that are hinted.
    fn changed(tracker: &mut Tracker, event: Event<Watched>) -> Vec<String> {
        let mut names: Vec<_> = tracker.changed(event).into_iter().map(|(_, name)| name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_users_and_flux_change_is_hinted_once() {
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
    fn our_own_status_is_not_hinted() {
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
    fn update_of_a_stack_is_hinted_when_it_is_deleted() {
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
        assert_eq!(changed(&mut updates, Event::Apply(of_stack(deleted.clone()))), ["u"]);
        assert!(changed(&mut updates, Event::Delete(of_stack(deleted))).is_empty());
        assert_eq!(changed(&mut updates, Event::Apply(object("by-hand", json!({})))), ["by-hand"]);
        let mut workspaces = Tracker::new("Workspace");
        assert_eq!(changed(&mut workspaces, Event::Apply(of_stack(json!({})))), ["u"]);
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
    fn what_vanished_between_two_lists_is_hinted() {
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
