//! The scenarios. Each creates Stacks in its own namespace, waits for their results, and measures
//! with the times that Kubernetes, ECS and S3 recorded, so that its own polling only affects
//! figures that end with `Ready`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use driftless_contract::keys;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    budget::{self, Price},
    record::Figure,
};
use crate::{
    canary,
    credentials::Access,
    tools::{Aws, Kubectl},
};

/// The name of the Program, and the prefix of every Stack's.
const NAME: &str = "prove";
/// Opens the namespace `default` for runs.
const RUNS: &str = include_str!("../../../kubernetes/runs/runs.yaml");
/// See the file: it requires a `python3` in its image.
const SCOPING: &str = include_str!("scoping.py");
const SPOT: &str = "FARGATE_SPOT";
/// The number of Stacks that are applied at once; the budget is checked before each batch.
const BATCH: usize = 25;
/// The maximum number of tasks that ECS describes in one call.
const TASKS: usize = 100;
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
const KILLED: &str = "make prove: a run that is killed";

/// An installation, a cluster and a namespace for the proof.
pub struct Ground<'a> {
    /// The account and Region.
    pub aws: &'a Aws,
    /// The cluster, as its administrator.
    pub kubectl: &'a Kubectl,
    /// The cluster's name.
    pub cluster: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The backend of the Stacks; without one, each task has its own state, and nothing is
    /// destroyed.
    pub backend: Option<&'a str>,
    /// The installation's bucket.
    pub bucket: &'a str,
    /// The installation's ECS cluster.
    pub ecs: &'a str,
    /// An image with `python3`; `None` for the image of the run.
    pub python: Option<&'a str>,
    /// How long a scenario may wait for Stacks whose tasks all run at once.
    pub limit: Duration,
    /// The number of tasks that the account and the installation allow at once; `None` if it is not
    /// known.
    pub at_once: Option<u32>,
    /// How the functions reach the cluster.
    pub access: Result<Access, String>,
    /// The price of runs.
    pub price: Price,
    /// The budget in USD.
    pub budget: f64,
    /// When the first scenario started.
    pub began: Instant,
    /// Whether no further scenario may start.
    pub interrupted: &'a AtomicBool,
}

/// The observation of a scenario.
pub struct Seen {
    /// Whether there was anything to check.
    pub measured: bool,
    /// As text.
    pub said: String,
    /// In seconds.
    pub figures: Vec<Figure>,
}

impl Seen {
    fn new(said: impl Into<String>, figures: impl IntoIterator<Item = Option<Figure>>) -> Self {
        Self { measured: true, said: said.into(), figures: figures.into_iter().flatten().collect() }
    }

    /// Nothing was measured, for this reason.
    fn nothing(why: &str) -> Self {
        Self { measured: false, said: format!("not measured: {why}"), figures: Vec::new() }
    }
}

/// The Stacks and Updates of the namespace at one time.
struct Snapshot {
    stacks: BTreeMap<String, Value>,
    updates: Vec<Value>,
}

impl Snapshot {
    /// The Updates of a Stack, oldest first.
    fn updates(&self, stack: &str) -> Vec<&Value> {
        let mut all: Vec<_> = self.updates.iter().filter(|update| update["spec"]["stackName"] == stack).collect();
        all.sort_by_key(|update| update["metadata"]["creationTimestamp"].as_str().unwrap_or_default());
        all
    }

    fn message(&self, stack: &str) -> String {
        let stack = &self.stacks.get(stack).unwrap_or(&Value::Null);
        let mut reasons = ["Stalled", "Reconciling"].into_iter().filter_map(|kind| canary::condition(stack, kind));
        let words = |condition: &Value| {
            format!("{}: {}", condition["reason"].as_str().unwrap_or_default(), condition["message"].as_str().unwrap_or_default())
        };
        reasons.find(|condition| condition["status"] == "True").map(words).unwrap_or_default()
    }
}

/// Stacks that are Ready, their Updates, and how long each took.
pub struct Settled {
    updates: Vec<Value>,
    tasks: Vec<Value>,
    outcomes: BTreeMap<String, Value>,
    ready: Vec<f64>,
    /// ECS's messages about refused launches, by Update.
    refused: BTreeMap<String, String>,
    access: Result<Access, String>,
}

