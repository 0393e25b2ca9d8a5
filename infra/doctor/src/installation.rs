//! Checks of an installation on AWS.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    Finding,
    credentials::{self, Access, Keys, Secrets},
    throughput,
    tools::{self, Answer, Aws},
};

/// The code in Service Quotas of the vCPUs that Fargate may run on demand at once.
const FARGATE_VCPUS: &str = "L-3032A538";
/// A quota below this many vCPUs is reported. New accounts have 6; this is enough for 16 runs of
/// the default size.
const FEW_VCPUS: f64 = 16.0;
/// The fields that are read of a function. Its environment has secrets and is not read.
const FUNCTION: &str = "{State: State, StateReason: StateReason, LastUpdateStatus: LastUpdateStatus, \
    LastUpdateStatusReason: LastUpdateStatusReason, Architecture: Architectures[0], Clusters: Environment.Variables.CLUSTERS}";

/// The facts about the installation for the other checks.
#[derive(Debug, Default)]
pub struct Installation {
    /// Its outputs.
    pub outputs: BTreeMap<String, String>,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
    /// The clusters that it serves, by the names of their contexts.
    pub clusters: Vec<String>,
    /// How the functions reach each cluster.
    pub access: BTreeMap<String, Access>,
    /// The keys of the webhook, by cluster. Has no `Debug`: see [`Keys`].
    pub keys: Keys,
}

/// Runs every check of AWS.
#[must_use]
pub fn examine(aws: &Aws, stack: &str) -> (Vec<Finding>, Installation) {
    let described = aws.json(&["cloudformation", "describe-stacks", "--stack-name", stack]);
    let mut findings = vec![stack_state(stack, &described)];
    let Ok(described) = described else { return (findings, Installation::default()) };
    let described = &described["Stacks"][0];
    let [outputs, parameters] =
        [("Outputs", "Output"), ("Parameters", "Parameter")].map(|(list, kind)| pairs(&described[list], kind));
    let mut found = Installation { outputs, parameters: parameters.clone(), ..Installation::default() };

    let listed = aws.json(&["cloudformation", "list-stack-resources", "--stack-name", stack]);
    match listed {
        Ok(listed) => findings.extend(examine_resources(aws, &listed, &parameters, &mut found)),
        Err(why) => {
            findings.push(Finding::fail(
                "cannot list the resources of the stack",
                why,
                "allow cloudformation:ListStackResources",
            ));
        }
    }
    findings.push(quota(&fargate_quota(aws)));
    if let Some(groups) = parameters.get("SecurityGroups") {
        let ids = groups.split(',').map(str::trim);
        let arguments: Vec<_> = ["ec2", "describe-security-groups", "--group-ids"].into_iter().chain(ids).collect();
        findings.extend(security_groups(&aws.json(&arguments)));
    }
    if let Some(image) = parameters.get("DefaultImage") {
        findings.push(default_images(image, parameters.get("RuntimeImages").map_or("", |images| images)));
    }
    if let Some(image) = parameters.get("RunnerImage") {
        findings.push(runner_image(image, look_up_image(image)));
    }
    if let Some(url) = found.outputs.get("WebhookUrl") {
        findings.push(webhook(url, unsigned_post(url).as_deref()));
    }
    let has_webhook = found.outputs.contains_key("WebhookUrl");
    let (of_secrets, Secrets { access, keys }) = credentials::secrets(aws, &parameters, &found.clusters, has_webhook);
    findings.extend(of_secrets);
    (findings, Installation { access, keys, ..found })
}

fn examine_resources(aws: &Aws, listed: &Value, parameters: &BTreeMap<String, String>, found: &mut Installation) -> Vec<Finding> {
    let (mut findings, mut sources) = (Vec::new(), Vec::new());
    for name in of_type(listed, "AWS::Lambda::Function") {
        let state = aws.json(&["lambda", "get-function-configuration", "--function-name", name, "--query", FUNCTION]);
        findings.push(function(name, parameters.get("Architecture").map(String::as_str), &state));
        let clusters = state.ok().and_then(|state| state["Clusters"].as_str().map(ToOwned::to_owned)).unwrap_or_default();
        found.clusters.extend(clusters.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned));
        let listed = aws.json(&["lambda", "list-event-source-mappings", "--function-name", name]);
        findings.extend(throughput::mappings(name, &listed));
        sources.extend(listed);
    }
    findings.push(throughput::concurrency(&sources, &aws.json(&["lambda", "get-account-settings"])));
    for name in of_type(listed, "AWS::Events::Rule") {
        findings.push(rule(name, &aws.json(&["events", "describe-rule", "--name", name])));
    }
    for url in of_type(listed, "AWS::SQS::Queue") {
        let arguments = ["sqs", "get-queue-attributes", "--queue-url", url, "--attribute-names", "ApproximateNumberOfMessages"];
        findings.push(queue(url.rsplit('/').next().unwrap_or(url), &aws.json(&arguments)));
    }
    for name in of_type(listed, "AWS::S3::Bucket") {
        findings.push(notifications(name, &aws.json(&["s3api", "get-bucket-notification-configuration", "--bucket", name])));
    }
    let names = of_type(listed, "AWS::CloudWatch::Alarm");
    if !names.is_empty() {
        let arguments: Vec<_> = ["cloudwatch", "describe-alarms", "--alarm-names"].into_iter().chain(names).collect();
        findings.extend(alarms(&aws.json(&arguments)));
    }
    findings
}

