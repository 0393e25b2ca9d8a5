//! `make cost`: prints what an installation costs a month.

use clap::Parser;
use driftless_doctor::cost::Load;

/// What an installation costs a month in us-east-1; docs/cost.md says what is assumed.
#[derive(Debug, Parser)]
struct Arguments {
    /// Stacks.
    #[arg(long, env = "STACKS", default_value = "100")]
    stacks: f64,
    /// Runs a day, of all Stacks together.
    #[arg(long, env = "RUNS_PER_DAY", default_value = "50")]
    runs_per_day: f64,
    /// How long a run takes.
    #[arg(long, env = "MINUTES", default_value = "3")]
    minutes: f64,
    /// Clusters.
    #[arg(long, default_value = "1")]
    clusters: f64,
}

fn main() {
    let Arguments { stacks, runs_per_day, minutes, clusters } = Arguments::parse();
    println!("{}", Load { stacks, runs_per_day, minutes, clusters }.bill());
}
