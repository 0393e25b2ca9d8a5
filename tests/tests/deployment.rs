//! Deploys the template into moto's `CloudFormation` with the AWS CLI, as `make deploy` does on
//! AWS. Then every resource is read and compared with the template as the one-machine world reads
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use driftless_tests::{
    aws::template::{Resource, Settings, Template},
    world::{
        aws_cli::AwsCli,
        dirs::Dirs,
        moto::Moto,
        process::{Supervisor, command, output},
    },
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tokio::process::Command;

#[path = "deployment/completion.rs"]
mod completion;
#[path = "deployment/preflight.rs"]
mod preflight;
#[path = "deployment/scripts.rs"]
mod scripts;
#[path = "deployment/tools.rs"]
mod tools;

const ACCOUNT: &str = "123456789012";
const REGION: &str = "us-east-1";
const STACK: &str = "driftless";
const ARTIFACTS: &str = "artifacts";
/// The number of commands that run at once.
const COMMANDS: usize = 4;

const PARAMETERS: [(&str, &str); 8] = [
    // moto reads the default of a list as text.
    ("ArtifactServices", "source-controller.flux-system"),
    ("RuntimeImages", "yaml=pulumi:1"),
    ("ClusterNames", "one,two"),
    ("Subnets", "subnet-1,subnet-2"),
    ("SecurityGroups", "sg-1"),
    ("FunctionSubnets", "subnet-3,subnet-4"),
    ("FunctionSecurityGroups", "sg-2"),
    ("RunnerImage", "runner:1"),
];

/// What neither moto's `CloudFormation` nor another call of moto makes, or what moto cannot show,
/// so that it is not tested here. An entry that no longer applies fails the test, like a missing
/// one.
const GAPS: &[(&str, &str)] = &[
    ("AWS::KMS::Key.Description", "moto fails to describe a key that CloudFormation made"),
    ("AWS::KMS::Key.PendingWindowInDays", "shown by no call until the key is deleted"),
    ("AWS::Lambda::Function.Architectures", NOT_SET),
    ("AWS::Lambda::Function.EphemeralStorage", NOT_SET),
    ("AWS::Lambda::Function.LoggingConfig", WIRED),
    ("AWS::Lambda::Function.RecursiveLoop", "tested by a_function_in_a_cycle_of_messages_allows_it_and_no_other_does"),
    ("AWS::Lambda::Permission.FunctionUrlAuthType", WIRED),
    ("AWS::Lambda::Permission.InvokedViaFunctionUrl", WIRED),
    ("AWS::Logs::AccountPolicy", "moto lacks the call; tested by output_of_tasks_makes_no_metrics"),
];
/// What moto's `CloudFormation` ignores and the test makes by other calls of moto (`completion`).
/// For these the comparison shows that services accept the values, not that `CloudFormation` sets
/// them. An entry that no longer applies fails the test, like a missing one.
const MADE_BY_THE_TEST: &[&str] = &[
    "AWS::CloudWatch::Alarm",
    "AWS::ECS::ClusterCapacityProviderAssociations",
    "AWS::IAM::Role.ManagedPolicyArns",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::Lambda::Url",
    "AWS::S3::Bucket.LifecycleConfiguration",
    "AWS::S3::Bucket.NotificationConfiguration",
    "AWS::S3::Bucket.OwnershipControls",
    "AWS::S3::Bucket.PublicAccessBlockConfiguration",
    "AWS::S3::BucketPolicy",
    "AWS::SQS::QueuePolicy",
];
const NOT_SET: &str = "moto has the resource without this property";
const WIRED: &str = "the template's reader refuses a wrong value: a_wrong_wire_is_found_before_anything_starts";

#[tokio::test(flavor = "multi_thread")]
async fn every_resource_of_the_template_is_deployed_as_it_is_written() -> Result<()> {
    let project = project()?;
    let dirs = stage("deployment")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let aws = Aws::start(&dirs, &supervisor, &moto, REGION).await?;

    let parameters = PARAMETERS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let settings = Settings {
        account: ACCOUNT.into(),
        region: REGION.into(),
        stack: STACK.into(),
        endpoint: aws.endpoint.clone(),
        function_url: "http://hook/".into(),
        parameters: parameters.clone().into(),
    };
    let template = Template::read(&project.join("infra/template.yaml"), &settings)?;
    aws.deploy(&project.join("infra/template.yaml"), &template, &parameters).await?;

    let names = aws.names(&template).await?;
    let gaps = GAPS.iter().map(|(gap, _)| *gap);
    lacks(&template, &aws.look(&template, &names).await?, gaps.clone().chain(MADE_BY_THE_TEST.iter().copied()));
    aws.complete(&template, &names).await?;
    lacks(&template, &aws.look(&template, &names).await?, gaps);
    Ok(())
}

/// Checks that moto has everything as the template has it, except for these properties and
/// resources.
fn lacks<'a>(template: &Template, found: &Found, expected: impl Iterator<Item = &'a str>) {
    let mut gaps = BTreeMap::new();
    for (id, resource) in &template.resources {
        let actual = found.properties(resource);
        for gap in differences(resource, &actual) {
            gaps.entry(gap).or_insert_with(|| format!("{id}: {} in place of {}", actual, resource.properties));
        }
    }
    let known: BTreeSet<_> = expected.collect();
    let unknown: Vec<_> = gaps.iter().filter(|(gap, _)| !known.contains(gap.as_str())).collect();
    assert!(unknown.is_empty(), "not as it is written: {unknown:#?}");
    let closed: Vec<_> = known.iter().filter(|gap| !gaps.contains_key(**gap)).collect();
    assert!(closed.is_empty(), "moto has learned this, so that it is no gap any more: {closed:?}");
}

