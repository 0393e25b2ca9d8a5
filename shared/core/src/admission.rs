//! The limits on concurrent runs, and the order in which waiting runs get a slot.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Uid;

/// A waiting run refreshes its entry every minute. An entry without a refresh for this long is
/// ignored, so that it cannot block the queue.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(3);
/// The whole list is one annotation. An object's annotations hold 256 KiB, and an entry takes 460
/// bytes at most, so this is the maximum of live runs where any limit is set.
const MOST_RUNNING: usize = 400;
/// The list keeps this many waiting runs, the first in the queue. The others ask every minute and
/// enter it later. The list of turns has the same bound.
const MOST_WAITING: usize = 120;

/// The limits on concurrent runs. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// In all namespaces together.
    pub runs: Option<usize>,
    /// In each namespace.
    pub runs_per_namespace: Option<usize>,
}

impl Limits {
    /// Returns whether any limit is set.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The runs that have a slot and those that wait for one, by the uid of their Update. A cluster has
/// one such document, which is written only with the version that was read, so two runs that start
/// at once never both take the last slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admissions {
    /// The runs that have a slot.
    pub running: BTreeMap<Uid, Applicant>,
    /// The runs that wait for a slot.
    pub waiting: BTreeMap<Uid, Applicant>,
    /// When each namespace last got a slot, if a run waits that was created before that.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub served: BTreeMap<String, Timestamp>,
}

/// A run that has a slot or wants one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applicant {
    /// The Update's namespace.
    pub namespace: String,
    /// The namespace whose limit applies, if it is not the Update's: the Update of a terminating
    /// namespace is in the system namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_for: Option<String>,
    /// The Update's name.
    pub name: String,
    /// Whether it destroys.
    pub destroys: bool,
    /// When the Update was created.
    pub since: Timestamp,
    /// When it last asked, rounded down to half the time after which an entry is ignored, so that
    /// not every reconciliation has to write it.
    pub seen: Timestamp,
}

impl Applicant {
    /// Returns the namespace whose limit and turn apply.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.counts_for.as_deref().unwrap_or(&self.namespace)
    }
}

impl Admissions {
    /// Gives the run a slot, or records that it waits and returns the reason. A run that has a slot
    /// keeps it.
    pub fn admit(&mut self, limits: Limits, uid: &Uid, applicant: Applicant) -> Result<(), String> {
        if self.running.contains_key(uid) {
            return Ok(());
        }
        let now = applicant.seen;
        self.waiting.retain(|_, waiter| now.duration_since(waiter.seen) < FORGOTTEN_AFTER);
        if let Some(words) = self.must_wait(limits, uid, &applicant) {
            let fresh = |waiter: &Applicant| now.duration_since(waiter.seen) < FORGOTTEN_AFTER / 2;
            if !self.waiting.get(uid).is_some_and(fresh) {
                self.waiting.insert(uid.clone(), applicant);
            }
            while self.waiting.len() > MOST_WAITING {
                let last = self.queue().pop().map(|(uid, _)| uid.clone());
                self.waiting.remove(&last.unwrap_or_default());
            }
            return Err(words);
        }
        self.waiting.remove(uid);
        self.serve(applicant.tenant().to_owned(), now);
        self.running.insert(uid.clone(), applicant);
        Ok(())
    }

    /// Removes a waiting run that got a slot and cannot start. It counts as the turn of its
    /// namespace, because the other runs there may fail to start too. Returns whether anything
    /// changed.
    pub fn decline(&mut self, uid: &Uid, now: Timestamp) -> bool {
        let Some(waiter) = self.waiting.remove(uid) else { return false };
        self.serve(waiter.tenant().to_owned(), now);
        true
    }

    /// Records that a namespace has had its turn, later than every waiting run and every other
    /// turn: `now` is the time at which the function began, and other runs may have asked since
    /// then.
    ///
    /// A turn is kept while a run waits that was created before it, even if no run of the same
    /// namespace waits. The namespace's next run may be older and queue later: runs that wait for a
    /// claim are not in the queue, and would otherwise get one slot after another.
    fn serve(&mut self, namespace: String, now: Timestamp) {
        let since = || self.waiting.values().map(|waiter| waiter.since);
        let known = since().chain(self.served.values().copied()).max();
        let next = known.and_then(|known| known.checked_add(SignedDuration::from_nanos(1)).ok());
        let oldest = since().min();
        self.served.insert(namespace, next.map_or(now, |next| next.max(now)));
        self.served.retain(|_, served| oldest.is_some_and(|oldest| oldest <= *served));
        while self.served.len() > MOST_WAITING {
            let first = self.served.iter().min_by_key(|(_, served)| **served).map(|(namespace, _)| namespace.clone());
            self.served.remove(&first.unwrap_or_default());
        }
    }

