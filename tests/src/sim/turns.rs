//! The order of turns, and the time.

use std::{
    collections::BTreeMap,
    task::{Context, Poll, Waker},
};

use driftless_api::{Stack, Update, uid_of};
use driftless_aws::Objects as _;
use driftless_contract::{Hint, RunMessage};
use driftless_core::{Stack as CoreStack, run::WaitReason};
use driftless_testkit::Message;
use jiff::SignedDuration;
use kube::ResourceExt as _;

use super::{
    Breakage, Stats,
    approvals::{self, REVIEW_SECONDS},
    chances::Trouble,
    conditions::Mode,
    knobs::OUTAGE,
    machine::{Broken, Event, Invocation, Machine, queue, subject},
    objects::{HOSTILE, NAMESPACE, QUIET, STACK, STACK_KIND, UPDATE_KIND, key_in, list},
    outside::collect_garbage,
    rest::is_too_late,
    runner::Runner,
};

/// The time limit of an invocation.
const TIMEOUT: SignedDuration = SignedDuration::from_secs(60);
/// The maximum time of a reconciliation's calls without delays.
const LAST_CALLS: SignedDuration = SignedDuration::from_secs(20);
/// A message that was not handled is delivered again within this time, which is shorter than the
/// template's and tests the same.
const VISIBILITY_SECONDS: u32 = 90;
/// The maximum number of concurrent invocations.
const CONCURRENCY: usize = 8;
/// While more messages wait, none is doubled: otherwise each of a chain of requeues would be, and
/// each of those again.
const FEW_MESSAGES: usize = 12;
/// The launcher's reasons for an Update that waits for a task or for a slot.
const LEFT_TO_SWEEP: [WaitReason; 2] = [WaitReason::TaskNotStarted, WaitReason::ConcurrencyLimit];

/// The result of a run.
pub(super) struct Ended {
    pub(super) stats: Stats,
    /// The first broken invariant.
    pub(super) violation: Option<String>,
    /// The final state.
    pub(super) rest: String,
    /// See [`Machine::settled`].
    pub(super) settled: BTreeMap<String, Option<String>>,
    /// The trace, if it was kept, and the state, by file name.
    pub(super) trace: Vec<String>,
    pub(super) state: Vec<(&'static str, String)>,
}

impl Ended {
    pub(super) fn result(self) -> Result<Stats, String> {
        self.violation.map_or(Ok(self.stats), Err)
    }
}

impl Machine {
    /// Runs until everything is at rest, or an invariant is broken.
    pub(super) fn run(mut self) -> Ended {
        let ended = (0..self.knobs.max_turns()).find_map(|_| self.turn().transpose());
        let violation = ended.unwrap_or_else(|| Err("8: it runs in circles".into())).err();
        let (rest, settled) = (self.rest(), self.settled());
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.seconds = u64::try_from(self.world.now().duration_since(ledger.begin).as_secs()).unwrap_or_default();
        let (stats, trace) = (std::mem::take(&mut ledger.stats), ledger.take_trace());
        drop(ledger);
        let files = if trace.is_some() { self.state() } else { Vec::new() };
        Ended { stats, violation, rest, settled, trace: trace.unwrap_or_default(), state: files }
    }

    /// The state, by file name.
    fn state(&self) -> Vec<(&'static str, String)> {
        let lines = |lines: &mut dyn Iterator<Item = String>| lines.collect::<Vec<_>>().join("\n");
        let bucket = self.world.objects();
        let mut bucket = bucket.iter().map(|(key, content)| format!("{key}\n  {}", String::from_utf8_lossy(content)));
        let mut waiting = self.world.queued().into_iter().map(|(due, message)| format!("{due} {message:?}"));
        let mut tasks = self.world.live_tasks().into_iter().map(|task| format!("{task:?}"));
        let mut agenda = self.agenda.iter().map(|((at, _), event)| format!("{at} {event:?}"));
        let mut invocations = self.invocations.iter().map(|it| format!("{} until {}: {:?}", it.who, it.wake, it.message));
        vec![
            ("objects", lines(&mut self.world.cluster().iter().map(|object| format!("{object:#}")))),
            ("bucket", lines(&mut bucket)),
            ("queues", lines(&mut waiting)),
            ("tasks", lines(&mut tasks)),
            ("agenda", lines(&mut agenda)),
            ("invocations", lines(&mut invocations)),
        ]
    }