/// SQS counts the deliveries that Lambda throttles. None of them may make a dead letter of a
/// message that no function saw.
#[test]
fn throttled_messages_expire_before_sqs_makes_dead_letters_of_them() -> Result<()> {
    let settings = Settings {
        account: ACCOUNT.into(),
        region: REGION.into(),
        stack: STACK.into(),
        parameters: PARAMETERS.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Settings::default()
    };
    let template = Template::read(&project()?.join("infra/template.yaml"), &settings)?;
    let mut queues = 0;
    for (id, queue) in &template.queues {
        let Some(policy) = queue.attributes.get("RedrivePolicy") else { continue };
        let policy: Value = serde_json::from_str(policy)?;
        // The maximum of SQS.
        assert_eq!(policy["maxReceiveCount"], 1000, "{id}");
        assert!(queue.visibility() * 1000 > queue.retention(), "{id}: {:?} {:?}", queue.visibility(), queue.retention());
        queues += 1;
    }
    assert_eq!(queues, 5);
    Ok(())
}

fn project() -> Result<PathBuf> {
    Ok(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?)
}

/// The folders of a test, with the project's tools.
fn stage(name: &str) -> Result<Dirs> {
    let stage = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&stage)?;
    let dirs = Dirs::fresh(&stage)?;
    std::os::unix::fs::symlink(project()?.join("target/tools"), stage.join("target/tools"))
        .or_else(|error| if error.kind() == std::io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
    Ok(dirs)
}

/// The properties that differ from the template, as `Type.Property`; the type alone if the resource
/// is missing.
fn differences(resource: &Resource, actual: &Value) -> Vec<String> {
    if actual.is_null() {
        return vec![resource.kind.clone()];
    }
    let properties = resource.properties.as_object().into_iter().flatten();
    let wrong = properties.filter(|(name, expected)| !covers(&actual[name.as_str()], expected));
    wrong.map(|(name, _)| format!("{}.{name}", resource.kind)).collect()
}

/// Returns whether `actual` has all of `expected`, and no other list items. `CloudFormation` does
/// not distinguish `60` and `"60"`.
fn covers(actual: &Value, expected: &Value) -> bool {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => {
            expected.iter().all(|(name, expected)| covers(actual.get(name).unwrap_or(&Value::Null), expected))
        }
        (Value::Array(actual), Value::Array(expected)) => {
            actual.len() == expected.len() && actual.iter().zip(expected).all(|(actual, expected)| covers(actual, expected))
        }
        // CloudWatch shows 60 as 60.0.
        (Value::Number(actual), _) => {
            let expected = expected.as_str().map_or_else(|| expected.as_f64(), |text| text.parse().ok());
            expected.is_some() && expected == actual.as_f64()
        }
        (Value::Bool(_), _) => expected == actual || *expected == actual.to_string().as_str(),
        (_, Value::Number(_) | Value::Bool(_)) => *actual == expected.to_string().as_str(),
        // moto's attribute Arn of a log group lacks the `:*`.
        (Value::String(actual), Value::String(expected)) if expected.contains(":log-group:") => {
            actual.trim_end_matches(":*") == expected.trim_end_matches(":*")
        }
        _ => actual == expected,
    }
}

