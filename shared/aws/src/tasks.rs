use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use aws_config::SdkConfig;
use aws_sdk_ecs::{
    Client,
    operation::run_task::RunTaskError,
    types::{
        AssignPublicIp, AwsVpcConfiguration, CapacityProviderStrategyItem, Compatibility, CpuArchitecture, EphemeralStorage,
        LaunchType, NetworkConfiguration, NetworkMode, OsFamily, RuntimePlatform, Tag, Task, TaskStopCode,
    },
};
use driftless_contract::{Launch, ObjectKey, keys};
use driftless_core::{Architecture, StopCode, TaskEnd, TaskShape};
use jiff::Timestamp;

use crate::{
    Error, Result, Started, TaskPage, TaskState, Tasks,
    definition::{MAIN, STREAM_PREFIX, TaskSettings, containers, family, volumes},
    refusal::refusal,
    sdk::{failure, has_code},
};

/// The capacity provider of tasks that may be interrupted.
const SPOT: &str = "FARGATE_SPOT";
/// How long the ARN of a task definition is cached.
const DEFINITION_LIFE: Duration = Duration::from_mins(1);
/// The maximum length of a tag's value, in characters.
const TAG_LENGTH: usize = 256;
/// The prefix of the reason of every stop by Driftless. ECS stores it with the task, where it
/// distinguishes such a stop from others.
const OURS: &str = "driftless: ";

/// The real Fargate.
#[derive(Clone, Debug)]
pub struct Ecs {
    client: Client,
    cluster: String,
    settings: Option<TaskSettings>,
    /// The ARNs of task definitions by family, and when each was read.
    definitions: Arc<Mutex<BTreeMap<String, (String, Instant)>>>,
}

impl Ecs {
    /// The tasks of an ECS cluster. A function that only reads and stops tasks has no settings;
    /// starting one is then [`Error::Permanent`].
    #[must_use]
    pub fn new(config: &SdkConfig, cluster: String, settings: Option<TaskSettings>) -> Self {
        Self { client: Client::new(config), cluster, settings, definitions: Arc::default() }
    }

    /// The task definitions that were read recently: an operator may deregister them.
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, (String, Instant)>> {
        let mut known = self.definitions.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, read)| read.elapsed() < DEFINITION_LIFE);
        known
    }

    fn settings(&self) -> Result<&TaskSettings> {
        self.settings.as_ref().ok_or_else(|| permanent("ecs:RunTask", "this function has no settings for tasks"))
    }

    async fn register(&self, settings: &TaskSettings, family: &str, shape: &TaskShape) -> Result<String> {
        let call = "ecs:RegisterTaskDefinition";
        let containers = containers(settings, shape).map_err(|error| permanent(call, error))?;
        let processor = match shape.architecture.unwrap_or_default() {
            Architecture::Amd64 => CpuArchitecture::X8664,
            Architecture::Arm64 => CpuArchitecture::Arm64,
        };
        let platform = RuntimePlatform::builder().cpu_architecture(processor).operating_system_family(OsFamily::Linux).build();
        let disk = shape.ephemeral_gib.map(|gib| i32::try_from(gib).unwrap_or(i32::MAX));
        let request = self.client.register_task_definition().family(family).set_container_definitions(Some(containers));
        let request = request.requires_compatibilities(Compatibility::Fargate).network_mode(NetworkMode::Awsvpc);
        let request = request.runtime_platform(platform);
        let request = request.cpu(shape.cpu.to_string()).memory(shape.memory_mib.to_string());
        let request = request.set_ephemeral_storage(disk.map(|gib| EphemeralStorage::builder().size_in_gib(gib).build()));
        let request = request.task_role_arn(&settings.role_arn).execution_role_arn(&settings.execution_role_arn);
        let request = request.set_tags(Some(to_ecs(common_tags(settings))).filter(|tags| !tags.is_empty()));
        let values = || shape.init.iter().flat_map(|init| init.env.iter().map(|(_, value)| value));
        let answer = request.set_volumes(Some(volumes(shape))).send().await;
        let answer = answer.map_err(|error| refusal(call, &error, values()))?;
        let arn = answer.task_definition().and_then(|definition| definition.task_definition_arn());
        arn.map(Into::into).ok_or_else(|| transient(call, "the answer has no ARN"))
    }
}

