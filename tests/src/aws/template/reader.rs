//! Reads the supported resources of the template, property by property.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    error::Error,
    resolve::Settings,
    resources::{Alarm, Dashboard, Destination, Function, Mapping, Queue, Resource, Role, Rule, Schedule, Template},
    shapes as raw, watch,
};
use crate::aws::policy::{self, Demand, Statement, Who};

/// The maximum size of a function's environment in bytes, names and values together.
const ENVIRONMENT_BYTES: usize = 4096;

/// Lambda's defaults for asynchronous invocations, which are also its maxima.
const RETRIES: usize = 2;
const EVENT_AGE: Duration = Duration::from_hours(6);

/// The template's resources while they are read.
#[derive(Default)]
pub(super) struct Raw {
    functions: BTreeMap<String, (String, raw::Function)>,
    queues: BTreeMap<String, Queue>,
    bucket: Option<raw::Bucket>,
    mappings: Vec<(String, raw::Mapping)>,
    invoke_configs: Vec<(String, raw::EventInvokeConfig)>,
    permissions: Vec<raw::Permission>,
    urls: Vec<(String, raw::Url)>,
    rules: BTreeMap<String, Rule>,
    schedules: Vec<(String, Schedule, Vec<Destination>)>,
    roles: BTreeMap<String, (Role, Vec<String>)>,
    managed: BTreeMap<String, Vec<Statement>>,
    clusters: Vec<String>,
    capacity_providers: Vec<String>,
    log_groups: Vec<String>,
    alarms: BTreeMap<String, Alarm>,
    dashboards: Vec<Dashboard>,
    queue_policies: Vec<raw::QueuePolicy>,
    bucket_policies: Vec<raw::BucketPolicy>,
    keys: Vec<(String, raw::Key)>,
}

type Resolve<'a> = &'a dyn Fn(&str) -> Result<Value, Error>;

impl Raw {
    /// Adds a resource. `reference` and `attribute` belong to the resource itself.
    pub(super) fn add(
        &mut self,
        id: &str,
        kind: &str,
        properties: Value,
        reference: &dyn Fn() -> Result<Value, Error>,
        attribute: Resolve<'_>,
    ) -> Result<(), Error> {
        let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
        let arn = || attribute("Arn").map(text);
        match kind {
            "AWS::Lambda::Function" => {
                let function = shape(id, properties)?;
                self.functions.insert(id.into(), (arn()?, function));
            }
            "AWS::Lambda::EventSourceMapping" => self.mappings.push((id.into(), shape(id, properties)?)),
            "AWS::Lambda::EventInvokeConfig" => self.invoke_configs.push((id.into(), shape(id, properties)?)),
            "AWS::Lambda::Permission" => self.permissions.push(shape(id, properties)?),
            "AWS::Lambda::Url" => self.urls.push((id.into(), shape(id, properties)?)),
            "AWS::SQS::Queue" => {
                let attributes = attributes(id, &properties)?;
                let (url, arn) = (text(reference()?), arn()?);
                let name = url.rsplit('/').next().unwrap_or_default().into();
                self.queues.insert(id.into(), Queue { name, url, arn, attributes });
            }
            "AWS::S3::Bucket" if self.bucket.is_none() => self.bucket = Some(shape(id, properties)?),
            "AWS::IAM::Role" => {
                let raw::Role { assume_role_policy_document: trust, managed_policy_arns, policies, .. } = shape(id, properties)?;
                let policies = policies.into_iter().flat_map(|policy| policy.policy_document.statement).collect();
                let role = Role { arn: arn()?, id: text(attribute("RoleId")?), policies, trust: trust.statement };
                self.roles.insert(id.into(), (role, managed_policy_arns.unwrap_or_default()));
            }
            "AWS::IAM::ManagedPolicy" => {
                let raw::ManagedPolicy { policy_document } = shape(id, properties)?;
                self.managed.insert(text(reference()?), policy_document.statement);
            }
            "AWS::Events::Rule" => {
                let raw::Rule { event_pattern, schedule_expression, targets } = shape(id, properties)?;
                let arn = arn()?;
                match (event_pattern, schedule_expression) {
                    (Some(pattern), None) => drop(self.rules.insert(id.into(), Rule { arn, pattern, targets })),
                    (None, Some(schedule)) => {
                        self.schedules.push((id.into(), Schedule { rule: arn, every: rate(id, &schedule)? }, targets));
                    }
                    _ => return Err(Error::new(id, "a rule here has either a pattern or a schedule")),
                }
            }
            "AWS::ECS::Cluster" => self.clusters.push(shape::<raw::Cluster>(id, properties)?.cluster_name),
            "AWS::ECS::ClusterCapacityProviderAssociations" => {
                self.capacity_providers = shape::<raw::CapacityProviders>(id, properties)?.capacity_providers;
                if let Some(other) = self.capacity_providers.iter().find(|name| !["FARGATE", "FARGATE_SPOT"].contains(&&***name))
                {
                    return Err(Error::new(id, format!("{other} is no capacity provider of Fargate")));
                }
            }
            "AWS::Logs::LogGroup" => self.log_groups.push(shape::<raw::LogGroup>(id, properties)?.log_group_name),
            "AWS::Logs::AccountPolicy" => drop(shape::<raw::AccountPolicy>(id, properties)?),
            "AWS::CloudWatch::Alarm" => {
                let alarm = watch::alarm(id, shape(id, properties)?)?;
                self.alarms.insert(id.into(), alarm);
            }
            "AWS::CloudWatch::Dashboard" => {
                let raw::Dashboard { dashboard_body, .. } = shape(id, properties)?;
                self.dashboards.push(watch::dashboard(id, &dashboard_body)?);
            }
            "AWS::KMS::Key" => self.keys.push((arn()?, shape(id, properties)?)),
            "AWS::SQS::QueuePolicy" => self.queue_policies.push(shape(id, properties)?),
            "AWS::S3::BucketPolicy" => self.bucket_policies.push(shape(id, properties)?),
            kind => return Err(Error::new(id, format!("{kind} is not known here, or not a second one"))),
        }
        Ok(())
    }

