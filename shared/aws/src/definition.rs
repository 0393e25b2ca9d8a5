//! The containers of a task definition.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ecs::{
    error::BuildError,
    types::{
        ContainerCondition, ContainerDefinition, ContainerDependency, KeyValuePair, LogConfiguration, LogDriver, MountPoint,
        RepositoryCredentials, Volume, builders::ContainerDefinitionBuilder,
    },
};
use driftless_contract::{SECRETS, SHARE, keys, to_json};
use driftless_core::{InitContainer, Mount, RUNNER_VOLUME, TaskShape};

/// The name of the main container.
pub(crate) const MAIN: &str = "pulumi";
/// The log stream of a container is `<this>/<container>/<task id>`.
pub(crate) const STREAM_PREFIX: &str = "driftless";
/// The volume at [`RUNNER_VOLUME`].
const VOLUME: &str = "driftless";
/// The volumes at [`SHARE`] and [`SECRETS`].
const SHARE_VOLUME: &str = "share";
const SECRETS_VOLUME: &str = "secrets";
/// The prefix of the name of a user's volume, and the path where Driftless's init container mounts
/// it.
const VOLUME_PREFIX: &str = "volume-";
const VOLUMES: &str = "/mnt";
/// PKO's variable for the file in which an init container writes variables for Pulumi, and the
/// file's path.
const DOTENV: (&str, &str) = ("PULUMI_ENV", "/share/.env");
/// The path to which the init container copies the runner.
const RUNNER: &str = "/driftless/runner";
/// The name of Driftless's init container.
const INIT: &str = "runner-init";
/// Fargate's maximum: Pulumi saves its checkpoint in this time.
const STOP_TIMEOUT_SECONDS: i32 = 120;
/// How long the main container waits for the init container.
const INIT_TIMEOUT_SECONDS: i32 = 120;
/// Part of the family's name. It must be raised whenever [`containers`] makes a different
/// definition from the same settings.
const REVISION: &str = "5";
/// The registry of an image without a host.
const DOCKER_HUB: &str = "docker.io";

/// The settings of every task definition and every launch.
#[derive(Clone, Debug)]
pub struct TaskSettings {
    /// `TASK_ROLE_ARN`: the role of every task.
    pub role_arn: String,
    /// `TASK_ROLE_ID`: the unique id of that role, the first half of its `aws:userid`.
    pub role_id: String,
    /// `EXECUTION_ROLE_ARN`: pulls images and writes logs.
    pub execution_role_arn: String,
    /// `SUBNETS`: in several zones, because capacity differs by zone.
    pub subnets: Vec<String>,
    /// `SECURITY_GROUPS`
    pub security_groups: Vec<String>,
    /// `ASSIGN_PUBLIC_IP`: `ENABLED` or `DISABLED`.
    pub assign_public_ip: String,
    /// `RUNNER_IMAGE`: its entry point is the runner, whose `install <path>` copies it there.
    pub runner_image: String,
    /// `LOG_GROUP`
    pub log_group: String,
    /// `BUCKET`: the bucket with the task folders.
    pub bucket: String,
    /// `AWS_REGION`: of the log group.
    pub region: String,
    /// `TASK_TAGS`: tags of every task, each as `KEY=VALUE`.
    pub tags: Vec<String>,
    /// `PRIVATE_REGISTRIES`: the hosts of registries that require a user and a password.
    pub private_registries: Vec<String>,
    /// `REGISTRY_SECRETS`: the prefix, before `/` and a host, of the name of the secret with these.
    pub registry_secrets: String,
}

/// The family's name contains a hash of everything that shapes the definition, so that the same
/// name means the same definition.
pub(crate) fn family(settings: &TaskSettings, shape: &TaskShape) -> String {
    let TaskSettings { role_arn, role_id, execution_role_arn, runner_image, log_group, bucket, region, .. } = settings;
    let (shape, registries) = (&to_json(shape), &settings.private_registries.join(","));
    let secrets = &settings.registry_secrets;
    let parts =
        [REVISION, shape, role_arn, role_id, execution_role_arn, runner_image, log_group, bucket, region, registries, secrets];
    format!("driftless-{:.20}", keys::hash(&parts))
}

/// The volumes of a task.
pub(crate) fn volumes(shape: &TaskShape) -> Vec<Volume> {
    let users = users_volumes(shape).into_iter().map(|name| format!("{VOLUME_PREFIX}{name}"));
    let names = [VOLUME, SHARE_VOLUME, SECRETS_VOLUME].into_iter().map(Into::into).chain(users);
    names.map(|name: String| Volume::builder().name(name).build()).collect()
}

