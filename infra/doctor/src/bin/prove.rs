//! `make prove`: tests an installation with what only AWS can answer, and writes a report.

use std::{
    fs,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use driftless_doctor::{
    cost::IMAGE_MIB,
    prove::{
        budget::{self, Network, Price},
        installation::{self, Installation},
        record::{Cost, On, Proof, Scenario},
        scenarios::{Ground, Seen, Settled},
    },
    tools::{Aws, Kubectl},
};
use jiff::Timestamp;

/// Set by Ctrl-C: no further scenario starts, and everything that was created is removed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Deploys Driftless under a prefix, tests what only AWS can answer, removes it, and writes a
/// report (docs/prove.md).
#[derive(Debug, Parser)]
struct Arguments {
    /// The budget of the proof in USD.
    #[arg(long, env = "BUDGET_USD")]
    budget_usd: f64,
    /// The prefix of every name that is created.
    #[arg(long, env = "PREFIX", default_value = "driftless-proof")]
    prefix: String,
    /// An existing installation to use: no installation is deployed or removed.
    #[arg(long, env = "INSTALLATION")]
    installation: Option<String>,
    /// The Region; that of the AWS CLI by default.
    #[arg(long, env = "AWS_REGION")]
    region: Option<String>,
    /// The cluster, as a context of the kubeconfig; the current one by default.
    #[arg(long, env = "CLUSTER")]
    cluster: Option<String>,
    /// The namespace to create for it.
    #[arg(long, env = "NAMESPACE", default_value = "driftless-proof")]
    namespace: String,
    /// The number of Stacks for which each step is measured.
    #[arg(long, env = "TASKS", default_value = "10")]
    tasks: u32,
    /// The number of Stacks that are created at once.
    #[arg(long, env = "STACKS", default_value = "100")]
    stacks: u32,
    /// The URL of a backend that tasks can reach. Without it each task has its own state, and no
    /// resource is destroyed.
    #[arg(long, env = "BACKEND_URL")]
    backend_url: Option<String>,
    /// The time limit in seconds of a scenario's waits for Stacks whose tasks all run at once.
    #[arg(long, env = "DEADLINE", default_value = "900")]
    deadline: u32,
    /// The network of the tasks, for the cost.
    #[arg(long, env = "NETWORK", default_value = "nat")]
    network: Network,
    /// The compressed size of the images that a task pulls in MiB, for the cost.
    #[arg(long, env = "IMAGE_MIB", default_value_t = IMAGE_MIB)]
    image_mib: f64,
    /// The images bypass the NAT gateway, for the cost.
    #[arg(long, env = "ECR", value_parser = clap::builder::FalseyValueParser::new())]
    ecr: bool,
    /// Keeps the installation and the namespace, and prints how to remove them.
    #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new())]
    keep: bool,
    /// The folder of the report.
    #[arg(long, env = "PROOFS", default_value = "proof")]
    proofs: String,
    /// The forwarder's image, as for `make deploy`.
    #[arg(long, env = "FORWARDER_IMAGE", default_value = "")]
    forwarder_image: String,
    /// The kubeconfig, as for `make deploy`; the current one by default.
    #[arg(long, env = "KUBECONFIG_FILE")]
    kubeconfig_file: Option<String>,
    /// The kubeconfig of kubectl.
    #[arg(long, env = "KUBECONFIG", default_value = "")]
    kubeconfig: String,
    /// The tags, as for `make deploy`.
    #[arg(long, env = "TAGS", default_value = "")]
    tags: String,
    /// The parameters, as for `make deploy`, for the cost.
    #[arg(long, env = "PARAMETERS", default_value = "")]
    parameters: String,
    /// Set if an emulator replaces AWS, which the report then states.
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    endpoint: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match prove(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("prove: {why}");
            ExitCode::FAILURE
        }
    }
}

