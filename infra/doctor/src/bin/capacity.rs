//! `make capacity`: prints what a load needs of an installation.

use clap::Parser;
use driftless_doctor::command::Capacity;

/// Prints what a load needs of an installation, and what limits it first; docs/scale.md has the
/// assumptions.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    capacity: Capacity,
}

fn main() {
    println!("{}", Arguments::parse().capacity.demand());
}
