//! `RunTask`: its refusals, and client tokens.

use std::{collections::BTreeSet, sync::Arc};

use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    definition::list,
    state::{Fargate, Fault, Order, SESSION, SPOT, State, Task, Ticket, epoch},
    task,
};
use crate::aws::machine::{now, random_hex};

/// The maximum size of a call's overrides in characters, including JSON syntax.
const OVERRIDES: usize = 8192;
/// The maximum time until a client token is forgotten.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// Why no task was started, in the `failures` of an answer with status 200.
const NO_CAPACITY: &str = "Capacity is unavailable at this time. Please try again later or in a different availability zone";
const QUOTA: &str = "You've reached the limit on the number of vCPUs you can run concurrently";

impl Fargate {
    pub(super) fn run(self: &Arc<Self>, input: Value) -> Result<Value, Fault> {
        let cluster = self.cluster(&input)?;
        let definition = self.definition(input["taskDefinition"].as_str().unwrap_or_default())?;
        check(&input, &definition)?;
        let provider = self.provider(&input)?;
        let token = input["clientToken"].as_str().map(ToOwned::to_owned);
        // Held to the end, so that of two calls with one token only one starts a task.
        let mut state = self.state();
        if let Some(answer) = earlier(&state, &input)? {
            return Ok(answer);
        }
        let state_now = &mut *state;
        let count = if provider == Some(SPOT) && state_now.spot_refusals > 0 {
            &mut state_now.spot_refusals
        } else {
            &mut state_now.refusals
        };
        let refused = *count > 0;
        *count = count.saturating_sub(1);
        let reason = if refused { Some(NO_CAPACITY) } else { is_over_quota(state_now, &definition).then_some(QUOTA) };
        let (task, tasks, failures) = if let Some(reason) = reason {
            (None, json!([]), json!([{ "reason": reason }]))
        } else {
            let (arn, task) = self.create(&cluster, &input, &definition, provider)?;
            let wire = task.wire.clone();
            state.tasks.insert(arn.clone(), task);
            self.site.tasks.spawn(task::live(Arc::clone(self), arn.clone(), definition));
            (Some(arn), json!([wire]), json!([]))
        };
        if let Some(token) = token {
            state.tokens.insert(token, Ticket { input, task, failures: failures.clone(), at: now() });
        }
        Ok(json!({ "tasks": tasks, "failures": failures }))
    }

    /// The cluster's capacity provider that a call names.
    fn provider<'a>(&self, input: &'a Value) -> Result<Option<&'a str>, Fault> {
        let [item] = list(&input["capacityProviderStrategy"]) else { return Ok(None) };
        let name = item["capacityProvider"].as_str().unwrap_or_default();
        if !self.site.template.capacity_providers.iter().any(|known| known == name) {
            return Err(Fault::parameter(
                "The specified capacity provider strategy cannot contain a capacity provider that is not associated with the cluster. \
                 Associate the capacity provider with the cluster and try again.",
            ));
        }
        if item["weight"].as_u64().unwrap_or(0) == 0 {
            return Err(Fault::parameter(
                "The specified capacity provider strategy has no capacity provider with a weight above 0.",
            ));
        }
        Ok(Some(name))
    }

    fn create(&self, cluster: &str, input: &Value, definition: &Value, provider: Option<&str>) -> Result<(String, Task), Fault> {
        let broken = |error: anyhow::Error| Fault::new("ServerException", error.to_string());
        let id = random_hex(16).map_err(broken)?;
        let arn = self.task_arn(&id);
        let assumed = |name: &str| {
            let role = input["overrides"][name].as_str().or(definition[name].as_str()).unwrap_or_default();
            let (role, details) = self.site.template.role(role).map_err(|error| Fault::client(error.to_string()))?;
            if self.site.template.trusts(details, "ecs-tasks.amazonaws.com", &arn) {
                return Ok(role);
            }
            let words = format!("ECS was unable to assume the role '{}' that was provided for this task.", details.arn);
            Err(Fault::client(words))
        };
        if definition["executionRoleArn"].is_string() {
            assumed("executionRoleArn")?;
        }
        let role = assumed("taskRoleArn")?;
        let expires = now() + SESSION;
        let credentials = self.site.identities.session(&self.site.template, role, &id, Some(expires)).map_err(broken)?;
        let containers = list(&definition["containerDefinitions"]).iter().map(|container| {
            let container_arn = self.arn(&format!("container/{}/{id}/{}", self.site.template.cluster, container["name"].as_str().unwrap_or_default()));
            json!({
                "containerArn": container_arn, "taskArn": arn, "name": container["name"], "image": container["image"], "lastStatus": "PENDING",
                "networkInterfaces": [], "cpu": "0",
            })
        });
        let mut wire = json!({
            "taskArn": arn, "clusterArn": cluster, "taskDefinitionArn": definition["taskDefinitionArn"],
            "group": format!("family:{}", definition["family"].as_str().unwrap_or_default()), "startedBy": input["startedBy"],
            "lastStatus": "PROVISIONING", "desiredStatus": "RUNNING", "platformVersion": "1.4.0", "platformFamily": "Linux",
            "availabilityZone": format!("{}a", self.site.template.region), "connectivity": "CONNECTED", "createdAt": epoch(now()),
            "cpu": definition["cpu"], "memory": definition["memory"], "overrides": input.get("overrides").cloned().unwrap_or_else(|| json!({})),
            "containers": containers.collect::<Vec<_>>(), "attachments": [], "attributes": [], "version": 1, "tags": input.get("tags").cloned().unwrap_or_else(|| json!([])),
        });
        match provider {
            Some(provider) => wire["capacityProviderName"] = provider.into(),
            None => wire["launchType"] = "FARGATE".into(),
        }
        let secret = random_hex(16).map_err(broken)?;
        Ok((
            arn,
            Task {
                wire,
                definition: definition.to_string(),
                stopped: None,
                forgotten: false,
                order: watch::Sender::new(Order::Run),
                secret,
                role: role.into(),
                credentials: (credentials, expires),
            },
        ))
    }
}

