//! The simulation: the real handlers with ports in memory, in one thread, with a clock that moves
//! when no other step is possible, and with every choice drawn from a seed.
//!
//! Invocations overlap: at each call of a port another invocation may run first, this one may be
//! delayed for seconds or end for good (the message is delivered again), and the call may fail or
//! lose its answer. The world outside consists of users who edit, request, push and delete, a
//! forwarder and a webhook whose hints may be late or lost, a queue that doubles, drops and delays,
//! an ECS that forgets, and runners that are slow, fail or are killed. After a while the
//! disturbance ends, the sweep continues, and everything has to settle. In some seeds no message is
//! lost, no function fails, and there is no sweep; in some, tasks of one namespace still fail to
//! start for two hours, in which the others have to settle (`conditions.rs`).
//!
//! Two more namespaces have a Stack each: a quiet one, and one whose tenant attacks the quiet one
//! with everything that the API server and IAM let a tenant write (`hostile.rs`). In some seeds
//! Stacks are guarded, and users approve their plans (`approvals.rs`).
//!
//! `ledger.rs` lists the checks. A run is a function of its seed only. Each actor draws each kind
//! of choice from its own stream (`chances.rs`), so that a seed means nearly the same after a
//! function makes one more call.

mod approvals;
mod breakage;
mod chances;
mod comparison;
mod conditions;
mod facts;
mod failure;
mod fault;
mod functions;
mod hostile;
mod knobs;
mod latency;
mod ledger;
mod machine;
mod objects;
mod outside;
mod ports;
mod rest;
mod runner;
mod script;
mod stats;
mod tenants;
mod turns;

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

pub use breakage::Breakage;
use comparison::run;
use conditions::Conditions;
pub use failure::{Case, Failure};
pub use fault::{Fault, FaultKind};
pub use stats::{Histogram, Stats};

/// Simulates one seed.
///
/// # Errors
/// The first broken invariant.
pub fn simulate(seed: u64, breakage: Option<Breakage>) -> Result<Stats, String> {
    run(&Case::Seed(seed).conditions(breakage), None, false).result()
}

/// Simulates one seed, and returns all events.
#[must_use]
pub fn trace(seed: u64, breakage: Option<Breakage>) -> Vec<String> {
    run(&Case::Seed(seed).conditions(breakage), None, true).trace
}

/// The results of many cases.
#[derive(Debug, Default)]
pub struct Report {
    /// The statistics of the successful cases.
    pub stats: Stats,
    /// The failed cases, with the first broken invariant of each.
    pub failures: Vec<(Case, String)>,
    breakage: Option<Breakage>,
    /// The required final state of a case.
    expected: Option<String>,
}

impl Report {
    /// Simulates cases, as many at a time as there are processors.
    fn of(cases: impl Iterator<Item = Case> + Send, breakage: Option<Breakage>, expected: Option<String>) -> Self {
        let simulate = |case: Case| (case, run(&case.conditions(breakage), expected.as_deref(), false).result());
        let results = in_parallel(cases, simulate);
        let mut report = Self { breakage, expected, ..Self::default() };
        for (case, result) in results {
            match result {
                Ok(stats) => report.stats += stats,
                Err(violation) => report.failures.push((case, violation)),
            }
        }
        report.failures.sort_by_key(|(case, _)| format!("{case:?}"));
        report
    }

    /// Explains the first failures, which takes up to hundreds of runs for each.
    pub fn explain(&self, most: usize) -> impl Iterator<Item = Failure> {
        let first = self.failures.iter().take(most);
        first.filter_map(|(case, _)| Failure::of(*case, self.breakage, self.expected.as_deref()))
    }
}

/// Simulates many seeds. See [`simulate`].
#[must_use]
pub fn simulate_all(seeds: impl Iterator<Item = u64> + Send, breakage: Option<Breakage>) -> Report {
    Report::of(seeds.map(Case::Seed), breakage, None)
}

/// Simulates seeds without troubles, in which changes have to run in time.
#[must_use]
pub fn simulate_calm(seeds: impl Iterator<Item = u64> + Send) -> Report {
    Report::of(seeds.map(Case::Calm), None, None)
}

/// Simulates a short calm script with each of the `faults`. Its final state has to be the same as
/// without a fault, except for the names of runs and the number of tries. Without `faults`, it uses
/// every single fault, or a sample of them. Also returns how many were simulated.
#[must_use]
pub fn single_faults(faults: Option<Vec<Fault>>, one_of: usize) -> (usize, Report) {
    let calm = run(&Conditions::of_fault(None), None, false);
    if let Some(violation) = calm.violation {
        return (0, Report { failures: vec![(Case::Fault(None), violation)], ..Report::default() });
    }
    let number = |kind| if kind == FaultKind::Duplicate { calm.stats.messages } else { calm.stats.calls };
    let all = || FaultKind::ALL.into_iter().flat_map(|kind| (0..number(kind)).map(move |at| Fault { kind, at }));
    let faults = faults.unwrap_or_else(|| all().step_by(one_of).collect());
    let tried = faults.len();
    let cases = faults.into_iter().map(|fault| Case::Fault(Some(fault)));
    (tried, Report::of(cases, None, Some(calm.rest)))
}

/// Works on items, as many at a time as there are processors. The results have no order.
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
