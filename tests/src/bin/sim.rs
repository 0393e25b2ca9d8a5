//! `make sim`: the simulation over many seeds.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use driftless_tests::sim::{Breakage, Failure, Report, simulate_all, single_faults};

/// As many failing seeds are named.
const NAMED: usize = 10;

/// Simulates the functions over ports in memory, with everything that can go wrong going wrong.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u32,
    /// The first seed: `--from SEED --seeds 1` replays one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Breaks a rule on purpose. The error for any other word lists the rules.
    #[arg(long = "break", value_name = "RULE")]
    breakage: Option<Breakage>,
    /// Simulates a short calm script with each single fault instead of seeds.
    #[arg(long)]
    faults: bool,
    /// How many of the last events of a failing seed are shown.
    #[arg(long, default_value_t = 150)]
    events: usize,
}

fn main() -> ExitCode {
    let Arguments { seeds, from, breakage, faults, events } = Arguments::parse();
    let begin = Instant::now();
    if faults {
        let (tried, Report { stats, failures }) = single_faults(1, events);
        let (seconds, injected) = (begin.elapsed().as_secs_f64(), stats.injected);
        println!("{tried} single faults in {seconds:.1} s, {injected} with an effect; {} break an invariant", failures.len());
        failures.iter().take(NAMED).for_each(|failure| println!("\n{failure}"));
        return if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Report { stats, failures } = simulate_all(from..from.saturating_add(seeds.into()), breakage, events);
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds in {seconds:.1} s: {:.0} seeds/s, {} virtual hours",
        f64::from(seeds) / seconds,
        stats.seconds / 3600
    );
    println!(
        "{} invocations; injected: {} crashes, {} duplicates, {} drops, {} delays",
        stats.invocations, stats.crashes, stats.duplicates, stats.drops, stats.delays
    );
    println!(
        "{} operations, {} of them by hand and {} that look for drift; {} failed or were killed, {} were told to stop, {} lost their capacity, {} tasks failed to start; {} trees deleted",
        stats.operations,
        stats.by_hand,
        stats.checks,
        stats.failures,
        stats.stops,
        stats.reclaims,
        stats.failed_starts,
        stats.collections
    );
    println!(
        "{} writes of a hostile tenant, {} of them to Workspaces and {} to annotations and labels; {} of its tasks ended only because they were stopped; the quiet Stack waited {} times for a slot, and its last change was run within {} s",
        stats.attacks, stats.workspaces, stats.annotations, stats.rogues, stats.queued, stats.quiet_delay
    );
    println!(
        "{} namespaces terminated, {} operations for what was in them; at most {} looks while all was at rest",
        stats.terminations, stats.elsewhere, stats.looks_at_rest
    );
    let Some(first) = failures.first() else {
        println!("no invariant is broken");
        return ExitCode::SUCCESS;
    };
    println!("\nthe last events of seed {}:\n{first}\n\n{} seeds break an invariant:", first.seed, failures.len());
    for Failure { seed, violation, .. } in failures.iter().take(NAMED) {
        println!("  {seed}: {violation:.200}");
    }
    println!("replay one with --from SEED --seeds 1");
    ExitCode::FAILURE
}
