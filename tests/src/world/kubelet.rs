//! The node of the forwarder: runs the container of its Deployment as a process while the
//! Deployment exists.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Container},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    dirs::Dirs,
    process::{Process, command},
};
use crate::aws::account::Account;

const NAMESPACE: &str = "driftless-system";
const NAME: &str = "driftless-forwarder";
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// The node.
pub struct Kubelet {
    /// The world's folders.
    pub dirs: Arc<Dirs>,
    /// With an administrator's rights.
    pub client: Client,
    /// In place of the ServiceAccount's token.
    pub kubeconfig: PathBuf,
    /// In place of the image.
    pub program: PathBuf,
    /// The account that issues the keys of Pod Identity.
    pub account: Arc<Account>,
}

impl Kubelet {
    /// Polls without end. Failures are retried, as by a kubelet.
    pub async fn run(self) {
        let mut process = None;
        loop {
            if let Err(error) = self.look(&mut process).await {
                tracing::warn!(error = format!("{error:#}"), "the forwarder does not start");
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn look(&self, process: &mut Option<Process>) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        let Some(deployment) = deployments.get_opt(NAME).await? else {
            *process = None;
            return Ok(());
        };
        if process.is_some() {
            return Ok(());
        }
        let pod = deployment.spec.and_then(|spec| spec.template.spec).context("a pod")?;
        let keys = self.account.forwarder(NAMESPACE, pod.service_account_name.as_deref().unwrap_or("default")).await?;
        let container = pod.containers.into_iter().next().context("a container")?;
        let mut forwarder = command(&self.dirs, &self.program);
        forwarder
            .envs(self.environment(&container).await?)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("AWS_ENDPOINT_URL", &self.account.endpoint)
            .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", &keys.secret_access_key)
            .env("AWS_SESSION_TOKEN", keys.session_token.unwrap_or_default());
        *process = Some(Process::start(&self.dirs, "forwarder", forwarder)?);
        let status = json!({ "status": {
            "observedGeneration": deployment.metadata.generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        } });
        deployments.patch_status(NAME, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    async fn environment(&self, container: &Container) -> Result<BTreeMap<String, String>> {
        let mut environment = BTreeMap::new();
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        for source in container.env_from.iter().flatten().filter_map(|source| source.config_map_ref.as_ref()) {
            environment.extend(maps.get(&source.name).await?.data.unwrap_or_default());
        }
        let literals =
            container.env.iter().flatten().filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?)));
        environment.extend(literals);
        Ok(environment)
    }
}
