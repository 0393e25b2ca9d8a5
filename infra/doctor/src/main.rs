//! `make doctor`: prints its findings, and exits with 1 if something does not work.

use std::{process::ExitCode, time::Duration};

use clap::{ArgAction, Parser, builder::FalseyValueParser};
use driftless_doctor::{
    Finding, Level,
    canary::Canary,
    cluster,
    installation::{self, Installation},
    migrate::{self, Objects, Verdict},
    tools::{Aws, Kubectl},
};

/// Checks a live installation of Driftless, and names each problem with its remedy.
#[derive(Debug, Parser)]
struct Arguments {
    /// The installation: the name of its stack.
    #[arg(long, env = "STACK", default_value = "driftless")]
    stack: String,
    /// Its region; that of the AWS CLI by default.
    #[arg(long, env = "AWS_REGION")]
    region: Option<String>,
    /// The only cluster to check, as a context of the kubeconfig here; all clusters of the installation by default.
    #[arg(long, env = "CLUSTER")]
    cluster: Option<String>,
    /// The only parts to check.
    #[arg(long, env = "ONLY", value_delimiter = ',', default_value = "aws,cluster,canary")]
    only: Vec<Part>,
    /// The namespace of the canary, which must allow runs.
    #[arg(long, env = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// The URL of the canary's backend, which tasks must be able to reach. Without it there is no canary.
    #[arg(long, env = "BACKEND_URL")]
    backend_url: Option<String>,
    /// A Secret in NAMESPACE whose entries are the canary's environment: the backend's credentials.
    #[arg(long, env = "BACKEND_SECRET")]
    backend_secret: Option<String>,
    /// The time limit in seconds for the canary to become Ready, and to be deleted.
    #[arg(long, env = "DEADLINE", default_value = "600")]
    deadline: u64,
    /// Only reads the objects of the Pulumi Kubernetes Operator in CLUSTER, or in kubectl's own context, and reports how each
    /// would run.
    #[arg(long, env = "MIGRATE", value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    migrate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Aws,
    Cluster,
    Canary,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.migrate {
        return scan(&Kubectl { context: arguments.cluster });
    }
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

/// Exits with 1 if something is refused, and with 2 if it cannot be read.
fn scan(kubectl: &Kubectl) -> ExitCode {
    let objects = match Objects::read(kubectl) {
        Ok(objects) => objects,
        Err(why) => {
            eprintln!("the objects cannot be read: {why}");
            return ExitCode::from(2);
        }
    };
    let reports = migrate::scan(&objects);
    for report in &reports {
        println!("{report}");
    }
    let of = |verdict| reports.iter().filter(|report| report.verdict() == verdict).count();
    let refused = of(Verdict::Refused);
    println!(
        "== {} same, {} better, {} different, {refused} refused",
        of(Verdict::Same),
        of(Verdict::Better),
        of(Verdict::Different)
    );
    let bare = migrate::without_image(&objects);
    if !bare.is_empty() {
        println!(
            "== {} without an image: their runs lack kubectl, helm, the cloud CLIs and other languages of PKO's image",
            bare.len()
        );
        for object in bare {
            println!("           {object}");
        }
        println!(
            "             do: make deploy PARAMETERS=RuntimeImages= keeps the large image for all (docs/migration.md, Images)"
        );
    }
    println!(
        "not seen from here: roles of EKS Pod Identity and of nodes, which a task does not have (eks.amazonaws.com/role-arn is the way); a backend \
         file:// in Pulumi.yaml, or in an envRef of the type Secret; Programs; the layout of states (docs/migration.md)"
    );
    if refused > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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
