//! AWS on one machine, wired by `infra/template.yaml`: one endpoint that checks every call against
//! the policies of its caller's role ([`gate`]), S3, SQS and Secrets Manager by moto behind it, ECS
//! by a small [`fargate`], the Lambda runtime in front of the real function binaries ([`lambda`]),
//! and what feeds them: event source mappings ([`poller`]), the schedule and the function URL.
//! [`account`] is an account in which `make deploy` installs Driftless.
//!
//! No code in a function or the runner knows about it: they find it through `AWS_ENDPOINT_URL` and
//! the other standard variables.

pub mod account;
mod authenticator;
mod chunks;
pub mod control;
mod fargate;
mod federation;
mod gate;
mod identity;
mod lambda;
mod machine;
mod outages;
pub mod policy;
mod poller;
mod provision;
mod s3;
mod schedule;
mod signature;
pub mod site;
pub mod template;
mod url;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, PoisonError},
};

use anyhow::{Context, Result, ensure};
pub use authenticator::Eks;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
pub use fargate::PRIVATE_REGISTRY;
pub use federation::Federation;
pub use gate::http_client;
pub use identity::Credentials;
pub use provision::STACK;
pub use site::{CALLS_LOG, INVOCATIONS_LOG};

use self::{
    fargate::Fargate,
    identity::Identities,
    lambda::Lambda,
    machine::{address, listener},
    poller::Mappings,
    schedule::Schedules,
    site::Site,
    template::Template,
};
use crate::world::dirs::Dirs;

/// The world's settings of its AWS.
pub struct Settings {
    /// The Region.
    pub region: String,
    /// The stack's name.
    pub stack: String,
    /// `infra/template.yaml`. It has the paths of the functions' binaries.
    pub template: PathBuf,
    /// The template's parameters.
    pub parameters: BTreeMap<String, String>,
    /// The keys of [`Aws::administrator`].
    pub administrator: Credentials,
    /// moto already has the stack and its resources, from its `CloudFormation`.
    pub is_deployed: bool,
    /// Secrets Manager's secrets, by name.
    pub secrets: BTreeMap<String, String>,
    /// S3's objects outside the template's bucket, by ARN.
    pub objects: BTreeMap<String, String>,
    /// The functions' replacement for `/etc/hosts`, for API servers with names that no DNS has.
    pub etc_hosts: Option<PathBuf>,
    /// The replacement for `/driftless/runner`.
    pub runner: PathBuf,
    /// The environment of a task's image: `PATH`, `PULUMI_HOME` and the like. `HOME` and `TMPDIR`
    /// are the task's own.
    pub image: BTreeMap<String, String>,
    /// moto's URL, without a trailing slash.
    pub moto: String,
    /// The maximum number of instances of one function, whatever the template allows, because the
    /// machine is small.
    pub instances: usize,
}

/// moto's default account.
pub const ACCOUNT: &str = "123456789012";
/// The Region of a world.
pub const REGION: &str = "us-east-1";
/// The objects of git's files in a world, by the parameter that names them, at the keys of `make
/// deploy`.
pub const GIT_FILES: [(&str, &str); 2] = [
    ("GitKnownHosts", "arn:aws:s3:::driftless-artifacts/driftless/git/known-hosts"),
    ("GitCaCertificates", "arn:aws:s3:::driftless-artifacts/driftless/git/ca-certificates"),
];

/// A running AWS. Dropping it ends every function and every task.
pub struct Aws {
    /// `AWS_ENDPOINT_URL`: every service, for all callers.
    pub endpoint: String,
    /// Where a task finds its metadata and credentials: `http://169.254.170.2` as on Fargate, if
    /// this machine has that address and no other world uses it. Then tasks also find S3 by its
    /// name in the Region; otherwise by [`Aws::endpoint`].
    pub task_endpoint: String,
    /// The webhook's function URL, with a trailing slash as in AWS.
    pub webhook_url: String,
    /// The URL for [`control::Client`].
    pub control: String,
    /// `AWS_REGION`
    pub region: String,
    /// The bucket's name.
    pub bucket: String,
    /// The queues' URLs by logical id, dead-letter queues included.
    pub queues: BTreeMap<String, String>,
    /// Keys with all permissions.
    pub administrator: Credentials,
    site: Arc<Site>,
}

