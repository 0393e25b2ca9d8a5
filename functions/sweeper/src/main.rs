//! The Lambda function that hints what is due. See the library.

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
use sweeper::{Settings, Swept, attend, collect, sweep};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("sweeper");
    let names = env::list("CLUSTERS")?;
    let system_namespace = env::required("SYSTEM_NAMESPACE")?;
    let settings = Settings {
        watch: Watch { namespaces: env::parsed("WATCH_NAMESPACES")?, system_namespace: &system_namespace },
        tick_seconds: env::parsed("SWEEP_SECONDS")?,
        period_seconds: env::parsed("LOOK_PERIOD_SECONDS")?,
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
    run(service_fn(async |_tick: LambdaEvent<Value>| -> Result<(), Error> {
        let mut failed = None;
        // The time of this tick, however long the clusters before take.
        let tick = now();
        for name in &names {
            let begun = now();
            let swept = async {
                let cluster = clusters.get(name, now()).await?;
                let swept = sweep(name, &cluster, &queues, settings, tick).await?;
                Ok((swept, collect(name, &objects, &queues, settings, tick).await?))
            };
            let swept: Result<_, sweeper::Error> = swept.await;
            match swept {
                Ok((swept, collections)) => {
                    tracing::info!(cluster = name, hints = swept.hints, collections, "swept");
                    tell(name, swept, begun, now());
                }
                // One cluster that is away keeps no other from its sweep.
                Err(error) => {
                    tracing::error!(cluster = name, %error, "the sweep failed");
                    failed = Some(error);
                }
            }
        }
        // Tasks are of all clusters.
        match attend(&tasks, &queues, settings, tick).await {
            Ok(hints) => tracing::info!(hints, "attended tasks"),
            Err(error) => {
                tracing::error!(%error, "live tasks are not attended");
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }))
    .await
}

fn tell(cluster: &str, swept: Swept, begun: Timestamp, now: Timestamp) {
    let values = [
        (Metric::Stacks, count(swept.stacks)),
        (Metric::UpdatesWaiting, count(swept.waiting)),
        (Metric::UpdatesRunning, count(swept.running)),
        (Metric::SweepHints, count(swept.hints)),
        (Metric::SweepDuration, now.duration_since(begun).as_secs_f64().max(0.0)),
    ];
    metrics::emit(&values, &[("cluster", cluster)], now);
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
