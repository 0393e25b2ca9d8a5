//! What an installation costs a month, beside one workspace pod per Stack. The assumptions are
//! constants here only; docs/cost.md explains them.

use std::fmt;

use driftless_core::DefaultSize;
use serde_json::{Value, json};

/// On-demand prices of us-east-1 in USD, without free tiers.
pub mod price {
    /// Fargate, Linux on `x86_64`: a vCPU for an hour.
    pub const FARGATE_VCPU_HOUR: f64 = 0.04048;
    /// A GB of memory for an hour.
    pub const FARGATE_GB_HOUR: f64 = 0.004_445;
    /// A public IPv4 address for an hour.
    pub const ADDRESS_HOUR: f64 = 0.005;
    /// A NAT gateway for an hour, without its address.
    pub const NAT_HOUR: f64 = 0.045;
    /// A GB through a NAT gateway.
    pub const NAT_GB: f64 = 0.045;
    /// Lambda on arm64: a GB of memory for a second.
    pub const LAMBDA_GB_SECOND: f64 = 0.000_013_333_4;
    /// A call of a function.
    pub const LAMBDA_CALL: f64 = 0.2e-6;
    /// A call of SQS.
    pub const SQS_CALL: f64 = 0.4e-6;
    /// The same for a FIFO queue.
    pub const SQS_FIFO_CALL: f64 = 0.5e-6;
    /// A PUT of S3; most calls are cheaper.
    pub const S3_CALL: f64 = 5e-6;
    /// A GB in S3 for a month.
    pub const S3_GB: f64 = 0.023;
    /// A secret for a month.
    pub const SECRET: f64 = 0.40;
    /// A key of KMS for a month.
    pub const KEY: f64 = 1.0;
    /// A metric that an alarm uses, for a month.
    pub const ALARM_METRIC: f64 = 0.10;
    /// A dashboard for a month.
    pub const DASHBOARD: f64 = 3.0;
    /// A custom metric for a month.
    pub const METRIC: f64 = 0.30;
    /// A GB of ingested logs.
    pub const LOG_GB: f64 = 0.50;
    /// An m6i.large (2 vCPUs, 8 GiB) for an hour: a node for workspace pods.
    pub const NODE_HOUR: f64 = 0.096;
}

/// The hours of a month.
pub(crate) const HOURS: f64 = 730.0;
const MINUTES: f64 = HOURS * 60.0;
/// Event source mappings that poll standard queues; one more polls the FIFO queue.
pub(crate) const STANDARD_MAPPINGS: f64 = 4.0;
/// Lambda keeps five long polls of 20 s open per mapping.
const POLLS_PER_MINUTE: f64 = 5.0 * 3.0;
/// A sweep without Stacks, and each additional Stack, in seconds of the sweeper.
const SWEEP_SECONDS: f64 = 0.5;
pub(crate) const SWEEP_SECONDS_PER_STACK: f64 = 0.005;
/// Each Stack is reconciled once in this time (`LookPeriodSeconds`).
const LOOK_MINUTES: f64 = 10.0;
/// A reconciliation without changes: a message is sent, received and deleted, and the reconciler
/// works this long.
const LOOK_SQS_CALLS: f64 = 3.0;
pub(crate) const LOOK_SECONDS: f64 = 0.2;
const FUNCTION_GB: f64 = 0.25;
/// The log of such a reconciliation.
const LOOK_LOG_GB: f64 = 1e-6;
/// The number of metrics of one cluster that occur: by operation, outcome, reason and function.
const METRICS: f64 = 30.0;
/// The number of metrics that the alarms of the template use.
pub(crate) const ALARM_METRICS: f64 = 34.0;
/// Fargate bills from the pull of the image, at this many MiB a minute; then the containers start.
const PULL_MIB_PER_MINUTE: f64 = 900.0;
pub(crate) const START_MINUTES: f64 = 0.25;
/// MiB of the images that a task pulls by default, compressed: the largest that Pulumi states for
/// the images of `RuntimeImages`.
pub const IMAGE_MIB: f64 = 300.0;
/// A MiB in GB, by which AWS prices traffic.
const GB_PER_MIB: f64 = 1.048_576e-3;
/// The calls of S3 of a first run, as `bench calls` counts them; a run of a change makes fewer. The
/// README has the figures.
pub(crate) const RUN_S3_CALLS: f64 = 58.0;
/// The invocations of functions of a first run, counted in the same way. Each has one message,
/// which is sent, received and deleted like that of a reconciliation.
pub(crate) const RUN_INVOCATIONS: f64 = 9.0;
/// The logs of a run.
const RUN_LOG_GB: f64 = 100e-6;
/// The Pulumi Kubernetes Operator's default CPU request for a workspace pod, in vCPUs; a node's
/// vCPU comes with 4 GiB.
const POD_VCPUS: f64 = 0.1;
/// The same for EKS on Fargate, whose smallest size has this many vCPUs and GB.
const FARGATE_POD: (f64, f64) = (0.25, 0.5);