fn pairs(list: &Value, kind: &str) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pair = |entry: &Value| (text(&entry[format!("{kind}Key")]), text(&entry[format!("{kind}Value")]));
    list.as_array().into_iter().flatten().map(pair).collect()
}

/// The physical ids of the resources of a type.
fn of_type<'a>(listed: &'a Value, kind: &str) -> Vec<&'a str> {
    let all = listed["StackResourceSummaries"].as_array().into_iter().flatten();
    all.filter(|one| one["ResourceType"] == kind).filter_map(|one| one["PhysicalResourceId"].as_str()).collect()
}

/// Checks the state of the stack.
#[must_use]
pub fn stack_state(name: &str, described: &Answer) -> Finding {
    let deploy = format!("make deploy STACK={name}");
    match described.as_ref().map(|described| described["Stacks"][0]["StackStatus"].as_str().unwrap_or_default()) {
        Err(why) => Finding::fail(
            format!("stack {name}: cannot be read"),
            why,
            format!(
                "check that STACK, AWS_REGION and the credentials are those of the installation; to install it, run \
                 {deploy}"
            ),
        ),
        Ok(state @ ("CREATE_COMPLETE" | "UPDATE_COMPLETE")) => Finding::ok(format!("stack {name}: {state}")),
        Ok(state) if state.ends_with("_IN_PROGRESS") => Finding::warn(
            format!("stack {name}: {state}"),
            "a deployment is in progress",
            "wait until it has ended, then run \
                 make doctor again",
        ),
        Ok(state @ "UPDATE_ROLLBACK_COMPLETE") => Finding::warn(
            format!("stack {name}: {state}"),
            "the last upgrade failed and was rolled back",
            format!("run {deploy}, which shows the cause"),
        ),
        Ok(state) => Finding::fail(
            format!("stack {name}: {state}"),
            "the stack is incomplete",
            format!("see aws cloudformation describe-stack-events --stack-name {name}, then run {deploy}"),
        ),
    }
}

/// Checks one function.
#[must_use]
pub fn function(name: &str, architecture: Option<&str>, state: &Answer) -> Finding {
    let state = match state {
        Ok(state) => state,
        Err(why) => return Finding::fail(format!("function {name}: cannot be read"), why, "run make deploy if it was deleted"),
    };
    let text = |field: &str| state[field].as_str().unwrap_or_default();
    // A function without recent calls is inactive, and wakes with the next event.
    if !matches!(text("State"), "Active" | "Inactive") {
        return Finding::fail(
            format!("function {name}: {}", text("State")),
            text("StateReason"),
            "wait if it is Pending, else run make deploy",
        );
    }
    if text("LastUpdateStatus") == "Failed" {
        let why = text("LastUpdateStatusReason");
        return Finding::fail(format!("function {name}: its last update failed"), why, "make deploy");
    }
    if architecture.is_some_and(|wanted| wanted != text("Architecture")) {
        let why = format!("it is built for {}, which is not the parameter Architecture of the stack", text("Architecture"));
        return Finding::fail(format!("function {name}: wrong architecture"), why, "run make deploy ARCHITECTURE=…");
    }
    Finding::ok(format!("function {name}: {}, {}", text("State"), text("Architecture")))
}

/// Checks a rule of `EventBridge`.
#[must_use]
pub fn rule(name: &str, described: &Answer) -> Finding {
    match described.as_ref().map(|described| described["State"].as_str().unwrap_or_default()) {
        Ok(state) if state.starts_with("ENABLED") => Finding::ok(format!("rule {name}: enabled")),
        Ok(state) => Finding::fail(
            format!("rule {name}: {state}"),
            "without it, the sweep does not start, or ends of tasks are found late",
            format!("aws events enable-rule --name {name}"),
        ),
        Err(why) => Finding::fail(format!("rule {name}: cannot be read"), why, "run make deploy if it was deleted"),
    }
}

