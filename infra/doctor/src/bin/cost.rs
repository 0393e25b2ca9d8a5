//! `make cost`: prints what an installation costs a month.

use clap::Parser;
use driftless_doctor::command::Cost;

/// Prints what an installation costs a month in us-east-1; docs/cost.md has the assumptions.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    cost: Cost,
}

fn main() {
    println!("{}", Arguments::parse().cost.bill());
}
