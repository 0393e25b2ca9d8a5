//! Task definitions.

use serde_json::{Value, json};

use super::state::{Fargate, Fault, epoch};
use crate::aws::machine::now;

/// The supported fields of a definition; any other is an error, never ignored.
const KNOWN: [&str; 13] = [
    "family",
    "taskRoleArn",
    "executionRoleArn",
    "networkMode",
    "containerDefinitions",
    "volumes",
    "requiresCompatibilities",
    "cpu",
    "memory",
    "tags",
    "ephemeralStorage",
    "runtimePlatform",
    "enableFaultInjection",
];

/// The maximum size of a definition in bytes.
const DEFINITION: usize = 65_536;

impl Fargate {
    /// Creates a new revision at every call, as ECS does.
    pub(super) fn register(&self, mut definition: Value) -> Result<Value, Fault> {
        check(&definition)?;
        let family = definition["family"].as_str().unwrap_or_default().to_owned();
        let mut state = self.state();
        let revisions = state.definitions.entry(family.clone()).or_default();
        let revision = revisions.len() + 1;
        definition["taskDefinitionArn"] = self.arn(&format!("task-definition/{family}:{revision}")).into();
        definition["revision"] = revision.into();
        definition["status"] = "ACTIVE".into();
        definition["compatibilities"] = json!(["EC2", "FARGATE"]);
        definition["registeredAt"] = epoch(now());
        if let Some(fields) = definition.as_object_mut() {
            fields.remove("tags");
        }
        revisions.push(definition.clone());
        Ok(json!({ "taskDefinition": definition, "tags": [] }))
    }

    /// The definition of a family (its newest revision), of `family:revision` or of an ARN.
    pub(super) fn definition(&self, name: &str) -> Result<Value, Fault> {
        let name = name.strip_prefix(&self.arn("task-definition/")).unwrap_or(name);
        let (family, revision) = name.split_once(':').map_or((name, None), |(family, revision)| (family, Some(revision)));
        let state = self.state();
        let revisions = state.definitions.get(family);
        let found = revisions.and_then(|revisions| match revision {
            None => revisions.last(),
            Some(revision) => revisions.get(revision.parse::<usize>().ok()?.checked_sub(1)?),
        });
        found.cloned().ok_or_else(|| Fault::client("TaskDefinition not found."))
    }
}

/// The rules of Fargate that Driftless's definitions can break.
fn check(definition: &Value) -> Result<(), Fault> {
    if let Some(other) = definition.as_object().and_then(|fields| fields.keys().find(|name| !KNOWN.contains(&name.as_str()))) {
        return Err(Fault::client(format!("{other} is not known in this world")));
    }
    if definition.to_string().len() > DEFINITION {
        return Err(Fault::client("Actual length: the task definition exceeds the max length of 65536."));
    }
    let family = definition["family"].as_str().unwrap_or_default();
    if family.is_empty() || family.len() > 255 || !family.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char))
    {
        return Err(Fault::client("Family contains invalid characters."));
    }
    if definition["networkMode"] != "awsvpc" || definition["requiresCompatibilities"] != json!(["FARGATE"]) {
        return Err(Fault::client("Fargate only supports network mode 'awsvpc'."));
    }
    let number = |name: &str| definition[name].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    if !fits(number("cpu"), number("memory")) {
        return Err(Fault::client("No Fargate configuration exists for given values."));
    }
    let disk = &definition["ephemeralStorage"];
    if !disk.is_null() && !disk["sizeInGiB"].as_u64().is_some_and(|gib| (21..=200).contains(&gib)) {
        return Err(Fault::client("Ephemeral storage must be between 21 GiB and 200 GiB."));
    }
    let containers = definition["containerDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.is_empty() || containers.len() > 10 || !containers.iter().any(is_essential) {
        return Err(Fault::client("Task definition must have 1 to 10 containers, at least one of them essential."));
    }
    containers.iter().try_for_each(|container| check_container(definition, containers, container))
}

fn check_container(definition: &Value, containers: &[Value], container: &Value) -> Result<(), Fault> {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() || container["image"].as_str().is_none_or(str::is_empty) {
        return Err(Fault::client("Container.name and Container.image should not be null or empty."));
    }
    let image = container["image"].as_str().unwrap_or_default();
    if image.len() > 255 || !image.chars().all(|char| char.is_ascii_alphanumeric() || "-_:./#@".contains(char)) {
        return Err(Fault::client("Container.image contains invalid characters."));
    }
    if !container["hostname"].is_null() {
        return Err(Fault::client("Hostname is not supported when networkMode is set to 'awsvpc'."));
    }
    if ["stopTimeout", "startTimeout"]
        .iter()
        .any(|timeout| container[timeout].as_i64().is_some_and(|seconds| !(2..=120).contains(&seconds)))
    {
        return Err(Fault::client(format!("{name}: timeouts on Fargate are 2 to 120 seconds.")));
    }
    if !container["logConfiguration"].is_null()
        && (container["logConfiguration"]["logDriver"] != "awslogs" || definition["executionRoleArn"].is_null())
    {
        return Err(Fault::client("Fargate requires task definition to have execution role ARN to support log driver awslogs."));
    }
    for dependency in list(&container["dependsOn"]) {
        let on = containers.iter().find(|other| other["name"] == dependency["containerName"]);
        let on = on.ok_or_else(|| Fault::client(format!("{name} depends on a container that is not there.")))?;
        if ["SUCCESS", "COMPLETE"].iter().any(|condition| dependency["condition"] == *condition) && is_essential(on) {
            return Err(Fault::client("A container with a SUCCESS or COMPLETE dependency on it must not be essential."));
        }
    }
    for mount in list(&container["mountPoints"]) {
        if !list(&definition["volumes"]).iter().any(|volume| volume["name"] == mount["sourceVolume"]) {
            return Err(Fault::client(format!("Unknown volume '{}'.", mount["sourceVolume"].as_str().unwrap_or_default())));
        }
    }
    Ok(())
}

/// Returns whether the container is essential, which is the default.
pub(super) fn is_essential(container: &Value) -> bool {
    container["essential"] != false
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns whether Fargate has this pair of CPU units and MiB.
fn fits(cpu: u32, memory: u32) -> bool {
    let (range, step) = match cpu {
        256 => return [512, 1024, 2048].contains(&memory),
        512 => (1024..=4096, 1024),
        1024 => (2048..=8192, 1024),
        2048 => (4096..=16384, 1024),
        4096 => (8192..=30720, 1024),
        8192 => (16384..=61440, 4096),
        16384 => (32768..=122_880, 8192),
        _ => return false,
    };
    range.contains(&memory) && memory.is_multiple_of(step)
}

/// The container that the runner replaces: the essential one.
pub(super) fn main_container(definition: &Value) -> &Value {
    list(&definition["containerDefinitions"]).iter().find(|container| is_essential(container)).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_go_together_as_fargate_has_them() {
        assert!(fits(256, 512) && fits(512, 1024) && fits(8192, 20480));
        assert!(!fits(256, 4096) && !fits(512, 1536) && !fits(300, 1024) && !fits(16384, 36864));
    }
}
