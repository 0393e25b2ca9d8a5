//! The resources' properties as written.
#![expect(clippy::struct_field_names, reason = "the names are AWS's")]
#![expect(dead_code, reason = "a property that this world has no use for is listed so that it is known")]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::resources::{Destination, Notification};
use crate::aws::policy::Policy;

macro_rules! shape {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "PascalCase")]
        pub(super) struct $name { $(pub(super) $field: $type),* }
    };
}
shape!(Function {
    function_name: Value, code: String, runtime: Runtime, handler: String, architectures: Value, memory_size: Count,
    ephemeral_storage: Option<Storage>, timeout: u64, recursive_loop: Option<RecursiveLoop>, role: String, layers: Option<Value>, environment: Environment,
    logging_config: Logging, vpc_config: Option<Vpc>, reserved_concurrent_executions: Option<Count>,
});
shape!(Vpc { subnet_ids: Vec<String>, security_group_ids: Vec<String> });
shape!(Storage { size: u32 });
shape!(Environment { variables: BTreeMap<String, String> });
shape!(Logging { log_group: String });
shape!(Url { target_function_arn: String, auth_type: AuthType });
shape!(Mapping { function_name: String, event_source_arn: String, batch_size: Count, function_response_types: Option<Vec<ResponseType>>, scaling_config: Scaling });
shape!(Scaling { maximum_concurrency: Count });
shape!(EventInvokeConfig {
    function_name: String, qualifier: Qualifier, maximum_retry_attempts: Option<usize>, maximum_event_age_in_seconds: Option<u64>,
});
shape!(Permission {
    function_name: String, action: String, principal: String, source_arn: Option<String>, function_url_auth_type: Option<AuthType>,
    invoked_via_function_url: Option<bool>,
});
shape!(Role {
    assume_role_policy_document: Policy, managed_policy_arns: Option<Vec<String>>, permissions_boundary: Option<String>,
    policies: Vec<Inline>,
});
shape!(Inline { policy_name: String, policy_document: Policy });
shape!(QueuePolicy { queues: Vec<String>, policy_document: Policy });
shape!(BucketPolicy { bucket: String, policy_document: Policy });
shape!(Rule { event_pattern: Option<Value>, schedule_expression: Option<String>, targets: Vec<Destination> });
shape!(ManagedPolicy { policy_document: Policy });
shape!(Cluster { cluster_name: String });
shape!(CapacityProviders { cluster: String, capacity_providers: Vec<String>, default_capacity_provider_strategy: Value });
shape!(Key { description: Value, enable_key_rotation: Value, pending_window_in_days: Value, key_policy: Policy });
shape!(LogGroup { log_group_name: String, retention_in_days: Value });
shape!(AccountPolicy {
    policy_name: String,
    policy_type: String,
    policy_document: String,
    scope: String,
    selection_criteria: String
});
shape!(Dashboard { dashboard_name: String, dashboard_body: String });
shape!(Alarm {
    alarm_name: String, alarm_description: String, alarm_actions: Vec<String>, o_k_actions: Vec<String>,
    comparison_operator: Comparison, threshold: Value, evaluation_periods: u32, datapoints_to_alarm: Option<u32>,
    treat_missing_data: Missing, metrics: Vec<Query>,
});
shape!(Query { id: String, expression: Option<String>, metric_stat: Option<Stat>, return_data: Option<bool> });
shape!(Stat { period: u32, stat: String, metric: StatMetric });
shape!(StatMetric { namespace: String, metric_name: String, dimensions: Vec<Dimension> });
shape!(Dimension { name: String, value: String });
shape!(Bucket {
    bucket_name: String,
    bucket_encryption: Value,
    public_access_block_configuration: Value,
    ownership_controls: Value,
    lifecycle_configuration: Value,
    notification_configuration: Notifications,
});
shape!(Notifications { queue_configurations: Vec<Notification> });

/// `CloudFormation` does not distinguish 5 and "5", the form of a parameter.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Count(pub(super) usize);

impl TryFrom<Value> for Count {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        text.parse().map(Self).map_err(|_| "not a count")
    }
}

#[derive(Deserialize)]
pub(super) enum Comparison {
    GreaterThanThreshold,
    LessThanThreshold,
}
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Missing {
    Breaching,
    NotBreaching,
}
#[derive(Deserialize)]
pub(super) enum Runtime {
    #[serde(rename = "provided.al2023")]
    Provided,
}
#[derive(Deserialize)]
pub(super) enum RecursiveLoop {
    Allow,
    Terminate,
}
#[derive(Deserialize)]
pub(super) enum ResponseType {
    ReportBatchItemFailures,
}
#[derive(Deserialize)]
pub(super) enum Qualifier {
    #[serde(rename = "$LATEST")]
    Latest,
}
#[derive(Deserialize)]
pub(super) enum AuthType {
    #[serde(rename = "NONE")]
    None,
}
