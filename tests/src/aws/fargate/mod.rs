//! ECS with Fargate on one machine: the API as botocore's model has it, and tasks that are
//! processes.
//!
//! A task starts the runner in place of its main container, in its own folder and with only the
//! environment of a real task. The init container that would install the runner is skipped; the
//! others run before it, one after the other, with the programs of this machine: there are no
//! images. Volumes are directories of the task. The memory of a task is limited ([`limits`]).

mod address;
mod definition;
mod limits;
mod metadata;
mod run;
mod state;
mod task;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

pub use address::{Own, Tls, send_at_once};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
pub use state::{Fargate, Fault, PRIVATE_REGISTRY};
use tokio::net::TcpListener;

use self::state::{Order, SPOT};
use super::{
    machine::{address, now},
    policy::Demand,
    site::Site,
};

/// The page size of ECS's list and describe calls.
const PAGE: usize = 100;

impl Fargate {
    /// Serves metadata and credentials on `listener`; the API is behind the gate. `files` are those
    /// of ECS's own address.
    pub fn start(
        site: Arc<Site>,
        listener: TcpListener,
        files: Option<address::Files>,
        runner: PathBuf,
        image: BTreeMap<String, String>,
    ) -> Result<Arc<Self>> {
        let endpoint = address(&listener)?.trim_end_matches(":80").to_owned();
        let fargate = Arc::new(Self { site, runner, image, endpoint, files, state: Mutex::default() });
        metadata::serve(&fargate, listener);
        Ok(fargate)
    }

    /// The permissions that a caller needs for this call.
    pub fn demands(&self, operation: &str, input: &Value) -> Result<Vec<Demand>, Fault> {
        let action = format!("ecs:{operation}");
        let mut demands = match operation {
            "RegisterTaskDefinition" => {
                let family = input["family"].as_str().unwrap_or_default();
                let mut demands = vec![Demand::new(action, self.arn(&format!("task-definition/{family}:*")))];
                demands.extend(pass_roles(input));
                demands
            }
            "DescribeTaskDefinition" => vec![Demand::new(action, "*")],
            "RunTask" => {
                let definition = self.definition(input["taskDefinition"].as_str().unwrap_or_default())?;
                let arn = definition["taskDefinitionArn"].as_str().unwrap_or_default();
                let mut demands = vec![Demand::new(action, arn).with("ecs:cluster", self.cluster(input)?)];
                demands.extend(pass_roles(&definition));
                demands.extend(pass_roles(&input["overrides"]));
                demands
            }
            "ListTasks" => vec![Demand::new(action, "*").with("ecs:cluster", self.cluster(input)?)],
            "DescribeTasks" | "StopTask" => {
                let cluster = self.cluster(input)?;
                let one = input["task"].as_str().into_iter();
                let tasks = one.chain(input["tasks"].as_array().into_iter().flatten().filter_map(Value::as_str));
                tasks.map(|task| Demand::new(&action, self.task_arn(task)).with("ecs:cluster", &cluster)).collect()
            }
            other => return Err(Fault::new("UnsupportedFeatureException", format!("this world's ECS has no {other}"))),
        };
        if input["tags"].as_array().is_some_and(|tags| !tags.is_empty()) {
            // A created resource has no id or revision yet.
            let resource = match operation {
                "RunTask" => self.task_arn("*"),
                _ => self.arn(&format!("task-definition/{}:*", input["family"].as_str().unwrap_or_default())),
            };
            demands.push(Demand::new("ecs:TagResource", resource).with("ecs:CreateAction", operation));
        }
        Ok(demands)
    }

