//! One sweep of a cluster with many Stacks, in the real API server, beside the same lists read and
//! dropped.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use driftless_api::{Stack, Update, Workspace};
use driftless_contract::{Document as _, Hint};
use driftless_core::{Stack as CoreStack, due, its_turn};
use driftless_tests::{
    function::{Function, serve},
    world::{
        cluster::{AUDIT_LOG, Cluster, NAME, apply_yaml, kubeconfig, start_etcd},
        dirs::Dirs,
        process::Supervisor,
    },
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ListParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::{mebibytes, median, now};

/// Sweeps of each size; the median is shown.
const RUNS: usize = 3;
/// The numbers of Stacks.
const SIZES: [usize; 2] = [1_000, 10_000];
/// The number of their namespaces.
const NAMESPACES: usize = 20;
/// One in this many has an overdue reconciliation.
const OVERDUE: usize = 100;
/// Concurrent requests while Stacks are created.
const AT_ONCE: usize = 64;
/// The sweeper's page size.
const PAGE: u32 = 500;
/// The template's value: each Stack has its turn once in this time.
const PERIOD_SECONDS: i64 = 600;
const TICK_SECONDS: i64 = 60;
/// Never in this run, because the listing of trees is not measured.
const COLLECT_SECONDS: i64 = 1 << 40;

/// Prints the figures.
pub async fn measure(project: &Path) -> Result<()> {
    let dirs = Dirs::fresh(project)?;
    let supervisor = Supervisor::default();
    let measured = supervisor.guard(Box::pin(sizes(project, &dirs, &supervisor))).await;
    supervisor.stop().await;
    measured
}

async fn sizes(project: &Path, dirs: &Dirs, supervisor: &Supervisor) -> Result<()> {
    let etcd = start_etcd(dirs, supervisor).await?;
    let cluster = Cluster::start(dirs, supervisor, project, &etcd, None).await?;
    let user = cluster.service_account_users(project).await?.remove("sweeper").context("the sweeper")?;
    let kubeconfig = kubeconfig(&[cluster.entry(user)])?;
    let bench = Bench { admin: cluster.client("admin").await?, cluster, kubeconfig, audit_log: dirs.logs().join(AUDIT_LOG) };
    for namespace in 0..NAMESPACES {
        let yaml = format!("{{ apiVersion: v1, kind: Namespace, metadata: {{ name: {} }} }}", namespace_of(namespace));
        apply_yaml(&bench.admin, &yaml).await?;
    }
    println!("\nOne sweep, release build, of Stacks of some KB; median of {RUNS}, beside the same pages read and thrown away:");
    println!(
        "  {:>6} {:>9} {:>9} {:>6} {:>9} {:>18} {:>9} {:>6}",
        "Stacks", "list", "sweep", "ratio", "peak", "API server's calls", "SQS's", "hints"
    );
    let (mut there, mut times) = (0, Vec::new());
    for size in SIZES {
        let begin = Instant::now();
        let make = stream::iter(there..size).map(|number| bench.stack(number)).buffer_unordered(AT_ONCE);
        make.try_collect::<()>().await?;
        tracing::info!(size, there, seconds = begin.elapsed().as_secs(), "the Stacks are made");
        there = size;
        times.push(bench.sweeps(project, size).await?);
        let (page, bytes) = bench.fleet(size).await?;
        println!(
            "  {size:>6} {:6.0} ms {:5.1} MiB  the fleet of kubectl driftless ui, debug build",
            page.as_secs_f64() * 1e3,
            mebibytes(bytes)
        );
    }
    println!("  {} times the Stacks took {:.1} times the time", SIZES[1] / SIZES[0], times[1].div_duration_f64(times[0]));
    Ok(())
}

fn namespace_of(number: usize) -> String {
    format!("team{}", number % NAMESPACES)
}

struct Bench {
    cluster: Cluster,
    admin: Client,
    /// The sweeper's secret in Secrets Manager.
    kubeconfig: String,
    audit_log: std::path::PathBuf,
}

/// The calls to the queue: each is a list of hints.
type Calls = Arc<Mutex<Vec<Vec<Hint>>>>;

impl Bench {
    /// Creates a Stack that has run and is Ready.
    async fn stack(&self, number: usize) -> Result<()> {
        let api: Api<Stack> = Api::namespaced(self.admin.clone(), &namespace_of(number));
        let mut made = api.create(&PostParams::default(), &serde_json::from_value(stack(number))?).await?;
        made.status = Some(serde_json::from_value(status(number))?);
        api.replace_status(&made.name_any(), &PostParams::default(), &made).await?;
        Ok(())
    }

    /// Prints a line of the table. Returns the time of a sweep.
    async fn sweeps(&self, project: &Path, size: usize) -> Result<Duration> {
        let calls = Calls::default();
        let (address, queue) = serve(aws(Arc::clone(&calls), &self.kubeconfig)).await?;
        let environment = [
            ("CLUSTERS", NAME.into()),
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("HINTS_QUEUE_URL", format!("http://{address}/hints")),
            ("SWEEP_SECONDS", TICK_SECONDS.to_string()),
            ("LOOK_PERIOD_SECONDS", PERIOD_SECONDS.to_string()),
            ("TOKEN_SECONDS", "1200".into()),
            ("COLLECT_SECONDS", COLLECT_SECONDS.to_string()),
        ];
        let mut sweeper = Function::start(Command::new(project.join("target/lambda/sweeper/bootstrap")), &environment).await?;
        let stacks = Api::<Stack>::all(self.admin.clone()).list(&ListParams::default()).await?.items;
        let stacks: Vec<CoreStack> = stacks.iter().map(Into::into).collect();
        ensure!(stacks.len() == size, "{} Stacks are there", stacks.len());
        let (mut lists, mut sweeps, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let reader = self.cluster.client_like("sweeper").await?;
        // The first sweep of each size opens connections.
        for run in 0..=RUNS {
            let begin = Instant::now();
            self.read(&reader).await?;
            let list = begin.elapsed();
            let (requests, before, begin) = (self.requests()?, now(), Instant::now());
            let (end, _) = sweeper.invoke("{}".into()).await?;
            let sent = std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner));
            check(&stacks, &sent, [before, now()]).with_context(|| sweeper.log())?;
            if run > 0 {
                lists.push(list);
                sweeps.push(end.duration_since(begin));
                counts.push((self.requests()? - requests, sent.len(), sent.iter().map(Vec::len).sum::<usize>()));
            }
        }
        queue.abort();
        let (list, sweep, (requests, batches, hints)) = (median(lists), median(sweeps), counts[RUNS / 2]);
        println!(
            "  {size:>6} {:6.0} ms {:6.0} ms {:>6.2} {:5.1} MiB {requests:>18} {batches:>9} {hints:>6}",
            list.as_secs_f64() * 1e3,
            sweep.as_secs_f64() * 1e3,
            sweep.div_duration_f64(list),
            mebibytes(sweeper.peak()?)
        );
        Ok(sweep)
    }

    /// Reads the lists of a sweep, and drops them.
    async fn read(&self, client: &Client) -> Result<()> {
        for path in [Stack::url_path(&(), None), Update::url_path(&(), None), Workspace::url_path(&(), None)] {
            let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
            loop {
                let page = client.request_text(Request::new(path.as_str()).list(&params)?).await?;
                // Objects may be large, so only the end is searched, which has the list's metadata.
                let token = page.rfind("\"metadata\":{").and_then(|at| page[at..].split_once("\"continue\":\""));
                let token = token.and_then(|(_, rest)| Some(rest.split_once('"')?.0.to_owned()));
                params.continue_token = token.filter(|token| !token.is_empty());
                if params.continue_token.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The time and the size of the answer that has all Stacks for the page of `kubectl driftless
    /// ui`.
    async fn fleet(&self, size: usize) -> Result<(Duration, u64)> {
        let binary = std::env::current_exe()?.with_file_name("kubectl-driftless");
        let mut command = Command::new(&binary);
        command.args(["ui", "--all-namespaces"]).env("KUBECONFIG", &self.cluster.admin_kubeconfig);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut page = command.spawn().with_context(|| format!("{}: run `make build`", binary.display()))?;
        let mut lines = BufReader::new(page.stdout.take().context("its output")?).lines();
        let url = lines.next_line().await?.context("a URL")?;
        let (root, token) = url.split_once("/?token=").context("a token")?;
        let port = root.rsplit(':').next().context("a port")?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let (mut times, mut bytes) = (Vec::new(), 0);
        // The first opens connections.
        for run in 0..=RUNS {
            let begin = Instant::now();
            let request = client.get(format!("{root}/api/stacks")).header("cookie", format!("driftless-{port}={token}"));
            let answer = request.send().await?.error_for_status()?.text().await?;
            let time = begin.elapsed();
            let shown = answer.matches("\"name\":").count();
            ensure!(shown == size, "{shown} of {size} Stacks are shown");
            bytes = answer.len() as u64;
            if run > 0 {
                times.push(time);
            }
        }
        Ok((median(times), bytes))
    }

    /// The number of the sweeper's requests that the API server has answered.
    fn requests(&self) -> Result<usize> {
        let log = fs::read_to_string(&self.audit_log)?;
        Ok(log.lines().filter(|line| line.contains("\"impersonatedUser\":{\"username\":\"driftless:sweeper\"")).count())
    }
}

/// Returns whether exactly the due objects were hinted, each once, at one of two times.
fn check(stacks: &[CoreStack], calls: &[Vec<Hint>], times: [Timestamp; 2]) -> Result<()> {
    let hinted: BTreeSet<_> = calls.iter().flatten().map(|hint| (&hint.object.namespace, &hint.object.name)).collect();
    let hints = calls.iter().flatten().count();
    ensure!(hinted.len() == hints, "{} objects, and {hints} hints", hinted.len());
    let is_expected = |now| {
        let due =
            stacks.iter().filter(|stack| due(stack, its_turn(stack.uid.as_str(), PERIOD_SECONDS, TICK_SECONDS, 1, now), now));
        due.map(|stack| (&stack.namespace, &stack.name)).collect::<BTreeSet<_>>() == hinted
    };
    ensure!(times.into_iter().any(is_expected), "{hints} hints of other objects than are due");
    Ok(())
}

/// A queue that answers at once, and the secret with the kubeconfig.
fn aws(calls: Calls, kubeconfig: &str) -> Router {
    let secret = json!({ "SecretString": kubeconfig }).to_string();
    let answer = async |State((calls, secret)): State<(Calls, String)>, headers: HeaderMap, body: Bytes| {
        if headers.get("x-amz-target").is_some_and(|target| target == "secretsmanager.GetSecretValue") {
            return (StatusCode::OK, secret);
        }
        let entries = serde_json::from_slice::<Value>(&body).unwrap_or_default()["Entries"].take();
        let hints: Result<_, _> = entries.as_array().into_iter().flatten().map(hint).collect();
        let Ok(hints) = hints else { return (StatusCode::BAD_REQUEST, String::new()) };
        calls.lock().unwrap_or_else(PoisonError::into_inner).push(hints);
        (StatusCode::OK, json!({ "Successful": [], "Failed": [] }).to_string())
    };
    Router::new().route("/", post(answer)).with_state((calls, secret))
}

fn hint(entry: &Value) -> Result<Hint> {
    Ok(Hint::parse(entry["MessageBody"].as_str().context("no body")?.as_bytes())?)
}

/// A Stack as a team may write it.
fn stack(number: usize) -> Value {
    let secret = |key: &str| json!({ "type": "Secret", "secret": { "name": format!("app{number}"), "key": key } });
    let literal = |value: &str| json!({ "type": "Literal", "literal": { "value": value } });
    let config: serde_json::Map<_, _> =
        (0..12).map(|key| (format!("app:setting{key}"), format!("value {key} of {number}").into())).collect();
    json!({
        "apiVersion": "pulumi.com/v1",
        "kind": "Stack",
        "metadata": {
            "name": format!("app{number}"),
            "labels": { "app.kubernetes.io/name": format!("app{number}"), "kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system" },
            "annotations": { "example.com/owner": "team", "example.com/docs": "https://docs.example.com/apps" },
        },
        "spec": {
            "stack": format!("organization/app{number}/production"),
            "backend": "s3://a-bucket-for-state?region=eu-central-1&awssdk=v2",
            "fluxSource": { "sourceRef": { "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "name": "apps" }, "dir": format!("apps/app{number}") },
            "config": config,
            "secretsRef": { "app:password": secret("password"), "app:token": secret("token") },
            "envRefs": { "PULUMI_CONFIG_PASSPHRASE": secret("passphrase"), "AWS_REGION": literal("eu-central-1"), "LOG_LEVEL": literal("info") },
            "serviceAccountName": "pulumi",
            "destroyOnFinalize": true,
            "resyncFrequencySeconds": 3600,
            "workspaceTemplate": { "spec": { "image": "pulumi/pulumi:3-nonroot", "resources": { "requests": { "cpu": "1", "memory": "2Gi" } } } },
        },
    })
}

/// Its status after a run. One in [`OVERDUE`] is overdue.
fn status(number: usize) -> Value {
    let commit = format!("main@sha1:{number:040x}");
    let outputs: serde_json::Map<_, _> = (0..8)
        .map(|output| {
            (format!("output{output}"), format!("arn:aws:service:eu-central-1:123456789012:app{number}/{output}").into())
        })
        .collect();
    let next = if number.is_multiple_of(OVERDUE) { "2026-01-01T00:00:00Z" } else { "2100-01-01T00:00:00Z" };
    json!({
        "observedGeneration": 1,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "the stack has been processed and is up to date", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 }],
        "lastUpdate": {
            "generation": 1, "name": format!("app{number}-{number:08x}"), "state": "succeeded", "type": "up", "failures": 0,
            "lastAttemptedCommit": commit, "lastSuccessfulCommit": commit, "lastResyncTime": "2026-01-01T00:00:00Z",
        },
        "outputs": outputs,
        "driftless": { "nextLook": next, "ran": true, "inputs": format!("{number:064x}") },
    })
}
