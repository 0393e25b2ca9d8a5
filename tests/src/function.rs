//! A deployed function as a process, with its own Lambda Runtime API.

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::{get, post},
};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    task::JoinHandle,
    time::timeout,
};

/// The time limit of an invocation.
const WITHIN: Duration = Duration::from_mins(2);

/// A function's process. Dropping it kills it.
pub struct Function {
    /// When its process was started.
    pub started: Instant,
    child: Child,
    events: Sender<String>,
    responses: Receiver<(Instant, Bytes)>,
    served: JoinHandle<()>,
    scratch: TempDir,
}

#[derive(Clone)]
struct Api {
    events: Arc<Mutex<Receiver<String>>>,
    responses: Sender<(Instant, Bytes)>,
}

impl Function {
    /// Starts a function's binary with the template's environment, changed by `environment`.
    pub async fn start(mut command: Command, environment: &[(&str, String)]) -> Result<Self> {
        let (events, to_give) = channel(1);
        let (responded, responses) = channel(1);
        let api = Api { events: Arc::new(Mutex::new(to_give)), responses: responded };
        let (address, served) = serve(router(api)).await?;
        let scratch = tempfile::tempdir()?;
        command.env_clear().envs(ENV).env("AWS_LAMBDA_RUNTIME_API", address).kill_on_drop(true);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let log = File::create(scratch.path().join("log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        Ok(Self { started, child, events, responses, served, scratch })
    }

    /// Invokes it with an event. Returns when it responded, and its response.
    pub async fn invoke(&mut self, event: String) -> Result<(Instant, Bytes)> {
        self.events.send(event).await?;
        let response = timeout(WITHIN, self.responses.recv()).await.ok().flatten();
        response.with_context(|| self.log())
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }

    /// Its peak memory so far, in bytes.
    pub fn peak(&self) -> Result<u64> {
        peak(self.child.id().context("it ended")?)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// The peak memory of a process so far, in bytes.
pub fn peak(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(peak.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Serves on a free port of this machine. Returns the address.
pub async fn serve(router: Router) -> Result<(String, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?.to_string();
    let served = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "an endpoint ended");
        }
    });
    Ok((address, served))
}

/// Serves Secrets Manager with one text for every secret. Returns the environment that a function
/// needs to find it, and the server's task.
pub async fn secrets_manager(text: &str) -> Result<((&'static str, String), JoinHandle<()>)> {
    let answer = serde_json::json!({ "SecretString": text }).to_string();
    let (address, served) = serve(Router::new().route("/", post(async move || answer))).await?;
    Ok((("AWS_ENDPOINT_URL", format!("http://{address}")), served))
}

fn router(api: Api) -> Router {
    let next = async |State(api): State<Api>| {
        let Some(event) = api.events.lock().await.recv().await else { return std::future::pending().await };
        let mut headers = HeaderMap::new();
        headers.insert("lambda-runtime-aws-request-id", HeaderValue::from_static("1"));
        headers.insert("lambda-runtime-deadline-ms", HeaderValue::from_static("4102444800000"));
        headers.insert("lambda-runtime-invoked-function-arn", HeaderValue::from_static("arn:aws:lambda:us-east-1:1:function:f"));
        (headers, event)
    };
    let response = async |State(api): State<Api>, body: Bytes| {
        let _nobody_waits = api.responses.try_send((Instant::now(), body));
        StatusCode::ACCEPTED
    };
    Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/1/response", post(response))
        .with_state(api)
}

/// The environment from Lambda and the template. Its addresses are only used if an event requires
/// it.
const ENV: [(&str, &str); 63] = [
    ("AWS_LAMBDA_FUNCTION_NAME", "f"),
    ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
    ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
    ("AWS_LAMBDA_LOG_GROUP_NAME", "g"),
    ("AWS_LAMBDA_LOG_STREAM_NAME", "s"),
    ("AWS_REGION", "us-east-1"),
    ("AWS_ACCESS_KEY_ID", "k"),
    ("AWS_SECRET_ACCESS_KEY", "s"),
    ("KUBECONFIG_SECRET", "driftless/kubeconfig/f"),
    ("BUCKET", "b"),
    ("HINTS_QUEUE_URL", "http://127.0.0.1/h"),
    ("SOURCES_QUEUE_URL", "http://127.0.0.1/s"),
    ("LAUNCHES_QUEUE_URL", "http://127.0.0.1/l"),
    ("RUNS_QUEUE_URL", "http://127.0.0.1/r"),
    ("DEAD_LETTERS_QUEUE_URL", "http://127.0.0.1/d"),
    ("MAX_ATTEMPTS", "5"),
    ("SYSTEM_NAMESPACE", "driftless-system"),
    ("WATCH_NAMESPACES", "all"),
    ("ARTIFACT_SERVICES", "source-controller.flux-system"),
    ("MAX_ARCHIVE_BYTES", "268435456"),
    ("MAX_TREE_BYTES_PER_NAMESPACE", "107374182400"),
    ("ARTIFACT_TRANSPORT", "direct"),
    ("UNPACK_MAX_BYTES", "268435456"),
    ("UNPACK_MAX_ENTRIES", "100000"),
    ("UNPACK_MAX_PATH_LENGTH", "1024"),
    ("UNPACK_MAX_DEPTH", "64"),
    ("UNPACK_MAX_RATIO", "200"),
    ("TREE_DAYS", "30"),
    ("RESYNC_SECONDS", "600"),
    ("MIN_RESYNC_SECONDS", "60"),
    ("POD_FIELDS", "ignore"),
    ("GIT_ALLOW_LOCAL", "false"),
    ("GITHUB_API_URL", "http://127.0.0.1"),
    ("ECS_CLUSTER", "c"),
    ("TASK_ROLE_ARN", "arn:aws:iam::1:role/r"),
    ("TASK_ROLE_ID", "AROA"),
    ("EXECUTION_ROLE_ARN", "arn:aws:iam::1:role/e"),
    ("SUBNETS", "s"),
    ("SECURITY_GROUPS", "g"),
    ("ASSIGN_PUBLIC_IP", "DISABLED"),
    ("RUNNER_IMAGE", "i"),
    ("DEFAULT_IMAGE", "i"),
    ("RUNTIME_IMAGES", "yaml=i"),
    ("REGISTRY_SECRETS", "driftless/registries"),
    ("TASK_ARCHITECTURE", "amd64"),
    ("TASK_CPU", "1024"),
    ("TASK_MEMORY_MIB", "4096"),
    ("SPOT", "previews"),
    ("CACHE_ENTRY_MIB", "2048"),
    ("CACHE_NAMESPACE_MIB", "20480"),
    ("MAX_RUNS", "0"),
    ("MAX_RUNS_PER_NAMESPACE", "0"),
    ("SILENCE_SECONDS", "7200"),
    ("MAX_RUN_SECONDS", "0"),
    ("START_SECONDS", "900"),
    ("TOKEN_SECONDS", "3600"),
    ("LOG_GROUP", "g"),
    ("SEAL_KEY", "k"),
    ("WEBHOOK_KEYS_SECRET", "driftless/webhook-keys"),
    ("CLUSTERS", ","),
    ("SWEEP_SECONDS", "60"),
    ("LOOK_PERIOD_SECONDS", "600"),
    ("COLLECT_SECONDS", "3600"),
];
