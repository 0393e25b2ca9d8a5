//! How many runs may go on at once, and whose turn it is when not all may.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Who waits is looked at every minute. One that nobody came to for this long holds nobody up.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(3);
/// All of them are in one annotation. An object's annotations have 256 KiB, and one of these has 430 bytes at most. So no more runs go on
/// where any limit is set,
const MOST_RUNNING: usize = 400;
/// and of those that wait so many are kept, the first by their rank. The others look again as well, and have their turn by then.
const MOST_WAITING: usize = 200;

/// How many runs may go on at once. `None` is as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub runs: Option<usize>,
    /// Of one namespace.
    pub runs_per_namespace: Option<usize>,
}

impl Limits {
    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The runs that go on and those that wait for their turn, by the uid of their Update. One document for a cluster, changed by whoever
/// read it last: two that begin at once are never both the last that may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admissions {
    /// Those that go on.
    pub running: BTreeMap<String, Applicant>,
    /// Those that wait.
    pub waiting: BTreeMap<String, Applicant>,
}

/// A run that goes on or wants to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applicant {
    /// The namespace that it counts for.
    pub namespace: String,
    /// The Update's name.
    pub name: String,
    /// It destroys.
    pub destroys: bool,
    /// When the Update was created.
    pub since: Timestamp,
    /// When it asked last, or up to half the time before that after which it is forgotten: so not every look has to be written.
    pub seen: Timestamp,
}

impl Admissions {
    /// Lets a run go on, or notes that it waits and says what for. One that goes on already may.
    pub fn admit(&mut self, limits: Limits, uid: &str, applicant: Applicant) -> Result<(), String> {
        if self.running.contains_key(uid) {
            return Ok(());
        }
        let now = applicant.seen;
        self.waiting.retain(|_, waiter| now.duration_since(waiter.seen) < FORGOTTEN_AFTER);
        if let Some(words) = self.must_wait(limits, uid, &applicant) {
            let fresh = |waiter: &Applicant| now.duration_since(waiter.seen) < FORGOTTEN_AFTER / 2;
            if !self.waiting.get(uid).is_some_and(fresh) {
                self.waiting.insert(uid.to_owned(), applicant);
            }
            while self.waiting.len() > MOST_WAITING {
                let last = self.queue().pop().map(|(uid, _)| uid.clone());
                self.waiting.remove(&last.unwrap_or_default());
            }
            return Err(words);
        }
        self.waiting.remove(uid);
        self.running.insert(uid.to_owned(), applicant);
        Ok(())
    }

    /// Forgets a run that is over, or wants no turn any more. Whether anything changed.
    pub fn release(&mut self, uid: &str) -> bool {
        let (ran, waited) = (self.running.remove(uid), self.waiting.remove(uid));
        ran.or(waited).is_some()
    }

    /// Those that wait, the next one first: destroys, then those of the namespace with the fewest runs, then the oldest.
    #[must_use]
    pub fn queue(&self) -> Vec<(&String, &Applicant)> {
        let mut queue: Vec<_> = self.waiting.iter().collect();
        queue.sort_by_cached_key(|(uid, waiter)| self.rank(uid, waiter));
        queue
    }

    /// What it waits for. The words are the same for as long as that is: they are written down, and a change of them is an event.
    fn must_wait(&self, limits: Limits, uid: &str, applicant: &Applicant) -> Option<String> {
        let namespace = &applicant.namespace;
        let is_full = |namespace: &str| limits.runs_per_namespace.filter(|most| self.runs_of(namespace) >= *most);
        if let Some(most) = is_full(namespace) {
            return Some(format!("{most} runs of the namespace {namespace:?} are under way, which are all it may have at once"));
        }
        let most = limits.runs.unwrap_or(MOST_RUNNING).min(MOST_RUNNING);
        let free = most.saturating_sub(self.running.len());
        let mine = self.rank(uid, applicant);
        let others = self.waiting.iter().filter(|(other, waiter)| *other != uid && is_full(&waiter.namespace).is_none());
        let first = others.filter(|(other, waiter)| self.rank(other, waiter) < mine).count();
        (first >= free).then(|| format!("at most {most} runs go on at once, and it is not the turn of this one"))
    }

    fn runs_of(&self, namespace: &str) -> usize {
        self.running.values().filter(|run| run.namespace == namespace).count()
    }

