//! `make model`: the model check of the functions, with larger bounds than the tests have time for.

use std::process::ExitCode;

use clap::Parser;
use driftless_tests::model::{Bounds, Breakage, Case, check};

/// Checks every order of what can happen in small scenarios: without options all of them, with the
/// bounds that it says.
#[derive(Parser)]
struct Arguments {
    /// Only this case: launch, claim, finalize, successor or limit. The other options are its
    /// bounds.
    #[arg(long)]
    case: Option<Case>,
    /// The number of preemptions: other steps while an invocation could continue. Unlimited by
    /// default.
    #[arg(long)]
    preemptions: Option<u8>,
    /// The number of invocations that end before a call.
    #[arg(long, default_value_t = 0)]
    crashes: u8,
    /// The number of messages that are delivered twice.
    #[arg(long, default_value_t = 0)]
    doubles: u8,
    /// The number of tasks that end without a report.
    #[arg(long, default_value_t = 0)]
    kills: u8,
    /// The number of Pulumi operations that fail.
    #[arg(long, default_value_t = 0)]
    failures: u8,
    /// How often ECS forgets a client token.
    #[arg(long, default_value_t = 0)]
    forgets: u8,
    /// How often eleven minutes pass.
    #[arg(long, default_value_t = 0)]
    waits: u8,
    /// Breaks a rule on purpose. The error for any other word lists the rules.
    #[arg(long = "break", value_name = "RULE")]
    breakage: Option<Breakage>,
    /// The maximum number of states.
    #[arg(long, default_value_t = 2_000_000)]
    states: usize,
}

fn main() -> ExitCode {
    let Arguments { case, preemptions, crashes, doubles, kills, failures, forgets, waits, breakage, states } = Arguments::parse();
    let given = Bounds { preemptions, crashes, doubles, kills, failures, forgets, waits };
    let checks = case.map_or_else(larger, |case| vec![(case, given)]);
    let mut exit = ExitCode::SUCCESS;
    for (case, bounds) in checks {
        let report = check(case, bounds, breakage, states);
        println!("{case:?} {bounds}: {report}");
        if report.violation.is_some() {
            exit = ExitCode::FAILURE;
        }
    }
    exit
}

/// Each fault alone, and as many preemptions as time allows.
fn larger() -> Vec<(Case, Bounds)> {
    let all = Bounds::default();
    let one = Bounds { preemptions: Some(1), ..all };
    let none = Bounds { preemptions: Some(0), ..all };
    vec![
        (Case::Launch, all),
        (Case::Launch, Bounds { doubles: 1, ..all }),
        (Case::Launch, Bounds { crashes: 1, ..all }),
        (Case::Launch, Bounds { doubles: 1, crashes: 1, forgets: 1, waits: 2, ..one }),
        (Case::Claim, one),
        (Case::Claim, Bounds { doubles: 1, ..one }),
        (Case::Claim, Bounds { crashes: 1, doubles: 1, ..none }),
        (Case::Limit, one),
        (Case::Limit, Bounds { doubles: 1, ..none }),
        (Case::Limit, Bounds { crashes: 1, ..none }),
        (Case::Limit, Bounds { kills: 1, failures: 1, waits: 3, ..none }),
        (Case::Finalize, Bounds { doubles: 1, ..none }),
        (Case::Finalize, Bounds { kills: 1, waits: 3, ..none }),
        (Case::Finalize, Bounds { failures: 1, waits: 3, ..none }),
        (Case::Successor, Bounds { doubles: 1, ..one }),
        (Case::Successor, Bounds { crashes: 1, ..none }),
        (Case::Successor, Bounds { failures: 1, kills: 1, waits: 4, ..none }),
    ]
}
