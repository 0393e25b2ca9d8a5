//! One execution environment: a process with its own Runtime API, because a request to the API does
//! not identify the caller.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{self, DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use futures::FutureExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    process::Command,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    aws::{
        machine::{address, listener, now},
        site::Site,
    },
    world::process::{Process, command},
};

/// Lambda's time limit for an environment's first request for an event.
const INIT: Duration = Duration::from_secs(10);
/// The maximum size of a response: 6 MB, and JSON's overhead.
const ANSWER_BYTES: usize = 8 << 20;

/// Why an invocation has no response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The function reported an error.
    #[error("{kind}: {message}")]
    Function {
        /// `errorType`
        kind: String,
        /// `errorMessage`
        message: String,
    },
    /// It exceeded the template's time limit, and was killed.
    #[error("Task timed out after {} seconds", .0.as_secs())]
    TimedOut(Duration),
    /// Its process ended.
    #[error("Runtime exited: {0}")]
    Crashed(String),
    /// A test killed its process.
    #[error("Runtime exited: signal: 9 (SIGKILL), for a test")]
    Killed,
    /// It never requested an event.
    #[error("Runtime failed to start: {0}")]
    Init(String),
    /// All of its reserved concurrency is in use, or all of the account's.
    #[error("TooManyRequestsException: Rate exceeded")]
    Throttled,
}

impl Failure {
    /// The name in counters and the journal.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Function { .. } => "error",
            Self::TimedOut(_) => "timeout",
            Self::Crashed(_) => "crash",
            Self::Killed => "kill",
            Self::Init(_) => "init",
            Self::Throttled => "throttle",
        }
    }
}

/// A running environment.
pub struct Instance {
    /// The time from the start of the process to its first request for an event.
    pub init: Duration,
    /// When its credentials expire.
    pub expires: Timestamp,
    /// The id of its access key.
    pub access_key_id: String,
    process: Process,
    pid_file: PathBuf,
    arn: String,
    events: mpsc::Sender<Event>,
    _server: JoinSet<()>,
    /// Dropped last, because another instance may use the number only after the process has ended.
    _number: Number,
}

type Reply = oneshot::Sender<Result<Bytes, Failure>>;

struct Event {
    request: String,
    deadline: Timestamp,
    arn: String,
    payload: Bytes,
    reply: Reply,
}

/// The server of the Runtime API.
struct Api {
    events: tokio::sync::Mutex<mpsc::Receiver<Event>>,
    /// The event in progress.
    current: Mutex<Option<(String, Reply)>>,
    init: watch::Sender<Init>,
}

#[derive(Clone)]
enum Init {
    Running,
    Done,
    Failed(String),
}

impl Instance {
    /// Starts the process and waits until it requests its first event.
    pub async fn start(
        site: &Site,
        name: &str,
        number: Number,
        bootstrap: &Path,
        environment: &BTreeMap<String, String>,
        expires: Timestamp,
    ) -> Result<Self, Failure> {
        let broken = |error: anyhow::Error| Failure::Init(format!("{error:#}"));
        let listener = listener().await.map_err(broken)?;
        let api = address(&listener).map_err(broken)?.trim_start_matches("http://").to_owned();
        let (events, receiver) = mpsc::channel(1);
        let (init, mut ready) = watch::channel(Init::Running);
        let mut server = JoinSet::new();
        let router = router(Arc::new(Api { events: tokio::sync::Mutex::new(receiver), current: Mutex::default(), init }));
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "a Runtime API ended");
            }
        });
        let started = Instant::now();
        let mut command = bootstrap_command(site, bootstrap);
        command.env_clear().envs(environment).env("AWS_LAMBDA_RUNTIME_API", api);
        let mut process = Process::start(&site.dirs, name, command).map_err(broken)?;
        tokio::select! {
            status = process.wait() => return Err(Failure::Init(format!("it ended with {}: {}", words(status), process.last_words()))),
            () = sleep(INIT) => return Err(Failure::Init(format!("it did not ask for an event within {} s", INIT.as_secs()))),
            state = ready.wait_for(|state| !matches!(state, Init::Running)) => if let Ok(Init::Failed(message)) = state.as_deref() {
                return Err(Failure::Init(message.clone()));
            },
        }
        let pid_file = site.dirs.pids().join(name);
        let [arn, access_key_id] =
            ["AWS_LAMBDA_FUNCTION_NAME", "AWS_ACCESS_KEY_ID"].map(|name| environment.get(name).cloned().unwrap_or_default());
        let arn = format!("arn:aws:lambda:{}:{}:function:{arn}", site.template.region, site.template.account);
        Ok(Self {
            init: started.elapsed(),
            expires,
            access_key_id,
            process,
            pid_file,
            arn,
            events,
            _server: server,
            _number: number,
        })
    }

    /// Sends it an event and waits for the response, its end, or the time limit; after the last two
    /// it cannot be used again.
    pub async fn invoke(&mut self, request: &str, payload: Bytes, limit: Duration) -> Result<Bytes, Failure> {
        let (reply, answer) = oneshot::channel();
        let deadline = now() + limit;
        let event = Event { request: request.into(), deadline, arn: self.arn.clone(), payload, reply };
        let gone = |status| Failure::Crashed(words(status));
        if self.events.try_send(event).is_err() {
            return Err(Failure::Crashed("its Runtime API is gone".into()));
        }
        let work = async {
            tokio::select! {
                biased;
                answer = answer => answer.unwrap_or_else(|_| Err(Failure::Crashed("its Runtime API is gone".into()))),
                status = self.process.wait() => Err(gone(status)),
            }
        };
        timeout(limit, work).await.unwrap_or(Err(Failure::TimedOut(limit)))
    }

    /// How its process ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        self.process.wait().now_or_never().map(words)
    }

    /// Its peak memory in KiB.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        let pid = fs::read_to_string(&self.pid_file).ok()?;
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