/// Driftless's init container copies the static runner to its volume, so that the user's image
/// needs only Pulumi. Then the user's init containers run, one after the other.
pub(crate) fn containers(settings: &TaskSettings, shape: &TaskShape) -> Result<Vec<ContainerDefinition>, BuildError> {
    // ECS refuses an empty image.
    let image = shape.image.as_deref().unwrap_or_default();
    let log = LogConfiguration::builder()
        .log_driver(LogDriver::Awslogs)
        .options("awslogs-group", &settings.log_group)
        .options("awslogs-region", &settings.region)
        .options("awslogs-stream-prefix", STREAM_PREFIX)
        .build()?;
    let mounts = |read_only, users: Vec<MountPoint>| {
        let ours =
            [mount(VOLUME, RUNNER_VOLUME, read_only), mount(SHARE_VOLUME, SHARE, false), mount(SECRETS_VOLUME, SECRETS, false)];
        Some(ours.into_iter().chain(users).collect())
    };
    // The runner's volume, and the directories that the users of all images may write to.
    let users = users_volumes(shape);
    let place = |name: &str| format!("{VOLUMES}/{name}");
    let install = ["install", RUNNER, SHARE, SECRETS].into_iter().map(Into::into).chain(users.iter().map(|name| place(name)));
    let opened = users.iter().map(|name| mount(&format!("{VOLUME_PREFIX}{name}"), &place(name), false));
    let runner = ContainerDefinition::builder()
        .name(INIT)
        .image(&settings.runner_image)
        .set_repository_credentials(credentials(settings, &settings.runner_image))
        // A volume belongs to root, and only root may change its permissions. The image's own user
        // is unprivileged.
        .user("0")
        .essential(false)
        .set_command(Some(install.collect()))
        .set_mount_points(mounts(false, opened.collect()))
        .start_timeout(INIT_TIMEOUT_SECONDS)
        .log_configuration(log.clone());
    let mut main = ContainerDefinition::builder()
        .name(MAIN)
        .image(image)
        .set_repository_credentials(credentials(settings, image))
        .essential(true)
        .entry_point(RUNNER)
        .set_mount_points(mounts(true, users_mounts(&shape.mounts)))
        .depends_on(after(INIT)?)
        .environment(variable("DRIFTLESS_BUCKET", &settings.bucket))
        .environment(variable("DRIFTLESS_ROLE_ID", &settings.role_id))
        .environment(variable(DOTENV.0, DOTENV.1))
        .stop_timeout(STOP_TIMEOUT_SECONDS)
        .log_configuration(log.clone());
    let mut all = vec![runner.build()];
    let mut previous = INIT.to_owned();
    for init in &shape.init {
        let name = format!("init-{}", init.name);
        let own = init.image.as_deref().unwrap_or(image);
        let container = init_container(init, &name, own, &previous)?.log_configuration(log.clone());
        all.push(container.set_repository_credentials(credentials(settings, own)).build());
        // After each of them, so that the first failure ends the task.
        main = main.depends_on(after(&name)?);
        previous = name;
    }
    all.push(main.build());
    Ok(all)
}

/// A user's init container. It has no start timeout, so it may take any time.
fn init_container(
    init: &InitContainer,
    name: &str,
    image: &str,
    previous: &str,
) -> Result<ContainerDefinitionBuilder, BuildError> {
    let mut env: BTreeMap<_, _> = init.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    env.extend([DOTENV]);
    let words = |words: &[String]| Some(words.to_vec()).filter(|words| !words.is_empty());
    Ok(ContainerDefinition::builder()
        .name(name)
        .image(image)
        .essential(false)
        .set_entry_point(words(&init.entry_point))
        .set_command(words(&init.command))
        .set_environment(Some(env.into_iter().map(|(name, value)| variable(name, value)).collect()))
        .set_mount_points(Some([vec![mount(SHARE_VOLUME, SHARE, false)], users_mounts(&init.mounts)].concat()))
        .depends_on(after(previous)?))
}

/// The execution role's login to the registry of an image; `None` for ECR and for registries
/// without a login.
fn credentials(settings: &TaskSettings, image: &str) -> Option<RepositoryCredentials> {
    let host = registry(image);
    settings.private_registries.iter().any(|private| canonical(private) == host).then(|| {
        // In the task's own Region a secret's name can replace its ARN, and a name has no colon.
        // The parameter is set, so this returns no error.
        let name = format!("{}/{}", settings.registry_secrets, host.replace(':', "_"));
        RepositoryCredentials::builder().credentials_parameter(name).build().ok()
    })?
}