/// The AWS CLI with moto.
#[derive(Clone)]
struct Aws<'a> {
    dirs: &'a Dirs,
    cli: AwsCli,
    endpoint: String,
    region: &'static str,
}

impl<'a> Aws<'a> {
    async fn start(dirs: &'a Dirs, supervisor: &Supervisor, moto: &Moto, region: &'static str) -> Result<Self> {
        // moto needs this host name to find the bucket in the URL of a template.
        let endpoint = moto.endpoint.replace("127.0.0.1", "localhost");
        Ok(Self { dirs, cli: AwsCli::start(dirs, supervisor).await?, endpoint, region })
    }

    async fn run(&self, words: &[&str]) -> Result<String> {
        // `package` uploads by the variable, and SQS only uses the argument.
        let mut aws = self.command(&self.cli.program);
        aws.args(words).args(["--output", "json", "--region", self.region, "--endpoint-url", &self.endpoint]);
        output(aws).await
    }

    /// A program that calls AWS.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command(self.dirs, program);
        command.env("AWS_ENDPOINT_URL", &self.endpoint).env("AWS_MAX_ATTEMPTS", "1");
        command.env("AWS_ACCESS_KEY_ID", "k").env("AWS_SECRET_ACCESS_KEY", "s");
        command
    }

    /// Deploys a copy of the template: the real functions would take minutes to package, and
    /// `CloudFormation` ignores their content. Each has its own content.
    async fn deploy(&self, template: &Path, resolved: &Template, parameters: &[(String, String)]) -> Result<()> {
        let stage = self.dirs.create("stage")?;
        let copy = stage.join("infra/template.yaml");
        fs::create_dir_all(stage.join("infra"))?;
        fs::copy(template, &copy)?;
        for (id, resource) in resolved.resources.iter().filter(|(_, resource)| resource.kind == "AWS::Lambda::Function") {
            let folder = stage.join("infra").join(resource.properties["Code"].as_str().context("a folder")?);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("bootstrap"), id)?;
        }
        self.run(&["s3api", "create-bucket", "--bucket", ARTIFACTS]).await?;
        let packaged = stage.join("packaged.yaml");
        let (copy, packaged) = (copy.to_string_lossy(), packaged.to_string_lossy());
        let mut package = vec!["cloudformation", "package", "--template-file", &copy];
        package.extend(["--s3-bucket", ARTIFACTS, "--output-template-file", &packaged]);
        self.run(&package).await?;
        let parameters: Vec<_> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut deploy = vec!["cloudformation", "deploy", "--template-file", &packaged, "--stack-name", STACK];
        deploy.extend(["--s3-bucket", ARTIFACTS, "--capabilities", "CAPABILITY_IAM", "--parameter-overrides"]);
        deploy.extend(parameters.iter().map(String::as_str));
        self.run(&deploy).await?;
        Ok(())
    }

    /// Returns the names and numbers that AWS assigned, each with the one of the template's reader.
    async fn names(&self, template: &Template) -> Result<BTreeMap<String, String>> {
        let mut names = BTreeMap::new();
        let stack: Value =
            serde_json::from_str(&self.run(&["cloudformation", "list-stack-resources", "--stack-name", STACK]).await?)?;
        for summary in stack["StackResourceSummaries"].as_array().context("resources")? {
            let (id, name) = (summary["LogicalResourceId"].as_str(), summary["PhysicalResourceId"].as_str());
            // The list has no name for a resource that moto cannot create.
            let Some((id, name)) = id.zip(name).filter(|(_, name)| !name.is_empty()) else { continue };
            let resource = template.resources.get(id).with_context(|| format!("{id} is not of the template"))?;
            if let Some(reference) = resource.reference.as_ref().filter(|reference| *reference != name) {
                names.insert(name.to_owned(), reference.clone());
            }
        }
        let roles: Value = serde_json::from_str(&ours(self.run(&["iam", "list-roles"]).await?, &names))?;
        for role in list(&roles["Roles"]) {
            let mut all = template.roles.iter();
            let known = all.find(|(id, _)| template.resources[*id].reference.as_deref() == role["RoleName"].as_str());
            if let Some((_, known)) = known {
                names.insert(role["RoleId"].as_str().context("an id")?.into(), known.id.clone());
            }
        }
        Ok(names)
    }

    /// Creates what moto's `CloudFormation` ignores.
    async fn complete(&self, template: &Template, names: &BTreeMap<String, String>) -> Result<()> {
        let calls: Vec<_> = template.resources.values().flat_map(completion::calls).collect();
        let made = stream::iter(calls).map(async |(service, operation, input): completion::Call| {
            let input = renamed(names, input);
            let what = format!("{service} {operation} {input}");
            self.run(&[service, operation, "--cli-input-json", &input.to_string()]).await.context(what)
        });
        made.buffer_unordered(COMMANDS).try_for_each(|_| async { Ok(()) }).await
    }

    /// Reads all resources, with the names of the template's reader.
    async fn look(&self, template: &Template, names: &BTreeMap<String, String>) -> Result<Found> {
        let commands: BTreeSet<String> = template.resources.values().flat_map(commands).collect();
        let answers = stream::iter(commands).map(async |line: String| {
            let words = line.split(' ').map(|word| theirs(names, word));
            // A refused call means that the resource does not exist.
            let answer = ours(self.run(&words.collect::<Vec<_>>()).await.unwrap_or_default(), names);
            // An unset setting has an empty answer.
            let answer = if answer.trim().is_empty() { Value::Null } else { serde_json::from_str(&answer)? };
            anyhow::Ok((line, answer))
        });
        Ok(Found(answers.buffer_unordered(COMMANDS).try_collect().await?))
    }
}