/// The command of a function's process, in its own mount namespace if it has a hosts file.
fn bootstrap_command(site: &Site, bootstrap: &Path) -> Command {
    let Some(hosts) = &site.etc_hosts else { return command(&site.dirs, bootstrap) };
    let mut command = command(&site.dirs, "/usr/bin/unshare");
    let mount = "/usr/bin/mount --bind \"$0\" /etc/hosts && exec \"$1\"";
    command.args(["--mount", "--", "/bin/sh", "-c", mount]).arg(hosts).arg(bootstrap);
    command
}

fn words(status: anyhow::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{request}/response", post(response))
        .route("/2018-06-01/runtime/invocation/{request}/error", post(error))
        .route("/2018-06-01/runtime/init/error", post(init_error))
        .layer(DefaultBodyLimit::max(ANSWER_BYTES))
        .with_state(api)
}

async fn next(State(api): State<Arc<Api>>) -> Response {
    api.init.send_replace(Init::Done);
    let Some(event) = api.events.lock().await.recv().await else { return StatusCode::GONE.into_response() };
    let headers = [
        ("lambda-runtime-aws-request-id", event.request.clone()),
        ("lambda-runtime-deadline-ms", event.deadline.as_millisecond().to_string()),
        ("lambda-runtime-invoked-function-arn", event.arn),
        ("lambda-runtime-trace-id", format!("Root=1-{:.8}-{:.24};Sampled=0", event.request, &event.request[8..])),
        ("content-type", "application/json".into()),
    ];
    *lock(&api.current) = Some((event.request, event.reply));
    (headers, event.payload).into_response()
}

/// Passes a response to the waiting caller.
fn reply(api: &Api, request: &str, answer: Result<Bytes, Failure>) -> Response {
    let current = lock(&api.current).take_if(|(current, _)| current == request);
    let Some((_, waiting)) = current else {
        return (StatusCode::BAD_REQUEST, Json(json!({ "errorType": "InvalidRequestID", "errorMessage": "Invalid request ID" })))
            .into_response();
    };
    // The caller may have stopped at the time limit.
    let _ = waiting.send(answer);
    (StatusCode::ACCEPTED, Json(json!({ "status": "OK" }))).into_response()
}

async fn response(State(api): State<Arc<Api>>, extract::Path(request): extract::Path<String>, body: Bytes) -> Response {
    reply(&api, &request, Ok(body))
}

async fn error(
    State(api): State<Arc<Api>>,
    extract::Path(request): extract::Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (kind, message) = fault(&headers, &body);
    reply(&api, &request, Err(Failure::Function { kind, message }))
}

async fn init_error(State(api): State<Arc<Api>>, headers: HeaderMap, body: Bytes) -> Response {
    let (kind, message) = fault(&headers, &body);
    api.init.send_replace(Init::Failed(format!("{kind}: {message}")));
    (StatusCode::ACCEPTED, Json(json!({ "status": "OK" }))).into_response()
}

/// `errorType` and `errorMessage`.
fn fault(headers: &HeaderMap, body: &[u8]) -> (String, String) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let header = headers.get("lambda-runtime-function-error-type").and_then(|value| value.to_str().ok());
    let kind = body["errorType"].as_str().or(header).unwrap_or("Unknown").to_owned();
    (kind, body["errorMessage"].as_str().unwrap_or_default().to_owned())
}

/// An instance's number, released when the instance is dropped.
pub(super) struct Number {
    pub(super) value: usize,
    pool: Arc<Mutex<Vec<usize>>>,
}

impl Number {
    pub(super) fn take(pool: &Arc<Mutex<Vec<usize>>>) -> Option<Self> {
        let value = lock(pool).pop()?;
        Some(Self { value, pool: Arc::clone(pool) })
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&self.pool).push(self.value);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
