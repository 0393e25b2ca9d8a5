//! The whole world: both halves, connected as in an installation.

use std::{collections::BTreeMap, fmt::Write as _, fs, net::Ipv4Addr, path::Path, sync::Arc};

use anyhow::{Context, Result};
use driftless_core::Limits;
use serde_json::json;
use tokio::net::TcpListener;

use super::{
    cluster::{self, Cluster},
    dirs::Dirs,
    flux,
    git::{GitServer, PrivateGit},
    moto::Moto,
    process::{Supervisor, command, output},
    registry::Registry,
};
use crate::aws::{self, Aws, Credentials, Eks, Federation, Settings};

/// The key that the webhook shares with Flux.
const WEBHOOK_KEY: &str = "a-key-for-one-machine-only";
/// The key that it shares with git hosts.
const WEBHOOK_KEY_OF_GIT: &str = "a-key-for-git-hosts-only";
/// The folders of the worlds of the end-to-end tests, below `target`. [`World::start`] and `make
/// world` use the first.
pub const WORLDS: [&str; 3] = ["world", "world-2", "world-3"];
/// The maximum number of concurrent instances of a function.
pub const INSTANCES: usize = 3;
/// For tests: the machine is small, and the limits must be reachable.
pub const LIMITS: Limits = Limits { runs: Some(20), runs_per_namespace: Some(6) };
/// Longer than any healthy run of a test is silent: while a test holds it, and for its start on a
/// busy machine.
const SILENCE_SECONDS: &str = "120";
/// The API server's minimum, so that renewals are tested.
const TOKEN_SECONDS: &str = "600";
/// A task of the world starts within seconds, or within a minute on a busy machine.
const START_SECONDS: &str = "120";
/// A kind of source beside Flux's own. Its CRD is not installed.
const SOURCE_KIND: &str = "world.example/Widget";
/// The repair of a lost event takes this long at most here. In an installation it is ten minutes.
const LOOK_PERIOD_SECONDS: &str = "60";

/// A running world.
pub struct World {
    dirs: Arc<Dirs>,
    supervisor: Supervisor,
    aws: Aws,
    _private: PrivateGit,
}

impl World {
    /// Starts every part in `target/<name>`, writes `env` there, and returns when all are ready.
    /// `limits` apply to concurrent tasks.
    pub async fn start(project: &Path, name: &str, limits: Limits) -> Result<Self> {
        let dirs = Arc::new(Dirs::named(project, name)?);
        let supervisor = Supervisor::default();
        let (aws, private) = Box::pin(supervisor.guard(parts(&dirs, &supervisor, project, limits))).await?;
        Ok(Self { dirs, supervisor, aws, _private: private })
    }

    /// Waits until a part ends by itself. The error has its name and its end.
    pub async fn failure(&self) -> anyhow::Error {
        self.supervisor.failure().await
    }

    /// The file that a shell can source to use the world.
    #[must_use]
    pub fn env_file(&self) -> std::path::PathBuf {
        self.dirs.root().join("env")
    }

    /// Ends every part.
    pub async fn stop(self) {
        self.aws.stop().await;
        self.supervisor.stop().await;
    }
}

