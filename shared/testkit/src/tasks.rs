use driftless_aws::{Error, Result, Started, TaskPage, TaskState, Tasks};
use driftless_contract::{Claim, Launch, ObjectKey, RunId, RunMessage, keys, to_json};
use driftless_core::{StopCode, TaskEnd, TaskShape};

use crate::{
    CLUSTER,
    world::{LiveTask, Message, Task, World, lost, whole_second},
};

/// The page size of `ListTasks`.
const PAGE: usize = 100;

impl World {
    /// The tasks that have not stopped, oldest first. The test decides what they do.
    #[must_use]
    pub fn live_tasks(&self) -> Vec<LiveTask> {
        let state = self.state();
        let live = state.tasks.iter().filter(|(_, task)| task.stopped.is_none());
        let live_task = |(arn, task): (&String, &Task)| LiveTask {
            arn: arn.clone(),
            run: task.run.clone(),
            spot: task.spot,
            stopping: task.stopping.is_some(),
        };
        live.map(live_task).collect()
    }

    /// Starts a task that no function started.
    #[must_use]
    pub fn start_task(&self, uid: &str) -> String {
        let mut state = self.state();
        let arn = format!("arn:aws:ecs:eu-west-1:000000000000:task/driftless/{:032x}", state.number(uid));
        let update = ObjectKey {
            cluster: CLUSTER.into(),
            api_version: String::new(),
            kind: String::new(),
            namespace: String::new(),
            name: uid.into(),
        };
        let run = RunId { update, uid: uid.into(), claim: Claim::default() };
        let task =
            Task { run, client_token: arn.clone(), created: whole_second(state.now), spot: false, stopping: None, stopped: None };
        state.tasks.insert(arn.clone(), task);
        arn
    }

    /// Fargate Spot reclaims a task's capacity: the task is stopped. A task that is not on Spot
    /// keeps running.
    pub fn reclaim_task(&self, arn: &str) {
        if let Some(task) = self.state().tasks.get_mut(arn).filter(|task| task.spot) {
            task.stop(StopCode::Spot);
        }
    }

    /// Ends a task, by itself or after a stop request, and notifies of it as ECS does.
    pub fn end_task(&self, arn: &str, why: &str) {
        let code = self.state().tasks.get(arn).and_then(|task| task.stopping).unwrap_or(StopCode::Exited);
        self.stop_task(arn, TaskEnd { code: Some(code), words: why.into(), ..TaskEnd::default() });
    }

    /// Stops a task with this end, as ECS reports it.
    pub fn stop_task(&self, arn: &str, mut end: TaskEnd) {
        let mut state = self.state();
        let now = state.now;
        end.at.get_or_insert(now);
        if let Some(task) = state.tasks.get_mut(arn) {
            task.stopped.get_or_insert((now, end));
            state.enqueue(Message::Run(RunMessage::Task { task: arn.into() }), 0, None);
        }
    }
}

impl Tasks for World {
    async fn definition(&self, shape: &TaskShape) -> Result<String> {
        let define = self.call(|state| {
            if let Some(image) = shape.image.as_ref().filter(|image| !image.chars().all(is_of_an_image)) {
                let message = format!("ClientException: Container.image contains invalid characters: {image}");
                return Err(Error::Invalid { call: "ecs:RegisterTaskDefinition".into(), message });
            }
            let family = keys::hash(&[&to_json(shape)]);
            let arn = format!("arn:aws:ecs:eu-west-1:000000000000:task-definition/driftless-{family:.20}:1");
            state.definitions.insert(arn.clone());
            Ok(arn)
        });
        define.await.ok_or_else(|| lost("ecs:DescribeTaskDefinition"))?
    }

    async fn run(&self, launch: &Launch) -> Result<Started> {
        let run = self.call(|state| {
            let (now, client_token) = (state.now, launch.token());
            let holds = |task: &Task| task.client_token == client_token && !task.is_forgotten(now);
            if !state.definitions.contains(&launch.definition) {
                let message = "ClientException: TaskDefinition not found.".into();
                return Err(Error::Permanent { call: "ecs:RunTask".into(), message });
            }
            if let Some((arn, _)) = state.tasks.iter().find(|(_, task)| holds(task)) {
                return Ok(Started::Task { task: arn.clone() });
            }
            if state.refused.contains(&client_token) || state.chance(state.faults.full) {
                state.refused.insert(client_token);
                return Ok(Started::Refused { why: "Capacity is unavailable at this time".into() });
            }
            let arn = format!("arn:aws:ecs:eu-west-1:000000000000:task/driftless/{:032x}", state.number(&client_token));
            let (run, spot) = (launch.run.clone(), launch.is_on_spot());
            let task = Task { run, client_token, created: whole_second(now), spot, stopping: None, stopped: None };
            state.tasks.insert(arn.clone(), task);
            Ok(Started::Task { task: arn })
        });
        run.await.ok_or_else(|| lost("ecs:RunTask"))?
    }

    async fn state(&self, arn: &str) -> Result<TaskState> {
        let describe = self.call(|state| match state.tasks.get(arn) {
            Some(task) if !task.is_forgotten(state.now) => {
                let stopped = task.stopped.as_ref().map(|(_, end)| TaskState::Stopped { end: end.clone() });
                let end = TaskEnd { code: task.stopping, ..TaskEnd::default() };
                stopped.unwrap_or(TaskState::Alive { end, created: Some(task.created) })
            }
            _ => TaskState::Missing,
        });
        describe.await.ok_or_else(|| lost("ecs:DescribeTasks"))
    }

    async fn live(&self, from: Option<&str>) -> Result<TaskPage> {
        let list = self.call(|state| {
            let live = state.tasks.iter().filter(|(arn, task)| {
                task.stopped.is_none() && task.stopping.is_none() && from.is_none_or(|from| arn.as_str() > from)
            });
            let mut arns: Vec<_> = live.map(|(arn, _)| arn.clone()).take(PAGE + 1).collect();
            let next = (arns.len() > PAGE).then(|| arns.pop()).flatten().and_then(|_| arns.last().cloned());
            TaskPage { tasks: arns, next }
        });
        list.await.ok_or_else(|| lost("ecs:ListTasks"))
    }

    fn log_url(&self, arn: &str) -> String {
        format!("https://logs.example/{}", keys::task_id(arn))
    }

    async fn stop(&self, arn: &str, _reason: &str) -> Result<()> {
        let stop = self.call(|state| {
            if let Some(task) = state.tasks.get_mut(arn) {
                task.stop(StopCode::Requested);
            }
        });
        stop.await.ok_or_else(|| lost("ecs:StopTask"))
    }
}

/// Returns whether ECS accepts the character in the name of an image.
fn is_of_an_image(char: char) -> bool {
    char.is_ascii_alphanumeric() || "-_:./#@".contains(char)
}