    /// Makes one step. `Some` when everything is at rest.
    fn turn(&mut self) -> Result<Option<()>, String> {
        let now = self.world.now();
        if self.disturbed && now >= self.disturbed_until {
            self.calm_down();
        }
        if let Some(violation) = self.ledger.borrow_mut().take_violation() {
            return Err(violation);
        }
        if self.happen() || self.work() {
            return Ok(None);
        }
        // No step is possible at this time.
        self.check_bounds()?;
        let waits = self.waits_for();
        let rest = waits.is_none().then(|| *self.at_rest_since.get_or_insert(now));
        self.at_rest_since = rest;
        if rest.is_none() {
            self.looks_at_rest = 0;
        }
        if rest.is_some_and(|since| now.duration_since(since) > self.knobs.at_rest()) {
            let mut ledger = self.ledger.borrow_mut();
            ledger.stats.looks_at_rest = self.looks_at_rest;
            drop(ledger);
            return self.check_end().map(Some);
        }
        let calm_since = self.disturbed_until + if self.mode == Mode::Outage { OUTAGE } else { SignedDuration::ZERO };
        if now.duration_since(calm_since) > self.knobs.settled_within() {
            return Err(format!("2, 8: {}", waits.unwrap_or_else(|| "it never comes to rest".into())));
        }
        let wakes =
            self.invocations.iter().map(|invocation| invocation.wake).chain(self.runners.iter().map(|runner| runner.wake));
        let next = wakes.chain(self.agenda.keys().map(|(at, _)| *at)).chain(self.world.next_due()).min();
        // Without a planned event, the time is up.
        let end = calm_since + self.knobs.settled_within() + SignedDuration::from_secs(1);
        self.advance(next.unwrap_or(end).duration_since(now));
        Ok(None)
    }

    fn calm_down(&mut self) {
        self.chances.odds.set(self.chances.odds.get().only(Trouble::Slow));
        if self.mode == Mode::Outage {
            self.chances.outage.set(Some(NAMESPACE));
            self.plan(self.disturbed_until + OUTAGE, Event::Recovery);
        }
        self.disturbed = false;
        let mut ledger = self.ledger.borrow_mut();
        ledger.calm_since = Some(self.world.now());
        ledger.tell(|| "the disturbance ends".into());
    }

    /// Carries out a planned event that is due. Returns whether there was one.
    fn happen(&mut self) -> bool {
        let now = self.world.now();
        if let Some(i) = self.runners.iter().position(|runner| runner.wake <= now) {
            let mut ledger = self.ledger.borrow_mut();
            if !self.runners[i].turn(&self.calm, &mut ledger, &self.chances) {
                self.runners.swap_remove(i);
            }
            return true;
        }
        let Some(due) = self.agenda.first_entry().filter(|entry| entry.key().0 <= now) else { return false };
        match due.remove() {
            Event::Sweep => {
                self.plan(now + SignedDuration::from_secs(self.knobs.sweep_seconds), Event::Sweep);
                self.plan(now, Event::Garbage);
                if self.mode == Mode::Unswept {
                    self.hint_waiting();
                } else {
                    self.sweep();
                }
            }
            Event::Action(action) => {
                let hint = self.outside.act(action, &self.calm, &mut self.ledger.borrow_mut());
                if let Some(hint) = hint {
                    self.tell(hint);
                }
            }
            Event::Hint(hint) => drop(self.calm.drive(driftless_aws::Queues::hint(&self.calm, &hint, 0))),
            Event::Message(message) => self.invoke(message),
            Event::Garbage => collect_garbage(&self.calm),
            Event::Loop => {
                self.plan(now + SignedDuration::from_secs(2), Event::Loop);
                self.plan(now, Event::Hint(Hint::new(key_in(QUIET, STACK_KIND, STACK))));
            }
            Event::Review => {
                self.plan(now + SignedDuration::from_secs(REVIEW_SECONDS), Event::Review);
                let (mut ledger, mut dice) = (self.ledger.borrow_mut(), self.chances.dice("users", "review"));
                approvals::review(&self.calm, &mut ledger, &mut dice, !self.disturbed, self.breakage);
            }
            Event::Recovery => {
                self.chances.outage.set(None);
                self.ledger.borrow_mut().tell(|| "the outage ends".into());
            }
            Event::Reclaim(task) => {
                self.ledger.borrow_mut().reclaim(&task);
                self.world.reclaim_task(&task.arn);
            }
        }
        self.watch();
        true
    }

