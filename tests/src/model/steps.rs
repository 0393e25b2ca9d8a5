//! The possible steps of a state.

use std::{
    cell::RefCell,
    fmt::Write as _,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use driftless_contract::keys;
use driftless_testkit::Message;
use jiff::SignedDuration;

use super::{
    Bounds, Breakage,
    handlers::work,
    outside::Turn,
    ports::{Probe, Run, Tape, name},
    state::{Flight, Progress, Scenario, State},
};

/// The maximum number of invocations in flight.
const IN_FLIGHT: usize = 2;
/// After this time, every waiting claim, slot or retry is due.
const LONG: SignedDuration = SignedDuration::from_mins(11);
/// A handler that is polled more often waits for something outside the model.
const MAX_POLLS: u32 = 1000;
/// A sweep that leads to more invocations counts as endless.
const MAX_SWEPT: u32 = 60;

/// One possible step. Positions are those of the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A message is delivered.
    Deliver(usize),
    /// A message is delivered, and will be delivered once more.
    Double(usize),
    /// An invocation makes its next call.
    Step(usize),
    /// An invocation asks ECS to start a task, and ECS has forgotten the one that it started.
    Forget(usize),
    /// An invocation ends before its next call. Its message is delivered again.
    Crash(usize),
    /// The task at that position of all live ones makes a step.
    Task(usize, Turn),
    /// A user acts.
    User(usize),
    /// The sweep hints what is not at rest.
    Sweep,
    /// Time passes.
    Wait,
}

impl State {
    /// All possible steps, with the states after them.
    pub(super) fn successors(&self, scenario: &Scenario) -> Vec<(Action, Self)> {
        let can_preempt = self.left.preemptions != Some(0);
        let mut actions = Vec::new();
        for position in 0..self.flights.len() {
            if self.current.is_none_or(|current| current == position) || can_preempt {
                actions.push(Action::Step(position));
                if self.left.crashes > 0 {
                    actions.push(Action::Crash(position));
                }
                if self.left.forgets > 0 && self.flights[position].tape.next.starts_with("run task") {
                    actions.push(Action::Forget(position));
                }
            }
        }
        if self.current.is_none() || can_preempt {
            if self.flights.len() < IN_FLIGHT {
                actions.extend((0..self.queue.len()).map(Action::Deliver));
                if self.left.doubles > 0 {
                    actions.extend((0..self.queue.len()).map(Action::Double));
                }
            }
            actions.extend(self.turns().into_iter().map(|(position, turn)| Action::Task(position, turn)));
            for (position, task) in self.world.live_tasks().iter().enumerate() {
                let is_running =
                    matches!(self.begun.iter().find(|(arn, _)| *arn == task.arn), Some((_, Progress::Running { .. })));
                if self.left.kills > 0 {
                    actions.push(Action::Task(position, Turn::Kill));
                }
                if self.left.failures > 0 && is_running {
                    actions.push(Action::Task(position, Turn::Fail));
                }
            }
            let users = 0..scenario.users.len();
            actions.extend(users.filter(|user| self.users & 1 << user == 0).map(Action::User));
            if self.is_idle() && scenario.rules.breakage != Some(Breakage::Redelivery) {
                if self.sweep_changes(scenario) {
                    actions.push(Action::Sweep);
                } else if self.left.waits > 0 && self.unrest(scenario).is_some() {
                    actions.push(Action::Wait);
                }
            }
        }
        actions.into_iter().map(|action| (action, self.after(action, scenario).0)).collect()
    }

    /// The state after an action, and its description.
    pub(super) fn after(&self, action: Action, scenario: &Scenario) -> (Self, String) {
        let mut next = self.fork();
        let own = match action {
            Action::Step(position) | Action::Crash(position) | Action::Forget(position) => Some(position),
            _ => None,
        };
        if let (Some(preemptions), Some(_)) = (&mut next.left.preemptions, self.current.filter(|current| Some(*current) != own)) {
            *preemptions -= 1;
        }
        let mut told = next.happen(action, scenario);
        if let Some(position) = next.must_go_on() {
            let Run { made, .. } = next.go_on(position, Run { calls: u32::MAX, ..Run::default() }, scenario);
            _ = write!(told, ", and goes on to its end, last: {made}");
        }
        if next.left.preemptions.is_none() {
            next.current = None;
        }
        if let (Some(uid), None) = (Scenario::stack_uid(&self.world), Scenario::stack_uid(&next.world)) {
            let gone = next.ledger.gone(&uid);
            next.violate(gone);
        }
        drop(next.world.written());
        (next, told)
    }

    /// The invocation that continues to its end, because no other step is possible: no state in
    /// between needs a check.
    fn must_go_on(&self) -> Option<usize> {
        let Bounds { preemptions, crashes, forgets, .. } = self.left;
        self.current.filter(|_| preemptions == Some(0) && crashes == 0 && forgets == 0)
    }

