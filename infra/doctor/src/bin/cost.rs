//! `make cost`: prints what an installation costs a month.

use clap::Parser;
use driftless_core::DefaultSize;
use driftless_doctor::cost::{IMAGE_MIB, Load};

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
    #[arg(long, env = "CLUSTERS", default_value = "1")]
    clusters: f64,
    /// CPU units of a task, in the template `TaskCpu`.
    #[arg(long, env = "TASK_CPU", default_value_t = DefaultSize::default().cpu)]
    task_cpu: u32,
    /// MiB of memory of a task, in the template `TaskMemory`.
    #[arg(long, env = "TASK_MEMORY", default_value_t = DefaultSize::default().memory_mib)]
    task_memory: u32,
    /// MiB of the images that a task pulls, compressed.
    #[arg(long, env = "IMAGE_MIB", default_value_t = IMAGE_MIB)]
    image_mib: f64,
    /// MiB that a run downloads beside them: plugins and packages.
    #[arg(long, env = "INSTALL_MIB", default_value = "200")]
    install_mib: f64,
    /// NAT gateways that are there for Driftless alone; 0 where the VPC has them anyway.
    #[arg(long, env = "NAT_GATEWAYS", default_value = "2")]
    nat_gateways: f64,
    /// The images are in ECR of the same Region, and the VPC has a gateway endpoint for S3.
    #[arg(long, env = "ECR", value_parser = clap::builder::FalseyValueParser::new())]
    ecr: bool,
}

fn main() {
    let Arguments { stacks, runs_per_day, minutes, clusters, task_cpu, task_memory, image_mib, install_mib, nat_gateways, ecr } =
        Arguments::parse();
    let size = DefaultSize { cpu: task_cpu, memory_mib: task_memory };
    println!("{}", Load { stacks, runs_per_day, minutes, clusters, size, image_mib, install_mib, nat_gateways, ecr }.bill());
}
