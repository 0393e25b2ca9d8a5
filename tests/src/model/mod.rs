//! The model check: the real handlers over ports in memory, with every order of their calls.
//!
//! A state is what the bucket, the cluster and ECS hold, the messages that wait, and the invocations in flight, each with the answers that it
//! got so far. A handler is a function of its message and of those answers, so that a state is continued by running its handlers again
//! over the answers. Whatever can happen, happens in some path: a message is delivered, an invocation makes its next call or ends for
//! good, a task goes on or is killed, a user acts, the sweep comes. States that are equal are continued once.
//!
//! What is checked in each state are the rules of `ledger.rs`. And from each state there is a way to rest (`Scenario::unrest`): no
//! claim or slot stays held, no Update unfinished, no Stack in between.
//!
//! What the model leaves out, besides the numbers of [`Bounds`]:
//!
//! - Two invocations are in flight at most, equal messages in a queue are one, and the count of hops is not carried on.
//! - A message with a delay of more than five seconds is a timer, and is not delivered: the sweep stands for it. The sweep comes when
//!   there is nothing else to do, and hints all that is not at rest. Time passes only when the sweep changes nothing
//!   and all is not at rest.
//! - No call fails but by a conflict, and no answer is lost.
//! - Where preemptions are bounded, an invocation goes on to its end once they are used up, and no state in between is looked at.
//! - A call whose answer nothing in the scenario changes, and which changes nothing, is no step of its own (`Probe::free`): it commutes with every
//!   other. Events, locks of dead runs, logs, and the number of resources for the progress lead to no decision, and are left out.

mod handlers;
mod ledger;
mod outside;
mod ports;
mod scenario;
mod search;
mod state;

use std::{fmt, str::FromStr};

pub use search::{Report, check};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A Stack's Update alone, from launch to record: with two launches at once, or two recorders.
    Launch,
    /// A Stack's Update and one that a user made contend for the claim of one Pulumi stack, from launch to record.
    Claim,
    /// A Stack with `destroyOnFinalize` is deleted while its first run starts, runs or is recorded.
    Finalize,
    /// A Stack is edited while reconciliations take in its first run.
    Successor,
    /// Two Updates of two Pulumi stacks, with a limit of one run.
    Limit,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Launch, Self::Claim, Self::Finalize, Self::Successor, Self::Limit];
}

/// How often each of these may happen in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Something else happens while the invocation that went on last could go on. `None` for no bound.
    pub preemptions: Option<u8>,
    /// An invocation ends before a call, for good.
    pub crashes: u8,
    /// A message is delivered twice.
    pub doubles: u8,
    /// A task ends without a word.
    pub kills: u8,
    /// Pulumi fails.
    pub failures: u8,
    /// ECS forgets a client token.
    pub forgets: u8,
    /// Eleven minutes pass without any event.
    pub waits: u8,
}

/// A rule that is broken on purpose, outside the functions, to see that the check would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The API server creates a Lease that is there already.
    Claim,
    /// The bucket writes `outcome` although it is there.
    Outcome,
    /// The bucket says that `owner` was written although it was there, and ECS forgets every client token.
    Owner,
    /// The API server writes what runs are admitted whatever version was read.
    Admissions,
    /// The bucket writes the outcome of a run that failed as if it had never begun.
    Began,
    /// The API server creates an Update that is there already, as another one.
    Creation,
    /// A message whose handler crashed is lost, and there is no sweep.
    Redelivery,
    /// The API server says that a Lease was deleted, and keeps it.
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

/// The one of that name.
fn named<T: Copy + fmt::Debug>(all: &[T], word: &str) -> Result<T, String> {
    let found = all.iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(word));
    found.copied().ok_or_else(|| format!("{word:?} is none of {all:?}"))
}