async fn parts(dirs: &Arc<Dirs>, supervisor: &Supervisor, project: &Path, limits: Limits) -> Result<(Aws, PrivateGit)> {
    // The API server does not use it before its first request from a function.
    let authenticator = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let authenticator_url = format!("http://{}/", authenticator.local_addr()?);
    let kubernetes = async {
        let etcd = cluster::start_etcd(dirs, supervisor).await?;
        let world = async {
            let cluster = Cluster::start(dirs, supervisor, project, &etcd, Some(&authenticator_url)).await?;
            let flux_events = flux::start(dirs, supervisor, &cluster).await?;
            cluster::apply(&cluster.client("admin").await?, &project.join("infra/kubernetes/runs/runs.yaml")).await?;
            Ok((cluster, flux_events))
        };
        let ((cluster, flux_events), second) =
            tokio::try_join!(Box::pin(world), Box::pin(Cluster::start_second(dirs, supervisor, project, &etcd)))?;
        Ok((cluster, flux_events, second, etcd))
    };
    let ((cluster, flux_events, second, etcd), git, private, registry, moto, image) = tokio::try_join!(
        Box::pin(kubernetes),
        GitServer::start(dirs, supervisor),
        Box::pin(PrivateGit::start(dirs, supervisor)),
        Registry::start(dirs, supervisor),
        Moto::start(dirs, supervisor),
        image(dirs)
    )?;
    let mut kubeconfigs = BTreeMap::new();
    for (function, user) in second.service_account_users(project).await? {
        let entries = [cluster.entry(cluster.eks_user(aws::REGION)), second.eks_entry(user)];
        kubeconfigs.insert(format!("driftless/kubeconfig/{function}"), cluster::kubeconfig(&entries)?);
    }
    let etc_hosts = dirs.root().join("hosts");
    fs::write(&etc_hosts, format!("{}127.0.0.1 {}\n", fs::read_to_string("/etc/hosts")?, cluster::SECOND_HOST))?;
    let settings = Settings { etc_hosts: Some(etc_hosts), ..settings(project, kubeconfigs, &private, &moto, image, limits)? };
    let aws = Aws::start(Arc::clone(dirs), settings).await?;
    aws.admit(Eks { cluster: cluster::NAME.into(), listener: authenticator });
    aws.federate(federation(&cluster).await?);
    forwarder(dirs, supervisor, project, (cluster::NAME, &cluster), &aws, Some(&flux_events))?;
    forwarder(dirs, supervisor, project, (cluster::SECOND, &second), &aws, None)?;
    let state = dirs.create("state")?;
    let env = [
        ("KUBECONFIG", cluster.admin_kubeconfig.display().to_string()),
        ("WORLD_SECOND_KUBECONFIG", second.admin_kubeconfig.display().to_string()),
        ("WORLD_ETCD", etcd),
        ("AWS_REGION", aws.region.clone()),
        ("AWS_ENDPOINT_URL", aws.endpoint.clone()),
        ("AWS_ACCESS_KEY_ID", aws.administrator.access_key_id.clone()),
        ("AWS_SECRET_ACCESS_KEY", aws.administrator.secret_access_key.clone()),
        ("WORLD_BUCKET", aws.bucket.clone()),
        ("WORLD_BUCKET_ENDPOINT", moto.endpoint.clone()),
        ("WORLD_CONTROL", aws.control.clone()),
        ("WORLD_TASK_ENDPOINT", aws.task_endpoint.clone()),
        ("WORLD_GIT_ROOT", git.root.display().to_string()),
        ("WORLD_GIT_URL", git.url.clone()),
        ("WORLD_GIT_PRIVATE_ROOT", private.server.root.display().to_string()),
        ("WORLD_GIT_PRIVATE_URL", private.server.url.clone()),
        ("WORLD_GIT_SSH_URL", format!("{}{}", private.ssh_url, private.server.root.display())),
        ("WORLD_GIT_CREDENTIALS", private.credentials.display().to_string()),
        ("WORLD_OCI", registry.host.clone()),
        ("WORLD_ARTIFACTS", dirs.root().join("artifacts").display().to_string()),
        ("WORLD_STATE", format!("file://{}", state.display())),
        ("WORLD_WEBHOOK_URL", format!("{}{}", aws.webhook_url, cluster::NAME)),
        ("WORLD_WEBHOOK_KEY", WEBHOOK_KEY.to_owned()),
        ("WORLD_WEBHOOK_KEY_OF_GIT", WEBHOOK_KEY_OF_GIT.to_owned()),
        ("WORLD_LOGS", dirs.logs().display().to_string()),
        ("WORLD_PIDS", dirs.pids().display().to_string()),
        ("WORLD_TOOLS", dirs.tools().display().to_string()),
    ];
    let mut text = String::new();
    for (name, value) in env {
        writeln!(text, "export {name}='{value}'")?;
    }
    writeln!(text, "export PATH=\"$WORLD_TOOLS:$PATH\"")?;
    fs::write(dirs.root().join("env"), text)?;
    Ok((aws, private))
}

/// The image of a task beside the runner: `pulumi` with the tests' providers as installed plugins.
pub(super) async fn image(dirs: &Dirs) -> Result<BTreeMap<String, String>> {
    let home = dirs.create("image/pulumi")?;
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", dirs.tools().display());
    // The second replaces the published one of that version. The others are published ones, if PATH
    // has them.
    let plugins = [("world", "0.1.0"), ("kubernetes", "4.23.0"), ("random", "4.18.0"), ("command", "1.2.1")];
    let is_ours = |plugin: &str| ["world", "kubernetes"].contains(&plugin);
    let has = |plugin: &str| is_ours(plugin) || dirs.tools().join(format!("pulumi-resource-{plugin}")).exists();
    for (plugin, version) in plugins.into_iter().filter(|(plugin, _)| has(plugin)) {
        let mut pulumi = command(dirs, dirs.tool("pulumi")?);
        pulumi
            .args(["plugin", "install", "resource", plugin, version, "--file"])
            .arg(fs::canonicalize(dirs.tool(&format!("pulumi-resource-{plugin}"))?)?)
            .env("PULUMI_HOME", &home)
            .env("PULUMI_SKIP_UPDATE_CHECK", "true")
            .env("PATH", &path);
        output(pulumi).await?;
    }
    Ok([("PATH".to_owned(), path), ("PULUMI_HOME".to_owned(), home.display().to_string())].into())
}

