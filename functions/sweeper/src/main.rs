//! The Lambda function that hints what is due. See the library.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use driftless_aws::{Account, Bucket, Ecs, QueueUrls, Sqs};
use driftless_core::Retention;
use driftless_kubernetes::{Clusters, Watch};
use driftless_telemetry::{
    env,
    metrics::{self, Metric, count},
};
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use serde_json::Value;
use sweeper::{Cursor, Settings, Swept, attend, collect, each_within, sweep};

/// Reserved for the end of an invocation.
const MARGIN: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("sweeper");
    let names = env::list("CLUSTERS")?;
    let system_namespace = env::required("SYSTEM_NAMESPACE")?;
    let settings = Settings {
        watch: Watch { namespaces: env::parsed("WATCH_NAMESPACES")?, system_namespace: &system_namespace },
        tick_seconds: env::parsed("SWEEP_SECONDS")?,
        period_seconds: env::parsed("LOOK_PERIOD_SECONDS")?,
        token_seconds: env::parsed("TOKEN_SECONDS")?,
        collect_seconds: env::parsed("COLLECT_SECONDS")?,
        retention: Retention::days(env::parsed("TREE_DAYS")?),
    };
    let aws = driftless_aws::config().await;
    let clusters = Clusters::new(Account::new(&aws), env::required("KUBECONFIG_SECRET")?, "driftless-sweeper");
    let objects = Bucket::new(&aws, env::required("BUCKET")?);
    let (hints, sources) = (Some(env::required("HINTS_QUEUE_URL")?), Some(env::required("SOURCES_QUEUE_URL")?));
    let runs = Some(env::required("RUNS_QUEUE_URL")?);
    let queues = Sqs::new(&aws, QueueUrls { hints, sources, runs, ..QueueUrls::default() });
    let tasks = Ecs::new(&aws, env::required("ECS_CLUSTER")?, None);
    // The pass over a large cluster continues in the next sweep of this instance.
    let cursors: BTreeMap<&str, RefCell<Cursor>> = names.iter().map(|name| (name.as_str(), RefCell::default())).collect();
    run(service_fn(async |event: LambdaEvent<Value>| -> Result<(), Error> {
        // One time for the whole tick, however long the clusters take.
        let tick = now();
        // For all clusters, and first, because a cluster that hangs uses the rest of the time.
        let attended = attend(&tasks, &queues, settings, tick).await;
        let sweep_one = async |name: &str| {
            let begun = now();
            let cluster = clusters.get(name, now()).await?;
            let fresh = RefCell::default();
            let cursor = cursors.get(name).unwrap_or(&fresh);
            let swept = sweep(name, &cluster, &queues, settings, cursor, || now() >= settings.late(tick), tick).await?;
            let collections = collect(name, &objects, &queues, settings, tick).await?;
            tracing::info!(cluster = name, hints = swept.hints, collections, "swept");
            emit_metrics(name, swept, begun, now());
            Ok(())
        };
        let failed = each_within(&names, limit(&event), sweep_one).await;
        for (name, error) in &failed {
            tracing::error!(cluster = name, %error, "sweep failed");
            metrics::count_one(Metric::TransientFailures, "sweeper", name, name, now());
        }
        if let Err(error) = &attended {
            tracing::error!(%error, "cannot hint live tasks");
        }
        attended?;
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error.into()))
    }))
    .await
}

fn emit_metrics(cluster: &str, swept: Swept, begun: Timestamp, now: Timestamp) {
    let mut values = vec![
        (Metric::UpdatesWaiting, count(swept.waiting)),
        (Metric::UpdatesRunning, count(swept.running)),
        (Metric::SweepHints, count(swept.hints)),
        (Metric::SweepDuration, now.duration_since(begun).as_secs_f64().max(0.0)),
    ];
    values.extend(swept.stacks.map(|stacks| (Metric::Stacks, count(stacks))));
    metrics::emit(&values, &[("cluster", cluster)], now);
}

/// The rest of the function's time, except for what it needs to report how it ended.
#[expect(clippy::disallowed_methods, reason = "Lambda tells the deadline in wall time")]
fn limit(event: &LambdaEvent<Value>) -> Duration {
    let left = event.context.deadline().duration_since(SystemTime::now()).unwrap_or_default();
    left.saturating_sub(MARGIN)
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