fn prove(arguments: &Arguments) -> Result<bool, String> {
    let region = match &arguments.region {
        Some(region) => region.clone(),
        None => driftless_doctor::tools::text("aws", &["configure", "get", "region"], None)
            .map_err(|_| "no region is set; set AWS_REGION")?
            .trim()
            .to_owned(),
    };
    let aws = Aws { region: Some(region.clone()) };
    let vcpus = driftless_doctor::installation::fargate_quota(&aws)
        .and_then(|answer| answer["Quota"]["Value"].as_f64().ok_or_else(|| "Service Quotas has no value".into()));
    let vcpus = vcpus.map_err(|why| println!("Fargate's quota is not known, so DEADLINE is the limit of all: {why}")).ok();
    let size = match &arguments.installation {
        Some(stack) => installation::launcher(&aws, stack)?.size,
        None => installation::size_of(&arguments.parameters),
    };
    let price = Price { network: arguments.network, image_mib: arguments.image_mib, ecr: arguments.ecr, size };
    let runs = budget::runs(arguments.tasks, arguments.stacks, arguments.backend_url.is_some());
    let queueing = budget::queueing(runs, vcpus.map(|vcpus| budget::at_once(vcpus, size.cpu)));
    let at_most = price.at_most(runs, f64::from(arguments.deadline) / 60.0, queueing);
    let at_most = budget::check(at_most, arguments.budget_usd)?;
    println!("{runs} runs; at most ${at_most:.2} of ${:.2}", arguments.budget_usd);
    let current = Kubectl::default();
    let cluster = match &arguments.cluster {
        Some(cluster) => cluster.clone(),
        None => current.text(&["config", "current-context"], None)?.trim().to_owned(),
    };
    let kubectl = Kubectl { context: Some(cluster.clone()), ..Kubectl::default() };
    let kubeconfig = arguments.kubeconfig_file.as_ref().unwrap_or(&arguments.kubeconfig);
    let ours = Installation {
        prefix: &arguments.prefix,
        cluster: &cluster,
        kubeconfig,
        forwarder_image: &arguments.forwarder_image,
        tags: &arguments.tags,
    };
    let ours = arguments.installation.is_none().then_some(ours);
    if let Some(ours) = &ours {
        ours.check(&aws, &kubectl)?;
        if arguments.forwarder_image.is_empty() {
            return Err("FORWARDER_IMAGE is not set; it is an image of infra/images that the cluster can pull".into());
        }
    }
    watch_interrupts()?;
    let mut proof = Proof {
        version: 1,
        at: now(),
        region,
        on: if arguments.endpoint.is_some() { On::Emulator } else { On::Aws },
        release: env!("CARGO_PKG_VERSION").into(),
        tasks: arguments.tasks,
        stacks: arguments.stacks,
        scenarios: Vec::new(),
        cost: Cost { budget: arguments.budget_usd, at_most, estimate: 0.0 },
    };
    let began = Instant::now();
    let made = ours.as_ref().map_or(Ok(()), |ours| ours.make(&aws, &kubectl));
    let ran = made.and_then(|()| ask(arguments, &aws, &kubectl, began, vcpus, price, &mut proof));
    if let Err(why) = ran {
        show(&mut proof, "installation", Err(why));
    }
    if let Some(ours) = &ours {
        undeploy(ours, arguments.keep, &aws, &kubectl, &mut proof);
    }
    if INTERRUPTED.load(Ordering::Relaxed) {
        return Err("interrupted: no file is written".into());
    }
    write(arguments, &proof)?;
    Ok(proof.passed())
}

