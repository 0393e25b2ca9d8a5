//! Test hooks. The world is another process than the tests, so that they reach it over HTTP; functions and tasks do not know it.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Result, bail};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    fargate::Fargate, gate::http_client, lambda::Lambda, poller::Mappings, schedule::Schedules, site::Site, url::FunctionUrl,
};
pub use super::{identity::Credentials, outages::Outage, poller::Switches};

/// What the hooks act on.
pub(super) struct Parts {
    pub lambda: Arc<Lambda>,
    pub mappings: Mappings,
    pub schedules: Arc<Schedules>,
    pub function_url: Arc<FunctionUrl>,
    pub fargate: Arc<Fargate>,
}

struct Control {
    site: Arc<Site>,
    parts: Parts,
}

/// What the AWS half of the world has done so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// By function: `delivered`, `failed`, `dropped` and `hidden` messages, batches `inFlight`.
    pub mappings: BTreeMap<String, Value>,
    /// By function: `invocations`, `failures` by kind, how many are `running` and `idle`.
    pub functions: BTreeMap<String, Value>,
    /// Every task as `DescribeTasks` shows it, forgotten ones too.
    pub tasks: Vec<Value>,
    /// Calls of S3 that wait, as `METHOD /path`.
    pub held: Vec<String>,
    /// What must not happen and did: crashes, time-outs, functions that do not start.
    pub alarms: Vec<String>,
}

/// How an invocation ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Invoked {
    /// The function's answer.
    Answer(Value),
    /// Why there is none.
    Failure(String),
}

#[derive(Serialize, Deserialize)]
struct Session {
    role: String,
    session: String,
}

#[derive(Serialize, Deserialize)]
struct Quota {
    about: String,
    tasks: Option<usize>,
}

/// Serves the hooks.
pub(super) fn serve(site: &Arc<Site>, parts: Parts, listener: TcpListener) {
    let router = Router::new()
        .route("/control/status", get(status))
        .route("/control/reset", post(reset))
        .route("/control/mappings/{function}", put(switch))
        .route("/control/mappings/{function}/expire", post(expire))
        .route("/control/schedule/paused", put(pause))
        .route("/control/schedule/{function}/trigger", post(trigger))
        .route("/control/url/disabled", put(disable))
        .route("/control/functions/{function}/invoke", post(invoke))
        .route("/control/functions/{function}/chill", post(chill))
        .route("/control/functions/{function}/clock", put(set_clock))
        .route("/control/variables/{name}", put(set))
        .route("/control/functions/limit", put(limit_functions))
        .route("/control/tasks/refuse", put(refuse))
        .route("/control/tasks/refuse-spot", put(refuse_spot))
        .route("/control/tasks/limit", put(limit))
        .route("/control/tasks/reclaim", post(reclaim))
        .route("/control/tasks/retire", post(retire))
        .route("/control/tasks/exhaust", post(exhaust))
        .route("/control/tasks/fail-starts", put(fail_starts))
        .route("/control/tasks/build-for", put(build_for))
        .route("/control/tasks/slow-starts", put(slow_starts))
        .route("/control/tasks/disk", put(limit_disk))
        .route("/control/tasks/clock", put(set_clock_of_tasks))
        .route("/control/tasks/forget", post(forget))
        .route("/control/s3/hold", put(hold))
        .route("/control/outages", put(outage))
        .route("/control/credentials", post(credentials))
        .route("/control/alarms/forgive", post(forgive))
        .with_state(Arc::new(Control { site: Arc::clone(site), parts }));
    site.tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the control endpoint ended");
        }
    });
}

type Shared = State<Arc<Control>>;

/// An error's words with status 400.
struct Refused(String);

impl<E: Into<anyhow::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self(format!("{:#}", error.into()))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, self.0).into_response()
    }
}

type Answer<T> = Result<Json<T>, Refused>;

async fn status(State(control): Shared) -> Answer<Value> {
    let Parts { lambda, mappings, fargate, .. } = &control.parts;
    Ok(Json(json!({
        "mappings": mappings.status(), "functions": lambda.status(), "tasks": fargate.tasks(), "held": control.site.holds.waiting(),
        "alarms": control.site.alarms(),
    })))
}