    pub(super) fn finish(
        self,
        folder: &Path,
        settings: &Settings,
        resources: BTreeMap<String, Resource>,
        outputs: BTreeMap<String, String>,
    ) -> Result<Template, Error> {
        let bucket = self.bucket.ok_or_else(|| Error::new("Resources", "there is no bucket"))?;
        let [cluster] = self.clusters.as_slice() else { return Err(Error::new("Resources", "there must be one ECS cluster")) };
        let roles = self.roles.into_iter().map(|(id, (mut role, managed))| {
            for arn in managed {
                let policy =
                    self.managed.get(&arn).ok_or_else(|| Error::new(&id, format!("{arn} is no policy of the template")))?;
                role.policies.extend(policy.iter().cloned());
            }
            Ok((id, role))
        });
        let mut template = Template {
            account: settings.account.clone(),
            region: settings.region.clone(),
            resources,
            functions: BTreeMap::new(),
            queues: self.queues,
            bucket: bucket.bucket_name,
            notifications: bucket.notification_configuration.queue_configurations,
            rules: self.rules,
            roles: roles.collect::<Result<_, Error>>()?,
            cluster: cluster.clone(),
            capacity_providers: self.capacity_providers,
            log_groups: self.log_groups,
            alarms: self.alarms,
            dashboards: self.dashboards,
            outputs,
            resource_policies: BTreeMap::new(),
        };
        for policy in self.bucket_policies {
            template.resource_policies.insert(format!("arn:aws:s3:::{}", policy.bucket), policy.policy_document.statement);
        }
        for (arn, key) in self.keys {
            template.resource_policies.insert(arn, key.key_policy.statement);
        }
        for policy in self.queue_policies {
            for url in &policy.queues {
                let queue = template.queues.values().find(|queue| queue.url == *url);
                let queue = queue.ok_or_else(|| Error::new(url, "a policy names this queue and it does not exist"))?;
                template.resource_policies.insert(queue.arn.clone(), policy.policy_document.statement.clone());
            }
        }
        for (id, (arn, function)) in self.functions {
            let function = self::function(&id, arn, function, folder, &template)?;
            template.functions.insert(id, function);
        }
        for (id, mapping) in self.mappings {
            let function = named(&template, &id, &mapping.function_name)?;
            let mapping = self::mapping(&id, &template.functions[&function], mapping, &template)?;
            template.functions.entry(function).and_modify(|function| function.mappings.push(mapping));
        }
        for (id, config) in self.invoke_configs {
            let function = named(&template, &id, &config.function_name)?;
            let (retries, seconds) = (config.maximum_retry_attempts, config.maximum_event_age_in_seconds);
            let event_age = seconds.map_or(EVENT_AGE, Duration::from_secs);
            let retries = retries.unwrap_or(RETRIES);
            if retries > RETRIES || !(Duration::from_mins(1)..=EVENT_AGE).contains(&event_age) {
                return Err(Error::new(id, "Lambda retries 0 to 2 times, and keeps an event for 60 to 21600 seconds"));
            }
            template
                .functions
                .entry(function)
                .and_modify(|function| (function.retries, function.event_age) = (retries, event_age));
        }
        for (id, schedule, targets) in self.schedules {
            for target in targets {
                let function = named(&template, &id, &target.arn)?;
                let may = |permission: &raw::Permission| {
                    permission.principal == "events.amazonaws.com" && permission.source_arn.as_ref() == Some(&schedule.rule)
                };
                permitted(&template, &self.permissions, &function, "lambda:InvokeFunction", &may)?;
                template.functions.entry(function).and_modify(|function| function.schedules.push(schedule.clone()));
            }
        }
        for (id, url) in self.urls {
            let function = named(&template, &id, &url.target_function_arn)?;
            let anyone = |permission: &raw::Permission| permission.principal == "*" && permission.source_arn.is_none();
            permitted(&template, &self.permissions, &function, "lambda:InvokeFunctionUrl", &|permission| {
                anyone(permission) && permission.function_url_auth_type.is_some()
            })?;
            permitted(&template, &self.permissions, &function, "lambda:InvokeFunction", &|permission| {
                anyone(permission) && permission.invoked_via_function_url == Some(true)
            })?;
            template.functions.entry(function).and_modify(|function| function.has_url = true);
        }
        check_deliveries(&template)?;
        Ok(template)
    }
}

