use aws_config::SdkConfig;
use aws_sdk_ecs::{
    Client,
    error::{BuildError, ProvideErrorMetadata as _},
    operation::run_task::RunTaskError,
    types::{
        AwsVpcConfiguration, Compatibility, ContainerCondition, ContainerDefinition, ContainerDependency, KeyValuePair,
        LaunchType, LogConfiguration, LogDriver, MountPoint, NetworkConfiguration, NetworkMode, Task, Volume,
    },
};
use driftless_contract::{Launch, keys};

use crate::{Error, Result, TaskState, Tasks, sdk::failure};

/// CPU units and MiB of every task; a pair that Fargate knows.
const CPU: &str = "512";
const MEMORY: &str = "1024";
/// The shared volume's name, and where both containers see it.
const VOLUME: &str = "driftless";
const MOUNT: &str = "/driftless";
/// Where the init container puts the runner.
const RUNNER: &str = "/driftless/runner";
/// The containers' names.
const INIT: &str = "runner-init";
const MAIN: &str = "pulumi";
/// As long as Fargate gives: pulumi saves its checkpoint in this time.
const STOP_TIMEOUT_SECONDS: i32 = 120;
/// For how long the main container waits for the init container.
const INIT_TIMEOUT_SECONDS: i32 = 120;
/// Part of the family's name: to be raised whenever [`containers`] makes something else of the same settings.
const REVISION: &str = "1";

/// What every task definition and every launch has in common.
#[derive(Clone, Debug)]
pub struct TaskSettings {
    /// `TASK_ROLE_ARN`: the role of every task.
    pub role_arn: String,
    /// `TASK_ROLE_ID`: the unique id of that role, the first half of its `aws:userid`.
    pub role_id: String,
    /// `EXECUTION_ROLE_ARN`: pulls images and writes logs.
    pub execution_role_arn: String,
    /// `SUBNETS`: in several zones, as capacity is per zone.
    pub subnets: Vec<String>,
    /// `SECURITY_GROUPS`
    pub security_groups: Vec<String>,
    /// `RUNNER_IMAGE`: its entry point is the runner, whose `install <path>` copies it there.
    pub runner_image: String,
    /// `LOG_GROUP`
    pub log_group: String,
    /// `BUCKET`: where the tasks' folders are.
    pub bucket: String,
    /// `AWS_REGION`: of the log group.
    pub region: String,
}

/// The real Fargate.
#[derive(Clone, Debug)]
pub struct Ecs {
    client: Client,
    cluster: String,
    settings: Option<TaskSettings>,
}

impl Ecs {
    /// The tasks of an ECS cluster. Whoever only watches and stops them has no settings; starting one is [`Error::Permanent`] then.
    #[must_use]
    pub fn new(config: &SdkConfig, cluster: String, settings: Option<TaskSettings>) -> Self {
        Self { client: Client::new(config), cluster, settings }
    }

    fn settings(&self) -> Result<&TaskSettings> {
        self.settings.as_ref().ok_or_else(|| permanent("ecs:RunTask", "this function has no settings for tasks"))
    }

    async fn register(&self, settings: &TaskSettings, family: &str, image: &str) -> Result<String> {
        let call = "ecs:RegisterTaskDefinition";
        let containers = containers(settings, image).map_err(|error| permanent(call, error))?;
        let request = self.client.register_task_definition().family(family).set_container_definitions(Some(containers));
        let request =
            request.requires_compatibilities(Compatibility::Fargate).network_mode(NetworkMode::Awsvpc).cpu(CPU).memory(MEMORY);
        let request = request.task_role_arn(&settings.role_arn).execution_role_arn(&settings.execution_role_arn);
        let answer =
            request.volumes(Volume::builder().name(VOLUME).build()).send().await.map_err(|error| failure(call, &error))?;
        let arn = answer.task_definition().and_then(|definition| definition.task_definition_arn());
        arn.map(Into::into).ok_or_else(|| transient(call, "the answer has no ARN"))
    }
}

impl Tasks for Ecs {
    async fn definition(&self, image: &str) -> Result<String> {
        let settings = self.settings()?;
        let family = family(settings, image);
        match self.client.describe_task_definition().task_definition(&family).send().await {
            Ok(answer) => {
                let arn = answer.task_definition().and_then(|definition| definition.task_definition_arn());
                arn.map(Into::into).ok_or_else(|| transient("ecs:DescribeTaskDefinition", "the answer has no ARN"))
            }
            // "Unable to describe task definition": there is none. Two that race register the same twice, which is harmless, as the
            // launch record names the ARN.
            Err(error) if error.code() == Some("ClientException") => self.register(settings, &family, image).await,
            Err(error) => Err(failure("ecs:DescribeTaskDefinition", &error)),
        }
    }