async fn reset(State(control): Shared) -> Answer<()> {
    let Parts { lambda, mappings, schedules, function_url, fargate } = &control.parts;
    schedules.pause(false);
    function_url.disabled.store(false, Ordering::Relaxed);
    fargate.refuse(0);
    fargate.refuse_spot(0);
    control.site.holds.set(Vec::new());
    control.site.outages.reset();
    lambda.limit(None);
    mappings.reset().await?;
    Ok(Json(lambda.reset().await?))
}

async fn switch(State(control): Shared, Path(function): Path<String>, Json(switches): Json<Switches>) -> Answer<()> {
    Ok(Json(control.parts.mappings.switch(&function, &switches).await?))
}

async fn expire(State(control): Shared, Path(function): Path<String>) -> Answer<usize> {
    Ok(Json(control.parts.mappings.expire(&function).await?))
}

async fn pause(State(control): Shared, Json(paused): Json<bool>) -> Answer<()> {
    control.parts.schedules.pause(paused);
    Ok(Json(()))
}

async fn trigger(State(control): Shared, Path(function): Path<String>) -> Answer<()> {
    Ok(Json(control.parts.schedules.trigger(&function)?))
}

async fn disable(State(control): Shared, Json(disabled): Json<bool>) -> Answer<()> {
    control.parts.function_url.disabled.store(disabled, Ordering::Relaxed);
    Ok(Json(()))
}

async fn invoke(State(control): Shared, Path(function): Path<String>, Json(event): Json<Value>) -> Answer<Invoked> {
    Ok(Json(match control.parts.lambda.invoke(&function, &event).await {
        Ok(answer) => Invoked::Answer(serde_json::from_slice(&answer)?),
        Err(failure) => Invoked::Failure(failure.to_string()),
    }))
}

async fn chill(State(control): Shared, Path(function): Path<String>) -> Answer<()> {
    Ok(Json(control.parts.lambda.chill(&function)?))
}

async fn limit_functions(State(control): Shared, Json(executions): Json<Option<usize>>) -> Answer<()> {
    control.parts.lambda.limit(executions);
    Ok(Json(()))
}

async fn set(State(control): Shared, Path(variable): Path<String>, Json(value): Json<String>) -> Answer<()> {
    Ok(Json(control.parts.lambda.set(&variable, &value).await?))
}

async fn set_clock(State(control): Shared, Path(function): Path<String>, Json(seconds): Json<i64>) -> Answer<()> {
    Ok(Json(control.parts.lambda.set_clock(&function, seconds).await?))
}

async fn refuse(State(control): Shared, Json(count): Json<u32>) -> Answer<()> {
    control.parts.fargate.refuse(count);
    Ok(Json(()))
}

async fn refuse_spot(State(control): Shared, Json(count): Json<u32>) -> Answer<()> {
    control.parts.fargate.refuse_spot(count);
    Ok(Json(()))
}

async fn limit(State(control): Shared, Json(Quota { about, tasks }): Json<Quota>) -> Answer<()> {
    control.parts.fargate.limit(about, tasks);
    Ok(Json(()))
}

async fn reclaim(State(control): Shared, Json(task): Json<String>) -> Answer<()> {
    Ok(Json(control.parts.fargate.reclaim(&task)?))
}

async fn retire(State(control): Shared, Json(task): Json<String>) -> Answer<()> {
    Ok(Json(control.parts.fargate.retire(&task)?))
}

async fn exhaust(State(control): Shared, Json(task): Json<String>) -> Answer<()> {
    Ok(Json(control.parts.fargate.exhaust(&task)?))
}

async fn fail_starts(State(control): Shared, Json((image, reason)): Json<(String, Option<String>)>) -> Answer<()> {
    control.parts.fargate.fail_starts(&image, reason);
    Ok(Json(()))
}

async fn build_for(State(control): Shared, Json((image, processor)): Json<(String, String)>) -> Answer<()> {
    control.parts.fargate.build_for(&image, &processor);
    Ok(Json(()))
}

async fn slow_starts(State(control): Shared, Json((image, seconds)): Json<(String, u64)>) -> Answer<()> {
    control.parts.fargate.slow_starts(&image, Duration::from_secs(seconds));
    Ok(Json(()))
}

