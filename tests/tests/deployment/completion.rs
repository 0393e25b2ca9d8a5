//! Creates what moto's `CloudFormation` ignores (`MADE_BY_THE_TEST`), with the API calls that
//! `CloudFormation` makes on AWS and the values of the template. The AWS CLI refuses unknown
//! fields, moto refuses values that it validates, and the test compares what moto stores.

use serde_json::{Map, Value, json};

use super::{Resource, list};

/// A call of the AWS CLI: service, operation and input.
pub type Call = (&'static str, &'static str, Value);

/// The calls for the properties of a resource that moto's `CloudFormation` ignores.
pub fn calls(resource: &Resource) -> Vec<Call> {
    let properties = &resource.properties;
    let of = |name: &str| properties[name].clone();
    match resource.kind.as_str() {
        "AWS::CloudWatch::Alarm" => {
            let mut alarm = properties.clone();
            alarm["Threshold"] = number(&alarm["Threshold"]);
            vec![("cloudwatch", "put-metric-alarm", alarm)]
        }
        "AWS::ECS::ClusterCapacityProviderAssociations" => {
            vec![("ecs", "put-cluster-capacity-providers", with_letters(properties, &str::to_lowercase))]
        }
        "AWS::IAM::Role" => list(&properties["ManagedPolicyArns"])
            .iter()
            .map(|arn| ("iam", "attach-role-policy", json!({ "RoleName": resource.reference, "PolicyArn": arn })))
            .collect(),
        "AWS::Lambda::EventInvokeConfig" => vec![("lambda", "put-function-event-invoke-config", properties.clone())],
        "AWS::Lambda::Url" => {
            let mut url = properties.as_object().cloned().unwrap_or_default();
            let function = url.remove("TargetFunctionArn");
            url.insert("FunctionName".into(), function.into());
            vec![("lambda", "create-function-url-config", url.into())]
        }
        "AWS::S3::Bucket" => {
            let put = |operation, name: &str, value| ("s3api", operation, json!({ "Bucket": of("BucketName"), name: value }));
            let [access, owners] = ["PublicAccessBlockConfiguration", "OwnershipControls"];
            vec![
                put("put-public-access-block", access, of(access)),
                put("put-bucket-ownership-controls", owners, of(owners)),
                put("put-bucket-lifecycle-configuration", "LifecycleConfiguration", lifecycle(&of("LifecycleConfiguration"))),
                put(
                    "put-bucket-notification-configuration",
                    "NotificationConfiguration",
                    notifications(&of("NotificationConfiguration")),
                ),
            ]
        }
        "AWS::S3::BucketPolicy" => {
            let policy = properties["PolicyDocument"].to_string();
            vec![("s3api", "put-bucket-policy", json!({ "Bucket": of("Bucket"), "Policy": policy }))]
        }
        "AWS::SQS::QueuePolicy" => {
            let policy = properties["PolicyDocument"].to_string();
            let set =
                |url: &Value| ("sqs", "set-queue-attributes", json!({ "QueueUrl": url, "Attributes": { "Policy": policy } }));
            list(&properties["Queues"]).iter().map(set).collect()
        }
        _ => Vec::new(),
    }
}

/// A number of the template, which is a string if a parameter has it.
fn number(value: &Value) -> Value {
    value.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

/// The value with the first letter of every field name changed: ECS's API starts them with a
/// lower-case letter.
pub fn with_letters(value: &Value, letter: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (letter(&name[..1]) + &name[1..], with_letters(value, letter)));
            fields.collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| with_letters(item, letter)).collect(),
        other => other.clone(),
    }
}

/// The lifecycle rules with the field names of S3's API. Other fields stay, so that the AWS CLI
/// refuses unknown ones.
fn lifecycle(configuration: &Value) -> Value {
    let rules = list(&configuration["Rules"]).iter().map(|rule| {
        let mut rule = rule.as_object().cloned().unwrap_or_default();
        let [id, prefix, days] = ["Id", "Prefix", "ExpirationInDays"].map(|name| rule.remove(name));
        rule.insert("ID".into(), id.into());
        rule.insert("Filter".into(), json!({ "Prefix": prefix.unwrap_or_else(|| "".into()) }));
        rule.extend(days.map(|days| ("Expiration".to_owned(), json!({ "Days": number(&days) }))));
        Value::from(rule)
    });
    json!({ "Rules": rules.collect::<Value>() })
}

/// The lifecycle rules of an answer of S3, with the field names of `CloudFormation`.
pub fn lifecycle_of(answer: &Value) -> Value {
    let rules = list(&answer["Rules"]).iter().map(|rule| {
        let mut rule = rule.clone();
        rule["Id"] = rule["ID"].take();
        rule["Prefix"] = rule["Filter"]["Prefix"].take();
        rule["ExpirationInDays"] = rule["Expiration"]["Days"].take();
        rule
    });
    json!({ "Rules": rules.collect::<Value>() })
}

fn notifications(configuration: &Value) -> Value {
    let queues = list(&configuration["QueueConfigurations"]).iter().map(|queue| {
        let rules = &queue["Filter"]["S3Key"]["Rules"];
        json!({ "QueueArn": queue["Queue"], "Events": [queue["Event"]], "Filter": { "Key": { "FilterRules": rules } } })
    });
    json!({ "QueueConfigurations": queues.collect::<Value>() })
}

/// The notifications of an answer of S3, with the field names of `CloudFormation`.
pub fn notifications_of(answer: &Value) -> Value {
    let queues = list(&answer["QueueConfigurations"]).iter().map(|queue| {
        let rules = &queue["Filter"]["Key"]["FilterRules"];
        json!({ "Queue": queue["QueueArn"], "Event": queue["Events"][0], "Filter": { "S3Key": { "Rules": rules } } })
    });
    json!({ "QueueConfigurations": queues.collect::<Value>() })
}