impl Tasks for Ecs {
    async fn definition(&self, shape: &TaskShape) -> Result<String> {
        let settings = self.settings()?;
        let family = family(settings, shape);
        // A family's name contains a hash of its content.
        if let Some((arn, _)) = self.known().get(&family) {
            return Ok(arn.clone());
        }
        let arn = match self.client.describe_task_definition().task_definition(&family).send().await {
            Ok(answer) => {
                let arn = answer.task_definition().and_then(|definition| definition.task_definition_arn());
                arn.map(Into::into).ok_or_else(|| transient("ecs:DescribeTaskDefinition", "the answer has no ARN"))
            }
            // "Unable to describe task definition": it does not exist. Two concurrent registrations
            // of the same definition are harmless, because the launch record names the ARN.
            Err(error) if has_code(&error, "ClientException") => self.register(settings, &family, shape).await,
            Err(error) => Err(refusal("ecs:DescribeTaskDefinition", &error, [])),
        }?;
        self.known().insert(family, (arn.clone(), Instant::now()));
        Ok(arn)
    }

    async fn run(&self, launch: &Launch) -> Result<Started> {
        let call = "ecs:RunTask";
        let settings = self.settings()?;
        let vpc = AwsVpcConfiguration::builder().set_subnets(Some(settings.subnets.clone()));
        let vpc = vpc.assign_public_ip(AssignPublicIp::from(settings.assign_public_ip.as_str()));
        let vpc =
            vpc.set_security_groups(Some(settings.security_groups.clone())).build().map_err(|error| permanent(call, error))?;
        let request = self.client.run_task().cluster(&self.cluster).task_definition(&launch.definition).count(1);
        let request = request.client_token(launch.token()).started_by(launch.run.uid.as_str());
        let request = request.set_tags(Some(tags(settings, launch))).enable_ecs_managed_tags(true);
        let request = if launch.is_on_spot() {
            let spot = CapacityProviderStrategyItem::builder().capacity_provider(SPOT).weight(1);
            request.capacity_provider_strategy(spot.build().map_err(|error| permanent(call, error))?)
        } else {
            request.launch_type(LaunchType::Fargate)
        };
        let request = request.network_configuration(NetworkConfiguration::builder().awsvpc_configuration(vpc).build());
        match request.send().await {
            Ok(answer) => {
                if let Some(arn) = answer.tasks().first().and_then(Task::task_arn) {
                    return Ok(Started::Task { task: arn.into() });
                }
                let reasons = answer.failures().iter().flat_map(|failure| [failure.reason(), failure.detail()]).flatten();
                Ok(Started::Refused { why: reasons.collect::<Vec<_>>().join(": ") })
            }
            Err(error) => match error.as_service_error() {
                // The token was used with other parameters, such as another release's network: its
                // task is still the run's task.
                Some(RunTaskError::ConflictException(conflict)) => {
                    let task = conflict.resource_ids().first().map(|arn| Started::Task { task: arn.clone() });
                    Ok(task
                        .unwrap_or_else(|| Started::Refused { why: "the client token is in use, and ECS names no task".into() }))
                }
                _ => Err(refusal(call, &error, [])),
            },
        }
    }

    async fn state(&self, arn: &str) -> Result<TaskState> {
        let call = "ecs:DescribeTasks";
        let request = self.client.describe_tasks().cluster(&self.cluster).tasks(arn);
        let answer = request.send().await.map_err(|error| failure(call, &error))?;
        match (answer.tasks().first(), answer.failures().first()) {
            (Some(task), _) if task.last_status() == Some("STOPPED") => Ok(TaskState::Stopped { end: end(task) }),
            (Some(task), _) => {
                let created = task.created_at().and_then(|at| Timestamp::new(at.secs(), 0).ok());
                Ok(TaskState::Alive { end: end(task), created })
            }
            (None, Some(failure)) if failure.reason() == Some("MISSING") => Ok(TaskState::Missing),
            (None, failure) => Err(transient(call, failure.and_then(|failure| failure.reason()).unwrap_or("an empty answer"))),
        }
    }

