use std::{collections::HashSet, mem};

use kube::runtime::watcher;

use super::event::Event;

/// The Events in the cluster, by uid. An Event is forgotten when the cluster deletes it, after an
/// hour by default.
#[derive(Default)]
pub(crate) struct Seen {
    /// `None` before the first list has ended.
    uids: Option<HashSet<String>>,
    /// The uids in the list in progress.
    listed: HashSet<String>,
}

impl Seen {
    /// Returns the Event if it is new. Events in the first list are older than the forwarder's
    /// start.
    pub(crate) fn unseen(&mut self, change: watcher::Event<Event>) -> Option<Event> {
        let uid = |event: &Event| event.metadata.uid.clone().unwrap_or_default();
        match change {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(event) => {
                self.listed.insert(uid(&event));
                return self.first_seen(event);
            }
            watcher::Event::InitDone => self.uids = Some(mem::take(&mut self.listed)),
            watcher::Event::Apply(event) => return self.first_seen(event),
            watcher::Event::Delete(event) => {
                self.uids.as_mut().map(|uids| uids.remove(&uid(&event)));
            }
        }
        None
    }

    fn first_seen(&mut self, event: Event) -> Option<Event> {
        let uid = event.metadata.uid.clone().unwrap_or_default();
        self.uids.as_mut()?.insert(uid).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    fn event(uid: &str) -> Event {
        let mut event = Event::default();
        event.metadata.uid = Some(uid.to_owned());
        event
    }

    /// The uids of the new Events.
    fn new(seen: &mut Seen, changes: impl IntoIterator<Item = watcher::Event<Event>>) -> Vec<String> {
        changes.into_iter().filter_map(|change| seen.unseen(change)?.metadata.uid).collect()
    }

    #[test]
    fn events_before_the_start_are_old_and_later_ones_new_once() {
        let mut seen = Seen::default();
        // A first list that fails halfway starts again.
        let first = [Init, InitApply(event("a")), Init, InitApply(event("a")), InitApply(event("b")), InitDone];
        assert!(new(&mut seen, first).is_empty());
        assert_eq!(new(&mut seen, [Apply(event("c")), Apply(event("c")), Apply(event("a"))]), ["c"]);
    }

    #[test]
    fn event_missed_by_the_watch_is_new_in_the_next_list() {
        let mut seen = Seen::default();
        new(&mut seen, [Init, InitApply(event("a")), InitDone, Apply(event("b"))]);
        let broken = [Init, InitApply(event("b")), InitApply(event("c"))];
        assert_eq!(new(&mut seen, broken), ["c"]);
        let whole = [Init, InitApply(event("b")), InitApply(event("c")), InitApply(event("d")), InitDone];
        assert_eq!(new(&mut seen, whole), ["d"]);
    }

    #[test]
    fn deleted_event_is_forgotten() {
        let mut seen = Seen::default();
        new(&mut seen, [Init, InitApply(event("a")), InitApply(event("b")), InitDone, Delete(event("a"))]);
        assert_eq!(seen.uids, Some(["b".to_owned()].into()));
        new(&mut seen, [Init, InitApply(event("c")), InitDone]);
        assert_eq!((seen.uids, seen.listed), (Some(["c".to_owned()].into()), HashSet::new()));
    }
}
