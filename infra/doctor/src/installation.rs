//! Checks of an installation on AWS.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Finding, throughput,
    tools::{self, Answer, Aws},
};

/// The code in Service Quotas of the vCPUs that Fargate may run on demand at once.
const FARGATE_VCPUS: &str = "L-3032A538";
/// A quota below this many vCPUs is reported. New accounts have 6; this is enough for 16 runs of the default size.
const FEW_VCPUS: f64 = 16.0;
/// The fields that are read of a function. Its environment has secrets and is not read.
const FUNCTION: &str = "{State: State, StateReason: StateReason, LastUpdateStatus: LastUpdateStatus, \
    LastUpdateStatusReason: LastUpdateStatusReason, Architecture: Architectures[0], Clusters: Environment.Variables.CLUSTERS}";

/// The functions that call clusters, each with its own kubeconfig.
const CALLERS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];

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

/// Secrets that are compared and never shown.
#[derive(Default)]
pub struct Keys(BTreeMap<String, Senders>);

/// The keys of one cluster.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Senders {
    /// One key for all senders, as in earlier releases.
    All(String),
    /// The key of each sender.
    Each(BTreeMap<String, String>),
}

impl Senders {
    /// The keys that Flux may use.
    fn of_flux(&self) -> Vec<&str> {
        let keys: Vec<_> = match self {
            Self::All(key) => vec![key],
            Self::Each(keys) => {
                let of_flux = |name: &str| name.split('/').next() == Some("flux");
                keys.iter().filter(|(name, _)| of_flux(name)).map(|(_, key)| key).collect()
            }
        };
        keys.into_iter().map(String::as_str).filter(|key| !key.is_empty()).collect()
    }
}