impl Aws {
    /// Reads the template, creates its resources in moto, and serves. From then on messages are
    /// polled and the schedule ticks.
    pub async fn start(dirs: Arc<Dirs>, settings: Settings) -> Result<Self> {
        let (gate, url, control) = (listener().await?, listener().await?, listener().await?);
        let (tasks, s3, files) = match fargate::Own::claim(&dirs, &settings.region).await? {
            Some(own) => (own.ecs, Some(own.s3), Some(own.files)),
            None => (listener().await?, None, None),
        };
        let (endpoint, webhook_url) = (address(&gate)?, format!("{}/", address(&url)?));
        let template = Template::read(
            &settings.template,
            &template::Settings {
                account: ACCOUNT.into(),
                region: settings.region,
                stack: settings.stack,
                endpoint: endpoint.clone(),
                function_url: webhook_url.clone(),
                parameters: settings.parameters,
            },
        )?;
        for (id, function) in &template.functions {
            let bootstrap = function.code.join("bootstrap");
            ensure!(bootstrap.is_file(), "{id}: there is no {}: run `cargo lambda build`", bootstrap.display());
        }
        let identities = Identities::default();
        let administrator = settings.administrator;
        identities.administrator(ACCOUNT, administrator.clone())?;
        let config = backend(&settings.moto, &template.region, &administrator).await;
        let site = Arc::new(Site::new(
            dirs,
            endpoint.clone(),
            settings.moto.clone(),
            template,
            identities,
            aws_sdk_sqs::Client::new(&config),
            settings.etc_hosts,
        )?);
        if !settings.is_deployed {
            provision::create(&site, &config, &settings.secrets, &settings.objects)
                .await
                .context("making the template's resources in moto")?;
        }
        provision::notify(&site.template, &config).await?;

        let fargate = Fargate::start(Arc::clone(&site), tasks, files, settings.runner, settings.image)?;
        gate::serve(&site, Arc::clone(&fargate), gate, s3)?;
        let task_endpoint = fargate.endpoint.clone();
        let lambda = Arc::new(Lambda::new(&site, settings.instances));
        let mappings = Mappings::start(&site, &lambda, settings.instances)?;
        let schedules = Schedules::start(&site, &lambda);
        let function_url = url::serve(&site, &lambda, url)?;
        let hooks = address(&control)?;
        control::serve(&site, control::Parts { lambda, mappings, schedules, function_url, fargate }, control);

        let queues = site.template.queues.iter().map(|(id, queue)| (id.clone(), queue.url.clone())).collect();
        let (region, bucket) = (site.template.region.clone(), site.template.bucket.clone());
        Ok(Self { endpoint, task_endpoint, webhook_url, control: hooks, region, bucket, queues, administrator, site })
    }

    /// Admits the functions to an EKS cluster by their roles.
    pub fn admit(&self, eks: Eks) {
        authenticator::serve(&self.site, eks);
    }

    /// Lets the runs of a cluster assume roles with the tokens of their `ServiceAccount`s.
    pub fn federate(&self, federation: Federation) {
        *self.site.federation.write().unwrap_or_else(PoisonError::into_inner) = federation;
    }

    /// Keys of the role with that logical id for the pods of a `ServiceAccount`, from EKS Pod
    /// Identity. Fails if the role does not trust them.
    pub fn pod_identity(&self, role: &str, cluster: &str, namespace: &str, account: &str) -> Result<Credentials> {
        let template = &self.site.template;
        let trusted = template.roles.get(role).with_context(|| format!("the template has no role {role}"))?;
        let cluster = format!("arn:aws:eks:{}:{}:cluster/{cluster}", template.region, template.account);
        ensure!(
            template.trusts_pod(trusted, &cluster, namespace, account),
            "AccessDenied: {} does not trust the ServiceAccount {namespace}/{account} of {cluster}",
            trusted.arn
        );
        self.site.identities.session(template, role, account, None)
    }

    /// Ends every function and every task.
    pub async fn stop(self) {
        self.site.tasks.stop().await;
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        // The tasks hold the site, and the site holds the tasks.
        self.site.tasks.abort();
    }
}

/// The configuration of clients that talk to moto itself.
async fn backend(moto: &str, region: &str, keys: &Credentials) -> aws_config::SdkConfig {
    let keys = aws_credential_types::Credentials::new(&keys.access_key_id, &keys.secret_access_key, None, None, "world");
    aws_config::defaults(BehaviorVersion::v2026_01_12())
        .region(Region::new(region.to_owned()))
        .endpoint_url(moto)
        .credentials_provider(keys)
        .load()
        .await
}
