//! What the runner is told to do, made from the Update's own snapshot and the Secrets and ConfigMaps that it names.

use driftless_api::{
    CONFIG_MAPS_MOUNT, ConfigItem, DriftlessUpdate, EnvFromSource, EnvVar, KeySelector, SECRETS_MOUNT, Update, WorkspaceSpec,
    WorkspaceStack,
};
use driftless_aws::Objects;
use driftless_contract::{
    Config, ConfigValue, Env, Lock, ObjectKey, Operation, PROJECT_FILES, ProjectInfo, RunId, RunSource, RunSpec, SealedInputs,
    VERSION, from_json, keys,
};
use driftless_core::TaskShape;
use driftless_kubernetes::Cluster;
use driftless_source::Manifest;
use kube::ResourceExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Ports, Settings, Stop, compare,
    inputs::{Inputs, Kind},
};

const DEFAULT_BACKEND: &str = "https://api.pulumi.com";

/// A run that could start.
pub(crate) struct Prepared {
    pub(crate) run: RunId,
    pub(crate) spec: RunSpec,
    pub(crate) shape: TaskShape,
    /// `None` for a project without a source.
    pub(crate) tree: Option<StoredTree>,
    /// Where a sealed copy of what it reads is wanted.
    pub(crate) seal: Option<String>,
}

/// A tree in the bucket.
pub(crate) struct StoredTree {
    pub(crate) folder: String,
    pub(crate) manifest: Vec<u8>,
}

/// Reads all that a run needs, or finds what it waits for.
pub(crate) async fn prepare<C: Cluster, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    key: &ObjectKey,
    update: &Update,
) -> Result<Prepared, Stop> {
    let Some(ours) = update.spec.driftless.as_ref() else {
        return Err(Stop::invalid("spec.driftless is missing; an Update that no Stack made is not supported by this release"));
    };
    let workspace = ours.workspace.clone().unwrap_or_default();
    let workspace: WorkspaceSpec =
        serde_json::from_value(workspace).map_err(|error| Stop::invalid(format!("spec.driftless.workspace: {error}")))?;
    let owner = update.stack(&settings.system_namespace);
    let uid = owner.as_ref().map_or_else(String::new, |stack| stack.uid.clone());
    // Where the user wrote it, and where what it names is.
    let at = if owner.is_some() { "spec.workspaceTemplate.spec" } else { "spec.driftless.workspace" };
    let namespace = owner.map_or_else(|| key.namespace.clone(), |stack| stack.namespace);
    let shape = workspace.shape(at).map_err(Stop::invalid)?;
    let word = update.spec.operation.as_deref().unwrap_or_default();
    let Some(operation) = Operation::parse(word) else {
        return Err(Stop::invalid(format!("spec.type is {word:?}; use up, preview, refresh or destroy")));
    };
    let stack_name = update.spec.stack_name.clone().unwrap_or_default();
    let stack = workspace.stacks.iter().find(|stack| stack.name == stack_name).cloned().unwrap_or_default();

    let (source, project, tree) = source(ports, key, &namespace, ours, &workspace).await?;
    let mut inputs = Inputs::new(ports.cluster, &namespace);
    let (env, config) = match read(&mut inputs, &workspace, at, &stack_name).await {
        // Where a namespace goes, its Secrets and the right to read them go first.
        Err(Stop::Wait(reason, words)) if operation == Operation::Destroy => {
            let Some(document) = ports.objects.get(&keys::sealed(&key.cluster, &uid)).await? else {
                return Err(Stop::Wait(reason, words));
            };
            let SealedInputs { env, config, .. } = from_json("sealed inputs", &document)?;
            tracing::info!(update = %update.name_any(), reason, words, "destroying with the sealed inputs of an earlier run");
            (env, config)
        }
        read => read?,
    };

    let values = inputs.values();
    let digest = compare::digest_of(ports.objects, settings, &uid, &values).await?;

    let backend = env.iter().rfind(|env| env.name == "PULUMI_BACKEND_URL").map_or(DEFAULT_BACKEND, |env| &env.value);
    let claim = keys::claim(&namespace, backend, &qualified(&stack_name, &project));
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
        source,
        env,
        config,
        environments: stack.environment.clone(),
        message: update.spec.message.clone(),
        parallel: update.spec.parallel,
        expect_no_changes: update.spec.expect_no_changes.unwrap_or(false),
        refresh: update.spec.refresh.unwrap_or(false),
        expect_no_refresh_changes: ours.expect_no_refresh_changes.unwrap_or(false),
        targets: update.spec.target.clone(),
        target_dependents: update.spec.target_dependents.unwrap_or(false),
        replace: update.spec.replace.clone(),
        continue_on_error: update.spec.continue_on_error.unwrap_or(false),
        remove: update.spec.remove.unwrap_or(false),
        run_program: update.spec.run_program.unwrap_or(false),
        log_level: workspace.pulumi_log_level.and_then(|level| u32::try_from(level).ok()).filter(|level| *level > 0),
        inputs: digest,
        stale_lock: lock,
    };
    let seal = (ours.seal == Some(true) && !values.is_empty()).then(|| keys::sealed(&key.cluster, &uid));
    Ok(Prepared { run, spec, shape, tree, seal })
}

