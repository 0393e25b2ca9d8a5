//! The template and its resources, with everything resolved.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

use super::error::Error;
use crate::aws::policy::{self, Demand, Statement, Who};

/// A resource of the template, with everything resolved.
pub struct Resource {
    /// `Type`
    pub kind: String,
    /// The value of `Ref`, if it is known here.
    pub reference: Option<String>,
    /// `Properties`. Has secrets.
    pub properties: Value,
}

/// The template with everything resolved. Maps are by logical id.
pub struct Template {
    /// The account's number.
    pub account: String,
    /// The Region.
    pub region: String,
    /// Every resource whose condition holds.
    pub resources: BTreeMap<String, Resource>,
    /// The functions.
    pub functions: BTreeMap<String, Function>,
    /// The queues.
    pub queues: BTreeMap<String, Queue>,
    /// The bucket's name.
    pub bucket: String,
    /// The bucket's notifications.
    pub notifications: Vec<Notification>,
    /// The rules for AWS's own events.
    pub rules: BTreeMap<String, Rule>,
    /// The roles.
    pub roles: BTreeMap<String, Role>,
    /// The ECS cluster's name.
    pub cluster: String,
    /// Its capacity providers.
    pub capacity_providers: Vec<String>,
    /// The log groups' names.
    pub log_groups: Vec<String>,
    /// The alarms.
    pub alarms: BTreeMap<String, Alarm>,
    /// The dashboards' content.
    pub dashboards: Vec<Dashboard>,
    /// The outputs' values.
    pub outputs: BTreeMap<String, String>,
    /// The policies of resources, by the resource's ARN (for a bucket, without the key).
    pub resource_policies: BTreeMap<String, Vec<Statement>>,
}

impl Template {
    /// The queue of that ARN.
    pub fn queue(&self, arn: &str) -> Result<&Queue, Error> {
        self.queues
            .values()
            .find(|queue| queue.arn == arn)
            .ok_or_else(|| Error::new(arn, "no queue of the template has this ARN"))
    }

    /// The role of that ARN, with its logical id.
    pub fn role(&self, arn: &str) -> Result<(&str, &Role), Error> {
        let mut roles = self.roles.iter().map(|(id, role)| (id.as_str(), role));
        roles.find(|(_, role)| role.arn == arn).ok_or_else(|| Error::new(arn, "no role of the template has this ARN"))
    }

    /// The demand with IAM's facts about its caller: a session of the role, by its logical id and
    /// `aws:userid`.
    #[must_use]
    pub fn asked_by(&self, role: &str, userid: &str, demand: &Demand) -> Demand {
        let arn = self.roles.get(role).map_or("", |role| &role.arn);
        let demand = demand.clone().with("aws:userid", userid).with("aws:PrincipalArn", arn);
        // The world's endpoint replaces AWS's, which uses TLS.
        demand.with("aws:PrincipalAccount", &self.account).with("aws:SecureTransport", "true")
    }

    /// Returns whether a session of the role may do this. `role` is a logical id.
    #[must_use]
    pub fn allows(&self, role: &str, demand: &Demand) -> bool {
        let own = self.roles.get(role).map_or(&[][..], |role| &role.policies);
        policy::allows(own.iter().chain(self.policy_of(&demand.resource)), Who::Role, demand)
    }

    /// Returns whether a service of AWS may do this by the resource's policy alone.
    #[must_use]
    pub fn allows_service(&self, service: &str, demand: &Demand) -> bool {
        policy::allows(self.policy_of(&demand.resource), Who::Service(service), demand)
    }

    /// Returns whether the resource's policy denies this to every caller.
    #[must_use]
    pub fn denies(&self, demand: &Demand) -> bool {
        policy::denies(self.policy_of(&demand.resource), Who::Role, demand)
    }

    /// Returns whether a service of AWS may assume a role on behalf of `source`, the ARN of a
    /// resource of this account.
    #[must_use]
    pub fn trusts(&self, role: &Role, service: &str, source: &str) -> bool {
        let assume = Demand::new("sts:AssumeRole", &role.arn);
        let assume = assume.with("aws:SourceAccount", &self.account).with("aws:SourceArn", source);
        policy::allows(&role.trust, Who::Service(service), &assume)
    }

    /// Returns whether EKS Pod Identity may assume a role for the pods of a `ServiceAccount`.
    /// `cluster` is the cluster's ARN.
    #[must_use]
    pub fn trusts_pod(&self, role: &Role, cluster: &str, namespace: &str, account: &str) -> bool {
        ["sts:AssumeRole", "sts:TagSession"].iter().all(|action| {
            let demand = Demand::new(*action, &role.arn)
                .with("aws:RequestTag/kubernetes-namespace", namespace)
                .with("aws:RequestTag/kubernetes-service-account", account)
                .with("aws:RequestTag/eks-cluster-arn", cluster);
            policy::allows(&role.trust, Who::Service("pods.eks.amazonaws.com"), &demand)
        })
    }

