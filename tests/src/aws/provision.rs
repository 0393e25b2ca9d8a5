//! Makes the template's queues, its bucket and the secrets in moto.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use aws_config::SdkConfig;
use aws_sdk_s3::types::{
    BucketLocationConstraint, CreateBucketConfiguration, Event, FilterRule, FilterRuleName, NotificationConfiguration,
    NotificationConfigurationFilter, QueueConfiguration, S3KeyFilter,
};
use aws_sdk_sqs::types::QueueAttributeName;

use super::{site::Site, template::Template};

/// Creates the secrets, queues, dead-letter queues first, then the bucket and what it notifies.
pub async fn create(site: &Site, config: &SdkConfig, secrets: &BTreeMap<String, String>) -> Result<()> {
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
        // Names and numbers of accounts must come out alike, or everything would be wired past each other.
        let path = |url: &str| url.splitn(4, '/').nth(3).map(ToOwned::to_owned);
        let url = answer.queue_url().unwrap_or_default();
        if path(url) != path(&queue.url) {
            bail!("moto made the queue {url} and the template means {}", queue.url);
        }
    }
    bucket(&site.template, config).await
}

async fn bucket(template: &Template, config: &SdkConfig) -> Result<()> {
    let client = aws_sdk_s3::Client::from_conf(aws_sdk_s3::config::Builder::from(config).force_path_style(true).build());
    let mut create = client.create_bucket().bucket(&template.bucket);
    if template.region != "us-east-1" {
        let constraint = BucketLocationConstraint::from(template.region.as_str());
        create = create.create_bucket_configuration(CreateBucketConfiguration::builder().location_constraint(constraint).build());
    }
    create.send().await.context("creating the bucket")?;
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
        client.put_bucket_notification_configuration().bucket(&template.bucket).notification_configuration(notifications);
    request.send().await.context("setting the bucket's notifications")?;
    Ok(())
}