    async fn run(&self, launch: &Launch) -> Result<String> {
        let call = "ecs:RunTask";
        let settings = self.settings()?;
        let vpc = AwsVpcConfiguration::builder().set_subnets(Some(settings.subnets.clone()));
        let vpc =
            vpc.set_security_groups(Some(settings.security_groups.clone())).build().map_err(|error| permanent(call, error))?;
        let request = self.client.run_task().cluster(&self.cluster).task_definition(&launch.task_definition).count(1);
        let request = request.client_token(&launch.client_token).started_by(&launch.run.uid).launch_type(LaunchType::Fargate);
        let request = request.network_configuration(NetworkConfiguration::builder().awsvpc_configuration(vpc).build());
        match request.send().await {
            Ok(answer) => {
                if let Some(arn) = answer.tasks().first().and_then(Task::task_arn) {
                    return Ok(arn.into());
                }
                // Capacity, mostly; every reason that ECS gives with status 200 may pass.
                let reasons = answer.failures().iter().flat_map(|failure| [failure.reason(), failure.detail()]).flatten();
                Err(transient(call, reasons.collect::<Vec<_>>().join(": ")))
            }
            Err(error) => match error.as_service_error() {
                // The token was used with other parameters, such as another release's network: its task is the run's task all the same.
                Some(RunTaskError::ConflictException(conflict)) => {
                    let task = conflict.resource_ids().first();
                    task.cloned().ok_or_else(|| transient(call, "the client token is taken, by no task that ECS names"))
                }
                _ => Err(failure(call, &error)),
            },
        }
    }

    async fn state(&self, arn: &str) -> Result<TaskState> {
        let call = "ecs:DescribeTasks";
        let request = self.client.describe_tasks().cluster(&self.cluster).tasks(arn);
        let answer = request.send().await.map_err(|error| failure(call, &error))?;
        match (answer.tasks().first(), answer.failures().first()) {
            (Some(task), _) if task.last_status() == Some("STOPPED") => Ok(TaskState::Stopped { why: why(task) }),
            (Some(_), _) => Ok(TaskState::Alive),
            (None, Some(failure)) if failure.reason() == Some("MISSING") => Ok(TaskState::Missing),
            (None, failure) => Err(transient(call, failure.and_then(|failure| failure.reason()).unwrap_or("an empty answer"))),
        }
    }

    async fn stop(&self, arn: &str, reason: &str) -> Result<()> {
        match self.client.stop_task().cluster(&self.cluster).task(arn).reason(reason).send().await {
            Ok(_) => Ok(()),
            // "The referenced task was not found": ECS has forgotten it, so that it stopped long ago.
            Err(error) if error.code() == Some("InvalidParameterException") => Ok(()),
            Err(error) => Err(failure("ecs:StopTask", &error)),
        }
    }
}

/// Every part that shapes the definition is in its family's name: the same name is the same definition.
fn family(settings: &TaskSettings, image: &str) -> String {
    let TaskSettings { role_arn, role_id, execution_role_arn, runner_image, log_group, bucket, region, .. } = settings;
    let parts = [REVISION, CPU, MEMORY, image, role_arn, role_id, execution_role_arn, runner_image, log_group, bucket, region];
    format!("driftless-{:.20}", keys::hash(&parts))
}

/// The init container puts the static runner on the volume, so that the user's image needs nothing but pulumi.
fn containers(settings: &TaskSettings, image: &str) -> std::result::Result<Vec<ContainerDefinition>, BuildError> {
    let variable = |name: &str, value: &str| KeyValuePair::builder().name(name).value(value).build();
    let mount = MountPoint::builder().source_volume(VOLUME).container_path(MOUNT);
    let log = LogConfiguration::builder()
        .log_driver(LogDriver::Awslogs)
        .options("awslogs-group", &settings.log_group)
        .options("awslogs-region", &settings.region)
        .options("awslogs-stream-prefix", "driftless")
        .build()?;
    let init = ContainerDefinition::builder()
        .name(INIT)
        .image(&settings.runner_image)
        .essential(false)
        .set_command(Some(vec!["install".into(), RUNNER.into()]))
        .mount_points(mount.clone().build())
        .start_timeout(INIT_TIMEOUT_SECONDS)
        .log_configuration(log.clone());
    let main = ContainerDefinition::builder()
        .name(MAIN)
        .image(image)
        .essential(true)
        .entry_point(RUNNER)
        .mount_points(mount.read_only(true).build())
        .depends_on(ContainerDependency::builder().container_name(INIT).condition(ContainerCondition::Success).build()?)
        .environment(variable("DRIFTLESS_BUCKET", &settings.bucket))
        .environment(variable("DRIFTLESS_ROLE_ID", &settings.role_id))
        .stop_timeout(STOP_TIMEOUT_SECONDS)
        .log_configuration(log);
    Ok(vec![init.build(), main.build()])
}

/// Why a task stopped, in ECS's words.
fn why(task: &Task) -> String {
    let task_words = [task.stop_code().map(|code| code.as_str().to_owned()), task.stopped_reason().map(Into::into)];
    let containers = task.containers().iter().map(|container| {
        let exit = container.exit_code().map(|code| format!("exit code {code}"));
        let words: Vec<_> = exit.into_iter().chain(container.reason().map(Into::into)).collect();
        (!words.is_empty()).then(|| format!("{}: {}", container.name().unwrap_or("container"), words.join(", ")))
    });
    task_words.into_iter().chain(containers).flatten().collect::<Vec<_>>().join("; ")
}

fn transient(call: &str, message: impl Into<String>) -> Error {
    Error::Transient { call: call.into(), message: message.into() }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn permanent(call: &str, message: impl ToString) -> Error {
    Error::Permanent { call: call.into(), message: message.to_string() }
}