/// Checks a queue; a dead-letter queue, by its name, must be empty.
#[must_use]
pub fn queue(name: &str, attributes: &Answer) -> Finding {
    let attributes = match attributes {
        Ok(attributes) => &attributes["Attributes"],
        Err(why) => return Finding::fail(format!("queue {name}: cannot be read"), why, "run make deploy if it was deleted"),
    };
    let waiting = attributes["ApproximateNumberOfMessages"].as_str().unwrap_or("0");
    match (name.contains("dead-letters"), waiting) {
        (true, "0") => Finding::ok(format!("queue {name}: empty")),
        (true, count) => Finding::fail(
            format!("queue {name}: {count} dead letters"),
            "each message failed in its function until its last delivery; the cause is a bug, or a document of another release",
            "see `a message failed` in the log of the function; correct the cause, then redrive or purge the queue",
        ),
        (false, count) => Finding::ok(format!("queue {name}: {count} waiting")),
    }
}

/// Checks that the bucket notifies the recorder of results.
#[must_use]
pub fn notifications(bucket: &str, answer: &Answer) -> Finding {
    match answer.as_ref().map(|answer| answer["QueueConfigurations"].as_array().map_or(0, Vec::len)) {
        Ok(0) => Finding::fail(
            format!("bucket {bucket}: no notifications"),
            "only the sweep finds results of runs",
            "its notifications were changed by hand; run aws cloudformation detect-stack-drift, then make deploy",
        ),
        Ok(count) => Finding::ok(format!("bucket {bucket}: {count} notifications")),
        Err(why) => Finding::fail(format!("bucket {bucket}: cannot be read"), why, "run make deploy if it was deleted"),
    }
}

/// Checks for alarms in the state ALARM.
#[must_use]
pub fn alarms(described: &Answer) -> Vec<Finding> {
    let described = match described {
        Ok(described) => described,
        Err(why) => return vec![Finding::warn("alarms: cannot be read", why, "allow cloudwatch:DescribeAlarms")],
    };
    let all: Vec<_> = described["MetricAlarms"].as_array().into_iter().flatten().collect();
    let text = |alarm: &Value, field: &str| alarm[field].as_str().unwrap_or_default().to_owned();
    let rung = all.iter().filter(|alarm| alarm["StateValue"] == "ALARM").map(|alarm| {
        let what = format!("alarm {}: in ALARM", text(alarm, "AlarmName"));
        Finding::fail(what, text(alarm, "StateReason"), "see docs/operations.md, which explains each alarm")
    });
    let findings: Vec<_> = rung.collect();
    if findings.is_empty() { vec![Finding::ok(format!("alarms: none of {} in ALARM", all.len()))] } else { findings }
}

/// The answer of Service Quotas about the vCPUs of Fargate.
pub fn fargate_quota(aws: &Aws) -> Answer {
    aws.json(&["service-quotas", "get-service-quota", "--service-code", "fargate", "--quota-code", FARGATE_VCPUS])
}

/// Checks how much Fargate may run at once in the account.
#[must_use]
pub fn quota(answer: &Answer) -> Finding {
    match answer.as_ref().map(|answer| answer["Quota"]["Value"].as_f64()) {
        Ok(Some(vcpus)) if vcpus < FEW_VCPUS => Finding::warn(
            format!("Fargate: {vcpus} vCPUs at once"),
            "the quota in this Region is that of a new account; further runs wait with TaskNotStarted",
            format!(
                "aws service-quotas request-service-quota-increase --service-code fargate --quota-code {FARGATE_VCPUS} --desired-value 100"
            ),
        ),
        Ok(Some(vcpus)) => Finding::ok(format!("Fargate: {vcpus} vCPUs at once")),
        Ok(None) => Finding::warn("Fargate: cannot read the quota", "Service Quotas returns no value", "check it in the console"),
        Err(why) => Finding::warn("Fargate: cannot read the quota", why, "allow servicequotas:GetServiceQuota"),
    }
}

