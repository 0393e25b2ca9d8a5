//! The machine: a simulated world, its invocations and runners, and its planned events.

use std::{cell::RefCell, collections::BTreeMap, pin::Pin, rc::Rc};

use driftless_contract::{Hint, ObjectKey, RunMessage};
use driftless_core::Limits;
use driftless_testkit::{Faults, LiveTask, Message, World};
use jiff::{SignedDuration, Timestamp};

use super::{
    Breakage,
    approvals::REVIEW_SECONDS,
    chances::Chances,
    conditions::{Conditions, Mode},
    knobs::Knobs,
    ledger::Ledger,
    outside::Outside,
    runner::Runner,
    script::Action,
};

/// Why an invocation failed.
pub(super) struct Broken {
    pub(super) transient: bool,
    pub(super) words: String,
}

pub(super) struct Invocation {
    pub(super) work: Pin<Box<dyn Future<Output = Result<(), Broken>>>>,
    /// `None` for a sweep.
    pub(super) message: Option<Message>,
    pub(super) function: &'static str,
    pub(super) who: String,
    pub(super) began: Timestamp,
    /// The time until which it is delayed.
    pub(super) wake: Timestamp,
}

#[derive(Debug)]
pub(super) enum Event {
    Sweep,
    Action(Action),
    Hint(Hint),
    Message(Message),
    Garbage,
    /// The outage ends.
    Recovery,
    /// A hint of the quiet Stack that no event causes.
    Loop,
    /// The users read the plans of guarded Stacks.
    Review,
    /// Fargate Spot reclaims a task's capacity.
    Reclaim(LiveTask),
}

/// A simulated world and all its events.
pub(super) struct Machine {
    pub(super) world: World,
    pub(super) calm: World,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) chances: Rc<Chances>,
    pub(super) mode: Mode,
    pub(super) breakage: Option<Breakage>,
    pub(super) outside: Outside,
    pub(super) limits: Limits,
    pub(super) knobs: Knobs,
    pub(super) invocations: Vec<Invocation>,
    pub(super) runners: Vec<Runner>,
    /// The planned events, by time and in the order in which they were planned.
    pub(super) agenda: BTreeMap<(Timestamp, u32), Event>,
    planned: u32,
    pub(super) disturbed: bool,
    pub(super) disturbed_until: Timestamp,
    pub(super) at_rest_since: Option<Timestamp>,
    /// The reconciliations since then.
    pub(super) looks_at_rest: u64,
    /// What the Stacks wait for.
    pub(super) waits: Option<String>,
    /// The cluster changed since that was determined.
    pub(super) changed: bool,
}

impl Machine {
    pub(super) fn new(conditions: &Conditions, traced: bool) -> Self {
        let Conditions { seed, odds, mode, limits, knobs, breakage, fault, calm, ref script, end } = *conditions;
        let world = World::new(seed, Faults::NONE);
        let begin = world.now();
        let mut machine = Self {
            calm: world.calm(),
            ledger: Rc::new(RefCell::new(Ledger::new(begin, limits, fault, traced))),
            chances: Rc::new(Chances::new(seed, odds)),
            mode,
            breakage,
            outside: Outside::default(),
            limits,
            knobs,
            invocations: Vec::new(),
            runners: Vec::new(),
            agenda: BTreeMap::new(),
            planned: 0,
            disturbed: true,
            disturbed_until: end,
            at_rest_since: None,
            looks_at_rest: 0,
            waits: None,
            changed: true,
            world,
        };
        for (at, action) in script {
            machine.plan(*at, Event::Action(*action));
        }
        if breakage != Some(Breakage::Redelivery) {
            machine.plan(begin + SignedDuration::from_secs(knobs.sweep_seconds), Event::Sweep);
        }
        if script.iter().any(|(_, action)| matches!(action, Action::Guard(..))) {
            machine.plan(begin + SignedDuration::from_secs(REVIEW_SECONDS), Event::Review);
        }
        machine.ledger.borrow_mut().approvals.are_ignored = breakage == Some(Breakage::Plans);
        if breakage == Some(Breakage::Loops) {
            machine.plan(begin, Event::Loop);
        }
        machine.ledger.borrow_mut().changes.are_bounded = calm;
        // The first reconciliation that the sweep requests comes before the tokens expire: it hints
        // a live run several times in their lifetime.
        let (life, sweep) = (i64::from(knobs.token_seconds), knobs.sweep_seconds);
        let renews = mode != Mode::Unswept && life / 2 >= sweep.max(life / 8) + 30;
        machine.ledger.borrow_mut().tokens_live = renews.then(|| SignedDuration::from_secs(knobs.token_seconds.into()));
        machine.ledger.borrow_mut().stats.unswept = u64::from(mode == Mode::Unswept);
        machine
    }

    pub(super) fn advance(&mut self, by: SignedDuration) {
        self.world.advance(by);
        self.ledger.borrow_mut().now = self.world.now();
    }

    pub(super) fn plan(&mut self, at: Timestamp, event: Event) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), event);
    }

    /// Returns whether the tasks of a namespace fail to start.
    pub(super) fn is_outage(&self) -> bool {
        self.chances.outage.get().is_some()
    }

    /// A redelivered message is not lost a second time.
    pub(super) fn redeliver(&mut self, message: Message, within_seconds: u32) {
        let at = self.world.now() + self.chances.dice(queue(&message), "time").seconds(within_seconds);
        self.plan(at, Event::Message(message));
    }
}

/// The name of a message's queue.
pub(super) fn queue(message: &Message) -> &'static str {
    match message {
        Message::Hint(_) => "hints",
        Message::Launch(_) => "launches",
        Message::Run(_) => "runs",
        Message::Fetch(_) => "sources",
    }
}

/// The namespace that a message concerns; empty if the message does not name it.
pub(super) fn subject(message: &Message) -> &str {
    let about: &ObjectKey = match message {
        Message::Hint(hint) => &hint.object,
        Message::Fetch(request) => &request.source,
        Message::Launch(hint) => &hint.update,
        Message::Run(RunMessage::Hint(hint)) => &hint.update,
        Message::Run(_) => return "",
    };
    &about.namespace
}
