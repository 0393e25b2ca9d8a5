//! The program inside the task; see the library.

use std::{
    env,
    error::Error,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
};

use clap::{Parser, Subcommand};
use jiff::Timestamp;
use runner::{BucketEndpoint, CredentialsEndpoint, Settings};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Where ECS gives credentials for a relative address.
const ECS_CREDENTIALS: &str = "http://169.254.170.2";

/// Runs pulumi in a task and stores how it ended.
#[derive(Parser)]
#[command(version, subcommand_negates_reqs = true)]
struct Arguments {
    /// The bucket with the run folders.
    #[arg(long, env = "DRIFTLESS_BUCKET", required = true)]
    bucket: Option<String>,
    /// The id of the task's role.
    #[arg(long, env = "DRIFTLESS_ROLE_ID", required = true)]
    role_id: Option<String>,
    /// ECS's metadata endpoint.
    #[arg(long, env = "ECS_CONTAINER_METADATA_URI_V4", required = true)]
    metadata: Option<String>,
    /// The region of the bucket.
    #[arg(long, env = "AWS_REGION", required = true)]
    region: Option<String>,
    /// S3's address, if not the region's.
    #[arg(long, env = "AWS_ENDPOINT_URL_S3")]
    s3: Option<String>,
    /// AWS's address, if not the region's.
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    aws: Option<String>,
    /// The path of the task's credentials at ECS's address.
    #[arg(long, env = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")]
    credentials_path: Option<String>,
    /// The whole address of the task's credentials.
    #[arg(long, env = "AWS_CONTAINER_CREDENTIALS_FULL_URI")]
    credentials_url: Option<String>,
    /// What that address wants as authorization.
    #[arg(long, env = "AWS_CONTAINER_AUTHORIZATION_TOKEN", hide_env_values = true)]
    credentials_token: Option<String>,
    /// More certificate authorities.
    #[arg(long, env = "SSL_CERT_FILE")]
    certificates: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Waits for a byte on standard input, then becomes the program.
    #[command(hide = true)]
    Hold {
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.command {
        Some(Subcommands::Hold { command }) => hold(command),
        None => run(arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(error.source(), |cause| cause.source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("driftless: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

fn hold(command: &[String]) -> Result<(), Box<dyn Error>> {
    // The end of input instead of a byte: whoever started us is gone.
    io::stdin().read_exact(&mut [0])?;
    let [program, arguments @ ..] = command else { return Ok(()) };
    Err(Command::new(program).args(arguments).exec().into())
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let settings = settings(arguments)?;
    // What runs beside us as the same user must not read our memory or environment. After `settings`, as it also hides our own path.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let (told, stop) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        // Kept until the end: a receiver without a sender would never be told.
        told.send_replace(true);
        told.closed().await;
    });
    Ok(runner::run(&settings, stop).await?)
}

fn settings(arguments: Arguments) -> Result<Settings, Box<dyn Error>> {
    let required = |value: Option<String>, name: &str| value.ok_or_else(|| format!("{name} is not set"));
    let region = required(arguments.region, "AWS_REGION")?;
    let url = arguments.s3.or(arguments.aws).unwrap_or_else(|| {
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        format!("https://s3.{region}.amazonaws.com{suffix}")
    });
    let credentials = match (arguments.credentials_path, arguments.credentials_url) {
        (Some(path), _) => format!("{ECS_CREDENTIALS}{path}"),
        (None, Some(url)) => url,
        (None, None) => return Err("neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor …_FULL_URI is set".into()),
    };
    Ok(Settings {
        bucket: BucketEndpoint { url, region, bucket: required(arguments.bucket, "DRIFTLESS_BUCKET")? },
        role_id: required(arguments.role_id, "DRIFTLESS_ROLE_ID")?,
        credentials: CredentialsEndpoint { url: credentials, authorization: arguments.credentials_token },
        metadata: required(arguments.metadata, "ECS_CONTAINER_METADATA_URI_V4")?,
        certificates: arguments.certificates,
        environment: env::vars_os().collect(),
        scratch: env::temp_dir(),
        runner: env::current_exe()?,
        now,
    })
}

#[expect(clippy::disallowed_methods, reason = "this is a main.rs")]
fn now() -> Timestamp {
    Timestamp::now()
}