/// The queue's policy must allow the deliveries of S3 and of rules; AWS refuses the former and
/// drops the latter.
fn check_deliveries(template: &Template) -> Result<(), Error> {
    let may_send = |service: &str, source: &str, queue: &str| {
        let demand =
            Demand::new("sqs:SendMessage", queue).with("aws:SourceArn", source).with("aws:SourceAccount", &template.account);
        let allowed = template.queue(queue).map(|_| template.allows_service(service, &demand))?;
        if allowed { Ok(()) } else { Err(Error::new(queue, format!("its policy does not let {service} send for {source}"))) }
    };
    for notification in &template.notifications {
        if template.queue(&notification.queue)?.is_fifo() {
            return Err(Error::new(&notification.queue, "S3 does not notify FIFO queues"));
        }
        may_send("s3.amazonaws.com", &format!("arn:aws:s3:::{}", template.bucket), &notification.queue)?;
    }
    for (rule, target) in template.rules.values().flat_map(|rule| rule.targets.iter().map(move |target| (rule, target))) {
        may_send("events.amazonaws.com", &rule.arn, &target.arn)?;
        if let Some(dead_letters) = &target.dead_letter_config {
            may_send("events.amazonaws.com", &rule.arn, &dead_letters.arn)?;
        }
    }
    for queue in template.queues.values() {
        let redrive = queue.attributes.get("RedrivePolicy").and_then(|policy| serde_json::from_str::<Value>(policy).ok());
        let Some(target) = redrive.as_ref().and_then(|redrive| redrive["deadLetterTargetArn"].as_str()) else { continue };
        if template.queue(target)?.is_fifo() != queue.is_fifo() {
            return Err(Error::new(&queue.name, "a queue and its dead-letter queue must both be FIFO, or neither"));
        }
    }
    Ok(())
}

/// The logical id of the function with that name or ARN.
fn named(template: &Template, place: &str, function: &str) -> Result<String, Error> {
    let mut all = template.functions.iter();
    let found = all.find(|(_, other)| other.name == function || other.arn == function).map(|(id, _)| id.clone());
    found.ok_or_else(|| Error::new(place, format!("no function of the template is {function}")))
}

/// The function's own policy must allow its events and URLs; AWS drops the former and refuses the
/// latter.
fn permitted(
    template: &Template,
    permissions: &[raw::Permission],
    function: &str,
    action: &str,
    may: &dyn Fn(&raw::Permission) -> bool,
) -> Result<(), Error> {
    for permission in permissions {
        if permission.action == action && may(permission) && named(template, function, &permission.function_name)? == function {
            return Ok(());
        }
    }
    Err(Error::new(function, format!("no permission lets in {action} by what invokes it")))
}

