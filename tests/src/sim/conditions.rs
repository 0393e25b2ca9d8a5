//! The conditions of a machine, and which of them can be left out.

use std::fmt;

use driftless_core::Limits;
use driftless_testkit::{Faults, World};
use jiff::Timestamp;

use super::{
    Breakage, Fault,
    chances::{Dice, Odds, Trouble},
    knobs::{Knobs, TENANTS},
    script::{self, Action, MADE_WITHIN},
};

/// The kinds of seeds, besides their probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Messages are lost, and the sweep repairs that.
    Swept,
    /// No message is lost, no function fails, and there is no sweep: a function that fails between
    /// its write of `nextLook` and the message for that time leaves the requeue to the sweep. Only
    /// Updates that wait for a task or a slot, or were created too late, are hinted, because the
    /// launcher leaves these to the sweep.
    Unswept,
    /// After the disturbance, tasks of one namespace fail to start for two hours.
    Outage,
}

/// The conditions of a machine.
#[derive(Clone)]
pub(super) struct Conditions {
    pub(super) seed: u64,
    pub(super) odds: Odds,
    pub(super) mode: Mode,
    pub(super) limits: Limits,
    pub(super) knobs: Knobs,
    pub(super) breakage: Option<Breakage>,
    pub(super) fault: Option<Fault>,
    /// Nothing goes wrong, and changes have to run in time.
    pub(super) calm: bool,
    /// The users' actions, with their times.
    pub(super) script: Vec<(Timestamp, Action)>,
    /// When the disturbance ends.
    pub(super) end: Timestamp,
}

/// What can be left out of the conditions.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Trouble(Trouble),
    Mode,
    Limits,
    Sweep,
    Period,
    Tokens,
    Retention,
    /// By its position in the script.
    Action(usize),
}

impl Conditions {
    pub(super) fn of_seed(seed: u64, breakage: Option<Breakage>) -> Self {
        let begin = begin();
        let mode = match Dice::new(seed, &["mode"]).below(6) {
            0 => Mode::Unswept,
            1 => Mode::Outage,
            _ => Mode::Swept,
        };
        let (mut script, end) = script::script(&mut Dice::new(seed, &["script"]), begin);
        script.extend(script::lives(&mut Dice::new(seed, &["lives"]), &script, end));
        script.extend(script::adoptions(&script, end));
        script.extend(script::of_tenants(&mut Dice::new(seed, &["hostile"]), begin, end));
        let of_plans = breakage.is_some_and(Breakage::is_of_plans);
        let mut dice = Dice::new(seed, &["guarded"]);
        if of_plans || dice.chance(300) {
            script.extend(script::guarded(&mut dice, begin, end, breakage == Some(Breakage::Policies)));
        }
        let mut odds = Odds::draw(seed);
        if mode == Mode::Unswept {
            odds = odds.without(&[Trouble::Crash, Trouble::Transient, Trouble::LostAnswer, Trouble::Drop, Trouble::Deaf]);
            script.retain(|(_, action)| !action.needs_sweep());
        }
        let limits = limits(&mut Dice::new(seed, &["limits"]), breakage);
        let mut knobs = Knobs::draw(seed);
        if breakage == Some(Breakage::Tokens) {
            // Runs that outlive the shortest tokens are rare.
            knobs = Knobs::SHORT_TOKENS;
            odds = odds.with(Trouble::Slow, 1000);
        }
        match breakage {
            Some(Breakage::Retries) => odds = odds.with(Trouble::Fail, 500),
            // An approved plan is only proposed again, with the same hash, after a run of it that
            // found the Pulumi stack locked.
            Some(Breakage::Spent) => odds = Odds::default().with(Trouble::Fail, 400),
            _ => {}
        }
        Self { seed, odds, mode, limits, knobs, breakage, fault: None, calm: false, script, end }
    }

    /// The same without troubles, and without a sweep.
    pub(super) fn of_calm(seed: u64, breakage: Option<Breakage>) -> Self {
        let mut calm = Self::of_seed(seed, breakage);
        calm.script.retain(|(_, action)| !action.needs_sweep() && !action.fails() && !matches!(action, Action::Guard(..)));
        let (odds, mode, limits, knobs) = (Odds::default(), Mode::Unswept, Limits::default(), Knobs::DEFAULT);
        Self { odds, mode, limits, knobs, calm: true, ..calm }
    }