    /// Hints the Updates that the launcher leaves to the sweep: those that wait for a task or a
    /// slot, because their launches requeue themselves for two minutes only, and those that were
    /// created too late, which are abandoned after ten.
    fn hint_waiting(&mut self) {
        let (now, updates) = (self.world.now(), list::<Update>(&self.calm, None));
        let waits = |update: &&Update| {
            let reason = update.waits_for().and_then(|(reason, _)| reason);
            let is_left = reason.is_some_and(|reason| LEFT_TO_SWEEP.contains(&reason));
            !update.is_complete() && (is_left || is_too_late(&self.calm, update))
        };
        let names: Vec<_> = updates.iter().filter(waits).map(|update| (update.namespace(), update.name_any())).collect();
        for (namespace, name) in names {
            let key = key_in(&namespace.unwrap_or_default(), UPDATE_KIND, &name);
            self.plan(now, Event::Hint(Hint::new(key)));
        }
    }

    /// The forwarder or the webhook sends a hint, possibly late or never.
    fn tell(&mut self, hint: Hint) {
        if self.chances.strikes("forwarder", Trouble::Deaf) {
            self.ledger.borrow_mut().stats.drops += 1;
            return;
        }
        let at = self.world.now() + self.chances.dice("forwarder", "time").seconds_or(1, 60, self.chances.odds.get());
        self.plan(at, Event::Hint(hint));
    }

    /// Sends the watch events of changed objects.
    fn watch(&mut self) {
        for key in self.world.written() {
            self.changed = true;
            let object = self.world.stored(&key);
            if let Some(object) = &object {
                let mut ledger = self.ledger.borrow_mut();
                ledger.cluster_written(&key, object);
                ledger.source_written(&key, object);
            }
            // The hostile tenant forges its objects.
            let is_hostile = key.namespace == HOSTILE;
            if object.is_none() {
                let at = self.world.now() + self.chances.dice("garbage", "time").seconds(30);
                self.plan(at, Event::Garbage);
            }
            match (key.kind.as_str(), &object) {
                ("Stack", _) if is_hostile => {}
                ("Stack", None) => self.ledger.borrow_mut().stack_gone(&key.name),
                ("Stack", Some(object)) => {
                    if let Ok(stack) = object.typed::<Stack>() {
                        self.ledger.borrow_mut().stack_written(&CoreStack::from(&stack));
                    }
                }
                ("Update", Some(object)) => {
                    if let Ok(update) = object.typed::<Update>() {
                        let manifest = |folder: &str| format!("{folder}manifest");
                        let modified = |folder: &str| self.calm.drive(self.calm.modified(&manifest(folder)));
                        let is_stored = |folder: &str| matches!(modified(folder), Some(Ok(Some(_))));
                        if !is_hostile {
                            self.ledger.borrow_mut().update_written(&update, is_stored);
                        }
                        if update.metadata.deletion_timestamp.is_some() {
                            let uid = uid_of(&update);
                            self.runners.iter_mut().for_each(|runner| runner.deleted(&uid));
                        }
                    }
                }
                _ => {}
            }
            if let Some(hint) = self.outside.forward(&key, object.as_deref()) {
                self.tell(hint);
            }
        }
    }

    /// Starts or continues an invocation. Returns whether there was one.
    fn work(&mut self) -> bool {
        let now = self.world.now();
        let awake: Vec<usize> = (0..self.invocations.len()).filter(|i| self.invocations[*i].wake <= now).collect();
        let choice = self.chances.dice("machine", "turn").index(awake.len() + 1);
        if choice == awake.len() && self.invocations.len() < CONCURRENCY && self.receive() {
            return true;
        }
        match awake.get(choice).or(awake.first()) {
            Some(i) => {
                self.go_on(*i);
                true
            }
            None => false,
        }
    }