async fn limit_disk(State(control): Shared, Json((image, mib)): Json<(String, u64)>) -> Answer<()> {
    control.parts.fargate.limit_disk(&image, mib);
    Ok(Json(()))
}

async fn set_clock_of_tasks(State(control): Shared, Json((image, seconds)): Json<(String, i64)>) -> Answer<()> {
    control.parts.fargate.set_clock(&image, seconds);
    Ok(Json(()))
}

async fn forget(State(control): Shared) -> Answer<()> {
    control.parts.fargate.forget();
    Ok(Json(()))
}

async fn hold(State(control): Shared, Json(held): Json<Vec<String>>) -> Answer<()> {
    control.site.holds.set(held);
    Ok(Json(()))
}

async fn outage(State(control): Shared, Json(outage): Json<Outage>) -> Answer<()> {
    control.site.outages.set(outage);
    Ok(Json(()))
}

async fn credentials(State(control): Shared, Json(wanted): Json<Session>) -> Answer<Credentials> {
    let site = &control.site;
    Ok(Json(site.identities.session(&site.template, &wanted.role, &wanted.session, None)?))
}

async fn forgive(State(control): Shared, Json(words): Json<String>) -> Answer<()> {
    control.site.forgive(&words);
    Ok(Json(()))
}

/// Reaches the hooks of a running world.
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// For a world whose control endpoint is at `url`, as [`super::Aws::control`] has it.
    pub fn new(url: &str) -> Result<Self> {
        Ok(Self { http: http_client()?, url: url.trim_end_matches('/').into() })
    }

    /// What happened so far.
    pub async fn status(&self) -> Result<Status> {
        self.call(reqwest::Method::GET, "status", &()).await
    }

    /// Turns everything on again: the schedule, the function URL, mappings, calls that wait, outages that concern all,
    /// capacity, the account's quota of concurrent executions, and the functions' variables as the template has them.
    pub async fn reset(&self) -> Result<()> {
        self.call(reqwest::Method::POST, "reset", &()).await
    }

    /// Sets the switches of the mappings that feed a function.
    pub async fn switch(&self, function: &str, switches: &Switches) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("mappings/{function}"), switches).await
    }

    /// Makes the visibility timeout of a function's failed messages pass now; how many there were.
    pub async fn expire(&self, function: &str) -> Result<usize> {
        self.call(reqwest::Method::POST, &format!("mappings/{function}/expire"), &()).await
    }

    /// Stops the ticks of every schedule, or lets them go on.
    pub async fn pause_schedule(&self, paused: bool) -> Result<()> {
        self.call(reqwest::Method::PUT, "schedule/paused", &paused).await
    }

    /// Lets the schedule of a function tick now. The function may not have run yet when this returns.
    pub async fn trigger(&self, function: &str) -> Result<()> {
        self.call(reqwest::Method::POST, &format!("schedule/{function}/trigger"), &()).await
    }

    /// Answers every call of the function URL with 503, or serves it again.
    pub async fn disable_url(&self, disabled: bool) -> Result<()> {
        self.call(reqwest::Method::PUT, "url/disabled", &disabled).await
    }

    /// Invokes a function and waits for its answer.
    pub async fn invoke(&self, function: &str, event: &Value) -> Result<Invoked> {
        self.call(reqwest::Method::POST, &format!("functions/{function}/invoke"), event).await
    }

    /// Ends the idle instances of a function, so that the next invocation is a cold start.
    pub async fn chill(&self, function: &str) -> Result<()> {
        self.call(reqwest::Method::POST, &format!("functions/{function}/chill"), &()).await
    }

    /// Gives a variable of the functions' environment another value, such as a parameter of the template sets.
    pub async fn set(&self, variable: &str, value: &str) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("variables/{variable}"), &value).await
    }

    /// Sets the clock of a function wrong by so many seconds, until [`Client::reset`]. It needs `libfaketime.so.1` among the tools.
    pub async fn set_clock(&self, function: &str, seconds: i64) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("functions/{function}/clock"), &seconds).await
    }

    /// Allows so many concurrent executions of all functions together, as the account's quota does; `None` ends the quota.
    pub async fn limit_functions(&self, executions: Option<usize>) -> Result<()> {
        self.call(reqwest::Method::PUT, "functions/limit", &executions).await
    }

    /// Lets the next `count` calls of `RunTask` find no capacity.
    pub async fn refuse_tasks(&self, count: u32) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/refuse", &count).await
    }

    /// Lets the next `count` calls of `RunTask` for Spot find no capacity; those on demand find some.
    pub async fn refuse_spot(&self, count: u32) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/refuse-spot", &count).await
    }

    /// Allows so many tasks at once whose definition contains a text, such as the name of an image; `None` ends the quota.
    pub async fn limit_tasks(&self, about: &str, tasks: Option<usize>) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/limit", &Quota { about: about.into(), tasks }).await
    }

    /// Takes the capacity of a task on Spot back: it gets SIGTERM, and SIGKILL after its stop timeout.
    pub async fn reclaim(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/reclaim", &task).await
    }

    /// Has AWS stop a task for maintenance: it gets SIGTERM, and SIGKILL after its stop timeout.
    pub async fn retire(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/retire", &task).await
    }

    /// Kills the main container of a task that runs, as one that used more memory than it has.
    pub async fn exhaust(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/exhaust", &task).await
    }

    /// Lets tasks with a container of this image fail to start with that reason, or lets them start again. It goes on through
    /// [`Client::reset`], as no other test has the image.
    pub async fn fail_starts(&self, image: &str, reason: Option<&str>) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/fail-starts", &(image, reason)).await
    }

    /// Has an image built for one processor alone, by ECS's name for it. It goes on through [`Client::reset`], as no other test has the image.
    pub async fn build_for(&self, image: &str, processor: &str) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/build-for", &(image, processor)).await
    }

    /// Lets tasks with a container of this image be pending for so many seconds, as on Fargate while it pulls a large image. It goes on
    /// through [`Client::reset`], as no other test has the image.
    pub async fn slow_starts(&self, image: &str, seconds: u64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/slow-starts", &(image, seconds)).await
    }

    /// Gives tasks with a container of this image a disk of so many MiB; 0 ends that. It goes on through [`Client::reset`], as no other test
    /// has the image.
    pub async fn limit_disk(&self, image: &str, mib: u64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/disk", &(image, mib)).await
    }

    /// Sets the clock of the runner in tasks with this image wrong by so many seconds; 0 sets it right. It goes on through
    /// [`Client::reset`], as no other test has the image. It needs `libfaketime.so.1` among the tools.
    pub async fn set_clock_of_tasks(&self, image: &str, seconds: i64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/clock", &(image, seconds)).await
    }

    /// Makes ECS forget the stopped tasks and their client tokens, as it does after an hour.
    pub async fn forget_tasks(&self) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/forget", &()).await
    }

    /// Has every call of S3 wait that is one of these, such as `GET /in/pack`; with none, all go on.
    pub async fn hold(&self, held: &[&str]) -> Result<()> {
        self.call(reqwest::Method::PUT, "s3/hold", &held).await
    }

    /// Begins an outage, or ends it.
    pub async fn outage(&self, outage: &Outage) -> Result<()> {
        self.call(reqwest::Method::PUT, "outages", outage).await
    }

    /// Keys of a session of a role, such as `TaskRole` with a made-up task id: what would somebody with these be refused?
    pub async fn credentials(&self, role: &str, session: &str) -> Result<Credentials> {
        let wanted = Session { role: role.into(), session: session.into() };
        self.call(reqwest::Method::POST, "credentials", &wanted).await
    }

    /// Removes the alarms that contain these words. The caller caused and checked them.
    pub async fn forgive(&self, words: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "alarms/forgive", &words).await
    }

    async fn call<T: DeserializeOwned>(&self, method: reqwest::Method, path: &str, body: &impl Serialize) -> Result<T> {
        let request =
            self.http.request(method, format!("{}/control/{path}", self.url)).header("content-type", "application/json");
        let answer = request.body(serde_json::to_vec(body)?).send().await?;
        let (status, body) = (answer.status(), answer.bytes().await?);
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(serde_json::from_slice(&body)?)
    }
}