fn function(id: &str, arn: String, raw: raw::Function, folder: &Path, template: &Template) -> Result<Function, Error> {
    let environment = raw.environment.variables;
    let bytes: usize = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENVIRONMENT_BYTES {
        return Err(Error::new(id, format!("its environment has {bytes} bytes, more than Lambda's {ENVIRONMENT_BYTES}")));
    }
    if raw.handler != "bootstrap" {
        return Err(Error::new(id, "a custom runtime's handler is its bootstrap"));
    }
    if !template.log_groups.contains(&raw.logging_config.log_group) {
        return Err(Error::new(id, "its log group is none of the template, and Lambda would create one that keeps everything"));
    }
    let timeout = Duration::from_secs(raw.timeout);
    let (role, _) = template.role(&raw.role)?;
    let service = Demand::new("sts:AssumeRole", raw.role.clone());
    if !policy::allows(&template.roles[role].trust, Who::Service("lambda.amazonaws.com"), &service) {
        return Err(Error::new(id, "its role does not trust lambda.amazonaws.com"));
    }
    Ok(Function {
        name: arn.rsplit(':').next().unwrap_or_default().into(),
        arn,
        code: code(folder, &raw.code),
        timeout,
        memory: u32::try_from(raw.memory_size.0).map_err(|error| Error::new(id, error.to_string()))?,
        environment,
        role: role.into(),
        log_group: raw.logging_config.log_group,
        reserved_concurrency: raw.reserved_concurrent_executions.map(|count| count.0),
        has_url: false,
        recursive: matches!(raw.recursive_loop, Some(raw::RecursiveLoop::Allow)),
        mappings: Vec::new(),
        schedules: Vec::new(),
        retries: RETRIES,
        event_age: EVENT_AGE,
    })
}

/// The checks of Lambda when a mapping is created.
fn mapping(id: &str, function: &Function, raw: raw::Mapping, template: &Template) -> Result<Mapping, Error> {
    let queue = template.queue(&raw.event_source_arn)?;
    if queue.visibility() < function.timeout {
        return Err(Error::new(id, format!("messages of {} show again before its time limit is over", queue.name)));
    }
    let batch_size = u8::try_from(raw.batch_size.0).ok().filter(|size| (1..=10).contains(size));
    let concurrency = Some(raw.scaling_config.maximum_concurrency.0).filter(|concurrency| (2..=1000).contains(concurrency));
    let Some((batch_size, concurrency)) = batch_size.zip(concurrency) else {
        return Err(Error::new(id, "a batch has 1 to 10 messages here, and a mapping a concurrency of 2 to 1000"));
    };
    for action in ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"] {
        if !template.allows(&function.role, &Demand::new(action, &queue.arn)) {
            return Err(Error::new(
                id,
                format!("the execution role does not have permission to call {action} on {}", queue.name),
            ));
        }
    }
    Ok(Mapping {
        queue: raw.event_source_arn,
        batch_size,
        partial: raw.function_response_types.is_some_and(|types| !types.is_empty()),
        concurrency,
    })
}

/// Parses a rate such as `rate(1 minute)`.
fn rate(id: &str, text: &str) -> Result<Duration, Error> {
    let inner = text.strip_prefix("rate(").and_then(|text| text.strip_suffix(')'));
    let parts = inner.and_then(|inner| inner.split_once(' ')).and_then(|(count, unit)| Some((count.parse::<u64>().ok()?, unit)));
    let seconds = parts.and_then(|(count, unit)| match (count, unit) {
        (1, "minute") | (2.., "minutes") => Some(count * 60),
        (1, "hour") | (2.., "hours") => Some(count * 3600),
        (1, "day") | (2.., "days") => Some(count * 86400),
        _ => None,
    });
    seconds.map(Duration::from_secs).ok_or_else(|| Error::new(id, format!("{text} is no rate that is known here")))
}

/// A queue's properties as attributes in the form of SQS: scalars as text, the redrive policy as
/// JSON.
fn attributes(id: &str, properties: &Value) -> Result<BTreeMap<String, String>, Error> {
    const KNOWN: [&str; 7] = [
        "FifoQueue",
        "DeduplicationScope",
        "FifoThroughputLimit",
        "VisibilityTimeout",
        "MessageRetentionPeriod",
        "SqsManagedSseEnabled",
        "RedrivePolicy",
    ];
    let properties = properties.as_object().into_iter().flatten().filter(|(name, _)| *name != "QueueName");
    let attributes = properties.map(|(name, value)| {
        if !KNOWN.contains(&name.as_str()) {
            return Err(Error::new(id, format!("{name} is not known here")));
        }
        Ok((name.clone(), value.as_str().map_or_else(|| value.to_string(), Into::into)))
    });
    attributes.collect()
}

pub(super) fn shape<T: DeserializeOwned>(id: &str, properties: Value) -> Result<T, Error> {
    // serde_json's message would quote the value, which can be a secret; the name of the resource
    // and the kind of error are enough.
    serde_json::from_value(properties).map_err(|error| {
        let words = error.to_string();
        let names_a_field = ["unknown field", "missing field", "unknown variant"].iter().any(|start| words.starts_with(start));
        Error::new(id, if names_a_field { words } else { "a property is not of its type".into() })
    })
}

/// The folder with a function's `bootstrap`.
fn code(folder: &Path, uri: &str) -> PathBuf {
    folder.join(uri).components().fold(PathBuf::new(), |mut path, part| {
        if part.as_os_str() == ".." && path.file_name().is_some() {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}
