//! The program inside the task; see the library.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fs::{self, Permissions},
    io::{self, Read},
    iter::successors,
    os::unix::{fs::PermissionsExt as _, process::CommandExt},
    path::PathBuf,
    process::{Command, ExitCode},
};

use clap::Parser;
use driftless_contract::{SECRETS, SHARE};
use jiff::Timestamp;
use runner::{BucketEndpoint, CredentialsEndpoint, Settings};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// The address for ECS's relative URIs.
const ECS: &str = "http://169.254.170.2";

/// Runs Pulumi in a task and stores the result.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The bucket with the run folders.
    #[arg(long, env = "DRIFTLESS_BUCKET")]
    bucket: String,
    /// The id of the task's role.
    #[arg(long, env = "DRIFTLESS_ROLE_ID")]
    role_id: String,
    /// ECS's metadata endpoint of this container.
    #[arg(long, env = "ECS_CONTAINER_METADATA_URI_V4")]
    metadata: String,
    /// The region of the bucket.
    #[arg(long, env = "AWS_REGION")]
    region: String,
    /// S3's address, if it is not the region's.
    #[arg(long, env = "AWS_ENDPOINT_URL_S3")]
    s3: Option<String>,
    /// The address of all of AWS, if it is not the region's.
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    aws: Option<String>,
    /// The path of the task's credentials at ECS's address.
    #[arg(long, env = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", required_unless_present = "credentials_url")]
    credentials_path: Option<String>,
    /// The whole address of the task's credentials.
    #[arg(long, env = "AWS_CONTAINER_CREDENTIALS_FULL_URI")]
    credentials_url: Option<String>,
    /// The value of the `Authorization` header for that address.
    #[arg(long, env = "AWS_CONTAINER_AUTHORIZATION_TOKEN", hide_env_values = true)]
    credentials_token: Option<String>,
    /// A file with more certificate authorities.
    #[arg(long, env = "SSL_CERT_FILE")]
    certificates: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let ended = match words.next() {
        Some(word) if word == "hold" => hold(words),
        Some(word) if word == "install" => install(words),
        _ => run(Arguments::parse()),
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    let words: Vec<_> = successors(Some(&*error), |&error| error.source()).map(ToString::to_string).collect();
    eprintln!("driftless: {}", words.join(": "));
    error.downcast_ref().map_or(ExitCode::FAILURE, |error: &runner::Error| error.exit_code().into())
}

/// See [`Settings::runner`].
fn hold(mut command: impl Iterator<Item = OsString>) -> Result<(), Box<dyn Error>> {
    let program = command.next().ok_or("hold: program argument is missing")?;
    // No process outlives its run: the program is killed when its parent ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // End of input instead of a byte means that the parent has ended.
    io::stdin().read_exact(&mut [0])?;
    Err(Command::new(program).args(command).exec().into())
}

/// The init container's command: copies this program to the volume that it shares with the user's
/// image.
fn install(mut paths: impl Iterator<Item = OsString>) -> Result<(), Box<dyn Error>> {
    let path = paths.next().ok_or("install: path argument is missing")?;
    // With its permissions, so that any user of the user's image may execute it.
    fs::copy(env::current_exe()?, path)?;
    // The other paths are volumes that containers with different users share.
    paths.try_for_each(|volume| fs::set_permissions(volume, Permissions::from_mode(0o1777)))?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let settings = settings(arguments)?;
    // Other processes of the same user must not read this one's memory or environment. This also
    // hides the program's path, which was read before.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let (told, stop) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        told.send_replace(true);
        // Kept open, so that a run that checks later sees the stop too.
        told.closed().await;
    });
    Ok(runner::run(&settings, stop).await?)
}

fn settings(arguments: Arguments) -> io::Result<Settings> {
    let Arguments { bucket, role_id, metadata, region, s3, aws, credentials_path, credentials_url, .. } = arguments;
    let regional = || format!("https://s3.{region}.amazonaws.com{}", if region.starts_with("cn-") { ".cn" } else { "" });
    Ok(Settings {
        bucket: BucketEndpoint { url: s3.or(aws).unwrap_or_else(regional), region, bucket },
        role_id,
        credentials: CredentialsEndpoint {
            // One of the two is set.
            url: credentials_path.map_or_else(|| credentials_url.unwrap_or_default(), |path| format!("{ECS}{path}")),
            authorization: arguments.credentials_token,
        },
        metadata,
        certificates: arguments.certificates,
        environment: env::vars_os().collect(),
        share: SHARE.into(),
        secrets: SECRETS.into(),
        vmstat: "/proc/vmstat".into(),
        runner: env::current_exe()?,
        now,
    })
}

#[expect(clippy::disallowed_methods, reason = "this is a main.rs")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fargate_task_uses_regional_bucket_and_ecs_credentials() {
        for (region, s3) in
            [("eu-west-1", "https://s3.eu-west-1.amazonaws.com"), ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn")]
        {
            let arguments = Arguments {
                bucket: "bucket".into(),
                role_id: "AROA".into(),
                metadata: "http://169.254.170.2/v4/x".into(),
                region: region.into(),
                s3: None,
                aws: None,
                credentials_path: Some("/v2/credentials/x".into()),
                credentials_url: None,
                credentials_token: None,
                certificates: None,
            };
            let settings = settings(arguments).unwrap();
            assert_eq!((&*settings.bucket.url, &*settings.bucket.region), (s3, region));
            assert_eq!(settings.credentials.url, "http://169.254.170.2/v2/credentials/x");
        }
    }
}
