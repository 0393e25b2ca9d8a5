//! The simulation: the real handlers over ports in memory, in one thread, on a clock that moves when nothing else can, with every
//! choice drawn from a seed.
//!
//! Invocations overlap: each call of a port is a place where another invocation may go on first, where this one may be held up for
//! seconds, where it may end for good (the message is delivered again), and where the call may fail or lose its answer. Around them
//! are users who edit, ask, push and delete, a forwarder and a webhook whose hints may be late or lost, a queue that doubles, drops
//! and delays, an ECS that forgets, and runners that are slow, fail or are killed. After a while the disturbance ends, the sweep goes
//! on, and everything has to settle. In some seeds no message is lost, no function fails, and there is no sweep; in some, tasks of one
//! namespace still fail to start for two hours, in which the others have to settle ([`Mode`]).
//!
//! Two more namespaces have a Stack each: a quiet one, and one whose tenant attacks the quiet one with all that the API server and IAM let a
//! tenant write (`hostile.rs`).
//!
//! What is checked is listed in `ledger.rs`. A run is a function of its seed and nothing else (`rand_chacha`'s `ChaCha8Rng`, one stream per
//! purpose), so that a failure is replayed by its seed.

mod hostile;
mod ledger;
mod machine;
mod outside;
mod ports;
mod rest;
mod runner;

use machine::Machine;
use std::{
    fmt,
    ops::{AddAssign, Range},
    str::FromStr,
    sync::{Mutex, PoisonError},
    thread,
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng as _, SeedableRng as _},
};

/// A rule that is broken on purpose, outside the functions, to see that the checks would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The API server creates a Lease that is there already.
    Claims,
    /// The bucket says that `owner` was written although it was there.
    Owner,
    /// The bucket writes `outcome` although it is there.
    Outcome,
    /// The API server writes a Stack's status whatever version was read.
    Versions,
    /// A message whose handler crashed or failed is lost, and there is no sweep.
    Redelivery,
    /// The API server shows the fetcher no Updates, so that nothing seems to name a tree.
    Names,
    /// The API server writes what runs are admitted whatever version was read.
    Admissions,
    /// Every launch asks ECS with the first client token, also after ECS refused it.
    Attempts,
    /// The API server reads the Secret of the quiet namespace, whatever namespace is asked for.
    Secrets,
    /// The bucket keeps the sealed inputs of all Stacks in one object of the quiet namespace.
    Seals,
    /// Queues lose every message about the quiet namespace.
    Fairness,
    /// ECS accepts the recorder's requests to stop a task and does nothing.
    Stops,
    /// The API server shows the admissions without the time at which each namespace last got a slot.
    Turns,
    /// The API server writes the Stack's current generation into `lastUpdate`, as if that had been run.
    Generations,
    /// The API server writes the first failure that is counted as the last one that is tried again.
    Failures,
    /// The bucket writes the outcome of a run that reported nothing without the time at which it began.
    Began,
    /// The API server adds the namespace's Secret to the note of each Event.
    Leaks,
    /// A queue has a hint of the quiet Stack every two seconds.
    Loops,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Claims,
        Self::Owner,
        Self::Outcome,
        Self::Versions,
        Self::Redelivery,
        Self::Names,
        Self::Admissions,
        Self::Attempts,
        Self::Secrets,
        Self::Seals,
        Self::Fairness,
        Self::Stops,
        Self::Turns,
        Self::Generations,
        Self::Failures,
        Self::Began,
        Self::Leaks,
        Self::Loops,
    ];

    /// How the violation begins that has to tell of it.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Claims | Self::Admissions => "1:",
            Self::Generations => "2:",
            Self::Redelivery | Self::Attempts => "2, 8:",
            Self::Names => "3:",
            Self::Owner | Self::Outcome | Self::Versions => "5:",
            Self::Loops => "7:",
            Self::Began => "8:",
            Self::Failures => "10:",
            Self::Secrets | Self::Seals | Self::Leaks => "S1",
            Self::Stops => "S3",
            Self::Fairness | Self::Turns => "S9",
        }
    }
}

impl FromStr for Breakage {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.map(|breakage| format!("{breakage:?}").to_lowercase());
        let found = known.iter().position(|known| known == word);
        found.map(|i| Self::ALL[i]).ok_or_else(|| format!("{word:?} is none of {}", known.join(", ")))
    }
}

/// The one thing that goes wrong in a run that is calm otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// At which call of a port, or with which message, counted from 0.
    pub at: u64,
}