impl Keys {
    /// Returns whether it is a key of the cluster's Flux.
    #[must_use]
    pub fn is(&self, cluster: &str, key: &str) -> bool {
        self.0.get(cluster).is_some_and(|senders| senders.of_flux().contains(&key))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the functions reach a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// EKS: each function with its own role.
    Eks {
        /// The cluster's name in EKS.
        name: String,
        /// Its region; `None` for the installation's.
        region: Option<String>,
    },
    /// Any other cluster: with a user of the kubeconfig.
    Other,
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
    findings.extend(secrets(aws, &parameters, &mut found));
    (findings, found)
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

/// Checks that the images of runs whose Workspaces name none are pinned to digests: the default, and those of `RuntimeImages`.
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
        "run make deploy with crane or skopeo on PATH, or COPY_IMAGES=yes, or PARAMETERS='DefaultImage=…@sha256:… RuntimeImages=…@sha256:…' (docs/images.md)",
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

fn secrets(aws: &Aws, parameters: &BTreeMap<String, String>, found: &mut Installation) -> Vec<Finding> {
    let read = |name: &str| {
        let arguments = ["secretsmanager", "get-secret-value", "--secret-id", name, "--query", "SecretString"];
        aws.json(&arguments).map(|value| value.as_str().unwrap_or_default().to_owned())
    };
    let mut findings = Vec::new();
    if let Some(name) = parameters.get("KubeconfigSecret") {
        let mut kubeconfigs = Vec::new();
        for function in CALLERS {
            let name = format!("{name}/{function}");
            let parsed = read(&name).and_then(|text| serde_saphyr::from_str(&text).map_err(|_| "it is not YAML".to_owned()));
            let (more, access) = kubeconfig(&name, &parsed, &found.clusters);
            findings.extend(more);
            found.access.extend(access);
            kubeconfigs.extend(parsed);
        }
        findings.extend(shared_credentials(name, &kubeconfigs, &found.clusters));
    }
    if let Some(name) = parameters.get("WebhookKeysSecret").filter(|_| found.outputs.contains_key("WebhookUrl")) {
        let keys = read(name)
            .and_then(|text| serde_json::from_str(&text).map_err(|_| "it is not a JSON object of clusters and keys".to_owned()));
        findings.extend(webhook_keys(name, keys.as_ref(), &found.clusters));
        found.keys = Keys(keys.unwrap_or_default());
    }
    findings
}

/// Checks that the kubeconfig has each cluster, and reads how the functions reach it.
#[must_use]
pub fn kubeconfig(secret: &str, kubeconfig: &Answer, clusters: &[String]) -> (Vec<Finding>, BTreeMap<String, Access>) {
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(why) => {
            let what = format!("secret {secret}: cannot use the kubeconfig");
            return (vec![Finding::fail(what, why, "run make deploy KUBECONFIG_FILE=…")], BTreeMap::new());
        }
    };
    let named = |list: &str, name: &Value| {
        kubeconfig[list].as_array().into_iter().flatten().find(|entry| entry["name"] == *name).cloned()
    };
    let (mut findings, mut access) = (Vec::new(), BTreeMap::new());
    for cluster in clusters {
        let context = named("contexts", &cluster.as_str().into()).map(|context| context["context"].clone());
        let Some(context) = context else {
            findings.push(Finding::fail(
                format!("secret {secret}: no context {cluster}"),
                "ClusterNames names it, but none of its Stacks is reconciled",
                "run make deploy KUBECONFIG_FILE=… with a context of that name",
            ));
            continue;
        };
        let server = named("clusters", &context["cluster"]).map(|cluster| cluster["cluster"].clone());
        let server = server.filter(|server| server["server"].is_string());
        let Some((user, server)) = named("users", &context["user"]).map(|user| user["user"].clone()).zip(server) else {
            findings.push(Finding::fail(
                format!("secret {secret}: context {cluster} is incomplete"),
                "its cluster or its user is not in the kubeconfig, or the cluster has no server",
                "run make deploy KUBECONFIG_FILE=…",
            ));
            continue;
        };
        findings.extend(encryption(secret, cluster, &server));
        let (finding, way) = user_of(secret, cluster, &user);
        findings.push(finding);
        access.extend(way.map(|way| (cluster.clone(), way)));
    }
    (findings, access)
}

/// Checks that credentials and Secrets are encrypted on the way to an API server.
fn encryption(secret: &str, cluster: &str, server: &Value) -> Option<Finding> {
    let url = server["server"].as_str().unwrap_or_default();
    if url.starts_with("http://") && !url.starts_with("http://127.") && !url.starts_with("http://[::1]") {
        return Some(Finding::fail(
            format!("secret {secret}: the server of {cluster} is not https"),
            "the functions refuse it, because it would receive credentials in clear text",
            "run make deploy KUBECONFIG_FILE=… with an https server",
        ));
    }
    (server["insecure-skip-tls-verify"] == true).then(|| {
        Finding::warn(
            format!("secret {secret}: cluster {cluster} has insecure-skip-tls-verify"),
            "an attacker on the network can impersonate the API server",
            "run make deploy KUBECONFIG_FILE=… with certificate-authority-data instead",
        )
    })
}

/// The clusters for which several functions have the same credential.
#[must_use]
pub fn shared_credentials(secret: &str, kubeconfigs: &[Value], clusters: &[String]) -> Option<Finding> {
    let named = |kubeconfig: &Value, list: &str, name: &Value| {
        kubeconfig[list].as_array().into_iter().flatten().find(|entry| entry["name"] == *name).cloned()
    };
    let is_shared = |cluster: &&String| {
        let users = kubeconfigs.iter().filter_map(|kubeconfig| {
            let context = named(kubeconfig, "contexts", &cluster.as_str().into())?;
            let user = named(kubeconfig, "users", &context["context"]["user"])?["user"].take();
            // An EKS cluster gets the function's own role.
            user["exec"].is_null().then(|| [&user["token"], &user["client-certificate-data"]].map(ToString::to_string))
        });
        let users: Vec<_> = users.collect();
        users.iter().collect::<BTreeSet<_>>().len() < users.len()
    };
    let shared: Vec<_> = clusters.iter().filter(is_shared).map(String::as_str).collect();
    (!shared.is_empty()).then(|| {
        Finding::warn(
            format!("secrets {secret}/…: several functions share one credential for {}", shared.join(", ")),
            "the fetcher, which reads untrusted content, has the rights of the launcher there",
            "give each function its own ServiceAccount (docs/clusters.md)",
        )
    })
}

fn user_of(secret: &str, cluster: &str, user: &Value) -> (Finding, Option<Access>) {
    let arguments: Vec<_> = user["exec"]["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let after = |name: &str| {
        let position = arguments.iter().position(|argument| *argument == name)?;
        arguments.get(position + 1).map(|value| (*value).to_owned())
    };
    let command = user["exec"]["command"].as_str().map(|command| command.rsplit('/').next().unwrap_or_default());
    match (command, after("--cluster-name")) {
        (Some("aws"), Some(name)) if arguments.contains(&"get-token") => {
            let what = format!("secret {secret}: cluster {cluster} is the EKS cluster {name}");
            (Finding::ok(what), Some(Access::Eks { name, region: after("--region") }))
        }
        (Some(command), _) => (
            Finding::fail(
                format!("secret {secret}: cannot use the user of {cluster}"),
                format!("it runs {command}, which a function does not have"),
                "use a user that `aws eks update-kubeconfig` writes, a token, or a client certificate",
            ),
            None,
        ),
        (None, _) if ["token", "client-certificate-data"].iter().any(|field| user[field].is_string()) => {
            (Finding::ok(format!("secret {secret}: cluster {cluster} has a token or a client certificate")), Some(Access::Other))
        }
        (None, _) => (
            Finding::fail(
                format!("secret {secret}: cannot use the user of {cluster}"),
                "it has neither a token nor a client certificate",
                "put the files into the kubeconfig with kubectl config view --raw --flatten, then run make deploy \
                 KUBECONFIG_FILE=…",
            ),
            None,
        ),
    }
}

/// Checks that the Flux of each cluster has a key that it shares with no other sender.
#[must_use]
pub fn webhook_keys(secret: &str, keys: Result<&BTreeMap<String, Senders>, &String>, clusters: &[String]) -> Vec<Finding> {
    let keys = match keys {
        Ok(keys) => keys,
        Err(why) => {
            let what = format!("secret {secret}: cannot use the keys of the webhook");
            return vec![Finding::fail(what, why.as_str(), "make deploy")];
        }
    };
    let those = |which: &dyn Fn(Option<&Senders>) -> bool| {
        let chosen: Vec<_> = clusters.iter().filter(|name| which(keys.get(*name))).map(String::as_str).collect();
        Some(chosen.join(", ")).filter(|names| !names.is_empty())
    };
    let mut findings = Vec::new();
    findings.push(match those(&|senders| senders.is_none_or(|senders| senders.of_flux().is_empty())) {
        None => Finding::ok(format!("secret {secret}: has a key for each cluster")),
        Some(names) => Finding::fail(
            format!("secret {secret}: no key for {names}"),
            "the webhook refuses notifications of these clusters",
            "run make deploy, which creates one",
        ),
    });
    findings.extend(those(&|senders| matches!(senders, Some(Senders::All(key)) if !key.is_empty())).map(|names| {
        Finding::warn(
            format!("secret {secret}: one key for all senders of {names}"),
            "each sender, such as a git host, can send notifications as Flux",
            "give each sender a key of its own (docs/notifications.md)",
        )
    }));
    findings
}