/// The name that AWS assigned instead of one of the template's reader; any other word unchanged.
fn theirs<'a>(names: &'a BTreeMap<String, String>, word: &'a str) -> &'a str {
    let mut all = names.iter();
    all.find(|(theirs, ours)| *ours == word && !theirs.starts_with("https://")).map_or(word, |(theirs, _)| theirs)
}

/// The value with the names that AWS assigned.
fn renamed(names: &BTreeMap<String, String>, value: Value) -> Value {
    match value {
        Value::String(text) => theirs(names, &text).into(),
        Value::Array(items) => items.into_iter().map(|item| renamed(names, item)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, renamed(names, value))).collect(),
        other => other,
    }
}

/// The text with the names of the template's reader.
fn ours(text: String, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
}

/// The commands that show a resource, with the names of the template's reader.
fn commands(resource: &Resource) -> Vec<String> {
    let properties = &resource.properties;
    let of = |name: &str| properties[name].as_str().unwrap_or_default();
    let reference = resource.reference.as_deref().unwrap_or_default();
    let s3 = |name: &str, what: &str| format!("s3api get-bucket-{what} --bucket {name}");
    match resource.kind.as_str() {
        "AWS::Lambda::Function" => vec![
            "lambda list-functions".into(),
            format!("lambda get-function-concurrency --function-name {reference}"),
            format!("lambda get-function-recursion-config --function-name {reference}"),
        ],
        "AWS::Lambda::EventSourceMapping" => vec!["lambda list-event-source-mappings".into()],
        "AWS::Lambda::EventInvokeConfig" => {
            vec![format!("lambda get-function-event-invoke-config --function-name {}", of("FunctionName"))]
        }
        "AWS::Lambda::Permission" => vec![format!("lambda get-policy --function-name {}", of("FunctionName"))],
        "AWS::Lambda::Url" => {
            let function = of("TargetFunctionArn").rsplit(':').next().unwrap_or_default();
            vec![format!("lambda get-function-url-config --function-name {function}")]
        }
        "AWS::Events::Rule" => {
            vec![format!("events describe-rule --name {reference}"), format!("events list-targets-by-rule --rule {reference}")]
        }
        "AWS::SQS::Queue" => vec![queue(reference)],
        "AWS::SQS::QueuePolicy" => list(&properties["Queues"]).iter().filter_map(Value::as_str).map(queue).collect(),
        "AWS::KMS::Key" => vec![
            format!("kms get-key-rotation-status --key-id {reference}"),
            format!("kms describe-key --key-id {reference}"),
            format!("kms get-key-policy --policy-name default --key-id {reference}"),
        ],
        "AWS::S3::Bucket" => {
            let settings = ["encryption", "ownership-controls", "lifecycle-configuration", "notification-configuration"];
            let settings = settings.map(|what| s3(reference, what)).into_iter();
            settings.chain([format!("s3api get-public-access-block --bucket {reference}")]).collect()
        }
        "AWS::S3::BucketPolicy" => vec![s3(of("Bucket"), "policy")],
        "AWS::ECS::Cluster" | "AWS::ECS::ClusterCapacityProviderAssociations" => {
            vec![format!("ecs describe-clusters --clusters {STACK}")]
        }
        "AWS::IAM::Role" => {
            let policies = list(&properties["Policies"]).iter().filter_map(|policy| policy["PolicyName"].as_str());
            let policies = policies.map(|name| format!("iam get-role-policy --policy-name {name} --role-name {reference}"));
            let role = ["get-role", "list-role-policies", "list-attached-role-policies"];
            role.into_iter().map(|what| format!("iam {what} --role-name {reference}")).chain(policies).collect()
        }
        "AWS::IAM::ManagedPolicy" => vec![format!("iam get-policy-version --version-id v1 --policy-arn {reference}")],
        "AWS::Logs::LogGroup" => vec!["logs describe-log-groups".into()],
        "AWS::CloudWatch::Alarm" => vec!["cloudwatch describe-alarms".into()],
        "AWS::CloudWatch::Dashboard" => vec![format!("cloudwatch get-dashboard --dashboard-name {reference}")],
        _ => Vec::new(),
    }
}