    async fn live(&self, from: Option<&str>) -> Result<TaskPage> {
        let request = self.client.list_tasks().cluster(&self.cluster).set_next_token(from.map(Into::into));
        let answer = request.send().await.map_err(|error| failure("ecs:ListTasks", &error))?;
        Ok(TaskPage { tasks: answer.task_arns().to_vec(), next: answer.next_token().map(Into::into) })
    }

    fn log_url(&self, arn: &str) -> String {
        self.settings.as_ref().map_or_else(String::new, |settings| log_url(settings, arn))
    }

    async fn stop(&self, arn: &str, reason: &str) -> Result<()> {
        match self.client.stop_task().cluster(&self.cluster).task(arn).reason(format!("{OURS}{reason}")).send().await {
            Ok(_) => Ok(()),
            // "The referenced task was not found": ECS has forgotten it, so it stopped long ago.
            Err(error) if has_code(&error, "InvalidParameterException") => Ok(()),
            Err(error) => Err(failure("ecs:StopTask", &error)),
        }
    }
}

fn log_url(TaskSettings { region, log_group, .. }: &TaskSettings, arn: &str) -> String {
    let domain = match arn.split(':').nth(1) {
        Some("aws-cn") => "amazonaws.cn",
        Some("aws-us-gov") => "amazonaws-us-gov.com",
        _ => "aws.amazon.com",
    };
    let group = fragment(log_group);
    let stream = fragment(&format!("{STREAM_PREFIX}/{MAIN}/{}", keys::task_id(arn)));
    format!(
        "https://{region}.console.{domain}/cloudwatch/home?region={region}#logsV2:log-groups/log-group/{group}/log-events/{stream}"
    )
}

/// A part of the console's own path behind the `#`: percent-encoded twice, with `$` in place of
/// `%`.
fn fragment(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded + char::from(byte).encode_utf8(&mut [0; 4]),
        _ => format!("{encoded}$25{byte:02X}"),
    })
}

/// The tags for cost allocation. The Stack's name is that of its Workspace.
fn tags(settings: &TaskSettings, launch: &Launch) -> Vec<Tag> {
    let ObjectKey { cluster, namespace, .. } = &launch.run.update;
    let stack = launch.request.as_ref().and_then(|request| request.spec["workspaceName"].as_str());
    let ours = [("cluster", cluster.as_str()), ("namespace", namespace.as_str()), ("stack", stack.unwrap_or_default())];
    let mut tags = common_tags(settings);
    tags.extend(ours.map(|(name, value)| (format!("driftless:{name}"), tag_value(value))));
    to_ecs(tags)
}