/// Reads what a workspace refers to, for one of its stacks: the environment and the stack's configuration. `at` is where the user wrote it.
pub(crate) async fn read<C: Cluster>(
    inputs: &mut Inputs<'_, C>,
    workspace: &WorkspaceSpec,
    at: &str,
    stack_name: &str,
) -> Result<(Vec<Env>, Vec<Config>), Stop> {
    let (env_from, vars) = workspace.environment(at).map_err(Stop::invalid)?;
    let env = env(inputs, &env_from, &vars).await?;
    let stack = workspace.stacks.iter().find(|stack| stack.name == stack_name).cloned().unwrap_or_default();
    let config = config(inputs, &env, &stack).await?;
    Ok((env, config))
}

/// What the run works on, the name of its project, and the tree if there is one.
async fn source<C, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    key: &ObjectKey,
    namespace: &str,
    ours: &DriftlessUpdate,
    workspace: &WorkspaceSpec,
) -> Result<(RunSource, String, Option<StoredTree>), Stop> {
    let Some(tree) = &ours.tree else {
        let info = workspace.project_info.as_ref().filter(|info| !info.name.is_empty() && !info.runtime.is_empty());
        let Some(info) = info else {
            let message =
                "spec.driftless has no tree, and its workspace no projectInfo with a name and a runtime: there is nothing to run";
            return Err(Stop::invalid(message));
        };
        let project = ProjectInfo { name: info.name.clone(), runtime: info.runtime.clone() };
        return Ok((RunSource::Project(project), info.name.clone(), None));
    };
    let (Some(source), Some(digest)) = (&tree.source, &tree.digest) else {
        return Err(Stop::invalid("spec.driftless.tree names no source or no digest"));
    };
    let object = ObjectKey { namespace: namespace.into(), ..key.sibling(&source.api_version, &source.kind, &source.name) };
    let folder = keys::tree(&object, digest);
    let Some(manifest) = ports.objects.get(&format!("{folder}manifest")).await? else {
        return Err(Stop::wait("TreeNotFound", format!("the tree of {} {:?} is not stored", source.kind, source.name)));
    };
    let dir = tree.dir.clone().unwrap_or_default();
    let project = project_name(ports, &folder, &manifest, &dir).await?;
    let manifest_sha256 = base16ct::lower::encode_string(&Sha256::digest(&manifest));
    let source = RunSource::Tree { dir, paths: tree.paths.clone(), manifest_sha256 };
    Ok((source, project, Some(StoredTree { folder, manifest })))
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

async fn env<C: Cluster>(inputs: &mut Inputs<'_, C>, env_from: &[EnvFromSource], vars: &[EnvVar]) -> Result<Vec<Env>, Stop> {
    let mut env = Vec::new();
    for from in env_from {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (kind, reference) in [(Kind::ConfigMap, &from.config_map_ref), (Kind::Secret, &from.secret_ref)] {
            let Some(reference) = reference else { continue };
            let values = inputs.all(kind, &reference.name, reference.optional.unwrap_or(false)).await?;
            let secret = kind == Kind::Secret;
            env.extend(values.into_iter().map(|(name, value)| Env { name: format!("{prefix}{name}"), value, secret }));
        }
    }
    for var in vars {
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

async fn config<C: Cluster>(inputs: &mut Inputs<'_, C>, env: &[Env], stack: &WorkspaceStack) -> Result<Vec<Config>, Stop> {
    let mut config = Vec::new();
    for item in &stack.config {
        let value = config_value(inputs, env, item).await?;
        let (path, secret) = (item.path.unwrap_or(false), item.secret.unwrap_or(false));
        config.push(Config { key: item.key.clone(), path, value, secret });
    }
    Ok(config)
}

async fn config_value<C: Cluster>(inputs: &mut Inputs<'_, C>, env: &[Env], item: &ConfigItem) -> Result<ConfigValue, Stop> {
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
                "valueFrom.env is {name:?}, which the run's environment does not have; set that variable"
            )));
        };
        (found.value.clone(), format!("environment variable {name:?}"))
    } else {
        let path = from.path.as_deref().unwrap_or_default();
        let Some((kind, name, key)) = object_of(path) else {
            return Err(invalid(&format!("valueFrom.path is {path:?}, which is no key of a Secret or ConfigMap")));
        };
        (inputs.key(kind, name, key, false).await?.unwrap_or_default(), format!("key {key:?} of {kind:?} {name:?}"))
    };
    if !from.json.unwrap_or(false) {
        return Ok(ConfigValue::String(text));
    }
    serde_json::from_str(&text).map(ConfigValue::Json).map_err(|_| invalid(&format!("{of} is not JSON")))
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
    use driftless_api::UpdateSpec;
    use driftless_testkit::{Faults, World};
    use serde_json::json;

    use super::*;

    /// What becomes of an Update with that workspace and no tree.
    fn prepared(workspace: &Value) -> Result<Prepared, (&'static str, String)> {
        let spec = json!({ "type": "destroy", "stackName": "dev", "driftless": { "workspace": workspace } });
        let update = Update::new("u", serde_json::from_value::<UpdateSpec>(spec).unwrap());
        let world = World::new(1, Faults::NONE);
        let ports = Ports { cluster: &world, objects: &world, queues: &world, tasks: &world };
        let names = ["cluster", "auto.pulumi.com/v1alpha1", "Update", "ns", "u"].map(String::from);
        let [cluster, api_version, kind, namespace, name] = names;
        let key = ObjectKey { cluster, api_version, kind, namespace, name };
        let settings = Settings {
            system_namespace: "driftless".into(),
            task_role_id: "AROA".into(),
            default_image: "pulumi".into(),
            fresh_key: vec![7; 32].into(),
        };
        world.drive(prepare(&ports, &settings, &key, &update)).unwrap().map_err(|stop| match stop {
            Stop::Wait(reason, message) => (reason, message),
            Stop::Fail(error) => panic!("{error}"),
        })
    }

    /// The workspace of a project without a source, with `fields` besides.
    fn project(fields: &Value) -> Value {
        driftless_api::merge(json!({ "projectInfo": { "name": "shop", "runtime": "yaml" } }), fields)
    }

    #[test]
    fn a_project_without_a_source_is_run_as_such() {
        let prepared = prepared(&project(&json!({ "pulumiLogLevel": 3, "image": "mine" }))).unwrap();
        assert!(prepared.tree.is_none());
        let info = ProjectInfo { name: "shop".into(), runtime: "yaml".into() };
        assert_eq!(prepared.spec.source, RunSource::Project(info));
        assert_eq!(prepared.run.claim, keys::claim("ns", DEFAULT_BACKEND, "organization/shop/dev"));
        assert_eq!((prepared.spec.log_level, prepared.shape.image.as_deref()), (Some(3), Some("mine")));
    }

    #[test]
    fn a_spec_that_cannot_be_run_is_waited_for_in_words() {
        let config =
            |from: Value| project(&json!({ "stacks": [{ "name": "dev", "config": [{ "key": "k", "valueFrom": from }] }] }));
        for (workspace, words) in [
            (json!({}), "there is nothing to run"),
            (json!({ "projectInfo": { "name": "", "runtime": "yaml" } }), "there is nothing to run"),
            (project(&json!({ "local": {} })), "spec.driftless.workspace.local has no meaning on Fargate"),
            (
                config(json!({ "env": "MISSING" })),
                r#"config key "k": valueFrom.env is "MISSING", which the run's environment does not"#,
            ),
            (config(json!({ "path": "/x" })), r#"config key "k": valueFrom.path is "/x""#),
        ] {
            let (reason, message) = prepared(&workspace).err().unwrap();
            assert!(reason == "SpecInvalid" && message.contains(words), "{reason}: {message}");
        }
    }

    #[test]
    fn configuration_may_be_in_the_runs_environment() {
        let env = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "[2]" }]);
        let item = |key: &str, json: bool| json!({ "key": key, "valueFrom": { "env": "A", "json": json } });
        let stacks = json!([{ "name": "dev", "config": [item("text", false), item("json", true)] }]);
        let mut workspace = project(&json!({ "stacks": stacks }));
        workspace["env"] = env;
        let config = prepared(&workspace).unwrap().spec.config;
        assert!(config[0].value == ConfigValue::String("[2]".into()) && config[1].value == ConfigValue::Json(json!([2])));
    }

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
