//! `make doctor`: prints its findings, and exits with 1 if something does not work.

use std::process::ExitCode;

use clap::{ArgAction, Parser, builder::FalseyValueParser};
use driftless_doctor::{
    Level,
    command::{Doctor, migrate},
    tools::Kubectl,
};

/// Checks a live installation of Driftless, and names each problem with its remedy.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    doctor: Doctor,
    /// The only cluster to check, as a context of the kubeconfig here; all clusters of the
    /// installation by default.
    #[arg(long, env = "CLUSTER")]
    cluster: Option<String>,
    /// The namespace of the canary, which must allow runs.
    #[arg(long, env = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// Only reads the objects of the Pulumi Kubernetes Operator in CLUSTER, or in kubectl's own
    /// context, and reports how each would run.
    #[arg(long, env = "MIGRATE", value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    migrate: bool,
}

/// Exits with 1 if something fails or is refused, and with 2 if the objects cannot be read.
fn main() -> ExitCode {
    let Arguments { doctor, cluster, namespace, migrate: scans } = Arguments::parse();
    let kubectl = Kubectl { context: cluster, ..Kubectl::default() };
    let is_well = if scans {
        match migrate(&kubectl) {
            Ok(migration) => {
                print!("{migration}");
                migration.counts.refused == 0
            }
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::from(2);
            }
        }
    } else {
        doctor.run(&kubectl, &namespace, &mut |section| print!("{section}")).level != Level::Fail
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
