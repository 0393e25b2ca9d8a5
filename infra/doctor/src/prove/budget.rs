//! What a proof costs: at most, before it starts, and so far, while it runs. Prices and assumptions are those of [`crate::cost`].

use driftless_core::DefaultSize;

use crate::cost::{HOURS, Load};

/// How long an installation is there for a proof, in hours: an upper bound of deploying, all scenarios and removing.
pub const HOURS_AT_MOST: f64 = 3.0;
/// A run that failed is repeated; each attempt pulls its image.
const ATTEMPTS: f64 = 2.0;
/// Stacks of the scenarios `scoping`, `kill` and `spot`.
const SINGLE_STACKS: u32 = 3;

/// Where tasks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    /// Behind a NAT gateway, which charges for each GB.
    Nat,
    /// With a public address.
    Public,
}

/// What the price of a run depends on.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    /// Where tasks run.
    pub network: Network,
    /// MiB of the images that a task pulls.
    pub image_mib: f64,
    /// Whether images pass no NAT gateway.
    pub ecr: bool,
}

impl Price {
    /// USD for so many runs of so many minutes each, in an installation that is there for these hours.
    #[must_use]
    pub fn of(&self, runs: f64, minutes: f64, hours: f64) -> f64 {
        let load = Load {
            stacks: 0.0,
            // All runs of a month.
            runs_per_day: runs * 24.0 / HOURS,
            minutes,
            clusters: 1.0,
            size: DefaultSize::default(),
            image_mib: self.image_mib,
            install_mib: 0.0,
            nat_gateways: 0.0,
            ecr: self.ecr,
        };
        let [nat, public] = load.bill().within(hours);
        if self.network == Network::Nat { nat } else { public }
    }

    /// USD that a proof costs at most: every run takes as long as it may, and every run is repeated once.
    #[must_use]
    pub fn at_most(&self, runs: u32, deadline_minutes: f64) -> f64 {
        self.of(f64::from(runs) * ATTEMPTS, deadline_minutes / ATTEMPTS, HOURS_AT_MOST)
    }
}

/// The runs of a proof; `destroys` if each Stack is destroyed in the end.
#[must_use]
pub fn runs(tasks: u32, stacks: u32, destroys: bool) -> u32 {
    // The run that is killed is followed by another.
    let all = tasks.saturating_add(stacks).saturating_add(SINGLE_STACKS);
    all.saturating_mul(if destroys { 2 } else { 1 }).saturating_add(1)
}

/// Refuses a proof that costs more than it may; else what it costs at most.
pub fn check(most: f64, budget: f64) -> Result<f64, String> {
    if most <= budget {
        return Ok(most);
    }
    Err(format!(
        "this proof costs up to ${most:.2}, and BUDGET_USD is {budget:.2}; lower STACKS or TASKS, use public subnets (NETWORK=public), a \
         smaller image (DefaultImage, IMAGE_MIB=…; ECR=1 if it is in ECR behind an S3 endpoint), or raise BUDGET_USD"
    ))
}
