//! `make bench`: the figures of the README, each beside what it is to be compared with, from one run.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::{get, post},
};
use driftless_tests::{
    scenario::{Handle, Namespace, PASSPHRASE, Source, commit},
    world::{ready, start::World},
};
use tokio::{
    net::TcpListener,
    process::Command,
    sync::mpsc::{Sender, channel},
};

/// Runs of each kind; the median is shown.
const RUNS: usize = 5;
/// Starts of each function; the median is shown.
const STARTS: usize = 15;

#[tokio::main]
async fn main() -> Result<()> {
    driftless_tests::log();
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize()?;
    functions(&project).await?;
    let world = World::start(&project).await?;
    let measured = Box::pin(runs(&world)).await;
    world.stop().await;
    measured
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A Stack's way to Ready beside a bare `pulumi up` of the same program.
async fn runs(world: &World) -> Result<()> {
    let handle = Handle::open(&world.env_file()).await?;
    let team = handle.namespace("bench").await?;
    let (mut starts, mut wholes, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (start, whole) = stack(&team, &format!("app{run}")).await?;
        let up = pulumi_up(&handle, &team, &format!("bare{run}")).await?;
        // The first pair warms the machine's caches and the functions.
        if run > 0 {
            starts.push(start);
            wholes.push(whole);
            bare.push(up);
        }
    }
    let (start, whole, bare) = (median(starts), median(wholes), median(bare));
    println!("\nA Stack with a Program of one resource, applied together; median of {RUNS}:");
    println!("  kubectl apply → pulumi up starts        {:6.2} s", start.as_secs_f32());
    println!("  kubectl apply → Ready                   {:6.2} s", whole.as_secs_f32());
    println!("  pulumi stack select and up, by hand     {:6.2} s", bare.as_secs_f32());
    println!("  ratio                                   {:6.2}", whole.as_secs_f32() / bare.as_secs_f32());
    Ok(())
}

/// Applies a Program and a Stack; the time until pulumi holds its lock, and until Ready.
async fn stack(team: &Namespace<'_>, name: &str) -> Result<(Duration, Duration)> {
    let locks = PathBuf::from(team.state()?).join(format!(".pulumi/locks/organization/{name}/dev"));
    let started = Instant::now();
    team.apply_program(name, &team.program(name, "content", "")?).await?;
    team.apply_stack(name, Source::Program(name), "").await?;
    let locked = async {
        ready::until("pulumi holds its lock", Duration::from_mins(1), async || {
            ensure!(fs::read_dir(&locks)?.next().is_some(), "no lock in {}", locks.display());
            Ok(started.elapsed())
        })
        .await
    };
    let settled = async {
        team.wait(name, "to be Ready", |stack| commit(stack).is_some()).await?;
        Ok(started.elapsed())
    };
    tokio::try_join!(locked, settled)
}

/// What a user would do by hand, with the same pulumi, provider and kind of backend.
async fn pulumi_up(handle: &Handle, team: &Namespace<'_>, name: &str) -> Result<Duration> {
    let (home, state) = (tempdir(name)?, tempdir(&format!("{name}-state"))?);
    fs::write(home.join("Pulumi.yaml"), format!("name: {name}\nruntime: yaml\n{}", team.program(name, "content", "")?))?;
    let pulumi = async |arguments: &[&str]| -> Result<()> {
        let tools = handle.get("WORLD_TOOLS")?;
        let output = Command::new(Path::new(tools).join("pulumi"))
            .args(arguments)
            .current_dir(&home)
            .env("PATH", format!("{tools}:/usr/bin:/bin"))
            .env("PULUMI_HOME", Path::new(handle.get("WORLD_LOGS")?).join("../image/pulumi"))
            .env("PULUMI_BACKEND_URL", format!("file://{}", state.display()))
            .env("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE)
            .env("PULUMI_SKIP_UPDATE_CHECK", "true")
            .output()
            .await?;
        ensure!(output.status.success(), "pulumi {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let started = Instant::now();
    pulumi(&["stack", "select", "--create", "dev", "--non-interactive"]).await?;
    pulumi(&["up", "--yes", "--skip-preview", "--non-interactive"]).await?;
    let took = started.elapsed();
    fs::remove_dir_all(home)?;
    fs::remove_dir_all(state)?;
    Ok(took)
}

fn tempdir(name: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("driftless-bench-{}-{name}", std::process::id()));
    fs::create_dir(&path)?;
    Ok(path)
}

/// Each function's start beside that of one that does nothing.
async fn functions(project: &Path) -> Result<()> {
    println!("Functions, release build; median of {STARTS} starts, from the start of the process to its first response:");
    println!("  {:12} {:>9} {:>10} {:>9}", "", "start", "peak", "size");
    let mut base = None;
    for (name, event) in [
        ("empty", "{}"),
        ("reconciler", r#"{"Records":[]}"#),
        ("fetcher", r#"{"Records":[]}"#),
        ("launcher", r#"{"Records":[]}"#),
        ("recorder", r#"{"Records":[]}"#),
        ("sweeper", "{}"),
        ("webhook", WEBHOOK_EVENT),
    ] {
        let binary = project.join("target/lambda").join(name).join("bootstrap");
        let size = fs::metadata(&binary).with_context(|| format!("{}: run `make bench`", binary.display()))?.len();
        let mut times = Vec::new();
        let mut peak = 0;
        for _ in 0..STARTS {
            let (time, memory) = start(&binary, event).await.with_context(|| format!("starting {name}"))?;
            times.push(time);
            peak = peak.max(memory);
        }
        let time = median(times);
        let (base_time, base_peak) = *base.get_or_insert((time, peak));
        println!(
            "  {name:12} {:6.1} ms {:6.1} MiB {:5.1} MiB   {:4.1} × the start and {:4.1} × the memory of the empty one",
            time.as_secs_f32() * 1e3,
            mebibytes(peak * 1024),
            mebibytes(size),
            time.as_secs_f32() / base_time.as_secs_f32(),
            mebibytes(peak) / mebibytes(base_peak),
        );
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

const WEBHOOK_EVENT: &str = r#"{"version":"2.0","routeKey":"$default","rawPath":"/c","rawQueryString":"","headers":{},"requestContext":{"accountId":"1","apiId":"a","domainName":"d","domainPrefix":"p","http":{"method":"POST","path":"/c","protocol":"HTTP/1.1","sourceIp":"127.0.0.1","userAgent":"bench"},"requestId":"r","routeKey":"$default","stage":"$default","time":"01/Jan/2026:00:00:00 +0000","timeEpoch":0},"body":"{}","isBase64Encoded":false}"#;

/// A Lambda Runtime API that has one event to give.
#[derive(Clone)]
struct OneEvent {
    event: &'static str,
    responded: Sender<Instant>,
}

/// Starts a function; the time to its first response and its peak memory in KiB by then.
async fn start(binary: &Path, event: &'static str) -> Result<(Duration, u64)> {
    let (responded, mut responses) = channel(1);
    let (api, served) = runtime_api(OneEvent { event, responded }).await?;
    let mut command = Command::new(binary);
    command.env_clear().stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).env("AWS_LAMBDA_RUNTIME_API", api);
    for (name, value) in ENV {
        command.env(name, value);
    }
    let started = Instant::now();
    let mut child = command.spawn()?;
    let pid = child.id().context("a process id")?;
    let response = tokio::time::timeout(Duration::from_secs(10), responses.recv()).await;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    child.start_kill()?;
    let output = child.wait_with_output().await?;
    served.abort();
    let at = response.ok().flatten().with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok((at.duration_since(started), peak.trim().trim_end_matches(" kB").parse()?))
}

async fn runtime_api(state: OneEvent) -> Result<(String, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?.to_string();
    let next = async |State(state): State<OneEvent>| {
        if state.responded.capacity() == 0 {
            std::future::pending::<()>().await;
        }
        let mut headers = HeaderMap::new();
        headers.insert("lambda-runtime-aws-request-id", HeaderValue::from_static("1"));
        headers.insert("lambda-runtime-deadline-ms", HeaderValue::from_static("4102444800000"));
        headers.insert("lambda-runtime-invoked-function-arn", HeaderValue::from_static("arn:aws:lambda:us-east-1:1:function:f"));
        (headers, state.event)
    };
    let response = async |State(state): State<OneEvent>| {
        let _first = state.responded.try_send(Instant::now());
        StatusCode::ACCEPTED
    };
    let router = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/1/response", post(response))
        .with_state(state);
    let served = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the runtime API ended");
        }
    });
    Ok((address, served))
}

/// What Lambda and the template would set. Nothing of it is reached before the first response.
const ENV: [(&str, &str); 30] = [
    ("AWS_LAMBDA_FUNCTION_NAME", "f"),
    ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
    ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
    ("AWS_LAMBDA_LOG_GROUP_NAME", "g"),
    ("AWS_LAMBDA_LOG_STREAM_NAME", "s"),
    ("AWS_REGION", "us-east-1"),
    ("AWS_ACCESS_KEY_ID", "k"),
    ("AWS_SECRET_ACCESS_KEY", "s"),
    ("KUBECONFIG", "/nowhere"),
    ("BUCKET", "b"),
    ("HINTS_QUEUE_URL", "http://127.0.0.1/h"),
    ("SOURCES_QUEUE_URL", "http://127.0.0.1/s"),
    ("LAUNCHES_QUEUE_URL", "http://127.0.0.1/l"),
    ("RUNS_QUEUE_URL", "http://127.0.0.1/r"),
    ("SYSTEM_NAMESPACE", "driftless-system"),
    ("ARTIFACT_SERVICES", "source-controller.flux-system"),
    ("MAX_ARCHIVE_BYTES", "1"),
    ("ECS_CLUSTER", "c"),
    ("TASK_ROLE_ARN", "arn:aws:iam::1:role/r"),
    ("TASK_ROLE_ID", "AROA"),
    ("EXECUTION_ROLE_ARN", "arn:aws:iam::1:role/e"),
    ("SUBNETS", "s"),
    ("SECURITY_GROUPS", "g"),
    ("RUNNER_IMAGE", "i"),
    ("DEFAULT_IMAGE", "i"),
    ("LOG_GROUP", "g"),
    ("WEBHOOK_KEYS", "{\"c\":\"k\"}"),
    ("CLUSTERS", ","),
    ("SWEEP_SECONDS", "60"),
    ("LOOK_PERIOD_SECONDS", "600"),
];
