//! `make sim`: the simulation over many seeds.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use driftless_tests::sim::{Breakage, Fault, Report, simulate_all, simulate_calm, single_faults};

/// The number of failures that are explained.
const EXPLAINED: usize = 3;
/// The number of further failures that are named.
const NAMED: usize = 10;

/// Simulates the functions with ports in memory and with faults of every kind.
#[derive(Parser)]
struct Arguments {
    /// The number of seeds.
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
    /// Simulates the seeds without troubles, in which changes have to run in time.
    #[arg(long, conflicts_with = "breakage")]
    calm: bool,
    /// Only this fault, such as `CrashAfter:7`.
    #[arg(long, requires = "faults")]
    fault: Option<Fault>,
}

fn main() -> ExitCode {
    let Arguments { seeds, from, breakage, faults, calm, fault } = Arguments::parse();
    let begin = Instant::now();
    if faults {
        let (tried, report) = single_faults(fault.map(|fault| vec![fault]), 1);
        let (seconds, injected) = (begin.elapsed().as_secs_f64(), report.stats.injected);
        println!("{tried} single faults in {seconds:.1} s, {injected} with an effect");
        return end(&report);
    }
    let range = from..from.saturating_add(seeds.into());
    let report = if calm { simulate_calm(range) } else { simulate_all(range, breakage) };
    let (seconds, stats) = (begin.elapsed().as_secs_f64(), &report.stats);
    println!(
        "{seeds} seeds in {seconds:.1} s: {:.1} seeds/s, {} virtual hours",
        f64::from(seeds) / seconds,
        stats.seconds / 3600
    );
    println!(
        "{} invocations; injected: {} crashes, {} failed calls, {} duplicates, {} drops, {} delays",
        stats.invocations, stats.crashes, stats.injected, stats.duplicates, stats.drops, stats.delays
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
    println!(
        "a run of a change begins after {}; its Stack is Ready after {}; {} waits for a slot, {} tokens renewed",
        stats.begun, stats.ready, stats.waits, stats.renewals
    );
    println!(
        "{} plans of guarded Stacks; {} approvals; {} plans applied, {} stale when they were to be applied",
        stats.plans, stats.approvals, stats.applied, stats.stale
    );
    end(&report)
}

/// Explains the first failures, and names some more.
fn end(report: &Report) -> ExitCode {
    if report.failures.is_empty() {
        println!("no invariant is broken");
        return ExitCode::SUCCESS;
    }
    for (case, violation) in report.failures.iter().take(NAMED) {
        println!("{case:?}: {violation:.200}");
    }
    println!("{} break an invariant; the first ones:", report.failures.len());
    for failure in report.explain(EXPLAINED) {
        println!("\n{failure}");
        if let Err(error) = failure.write() {
            println!("its state cannot be written: {error}");
        }
    }
    ExitCode::FAILURE
}