/// Checks that the security groups of tasks allow no ingress.
#[must_use]
pub fn security_groups(described: &Answer) -> Vec<Finding> {
    let described = match described {
        Ok(described) => described,
        Err(why) => {
            let what = "security groups of tasks: cannot be read";
            return vec![Finding::warn(what, why, "check that they exist, and allow ec2:DescribeSecurityGroups")];
        }
    };
    let groups = described["SecurityGroups"].as_array().into_iter().flatten();
    let open = groups.filter(|group| group["IpPermissions"].as_array().is_some_and(|rules| !rules.is_empty()));
    let findings: Vec<_> = open
        .map(|group| {
            Finding::warn(
                format!("security group {} of tasks: has inbound rules", group["GroupId"].as_str().unwrap_or_default()),
                "they allow connections to tasks; a rule that names the group itself connects the tasks of all tenants",
                "run make deploy SECURITY_GROUPS=… with a group without inbound rules",
            )
        })
        .collect();
    if findings.is_empty() { vec![Finding::ok("security groups of tasks: no inbound rules")] } else { findings }
}

/// Checks that the images of runs whose Workspaces name none are pinned to digests: the default,
/// and those of `RuntimeImages`.
#[must_use]
pub fn default_images(default: &str, by_runtime: &str) -> Finding {
    let by_runtime = by_runtime.split(',').filter_map(|entry| Some(entry.split_once('=')?.1.trim()));
    let moving: Vec<_> = [default].into_iter().chain(by_runtime).filter(|image| !image.contains("@sha256:")).collect();
    if moving.is_empty() {
        return Finding::ok("default images: pinned");
    }
    Finding::warn(
        format!("default images without a digest: {}", moving.join(", ")),
        "anyone who can move such a tag can run code with the Secrets of Stacks that name no image",
        "run make deploy, without COPY_IMAGES=no or with crane or skopeo on PATH, or with PARAMETERS='DefaultImage=…@sha256:… RuntimeImages=…@sha256:…' (docs/images.md)",
    )
}

/// Registry, region, repository and tag or digest of an image in ECR.
#[must_use]
pub fn ecr_image(image: &str) -> Option<(&str, &str, &str, String)> {
    let (host, path) = image.split_once('/')?;
    let mut parts = host.split('.');
    let account = parts.next().filter(|account| account.len() == 12 && account.bytes().all(|digit| digit.is_ascii_digit()))?;
    let (region, repository) = (parts.nth(2).filter(|_| host.contains(".dkr.ecr."))?, path.split(['@', ':']).next()?);
    let id = match (path.split_once('@'), path.split_once(':')) {
        (Some((_, digest)), _) => format!("imageDigest={digest}"),
        (None, Some((_, tag))) => format!("imageTag={tag}"),
        (None, None) => "imageTag=latest".to_owned(),
    };
    Some((account, region, repository, id))
}

fn look_up_image(image: &str) -> Option<Answer> {
    let (account, region, repository, id) = ecr_image(image)?;
    let aws = Aws { region: Some(region.to_owned()) };
    Some(aws.json(&["ecr", "describe-images", "--registry-id", account, "--repository-name", repository, "--image-ids", &id]))
}

/// The image of the runner; `None` if it is not in ECR.
#[must_use]
pub fn runner_image(image: &str, answer: Option<Answer>) -> Finding {
    match answer {
        None => Finding::warn(
            format!("runner image {image}: not checked"),
            "it is not in ECR",
            "check that tasks can pull it without credentials, or use an image in ECR",
        ),
        Some(Ok(_)) => Finding::ok(format!("runner image {image}: found")),
        Some(Err(why)) => Finding::fail(
            format!("runner image {image}: not found; no run can start"),
            why,
            "push it, or run make deploy RUNNER_IMAGE=…",
        ),
    }
}

fn unsigned_post(url: &str) -> Result<String, String> {
    let arguments = ["-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "-d", "{}", url];
    tools::text("curl", &arguments, None)
}

/// Checks the status of an unsigned notification.
#[must_use]
pub fn webhook(url: &str, status: Result<&str, &String>) -> Finding {
    match status {
        Ok("401") => Finding::ok(format!("webhook {url}: answers, and refuses unsigned requests")),
        Ok("403") => Finding::fail(
            format!("webhook {url}: Lambda refuses all requests"),
            "the permissions for the function URL are missing (lambda:InvokeFunctionUrl and lambda:InvokeFunction)",
            "run make deploy; if that does not help, a policy of the organisation forbids public function URLs",
        ),
        Ok("429") => {
            Finding::warn(format!("webhook {url}: busy"), "its concurrency of 5 is used up", "see the metric SignaturesRefused")
        }
        Ok(status) => Finding::fail(
            format!("webhook {url}: status {status} for an unsigned request"),
            "the expected status is 401; the function does not start, or the URL is that of another function",
            "see its log; the secret with the keys must be a JSON object of clusters and keys",
        ),
        Err(why) => {
            Finding::fail(format!("webhook {url}: no answer"), why.as_str(), "check that this machine can reach the internet")
        }
    }
}