    pub(super) fn policy_of(&self, arn: &str) -> &[Statement] {
        let resource = if arn.starts_with("arn:aws:s3:::") { arn.split('/').next().unwrap_or(arn) } else { arn };
        self.resource_policies.get(resource).map_or(&[], Vec::as_slice)
    }
}

/// A Lambda function.
pub struct Function {
    /// Its name in AWS.
    pub name: String,
    /// Its ARN.
    pub arn: String,
    /// The folder with its `bootstrap`.
    pub code: PathBuf,
    /// The time limit of an invocation.
    pub timeout: Duration,
    /// In MiB.
    pub memory: u32,
    /// The template's part of its environment. Has secrets.
    pub environment: BTreeMap<String, String>,
    /// The logical id of its role.
    pub role: String,
    /// Its log group's name.
    pub log_group: String,
    /// The maximum number of concurrent executions, for all its triggers.
    pub reserved_concurrency: Option<usize>,
    /// It has a URL that anyone may call.
    pub has_url: bool,
    /// Lambda allows it in a cycle of messages.
    pub recursive: bool,
    /// The queues that feed it.
    pub mappings: Vec<Mapping>,
    /// The schedules that invoke it.
    pub schedules: Vec<Schedule>,
    /// The maximum number of retries of a failed asynchronous invocation.
    pub retries: usize,
    /// The age at which Lambda discards an asynchronous event.
    pub event_age: Duration,
}

/// An SQS event source mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The queue's ARN.
    pub queue: String,
    /// The maximum number of messages in one event.
    pub batch_size: u8,
    /// The function's response names the failed messages.
    pub partial: bool,
    /// The maximum number of concurrent events.
    pub concurrency: usize,
}

/// A rule with a schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The rule's ARN.
    pub rule: String,
    /// The time between ticks.
    pub every: Duration,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name in AWS.
    pub name: String,
    /// Its URL.
    pub url: String,
    /// Its ARN.
    pub arn: String,
    /// The attributes in the form of SQS, including the redrive policy.
    pub attributes: BTreeMap<String, String>,
}

impl Queue {
    /// Returns whether it is first in, first out, within a group.
    #[must_use]
    pub fn is_fifo(&self) -> bool {
        self.attributes.contains_key("FifoQueue")
    }

    /// How long a received message is hidden.
    #[must_use]
    pub fn visibility(&self) -> Duration {
        let seconds = self.attributes.get("VisibilityTimeout").and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(30))
    }

    /// How long a message is kept after it was sent.
    #[must_use]
    pub fn retention(&self) -> Duration {
        let seconds = self.attributes.get("MessageRetentionPeriod").and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(345_600))
    }
}

/// A role.
pub struct Role {
    /// Its ARN.
    pub arn: String,
    /// Its unique id, the first half of `aws:userid`.
    pub id: String,
    /// Its permissions.
    pub policies: Vec<Statement>,
    /// Its trust policy.
    pub trust: Vec<Statement>,
}

/// A rule for AWS's own events.
pub struct Rule {
    /// Its ARN.
    pub arn: String,
    /// The event pattern: an object of lists of strings.
    pub pattern: Value,
    /// The targets.
    pub targets: Vec<Destination>,
}

/// A rule's target: a queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Destination {
    /// Its name within the rule.
    pub id: String,
    /// The queue's ARN.
    pub arn: String,
    /// The queue for undeliverable events.
    pub dead_letter_config: Option<DeadLetters>,
}

/// The queue for undeliverable events.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct DeadLetters {
    /// The queue's ARN.
    pub arn: String,
}

/// A notification of the bucket.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Notification {
    /// The event, such as `s3:ObjectCreated:*`.
    pub event: String,
    /// The queue's ARN.
    pub queue: String,
    /// The filter for keys.
    pub filter: Filter,
}

/// The filter for the keys of a notification.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Filter {
    /// The rules for the key.
    #[serde(rename = "S3Key")]
    pub key: FilterKey,
}

/// The rules for keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct FilterKey {
    /// `prefix` and `suffix`, each at most once.
    pub rules: Vec<FilterRule>,
}

/// A rule for keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct FilterRule {
    /// `prefix` or `suffix`.
    pub name: String,
    /// The text.
    pub value: String,
}

/// A metric that is read. For a search only the dimensions' names are known: their values are empty
/// then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The dimensions and their values.
    pub dimensions: BTreeMap<String, String>,
}

/// An alarm.
#[derive(Clone, Debug)]
pub struct Alarm {
    /// Its name.
    pub name: String,
    /// Its actions.
    pub actions: Vec<String>,
    /// The metrics that it reads.
    pub metrics: BTreeSet<Metric>,
}

/// A dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// The metrics that it shows.
    pub metrics: BTreeSet<Metric>,
}
