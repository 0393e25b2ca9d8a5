//! `make model`: the model check of the functions, with larger bounds than the tests have time for.

use std::process::ExitCode;

use clap::Parser;
use driftless_tests::model::{Bounds, Breakage, Case, check};

/// Checks every order of what can happen in small scenarios.
#[derive(Parser)]
struct Arguments {
    /// Only this case.
    #[arg(long)]
    case: Option<String>,
    /// How often another invocation may go on first; without a bound if it is not given.
    #[arg(long)]
    preemptions: Option<u8>,
    #[arg(long, default_value_t = 0)]
    crashes: u8,
    #[arg(long, default_value_t = 0)]
    doubles: u8,
    #[arg(long, default_value_t = 0)]
    kills: u8,
    #[arg(long, default_value_t = 0)]
    failures: u8,
    #[arg(long, default_value_t = 0)]
    forgets: u8,
    #[arg(long, default_value_t = 0)]
    waits: u8,
    #[arg(long = "break")]
    breakage: Option<Breakage>,
    #[arg(long, default_value_t = usize::MAX)]
    states: usize,
}

fn main() -> ExitCode {
    let Arguments { case, preemptions, crashes, doubles, kills, failures, forgets, waits, breakage, states } = Arguments::parse();
    let bounds = Bounds { preemptions, crashes, doubles, kills, failures, forgets, waits };
    let mut exit = ExitCode::SUCCESS;
    for checked in Case::ALL {
        if case.as_ref().is_some_and(|case| *case != format!("{checked:?}").to_lowercase()) {
            continue;
        }
        let report = check(checked, bounds, breakage, states);
        println!("{checked:?} {bounds:?}: {report}");
        if report.violation.is_some() {
            exit = ExitCode::FAILURE;
        }
    }
    exit
}