/// Runs the scenarios, and removes what they made in the cluster.
fn ask(
    arguments: &Arguments,
    aws: &Aws,
    kubectl: &Kubectl,
    began: Instant,
    vcpus: Option<f64>,
    price: Price,
    proof: &mut Proof,
) -> Result<(), String> {
    let stack = arguments.installation.as_deref().unwrap_or(&arguments.prefix);
    let cluster = kubectl.context.as_deref().unwrap_or_default();
    let (outputs, launcher) = (installation::outputs(aws, stack)?, installation::launcher(aws, stack)?);
    let in_quota = vcpus.map(|vcpus| budget::at_once(vcpus, launcher.size.cpu));
    let [bucket, ecs] = ["BucketName", "EcsCluster"].map(|key| installation::output(&outputs, key));
    let (bucket, ecs) = (bucket?, ecs?);
    let ground = Ground {
        aws,
        kubectl,
        cluster,
        namespace: &arguments.namespace,
        backend: arguments.backend_url.as_deref(),
        bucket: &bucket,
        ecs: &ecs,
        python: launcher.python.as_deref(),
        limit: Duration::from_secs(arguments.deadline.into()),
        at_once: [in_quota, launcher.max_runs].into_iter().flatten().min(),
        access: installation::access(aws, stack, cluster),
        price,
        budget: arguments.budget_usd,
        began,
        interrupted: &INTERRUPTED,
    };
    ground.open()?;
    let recorded = ground.run(arguments.tasks);
    let of = |runs: &Result<Settled, String>, look: fn(&Settled) -> Result<Seen, String>| {
        runs.as_ref().map_err(Clone::clone).and_then(look)
    };
    show(proof, "start", of(&recorded, Settled::start));
    show(proof, "pull", of(&recorded, Settled::pull));
    show(proof, "events", of(&recorded, Settled::events));
    show(proof, "cluster", of(&recorded, Settled::cluster));
    show(proof, "scoping", ground.scoping());
    show(proof, "conditional", ground.conditional());
    show(proof, "kill", ground.kill());
    show(proof, "spot", ground.spot());
    let many = ground.burst(arguments.stacks);
    show(proof, "stacks", of(&many, Settled::stacks));
    show(proof, "throttling", of(&many, Settled::throttling));
    let tasks = ground.task_ids();
    proof.cost.estimate = ground.used().unwrap_or(proof.cost.at_most);
    if arguments.keep {
        println!("kept: kubectl --context {cluster} delete namespace {} removes the Stacks", arguments.namespace);
        return Ok(());
    }
    let closed = ground.close().and(tasks).and_then(|tasks| ground.left(&tasks));
    show(proof, "left", closed);
    Ok(())
}

fn undeploy(ours: &Installation<'_>, keep: bool, aws: &Aws, kubectl: &Kubectl, proof: &mut Proof) {
    if keep {
        println!("kept; it costs money until you remove it: {}", ours.remedy());
        return;
    }
    let removed = ours.remove(kubectl).map_err(|why| format!("{why}; by hand: {}", ours.remedy()));
    let left = removed.and_then(|()| ours.left(aws)).and_then(|left| match left.as_slice() {
        [] => Ok(Seen { measured: true, said: "nothing remains under the prefix".into(), figures: Vec::new() }),
        left => Err(format!("left: {}", left.join(", "))),
    });
    show(proof, "undeploy", left);
}

fn show(proof: &mut Proof, name: &str, seen: Result<Seen, String>) {
    let (passed, said, figures) = match seen {
        Ok(Seen { measured, said, figures }) => (measured.then_some(true), said, figures),
        Err(why) => (Some(false), why, Vec::new()),
    };
    let scenario = Scenario { name: name.into(), passed, said, figures };
    println!("{scenario}");
    proof.scenarios.push(scenario);
}

fn write(arguments: &Arguments, proof: &Proof) -> Result<(), String> {
    println!("cost  about ${:.2}, of at most ${:.2}", proof.cost.estimate, proof.cost.at_most);
    let file = format!("{}/{}", arguments.proofs, proof.file());
    let text = serde_json::to_string_pretty(proof).map_err(|error| error.to_string())?;
    fs::create_dir_all(&arguments.proofs)
        .and_then(|()| fs::write(&file, text + "\n"))
        .map_err(|error| format!("{file}: {error}"))?;
    println!("wrote {file}");
    if proof.on == On::Aws && proof.passed() {
        println!("README, section On AWS:\n\n{}", proof.table());
    }
    Ok(())
}

/// Makes Ctrl-C and SIGTERM end the scenarios instead of this process.
fn watch_interrupts() -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let signals = {
        let _entered = runtime.enter();
        signal(SignalKind::interrupt()).and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?)))
    };
    let (mut interrupt, mut terminate) = signals.map_err(|error| error.to_string())?;
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                INTERRUPTED.store(true, Ordering::Relaxed);
                eprintln!("prove: interrupted; removing what was created, which takes some minutes");
            }
        });
    });
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "this is the clock adapter")]
fn now() -> Timestamp {
    Timestamp::now()
}
