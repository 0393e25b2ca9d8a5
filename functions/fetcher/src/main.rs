//! The Lambda function that fetches sources. See the library.

use aws_lambda_events::sqs::SqsEvent;
use driftless_aws::{Account, Bucket, DeadLetters, QueueUrls, Sqs, batch_sent};
use driftless_contract::{Document as _, FetchRequest};
use driftless_core::Retention;
use driftless_kubernetes::Clusters;
use driftless_source::Limits;
use driftless_telemetry::env;
use fetcher::{Fetcher, Settings, Transport, failed, git, git_files, limit_memory};
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("fetcher");
    limit_memory(env::parsed("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")?)?;
    let aws = driftless_aws::config().await;
    let clusters = Clusters::new(Account::new(&aws), env::required("KUBECONFIG_SECRET")?, "driftless-fetcher");
    let open = |bucket| Bucket::new(&aws, bucket);
    let settings = Settings {
        bucket: env::required("BUCKET")?,
        system_namespace: env::required("SYSTEM_NAMESPACE")?,
        namespaces: env::parsed("WATCH_NAMESPACES")?,
        retention: Retention::days(env::parsed("TREE_DAYS")?),
        services: env::list("ARTIFACT_SERVICES")?,
        source_kinds: env::optional_list("SOURCE_KINDS"),
        max_archive_bytes: env::parsed("MAX_ARCHIVE_BYTES")?,
        max_tree_bytes: env::parsed("MAX_TREE_BYTES_PER_NAMESPACE")?,
        limits: Limits {
            bytes: env::parsed("UNPACK_MAX_BYTES")?,
            entries: env::parsed("UNPACK_MAX_ENTRIES")?,
            path_length: env::parsed("UNPACK_MAX_PATH_LENGTH")?,
            depth: env::parsed("UNPACK_MAX_DEPTH")?,
            ratio: env::parsed("UNPACK_MAX_RATIO")?,
        },
        git: git::Settings {
            allow_local: env::parsed("GIT_ALLOW_LOCAL")?,
            private_hosts: env::optional("GIT_PRIVATE_HOSTS").unwrap_or_default().parse()?,
            github_api_url: env::required("GITHUB_API_URL")?,
            known_hosts: git_files::known_hosts(env::optional("GIT_KNOWN_HOSTS_OBJECT"), open).await?,
            ca_certificates: git_files::ca_certificates(env::optional("GIT_CA_CERTIFICATES_OBJECT"), open).await?,
            max_pack_bytes: env::parsed("MAX_ARCHIVE_BYTES")?,
            servers: git::Servers::default(),
        },
    };
    let direct = match env::required("ARTIFACT_TRANSPORT")?.as_str() {
        "proxy" => None,
        "direct" => Some(Transport::direct()?),
        other => return Err(format!("ARTIFACT_TRANSPORT is {other:?}; use proxy or direct").into()),
    };
    let objects = Bucket::new(&aws, settings.bucket.clone());
    let dead_letters =
        DeadLetters::new(&aws, objects.clone(), env::required("DEAD_LETTERS_QUEUE_URL")?, env::parsed("MAX_ATTEMPTS")?);
    let queues = Sqs::new(&aws, QueueUrls { hints: Some(env::required("HINTS_QUEUE_URL")?), ..QueueUrls::default() });
    let fetch = async |(request, sent): (FetchRequest, Timestamp)| -> Result<(), fetcher::Error> {
        let cluster = match clusters.get(&request.source.cluster, now()).await {
            Ok(cluster) => cluster,
            Err(error) => return failed(&request, error.into(), now()),
        };
        let artifacts = direct.clone().unwrap_or_else(|| Transport::proxy(cluster.kube().clone()));
        let (objects, queues, artifacts, settings) = (&objects, &queues, &artifacts, &settings);
        let fetcher = Fetcher { cluster: &cluster, objects, queues, artifacts, settings, now: now() };
        Box::pin(fetcher.handle(&request, sent, now)).await
    };
    let parse = |body: &str, sent: Option<Timestamp>| Ok((FetchRequest::parse(body.as_bytes())?, sent.unwrap_or_else(now)));
    // A batch has one message.
    let absorb = |_: &mut _, _: &_| false;
    run(service_fn(async |event: LambdaEvent<SqsEvent>| -> Result<_, Error> {
        Ok(batch_sent(event.payload, &dead_letters, event.context.deadline(), parse, absorb, &fetch).await)
    }))
    .await
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
