//! The Lambda function that fetches sources. See the library.

use aws_lambda_events::sqs::SqsEvent;
use driftless_aws::{Bucket, QueueUrls, Sqs, batch};
use driftless_contract::{FetchRequest, from_json};
use driftless_kubernetes::Clusters;
use driftless_source::Limits;
use driftless_telemetry::env;
use fetcher::{Ports, ServiceProxy, Settings, handle};
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("fetcher");
    let clusters = Clusters::new(env::required("KUBECONFIG")?.into(), "driftless-fetcher");
    let aws = driftless_aws::config().await;
    let settings = Settings {
        bucket: env::required("BUCKET")?,
        services: env::list("ARTIFACT_SERVICES")?,
        max_archive_bytes: env::parsed("MAX_ARCHIVE_BYTES")?,
        limits: Limits::default(),
    };
    let objects = Bucket::new(&aws, settings.bucket.clone());
    let queues = Sqs::new(&aws, QueueUrls { hints: Some(env::required("HINTS_QUEUE_URL")?), ..QueueUrls::default() });
    let fetch = async |request: FetchRequest| -> Result<(), fetcher::Error> {
        let cluster = clusters.get(&request.source.cluster).await?;
        let artifacts = ServiceProxy(cluster.kube().clone());
        let ports = Ports { cluster: &cluster, objects: &objects, queues: &queues, artifacts: &artifacts };
        Box::pin(handle(&ports, &settings, &request, now())).await
    };
    let parse = |body: &str| from_json("fetch request", body.as_bytes());
    let absorb = |kept: &mut FetchRequest, other: &FetchRequest| kept.source == other.source;
    run(service_fn(async |event: LambdaEvent<SqsEvent>| -> Result<_, Error> {
        Ok(batch(event.payload, event.context.deadline(), parse, absorb, &fetch).await)
    }))
    .await
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
