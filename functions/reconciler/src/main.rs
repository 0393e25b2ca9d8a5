//! The Lambda function that reconciles Stacks. See the library.

use aws_lambda_events::sqs::SqsEvent;
use driftless_aws::{Account, Bucket, DeadLetters, QueueUrls, Sqs, batch};
use driftless_contract::{Document as _, Hint};
use driftless_core::Retention;
use driftless_kubernetes::Clusters;
use driftless_telemetry::env;
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use reconciler::{Reconciler, Settings, failed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("reconciler");
    let aws = driftless_aws::config().await;
    let clusters = Clusters::new(Account::new(&aws), env::required("KUBECONFIG_SECRET")?, "driftless-reconciler");
    let objects = Bucket::new(&aws, env::required("BUCKET")?);
    let dead_letters =
        DeadLetters::new(&aws, objects.clone(), env::required("DEAD_LETTERS_QUEUE_URL")?, env::parsed("MAX_ATTEMPTS")?);
    let queues = Sqs::new(
        &aws,
        QueueUrls {
            hints: Some(env::required("HINTS_QUEUE_URL")?),
            sources: Some(env::required("SOURCES_QUEUE_URL")?),
            launches: Some(env::required("LAUNCHES_QUEUE_URL")?),
            runs: None,
        },
    );
    let system_namespace = env::required("SYSTEM_NAMESPACE")?;
    let settings = Settings {
        system_namespace: &system_namespace,
        namespaces: env::parsed("WATCH_NAMESPACES")?,
        retention: Retention::days(env::parsed("TREE_DAYS")?),
        resync_seconds: env::parsed("RESYNC_SECONDS")?,
        min_resync_seconds: env::parsed("MIN_RESYNC_SECONDS")?,
        pod_fields: env::parsed("POD_FIELDS")?,
    };
    let reconcile = async |hint: Hint| -> Result<(), reconciler::Error> {
        let cluster = match clusters.get(&hint.object.cluster, now()).await {
            Ok(cluster) => cluster,
            Err(error) => return failed(&queues, &hint, error.into(), now()).await,
        };
        let (objects, queues, now) = (&objects, &queues, now());
        Box::pin(Reconciler { cluster: &cluster, objects, queues, settings, now }.handle(&hint)).await
    };
    let parse = |body: &str| Hint::parse(body.as_bytes());
    run(service_fn(async |event: LambdaEvent<SqsEvent>| -> Result<_, Error> {
        Ok(batch(event.payload, &dead_letters, event.context.deadline(), parse, Hint::absorb, &reconcile).await)
    }))
    .await
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
