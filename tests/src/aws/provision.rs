//! Creates the template's queues, its bucket and the secrets in moto.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use aws_config::SdkConfig;
use aws_sdk_s3::types::{
    BucketLocationConstraint, CreateBucketConfiguration, Event, FilterRule, FilterRuleName, NotificationConfiguration,
    NotificationConfigurationFilter, QueueConfiguration, S3KeyFilter,
};
use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::json;

use super::{gate::http_client, site::Site, template::Template};

/// The stack's name in a world.
pub const STACK: &str = "driftless";

/// Creates the secrets, queues, dead-letter queues first, then the bucket, and the objects of other
/// buckets.
pub async fn create(
    site: &Site,
    config: &SdkConfig,
    secrets: &BTreeMap<String, String>,
    objects: &BTreeMap<String, String>,
) -> Result<()> {
    let client = aws_sdk_secretsmanager::Client::new(config);
    for (name, text) in secrets {
        let create = client.create_secret().name(name).secret_string(text);
        create.send().await.with_context(|| format!("creating the secret {name}"))?;
    }
    let mut queues: Vec<_> = site.template.queues.values().collect();
    queues.sort_by_key(|queue| queue.attributes.contains_key("RedrivePolicy"));
    for queue in queues {
        let attributes = queue.attributes.iter().map(|(name, value)| (QueueAttributeName::from(name.as_str()), value.clone()));
        let request = site.sqs.create_queue().queue_name(&queue.name).set_attributes(Some(attributes.collect()));
        let answer = request.send().await.with_context(|| format!("creating the queue {}", queue.name))?;
        // Names and account numbers must be equal, because the wiring depends on them.
        let path = |url: &str| url.splitn(4, '/').nth(3).map(ToOwned::to_owned);
        let url = answer.queue_url().unwrap_or_default();
        if path(url) != path(&queue.url) {
            bail!("moto made the queue {url} and the template means {}", queue.url);
        }
    }
    let client = s3(config);
    create_bucket(&client, &site.template.bucket, &site.template.region).await?;
    let mut made = BTreeSet::new();
    for (arn, text) in objects {
        let (name, key) = arn.strip_prefix("arn:aws:s3:::").and_then(|name| name.split_once('/')).context("an object's ARN")?;
        if made.insert(name) {
            create_bucket(&client, name, &site.template.region).await?;
        }
        let put = client.put_object().bucket(name).key(key).body(text.clone().into_bytes().into());
        put.send().await.with_context(|| format!("storing {arn}"))?;
    }
    stack(site).await
}

/// Creates a stack for the description of the installation, which has only the outputs of the
/// template.
async fn stack(site: &Site) -> Result<()> {
    let outputs: BTreeMap<_, _> = site.template.outputs.iter().map(|(name, value)| (name, json!({ "Value": value }))).collect();
    let resources = json!({ "Wait": { "Type": "AWS::CloudFormation::WaitConditionHandle" } });
    let body = json!({ "Resources": resources, "Outputs": outputs }).to_string();
    let form = [("Action", "CreateStack"), ("StackName", STACK), ("TemplateBody", &body)];
    let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let scope = format!("AWS4-HMAC-SHA256 Credential=world/20200101/{}/cloudformation/aws4_request", site.template.region);
    let request = http_client()?.post(&site.moto).header("authorization", scope);
    let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
    let answer = request.send().await.context("creating the stack")?;
    ensure!(answer.status().is_success(), "creating the stack: {}", answer.text().await.unwrap_or_default());
    Ok(())
}

async fn create_bucket(client: &aws_sdk_s3::Client, name: &str, region: &str) -> Result<()> {
    let mut create = client.create_bucket().bucket(name);
    if region != "us-east-1" {
        let constraint = BucketLocationConstraint::from(region);
        create = create.create_bucket_configuration(CreateBucketConfiguration::builder().location_constraint(constraint).build());
    }
    create.send().await.map(drop).with_context(|| format!("creating the bucket {name}"))
}

/// A client that names buckets in the path.
pub fn s3(config: &SdkConfig) -> aws_sdk_s3::Client {
    aws_sdk_s3::Client::from_conf(aws_sdk_s3::config::Builder::from(config).force_path_style(true).build())
}

/// Configures the bucket's notifications, which moto's `CloudFormation` ignores.
pub async fn notify(template: &Template, config: &SdkConfig) -> Result<()> {
    let mut queues = Vec::new();
    for notification in &template.notifications {
        let rules = notification
            .filter
            .key
            .rules
            .iter()
            .map(|rule| FilterRule::builder().name(FilterRuleName::from(rule.name.as_str())).value(&rule.value).build());
        let key = S3KeyFilter::builder().set_filter_rules(Some(rules.collect())).build();
        let queue = QueueConfiguration::builder().queue_arn(&notification.queue).events(Event::from(notification.event.as_str()));
        queues.push(queue.filter(NotificationConfigurationFilter::builder().key(key).build()).build()?);
    }
    let notifications = NotificationConfiguration::builder().set_queue_configurations(Some(queues)).build();
    let request =
        s3(config).put_bucket_notification_configuration().bucket(&template.bucket).notification_configuration(notifications);
    request.send().await.context("setting the bucket's notifications")?;
    Ok(())
}
