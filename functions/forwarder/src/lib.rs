//! Watches a cluster and sends a hint for every object with a relevant change. It runs in the
//! cluster, decides nothing, sends no content, and stores only two hashes per object. A new start
//! hints every source once; the sweep finds what else changed in the meantime. With Flux's event
//! endpoint, it also sends Driftless's Events about Stacks to Flux.

mod alerts;
mod outbox;
mod tracker;
mod watch;
mod watched;

use std::{convert::Infallible, fmt, future::pending};

pub use alerts::Flux;
use driftless_contract::{Hint, ObjectKey};
use futures::future::join_all;
use kube::{
    Api, Client,
    core::{ApiResource, GroupVersionKind},
    runtime::watcher,
};
use outbox::Outbox;
use tokio::sync::Mutex;
use tracker::Tracker;
use watch::watch;
use watched::Watched;

/// The watched kinds: group, version, kind. Flux's kinds may be missing in a cluster, or be
/// installed later.
const KINDS: [(&str, &str, &str); 9] = [
    ("pulumi.com", "v1", "Stack"),
    ("pulumi.com", "v1", "Program"),
    ("auto.pulumi.com", "v1alpha1", "Update"),
    ("auto.pulumi.com", "v1alpha1", "Workspace"),
    ("source.toolkit.fluxcd.io", "v1", "GitRepository"),
    ("source.toolkit.fluxcd.io", "v1", "OCIRepository"),
    ("source.toolkit.fluxcd.io", "v1", "Bucket"),
    ("source.toolkit.fluxcd.io", "v1", "HelmChart"),
    ("source.toolkit.fluxcd.io", "v1", "ExternalArtifact"),
];

/// Objects per page of a list. etcd stores at most 1.5 MiB of each, and kube holds a page twice
/// while it reads it: 60 MiB of the pod's 256, whatever tenants create.
const PAGE: u32 = 20;

/// Watches until it is dropped. `send` sends up to ten hints and returns the positions of those
/// that the queue refused. `flux` gets Driftless's Events; no hint waits for it.
pub async fn forward<E: fmt::Display>(
    client: Client,
    cluster: &str,
    send: impl AsyncFn(&[Hint]) -> Result<Vec<usize>, E>,
    flux: Option<&Flux>,
) -> Infallible {
    let (outbox, lists) = (Outbox::default(), Mutex::default());
    let watches = KINDS.map(|(group, version, kind)| {
        hint(client.clone(), cluster, ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)), &outbox, &lists)
    });
    let alerts = async {
        match flux {
            Some(flux) => alerts::deliver(client.clone(), flux, &lists).await,
            None => pending().await,
        }
    };
    tokio::select! {
        never = outbox.drain(send) => never,
        never = alerts => never,
        _ = join_all(watches) => pending().await,
    }
}

/// Sends hints for the objects of one kind.
async fn hint(client: Client, cluster: &str, resource: ApiResource, outbox: &Outbox, lists: &Mutex<()>) {
    let mut tracker = Tracker::new(&resource.kind);
    let api = Api::<Watched>::all_with(client, &resource);
    let changed = |event| {
        outbox.put(tracker.changed(event).into_iter().map(|(namespace, name)| ObjectKey {
            cluster: cluster.into(),
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            namespace,
            name,
        }));
    };
    watch(api, watcher::Config::default().page_size(PAGE), &resource.kind, lists, changed).await;
}

#[cfg(test)]
mod tests;
