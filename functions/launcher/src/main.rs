//! The Lambda function that starts tasks. See the library.

use std::{fmt::Display, str::FromStr};

use aws_lambda_events::sqs::SqsEvent;
use driftless_aws::{Account, Bucket, DeadLetters, Ecs, QueueUrls, Sqs, TaskSettings, batch};
use driftless_contract::{Document as _, LaunchHint, RunLimits};
use driftless_core::{DefaultSize, Limits};
use driftless_kubernetes::Clusters;
use driftless_telemetry::env;
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use launcher::{Images, Launcher, Settings, failed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("launcher");
    let aws = driftless_aws::config().await;
    let clusters = Clusters::new(Account::new(&aws), env::required("KUBECONFIG_SECRET")?, "driftless-launcher");
    let mut fresh_key = vec![0; 32];
    getrandom::fill(&mut fresh_key)?;
    let settings = Settings {
        system_namespace: env::required("SYSTEM_NAMESPACE")?,
        namespaces: env::parsed("WATCH_NAMESPACES")?,
        task_role_id: env::required("TASK_ROLE_ID")?,
        images: Images::new(&env::optional_list("RUNTIME_IMAGES"), env::required("DEFAULT_IMAGE")?)?,
        default_architecture: env::parsed("TASK_ARCHITECTURE")?,
        pod_fields: env::parsed("POD_FIELDS")?,
        default_size: DefaultSize { cpu: env::parsed("TASK_CPU")?, memory_mib: env::parsed("TASK_MEMORY_MIB")? },
        spot: env::required("SPOT")? != "never",
        limits: Limits { runs: limit("MAX_RUNS")?, runs_per_namespace: limit("MAX_RUNS_PER_NAMESPACE")? },
        run_limits: RunLimits { silence_seconds: limit("SILENCE_SECONDS")?, max_seconds: limit("MAX_RUN_SECONDS")? },
        token_seconds: env::parsed("TOKEN_SECONDS")?,
        cache_entry_bytes: limit("CACHE_ENTRY_MIB")?.map(|mib: u32| u64::from(mib) << 20),
        fresh_key: fresh_key.into(),
    };
    let bucket = env::required("BUCKET")?;
    let objects = Bucket::new(&aws, bucket.clone()).sealing_with(env::required("SEAL_KEY")?);
    let dead_letters =
        DeadLetters::new(&aws, objects.clone(), env::required("DEAD_LETTERS_QUEUE_URL")?, env::parsed("MAX_ATTEMPTS")?);
    let queues = Sqs::new(
        &aws,
        QueueUrls {
            hints: Some(env::required("HINTS_QUEUE_URL")?),
            sources: Some(env::required("SOURCES_QUEUE_URL")?),
            launches: Some(env::required("LAUNCHES_QUEUE_URL")?),
            runs: Some(env::required("RUNS_QUEUE_URL")?),
        },
    );
    let tasks = Ecs::new(
        &aws,
        env::required("ECS_CLUSTER")?,
        Some(TaskSettings {
            role_arn: env::required("TASK_ROLE_ARN")?,
            role_id: settings.task_role_id.clone(),
            execution_role_arn: env::required("EXECUTION_ROLE_ARN")?,
            subnets: env::list("SUBNETS")?,
            security_groups: env::list("SECURITY_GROUPS")?,
            assign_public_ip: env::required("ASSIGN_PUBLIC_IP")?,
            runner_image: env::required("RUNNER_IMAGE")?,
            log_group: env::required("LOG_GROUP")?,
            bucket,
            region: env::required("AWS_REGION")?,
            tags: env::optional_list("TASK_TAGS"),
            private_registries: env::optional_list("PRIVATE_REGISTRIES"),
            registry_secrets: env::required("REGISTRY_SECRETS")?,
        }),
    );
    let launch = async |hint: LaunchHint| -> Result<(), launcher::Error> {
        match clusters.get(&hint.update.cluster, now()).await {
            Ok(cluster) => {
                let (objects, queues, tasks, settings) = (&objects, &queues, &tasks, &settings);
                let launcher = Launcher { cluster: &cluster, objects, queues, tasks, settings, now: now() };
                Box::pin(launcher.handle(&hint)).await
            }
            Err(error) => failed(&queues, &hint, error.into(), now()).await,
        }
    };
    let parse = |body: &str| LaunchHint::parse(body.as_bytes());
    run(service_fn(async |event: LambdaEvent<SqsEvent>| -> Result<_, Error> {
        Ok(batch(event.payload, &dead_letters, event.context.deadline(), parse, LaunchHint::absorb, &launch).await)
    }))
    .await
}

/// A limit, of which 0 means no limit.
fn limit<N: FromStr<Err: Display> + Default + PartialEq>(variable: &'static str) -> Result<Option<N>, env::Error> {
    let limit: N = env::parsed(variable)?;
    Ok((limit != N::default()).then_some(limit))
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