/// The host of an image's registry, by the rule of container runtimes: the first part of the name
/// if it can be a host, else Docker Hub.
fn registry(image: &str) -> &str {
    let host = image.split_once('/').map(|(host, _)| host).filter(|host| host.contains(['.', ':']) || *host == "localhost");
    host.map_or(DOCKER_HUB, canonical)
}

/// The canonical name of a registry with several names.
fn canonical(host: &str) -> &str {
    if matches!(host, "index.docker.io" | "registry-1.docker.io") { DOCKER_HUB } else { host }
}

fn variable(name: &str, value: &str) -> KeyValuePair {
    KeyValuePair::builder().name(name).value(value).build()
}

/// The names of the user's volumes.
fn users_volumes(shape: &TaskShape) -> BTreeSet<&str> {
    let mounts = shape.mounts.iter().chain(shape.init.iter().flat_map(|init| &init.mounts));
    mounts.map(|mount| mount.volume.as_str()).collect()
}

fn users_mounts(mounts: &[Mount]) -> Vec<MountPoint> {
    mounts.iter().map(|Mount { volume, path }| mount(&format!("{VOLUME_PREFIX}{volume}"), path, false)).collect()
}

fn mount(volume: &str, path: &str, read_only: bool) -> MountPoint {
    MountPoint::builder().source_volume(volume).container_path(path).read_only(read_only).build()
}

fn after(container: &str) -> Result<ContainerDependency, BuildError> {
    ContainerDependency::builder().container_name(container).condition(ContainerCondition::Success).build()
}

#[cfg(test)]
pub(crate) mod tests {
    use driftless_core::Architecture;

    use super::*;

    pub(crate) fn settings() -> TaskSettings {
        TaskSettings {
            role_arn: "role".into(),
            role_id: "AROA".into(),
            execution_role_arn: "execution".into(),
            subnets: Vec::new(),
            security_groups: Vec::new(),
            assign_public_ip: "DISABLED".into(),
            runner_image: "runner".into(),
            log_group: "logs".into(),
            bucket: "bucket".into(),
            region: "eu-west-1".into(),
            tags: Vec::new(),
            private_registries: Vec::new(),
            registry_secrets: "driftless/registries".into(),
        }
    }

    #[test]
    fn image_of_a_private_registry_is_pulled_with_its_secret() {
        let of = |registries: &[&str]| {
            let private_registries = registries.iter().map(|host| (*host).to_owned()).collect();
            let settings = TaskSettings { private_registries, ..settings() };
            let init = vec![init("a", Some("ghcr.io/team/tool:1"))];
            let shape = TaskShape { image: Some("team/pulumi".into()), init, ..TaskShape::default() };
            let all = containers(&settings, &shape).unwrap().into_iter();
            let secret =
                |container: ContainerDefinition| Some(container.repository_credentials()?.credentials_parameter().to_owned());
            all.map(secret).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [None, None, None]);
        let secret = |host: &str| Some(format!("driftless/registries/{host}"));
        assert_eq!(of(&["ghcr.io", "docker.io"]), [secret("docker.io"), secret("ghcr.io"), secret("docker.io")]);
        assert_eq!(of(&["registry-1.docker.io"]), [secret("docker.io"), None, secret("docker.io")]);
        let settings = TaskSettings { private_registries: vec!["registry:5000".into()], ..settings() };
        let login = credentials(&settings, "registry:5000/pulumi").unwrap();
        assert_eq!(login.credentials_parameter(), "driftless/registries/registry_5000");
        for (image, host) in [
            ("index.docker.io/team/pulumi", "docker.io"),
            ("registry-1.docker.io/team/pulumi", "docker.io"),
            ("pulumi", "docker.io"),
            ("team/pulumi:1", "docker.io"),
            ("localhost/pulumi", "localhost"),
            ("registry:5000/pulumi@sha256:ab", "registry:5000"),
            ("public.ecr.aws/pulumi/pulumi:3", "public.ecr.aws"),
        ] {
            assert_eq!(registry(image), host, "{image}");
        }
    }