    /// Carries out a call that was allowed.
    pub fn call(self: &Arc<Self>, operation: &str, input: Value) -> Result<Value, Fault> {
        match operation {
            "RegisterTaskDefinition" => self.register(input),
            "DescribeTaskDefinition" => {
                let definition = self.definition(input["taskDefinition"].as_str().unwrap_or_default());
                let definition = definition.map_err(|_| Fault::client("Unable to describe task definition."))?;
                Ok(json!({ "taskDefinition": definition, "tags": [] }))
            }
            "RunTask" => self.run(input),
            "DescribeTasks" => self.describe(&input),
            "ListTasks" => self.list(&input),
            "StopTask" => self.stop(&input),
            other => Err(Fault::new("UnsupportedFeatureException", format!("this world's ECS has no {other}"))),
        }
    }

    /// Every task as `DescribeTasks` shows it, including those that ECS has forgotten.
    pub fn tasks(&self) -> Vec<Value> {
        self.state().tasks.values().map(|task| task.wire.clone()).collect()
    }

    /// Makes the next `count` calls of `RunTask` find no capacity.
    pub fn refuse(&self, count: u32) {
        self.state().refusals = count;
    }

    /// Makes the next `count` calls of `RunTask` for Spot find no capacity.
    pub fn refuse_spot(&self, count: u32) {
        self.state().spot_refusals = count;
    }

    /// Limits the number of tasks whose definition contains a text; `None` removes the limit.
    pub fn limit(&self, about: String, tasks: Option<usize>) {
        let quotas = &mut self.state().quotas;
        match tasks {
            Some(tasks) => quotas.insert(about, tasks),
            None => quotas.remove(&about),
        };
    }

    /// The text of a call and of the task definition that it names.
    pub fn text(&self, input: &Value) -> String {
        let definition = self.definition(input["taskDefinition"].as_str().unwrap_or_default());
        format!("{input}{}", definition.unwrap_or_default())
    }

    /// Reclaims the capacity of a task on Spot.
    pub fn reclaim(&self, task: &str) -> Result<()> {
        let mut state = self.state();
        let task = state.tasks.get_mut(&self.task_arn(task)).context("there is no such task")?;
        ensure!(task.wire["capacityProviderName"] == SPOT, "it is not on Spot");
        task.stop("SpotInterruption", "Your Spot Task was interrupted.", now());
        Ok(())
    }

    /// Stops a task for the maintenance of its host.
    pub fn retire(&self, task: &str) -> Result<()> {
        let mut state = self.state();
        let task = state.tasks.get_mut(&self.task_arn(task)).context("there is no such task")?;
        let reason = "ECS is performing maintenance on the underlying infrastructure hosting the task.";
        task.stop("ServiceSchedulerInitiated", reason, now());
        Ok(())
    }

    /// Kills the main container of a task, as if it had exceeded its memory.
    pub fn exhaust(&self, task: &str) -> Result<()> {
        let mut state = self.state();
        let task = state.tasks.get_mut(&self.task_arn(task)).context("there is no such task")?;
        ensure!(task.wire["lastStatus"] == "RUNNING", "the task does not run: {}", task.wire);
        task.order.send_replace(Order::Kill);
        Ok(())
    }

    /// Makes tasks with a container of this image fail to start for this reason; `None` lets them
    /// start.
    pub fn fail_starts(&self, image: &str, reason: Option<String>) {
        let unpullable = &mut self.state().unpullable;
        match reason {
            Some(reason) => unpullable.insert(image.into(), reason),
            None => unpullable.remove(image),
        };
    }

    /// Sets the only processor that an image is built for, by ECS's name for it.
    pub fn build_for(&self, image: &str, processor: &str) {
        self.state().built_for.insert(image.into(), processor.into());
    }

    /// Keeps tasks with a container of this image pending for a while.
    pub fn slow_starts(&self, image: &str, pending: Duration) {
        self.state().slow.insert(image.into(), pending);
    }

    /// Limits the disk of tasks with a container of this image to this many MiB: their homes,
    /// `/tmp` and volumes. 0 removes the limit.
    pub fn limit_disk(&self, image: &str, mib: u64) {
        let disks = &mut self.state().disks;
        if mib > 0 {
            disks.insert(image.into(), mib)
        } else {
            disks.remove(image)
        };
    }