/// What can go wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The invocation ends before the call.
    CrashBefore,
    /// The invocation ends after the call.
    CrashAfter,
    /// The call fails and has no effect.
    Transient,
    /// The call fails and has its effect.
    LostAnswer,
    /// The message is delivered twice.
    Duplicate,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::CrashBefore, Self::CrashAfter, Self::Transient, Self::LostAnswer, Self::Duplicate];
}

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Invocations of handlers.
    pub invocations: u64,
    /// Invocations that ended before a call of a port.
    pub crashes: u64,
    /// Messages that were delivered once more.
    pub duplicates: u64,
    /// Messages and events that never arrived.
    pub drops: u64,
    /// Messages that were held up.
    pub delays: u64,
    /// Operations that runners began.
    pub operations: u64,
    /// Operations of Updates that were made by hand.
    pub by_hand: u64,
    /// Operations that only looked for drift.
    pub checks: u64,
    /// Operations that failed or were killed.
    pub failures: u64,
    /// Operations that were told to stop.
    pub stops: u64,
    /// Tasks whose capacity Spot took back.
    pub reclaims: u64,
    /// Tasks that failed to start.
    pub failed_starts: u64,
    /// Namespaces that were terminated.
    pub terminations: u64,
    /// Operations for Stacks whose namespace was.
    pub elsewhere: u64,
    /// Trees that were deleted.
    pub collections: u64,
    /// Forged writes of the hostile tenant that changed something.
    pub attacks: u64,
    /// Those that changed a Workspace.
    pub workspaces: u64,
    /// Those that changed annotations or labels.
    pub annotations: u64,
    /// Tasks of the hostile tenant that end only if they are stopped.
    pub rogues: u64,
    /// Waits of the quiet Stack for a slot.
    pub queued: u64,
    /// The longest time, in seconds, from the last change of the quiet Stack to its run.
    pub quiet_delay: u64,
    /// The most looks at a world at rest.
    pub looks_at_rest: u64,
    /// Single faults that had an effect.
    pub injected: u64,
    /// Calls of ports.
    pub calls: u64,
    /// Messages that were received.
    pub messages: u64,
    /// Seeds without a sweep.
    pub unswept: u64,
    /// Tasks that failed to start in an outage.
    pub outages: u64,
    /// Virtual seconds.
    pub seconds: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.invocations += other.invocations;
        self.crashes += other.crashes;
        self.duplicates += other.duplicates;
        self.drops += other.drops;
        self.delays += other.delays;
        self.operations += other.operations;
        self.by_hand += other.by_hand;
        self.checks += other.checks;
        self.failures += other.failures;
        self.stops += other.stops;
        self.reclaims += other.reclaims;
        self.failed_starts += other.failed_starts;
        self.terminations += other.terminations;
        self.elsewhere += other.elsewhere;
        self.collections += other.collections;
        self.attacks += other.attacks;
        self.workspaces += other.workspaces;
        self.annotations += other.annotations;
        self.rogues += other.rogues;
        self.queued += other.queued;
        self.quiet_delay = self.quiet_delay.max(other.quiet_delay);
        self.looks_at_rest = self.looks_at_rest.max(other.looks_at_rest);
        self.injected += other.injected;
        self.calls += other.calls;
        self.messages += other.messages;
        self.unswept += other.unswept;
        self.outages += other.outages;
        self.seconds += other.seconds;
    }
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it.
    pub seed: u64,
    /// The fault that shows it, if the rest was calm.
    pub fault: Option<Fault>,
    /// Which invariant, by its number in the design, and how it is broken.
    pub violation: String,
    /// The last events before.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in &self.trace {
            writeln!(f, "  {event}")?;
        }
        match self.fault {
            Some(Fault { kind, at }) => write!(f, "{kind:?} at {at} breaks invariant {}", self.violation),
            None => write!(f, "seed {} breaks invariant {}", self.seed, self.violation),
        }
    }
}

/// Simulates one seed.
///
/// # Errors
/// The first broken invariant, with the last `events` that led to it.
pub fn simulate(seed: u64, breakage: Option<Breakage>, events: usize) -> Result<Stats, Box<Failure>> {
    Machine::new(seed, breakage, 0).run().map(|(stats, _)| stats).or_else(|_| {
        // Once more, with a trace: it costs more than the run.
        Machine::new(seed, breakage, events).run().map(|(stats, _)| stats)
    })
}

/// Simulates a short calm script with one fault, or with none. At rest the world has to equal `expected`, what a run came to; the names of
/// runs and the number of tries aside.
///
/// # Errors
/// The first broken invariant, with the last `events` that led to it.
pub fn simulate_fault(fault: Option<Fault>, expected: Option<&str>, events: usize) -> Result<(Stats, String), Box<Failure>> {
    let simulate = |events| {
        let (stats, rest) = Machine::with_fault(fault, events).run()?;
        match expected.filter(|expected| *expected != rest) {
            None => Ok((stats, rest)),
            Some(expected) => {
                let violation = format!("2: it rests at\n{rest}\nand without the fault at\n{expected}");
                Err(Box::new(Failure { seed: 0, fault, violation, trace: Vec::new() }))
            }
        }
    };
    simulate(0).or_else(|_| simulate(events))
}

