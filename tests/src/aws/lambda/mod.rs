//! Lambda: the real function binaries behind the Runtime API, started on demand and kept, up to the
//! concurrency that the template and the machine allow.

mod instance;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use axum::body::Bytes;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, TryAcquireError};

pub use self::instance::Failure;
use self::instance::{Instance, Number, lock};
use super::{
    identity::Credentials,
    machine::{now, random_hex, wrong_clock},
    site::Site,
    template::Function,
};

/// The lifetime of an environment's keys here; it is not kept longer.
const SESSION: SignedDuration = SignedDuration::from_hours(12);

/// All functions of the template.
pub struct Lambda {
    hosts: BTreeMap<String, Host>,
    account: Mutex<Account>,
}

/// The concurrent executions of the account.
#[derive(Default)]
struct Account {
    running: usize,
    /// The quota; without it only the functions' own limits apply.
    limit: Option<usize>,
}

/// One of the account's concurrent executions, released when it is dropped.
struct Execution<'a>(&'a Mutex<Account>);

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        lock(self.0).running -= 1;
    }
}

/// One function.
struct Host {
    site: Arc<Site>,
    id: String,
    environment: Mutex<BTreeMap<String, String>>,
    /// The maximum number of instances, and a permit for each.
    instances: usize,
    running: Semaphore,
    idle: Mutex<Vec<Instance>>,
    /// The free numbers of instances, each of which has one: they name logs and pid files.
    numbers: Arc<Mutex<Vec<usize>>>,
    invocations: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl Lambda {
    /// Starts no process yet. `instances` limits every function.
    pub fn new(site: &Arc<Site>, instances: usize) -> Self {
        let hosts = site.template.functions.iter().map(|(id, function)| {
            let allowed = function.reserved_concurrency.unwrap_or(instances).min(instances);
            let host = Host {
                site: Arc::clone(site),
                id: id.clone(),
                environment: environment(site, function).into(),
                instances: allowed,
                running: Semaphore::new(allowed),
                idle: Mutex::default(),
                numbers: Arc::new(Mutex::new((1..=instances).rev().collect())),
                invocations: AtomicU64::new(0),
                failures: Mutex::default(),
            };
            (id.clone(), host)
        });
        Self { hosts: hosts.collect(), account: Mutex::default() }
    }

    /// Sets the account's quota of concurrent executions; `None` removes it.
    pub fn limit(&self, executions: Option<usize>) {
        lock(&self.account).limit = executions;
    }

    /// Takes one of the account's concurrent executions for a function.
    fn execute(&self, host: &Host) -> Result<Execution<'_>, Failure> {
        let mut account = lock(&self.account);
        if account.limit.is_some_and(|limit| account.running >= limit) {
            *lock(&host.failures).entry(Failure::Throttled.name()).or_default() += 1;
            return Err(Failure::Throttled);
        }
        account.running += 1;
        Ok(Execution(&self.account))
    }

    /// Invokes a function and waits for a free instance and the response. It does not wait for the
    /// account's quota.
    pub async fn invoke(&self, function: &str, event: &Value) -> Result<Bytes, Failure> {
        let host = self.host(function)?;
        let _permit = host.running.acquire().await.map_err(|_| Failure::Init("the world ends".into()))?;
        let _execution = self.execute(host)?;
        host.invoke(event).await
    }

    /// The same, for callers that are refused when all instances are busy.
    pub async fn try_invoke(&self, function: &str, event: &Value) -> Result<Bytes, Failure> {
        let host = self.host(function)?;
        let _permit = host.running.try_acquire().map_err(|error| match error {
            TryAcquireError::NoPermits => Failure::Throttled,
            TryAcquireError::Closed => Failure::Init("the world ends".into()),
        })?;
        let _execution = self.execute(host)?;
        host.invoke(event).await
    }

    fn host(&self, function: &str) -> Result<&Host, Failure> {
        self.hosts.get(function).ok_or_else(|| Failure::Init(format!("there is no function {function}")))
    }

    /// Ends the idle instances of a function, so that its next invocation is a cold start.
    pub async fn chill(&self, function: &str) -> Result<()> {
        self.host(function)?.end().await
    }

    /// Changes a variable in every function that has it, as an update of the template's parameters
    /// does, once no function runs.
    pub async fn set(&self, variable: &str, value: &str) -> Result<()> {
        let has = |host: &&Host| lock(&host.environment).contains_key(variable);
        let hosts: Vec<_> = self.hosts.values().filter(has).collect();
        ensure!(!hosts.is_empty(), "no function has the variable {variable}");
        for host in hosts {
            let mut environment = lock(&host.environment).clone();
            environment.insert(variable.to_owned(), value.to_owned());
            host.update(environment).await?;
        }
        Ok(())
    }

    /// Shifts the clock of a function by this many seconds, once it does not run, until
    /// [`Self::reset`]. See [`wrong_clock`].
    pub async fn set_clock(&self, function: &str, seconds: i64) -> Result<()> {
        let host = self.host(function)?;
        let mut environment = lock(&host.environment).clone();
        environment.extend(wrong_clock(&host.site.dirs, seconds)?.map(|(name, value)| (name.to_owned(), value)));
        host.update(environment).await
    }

    /// Restores the template's environment in every function.
    pub async fn reset(&self) -> Result<()> {
        for host in self.hosts.values() {
            host.update(environment(&host.site, &host.site.template.functions[&host.id])).await?;
        }
        Ok(())
    }

    /// The number of invocations of each function, and of its failures by kind.
    pub fn status(&self) -> Value {
        let status = self.hosts.iter().map(|(id, host)| {
            let (invocations, failures) = (host.invocations.load(Ordering::Relaxed), lock(&host.failures).clone());
            let (running, idle) = (host.instances - host.running.available_permits(), lock(&host.idle).len());
            (id.clone(), json!({ "invocations": invocations, "failures": failures, "running": running, "idle": idle }))
        });
        Value::Object(status.collect())
    }
}