fn queue(url: &str) -> String {
    format!("sqs get-queue-attributes --attribute-names All --queue-url {url}")
}

/// The answers of the commands.
struct Found(BTreeMap<String, Value>);

impl Found {
    /// The resource as moto has it, in the form of `CloudFormation`; null if it does not exist.
    fn properties(&self, resource: &Resource) -> Value {
        let answers: Vec<&Value> = commands(resource).iter().map(|line| &self.0[line]).collect();
        let Some(first) = answers.first() else { return Value::Null };
        let expected = &resource.properties;
        match resource.kind.as_str() {
            kind if kind.starts_with("AWS::Lambda::") => lambda(kind, expected, &answers),
            "AWS::Events::Rule" if first.is_object() => json!({
                "EventPattern": parsed(&first["EventPattern"]), "ScheduleExpression": first["ScheduleExpression"],
                "Targets": answers[1]["Targets"],
            }),
            "AWS::SQS::Queue" if first.is_object() => {
                let mut attributes = first["Attributes"].clone();
                attributes["QueueName"] = last(&attributes["QueueArn"]);
                attributes["RedrivePolicy"] = parsed(&attributes["RedrivePolicy"]);
                attributes
            }
            "AWS::SQS::QueuePolicy" if first["Attributes"]["Policy"].is_string() => {
                json!({ "Queues": expected["Queues"], "PolicyDocument": parsed(&first["Attributes"]["Policy"]) })
            }
            "AWS::KMS::Key" if first.is_object() => json!({
                "Description": answers[1]["KeyMetadata"]["Description"], "KeyPolicy": parsed(&answers[2]["Policy"]),
                "EnableKeyRotation": first["KeyRotationEnabled"],
            }),
            "AWS::S3::Bucket" => json!({
                "BucketName": if first.is_object() { &expected["BucketName"] } else { &Value::Null },
                "BucketEncryption": { "ServerSideEncryptionConfiguration": [{
                    "ServerSideEncryptionByDefault":
                        first["ServerSideEncryptionConfiguration"]["Rules"][0]["ApplyServerSideEncryptionByDefault"],
                }] },
                "OwnershipControls": answers[1]["OwnershipControls"],
                "LifecycleConfiguration": completion::lifecycle_of(answers[2]),
                "NotificationConfiguration": completion::notifications_of(answers[3]),
                "PublicAccessBlockConfiguration": answers[4]["PublicAccessBlockConfiguration"],
            }),
            "AWS::S3::BucketPolicy" if first.is_object() => {
                json!({ "Bucket": expected["Bucket"], "PolicyDocument": parsed(&first["Policy"]) })
            }
            "AWS::ECS::Cluster" => {
                first["clusters"][0]["clusterName"].as_str().map_or(Value::Null, |name| json!({ "ClusterName": name }))
            }
            "AWS::ECS::ClusterCapacityProviderAssociations" => {
                let cluster = &first["clusters"][0];
                let providers = &cluster["capacityProviders"];
                if list(providers).is_empty() {
                    return Value::Null;
                }
                json!({
                    "Cluster": cluster["clusterName"], "CapacityProviders": providers,
                    "DefaultCapacityProviderStrategy":
                        completion::with_letters(&cluster["defaultCapacityProviderStrategy"], &str::to_uppercase),
                })
            }
            "AWS::IAM::Role" if first.is_object() && list(&answers[1]["PolicyNames"]).len() == answers.len() - 3 => {
                let managed = list(&answers[2]["AttachedPolicies"]).iter().map(|policy| policy["PolicyArn"].clone());
                let policies = answers[3..].iter().map(
                    |policy| json!({ "PolicyName": policy["PolicyName"], "PolicyDocument": parsed(&policy["PolicyDocument"]) }),
                );
                json!({
                    "AssumeRolePolicyDocument": first["Role"]["AssumeRolePolicyDocument"],
                    "ManagedPolicyArns": managed.collect::<Value>(), "Policies": policies.collect::<Value>(),
                })
            }
            "AWS::IAM::ManagedPolicy" if first.is_object() => json!({ "PolicyDocument": first["PolicyVersion"]["Document"] }),
            "AWS::Logs::LogGroup" => {
                let mut group =
                    list(&first["logGroups"]).iter().filter(|group| group["logGroupName"] == expected["LogGroupName"]);
                let days = group.next().map(|group| group["retentionInDays"].clone());
                days.map_or(Value::Null, |days| json!({ "LogGroupName": expected["LogGroupName"], "RetentionInDays": days }))
            }
            "AWS::CloudWatch::Alarm" => named(&first["MetricAlarms"], "AlarmName", expected),
            "AWS::CloudWatch::Dashboard" => (*first).clone(),
            _ => Value::Null,
        }
    }
}