    fn happen(&mut self, action: Action, scenario: &Scenario) -> String {
        match action {
            Action::Deliver(position) => {
                let message = self.queue.swap_remove(position);
                self.deliver(message, scenario)
            }
            Action::Double(position) => {
                self.left.doubles -= 1;
                self.deliver(self.queue[position].clone(), scenario)
            }
            Action::Step(position) => self.step(position, false, scenario),
            Action::Forget(position) => {
                self.left.forgets -= 1;
                self.step(position, true, scenario)
            }
            Action::Crash(position) => {
                self.left.crashes -= 1;
                self.current = None;
                let flight = self.flights.swap_remove(position);
                if scenario.rules.breakage != Some(Breakage::Redelivery) {
                    self.send(flight.message.clone(), scenario);
                }
                format!("{} crashes before: {}", name(&flight.message), flight.tape.next)
            }
            Action::Task(position, turn) => {
                self.current = None;
                let arn = self.world.live_tasks()[position].arn.clone();
                self.turn(&arn, turn, scenario);
                format!("task {}: {turn:?}", keys::task_id(&arn))
            }
            Action::User(user) => {
                self.current = None;
                self.users |= 1 << user;
                let (words, act) = scenario.users[user];
                if let Some(hint) = act(&self.world) {
                    self.send(Message::Hint(hint), scenario);
                }
                format!("user: {words}")
            }
            Action::Sweep => {
                let swept = self.sweep(scenario);
                format!("the sweep hints {swept} objects")
            }
            Action::Wait => {
                self.left.waits -= 1;
                self.world.advance(LONG);
                format!("{LONG:#} pass")
            }
        }
    }

    /// Starts an invocation, which stops before its first call.
    fn deliver(&mut self, message: Message, scenario: &Scenario) -> String {
        let told = format!("{} begins", name(&message));
        self.flights.push(Flight { message, began: self.world.now(), tape: Tape::default() });
        let position = self.flights.len() - 1;
        self.go_on(position, Run::default(), scenario);
        told
    }

    fn step(&mut self, position: usize, forgets: bool, scenario: &Scenario) -> String {
        let who = name(&self.flights[position].message);
        let Run { made, .. } = self.go_on(position, Run { calls: 1, forgets, ..Run::default() }, scenario);
        format!("{who}: {made}{}", if forgets { ", which ECS has forgotten" } else { "" })
    }

    /// Runs an invocation again up to its position, and then further.
    fn go_on(&mut self, position: usize, run: Run, scenario: &Scenario) -> Run {
        let Flight { message, began, tape } = &mut self.flights[position];
        let (message, began) = (message.clone(), *began);
        let run = Rc::new(RefCell::new(Run { tape: std::mem::take(tape), ..run }));
        let probe = Probe { world: self.world.calm(), run: Rc::clone(&run), rules: Rc::clone(&scenario.rules) };
        let mut work = work(probe, message.clone(), began, scenario.limits);
        let mut polls = 0;
        let ended = loop {
            match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => break Some(ended),
                Poll::Pending if run.borrow().stopped => break None,
                Poll::Pending if polls > MAX_POLLS => break Some(Err((false, "it waits for what is not of the model".into()))),
                Poll::Pending => polls += 1,
            }
        };
        drop(work);
        let mut run = run.take();
        for message in std::mem::take(&mut run.sent) {
            self.send(message, scenario);
        }
        if let Some(violation) = run.violation.take() {
            self.violate(Err(violation));
        }
        match ended {
            None => {
                self.flights[position].tape = std::mem::take(&mut run.tape);
                self.current = Some(position);
            }
            Some(ended) => {
                self.flights.swap_remove(position);
                self.current = None;
                if let Err((is_transient, why)) = ended {
                    if !is_transient {
                        self.violate(Err(format!("failure: {} fails for good: {why}", name(&message))));
                    }
                    self.send(message, scenario);
                }
            }
        }
        self.notify(scenario);
        run
    }

    /// Runs an invocation for the first message to its end.
    fn run_first(&mut self, scenario: &Scenario) -> String {
        let message = self.queue.remove(0);
        let name = name(&message);
        self.flights.push(Flight { message, began: self.world.now(), tape: Tape::default() });
        let position = self.flights.len() - 1;
        self.go_on(position, Run { calls: u32::MAX, ..Run::default() }, scenario);
        name
    }

    /// Runs one invocation after another, and every task to its success, until a condition is met
    /// or no step is left.
    pub(super) fn run_until(&mut self, scenario: &Scenario, is_met: impl Fn(&Self) -> bool) {
        while !is_met(self) {
            if !self.queue.is_empty() {
                self.run_first(scenario);
            } else if let Some((position, turn)) = self.turns().first() {
                let arn = self.world.live_tasks()[*position].arn.clone();
                self.turn(&arn, *turn, scenario);
            } else {
                return;
            }
        }
        drop(self.world.written());
    }

    /// Returns whether a sweep changes anything, with one invocation after another.
    fn sweep_changes(&self, scenario: &Scenario) -> bool {
        let mut swept = self.fork();
        swept.sweep(scenario);
        for _ in 0..MAX_SWEPT {
            if swept.queue.is_empty() {
                return swept.hash() != self.hash();
            }
            swept.run_first(scenario);
        }
        true
    }
}