    /// Shifts the clock of tasks with a container of this image by this many seconds; 0 corrects
    /// it. See [`super::machine::wrong_clock`].
    pub fn set_clock(&self, image: &str, seconds: i64) {
        let clocks = &mut self.state().clocks;
        if seconds == 0 {
            clocks.remove(image)
        } else {
            clocks.insert(image.into(), seconds)
        };
    }

    /// Makes ECS forget all stopped tasks and their client tokens, as after an hour.
    pub fn forget(&self) {
        for task in self.state().tasks.values_mut().filter(|task| task.stopped.is_some()) {
            task.forgotten = true;
        }
    }

    fn describe(&self, input: &Value) -> Result<Value, Fault> {
        self.cluster(input)?;
        let wanted: Vec<_> = input["tasks"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if wanted.is_empty() || wanted.len() > PAGE {
            return Err(Fault::parameter("Tasks must be between 1 and 100."));
        }
        let (state, now) = (self.state(), now());
        let (mut tasks, mut failures) = (Vec::new(), Vec::new());
        for task in wanted {
            let arn = self.task_arn(task);
            match state.tasks.get(&arn).filter(|task| task.is_known(now)) {
                Some(task) => tasks.push(task.wire.clone()),
                None => failures.push(json!({ "arn": arn, "reason": "MISSING" })),
            }
        }
        Ok(json!({ "tasks": tasks, "failures": failures }))
    }

    fn list(&self, input: &Value) -> Result<Value, Fault> {
        self.cluster(input)?;
        let filter = |name: &str| input[name].as_str();
        let (started_by, family) = (filter("startedBy"), filter("family"));
        if started_by.is_some() && (family.is_some() || filter("serviceName").is_some() || filter("containerInstance").is_some())
        {
            return Err(Fault::parameter("The startedBy filter must be the only one."));
        }
        let desired = filter("desiredStatus").unwrap_or("RUNNING");
        let now = now();
        let state = self.state();
        let matching = state.tasks.iter().filter(|(_, task)| {
            let group = family.map(|family| format!("family:{family}"));
            task.is_known(now)
                && task.wire["desiredStatus"] == desired
                && started_by.is_none_or(|started_by| task.wire["startedBy"] == started_by)
                && group.is_none_or(|group| task.wire["group"] == group)
        });
        let start: usize = filter("nextToken").and_then(|token| token.parse().ok()).unwrap_or(0);
        let size = input["maxResults"].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(PAGE).clamp(1, PAGE);
        let arns: Vec<_> = matching.map(|(arn, _)| arn.clone()).skip(start).take(size + 1).collect();
        let next = (arns.len() > size).then(|| (start + size).to_string());
        let mut answer = json!({ "taskArns": arns[..arns.len().min(size)] });
        if let Some(next) = next {
            answer["nextToken"] = next.into();
        }
        Ok(answer)
    }

    fn stop(&self, input: &Value) -> Result<Value, Fault> {
        self.cluster(input)?;
        let arn = self.task_arn(input["task"].as_str().unwrap_or_default());
        let (now, mut state) = (now(), self.state());
        let task = state.tasks.get_mut(&arn).filter(|task| task.is_known(now));
        let task = task.ok_or_else(|| Fault::parameter("The referenced task was not found."))?;
        task.stop("UserInitiated", input["reason"].as_str().unwrap_or("Task stopped by user"), now);
        // StopTask deletes the task's tags.
        task.wire["tags"] = json!([]);
        Ok(json!({ "task": task.wire }))
    }
}

/// `iam:PassRole` for the roles that a definition or an override names.
fn pass_roles(input: &Value) -> Vec<Demand> {
    let roles = ["taskRoleArn", "executionRoleArn"].into_iter().filter_map(|role| input[role].as_str());
    roles.map(|role| Demand::new("iam:PassRole", role).with("iam:PassedToService", "ecs-tasks.amazonaws.com")).collect()
}