/// The earlier answer to this call, while its token is known: for 24 hours, or one hour after its
/// task stopped.
fn earlier(state: &State, input: &Value) -> Result<Option<Value>, Fault> {
    let now = now();
    let Some(ticket) = input["clientToken"].as_str().and_then(|token| state.tokens.get(token)) else { return Ok(None) };
    let task = ticket.task.as_ref().and_then(|arn| state.tasks.get(arn));
    if now.duration_since(ticket.at) >= TOKEN_LIFE || task.is_some_and(|task| !task.is_known(now)) {
        return Ok(None);
    }
    if ticket.input != *input {
        let message = "The client token was used before, with other parameters.";
        return Err(Fault { resources: ticket.task.clone().into_iter().collect(), ..Fault::new("ConflictException", message) });
    }
    let tasks = task.map(|task| match task.stopped {
        None => task.wire.clone(),
        Some(_) => {
            json!({ "taskArn": ticket.task, "lastStatus": task.wire["lastStatus"], "desiredStatus": task.wire["desiredStatus"] })
        }
    });
    Ok(Some(json!({ "tasks": tasks.into_iter().collect::<Vec<_>>(), "failures": ticket.failures })))
}

/// Returns whether a quota allows no further task of this definition.
fn is_over_quota(state: &State, definition: &Value) -> bool {
    let definition = definition.to_string();
    let live =
        |about: &str| state.tasks.values().filter(|task| task.stopped.is_none() && task.definition.contains(about)).count();
    state.quotas.iter().any(|(about, tasks)| definition.contains(about) && live(about) >= *tasks)
}