/// The installation's own tags.
fn common_tags(settings: &TaskSettings) -> BTreeMap<String, String> {
    settings.tags.iter().filter_map(|tag| tag.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
}

fn to_ecs(tags: BTreeMap<String, String>) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

/// A valid value of a tag: at most 256 characters, with `_` in place of invalid ones.
fn tag_value(text: &str) -> String {
    let allowed = |char: char| char.is_ascii_alphanumeric() || " +-=._:/@".contains(char);
    text.chars().take(TAG_LENGTH).map(|char| if allowed(char) { char } else { '_' }).collect()
}

/// Why a task stopped, as ECS reports it.
fn why(task: &Task) -> String {
    let task_words = [task.stop_code().map(|code| code.as_str().to_owned()), task.stopped_reason().map(Into::into)];
    let containers = task.containers().iter().map(|container| {
        let exit = container.exit_code().map(|code| format!("exit code {code}"));
        let words: Vec<_> = exit.into_iter().chain(container.reason().map(Into::into)).collect();
        (!words.is_empty()).then(|| format!("{}: {}", container.name().unwrap_or("container"), words.join(", ")))
    });
    task_words.into_iter().chain(containers).flatten().collect::<Vec<_>>().join("; ")
}

/// AWS's message for a task that it stops for maintenance, whatever the stop code is.
const MAINTENANCE: &str = "performing maintenance";
/// The prefix of the reason of a container that the kernel killed.
const OUT_OF_MEMORY: &str = "OutOfMemory";

fn end(task: &Task) -> TaskEnd {
    let mut main = task.containers().iter().filter(|container| container.name() == Some(MAIN));
    let out_of_memory = main.any(|main| main.reason().is_some_and(|reason| reason.starts_with(OUT_OF_MEMORY)));
    let at = task.stopped_at().and_then(|at| Timestamp::new(at.secs(), at.subsec_nanos().try_into().ok()?).ok());
    TaskEnd { code: stop_code(task), out_of_memory, words: why(task), at }
}

fn stop_code(task: &Task) -> Option<StopCode> {
    let is_on_spot = task.capacity_provider_name() == Some(SPOT);
    match task.stop_code()? {
        // Fargate Spot used the second code in the past.
        TaskStopCode::SpotInterruption | TaskStopCode::TerminationNotice if is_on_spot => Some(StopCode::Spot),
        TaskStopCode::SpotInterruption | TaskStopCode::TerminationNotice | TaskStopCode::ServiceSchedulerInitiated => {
            Some(StopCode::Maintenance)
        }
        _ if task.stopped_reason().is_some_and(|reason| reason.contains(MAINTENANCE)) => Some(StopCode::Maintenance),
        TaskStopCode::TaskFailedToStart => Some(StopCode::FailedToStart),
        TaskStopCode::EssentialContainerExited => Some(StopCode::Exited),
        TaskStopCode::UserInitiated if task.stopped_reason().is_some_and(|reason| reason.starts_with(OURS)) => {
            Some(StopCode::Requested)
        }
        TaskStopCode::UserInitiated => Some(StopCode::Outside),
        _ => None,
    }
}

fn transient(call: &str, message: impl Into<String>) -> Error {
    Error::Transient { call: call.into(), message: message.into() }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn permanent(call: &str, message: impl ToString) -> Error {
    Error::Permanent { call: call.into(), message: message.to_string() }
}

#[cfg(test)]
mod tests {
    use aws_sdk_ecs::types::Container;
    use serde_json::{Value, json};

    use super::*;
    use crate::{definition::tests::settings, sdk::tests::service};

    fn launch() -> Launch {
        let launch = json!({
            "version": 1, "attempt": 0, "taskDefinition": "d", "at": "2026-01-01T00:00:00Z",
            "run": { "update": { "cluster": "arn:aws:eks:r:1:cluster/c", "apiVersion": "v", "kind": "Update", "namespace": "team", "name": "u" }, "uid": "uid", "claim": "l" },
            "request": { "spec": { "workspaceName": "shop" } },
        });
        serde_json::from_value(launch).unwrap()
    }

    /// The result of a launch with these answers of ECS.
    async fn started(launch: &Launch, answer: impl Fn(Value) -> (u16, Value) + Send + 'static) -> Started {
        let config = service(move |_, body| {
            let (status, answer) = answer(serde_json::from_str(body).unwrap());
            (status, answer.to_string())
        });
        Ecs::new(&config.await, "cluster".into(), Some(settings())).run(launch).await.unwrap()
    }

    #[tokio::test]
    async fn retried_launch_has_the_task_of_its_client_token() {
        for attempt in [0, 1] {
            let launch = Launch { attempt, ..launch() };
            // As in ECS, the same token returns the same task.
            let task = |request: Value| (200, json!({ "tasks": [{ "taskArn": request["clientToken"] }] }));
            assert_eq!(started(&launch, task).await, Started::Task { task: format!("uid-{attempt}") });
        }
    }

    #[tokio::test]
    async fn client_token_that_is_taken_names_the_task_of_the_run() {
        let why = "the client token is in use, and ECS names no task".into();
        for (tasks, expected) in [(json!(["arn"]), Started::Task { task: "arn".into() }), (json!([]), Started::Refused { why })] {
            let conflict = json!({ "__type": "ConflictException", "message": "other parameters", "resourceIds": tasks });
            assert_eq!(started(&launch(), move |_| (400, conflict.clone())).await, expected);
        }
    }

    #[test]
    fn tasks_are_tagged_by_cluster_namespace_and_stack() {
        let launch = launch();
        let own = ["CostCenter=4=2", "driftless:stack=mine"].map(Into::into).into();
        let tags = tags(&TaskSettings { tags: own, ..settings() }, &launch);
        let tags: Vec<_> = tags.iter().filter_map(|tag| tag.key().zip(tag.value())).collect();
        let expected = [
            ("CostCenter", "4=2"),
            ("driftless:cluster", "arn:aws:eks:r:1:cluster/c"),
            ("driftless:namespace", "team"),
            ("driftless:stack", "shop"),
        ];
        assert_eq!(tags, expected, "the installation's tags do not replace ours");
    }

    #[test]
    fn tag_values_have_what_ecs_allows() {
        assert_eq!(tag_value("shop-1.eu*ä!"), "shop-1.eu___");
        assert_eq!(tag_value(&"a".repeat(300)).len(), 256);
    }

    #[test]
    fn stop_code_says_who_stopped_the_task() {
        let maintenance = "ECS is performing maintenance on the underlying infrastructure hosting the task.";
        for (provider, code, reason, expected) in [
            (Some(SPOT), Some(TaskStopCode::SpotInterruption), "", Some(StopCode::Spot)),
            (Some(SPOT), Some(TaskStopCode::TerminationNotice), "", Some(StopCode::Spot)),
            (None, Some(TaskStopCode::TerminationNotice), "", Some(StopCode::Maintenance)),
            (None, Some(TaskStopCode::ServiceSchedulerInitiated), "", Some(StopCode::Maintenance)),
            (None, Some(TaskStopCode::UserInitiated), maintenance, Some(StopCode::Maintenance)),
            (Some(SPOT), Some(TaskStopCode::UserInitiated), "driftless: run is recorded", Some(StopCode::Requested)),
            (Some(SPOT), Some(TaskStopCode::UserInitiated), "run is recorded", Some(StopCode::Outside)),
            (None, Some(TaskStopCode::UserInitiated), "", Some(StopCode::Outside)),
            (None, Some(TaskStopCode::TaskFailedToStart), "", Some(StopCode::FailedToStart)),
            (None, Some(TaskStopCode::EssentialContainerExited), "", Some(StopCode::Exited)),
            (Some(SPOT), None, "", None),
        ] {
            let task = Task::builder().set_capacity_provider_name(provider.map(Into::into)).set_stop_code(code);
            let task = task.stopped_reason(reason).build();
            assert_eq!(stop_code(&task), expected, "{task:?}");
        }
    }

    #[test]
    fn memory_is_that_of_the_main_container() {
        let reason = "OutOfMemoryError: Container killed due to memory usage";
        for (name, expected) in [(MAIN, true), ("init-a", false)] {
            let container = Container::builder().name(name).exit_code(137).reason(reason).build();
            let end = end(&Task::builder().containers(container).build());
            assert_eq!((end.out_of_memory, end.words), (expected, format!("{name}: exit code 137, {reason}")));
        }
    }

    #[test]
    fn the_page_of_a_log_is_in_the_consoles_own_encoding() {
        let settings = TaskSettings { log_group: "/driftless/runs a".into(), ..settings() };
        let page = |partition: &str| log_url(&settings, &format!("arn:{partition}:ecs:eu-west-1:1:task/c/0a1b"));
        assert_eq!(
            page("aws"),
            "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/\
             $252Fdriftless$252Fruns$2520a/log-events/driftless$252Fpulumi$252F0a1b"
        );
        assert!(page("aws-cn").starts_with("https://eu-west-1.console.amazonaws.cn/"));
    }
}
