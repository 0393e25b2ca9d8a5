//! Test hooks. The tests reach the world over HTTP, because it is another process; functions and
//! tasks do not know the hooks.

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

/// The parts that the hooks act on.
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

/// The state of the AWS half of the world.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// By function: `delivered`, `failed`, `dropped` and `hidden` messages, batches `inFlight`.
    pub mappings: BTreeMap<String, Value>,
    /// By function: `invocations`, `failures` by kind, how many are `running` and `idle`.
    pub functions: BTreeMap<String, Value>,
    /// Every task as `DescribeTasks` shows it, including forgotten ones.
    pub tasks: Vec<Value>,
    /// Calls of S3 that are held, as `METHOD /path`.
    pub held: Vec<String>,
    /// Forbidden events that happened: crashes, time-outs, functions that do not start.
    pub alarms: Vec<String>,
}

/// The result of an invocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Invoked {
    /// The function's response.
    Answer(Value),
    /// Why there is no response.
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

/// An error message with status 400.
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
    Ok(Json(control.parts.lambda.chill(&function).await?))
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
    /// A client for the control endpoint at `url`, from [`super::Aws::control`].
    pub fn new(url: &str) -> Result<Self> {
        Ok(Self { http: http_client()?, url: url.trim_end_matches('/').into() })
    }

    /// The state of the world.
    pub async fn status(&self) -> Result<Status> {
        self.call(reqwest::Method::GET, "status", &()).await
    }

    /// Resets everything: the schedule, the function URL, mappings, held calls, outages that
    /// concern all tests, capacity, the account's quota of concurrent executions, and the
    /// functions' variables.
    pub async fn reset(&self) -> Result<()> {
        self.call(reqwest::Method::POST, "reset", &()).await
    }

    /// Sets the switches of the mappings that feed a function.
    pub async fn switch(&self, function: &str, switches: &Switches) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("mappings/{function}"), switches).await
    }

    /// Ends the visibility timeout of a function's failed messages now. Returns how many there
    /// were.
    pub async fn expire(&self, function: &str) -> Result<usize> {
        self.call(reqwest::Method::POST, &format!("mappings/{function}/expire"), &()).await
    }

    /// Pauses or resumes every schedule.
    pub async fn pause_schedule(&self, paused: bool) -> Result<()> {
        self.call(reqwest::Method::PUT, "schedule/paused", &paused).await
    }

    /// Triggers the schedule of a function. The function may not have run yet when this returns.
    pub async fn trigger(&self, function: &str) -> Result<()> {
        self.call(reqwest::Method::POST, &format!("schedule/{function}/trigger"), &()).await
    }

    /// Answers every call of the function URL with 503, or serves it again.
    pub async fn disable_url(&self, disabled: bool) -> Result<()> {
        self.call(reqwest::Method::PUT, "url/disabled", &disabled).await
    }

    /// Invokes a function and waits for its response.
    pub async fn invoke(&self, function: &str, event: &Value) -> Result<Invoked> {
        self.call(reqwest::Method::POST, &format!("functions/{function}/invoke"), event).await
    }

    /// Ends the instances of a function once none runs, so that the next invocation is a cold
    /// start.
    pub async fn chill(&self, function: &str) -> Result<()> {
        self.call(reqwest::Method::POST, &format!("functions/{function}/chill"), &()).await
    }

    /// Changes a variable of the functions' environment, as a parameter of the template does.
    pub async fn set(&self, variable: &str, value: &str) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("variables/{variable}"), &value).await
    }

    /// Shifts the clock of a function by this many seconds, until [`Client::reset`]. Requires
    /// `libfaketime.so.1` among the tools.
    pub async fn set_clock(&self, function: &str, seconds: i64) -> Result<()> {
        self.call(reqwest::Method::PUT, &format!("functions/{function}/clock"), &seconds).await
    }

    /// Sets the account's quota of concurrent executions; `None` removes it.
    pub async fn limit_functions(&self, executions: Option<usize>) -> Result<()> {
        self.call(reqwest::Method::PUT, "functions/limit", &executions).await
    }

    /// Makes the next `count` calls of `RunTask` find no capacity.
    pub async fn refuse_tasks(&self, count: u32) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/refuse", &count).await
    }

    /// Makes the next `count` calls of `RunTask` for Spot find no capacity; calls for on-demand
    /// tasks find some.
    pub async fn refuse_spot(&self, count: u32) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/refuse-spot", &count).await
    }

    /// Limits the number of tasks whose definition contains a text, such as the name of an image;
    /// `None` removes the limit.
    pub async fn limit_tasks(&self, about: &str, tasks: Option<usize>) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/limit", &Quota { about: about.into(), tasks }).await
    }

    /// Reclaims the capacity of a task on Spot: it gets SIGTERM, and SIGKILL after its stop
    /// timeout.
    pub async fn reclaim(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/reclaim", &task).await
    }

    /// Makes AWS stop a task for maintenance: it gets SIGTERM, and SIGKILL after its stop timeout.
    pub async fn retire(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/retire", &task).await
    }

    /// Kills the main container of a running task, as if it had exceeded its memory.
    pub async fn exhaust(&self, task: &str) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/exhaust", &task).await
    }

    /// Makes tasks with a container of this image fail to start for this reason; `None` lets them
    /// start. Not reset by [`Client::reset`], because no other test uses the image.
    pub async fn fail_starts(&self, image: &str, reason: Option<&str>) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/fail-starts", &(image, reason)).await
    }

    /// Sets the only processor that an image is built for, by ECS's name for it. Not reset by
    /// [`Client::reset`], because no other test uses the image.
    pub async fn build_for(&self, image: &str, processor: &str) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/build-for", &(image, processor)).await
    }

    /// Keeps tasks with a container of this image pending for this many seconds, as Fargate does
    /// while it pulls a large image. Not reset by [`Client::reset`], because no other test uses the
    /// image.
    pub async fn slow_starts(&self, image: &str, seconds: u64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/slow-starts", &(image, seconds)).await
    }

    /// Limits the disk of tasks with a container of this image to this many MiB; 0 removes the
    /// limit. Not reset by [`Client::reset`], because no other test uses the image.
    pub async fn limit_disk(&self, image: &str, mib: u64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/disk", &(image, mib)).await
    }

    /// Shifts the clock of the runner in tasks with this image by this many seconds; 0 corrects it.
    /// Not reset by [`Client::reset`], because no other test uses the image. Requires
    /// `libfaketime.so.1` among the tools.
    pub async fn set_clock_of_tasks(&self, image: &str, seconds: i64) -> Result<()> {
        self.call(reqwest::Method::PUT, "tasks/clock", &(image, seconds)).await
    }

    /// Makes ECS forget the stopped tasks and their client tokens, as it does after an hour.
    pub async fn forget_tasks(&self) -> Result<()> {
        self.call(reqwest::Method::POST, "tasks/forget", &()).await
    }

    /// Holds every call of S3 that matches one of these, such as `GET /in/pack`; an empty list
    /// releases all.
    pub async fn hold(&self, held: &[&str]) -> Result<()> {
        self.call(reqwest::Method::PUT, "s3/hold", &held).await
    }

    /// Starts or ends an outage.
    pub async fn outage(&self, outage: &Outage) -> Result<()> {
        self.call(reqwest::Method::PUT, "outages", outage).await
    }

    /// Keys of a session of a role, such as `TaskRole` with an invented task id, to test what they
    /// are refused.
    pub async fn credentials(&self, role: &str, session: &str) -> Result<Credentials> {
        let wanted = Session { role: role.into(), session: session.into() };
        self.call(reqwest::Method::POST, "credentials", &wanted).await
    }

    /// Removes the alarms that contain this text. The caller caused and checked them.
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
