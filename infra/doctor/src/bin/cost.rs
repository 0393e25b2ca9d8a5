//! `make cost`: prints what an installation costs a month.

use clap::Parser;
use driftless_core::DefaultSize;
use driftless_doctor::cost::{IMAGE_MIB, Load};

/// Prints what an installation costs a month in us-east-1; docs/cost.md has the assumptions.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of Stacks.
    #[arg(long, env = "STACKS", default_value = "100")]
    stacks: f64,
    /// The number of runs a day, of all Stacks together.
    #[arg(long, env = "RUNS_PER_DAY", default_value = "50")]
    runs_per_day: f64,
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
    /// The number of NAT gateways that exist for Driftless alone; 0 if the VPC has them anyway.
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
