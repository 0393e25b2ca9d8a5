//! What a proof costs: the maximum before it starts, and the costs so far while it runs. Prices and
//! assumptions are those of [`crate::cost`].

use std::time::Duration;

use driftless_core::DefaultSize;

use crate::cost::{HOURS, Load};

/// The maximum lifetime of an installation for a proof, in hours: deployment, all scenarios and
/// removal, while no run waits for a quota.
pub const HOURS_AT_MOST: f64 = 3.0;
/// How long a group of runs that fit into the quota may keep it: a minute for the start, one for
/// the run, one until another run asks ECS again.
const GROUP: Duration = Duration::from_mins(3);
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
    /// The size of a task. Its runs have no size of their own.
    pub size: DefaultSize,
}

impl Price {
    /// USD for this many runs of this many minutes each, in an installation that exists for these
    /// hours.
    #[must_use]
    pub fn of(&self, runs: f64, minutes: f64, hours: f64) -> f64 {
        let load = Load {
            stacks: 0.0,
            // All runs of a month.
            runs_per_day: runs * 24.0 / HOURS,
            minutes,
            clusters: 1.0,
            size: self.size,
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
    /// A run that waits has no task, so `queueing` only prolongs the installation.
    #[must_use]
    pub fn at_most(&self, runs: u32, deadline_minutes: f64, queueing: Duration) -> f64 {
        let hours = HOURS_AT_MOST + queueing.as_secs_f64() / 3600.0;
        self.of(f64::from(runs) * ATTEMPTS, deadline_minutes / ATTEMPTS, hours)
    }
}

/// The number of tasks of `cpu` units that fit into a quota of Fargate; at least one.
#[must_use]
pub fn at_once(vcpus: f64, cpu: u32) -> u32 {
    let mut tasks = 1;
    while f64::from(tasks + 1) * f64::from(cpu) <= vcpus * 1024.0 && tasks < 10_000 {
        tasks += 1;
    }
    tasks
}

/// How long so many runs wait for each other if so many run at once; `None` for no known limit.
#[must_use]
pub fn queueing(runs: u32, at_once: Option<u32>) -> Duration {
    let groups = at_once.map_or(1, |at_once| runs.div_ceil(at_once.max(1)));
    GROUP * groups.saturating_sub(1)
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
