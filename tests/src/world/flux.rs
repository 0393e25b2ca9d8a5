//! Flux: the real source-controller and notification-controller, and kustomize-controller on
//! request.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::process::Command;

use super::{
    cluster::{Cluster, apply_yaml},
    dirs::Dirs,
    network::{free_port, own_address},
    process::{Supervisor, command},
    ready,
};

/// Starts both, with the rights of administrators. Returns the URL for events. The cluster already
/// has their namespace and CRDs.
///
/// The artifacts of source-controller have the addresses that they have in any cluster, which only
/// the API server's service proxy can resolve here:
/// `/api/v1/namespaces/flux-system/services/http:source-controller:80/proxy/<path>`.
pub async fn start(dirs: &Dirs, supervisor: &Supervisor, cluster: &Cluster) -> Result<String> {
    let storage = own_address()?;
    let storage = (storage, free_port(storage)?);
    let admin = cluster.client("admin").await?;
    apply_yaml(&admin, &entries(storage)).await?;
    let status = json!({ "status": { "phase": "Running", "podIP": storage.0, "podIPs": [{ "ip": storage.0 }] } });
    let pods: Api<Pod> = Api::namespaced(admin, "flux-system");
    pods.patch_status("source-controller", &PatchParams::default(), &Patch::Merge(status)).await?;
    let events = start_notification_controller(dirs, supervisor, cluster).await?;
    start_source_controller(dirs, supervisor, cluster, storage, &events).await?;
    Ok(events)
}

/// The objects of kubelet and the endpoints controller: the API server's proxy only connects to a
/// Pod's address.
fn entries((address, port): (Ipv4Addr, u16)) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{ name: source-controller, namespace: flux-system }}
spec: {{ ports: [{{ name: http, port: 80, targetPort: {port} }}] }}
---
apiVersion: v1
kind: Pod
metadata: {{ name: source-controller, namespace: flux-system }}
spec: {{ containers: [{{ name: manager, image: source-controller }}] }}
---
apiVersion: v1
kind: Endpoints
metadata: {{ name: source-controller, namespace: flux-system }}
subsets:
- addresses: [{{ ip: {address}, targetRef: {{ kind: Pod, name: source-controller, namespace: flux-system }} }}]
  ports: [{{ name: http, port: {port} }}]
"
    )
}

async fn start_notification_controller(dirs: &Dirs, supervisor: &Supervisor, cluster: &Cluster) -> Result<String> {
    let (mut notification, health) = controller(dirs, cluster, "notification-controller")?;
    let events = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
    notification
        .arg(format!("--events-addr=127.0.0.1:{}", events.1))
        .arg(format!("--receiverAddr=127.0.0.1:{}", free_port(Ipv4Addr::LOCALHOST)?))
        // Otherwise a second event with the same text is dropped for five minutes.
        .arg("--rate-limit-interval=1s");
    supervisor.start(dirs, "notification-controller", notification)?;
    ready::until("notification-controller is ready", ready::START, || ready::answers(health, "/readyz")).await?;
    ready::until("notification-controller takes events", ready::START, || ready::listens(events)).await?;
    Ok(format!("http://127.0.0.1:{}/", events.1))
}

async fn start_source_controller(
    dirs: &Dirs,
    supervisor: &Supervisor,
    cluster: &Cluster,
    storage: (Ipv4Addr, u16),
    events: &str,
) -> Result<()> {
    let (mut source, health) = controller(dirs, cluster, "source-controller")?;
    source
        .arg(format!("--storage-path={}", dirs.create("artifacts")?.display()))
        .arg(format!("--storage-addr={}:{}", storage.0, storage.1))
        .arg("--storage-adv-addr=source-controller.flux-system.svc.cluster.local.")
        .arg(format!("--events-addr={events}"))
        .args(["--interval-jitter-percentage=0", "--requeue-dependency=2s", "--min-retry-delay=500ms", "--max-retry-delay=5s"]);
    supervisor.start(dirs, "source-controller", source)?;
    ready::until("source-controller is ready", ready::START, || ready::answers(health, "/readyz")).await?;
    ready::until("source-controller serves artifacts", ready::START, || ready::answers(storage, "/")).await
}

/// Starts kustomize-controller with the rights of an administrator, after the others; `events` is
/// the result of their start. The cluster already has its CRDs.
pub async fn start_kustomize_controller(dirs: &Dirs, supervisor: &Supervisor, cluster: &Cluster, events: &str) -> Result<()> {
    let endpoints: Api<Endpoints> = Api::namespaced(cluster.client("admin").await?, "flux-system");
    let endpoints = serde_json::to_value(endpoints.get("source-controller").await?)?;
    let subset = &endpoints["subsets"][0];
    let address = subset["addresses"][0]["ip"].as_str().context("an address")?;
    let (mut kustomize, health) = controller(dirs, cluster, "kustomize-controller")?;
    kustomize
        .arg(format!("--events-addr={events}"))
        .args(["--interval-jitter-percentage=0", "--requeue-dependency=2s"])
        // No DNS resolves the host name of artifacts here.
        .env("SOURCE_CONTROLLER_LOCALHOST", format!("{address}:{}", subset["ports"][0]["port"]));
    supervisor.start(dirs, "kustomize-controller", kustomize)?;
    ready::until("kustomize-controller is ready", ready::START, || ready::answers(health, "/readyz")).await
}

/// The common part of all controllers, and the address of their health check.
fn controller(dirs: &Dirs, cluster: &Cluster, name: &str) -> Result<(Command, (Ipv4Addr, u16))> {
    let [health, metrics] = [free_port(Ipv4Addr::LOCALHOST)?, free_port(Ipv4Addr::LOCALHOST)?];
    let mut command = command(dirs, dirs.tool(name)?);
    command
        .env("KUBECONFIG", cluster.kubeconfig("flux"))
        .arg(format!("--health-addr=127.0.0.1:{health}"))
        .arg(format!("--metrics-addr=127.0.0.1:{metrics}"))
        .args(["--concurrent=4", "--log-level=debug"]);
    Ok((command, (Ipv4Addr::LOCALHOST, health)))
}