    /// The same script, in which nothing goes wrong and no rule is broken.
    pub(super) fn untroubled(&self) -> Self {
        let (odds, limits, knobs) = (Odds::default(), Limits::default(), Knobs::DEFAULT);
        Self { odds, mode: Mode::Swept, limits, knobs, breakage: None, ..self.clone() }
    }

    /// Returns whether something may go wrong.
    pub(super) fn is_troubled(&self) -> bool {
        self.fault.is_none() && (self.breakage.is_some() || self.odds.troubles().next().is_some() || self.mode != Mode::Swept)
    }

    /// A short calm script with one fault, or with none.
    pub(super) fn of_fault(fault: Option<Fault>) -> Self {
        let (script, end) = script::calm_script(begin());
        let (odds, limits) = (Odds::default(), Limits::default());
        let knobs = Knobs::DEFAULT;
        Self { seed: 0, odds, mode: Mode::Swept, limits, knobs, breakage: None, fault, calm: false, script, end }
    }

    /// Everything that can be left out, the actions last.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mode = (self.mode != Mode::Swept).then_some(Part::Mode);
        let limits = (self.limits != Limits::default()).then_some(Part::Limits);
        let actions = (0..self.script.len()).filter(|i| !self.is_needed(self.script[*i])).map(Part::Action);
        let knobs = [
            (self.knobs.sweep_seconds != Knobs::DEFAULT.sweep_seconds, Part::Sweep),
            (self.knobs.period_seconds != Knobs::DEFAULT.period_seconds, Part::Period),
            (self.knobs.token_seconds != Knobs::DEFAULT.token_seconds, Part::Tokens),
            (self.knobs.retention != Knobs::DEFAULT.retention, Part::Retention),
        ];
        let knobs = knobs.into_iter().filter_map(|(turned, part)| turned.then_some(part));
        self.odds.troubles().map(Part::Trouble).chain(mode).chain(limits).chain(knobs).chain(actions).collect()
    }

    /// Returns whether the world needs an action to settle.
    fn is_needed(&self, (at, action): (Timestamp, Action)) -> bool {
        // A user has to make a request after a refusal, which no other event replaces.
        let refusals = || self.script.iter().any(|(_, action)| matches!(action, Action::Refuse(true)));
        at < begin() + MADE_WITHIN || action.takes_back() || matches!(action, Action::Request(_)) && refusals()
    }

    pub(super) fn without(&self, part: Part) -> Self {
        let mut less = self.clone();
        match part {
            Part::Trouble(trouble) => less.odds = less.odds.without(&[trouble]),
            Part::Mode => less.mode = Mode::Swept,
            Part::Limits => less.limits = Limits::default(),
            Part::Sweep => less.knobs.sweep_seconds = Knobs::DEFAULT.sweep_seconds,
            Part::Period => less.knobs.period_seconds = Knobs::DEFAULT.period_seconds,
            Part::Tokens => less.knobs.token_seconds = Knobs::DEFAULT.token_seconds,
            Part::Retention => less.knobs.retention = Knobs::DEFAULT.retention,
            Part::Action(i) => drop(less.script.remove(i)),
        }
        less
    }
}

/// One condition a line.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { odds, mode, limits, knobs, fault, script, .. } = self;
        fault.iter().try_for_each(|fault| writeln!(f, "{fault}"))?;
        odds.troubles().try_for_each(|trouble| writeln!(f, "{trouble:?} in {} of 1000", odds.of(trouble)))?;
        writeln!(f, "{mode:?}, {limits:?}, {knobs:?}")?;
        let mut script = script.clone();
        script.sort_by_key(|(at, _)| *at);
        script.iter().try_for_each(|(at, action)| writeln!(f, "{:9.3} {action:?}", at.duration_since(begin()).as_secs_f64()))
    }
}

/// When every world starts.
fn begin() -> Timestamp {
    World::new(0, Faults::NONE).now()
}

/// The limits on concurrent runs. A third of the seeds have limits; in half of these the namespaces
/// contend for a single slot.
fn limits(dice: &mut Dice, breakage: Option<Breakage>) -> Limits {
    let single = Limits { runs: Some(1), runs_per_namespace: None };
    if matches!(breakage, Some(Breakage::Admissions | Breakage::Turns)) {
        return single;
    }
    let tenants = TENANTS as usize;
    match dice.below(6) {
        0..4 => Limits::default(),
        4 => single,
        _ => Limits { runs: Some(tenants), runs_per_namespace: Some(1 + dice.index(tenants)) },
    }
}
