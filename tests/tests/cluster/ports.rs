//! The guarantees of the Kubernetes port, checked for the client on a real API server.
//! [`driftless_testkit::World`] has the same.

use anyhow::{Context as _, Result, bail};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use driftless_kubernetes::{Client, WATCH};
use driftless_testkit::contract::cluster::{Fixture, check};
use driftless_tests::world::{cluster::Cluster, ready};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    events::v1::Event,
};
use kube::{
    Api, Config,
    api::{DeleteParams, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use super::LIMIT;

struct Real<'a> {
    cluster: &'a Cluster,
    port: Client,
}

/// The client as an administrator, or with the rights of a function.
async fn client(cluster: &Cluster, function: Option<&str>) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(&cluster.admin_kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = function.map(|function| format!("driftless:{function}"));
    config.auth_info.impersonate_groups = config.auth_info.impersonate.clone().map(|group| vec![group]);
    Ok(Client::new(config, "driftless-contract")?)
}

/// Checks every guarantee.
pub(super) async fn give_every_guarantee(cluster: &Cluster) -> Result<()> {
    check(&Real { cluster, port: client(cluster, None).await? }).await.into_result()
}

impl Real<'_> {
    fn namespaces(&self) -> Api<Namespace> {
        Api::all(self.port.kube().clone())
    }
}

impl Fixture for Real<'_> {
    type Port = Client;

    fn port(&self) -> &Client {
        &self.port
    }

    async fn denied(&self) -> Result<Client> {
        client(self.cluster, Some("reconciler")).await
    }

    #[expect(clippy::disallowed_methods, reason = "the API server runs by the clock of this machine")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn namespace(&self, name: &str, watch: Option<&str>) -> Result<()> {
        let metadata = json!({ "name": name, "labels": watch.map(|watch| json!({ WATCH: watch })) });
        let namespace = serde_json::from_value(json!({ "metadata": metadata }))?;
        self.namespaces().create(&PostParams::default(), &namespace).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.port.kube().clone(), name);
        ready::until("its ServiceAccount", LIMIT, async || Ok(accounts.get("default").await?)).await.map(drop)
    }

    async fn terminate(&self, namespace: &str) -> Result<()> {
        self.namespaces().delete(namespace, &DeleteParams::default()).await?;
        ready::until("the end of what is in it", LIMIT, async || {
            let Some(found) = self.namespaces().get_opt(namespace).await? else { return Ok(()) };
            let status = found.status.unwrap_or_default();
            let waits = status.conditions.iter().flatten();
            match waits.into_iter().find(|condition| condition.type_ == "NamespaceFinalizersRemaining") {
                Some(condition) if condition.status == "True" => Ok(()),
                _ => bail!("{status:?}"),
            }
        })
        .await
    }

    async fn events(&self, namespace: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.port.kube().clone(), namespace);
        let told = events.list(&ListParams::default()).await?.into_iter().map(|event| {
            let about = event.regarding.unwrap_or_default();
            let [kind, namespace, name] = [about.kind, about.namespace, about.name].map(Option::unwrap_or_default);
            let [event_type, reason, note] = [event.type_, event.reason, event.note].map(Option::unwrap_or_default);
            format!("{kind} {namespace}/{name} {event_type} {reason}: {note}")
        });
        Ok(told.collect())
    }

    fn is_for(&self, token: &str, audience: &str) -> bool {
        let claims = token
            .split('.')
            .nth(1)
            .context("no JWT")
            .and_then(|claims| Ok(serde_json::from_slice::<Value>(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?));
        claims.is_ok_and(|claims| claims["aud"] == json!([audience]))
    }
}
