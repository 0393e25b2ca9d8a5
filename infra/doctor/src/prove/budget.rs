//! What a proof costs: the maximum before it starts, and the costs so far while it runs. Prices and assumptions are those of
//! [`crate::cost`].

use driftless_core::DefaultSize;

use crate::cost::{HOURS, Load};

/// The maximum lifetime of an installation for a proof, in hours: deployment, all scenarios and removal.
pub const HOURS_AT_MOST: f64 = 3.0;
/// A failed run is repeated once; each attempt pulls its image.
const ATTEMPTS: f64 = 2.0;
/// Stacks of the scenarios `scoping`, `kill` and `spot`.
const SINGLE_STACKS: u32 = 3;

/// The network of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    /// Behind a NAT gateway, which charges for each GB.
    Nat,
    /// With a public address.
    Public,
}

/// The factors of the price of a run.
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
    /// USD for this many runs of this many minutes each, in an installation that exists for these hours.
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
            cache_misses: 0.0,
            cache_mib: 0.0,
            nat_gateways: 0.0,
            ecr: self.ecr,
            s3_endpoint: false,
        };
        let [nat, public] = load.bill().within(hours);
        if self.network == Network::Nat { nat } else { public }
    }

    /// The maximum cost of a proof in USD: every run takes as long as it may, and is repeated once.
    #[must_use]
    pub fn at_most(&self, runs: u32, deadline_minutes: f64) -> f64 {
        self.of(f64::from(runs) * ATTEMPTS, deadline_minutes / ATTEMPTS, HOURS_AT_MOST)
    }
}

/// The runs of a proof; `destroys` if each Stack is destroyed at the end.
#[must_use]
pub fn runs(tasks: u32, stacks: u32, destroys: bool) -> u32 {
    // The killed run is followed by another.
    let all = tasks.saturating_add(stacks).saturating_add(SINGLE_STACKS);
    all.saturating_mul(if destroys { 2 } else { 1 }).saturating_add(1)
}

/// Refuses a proof above its budget; else returns its maximum cost.
pub fn check(most: f64, budget: f64) -> Result<f64, String> {
    if most <= budget {
        return Ok(most);
    }
    Err(format!(
        "this proof costs up to ${most:.2}, and BUDGET_USD is {budget:.2}; lower STACKS or TASKS, use public subnets (NETWORK=public), a \
         smaller image (RuntimeImages, IMAGE_MIB=…; ECR=1 if it is in ECR behind an S3 endpoint), or raise BUDGET_USD"
    ))
}