/// Simulates each single fault, or one of so many, as many at a time as there are processors. Returns how many were simulated, and what came
/// of them. See [`simulate_fault`].
#[must_use]
pub fn single_faults(one_of: usize, events: usize) -> (usize, Report) {
    let (calm, rest) = match simulate_fault(None, None, events) {
        Ok(calm) => calm,
        Err(failure) => return (0, report([Err(failure)])),
    };
    let number = |kind| if kind == FaultKind::Duplicate { calm.messages } else { calm.calls };
    let faults: Vec<Fault> =
        FaultKind::ALL.into_iter().flat_map(|kind| (0..number(kind)).map(move |at| Fault { kind, at })).step_by(one_of).collect();
    let tried = faults.len();
    let simulate = |fault| simulate_fault(Some(fault), Some(&rest), events).map(|(stats, _)| stats);
    (tried, report(in_parallel(faults.into_iter(), simulate)))
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// Of the seeds that went well.
    pub stats: Stats,
    /// Of the others, by seed.
    pub failures: Vec<Failure>,
}

/// Simulates many seeds, as many at a time as there are processors. See [`simulate`].
#[must_use]
pub fn simulate_all(seeds: Range<u64>, breakage: Option<Breakage>, events: usize) -> Report {
    report(in_parallel(seeds, |seed| simulate(seed, breakage, events)))
}

fn report(results: impl IntoIterator<Item = Result<Stats, Box<Failure>>>) -> Report {
    let mut report = Report::default();
    for result in results {
        match result {
            Ok(stats) => report.stats += stats,
            Err(failure) => report.failures.push(*failure),
        }
    }
    report.failures.sort_by_key(|failure| failure.seed);
    report
}

/// Works on items, as many at a time as there are processors. The results are in no order.
fn in_parallel<T, R: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let (items, results) = (Mutex::new(items), Mutex::new(Vec::new()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// How often, in a thousand, something goes wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Odds {
    /// An invocation ends before a call.
    crash: u32,
    /// An invocation is held up before a call.
    stall: u32,
    /// A call fails and has no effect.
    transient: u32,
    /// A call fails and has its effect.
    lost_answer: u32,
    /// A message is delivered twice.
    duplicate: u32,
    /// A message is lost.
    drop: u32,
    /// The forwarder and the webhook are silent.
    deaf: u32,
    /// A message comes later.
    delay: u32,
    /// ECS forgets a client token, or does not know a new task yet; the bucket tells of a write that it was not the first.
    forget: u32,
    /// An artifact cannot be had, or an operation fails.
    fail: u32,
    /// A task is killed.
    kill: u32,
    /// ECS starts no task for want of capacity.
    full: u32,
    /// Not drawn: no task of this namespace starts.
    outage: Option<&'static str>,
}

impl Odds {
    /// Some seeds go well, some badly, and some are wrong in a few ways only.
    fn draw(dice: &mut Dice) -> Self {
        let mut draw = |most: u32| match dice.below(3) {
            0 => 0,
            1 => most / 8,
            _ => most,
        };
        Self {
            crash: draw(40),
            stall: draw(60),
            transient: draw(40),
            lost_answer: draw(40),
            duplicate: draw(400),
            drop: draw(150),
            deaf: draw(1000),
            delay: draw(300),
            forget: draw(300),
            fail: draw(300),
            kill: draw(300),
            full: draw(500),
            outage: None,
        }
    }
}

/// What differs between seeds besides the odds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Messages are lost, and the sweep makes up for it.
    Swept,
    /// No message is lost, no function fails, and there is no sweep: one that fails between its write of `nextLook` and the message for that
    /// look leaves the look to the sweep.
    Unswept,
    /// After the disturbance, tasks of one namespace fail to start for two hours.
    Outage,
}

impl Mode {
    fn draw(dice: &mut Dice) -> Self {
        match dice.below(6) {
            0 => Self::Unswept,
            1 => Self::Outage,
            _ => Self::Swept,
        }
    }
}

/// A source of choices. Each purpose has its own, so that one more choice for one purpose shifts no other.
struct Dice(ChaCha8Rng);

impl Dice {
    fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Self(rng)
    }

    /// From 0 to `below`, exclusive; 0 if `below` is 0.
    fn below(&mut self, below: u32) -> u32 {
        self.0.next_u32().checked_rem(below).unwrap_or(0)
    }

    fn index(&mut self, length: usize) -> usize {
        self.below(u32::try_from(length).unwrap_or(u32::MAX)) as usize
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille
    }

    /// From 0 to so many seconds, in milliseconds.
    fn seconds(&mut self, most: u32) -> jiff::SignedDuration {
        jiff::SignedDuration::from_millis(self.below(most * 1000 + 1).into())
    }

    /// The same, but seldom up to `seldom` seconds.
    fn seconds_or(&mut self, most: u32, seldom: u32) -> jiff::SignedDuration {
        let most = if self.chance(50) { seldom } else { most };
        self.seconds(most)
    }
}
