//! What the runner is told to do, made from the Update's own snapshot and the Secrets and ConfigMaps that it names.

use driftless_api::{CONFIG_MAPS_MOUNT, ConfigItem, EnvVar, KeySelector, SECRETS_MOUNT, Update, WorkspaceSpec, WorkspaceStack};
use driftless_aws::Objects;
use driftless_contract::{
    Config, ConfigValue, Env, Lock, ObjectKey, Operation, PROJECT_FILES, RunId, RunSpec, VERSION, from_json, keys,
};
use driftless_kubernetes::Cluster;
use driftless_source::Manifest;
use kube::ResourceExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Ports, Stop,
    inputs::{Inputs, Kind},
};

const DEFAULT_BACKEND: &str = "https://api.pulumi.com";

/// A run that could start.
pub(crate) struct Prepared {
    pub(crate) run: RunId,
    pub(crate) spec: RunSpec,
    pub(crate) image: Option<String>,
    /// The folder of the tree.
    pub(crate) tree: String,
    pub(crate) manifest: Vec<u8>,
}

/// Reads all that a run needs, or finds what it waits for.
pub(crate) async fn prepare<C: Cluster, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    key: &ObjectKey,
    update: &Update,
) -> Result<Prepared, Stop> {
    let Some(ours) = update.spec.driftless.as_ref() else {
        return Err(Stop::invalid("spec.driftless is missing; an Update that no Stack made is not supported by this release"));
    };
    let Some((source, digest, tree)) =
        ours.tree.as_ref().and_then(|tree| Some((tree.source.as_ref()?, tree.digest.as_ref()?, tree)))
    else {
        return Err(Stop::invalid("spec.driftless.tree names no source or no digest"));
    };
    let workspace = ours.workspace.clone().unwrap_or_default();
    let workspace: WorkspaceSpec =
        serde_json::from_value(workspace).map_err(|error| Stop::invalid(format!("spec.driftless.workspace: {error}")))?;
    let word = update.spec.operation.as_deref().unwrap_or_default();
    let Some(operation) = Operation::parse(word) else {
        return Err(Stop::invalid(format!("spec.type is {word:?}; use up, preview, refresh or destroy")));
    };
    let stack_name = update.spec.stack_name.clone().unwrap_or_default();
    let stack = workspace.stacks.iter().find(|stack| stack.name == stack_name).cloned().unwrap_or_default();

    let folder = keys::tree(&key.sibling(&source.api_version, &source.kind, &source.name), digest);
    let Some(manifest) = ports.objects.get(&format!("{folder}manifest")).await? else {
        return Err(Stop::wait("TreeNotFound", format!("the tree of {} {:?} is not stored", source.kind, source.name)));
    };
    let dir = tree.dir.clone().unwrap_or_default();
    let mut inputs = Inputs::new(ports.cluster, &key.namespace);
    let env = env(&mut inputs, &workspace).await?;
    let config = config(&mut inputs, &stack).await?;

    let backend = env.iter().rfind(|env| env.name == "PULUMI_BACKEND_URL").map_or(DEFAULT_BACKEND, |env| &env.value);
    let project = project_name(ports, &folder, &manifest, &dir).await?;
    let claim = keys::claim(&key.namespace, backend, &qualified(&stack_name, &project));
    let lock: Option<Lock> =
        ports.objects.get(&keys::lock(&key.cluster, &claim)).await?.map(|document| from_json("lock", &document)).transpose()?;
    let run = RunId { update: key.clone(), uid: update.uid().unwrap_or_default(), claim };
    let spec = RunSpec {
        version: VERSION,
        run: run.clone(),
        operation,
        stack: stack_name,
        create: stack.create.unwrap_or(false),
        secrets_provider: stack.secrets_provider.clone(),
        dir,
        paths: tree.paths.clone(),
        manifest_sha256: base16ct::lower::encode_string(&Sha256::digest(&manifest)),
        env,
        config,
        environments: stack.environment.clone(),
        message: update.spec.message.clone(),
        parallel: update.spec.parallel,
        expect_no_changes: update.spec.expect_no_changes.unwrap_or(false),
        refresh: update.spec.refresh.unwrap_or(false),
        targets: update.spec.target.clone(),
        target_dependents: update.spec.target_dependents.unwrap_or(false),
        replace: update.spec.replace.clone(),
        continue_on_error: update.spec.continue_on_error.unwrap_or(false),
        remove: update.spec.remove.unwrap_or(false),
        run_program: update.spec.run_program.unwrap_or(false),
        stale_lock: lock,
    };
    Ok(Prepared { run, spec, image: workspace.image, tree: folder, manifest })
}

/// A stack's name with its organization and project: `dev`, `shop/dev` and `organization/shop/dev` are one stack.
fn qualified(stack: &str, project: &str) -> String {
    match stack.split('/').collect::<Vec<_>>().as_slice() {
        [stack] => format!("organization/{project}/{stack}"),
        [project, stack] => format!("organization/{project}/{stack}"),
        _ => stack.to_owned(),
    }
}

