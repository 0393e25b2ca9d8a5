//! `make doctor`: prints what it finds, and ends with 1 if something does not work.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use driftless_doctor::{
    Finding, Level,
    canary::Canary,
    cluster,
    installation::{self, Installation},
    tools::{Aws, Kubectl},
};

/// Checks a live installation of Driftless, and names what is wrong and what mends it.
#[derive(Debug, Parser)]
struct Arguments {
    /// The installation: the name of its stack.
    #[arg(long, env = "STACK", default_value = "driftless")]
    stack: String,
    /// Its region; that of the AWS CLI, if it is not given.
    #[arg(long, env = "AWS_REGION")]
    region: Option<String>,
    /// The only cluster to look at; all that the installation serves, if it is not given. A context of the kubeconfig here.
    #[arg(long, env = "CLUSTER")]
    cluster: Option<String>,
    /// The only parts to look at.
    #[arg(long, env = "ONLY", value_delimiter = ',', default_value = "aws,cluster,canary")]
    only: Vec<Part>,
    /// Where the canary is: a namespace that is open for runs.
    #[arg(long, env = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// The URL of the backend of the canary, which a task has to reach. Without it there is no canary.
    #[arg(long, env = "BACKEND_URL")]
    backend_url: Option<String>,
    /// A Secret in NAMESPACE whose entries are the canary's environment: the backend's credentials.
    #[arg(long, env = "BACKEND_SECRET")]
    backend_secret: Option<String>,
    /// For so many seconds the canary may take to become Ready, and to be gone.
    #[arg(long, env = "DEADLINE", default_value = "600")]
    deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Aws,
    Cluster,
    Canary,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut worst = Level::Ok;
    let mut show = |title: &str, findings: &[Finding]| {
        println!("== {title}");
        for finding in findings {
            println!("{finding}");
            worst = worst.max(finding.level);
        }
    };
    let looks_at = |part| arguments.only.contains(&part);
    let aws = Aws { region: arguments.region.clone() };
    let mut found = Installation::default();
    if looks_at(Part::Aws) {
        let (findings, installation) = installation::examine(&aws, &arguments.stack);
        show("AWS", &findings);
        found = installation;
    }
    let clusters = arguments.cluster.as_ref().map_or_else(|| found.clusters.clone(), |cluster| vec![cluster.clone()]);
    for name in &clusters {
        let kubectl = Kubectl { context: Some(name.clone()) };
        if looks_at(Part::Cluster) {
            show(&format!("cluster {name}"), &cluster::examine(&kubectl, &aws, name, &found));
        }
        if looks_at(Part::Canary) {
            show(&format!("canary in {name}"), &canary(&arguments, &kubectl, &aws));
        }
    }
    if clusters.is_empty() {
        show("clusters", &[Finding::fail("no cluster to look at", "the installation names none", "CLUSTER=… names a context")]);
    }
    if worst == Level::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn canary(arguments: &Arguments, kubectl: &Kubectl, aws: &Aws) -> Vec<Finding> {
    let Some(backend) = &arguments.backend_url else {
        let why = "that needs a backend: it starts a task, and keeps a state there for a minute";
        return vec![Finding::warn("canary: not tried", why, "BACKEND_URL=… [BACKEND_SECRET=…] [NAMESPACE=…]")];
    };
    let secret = arguments.backend_secret.as_deref();
    let limit = Duration::from_secs(arguments.deadline);
    Canary { namespace: &arguments.namespace, backend, secret, limit }.fly(kubectl, aws)
}