impl Host {
    /// Replaces the environment once no instance runs, and ends the idle ones.
    async fn update(&self, environment: BTreeMap<String, String>) -> Result<()> {
        if *lock(&self.environment) != environment {
            let _all = self.running.acquire_many(self.instances.try_into()?).await?;
            *lock(&self.environment) = environment;
            lock(&self.idle).clear();
        }
        Ok(())
    }

    /// Ends the instances once none runs.
    async fn end(&self) -> Result<()> {
        let _all = self.running.acquire_many(self.instances.try_into()?).await?;
        lock(&self.idle).clear();
        Ok(())
    }

    /// The caller holds a permit.
    async fn invoke(&self, event: &Value) -> Result<Bytes, Failure> {
        let request = random_hex(16).map_err(|error| Failure::Init(error.to_string()))?;
        let started = Instant::now();
        let (mut cold, mut peak) = (None, None);
        let result = async {
            let mut instance = match self.warm() {
                Some(instance) => instance,
                None => self.start().await.inspect(|instance| cold = Some(instance.init))?,
            };
            let timeout = self.site.template.functions[&self.id].timeout;
            let result = match instance.invoke(&request, Bytes::from(event.to_string()), timeout).await {
                Err(Failure::Crashed(_)) if self.site.outages.has_killed(&instance.access_key_id) => Err(Failure::Killed),
                result => result,
            };
            peak = instance.peak_memory_kib();
            if matches!(result, Ok(_) | Err(Failure::Function { .. })) {
                lock(&self.idle).push(instance);
            }
            result
        }
        .await;
        self.record(&request, started.elapsed(), cold, peak, result.as_ref().err());
        result
    }

    /// An idle instance that is alive.
    fn warm(&self) -> Option<Instance> {
        loop {
            let mut instance = lock(&self.idle).pop()?;
            if let Some(status) = instance.ended() {
                self.site.alarm(format!("{}: an idle instance ended: {status}", self.id));
            } else if now() < instance.expires {
                return Some(instance);
            }
        }
    }

    async fn start(&self) -> Result<Instance, Failure> {
        let number = Number::take(&self.numbers).ok_or_else(|| Failure::Init("more instances than permits".into()))?;
        let function = &self.site.template.functions[&self.id];
        let init = |error: anyhow::Error| Failure::Init(format!("{error:#}"));
        let template = &self.site.template;
        if !template.roles.get(&function.role).is_some_and(|role| template.trusts(role, "lambda.amazonaws.com", &function.arn)) {
            return Err(Failure::Init("the role defined for the function cannot be assumed by Lambda".into()));
        }
        let expires = now() + SESSION;
        let keys =
            self.site.identities.session(&self.site.template, &function.role, &function.name, Some(expires)).map_err(init)?;
        let mut environment = lock(&self.environment).clone();
        let Credentials { access_key_id, secret_access_key, session_token } = keys;
        environment.extend([
            ("AWS_ACCESS_KEY_ID".into(), access_key_id),
            ("AWS_SECRET_ACCESS_KEY".into(), secret_access_key),
            ("AWS_SESSION_TOKEN".into(), session_token.unwrap_or_default()),
            (
                "AWS_LAMBDA_LOG_STREAM_NAME".into(),
                format!("{}/[$LATEST]{}", now().strftime("%Y/%m/%d"), random_hex(16).map_err(init)?),
            ),
        ]);
        // The folder's name is that of the package, which people expect among the logs.
        let name = function.code.file_name().map_or_else(|| self.id.clone().into(), |name| name.to_string_lossy());
        Instance::start(
            &self.site,
            &format!("{name}-{}", number.value),
            number,
            &function.code.join("bootstrap"),
            &environment,
            expires,
        )
        .await
    }

    fn record(&self, request: &str, took: Duration, cold: Option<Duration>, peak_kib: Option<u64>, failure: Option<&Failure>) {
        self.invocations.fetch_add(1, Ordering::Relaxed);
        let millis = |duration: Duration| (duration.as_secs_f64() * 1_000_000.0).round() / 1000.0;
        self.site.invocations.write(&json!({
            "at": now().to_string(), "function": self.id, "request": request, "milliseconds": millis(took), "initMilliseconds": cold.map(millis),
            "peakKib": peak_kib, "failure": failure.map(Failure::name), "message": failure.map(ToString::to_string),
        }));
        if let Some(failure) = failure {
            *lock(&self.failures).entry(failure.name()).or_default() += 1;
            if !matches!(failure, Failure::Throttled | Failure::Killed) {
                self.site.alarm(format!("{}: {failure} (request {request})", self.id));
            }
        }
    }
}

/// Lambda's own variables, the template's, and the endpoint of AWS.
fn environment(site: &Site, function: &Function) -> BTreeMap<String, String> {
    let mut environment = function.environment.clone();
    let region = &site.template.region;
    let fixed = [
        ("AWS_DEFAULT_REGION", region.as_str()),
        ("AWS_ENDPOINT_URL", &site.endpoint),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", &function.memory.to_string()),
        ("AWS_LAMBDA_FUNCTION_NAME", &function.name),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", &function.log_group),
        ("AWS_REGION", region),
        ("LAMBDA_RUNTIME_DIR", "/var/runtime"),
        ("LAMBDA_TASK_ROOT", &function.code.display().to_string()),
        ("LANG", "en_US.UTF-8"),
        ("PATH", "/usr/local/bin:/usr/bin/:/bin:/opt/bin"),
        ("TZ", ":UTC"),
        ("_HANDLER", "bootstrap"),
    ];
    environment.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    environment
}