    fn rank<'a>(&self, uid: &'a str, applicant: &Applicant) -> (bool, usize, Timestamp, &'a str) {
        (!applicant.destroys, self.runs_of(&applicant.namespace), applicant.since, uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// An Update of that age, which is also its name.
    fn of(namespace: &str, since: i64) -> (String, Applicant) {
        let applicant =
            Applicant { namespace: namespace.into(), name: since.to_string(), destroys: false, since: at(since), seen: at(100) };
        (format!("{namespace}{since}"), applicant)
    }

    fn destroy(namespace: &str, since: i64) -> (String, Applicant) {
        let (uid, applicant) = of(namespace, since);
        (uid, Applicant { destroys: true, ..applicant })
    }

    fn admissions<const R: usize, const W: usize>(
        running: [(String, Applicant); R],
        waiting: [(String, Applicant); W],
    ) -> Admissions {
        Admissions { running: running.into(), waiting: waiting.into() }
    }

    fn limits(runs: usize, runs_per_namespace: usize) -> Limits {
        Limits { runs: Some(runs), runs_per_namespace: Some(runs_per_namespace) }
    }

    #[test]
    fn no_more_go_on_than_may() {
        for (limits, admitted) in [(limits(3, 9), 3), (limits(9, 2), 4), (Limits::default(), 12), (limits(0, 9), 0)] {
            let mut all = Admissions::default();
            for round in 0..2 {
                let among = ["a", "b"].into_iter().flat_map(|namespace| (0..6).map(move |n| of(namespace, n)));
                let went_on = among.filter(|(uid, me)| all.admit(limits, uid, me.clone()).is_ok()).count();
                assert_eq!((went_on, all.running.len(), all.waiting.len()), (admitted, admitted, 12 - admitted), "{round}");
            }
        }
        assert!(limits(1, 1).any() && !Limits::default().any());
    }

    #[test]
    fn a_free_place_is_for_a_destroy_then_for_the_namespace_with_fewer_runs_then_for_the_oldest() {
        let running = || [of("a", 0), of("a", 1), of("b", 0)];
        let waits = |me: (String, Applicant), waiting: [(String, Applicant); 1]| {
            admissions(running(), waiting).admit(limits(4, 3), &me.0, me.1).is_err()
        };
        assert!(!waits(of("c", 9), [of("a", 5)]), "c has no run, a has two");
        assert!(waits(of("a", 5), [of("c", 9)]), "c has none");
        assert!(waits(of("a", 9), [of("a", 5)]), "an older one");
        assert!(!waits(of("a", 5), [of("a", 9)]), "it is older");
        assert!(!waits(of("a", 5), [of("a", 5)]), "it waits already");
        assert!(waits(of("c", 5), [destroy("a", 9)]), "a destroy");
        assert!(!waits(destroy("a", 9), [of("c", 5)]), "it destroys");
        let queue = admissions(running(), [of("a", 5), of("c", 9), destroy("a", 8)]);
        assert_eq!(queue.queue().into_iter().map(|(uid, _)| uid.as_str()).collect::<Vec<_>>(), ["a8", "c9", "a5"]);
    }

    #[test]
    fn who_cannot_have_the_place_holds_nobody_up() {
        let (uid, me) = of("b", 9);
        // Its own namespace has all it may have.
        let mut all = admissions([of("a", 0), of("a", 1)], [destroy("a", 2)]);
        assert_eq!(all.admit(limits(3, 2), &uid, me.clone()), Ok(()));
        // Nobody came to it any more.
        let (gone, mut waiter) = destroy("a", 2);
        waiter.seen = at(100) - FORGOTTEN_AFTER;
        let mut all = admissions([of("a", 0)], [(gone, waiter)]);
        assert_eq!(all.admit(limits(2, 2), &uid, me), Ok(()));
        assert!(all.waiting.is_empty());
    }

    #[test]
    fn who_waits_is_told_for_what_and_goes_on_when_there_is_a_place() {
        let mut all = admissions([of("a", 0), of("b", 0)], [destroy("b", 1)]);
        let (uid, me) = of("a", 5);
        let words = r#"1 runs of the namespace "a" are under way, which are all it may have at once"#;
        assert_eq!(all.admit(limits(9, 1), &uid, me.clone()), Err(words.into()));
        let words = "at most 2 runs go on at once, and it is not the turn of this one";
        assert_eq!(all.admit(limits(2, 9), &uid, me.clone()), Err(words.into()));
        assert!(all.release("b1"));
        assert_eq!(all.admit(limits(2, 9), &uid, me.clone()), Err(words.into()), "it waits for the same");
        assert!(all.release("a0") && !all.release("a0"));
        assert_eq!(all.admit(limits(2, 9), &uid, me), Ok(()));
        assert!(all.waiting.is_empty() && all.running.contains_key(&uid));
    }

    #[test]
    fn who_looks_again_and_waits_on_changes_nothing_before_half_the_time_after_which_it_is_forgotten() {
        let (uid, me) = of("a", 5);
        let mut all = admissions([of("a", 0)], []);
        for (second, written) in [(100, 100), (160, 100), (189, 100), (190, 190), (250, 190)] {
            assert!(all.admit(limits(1, 9), &uid, Applicant { seen: at(second), ..me.clone() }).is_err());
            assert_eq!(all.waiting[&uid].seen, at(written), "{second}");
        }
    }

    #[test]
    fn the_list_fits_into_an_annotation_and_keeps_the_first() {
        let long = |n: usize| {
            let since = "2026-11-22T05:00:00.123456789Z".parse().unwrap();
            let (namespace, name) = (format!("{n:063}"), format!("{n:0193}"));
            (format!("{n:036}"), Applicant { namespace, name, destroys: false, since, seen: since })
        };
        let mut all = Admissions { running: (0..400).map(long).collect(), waiting: (400..600).map(long).collect() };
        let (uid, me) = long(600);
        assert!(all.admit(Limits { runs: None, runs_per_namespace: Some(1) }, &uid, me).is_err());
        assert_eq!((all.running.len(), all.waiting.len()), (MOST_RUNNING, MOST_WAITING));
        assert!(serde_json::to_string(&all).unwrap().len() < 256 << 10);

        // Whoever comes first is kept, and who is last is not, in whatever order they ask.
        let mut all = admissions([of("a", 0)], []);
        let waits = |all: &mut Admissions, since| {
            let (uid, me) = of("b", since);
            all.admit(limits(1, 1), &uid, me).is_err()
        };
        assert!((1..=400).rev().chain(1..=400).all(|since| waits(&mut all, since)));
        let kept: Vec<_> = all.queue().into_iter().map(|(_, waiter)| waiter.since).collect();
        assert_eq!(kept, (1..=200).map(at).collect::<Vec<_>>());
        let before = all.clone();
        assert!(waits(&mut all, 300));
        assert_eq!(all, before, "nothing is to be written");
        all.release("a0");
        assert!(waits(&mut all, 300), "200 come first");
        all.waiting.clear();
        assert!(!waits(&mut all, 300), "it has its turn although it was not kept");
    }
}
