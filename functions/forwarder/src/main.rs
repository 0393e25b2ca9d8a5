//! The forwarder, Driftless's only program in the cluster.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Parser;
use driftless_aws::{QueueUrls, Queues as _, Sqs};
use forwarder::Flux;
use tokio::signal::unix::{SignalKind, signal};

/// Longer than the API server's limit of a watch, so that only a connection that died silently is
/// closed.
const READ_TIMEOUT: Duration = Duration::from_mins(6);

/// Sends hints about this cluster's objects to Driftless.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The cluster's name: its context in the functions' kubeconfig.
    #[arg(long, env = "CLUSTER")]
    cluster: String,
    /// The URL of the queue for hints.
    #[arg(long, env = "HINTS_QUEUE_URL")]
    hints_queue_url: String,
    /// The event endpoint of Flux's notification-controller, for Events about Stacks: usually
    /// `http://notification-controller.flux-system.svc.cluster.local./`. Without it, Flux gets no
    /// Events.
    #[arg(long, env = "FLUX_EVENTS_URL")]
    flux_events_url: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    driftless_telemetry::init("forwarder");
    let Arguments { cluster, hints_queue_url, flux_events_url } = Arguments::parse();
    let flux = flux_events_url.filter(|url| !url.is_empty()).map(|url| Flux::new(&url)).transpose();
    let flux = flux.map_err(|error| anyhow!("FLUX_EVENTS_URL is not usable: {error}"))?;
    let urls = QueueUrls { hints: Some(hints_queue_url), ..QueueUrls::default() };
    let queues = Sqs::new(&driftless_aws::config().await, urls);
    let mut config = kube::Config::infer().await.context(
        "no cluster found: neither KUBECONFIG nor a service account of a pod \
         is usable",
    )?;
    config.read_timeout = Some(READ_TIMEOUT);
    // The watcher has its own back-off.
    config.default_retry = false;
    let client = kube::Client::try_from(config).context("the cluster's configuration cannot be used")?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tracing::info!(cluster, alerts = flux.is_some(), "forwarding");
    // The next start hints objects whose hints were not sent. Undelivered Events are lost.
    tokio::select! {
        never = forwarder::forward(client, &cluster, async |hints: &[_]| queues.hints(hints).await, flux.as_ref()) => match never {},
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopped");
    Ok(())
}