/// The rules of `RunTask` that Driftless's calls can break.
fn check(input: &Value, definition: &Value) -> Result<(), Fault> {
    const KNOWN: [&str; 16] = [
        "capacityProviderStrategy",
        "cluster",
        "clientToken",
        "count",
        "enableECSManagedTags",
        "enableExecuteCommand",
        "group",
        "launchType",
        "networkConfiguration",
        "overrides",
        "platformVersion",
        "propagateTags",
        "referenceId",
        "startedBy",
        "tags",
        "taskDefinition",
    ];
    if let Some(other) = input.as_object().and_then(|fields| fields.keys().find(|name| !KNOWN.contains(&name.as_str()))) {
        return Err(Fault::parameter(format!("{other} is no parameter of RunTask on Fargate")));
    }
    let bounded = |name: &str, limit: usize, allowed: &dyn Fn(char) -> bool| {
        input[name].as_str().is_none_or(|text| text.len() <= limit && text.chars().all(allowed))
    };
    if !bounded("clientToken", 64, &|char| char.is_ascii_graphic()) {
        return Err(Fault::parameter("clientToken must be at most 64 printable characters."));
    }
    if !bounded("startedBy", 128, &|char| char.is_ascii_alphanumeric() || "-_/".contains(char)) {
        return Err(Fault::parameter("startedBy must be at most 128 letters, digits, hyphens, underscores and slashes."));
    }
    if input["count"].as_u64().unwrap_or(1) != 1 {
        return Err(Fault::parameter("this world starts one task per call"));
    }
    if (input["launchType"] == "FARGATE") != list(&input["capacityProviderStrategy"]).is_empty() {
        return Err(Fault::parameter("Give the launch type FARGATE or a capacity provider strategy, and not both."));
    }
    if list(&input["capacityProviderStrategy"]).len() > 1 {
        return Err(Fault::parameter("this world takes one capacity provider"));
    }
    if input["propagateTags"] == "SERVICE" {
        return Err(Fault::parameter("SERVICE is not supported for propagateTags in RunTask."));
    }
    check_tags(list(&input["tags"]))?;
    let vpc = &input["networkConfiguration"]["awsvpcConfiguration"];
    if !(1..=16).contains(&list(&vpc["subnets"]).len()) || list(&vpc["securityGroups"]).len() > 5 {
        return Err(Fault::parameter(
            "Network Configuration must be provided when networkMode 'awsvpc' is specified: 1 to 16 subnets, up to 5 security groups.",
        ));
    }
    if !vpc["assignPublicIp"].is_null() && vpc["assignPublicIp"] != "ENABLED" && vpc["assignPublicIp"] != "DISABLED" {
        return Err(Fault::parameter("assignPublicIp must be ENABLED or DISABLED."));
    }
    check_overrides(&input["overrides"], definition)
}

/// ECS's rules for tags.
fn check_tags(tags: &[Value]) -> Result<(), Fault> {
    let text = |tag: &Value, name: &str| tag[name].as_str().unwrap_or_default().to_owned();
    let allowed = |text: &str| text.chars().all(|char| char.is_alphanumeric() || " +-=._:/@".contains(char));
    let keys: BTreeSet<_> = tags.iter().map(|tag| text(tag, "key")).collect();
    let is_valid = |tag: &Value| {
        let (key, value) = (text(tag, "key"), text(tag, "value"));
        (1..=128).contains(&key.chars().count())
            && value.chars().count() <= 256
            && !key.to_lowercase().starts_with("aws:")
            && allowed(&key)
            && allowed(&value)
    };
    if tags.len() > 50 || keys.len() < tags.len() || !tags.iter().all(is_valid) {
        return Err(Fault::parameter(
            "Tags have 50 different keys at most, of 128 characters, and values of 256, all of which are allowed.",
        ));
    }
    Ok(())
}

fn check_overrides(overrides: &Value, definition: &Value) -> Result<(), Fault> {
    const KNOWN: [&str; 6] = ["taskRoleArn", "executionRoleArn", "cpu", "memory", "ephemeralStorage", "containerOverrides"];
    const CONTAINER: [&str; 8] =
        ["name", "command", "environment", "environmentFiles", "cpu", "memory", "memoryReservation", "resourceRequirements"];
    let other = |value: &Value, known: &[&str]| {
        value.as_object().and_then(|fields| fields.keys().find(|name| !known.contains(&name.as_str())).cloned())
    };
    if overrides.is_null() {
        return Ok(());
    }
    if overrides.to_string().chars().count() > OVERRIDES {
        return Err(Fault::parameter(format!("Container Overrides length must be at most {OVERRIDES}")));
    }
    if let Some(other) = other(overrides, &KNOWN) {
        return Err(Fault::parameter(format!("{other} cannot be overridden")));
    }
    for container in list(&overrides["containerOverrides"]) {
        if let Some(other) = other(container, &CONTAINER) {
            return Err(Fault::parameter(format!("{other} of a container cannot be overridden")));
        }
        if !list(&definition["containerDefinitions"]).iter().any(|defined| defined["name"] == container["name"]) {
            let name = container["name"].as_str().unwrap_or_default();
            return Err(Fault::parameter(format!(
                "Override for container named {name} is not a container in the TaskDefinition."
            )));
        }
    }
    Ok(())
}
