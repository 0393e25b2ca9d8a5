//! `make sim`: the simulation over many seeds.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use clap::Parser;
use driftless_tests::sim::{Breakage, Failure, Stats, simulate};

/// As many failing seeds are named.
const NAMED: usize = 10;

/// Simulates the functions over ports in memory, with everything that can go wrong going wrong.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed: `--from SEED --seeds 1` replays one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Breaks a rule on purpose: claims, owner, outcome, versions or redelivery.
    #[arg(long = "break", value_name = "RULE")]
    breakage: Option<Breakage>,
    /// How many of the last events of a failing seed are shown.
    #[arg(long, default_value_t = 150)]
    events: usize,
}

#[derive(Default)]
struct Found {
    stats: Stats,
    failures: Vec<Failure>,
}

#[expect(clippy::disallowed_methods, reason = "this measures itself")]
fn main() -> ExitCode {
    let Arguments { seeds, from, breakage, events } = Arguments::parse();
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let found = Mutex::new(Found::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= seeds {
                        break;
                    }
                    let simulated = simulate(from + i, breakage, events);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    match simulated {
                        Ok(stats) => found.stats += stats,
                        Err(failure) => found.failures.push(*failure),
                    }
                }
            });
        }
    });
    let Found { stats, mut failures } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let seconds = begin.elapsed().as_secs_f64();
    println!("{seeds} seeds in {seconds:.1} s ({:.0} seeds/s), {} virtual hours", seeds as f64 / seconds, stats.seconds / 3600);
    println!(
        "{} invocations; injected: {} crashes, {} duplicates, {} drops, {} delays",
        stats.invocations, stats.crashes, stats.duplicates, stats.drops, stats.delays
    );
    println!("{} operations, of which {} failed or were killed", stats.operations, stats.failures);
    failures.sort_by_key(|failure| failure.seed);
    let Some(first) = failures.first() else {
        println!("no invariant is broken");
        return ExitCode::SUCCESS;
    };
    println!("\nseed {}:\n{first}\n", first.seed);
    println!("{} seeds fail:", failures.len());
    for Failure { seed, violation, .. } in failures.iter().take(NAMED) {
        println!("  {seed}: {violation:.300}");
    }
    println!("replay one with --from SEED --seeds 1");
    ExitCode::FAILURE
}