/// The project's name, from its `Pulumi.yaml`; empty if that cannot be read: the runner will say so.
async fn project_name<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    folder: &str,
    manifest: &[u8],
    dir: &str,
) -> Result<String, Error> {
    #[derive(serde::Deserialize)]
    struct Project {
        name: String,
    }
    let Ok(manifest) = Manifest::parse(manifest) else { return Ok(String::new()) };
    for file in PROJECT_FILES {
        let path = if dir.is_empty() { file.to_owned() } else { format!("{dir}/{file}") };
        let Some(file) = manifest.files.get(&path) else { continue };
        let Some(content) = ports.objects.get_range(&format!("{folder}pack"), file.offset, file.size).await? else { continue };
        if let Ok(project) = serde_saphyr::from_slice::<Project>(&content) {
            return Ok(project.name);
        }
    }
    Ok(String::new())
}

async fn env<C: Cluster>(inputs: &mut Inputs<'_, C>, workspace: &WorkspaceSpec) -> Result<Vec<Env>, Stop> {
    let mut env = Vec::new();
    for from in &workspace.env_from {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (kind, reference) in [(Kind::ConfigMap, &from.config_map_ref), (Kind::Secret, &from.secret_ref)] {
            let Some(reference) = reference else { continue };
            let values = inputs.all(kind, &reference.name, reference.optional.unwrap_or(false)).await?;
            let secret = kind == Kind::Secret;
            env.extend(values.into_iter().map(|(name, value)| Env { name: format!("{prefix}{name}"), value, secret }));
        }
    }
    for var in &workspace.env {
        env.extend(env_var(inputs, var).await?);
    }
    Ok(env)
}

async fn env_var<C: Cluster>(inputs: &mut Inputs<'_, C>, var: &EnvVar) -> Result<Option<Env>, Stop> {
    let make = |value, secret| Env { name: var.name.clone(), value, secret };
    let Some(from) = &var.value_from else { return Ok(Some(make(var.value.clone().unwrap_or_default(), false))) };
    for (kind, reference) in [(Kind::Secret, &from.secret_key_ref), (Kind::ConfigMap, &from.config_map_key_ref)] {
        if let Some(KeySelector { name, key, optional }) = reference {
            let value = inputs.key(kind, name, key, optional.unwrap_or(false)).await?;
            return Ok(value.map(|value| make(value, kind == Kind::Secret)));
        }
    }
    let name = &var.name;
    Err(Stop::invalid(format!(
        "environment variable {name:?} refers to a pod, and there is none; use secretKeyRef or configMapKeyRef"
    )))
}

async fn config<C: Cluster>(inputs: &mut Inputs<'_, C>, stack: &WorkspaceStack) -> Result<Vec<Config>, Stop> {
    let mut config = Vec::new();
    for item in &stack.config {
        let value = config_value(inputs, item).await?;
        let (path, secret) = (item.path.unwrap_or(false), item.secret.unwrap_or(false));
        config.push(Config { key: item.key.clone(), path, value, secret });
    }
    Ok(config)
}

async fn config_value<C: Cluster>(inputs: &mut Inputs<'_, C>, item: &ConfigItem) -> Result<ConfigValue, Stop> {
    let invalid = |what: &str| Stop::invalid(format!("config key {:?}: {what}", item.key));
    let from = match (&item.value, &item.value_from) {
        (Some(Value::String(value)), _) => return Ok(ConfigValue::String(value.clone())),
        (Some(value), _) => return Ok(ConfigValue::Json(value.clone())),
        (None, Some(from)) => from,
        (None, None) => return Err(invalid("it has neither value nor valueFrom")),
    };
    let path = from.path.as_deref().unwrap_or_default();
    let Some((kind, name, key)) = object_of(path) else {
        return Err(invalid(&format!("valueFrom.path is {path:?}, which is no key of a Secret or ConfigMap")));
    };
    let text = inputs.key(kind, name, key, false).await?.unwrap_or_default();
    if !from.json.unwrap_or(false) {
        return Ok(ConfigValue::String(text));
    }
    let value = serde_json::from_str(&text).map_err(|_| invalid(&format!("key {key:?} of {kind:?} {name:?} is not JSON")))?;
    Ok(ConfigValue::Json(value))
}

/// The key of a Secret or ConfigMap that a path of PKO's mounts means.
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

    #[test]
    fn one_stack_has_one_qualified_name_however_it_is_written() {
        for name in ["dev", "shop/dev", "organization/shop/dev"] {
            assert_eq!(qualified(name, "shop"), "organization/shop/dev");
        }
        assert_eq!(qualified("acme/shop/dev", "shop"), "acme/shop/dev");
    }
}