    /// Removes a run that has ended or no longer wants a slot. Returns whether anything changed.
    pub fn release(&mut self, uid: &Uid) -> bool {
        let (ran, waited) = (self.running.remove(uid), self.waiting.remove(uid));
        ran.or(waited).is_some()
    }

    /// The waiting runs, the next one first.
    #[must_use]
    pub fn queue(&self) -> Vec<(&Uid, &Applicant)> {
        self.ranked(self.waiting()).into_iter().map(|(_, uid, waiter)| (uid, waiter)).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = (&Uid, &Applicant)> {
        self.waiting.iter()
    }

    /// Returns what the run waits for. The message stays the same while the reason does, because it
    /// is written to the status and a change of it is an event.
    fn must_wait(&self, limits: Limits, uid: &Uid, applicant: &Applicant) -> Option<String> {
        let namespace = applicant.tenant();
        let most_of_one = limits.runs_per_namespace.unwrap_or(usize::MAX);
        if self.running.values().filter(|run| run.tenant() == namespace).count() >= most_of_one {
            return Some(format!(
                "waiting for a slot: namespace {namespace:?} has reached its limit of {} at once",
                runs(most_of_one)
            ));
        }
        let most = limits.runs.unwrap_or(MOST_RUNNING).min(MOST_RUNNING);
        let free = most.saturating_sub(self.running.len());
        let others = self.waiting().filter(|(other, _)| *other != uid);
        let next = self.ranked(others.chain([(uid, applicant)]));
        // A run that waits for the limit of its own namespace delays no other namespace.
        let mut next = next.into_iter().filter(|(level, ..)| *level < most_of_one).take(free);
        (!next.any(|(_, next, _)| next == uid))
            .then(|| format!("waiting for a slot: other runs come first; the limit of the cluster is {} at once", runs(most)))
    }

    /// Waiting runs in the order in which free slots go to them, each with its level, its position
    /// in its own namespace: live runs plus runs ahead of it. The lowest level is first.
    ///
    /// Within a namespace destroys come first, then the oldest. Between namespaces a destroy counts
    /// no more than another run, because a tenant chooses the operation; namespaces at the same
    /// level take turns, so that a long queue of one does not delay another even where there is a
    /// single slot.
    fn ranked<'a>(&self, waiting: impl Iterator<Item = (&'a Uid, &'a Applicant)>) -> Vec<(usize, &'a Uid, &'a Applicant)> {
        let mut waiting: Vec<_> = waiting.collect();
        // A namespace waits for its turn since its oldest Update was created, or since it last got
        // a slot.
        let mut turns = BTreeMap::<&str, Timestamp>::new();
        for (_, waiter) in &waiting {
            let since = turns.entry(waiter.tenant()).or_insert(waiter.since);
            *since = waiter.since.min(*since);
        }
        for (namespace, since) in &mut turns {
            *since = self.served.get(*namespace).map_or(*since, |served| *served.max(since));
        }
        let mut levels = BTreeMap::<&str, usize>::new();
        for run in self.running.values() {
            *levels.entry(run.tenant()).or_default() += 1;
        }
        waiting.sort_by_key(|(uid, waiter)| (!waiter.destroys, waiter.since, *uid));
        let mut ranked = Vec::new();
        for (uid, waiter) in waiting {
            let level = levels.entry(waiter.tenant()).or_default();
            ranked.push((*level, uid, waiter));
            *level += 1;
        }
        // Stable: within a namespace and level the order stays as it is.
        ranked.sort_by_key(|(level, _, waiter)| (*level, turns[waiter.tenant()], waiter.tenant()));
        ranked
    }
}