fn settings(
    project: &Path,
    mut secrets: BTreeMap<String, String>,
    private: &PrivateGit,
    moto: &Moto,
    image: BTreeMap<String, String>,
    limits: Limits,
) -> Result<Settings> {
    let [runs, runs_of_one] = [limits.runs, limits.runs_per_namespace].map(|most| most.unwrap_or_default().to_string());
    let clusters = [cluster::NAME, cluster::SECOND].join(",");
    let parameters = [
        ("ClusterNames", clusters.as_str()),
        ("Subnets", "subnet-1"),
        ("SecurityGroups", "sg-1"),
        ("RunnerImage", "driftless/runner"),
        ("Architecture", "x86_64"),
        ("PrivateRegistries", aws::PRIVATE_REGISTRY),
        ("TaskTags", "world=one,cost-centre=42"),
        ("LookPeriodSeconds", LOOK_PERIOD_SECONDS),
        ("MaxRuns", &runs),
        ("MaxRunsPerNamespace", &runs_of_one),
        ("SilenceSeconds", SILENCE_SECONDS),
        ("TokenSeconds", TOKEN_SECONDS),
        ("StartSeconds", START_SECONDS),
        ("SourceKinds", SOURCE_KIND),
        ("AllowLocalGit", "true"),
        ("GitHubApiUrl", &private.api_url),
    ];
    // As for an organisation with many CAs: more than the environment of a function or a secret
    // holds.
    let authorities = format!("{}{}", private.other_authority.repeat(200), private.authority);
    // Flux's key, one that two git hosts share, and one of another team.
    let keys = json!({ cluster::NAME: {
        "flux": WEBHOOK_KEY, "github/team": WEBHOOK_KEY_OF_GIT, "github/other": "another-key", "gitlab": WEBHOOK_KEY_OF_GIT,
        "gitea": WEBHOOK_KEY_OF_GIT,
    } });
    secrets.insert("driftless/webhook-keys".into(), keys.to_string());
    Ok(Settings {
        region: aws::REGION.into(),
        stack: aws::STACK.into(),
        administrator: Credentials::random()?,
        is_deployed: false,
        template: project.join("infra/template.yaml"),
        parameters: parameters
            .into_iter()
            .chain(aws::GIT_FILES)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        secrets,
        objects: aws::GIT_FILES
            .map(|(_, arn)| arn.to_owned())
            .into_iter()
            .zip([private.known_hosts.clone(), authorities])
            .collect(),
        etc_hosts: None,
        runner: binary(project, "runner")?,
        image,
        moto: moto.endpoint.clone(),
        instances: INSTANCES,
    })
}

/// A program of Driftless that is no Lambda function.
pub(super) fn binary(project: &Path, name: &str) -> Result<std::path::PathBuf> {
    let path = project.join("target/lambda").join(name).join("bootstrap");
    path.canonicalize().with_context(|| format!("there is no {}: run `make build`", path.display()))
}

/// The cluster as an OIDC provider, and the role of the tests' runs, which trusts it as in
/// `docs/getting-started.md`.
async fn federation(cluster: &Cluster) -> Result<Federation> {
    let issuer = cluster::ISSUER.trim_start_matches("https://");
    let trust = json!({ "Version": "2012-10-17", "Statement": [{
        "Effect": "Allow",
        "Principal": { "Federated": format!("arn:aws:iam::{}:oidc-provider/{issuer}", aws::ACCOUNT) },
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {
            "StringEquals": { format!("{issuer}:aud"): "sts.amazonaws.com" },
            "StringLike": { format!("{issuer}:sub"): "system:serviceaccount:*:deployer" },
        },
    }] });
    let keys = cluster.client("admin").await?.request_text(http::Request::get("/openid/v1/jwks").body(Vec::new())?).await?;
    Ok(Federation {
        issuer: cluster::ISSUER.into(),
        keys: serde_json::from_str(&keys)?,
        roles: [(format!("arn:aws:iam::{}:role/deployer", aws::ACCOUNT), serde_json::from_value(trust)?)].into(),
    })
}

fn forwarder(
    dirs: &Dirs,
    supervisor: &Supervisor,
    project: &Path,
    (name, cluster): (&str, &Cluster),
    aws: &Aws,
    flux_events: Option<&str>,
) -> Result<()> {
    let keys = aws.pod_identity("ForwarderRole", name, "driftless-system", "driftless-forwarder")?;
    let mut forwarder = command(dirs, binary(project, "forwarder")?);
    forwarder
        .env("KUBECONFIG", cluster.kubeconfig("forwarder"))
        .env("CLUSTER", name)
        .env("FLUX_EVENTS_URL", flux_events.unwrap_or_default())
        .env("HINTS_QUEUE_URL", aws.queues.get("Hints").context("the template has a queue Hints")?)
        .env("AWS_REGION", &aws.region)
        .env("AWS_ENDPOINT_URL", &aws.endpoint)
        .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret_access_key)
        .env("AWS_SESSION_TOKEN", keys.session_token.unwrap_or_default());
    supervisor.start_always(dirs, &cluster::process(name, "forwarder"), forwarder)
}
