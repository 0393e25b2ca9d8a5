//! Reads the inputs of a run from Secrets and ConfigMaps: environment, configuration and files.

use driftless_api::{CONFIG_MAPS_MOUNT, ConfigItem, SECRETS_MOUNT, WorkspaceSpec, WorkspaceStack};
use driftless_contract::{Config, ConfigValue, Env, File};
use driftless_core::{EnvFromSource, EnvVar, KeySelector, MountedFiles};
use driftless_kubernetes::Cluster;
use serde_json::Value;

use crate::{
    Stop, files,
    inputs::{Inputs, Kind},
};

/// The inputs of a run from Secrets and ConfigMaps, together with the inline ones.
pub(crate) struct Read {
    pub(crate) env: Vec<Env>,
    pub(crate) config: Vec<Config>,
    pub(crate) files: Vec<File>,
}

/// Reads the references of a workspace, for one of its stacks. `at` is the field in which the user
/// wrote it.
pub(crate) async fn read<C: Cluster>(
    inputs: &mut Inputs<'_, C>,
    workspace: &WorkspaceSpec,
    mounted: &[MountedFiles],
    at: &str,
    stack_name: &str,
) -> Result<Read, Stop> {
    let (env_from, vars) = workspace.task(at).environment().map_err(Stop::invalid)?;
    let env = env(inputs, &env_from, &vars).await?;
    let stack = workspace.stacks.iter().find(|stack| stack.name == stack_name).cloned().unwrap_or_default();
    let files = files::read(inputs, mounted).await?;
    let config = config(inputs, (&env, &files, mounted), &stack).await?;
    Ok(Read { env, config, files })
}

async fn env<C: Cluster>(inputs: &mut Inputs<'_, C>, env_from: &[EnvFromSource], vars: &[EnvVar]) -> Result<Vec<Env>, Stop> {
    let mut env = Vec::new();
    for from in env_from {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (kind, reference) in [(Kind::ConfigMap, &from.config_map_ref), (Kind::Secret, &from.secret_ref)] {
            let Some(reference) = reference else { continue };
            let values = inputs.all(kind, &reference.name, reference.optional.unwrap_or(false)).await?;
            let secret = kind == Kind::Secret;
            let of = |(name, value)| Env { name: format!("{prefix}{name}"), value, secret, below_identity: true };
            env.extend(values.into_iter().map(of));
        }
    }
    for var in vars {
        env.extend(env_var(inputs, var).await?);
    }
    Ok(env)
}

async fn env_var<C: Cluster>(inputs: &mut Inputs<'_, C>, var: &EnvVar) -> Result<Option<Env>, Stop> {
    let make = |value, secret| Env { name: var.name.clone(), value, secret, below_identity: false };
    let Some(from) = &var.value_from else { return Ok(Some(make(var.value.clone().unwrap_or_default(), false))) };
    for (kind, reference) in [(Kind::Secret, &from.secret_key_ref), (Kind::ConfigMap, &from.config_map_key_ref)] {
        if let Some(KeySelector { name, key, optional }) = reference {
            let value = inputs.key(kind, name, key, optional.unwrap_or(false)).await?;
            return Ok(value.map(|value| make(value, kind == Kind::Secret)));
        }
    }
    let name = &var.name;
    Err(Stop::invalid(format!(
        "environment variable {name:?} refers to a field of a pod, which a run does not have; use secretKeyRef or configMapKeyRef"
    )))
}

/// Other sources of a configuration value: the variables and files of the run, and the volumes with
/// its tokens.
type Others<'a> = (&'a [Env], &'a [File], &'a [MountedFiles]);

async fn config<C: Cluster>(inputs: &mut Inputs<'_, C>, others: Others<'_>, stack: &WorkspaceStack) -> Result<Vec<Config>, Stop> {
    let mut config = Vec::new();
    for item in &stack.config {
        let value = config_value(inputs, others, item).await?;
        let (path, secret) = (item.path.unwrap_or(false), item.secret.unwrap_or(false));
        config.push(Config { key: item.key.clone(), path, value, secret });
    }
    Ok(config)
}

async fn config_value<C: Cluster>(
    inputs: &mut Inputs<'_, C>,
    (env, files, mounted): Others<'_>,
    item: &ConfigItem,
) -> Result<ConfigValue, Stop> {
    let invalid = |what: &str| Stop::invalid(format!("config key {:?}: {what}", item.key));
    let from = match (&item.value, &item.value_from) {
        (Some(Value::String(value)), _) => return Ok(ConfigValue::String(value.clone())),
        (Some(value), _) => return Ok(ConfigValue::Json(value.clone())),
        (None, Some(from)) => from,
        (None, None) => return Err(invalid("it has neither value nor valueFrom")),
    };
    let (text, of) = if let Some(name) = &from.env {
        let Some(found) = env.iter().rfind(|env| env.name == *name) else {
            return Err(invalid(&format!(
                "valueFrom.env is {name:?}, which is not set in the environment of the run; set that variable"
            )));
        };
        (found.value.clone(), format!("environment variable {name:?}"))
    } else {
        let path = from.path.as_deref().unwrap_or_default();
        if let Some(File { content, .. }) = files.iter().find(|file| file.path == path) {
            let text = String::from_utf8(content.clone());
            (text.map_err(|_| invalid(&format!("the file {path:?} is not UTF-8 text")))?, format!("file {path:?}"))
        } else if files::is_token(mounted, path) {
            if from.json.unwrap_or(false) {
                return Err(invalid(&format!("valueFrom.json is true, but {path:?} is a token, which is not JSON; remove json")));
            }
            return Ok(ConfigValue::Token(path.into()));
        } else if let Some((kind, name, key)) = object_of(path) {
            (inputs.key(kind, name, key, false).await?.unwrap_or_default(), format!("key {key:?} of {kind:?} {name:?}"))
        } else {
            return Err(invalid(&format!(
                "valueFrom.path is {path:?}, which is neither a file of a volume nor a key of a Secret or ConfigMap"
            )));
        }
    };
    if !from.json.unwrap_or(false) {
        return Ok(ConfigValue::String(text));
    }
    serde_json::from_str(&text).map(ConfigValue::Json).map_err(|_| invalid(&format!("{of} is not JSON")))
}

/// The key of a Secret or ConfigMap that a path of PKO's mounts refers to.
fn object_of(path: &str) -> Option<(Kind, &str, &str)> {
    let (kind, rest) = match path.strip_prefix(SECRETS_MOUNT) {
        Some(rest) => (Kind::Secret, rest),
        None => (Kind::ConfigMap, path.strip_prefix(CONFIG_MAPS_MOUNT)?),
    };
    let (name, key) = rest.strip_prefix('/')?.split_once('/')?;
    (!name.is_empty() && !key.is_empty() && !key.contains('/')).then_some((kind, name, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_path_means_a_key_of_an_object() {
        assert_eq!(object_of(&format!("{SECRETS_MOUNT}/db/password")), Some((Kind::Secret, "db", "password")));
        assert_eq!(object_of(&format!("{CONFIG_MAPS_MOUNT}/net/cidr")), Some((Kind::ConfigMap, "net", "cidr")));
        for path in [
            "",
            "/etc/passwd",
            SECRETS_MOUNT,
            &format!("{SECRETS_MOUNT}/db"),
            &format!("{SECRETS_MOUNT}/db/../x"),
            &format!("{SECRETS_MOUNT}//k"),
        ] {
            assert_eq!(object_of(path), None, "{path}");
        }
    }
}