fn runs(count: usize) -> String {
    if count == 1 { "1 run".into() } else { format!("{count} runs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// An Update of that age, which is also its name.
    fn of(namespace: &str, since: i64) -> (Uid, Applicant) {
        let applicant = Applicant {
            namespace: namespace.into(),
            counts_for: None,
            name: since.to_string(),
            destroys: false,
            since: at(since),
            seen: at(100),
        };
        (format!("{namespace}{since}").into(), applicant)
    }

    fn destroy(namespace: &str, since: i64) -> (Uid, Applicant) {
        let (uid, applicant) = of(namespace, since);
        (uid, Applicant { destroys: true, ..applicant })
    }

    fn admissions<const R: usize, const W: usize>(running: [(Uid, Applicant); R], waiting: [(Uid, Applicant); W]) -> Admissions {
        Admissions { running: running.into(), waiting: waiting.into(), ..Admissions::default() }
    }

    fn limits(runs: usize, runs_per_namespace: usize) -> Limits {
        Limits { runs: Some(runs), runs_per_namespace: Some(runs_per_namespace) }
    }

    #[test]
    fn runs_in_progress_stay_within_the_limit() {
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
    fn slot_that_a_run_declines_goes_to_another_namespace() {
        let mut all = admissions([], [of("a", 1), of("a", 2), of("a", 3), of("b", 9)]);
        let next = |all: &Admissions| all.queue()[0].0.clone();
        assert_eq!(next(&all), "a1");
        assert!(all.decline(&"a1".into(), at(100)));
        assert_eq!(next(&all), "b9", "and not the next of the same namespace");
        assert!(!all.decline(&"a1".into(), at(100)));
        assert!(all.decline(&"b9".into(), at(101)));
        assert_eq!(next(&all), "a2");
    }

    #[test]
    fn queue_for_one_claim_delays_no_other_namespace() {
        let mut all = admissions([], [of("b", 50)]);
        let (uid, me) = of("a", 1);
        assert_eq!(all.admit(limits(1, 1), &uid, me), Ok(()));
        assert!(all.release(&uid));
        // It waited for the claim of a1, not in the queue.
        let (uid, me) = of("a", 2);
        assert!(all.admit(limits(1, 1), &uid, me).is_err(), "b waits since before a got its slot");
        let (uid, me) = of("b", 50);
        assert_eq!(all.admit(limits(1, 1), &uid, me), Ok(()));
    }

    #[test]
    fn slot_goes_to_waiting_runs_first_despite_clock_skew() {
        let mut all = admissions([], [of("a", 1), of("a", 2), of("b", 50)]);
        for (uid, next) in [("a1", "b50"), ("b50", "a2")] {
            let uid = &Uid::from(uid);
            assert_eq!(all.queue()[0].0, uid);
            let slow = Applicant { seen: at(40), ..all.waiting[uid].clone() };
            assert_eq!(all.admit(limits(1, 1), uid, slow), Ok(()));
            assert!(all.release(uid));
            let (other, me) = of("b", 51);
            all.waiting.insert(other, me);
            assert_eq!(all.queue()[0].0, next);
        }
    }

    #[test]
    fn free_slot_goes_to_the_namespace_with_fewest_runs() {
        let running = || [of("a", 0), of("a", 1), of("b", 0)];
        let waits = |me: (Uid, Applicant), waiting: [(Uid, Applicant); 1]| {
            admissions(running(), waiting).admit(limits(4, 4), &me.0, me.1).is_err()
        };
        assert!(!waits(of("c", 9), [of("a", 5)]), "c has no run, a has two");
        assert!(waits(of("a", 5), [of("c", 9)]), "c has none");
        assert!(waits(of("a", 9), [of("a", 5)]), "an older one");
        assert!(!waits(of("a", 5), [of("a", 9)]), "it is older");
        assert!(!waits(of("a", 5), [of("a", 5)]), "it waits already");
        assert!(waits(of("a", 5), [destroy("a", 9)]), "a destroy of the same namespace");
        assert!(!waits(destroy("a", 9), [of("a", 5)]), "it destroys");
        assert!(!waits(of("c", 9), [destroy("a", 5)]), "a destroy of a namespace with more runs");
        let queue = admissions(running(), [of("a", 5), of("c", 9), destroy("a", 8)]);
        assert_eq!(queue.queue().into_iter().map(|(uid, _)| uid).collect::<Vec<_>>(), ["c9", "a8", "a5"]);
    }

    #[test]
    fn stream_of_destroys_delays_no_other_namespace() {
        for (running, since) in [(&["a"][..], 1), (&["a", "b"], 1), (&[], 9)] {
            let running = running.iter().map(|namespace| of(namespace, 0)).collect();
            let waiting = (10..110).map(|since| destroy("a", since)).collect();
            let (uid, me) = of("b", since);
            let mut all = Admissions { running, waiting, ..Admissions::default() };
            let free = Limits { runs: Some(all.running.len() + 1), runs_per_namespace: None };
            assert_eq!(all.admit(free, &uid, me), Ok(()));
        }
    }

    #[test]
    fn namespace_with_a_long_queue_leaves_every_second_slot_to_another() {
        let waiting = (0..100).map(|since| destroy("a", since)).chain([of("b", 500), of("b", 501)]);
        let all = Admissions { waiting: waiting.collect(), ..Admissions::default() };
        let first: Vec<_> = all.queue().into_iter().map(|(uid, _)| uid).take(5).collect();
        assert_eq!(first, ["a0", "b500", "a1", "b501", "a2"]);
    }

    #[test]
    fn namespaces_take_turns_at_a_single_slot() {
        let mut all = admissions([], []);
        all.waiting.extend((0..100).map(|since| of("a", since)).chain([of("b", 50), of("b", 60)]));
        let mut order = Vec::new();
        for second in 100..106 {
            let (uid, next) = all.queue().first().map(|(uid, next)| ((*uid).clone(), (*next).clone())).unwrap();
            assert_eq!(all.admit(limits(1, 1), &uid, Applicant { seen: at(second), ..next }), Ok(()));
            assert!(all.release(&uid));
            order.push(uid);
        }
        assert_eq!(order, ["a0", "b50", "a1", "b60", "a2", "a3"]);
        all.waiting.extend([of("b", 104)]);
        assert_eq!(all.queue()[0].0, "b104", "a got a slot at 105");
        all.waiting.retain(|uid, _| *uid == "b104");
        let (uid, me) = of("b", 104);
        assert_eq!(all.admit(limits(1, 1), &uid, me), Ok(()));
        assert!(all.served.is_empty(), "no run waits");
    }

    #[test]
    fn runs_for_terminating_namespaces_count_for_their_stacks() {
        let terminating = |namespace: &str, since| {
            let (uid, run) = of("system", since);
            (format!("{namespace}-{uid}").into(), Applicant { counts_for: Some(namespace.into()), ..run })
        };
        let mut all = admissions([terminating("a", 0)], []);
        let (uid, me) = terminating("b", 1);
        assert_eq!(all.admit(limits(9, 1), &uid, me), Ok(()), "another namespace's");
        let (uid, me) = of("a", 2);
        let words = all.admit(limits(9, 1), &uid, me).unwrap_err();
        assert!(words.contains("namespace \"a\""), "{words}");
        let (uid, me) = of("system", 3);
        assert_eq!(all.admit(limits(9, 1), &uid, me), Ok(()));
    }

    proptest::proptest! {
        #[test]
        fn queue_is_fair_between_namespaces_and_ordered_within_one(
            running in proptest::collection::vec(0_usize..4, 0..12),
            waiting in proptest::collection::vec((0_usize..4, 0_i64..50, proptest::bool::ANY), 0..30),
        ) {
            let names = ["a", "b", "c", "d"];
            let waiter = |(n, (namespace, since, destroys)): (usize, (usize, i64, bool))| {
                let (_, run) = of(names[namespace], since);
                (format!("{n:03}").into(), Applicant { destroys, ..run })
            };
            let running: BTreeMap<_, _> = (0_i64..).zip(running).map(|(n, namespace)| of(names[namespace], n)).collect();
            let mut runs: BTreeMap<String, usize> = BTreeMap::new();
            for run in running.values() {
                *runs.entry(run.namespace.clone()).or_default() += 1;
            }
            let waiting = waiting.into_iter().enumerate().map(waiter).collect();
            let all = Admissions { running, waiting, ..Admissions::default() };
            let queue = all.queue();
            proptest::prop_assert_eq!(queue.len(), all.waiting.len());
            for (position, (uid, run)) in queue.iter().enumerate() {
                for (later, other) in &queue[position..] {
                    let count = |namespace: &str| runs.get(namespace).copied().unwrap_or_default();
                    if run.namespace == other.namespace {
                        proptest::prop_assert!((!run.destroys, run.since, uid) <= (!other.destroys, other.since, later));
                    } else {
                        proptest::prop_assert!(count(&run.namespace) <= count(&other.namespace));
                    }
                }
                *runs.entry(run.namespace.clone()).or_default() += 1;
            }
        }
    }

    #[test]
    fn run_that_cannot_take_a_slot_delays_no_other() {
        let (uid, me) = of("b", 9);
        // Its namespace has reached its limit.
        let mut all = admissions([of("a", 0), of("a", 1)], [destroy("a", 2)]);
        assert_eq!(all.admit(limits(3, 2), &uid, me.clone()), Ok(()));
        // It no longer asks.
        let (gone, mut waiter) = destroy("a", 2);
        waiter.seen = at(100) - FORGOTTEN_AFTER;
        let mut all = admissions([of("a", 0)], [(gone, waiter)]);
        assert_eq!(all.admit(limits(2, 2), &uid, me), Ok(()));
        assert!(all.waiting.is_empty());
    }

    #[test]
    fn waiting_run_names_its_limit_and_starts_with_a_free_slot() {
        let mut all = admissions([of("a", 0), of("b", 0)], [destroy("b", 1)]);
        let (uid, me) = of("a", 5);
        let words = r#"waiting for a slot: namespace "a" has reached its limit of 1 run at once"#;
        assert_eq!(all.admit(limits(9, 1), &uid, me.clone()), Err(words.into()));
        let words = "waiting for a slot: other runs come first; the limit of the cluster is 2 runs at once";
        assert_eq!(all.admit(limits(2, 9), &uid, me.clone()), Err(words.into()));
        assert!(all.release(&"b1".into()));
        assert_eq!(all.admit(limits(2, 9), &uid, me.clone()), Err(words.into()), "it waits for the same");
        assert!(all.release(&"a0".into()) && !all.release(&"a0".into()));
        assert_eq!(all.admit(limits(2, 9), &uid, me), Ok(()));
        assert!(all.waiting.is_empty() && all.running.contains_key(&uid));
    }

    #[test]
    fn waiting_run_renews_its_entry_after_half_of_its_lifetime() {
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
            let (namespace, counts_for) = ("driftless".into(), Some(namespace));
            (format!("{n:036}").into(), Applicant { namespace, counts_for, name, destroys: false, since, seen: since })
        };
        let served = (400..600).map(long).map(|(_, run)| (run.counts_for.unwrap(), run.since)).collect();
        let (running, waiting) = ((0..400).map(long).collect(), (400..600).map(long).collect());
        let mut all = Admissions { running, waiting, served };
        let (uid, me) = long(600);
        assert!(all.admit(Limits { runs: None, runs_per_namespace: Some(1) }, &uid, me).is_err());
        assert_eq!((all.running.len(), all.waiting.len()), (MOST_RUNNING, MOST_WAITING));
        assert!(serde_json::to_string(&all).unwrap().len() < 256 << 10);
        assert!(all.decline(&long(400).0, at(100)));
        assert_eq!(all.served.len(), MOST_WAITING);

        // The first in the queue are kept and the last is dropped, in whatever order they ask.
        let mut all = admissions([of("a", 0)], []);
        let waits = |all: &mut Admissions, since| {
            let (uid, me) = of("b", since);
            all.admit(limits(1, 1), &uid, me).is_err()
        };
        assert!((1..=400).rev().chain(1..=400).all(|since| waits(&mut all, since)));
        let kept: Vec<_> = all.queue().into_iter().map(|(_, waiter)| waiter.since).collect();
        assert_eq!(kept, (1..=120).map(at).collect::<Vec<_>>());
        let before = all.clone();
        assert!(waits(&mut all, 300));
        assert_eq!(all, before, "nothing is to be written");
        all.release(&"a0".into());
        assert!(waits(&mut all, 300), "120 come first");
        all.waiting.clear();
        assert!(!waits(&mut all, 300), "it has its turn although it was not kept");
    }
}