    /// Receives a message, if there is one.
    fn receive(&mut self) -> bool {
        let Some(message) = self.world.receive() else { return false };
        if self.breakage == Some(Breakage::Fairness) && subject(&message) == QUIET {
            return true;
        }
        // The recorder's own messages are spared: the loss of both an end and its repair is a case
        // for an operator.
        let spared = matches!(message, Message::Run(RunMessage::Hint(_)));
        let queue = queue(&message);
        let (lost, late) = (self.chances.strikes(queue, Trouble::Drop) && !spared, self.chances.strikes(queue, Trouble::Delay));
        let twice = self.world.waiting() < FEW_MESSAGES && self.chances.strikes(queue, Trouble::Duplicate);
        let twice = self.ledger.borrow_mut().count_message() || twice;
        let mut ledger = self.ledger.borrow_mut();
        match (lost, late) {
            (true, _) => ledger.stats.drops += 1,
            (false, true) => ledger.stats.delays += 1,
            (false, false) => ledger.stats.duplicates += u64::from(twice),
        }
        if lost {
            ledger.tell(|| format!("lost: {message:?}"));
            return true;
        }
        drop(ledger);
        if late || twice {
            let seconds = if self.chances.dice(queue, "long").chance(500) { 1 } else { 60 };
            self.redeliver(message.clone(), seconds);
        }
        if !late {
            self.invoke(message);
        }
        true
    }

    /// Lets an invocation make its next call, or ends it there.
    fn go_on(&mut self, i: usize) {
        let now = self.world.now();
        let function = self.invocations[i].function;
        let too_late = now.duration_since(self.invocations[i].began) > TIMEOUT;
        if too_late || self.chances.strikes(function, Trouble::Crash) {
            return self.end_early(i);
        }
        let polled = self.invocations[i].work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if self.ledger.borrow_mut().take_crash() {
            return self.end_early(i);
        }
        let took = 1 + self.chances.dice(function, "time").below(20);
        self.advance(SignedDuration::from_millis(took.into()));
        match polled {
            Poll::Pending => {
                let stalls = self.chances.strikes(function, Trouble::Stall);
                let stall = if stalls { self.chances.dice(function, "stall time").seconds(50) } else { SignedDuration::ZERO };
                self.invocations[i].wake = self.world.now() + stall.min(self.longest_stall(&self.invocations[i]));
            }
            Poll::Ready(ended) => {
                let Invocation { who, message, .. } = self.invocations.swap_remove(i);
                if let Err(Broken { transient, words }) = ended {
                    let mut ledger = self.ledger.borrow_mut();
                    ledger.tell(|| format!("{who} fails: {words}"));
                    if !transient {
                        ledger.violate(|| format!("8: {who} fails for good: {words}"));
                    }
                    drop(ledger);
                    self.failed(message);
                }
            }
        }
        self.watch();
        for task in self.world.live_tasks() {
            if self.ledger.borrow_mut().see_task(&task) {
                // After the disturbance the tenant's tasks behave, because its queue of runs would
                // take hours otherwise.
                let is_hostile = self.disturbed && task.run.update.namespace == HOSTILE;
                let mut dice = self.chances.of_task(&task.run.claim);
                if task.spot && dice.chance(self.chances.odds.get().of(Trouble::Kill)) {
                    self.plan(self.world.now() + dice.seconds(180), Event::Reclaim(task.clone()));
                }
                self.runners.push(Runner::new(&task, self.world.now(), is_hostile, dice));
            } else if task.stopping
                && let Some(runner) = self.runners.iter_mut().find(|runner| runner.arn == task.arn)
            {
                runner.stop(self.world.now(), &mut self.ledger.borrow_mut(), &self.chances);
            }
        }
    }

    /// Without a sweep the reconciler is not delayed beyond its time limit. A reconciliation that
    /// ends between its write of the Stack's status and the release of the Update leaves the
    /// release to the sweep, because the next one no longer sees the run.
    fn longest_stall(&self, Invocation { function, began, .. }: &Invocation) -> SignedDuration {
        if self.mode != Mode::Unswept || *function != "reconciler" {
            return TIMEOUT;
        }
        (*began + TIMEOUT - LAST_CALLS).duration_since(self.world.now()).max(SignedDuration::ZERO)
    }

    fn end_early(&mut self, i: usize) {
        let Invocation { who, message, .. } = self.invocations.swap_remove(i);
        let mut ledger = self.ledger.borrow_mut();
        ledger.stats.crashes += 1;
        ledger.tell(|| format!("{who} crashes"));
        drop(ledger);
        self.failed(message);
    }

    /// After a crash or a failure the message is delivered again, when its visibility timeout has
    /// elapsed.
    fn failed(&mut self, message: Option<Message>) {
        if let Some(message) = message.filter(|_| self.breakage != Some(Breakage::Redelivery)) {
            self.redeliver(message, VISIBILITY_SECONDS);
        }
    }
}