    fn init(name: &str, image: Option<&str>) -> InitContainer {
        let env = [("A", "1"), ("PULUMI_ENV", "x"), ("A", "2")].map(|(name, value)| (name.into(), value.into())).into();
        InitContainer {
            name: name.into(),
            image: image.map(Into::into),
            entry_point: vec!["sh".into()],
            command: Vec::new(),
            env,
            mounts: Vec::new(),
        }
    }

    #[test]
    fn init_containers_run_one_after_the_other_before_pulumi() {
        let init = vec![init("a", None), init("b", Some("other"))];
        let shape = TaskShape { image: Some("image".into()), init, ..TaskShape::default() };
        let all = containers(&settings(), &shape).unwrap();
        let names: Vec<_> = all.iter().filter_map(|container| container.name()).collect();
        assert_eq!(names, ["runner-init", "init-a", "init-b", "pulumi"]);
        let after = |container: &ContainerDefinition| {
            container.depends_on().iter().map(|on| on.container_name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            all.iter().map(after).collect::<Vec<_>>(),
            [vec![], vec!["runner-init"], vec!["init-a"], vec!["runner-init", "init-a", "init-b"]]
        );
        assert_eq!((all[1].image(), all[2].image()), (Some("image"), Some("other")));
        let env: Vec<_> = all[1].environment().iter().map(|pair| (pair.name().unwrap(), pair.value().unwrap())).collect();
        assert_eq!(env, [("A", "2"), ("PULUMI_ENV", "/share/.env")]);
        assert_eq!((all[1].entry_point(), all[1].command().is_empty()), (&["sh".to_owned()][..], true));
        let writable = |container: &ContainerDefinition| {
            container.mount_points().iter().map(|mount| mount.read_only() != Some(true)).collect::<Vec<_>>()
        };
        assert_eq!(
            all.iter().map(writable).collect::<Vec<_>>(),
            [vec![true; 3], vec![true], vec![true], vec![false, true, true]]
        );
        assert!(all.iter().all(|container| container.log_configuration().is_some()));
        // Each runs as the user of its image, except for Driftless's, which changes the volumes'
        // permissions.
        let users: Vec<_> = all.iter().map(ContainerDefinition::user).collect();
        assert_eq!(users, [Some("0"), None, None, None]);
    }

    #[test]
    fn pulumi_has_two_minutes_to_save_its_checkpoint() {
        let shape = TaskShape { image: Some("image".into()), ..TaskShape::default() };
        let all = containers(&settings(), &shape).unwrap();
        // Without it Fargate kills the container after 30 s.
        assert_eq!(all.last().and_then(ContainerDefinition::stop_timeout), Some(120));
    }

    #[test]
    fn volume_is_mounted_per_container_and_writable_by_all_users() {
        let mounts = |path: &str| vec![Mount { volume: "cache".into(), path: path.into() }];
        let init = vec![InitContainer { mounts: mounts("/c"), ..init("a", None) }];
        let shape = TaskShape { mounts: mounts("/cache"), init, ..TaskShape::default() };
        assert_eq!(users_volumes(&shape), BTreeSet::from(["cache"]));
        let all = containers(&settings(), &shape).unwrap();
        let last = |container: &ContainerDefinition| {
            let mount = container.mount_points().last().unwrap();
            (mount.source_volume().unwrap().to_owned(), mount.container_path().unwrap().to_owned())
        };
        let expected = ["/mnt/cache", "/c", "/cache"].map(|path| ("volume-cache".to_owned(), path.to_owned()));
        assert_eq!(all.iter().map(last).collect::<Vec<_>>(), expected);
        assert_eq!(all[0].command().last().unwrap(), "/mnt/cache");
    }

    #[test]
    fn a_family_is_a_whole_shape() {
        let shape = TaskShape { image: Some("image".into()), ..TaskShape::default() };
        let others = [
            TaskShape { image: Some("other".into()), ..shape.clone() },
            TaskShape { architecture: Some(Architecture::Arm64), ..shape.clone() },
            TaskShape { cpu: 512, ..shape.clone() },
            TaskShape { memory_mib: 1024, ..shape.clone() },
            TaskShape { ephemeral_gib: Some(21), ..shape.clone() },
            TaskShape { init: vec![init("a", None)], ..shape.clone() },
            TaskShape { mounts: vec![Mount { volume: "v".into(), path: "/v".into() }], ..shape.clone() },
        ];
        for other in others {
            assert_ne!(family(&settings(), &shape), family(&settings(), &other), "{other:?}");
        }
        assert_eq!(containers(&settings(), &shape).unwrap().len(), 2);
    }
}
