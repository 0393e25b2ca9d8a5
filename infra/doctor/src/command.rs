//! The commands `doctor`, `migrate`, `cost` and `capacity`: their arguments, and their results.

use std::time::Duration;

use clap::{Args, ValueEnum, builder::FalseyValueParser};
use driftless_core::DefaultSize;

use crate::{
    Diagnosis, Finding, Level, Section,
    canary::Canary,
    capacity::{Demand, quota},
    cluster,
    cost::{Bill, IMAGE_MIB, Load},
    installation::{self, Installation},
    migrate::{self, Migration, Objects},
    tools::{Aws, Kubectl},
};

/// The arguments of `doctor`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Doctor {
    /// The installation: the name of its stack.
    #[arg(long, env = "STACK", default_value = "driftless")]
    stack: String,
    /// Its region; that of the AWS CLI by default.
    #[arg(long, env = "AWS_REGION")]
    region: Option<String>,
    /// The only parts to check.
    #[arg(long, env = "ONLY", value_delimiter = ',', default_value = "aws,cluster,canary")]
    only: Vec<Part>,
    /// The URL of the canary's backend, which tasks must be able to reach. Without it there is no
    /// canary.
    #[arg(long, env = "BACKEND_URL")]
    backend_url: Option<String>,
    /// A Secret in the canary's namespace whose entries are its environment: the backend's
    /// credentials.
    #[arg(long, env = "BACKEND_SECRET")]
    backend_secret: Option<String>,
    /// The time limit in seconds for the canary to become Ready, and to be deleted.
    #[arg(long, env = "DEADLINE", default_value = "600")]
    deadline: u64,
}

/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The resources of the installation in AWS.
    Aws,
    /// Each cluster that the installation serves.
    Cluster,
    /// A Stack of the doctor, which has to become Ready.
    Canary,
}

impl Doctor {
    /// Checks the installation, and the cluster of the context of `kubectl`, or all that the
    /// installation serves if it has none. The canary is in `namespace`, which must allow runs.
    /// Shows each section as soon as it is complete.
    pub fn run(&self, kubectl: &Kubectl, namespace: &str, show: &mut dyn FnMut(&Section)) -> Diagnosis {
        let mut sections: Vec<Section> = Vec::new();
        let mut show = |title: &str, findings: Vec<Finding>| {
            let section = Section { title: title.to_owned(), findings };
            show(&section);
            sections.push(section);
        };
        let checks = |part| self.only.contains(&part);
        let aws = Aws { region: self.region.clone() };
        let mut found = Installation::default();
        if checks(Part::Aws) {
            let (findings, installation) = installation::examine(&aws, &self.stack);
            show("AWS", findings);
            found = installation;
        }
        let clusters = kubectl.context.as_ref().map_or_else(|| found.clusters.clone(), |cluster| vec![cluster.clone()]);
        for name in &clusters {
            let kubectl = Kubectl { context: Some(name.clone()), ..kubectl.clone() };
            if checks(Part::Cluster) {
                show(&format!("cluster {name}"), cluster::examine(&kubectl, &aws, name, &found));
            }
            if checks(Part::Canary) {
                show(&format!("canary in {name}"), self.canary(&kubectl, &aws, namespace));
            }
        }
        if clusters.is_empty() {
            let remedy = "name a context with --context, or with make doctor CLUSTER=…";
            show("clusters", vec![Finding::fail("no cluster to check", "the installation names no cluster", remedy)]);
        }
        let level = sections.iter().flat_map(|section| &section.findings).map(|finding| finding.level).max();
        Diagnosis { level: level.unwrap_or(Level::Ok), sections }
    }

    fn canary(&self, kubectl: &Kubectl, aws: &Aws, namespace: &str) -> Vec<Finding> {
        let Some(backend) = &self.backend_url else {
            let why = "it needs a backend, because it starts a task and keeps a state for a minute";
            return vec![Finding::warn("canary: skipped", why, "BACKEND_URL=… [BACKEND_SECRET=…] [NAMESPACE=…]")];
        };
        let limit = Duration::from_secs(self.deadline);
        Canary { namespace, backend, secret: self.backend_secret.as_deref(), limit }.fly(kubectl, aws)
    }
}

/// Reads the objects of the Pulumi Kubernetes Operator in a cluster, and reports how each would
/// run. `Err` has kubectl's message.
pub fn migrate(kubectl: &Kubectl) -> Result<Migration, String> {
    let objects = Objects::read(kubectl).map_err(|why| format!("cannot read the objects: {why}"))?;
    Ok(Migration::of(migrate::scan(&objects), migrate::without_image(&objects)))
}

