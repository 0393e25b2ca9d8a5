//! The model check: the real handlers with ports in memory, for every order of their calls.
//!
//! A state consists of the bucket, the cluster and ECS, the waiting messages, and the invocations
//! in flight, each with its answers so far. A handler is a function of its message and of those
//! answers, so a state is continued by running its handlers again with the answers. Everything that
//! can happen does so on some path: a message is delivered, an invocation makes its next call or
//! ends for good, a task continues or is killed, a user acts, the sweep comes. Equal states are
//! continued once.
//!
//! Each state is checked against the rules of `ledger.rs`. In addition, from each state there is a
//! path to rest (`Scenario::unrest`): no claim or slot stays held, no Update unfinished, no Stack
//! between two states.
//!
//! The model leaves out, besides the numbers of [`Bounds`]:
//!
//! - At most two invocations are in flight, equal messages in a queue are one, and hops are not
//!   counted.
//! - A message with a delay of more than five seconds is a timer and is not delivered: the sweep
//!   replaces it. The sweep comes when nothing else can happen, and hints everything that is not at
//!   rest. Time passes only when a sweep without any effect leaves the world short of rest.
//! - Calls only fail by a conflict, and no answer is lost.
//! - If preemptions are bounded, an invocation continues to its end once they are used up, and no
//!   state in between is checked.
//! - A call whose answer nothing in the scenario changes, and which changes nothing, is no step of
//!   its own (`Probe::free`): it commutes with every other. Events, locks of dead runs, logs, and
//!   the number of resources for the progress lead to no decision, and are left out.

mod handlers;
mod ledger;
mod objects;
mod outside;
mod ports;
mod scenario;
mod search;
mod state;
mod steps;

use std::{fmt, str::FromStr};

pub use search::{Report, check};

/// The cases of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A Stack's Update alone, from launch to record: with two concurrent launches, or two
    /// recorders.
    Launch,
    /// A Stack's Update and a user's contend for the claim of one Pulumi stack, from launch to
    /// record.
    Claim,
    /// A Stack with `destroyOnFinalize` is deleted while its first run starts, runs or is recorded.
    Finalize,
    /// A Stack is edited while reconciliations record its first run.
    Successor,
    /// Two Updates of two Pulumi stacks, with a limit of one run.
    Limit,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Launch, Self::Claim, Self::Finalize, Self::Successor, Self::Limit];
}

/// How often each of these may happen on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Something else happens while the last invocation could continue. `None` for no bound.
    pub preemptions: Option<u8>,
    /// An invocation ends for good before a call.
    pub crashes: u8,
    /// A message is delivered twice.
    pub doubles: u8,
    /// A task ends without a report.
    pub kills: u8,
    /// Pulumi fails.
    pub failures: u8,
    /// ECS forgets a client token.
    pub forgets: u8,
    /// Eleven minutes pass without an event.
    pub waits: u8,
}

/// A rule that is broken on purpose, outside the functions, to test the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The API server creates a Lease that exists already.
    Claim,
    /// The bucket overwrites an existing `outcome`.
    Outcome,
    /// The bucket reports that an existing `owner` was written, and ECS forgets every client token.
    Owner,
    /// The API server writes the admissions whatever version was read.
    Admissions,
    /// The bucket writes the outcome of a failed run as if it had never started.
    Began,
    /// The API server creates an Update that exists already, as another one.
    Creation,
    /// A message whose handler crashed is lost, and there is no sweep.
    Redelivery,
    /// The API server reports that a Lease was deleted, and keeps it.
    Release,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Claim, Self::Outcome, Self::Owner, Self::Admissions, Self::Began, Self::Creation, Self::Redelivery, Self::Release];
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preemptions, crashes, doubles, kills, failures, forgets, waits } = self;
        let preemptions = preemptions.map_or_else(|| "any".into(), |preemptions| preemptions.to_string());
        write!(f, "preemptions {preemptions}, crashes {crashes}, doubles {doubles}, ")?;
        write!(f, "kills {kills}, failures {failures}, forgets {forgets}, waits {waits}")
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        named(&Self::ALL, word)
    }
}

impl FromStr for Breakage {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        named(&Self::ALL, word)
    }
}

/// The one with that name.
fn named<T: Copy + fmt::Debug>(all: &[T], word: &str) -> Result<T, String> {
    let found = all.iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(word));
    found.copied().ok_or_else(|| format!("{word:?} is none of {all:?}"))
}