impl Ground<'_> {
    /// Creates the namespace, opens it for runs, and creates the Program. A failure after the first
    /// step leaves nothing behind.
    pub fn open(&self) -> Result<(), String> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": self.namespace } });
        self.kubectl
            .text(&["create", "--filename", "-"], Some(&namespace.to_string()))
            .map_err(|why| format!("{why}; remove the objects of an earlier proof, or set NAMESPACE"))?;
        let runs = RUNS.replace("namespace: default", &format!("namespace: {}", self.namespace));
        let opened = self.kubectl.text(&["apply", "--filename", "-"], Some(&runs));
        opened.and_then(|_| self.apply(&[canary::program(self.namespace, NAME)])).map_err(|why| match self.close() {
            Ok(()) => why,
            Err(left) => format!("{why}; {left}"),
        })
    }

    /// Deletes every Stack, which destroys its resources if there is a backend, and the namespace.
    pub fn close(&self) -> Result<(), String> {
        self.kubectl.text(&["--namespace", self.namespace, "delete", "stacks.pulumi.com", "--all", "--wait=false"], None)?;
        // Each Stack with a backend is destroyed by a run.
        let deadline = Instant::now() + self.limit_of(self.look()?.stacks.len());
        while !self.look()?.stacks.is_empty() {
            if Instant::now() >= deadline {
                return Err(format!("Stacks remain in namespace {}; see kubectl -n {0} get stacks", self.namespace));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        self.kubectl.text(&["delete", "namespace", self.namespace, "--wait=false"], None)?;
        let deadline = Instant::now() + self.limit;
        loop {
            match self.kubectl.json(&["get", "namespace", self.namespace]) {
                Err(why) if why.contains("NotFound") => return Ok(()),
                _ if Instant::now() >= deadline => return Err(format!("namespace {} is not deleted", self.namespace)),
                _ => thread::sleep(BETWEEN_LOOKS),
            }
        }
    }

    fn apply(&self, objects: &[Value]) -> Result<(), String> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.kubectl.text(&["create", "--filename", "-"], Some(&list.to_string())).map(drop)
    }

    /// A call that fails is made again, twice: a scenario makes hundreds.
    fn look(&self) -> Result<Snapshot, String> {
        let list = || self.kubectl.json(&["--namespace", self.namespace, "get", "stacks.pulumi.com,updates.auto.pulumi.com"]);
        let again = |_| {
            thread::sleep(BETWEEN_LOOKS);
            list()
        };
        let listed = list().or_else(again).or_else(again)?;
        let (mut stacks, mut updates) = (BTreeMap::new(), Vec::new());
        for item in listed["items"].as_array().into_iter().flatten() {
            if item["kind"] == "Stack" {
                stacks.insert(item["metadata"]["name"].as_str().unwrap_or_default().to_owned(), item.clone());
            } else {
                updates.push(item.clone());
            }
        }
        Ok(Snapshot { stacks, updates })
    }

    fn stack(&self, name: &str) -> Value {
        // A task's own disk is enough for a state that is never destroyed.
        let backend = self.backend.unwrap_or("file:///tmp");
        let mut stack = canary::stack(self.namespace, name, NAME, backend, None);
        stack["spec"]["destroyOnFinalize"] = self.backend.is_some().into();
        stack
    }

    /// A Stack whose task runs this command before Pulumi, in this image; `None` for the image of
    /// the run.
    fn stack_with_init(&self, name: &str, image: Option<&str>, command: &[&str], env: &[(&str, &str)]) -> Value {
        let env: Vec<_> = env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let init = json!({ "name": NAME, "image": image, "command": command, "env": env });
        let mut stack = self.stack(name);
        stack["spec"]["workspaceTemplate"] = json!({ "spec": { "podTemplate": { "spec": { "initContainers": [init] } } } });
        stack
    }

    /// How long so many Stacks may take.
    fn limit_of(&self, stacks: usize) -> Duration {
        self.limit + budget::queueing(u32::try_from(stacks).unwrap_or(u32::MAX), self.at_once)
    }

    /// Polls until there is an answer.
    fn until<T>(&self, what: &str, look: impl FnMut(&Snapshot) -> Result<Option<T>, String>) -> Result<T, String> {
        self.within(self.limit, what, look)
    }

    fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        mut look: impl FnMut(&Snapshot) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        loop {
            self.go_on()?;
            let snapshot = self.look()?;
            if let Some(found) = look(&snapshot)? {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let words: BTreeSet<_> = snapshot.stacks.keys().map(|name| snapshot.message(name)).collect();
                let words: Vec<_> = words.into_iter().filter(|words| !words.is_empty()).collect();
                return Err(format!("{what}: timed out after {}s; {}", limit.as_secs(), words.join(" | ")));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn go_on(&self) -> Result<(), String> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }

    /// The costs so far in USD, from the Updates that had a task.
    pub fn used(&self) -> Result<f64, String> {
        let snapshot = self.look()?;
        let minutes: Vec<_> = snapshot.updates.iter().filter_map(|update| minutes(update, now())).collect();
        let runs = f64::from(u32::try_from(minutes.len()).unwrap_or(u32::MAX));
        let mean = if minutes.is_empty() { 0.0 } else { minutes.iter().sum::<f64>() / runs };
        Ok(self.price.of(runs, mean, self.began.elapsed().as_secs_f64() / 3600.0))
    }

    /// Applies Stacks in batches while the budget allows, and waits until all are Ready.
    fn settle(&self, stacks: &[Value]) -> Result<Settled, String> {
        let mut started = BTreeMap::new();
        for batch in stacks.chunks(BATCH) {
            self.go_on()?;
            let used = self.used()?;
            if used >= self.budget {
                return Err(format!("${used:.2} of BUDGET_USD {:.2} is used; no further run is started", self.budget));
            }
            self.apply(batch)?;
            let names = batch.iter().filter_map(|stack| stack["metadata"]["name"].as_str());
            started.extend(names.map(|name| (name.to_owned(), Instant::now())));
        }
        let (mut ready, mut refused) = (BTreeMap::new(), BTreeMap::new());
        let updates = self.within(self.limit_of(stacks.len()), "Stacks are not Ready", |snapshot| {
            refused.extend(snapshot.updates.iter().filter_map(refusal));
            for (name, at) in &started {
                if snapshot.stacks.get(name).is_some_and(canary::is_ready) {
                    ready.entry(name.clone()).or_insert_with(|| at.elapsed().as_secs_f64());
                }
            }
            let all: Vec<_> = started.keys().flat_map(|name| snapshot.updates(name)).cloned().collect();
            // A Stack may be Ready just before its Update is complete.
            let are_complete = all.iter().all(|update| update["status"]["endTime"].is_string());
            Ok((ready.len() == started.len() && are_complete).then_some(all))
        })?;
        let tasks = self.tasks(&updates)?;
        let access = self.access.clone();
        Ok(Settled { updates, tasks, outcomes: BTreeMap::new(), ready: ready.into_values().collect(), refused, access })
    }

    /// The tasks of Updates in ECS, which forgets them an hour after their end.
    fn tasks(&self, updates: &[Value]) -> Result<Vec<Value>, String> {
        let arns: Vec<_> = updates.iter().filter_map(|update| update["status"]["driftless"]["task"].as_str()).collect();
        let mut tasks = Vec::new();
        for page in arns.chunks(TASKS) {
            let arguments = [&["ecs", "describe-tasks", "--cluster", self.ecs, "--tasks"], page].concat();
            tasks.extend(self.aws.json(&arguments)?["tasks"].as_array().cloned().unwrap_or_default());
        }
        Ok(tasks)
    }

    /// Runs identical Stacks, for the scenarios that read the records.
    pub fn run(&self, count: u32) -> Result<Settled, String> {
        let stacks: Vec<_> = (1..=count).map(|number| self.stack(&format!("{NAME}-start-{number}"))).collect();
        let mut settled = self.settle(&stacks)?;
        for update in &settled.updates {
            let uid = update["metadata"]["uid"].as_str().unwrap_or_default();
            let prefix = keys::run(self.cluster, &uid.into()).outcome();
            let listed = self.aws.json(&["s3api", "list-objects-v2", "--bucket", self.bucket, "--prefix", &prefix])?;
            settled.outcomes.insert(uid.to_owned(), listed["Contents"][0]["LastModified"].clone());
        }
        Ok(settled)
    }

    /// Checks that a session of a task reaches its own folder and nothing else.
    pub fn scoping(&self) -> Result<Seen, String> {
        let other = keys::task(NAME, NAME).spec();
        self.aws.json(&["s3api", "put-object", "--bucket", self.bucket, "--key", &other])?;
        let seen = self.scoped(&other);
        self.aws.json(&["s3api", "delete-object", "--bucket", self.bucket, "--key", &other])?;
        seen
    }

    fn scoped(&self, other: &str) -> Result<Seen, String> {
        let (name, env) = (format!("{NAME}-scoping"), [("BUCKET", self.bucket), ("OTHER", other)]);
        self.apply(&[self.stack_with_init(&name, self.python, &["python3", "-c", SCOPING], &env)])?;
        self.until("the Stack is not Ready", |snapshot| {
            if snapshot.stacks.get(&name).is_some_and(canary::is_ready) {
                return Ok(Some(()));
            }
            // Another failure of the platform says nothing about the session: the run is repeated.
            let message = snapshot.message(&name);
            violated(&message).map_or(Ok(None), |why| Err(format!("{why}; {message}")))
        })?;
        Ok(Seen::new("the session of a task has the name of the task, and cannot read the folder of another task", []))
    }

    /// Checks that a stopped task is no failure of the program, and that another task follows.
    pub fn kill(&self) -> Result<Seen, String> {
        let name = format!("{NAME}-kill");
        self.apply(&[self.stack_with_init(&name, None, &["sleep", "40"], &[])])?;
        let task = self.until("the Stack has no task", |snapshot| {
            let task = snapshot.updates(&name).first().and_then(|update| update["status"]["driftless"]["task"].as_str());
            Ok(task.map(ToOwned::to_owned))
        })?;
        self.aws.json(&["ecs", "stop-task", "--cluster", self.ecs, "--task", &task, "--reason", KILLED])?;
        let killed = Instant::now();
        let said = self.until("the Stack does not report that its run was killed", |snapshot| {
            // The condition has the next run soon, and the last update has this one until then.
            let last = snapshot.stacks.get(&name).and_then(|stack| stack["status"]["lastUpdate"]["message"].as_str());
            let mut messages = [snapshot.message(&name), last.unwrap_or_default().to_owned()].into_iter();
            Ok(messages.find(|message| message.contains(KILLED)))
        })?;
        let known = killed.elapsed().as_secs_f64();
        self.until("the Stack does not recover", |snapshot| {
            Ok(snapshot.stacks.get(&name).is_some_and(canary::is_ready).then_some(()))
        })?;
        let figures = [
            Figure::of("StopTask to the Stack's condition", vec![known]),
            Figure::of("StopTask to Ready, by the next run", vec![killed.elapsed().as_secs_f64()]),
        ];
        Ok(Seen::new(format!("the Stack reported {said:?}, and is Ready"), figures))
    }

    /// Checks a run on Spot, or on demand if there is no Spot capacity.
    pub fn spot(&self) -> Result<Seen, String> {
        let mut stack = self.stack(&format!("{NAME}-spot"));
        stack["metadata"]["annotations"] = json!({ "driftless.dev/capacity": "spot" });
        let settled = self.settle(&[stack])?;
        let on: Vec<_> = settled.tasks.iter().map(|task| task["capacityProviderName"].as_str().unwrap_or("on demand")).collect();
        if !on.contains(&SPOT) && settled.refused.is_empty() {
            return Err(format!("the task was {on:?}, although ECS refused no capacity; check that Spot is not never"));
        }
        let figure = Figure::of("RunTask to RUNNING on Spot", between(&settled.tasks, "createdAt", "startedAt"));
        Ok(Seen::new(format!("the run was on {}", on.join(", ")), [figure]))
    }

    /// Checks that a second conditional write is refused with 412, and that the bucket's policy
    /// denies one without a condition.
    pub fn conditional(&self) -> Result<Seen, String> {
        let key = keys::beside_inputs_key(self.namespace);
        let put = |more: &[&str]| {
            let arguments = [&["s3api", "put-object", "--bucket", self.bucket, "--key", &key], more].concat();
            self.aws.json(&arguments).map(drop)
        };
        let once = ["--if-none-match", "*"];
        let first = put(&once);
        let second = put(&once);
        let plain = put(&[]);
        self.aws.json(&["s3api", "delete-object", "--bucket", self.bucket, "--key", &key])?;
        first?;
        match second {
            Err(why) if why.contains("PreconditionFailed") => {}
            other => return Err(format!("the second write with If-None-Match: {other:?}, and PreconditionFailed was expected")),
        }
        match plain {
            Err(why) if why.contains("AccessDenied") => {}
            other => return Err(format!("a write without a condition: {other:?}, and AccessDenied was expected")),
        }
        Ok(Seen::new("the second write was refused with 412, and the one without a condition was denied", []))
    }

    /// Many Stacks at once.
    pub fn burst(&self, count: u32) -> Result<Settled, String> {
        let stacks: Vec<_> = (1..=count).map(|number| self.stack(&format!("{NAME}-many-{number}"))).collect();
        self.settle(&stacks)
    }

    /// Checks that no task of the proof runs, and that its folders are empty, after its namespace
    /// is deleted.
    pub fn left(&self, tasks: &[String]) -> Result<Seen, String> {
        let deadline = Instant::now() + self.limit;
        loop {
            let running = self.aws.json(&["ecs", "list-tasks", "--cluster", self.ecs, "--desired-status", "RUNNING"])?;
            let folders = self.aws.json(&["s3api", "list-objects-v2", "--bucket", self.bucket, "--prefix", keys::TASKS])?;
            let left = still_there(tasks, &running, &folders);
            if left.is_empty() {
                return Ok(Seen::new("no Stack, no task and no input of a task is left", []));
            }
            if Instant::now() >= deadline {
                return Err(format!("left: {}", left.join(", ")));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// The ids of all tasks of the namespace.
    pub fn task_ids(&self) -> Result<Vec<String>, String> {
        let snapshot = self.look()?;
        let arns = snapshot.updates.iter().filter_map(|update| update["status"]["driftless"]["task"].as_str());
        Ok(arns.map(|arn| keys::task_id(arn).to_owned()).collect())
    }
}

impl Settled {
    /// Measures how long tasks take to start.
    pub fn start(&self) -> Result<Seen, String> {
        let started = between(&self.tasks, "createdAt", "startedAt");
        if started.is_empty() {
            return Err("ECS reports no start of any task".into());
        }
        let runner: Vec<_> = self
            .updates
            .iter()
            .filter_map(|update| seconds(&update["metadata"]["creationTimestamp"], &update["status"]["startTime"]))
            .collect();
        let figures = [Figure::of("RunTask to RUNNING", started), Figure::of("Update to the start of the operation", runner)];
        Ok(Seen::new(format!("{} tasks", self.tasks.len()), figures))
    }

    /// Measures how long the pull of a task's images takes.
    pub fn pull(&self) -> Result<Seen, String> {
        let pulled = between(&self.tasks, "pullStartedAt", "pullStoppedAt");
        let figure = Figure::of("pull of the images", pulled).ok_or("ECS reports no pull of any task")?;
        Ok(Seen::new(format!("{} tasks", figure.n), [Some(figure)]))
    }

    /// Measures how long a result takes from the runner, through S3's event and SQS, to its record.
    pub fn events(&self) -> Result<Seen, String> {
        let delays: Vec<_> = self
            .updates
            .iter()
            .filter_map(|update| {
                let outcome = self.outcomes.get(update["metadata"]["uid"].as_str()?)?;
                seconds(&update["status"]["endTime"], outcome)
            })
            .collect();
        if delays.len() < self.updates.len() {
            return Err(format!("{} of {} runs have no recorded outcome", self.updates.len() - delays.len(), self.updates.len()));
        }
        Ok(Seen::new("S3's events arrive", [Figure::of("result in S3 to its record", delays)]))
    }

    /// Checks that each function reached the cluster, because otherwise no Stack would be Ready.
    pub fn cluster(&self) -> Result<Seen, String> {
        let by = access(&self.access);
        let figure = Figure::of("Stack created to Ready", self.ready.clone());
        Ok(Seen::new(format!("reconciler, fetcher, launcher and recorder reached the cluster{by}"), [figure]))
    }

    /// Measures how long many Stacks take.
    pub fn stacks(&self) -> Result<Seen, String> {
        let figure = Figure::of("Stack created to Ready, all at once", self.ready.clone());
        Ok(Seen::new(format!("{} Stacks are Ready", self.ready.len()), [figure]))
    }

    /// Checks that every Update that ECS refused got a task later. Without a refusal there is
    /// nothing to check.
    pub fn throttling(&self) -> Result<Seen, String> {
        Ok(throttling(&self.refused, self.updates.len()))
    }
}

pub(super) fn throttling(refused: &BTreeMap<String, String>, runs: usize) -> Seen {
    if refused.is_empty() {
        return Seen::nothing(&format!(
            "ECS refused none of {runs} runs; more STACKS than the account may run at once are refused"
        ));
    }
    let words: BTreeSet<_> = refused.values().map(String::as_str).collect();
    let words = words.into_iter().collect::<Vec<_>>().join(" | ");
    Seen::new(format!("ECS refused {} of {runs} runs at first, and all succeeded: {words}", refused.len()), [])
}

/// How the functions reached the cluster, and whether that tested tokens of EKS.
pub(super) fn access(access: &Result<Access, String>) -> String {
    match access {
        Ok(Access::Eks { name, .. }) => format!(" with their own tokens of EKS, cluster {name}"),
        Ok(Access::Other) => " with a user of the kubeconfig; tokens of EKS were not measured".into(),
        Err(why) => format!("; tokens of EKS were not measured: {why}"),
    }
}

/// An Update that ECS refused a task, and why.
pub(super) fn refusal(update: &Value) -> Option<(String, String)> {
    let words = update["status"]["driftless"]["waitingFor"].as_str()?;
    let (_, words) = words.split_once("ECS did not start the task: ")?;
    let words = words.split("; next try").next().unwrap_or(words);
    Some((update["metadata"]["name"].as_str()?.to_owned(), words.to_owned()))
}

/// The meaning of the init container's exit code, if the check ran in the task.
pub(super) fn violated(message: &str) -> Option<&'static str> {
    let checks = [
        ("11", "the session of a task has another name than the task"),
        ("12", "a task cannot read its own spec"),
        ("13", "a task can read another's folder"),
        ("14", "a task can write into another's folder"),
        ("15", "a task can list the bucket"),
        ("127", "the image has no python3; name one that has it in RuntimeImages=python=IMAGE"),
    ];
    let code: String = message.split("exit code ").nth(1).unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
    checks.into_iter().find(|(of, _)| *of == code).map(|(_, meaning)| meaning)
}

/// Those of these ids with a running task, or with inputs of one.
pub(super) fn still_there(ids: &[String], running: &Value, folders: &Value) -> Vec<String> {
    let arns = running["taskArns"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let keys = folders["Contents"].as_array().into_iter().flatten().filter_map(|object| object["Key"].as_str());
    let keys = keys.filter(|key| keys::is_task_input(key));
    arns.chain(keys).filter(|name| ids.iter().any(|id| name.contains(id.as_str()))).map(ToOwned::to_owned).collect()
}

/// The duration of a run in minutes; `None` if it has no task.
pub(super) fn minutes(update: &Value, now: Timestamp) -> Option<f64> {
    update["status"]["driftless"]["task"].as_str()?;
    let from = instant(&update["metadata"]["creationTimestamp"])?;
    let until = instant(&update["status"]["endTime"]).unwrap_or(now);
    Some((until.duration_since(from).as_secs_f64() / 60.0).max(0.0))
}

fn between(tasks: &[Value], from: &str, until: &str) -> Vec<f64> {
    tasks.iter().filter_map(|task| seconds(&task[from], &task[until])).collect()
}

/// Kubernetes and S3 have whole seconds: an interval within one second counts as zero.
pub(super) fn seconds(from: &Value, until: &Value) -> Option<f64> {
    Some(instant(until)?.duration_since(instant(from)?).as_secs_f64().max(0.0))
}

/// RFC 3339, as in Kubernetes, S3 and version 2 of the AWS CLI, or seconds since 1970, as in its
/// version 1.
fn instant(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(seconds) => Timestamp::from_duration(jiff::SignedDuration::try_from_secs_f64(seconds.as_f64()?).ok()?).ok(),
        _ => None,
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock adapter")]
fn now() -> Timestamp {
    Timestamp::now()
}
