//! The Lambda function that records how runs ended. See the library.

use aws_lambda_events::sqs::SqsEvent;
use driftless_aws::{Account, Bucket, DeadLetters, Ecs, QueueUrls, Sqs, batch};
use driftless_contract::{RunMessage, parse_run_message};
use driftless_kubernetes::Clusters;
use driftless_telemetry::env;
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use recorder::{Recorder, Settings, absorb, failed, runs};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("recorder");
    let aws = driftless_aws::config().await;
    let clusters = Clusters::new(Account::new(&aws), env::required("KUBECONFIG_SECRET")?, "driftless-recorder");
    let settings = Settings {
        system_namespace: env::required("SYSTEM_NAMESPACE")?,
        task_role_id: env::required("TASK_ROLE_ID")?,
        start_seconds: env::parsed("START_SECONDS")?,
        cache_entry_bytes: mebibytes("CACHE_ENTRY_MIB")?,
        cache_namespace_bytes: mebibytes("CACHE_NAMESPACE_MIB")?,
    };
    let objects = Bucket::new(&aws, env::required("BUCKET")?);
    let dead_letters =
        DeadLetters::new(&aws, objects.clone(), env::required("DEAD_LETTERS_QUEUE_URL")?, env::parsed("MAX_ATTEMPTS")?);
    let queues = Sqs::new(
        &aws,
        QueueUrls {
            hints: Some(env::required("HINTS_QUEUE_URL")?),
            launches: Some(env::required("LAUNCHES_QUEUE_URL")?),
            runs: Some(env::required("RUNS_QUEUE_URL")?),
            ..QueueUrls::default()
        },
    );
    let tasks = Ecs::new(&aws, env::required("ECS_CLUSTER")?, None);
    let record = async |message: RunMessage| -> Result<(), recorder::Error> {
        for (hint, due) in runs(&objects, &tasks, &settings, message, now()).await? {
            match clusters.get(&hint.update.cluster, now()).await {
                Ok(cluster) => {
                    let (objects, queues, tasks, settings) = (&objects, &queues, &tasks, &settings);
                    let recorder = Recorder { cluster: &cluster, objects, queues, tasks, settings, now: now() };
                    Box::pin(recorder.handle(&hint, due)).await?;
                }
                Err(error) => failed(&queues, &hint, due, error.into(), now()).await?,
            }
        }
        Ok(())
    };
    let absorb = |kept: &mut RunMessage, other: &RunMessage| absorb(&settings, kept, other);
    run(service_fn(async |event: LambdaEvent<SqsEvent>| -> Result<_, Error> {
        Ok(batch(event.payload, &dead_letters, event.context.deadline(), parse_run_message, absorb, &record).await)
    }))
    .await
}

/// A size in bytes, of a variable in MiB.
fn mebibytes(variable: &'static str) -> Result<u64, env::Error> {
    env::parsed::<u32>(variable).map(|mib| u64::from(mib) << 20)
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