fn lambda(kind: &str, expected: &Value, answers: &[&Value]) -> Value {
    let first = answers[0];
    match kind {
        "AWS::Lambda::Function" => {
            let mut function = named(&first["Functions"], "FunctionName", expected);
            // The folder has become a zip file.
            if function["CodeSize"].as_u64().is_some_and(|size| size > 0) {
                function["Code"] = expected["Code"].clone();
            }
            function["ReservedConcurrentExecutions"] = answers[1]["ReservedConcurrentExecutions"].clone();
            function["RecursiveLoop"] = answers[2]["RecursiveLoop"].clone();
            function
        }
        "AWS::Lambda::EventSourceMapping" => {
            let mut mapping = named(&first["EventSourceMappings"], "EventSourceArn", expected);
            mapping["FunctionName"] = last(&mapping["FunctionArn"]);
            mapping
        }
        "AWS::Lambda::EventInvokeConfig" if first.is_object() => {
            let mut config = first.clone();
            config["FunctionName"] = expected["FunctionName"].clone();
            config["Qualifier"] = expected["Qualifier"].clone();
            config
        }
        "AWS::Lambda::Permission" => {
            let policy = parsed(&first["Policy"]);
            let who = |statement: &Value| match &statement["Principal"] {
                Value::Object(who) => who.values().next().cloned().unwrap_or_default(),
                other => other.clone(),
            };
            let is_it = |one: &&Value| one["Action"] == expected["Action"] && who(one) == expected["Principal"];
            let Some(statement) = list(&policy["Statement"]).iter().find(is_it) else { return Value::Null };
            let condition = &statement["Condition"];
            json!({
                "FunctionName": last(&statement["Resource"]), "Action": statement["Action"], "Principal": who(statement),
                "SourceArn": condition["ArnLike"]["AWS:SourceArn"],
                "FunctionUrlAuthType": condition["StringEquals"]["lambda:FunctionUrlAuthType"],
                "InvokedViaFunctionUrl": condition["Bool"]["lambda:InvokedViaFunctionUrl"],
            })
        }
        "AWS::Lambda::Url" if first.is_object() => {
            json!({ "TargetFunctionArn": first["FunctionArn"], "AuthType": first["AuthType"] })
        }
        _ => Value::Null,
    }
}

/// The entry of the list that has the expected value under this name.
fn named(all: &Value, name: &str, expected: &Value) -> Value {
    list(all).iter().find(|one| one[name] == expected[name]).cloned().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The last part of an ARN.
fn last(arn: &Value) -> Value {
    arn.as_str().and_then(|arn| arn.rsplit(':').next()).into()
}

/// A document in an answer's text field.
fn parsed(text: &Value) -> Value {
    // moto prints some in Python's form.
    let document = text
        .as_str()
        .and_then(|text| serde_json::from_str(text).or_else(|_| serde_json::from_str(&text.replace('\'', "\""))).ok());
    document.unwrap_or_else(|| text.clone())
}