/// The usage, and the network.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Stacks.
    pub stacks: f64,
    /// Runs a day, of all Stacks together.
    pub runs_per_day: f64,
    /// How long a run takes.
    pub minutes: f64,
    /// Clusters.
    pub clusters: f64,
    /// The size of a task.
    pub size: DefaultSize,
    /// MiB of the images that a task pulls, compressed.
    pub image_mib: f64,
    /// MiB that a run downloads beside them if the cache does not have its plugins and packages.
    pub install_mib: f64,
    /// The share of such runs, from 0 to 1.
    pub cache_misses: f64,
    /// MiB of the cache entries of a Stack, compressed.
    pub cache_mib: f64,
    /// NAT gateways that exist for Driftless alone.
    pub nat_gateways: f64,
    /// Whether images are in ECR, whose layers an S3 gateway endpoint delivers without the NAT
    /// gateway.
    pub ecr: bool,
    /// Whether there is a gateway endpoint for S3, as `ecr` implies: cache entries then pass no NAT
    /// gateway.
    pub s3_endpoint: bool,
}

/// A line of the bill in USD a month: behind NAT, the default, and with public addresses
/// (`AssignPublicIp`).
type Line = (&'static str, [f64; 2]);

/// The costs of a month.
#[derive(Debug)]
pub struct Bill {
    /// Without a Stack.
    pub idle: Vec<Line>,
    /// All Stacks while nothing changes.
    pub watched: Vec<Line>,
    /// The runs.
    pub runs: Vec<Line>,
    /// One permanent workspace pod per Stack, as with `workspaceReclaimPolicy: Retain`: on a node
    /// of EC2, and on Fargate.
    pub pods: [f64; 2],
}

impl Load {
    /// How long a task pulls its images, in minutes.
    pub(crate) fn pull_minutes(&self) -> f64 {
        self.image_mib / PULL_MIB_PER_MINUTE
    }

    /// Computes the costs.
    #[must_use]
    pub fn bill(&self) -> Bill {
        let lambda = |calls: f64, seconds: f64| calls * (price::LAMBDA_CALL + seconds * FUNCTION_GB * price::LAMBDA_GB_SECOND);
        let fargate = |vcpus: f64, gb: f64| vcpus * price::FARGATE_VCPU_HOUR + gb * price::FARGATE_GB_HOUR;
        let both = |name, cost| (name, [cost; 2]);
        let looks = self.stacks * MINUTES / LOOK_MINUTES;
        let runs = self.runs_per_day * HOURS / 24.0;
        let task_hours = (self.minutes + START_MINUTES + self.pull_minutes()).max(1.0) / 60.0;
        let installs = self.cache_misses * self.install_mib;
        let through_nat = if self.ecr { installs } else { self.image_mib + installs };
        // A run restores its entries, or stores them after it has installed; a NAT gateway has one
        // price for both directions.
        let entries = if self.ecr || self.s3_endpoint { 0.0 } else { self.cache_mib };
        let nat = |mib: f64| runs * mib * GB_PER_MIB * price::NAT_GB;
        Bill {
            idle: vec![
                both(
                    "queues that are polled",
                    MINUTES * POLLS_PER_MINUTE * (STANDARD_MAPPINGS * price::SQS_CALL + price::SQS_FIFO_CALL),
                ),
                both("sweeps that find nothing", lambda(MINUTES * self.clusters, SWEEP_SECONDS)),
                both("seven secrets and a key", 7.0 * price::SECRET + price::KEY),
                both("alarms and dashboard", ALARM_METRICS * price::ALARM_METRIC + price::DASHBOARD),
                both("metrics", METRICS * self.clusters * price::METRIC),
                ("NAT gateways", [self.nat_gateways * HOURS * (price::NAT_HOUR + price::ADDRESS_HOUR), 0.0]),
            ],
            watched: vec![
                both("sweeps", MINUTES * SWEEP_SECONDS_PER_STACK * self.stacks * FUNCTION_GB * price::LAMBDA_GB_SECOND),
                both("reconciliations", lambda(looks, LOOK_SECONDS) + looks * LOOK_SQS_CALLS * price::SQS_CALL),
                both("logs of reconciliations", looks * LOOK_LOG_GB * price::LOG_GB),
                both("cached dependencies", self.stacks * self.cache_mib * GB_PER_MIB * price::S3_GB),
            ],
            runs: vec![
                both(
                    "Fargate",
                    runs * task_hours * fargate(f64::from(self.size.cpu) / 1024.0, f64::from(self.size.memory_mib) / 1024.0),
                ),
                ("image and installs through NAT", [nat(through_nat), 0.0]),
                ("cache entries through NAT", [nat(entries), 0.0]),
                ("public addresses", [0.0, runs * task_hours * price::ADDRESS_HOUR]),
                both(
                    "S3, SQS and Lambda",
                    runs * (RUN_S3_CALLS * price::S3_CALL + RUN_INVOCATIONS * LOOK_SQS_CALLS * price::SQS_CALL)
                        + lambda(runs * RUN_INVOCATIONS, LOOK_SECONDS),
                ),
                both("logs of runs", runs * RUN_LOG_GB * price::LOG_GB),
            ],
            pods: [
                self.stacks * HOURS * POD_VCPUS * price::NODE_HOUR / 2.0,
                self.stacks * HOURS * fargate(FARGATE_POD.0, FARGATE_POD.1),
            ],
        }
    }
}

impl Bill {
    /// The price of these hours in USD, if they have all runs of the month: behind NAT, and with
    /// public addresses.
    #[must_use]
    pub fn within(&self, hours: f64) -> [f64; 2] {
        let sum = |lines: &[Line], network: usize| lines.iter().map(|(_, cost)| cost[network]).sum::<f64>();
        [0, 1].map(|network| (sum(&self.idle, network) + sum(&self.watched, network)) * hours / HOURS + sum(&self.runs, network))
    }

    /// The costs for a script, in USD a month.
    #[must_use]
    pub fn document(&self) -> Value {
        let lines = |lines: &[Line]| -> Vec<_> {
            let line = |(name, cost): &Line| json!({ "name": name, "usd": networks(*cost) });
            lines.iter().map(line).collect()
        };
        json!({
            "idle": lines(&self.idle),
            "stacks": lines(&self.watched),
            "runs": lines(&self.runs),
            "total": { "usd": networks(self.within(HOURS)) },
            "retainedPods": { "usd": { "ec2Nodes": rounded(self.pods[0], 2), "eksFargate": rounded(self.pods[1], 2) } },
        })
    }
}

/// A price in cents, behind NAT and with public addresses.
pub(crate) fn networks([nat, public]: [f64; 2]) -> Value {
    json!({ "behindNat": rounded(nat, 2), "publicAddresses": rounded(public, 2) })
}

/// A number with so many decimals.
pub(crate) fn rounded(number: f64, decimals: i32) -> f64 {
    let unit = 10_f64.powi(decimals);
    (number * unit).round() / unit
}

impl fmt::Display for Bill {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<40}{:>12}{:>12}", "USD a month", "behind NAT", "public")?;
        let mut total = [0.0; 2];
        for (title, lines) in [("idle", &self.idle), ("Stacks", &self.watched), ("runs", &self.runs)] {
            for (name, [nat, public]) in lines {
                writeln!(formatter, "{title:<8}{name:<32}{nat:>12.2}{public:>12.2}")?;
                total = [total[0] + nat, total[1] + public];
            }
        }
        writeln!(formatter, "{:<40}{:>12.2}{:>12.2}", "Driftless", total[0], total[1])?;
        writeln!(formatter, "{:<40}{:>12.2}", "a retained pod per Stack, EC2 nodes", self.pods[0])?;
        write!(formatter, "{:<40}{:>12.2}", "a retained pod per Stack, EKS Fargate", self.pods[1])
    }
}