/// The arguments of `cost`.
#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub struct Cost {
    /// The number of runs a day, of all Stacks together.
    #[arg(long, env = "RUNS_PER_DAY", default_value = "50")]
    runs_per_day: f64,
    #[command(flatten)]
    usage: Usage,
}

impl Cost {
    /// The monthly costs of an installation.
    #[must_use]
    pub fn bill(self) -> Bill {
        self.usage.load(self.runs_per_day).bill()
    }
}

/// The arguments of `capacity`.
#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub struct Capacity {
    /// The number of runs an hour, of all Stacks together.
    #[arg(long, env = "RUNS_PER_HOUR", default_value = "10")]
    runs_per_hour: f64,
    /// The period in which every Stack is reconciled once, in seconds; `LookPeriodSeconds` in the
    /// template.
    #[arg(long, env = "LOOK_PERIOD_SECONDS", default_value = "600")]
    look_period_seconds: f64,
    /// The memory of the sweeper in MiB; `SweeperMemory` in the template.
    #[arg(long, env = "SWEEPER_MEMORY", default_value = "256")]
    sweeper_memory: f64,
    /// The vCPUs that Fargate may run at once in the account; a new account has 6.
    #[arg(long, env = "VCPUS", default_value_t = quota::FARGATE_VCPUS)]
    vcpus: f64,
    /// The concurrent executions of Lambda in the account.
    #[arg(long, env = "LAMBDA", default_value_t = quota::LAMBDA)]
    lambda: f64,
    #[command(flatten)]
    usage: Usage,
}

impl Capacity {
    /// What the load needs.
    #[must_use]
    pub fn demand(self) -> Demand {
        let Self { runs_per_hour, look_period_seconds, sweeper_memory, vcpus, lambda, usage } = self;
        Demand { load: usage.load(24.0 * runs_per_hour), look_seconds: look_period_seconds, sweeper_memory, vcpus, lambda }
    }
}

/// What an installation is used for, and its network.
#[derive(Clone, Copy, Debug, Args)]
struct Usage {
    /// The number of Stacks.
    #[arg(long, env = "STACKS", default_value = "100")]
    stacks: f64,
    /// The duration of a run in minutes.
    #[arg(long, env = "MINUTES", default_value = "3")]
    minutes: f64,
    /// The number of clusters.
    #[arg(long, env = "CLUSTERS", default_value = "1")]
    clusters: f64,
    /// The CPU units of a task; `TaskCpu` in the template.
    #[arg(long, env = "TASK_CPU", default_value_t = DefaultSize::default().cpu)]
    task_cpu: u32,
    /// The memory of a task in MiB; `TaskMemory` in the template.
    #[arg(long, env = "TASK_MEMORY", default_value_t = DefaultSize::default().memory_mib)]
    task_memory: u32,
    /// The compressed size of the images that a task pulls, in MiB.
    #[arg(long, env = "IMAGE_MIB", default_value_t = IMAGE_MIB)]
    image_mib: f64,
    /// The size of a run's other downloads, plugins and packages, in MiB.
    #[arg(long, env = "INSTALL_MIB", default_value = "200")]
    install_mib: f64,
    /// The percentage of runs that download them, because the cache of dependencies does not have
    /// them.
    #[arg(long, env = "CACHE_MISS_PERCENT", default_value = "10")]
    cache_miss_percent: f64,
    /// The compressed size of the cache entries of a Stack, in MiB.
    #[arg(long, env = "CACHE_MIB", default_value = "100")]
    cache_mib: f64,
    /// The number of NAT gateways that exist for Driftless alone; 0 if the VPC has them anyway.
    #[arg(long, env = "NAT_GATEWAYS", default_value = "2")]
    nat_gateways: f64,
    /// The images are in ECR of the same Region, and the VPC has a gateway endpoint for S3.
    #[arg(long, env = "ECR", value_parser = FalseyValueParser::new())]
    ecr: bool,
    /// The VPC has a gateway endpoint for S3.
    #[arg(long, env = "S3_ENDPOINT", value_parser = FalseyValueParser::new())]
    s3_endpoint: bool,
}

impl Usage {
    fn load(self, runs_per_day: f64) -> Load {
        let Self { stacks, minutes, clusters, task_cpu, task_memory, .. } = self;
        let Self { image_mib, install_mib, cache_miss_percent, cache_mib, nat_gateways, ecr, s3_endpoint, .. } = self;
        let cache_misses = cache_miss_percent / 100.0;
        let size = DefaultSize { cpu: task_cpu, memory_mib: task_memory };
        Load {
            stacks,
            runs_per_day,
            minutes,
            clusters,
            size,
            image_mib,
            install_mib,
            cache_misses,
            cache_mib,
            nat_gateways,
            ecr,
            s3_endpoint,
        }
    }
}
