use driftless_core::{self as core, ConfigSource, NewUpdate, Operation, Run};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};

use super::status::set_condition;
use crate::{
    ConfigItem, ConfigValueFrom, DriftlessUpdate, DriftlessUpdateStatus, EnvFromSource, EnvVar, EnvVarSource, KeySelector,
    ObjectReference, ObjectSelector, Stack, Tree, Update, UpdateSpec, UpdateStatus, Workspace, WorkspaceSpec, WorkspaceStack,
    names,
};

/// Where PKO mounts the Secrets and ConfigMaps of a Stack's configuration into the workspace's pod. There is no pod here: such a path
/// says which key of which object is meant.
pub const SECRETS_MOUNT: &str = "/var/run/secrets/stacks.pulumi.com/secrets";
/// See [`SECRETS_MOUNT`].
pub const CONFIG_MAPS_MOUNT: &str = "/var/run/configmaps/stacks.pulumi.com/configmaps";

/// A label's value has at most 63 characters.
const MAX_LABEL: usize = 63;

impl Workspace {
    /// The Workspace of a Stack: named like it, owned by it.
    #[must_use]
    pub fn of_stack(stack: &Stack, new: &NewUpdate) -> Self {
        let mut workspace = Self::new(&stack.name_any(), (&new.workspace).into());
        workspace.metadata.namespace = stack.namespace();
        workspace.metadata.labels = Some(labels(stack));
        workspace.metadata.owner_references = stack.controller_owner_ref(&()).map(|owner| vec![owner]);
        workspace
    }
}

impl From<&core::Workspace> for WorkspaceSpec {
    fn from(workspace: &core::Workspace) -> Self {
        Self {
            env: workspace.env.iter().map(env_var).collect(),
            env_from: workspace.env_from.iter().map(env_from).collect(),
            service_account_name: workspace.service_account_name.clone(),
            stacks: vec![WorkspaceStack {
                config: workspace.config.iter().map(config_item).collect(),
                create: Some(workspace.create),
                environment: workspace.environment.clone(),
                name: workspace.stack.clone(),
                secrets_provider: workspace.secrets_provider.clone(),
            }],
            ..Self::default()
        }
    }
}

fn env_var(var: &core::EnvVar) -> EnvVar {
    match var {
        core::EnvVar::Value(name, value) => EnvVar { name: name.clone(), value: Some(value.clone()), value_from: None },
        core::EnvVar::Secret(name, reference) => {
            let selector = KeySelector { key: reference.key.clone(), name: reference.name.clone(), optional: None };
            let from = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
            EnvVar { name: name.clone(), value: None, value_from: Some(from) }
        }
    }
}

fn env_from(from: &core::EnvFrom) -> EnvFromSource {
    let reference = |name: &String| Some(ObjectSelector { name: name.clone(), optional: None });
    match from {
        core::EnvFrom::ConfigMap(name) => EnvFromSource { config_map_ref: reference(name), ..EnvFromSource::default() },
        core::EnvFrom::Secret(name) => EnvFromSource { secret_ref: reference(name), ..EnvFromSource::default() },
    }
}

fn config_item(item: &core::ConfigItem) -> ConfigItem {
    let at = |mount: &str, reference: &core::KeyRef, json: bool| {
        let path = Some(format!("{mount}/{}/{}", reference.name, reference.key));
        Some(ConfigValueFrom { env: None, json: json.then_some(true), path })
    };
    let (value, value_from) = match &item.source {
        ConfigSource::Value(value) => (Some(value.clone()), None),
        ConfigSource::ConfigMap(reference, json) => (None, at(CONFIG_MAPS_MOUNT, reference, *json)),
        ConfigSource::Secret(reference) => (None, at(SECRETS_MOUNT, reference, false)),
    };
    ConfigItem { key: item.key.clone(), path: None, secret: item.secret.then_some(true), value, value_from }
}

/// The label that finds what a Stack made. A name that is too long for a label is cut and told apart by its hash.
fn labels(stack: &Stack) -> std::collections::BTreeMap<String, String> {
    let name = stack.name_any();
    let value = match name.get(..MAX_LABEL - 13) {
        Some(cut) if name.len() > MAX_LABEL => format!("{}-{}", cut.trim_end_matches(['.', '-']), &core::hash(&[&name])[..12]),
        _ => name,
    };
    [(names::COMPONENT.to_owned(), names::COMPONENT_STACK.to_owned()), (names::STACK_NAME.to_owned(), value)].into()
}

impl Update {
    /// The Update of a Stack that runs what `new` says in a snapshot of `workspace`.
    #[must_use]
    pub fn of_stack(stack: &Stack, workspace: &Workspace, new: &NewUpdate) -> Self {
        let (api_version, kind, name) = new.source.object();
        let source = ObjectReference { api_version: api_version.into(), kind: kind.into(), name: name.into() };
        let forward = new.operation != Operation::Destroy;
        let spec = UpdateSpec {
            driftless: Some(DriftlessUpdate {
                commit: Some(new.current.commit.clone()),
                reconcile_request: Some(new.current.reconcile_request.clone()),
                stack_generation: Some(new.current.generation),
                tree: Some(Tree {
                    digest: Some(new.digest.clone()),
                    dir: Some(new.source.dir().to_owned()),
                    paths: new.paths.clone(),
                    scope: new.scope.clone(),
                    source: Some(source),
                }),
                // The snapshot that this generation of the Stack asks for, whatever becomes of the Workspace.
                workspace: serde_json::to_value(WorkspaceSpec::from(&new.workspace)).ok(),
            }),
            message: Some(new.message.clone()),
            operation: Some(new.operation.as_str().into()),
            refresh: forward.then_some(new.refresh),
            run_program: (!forward).then_some(new.run_program),
            stack_name: Some(new.workspace.stack.clone()),
            target: new.targets.clone(),
            target_dependents: forward.then_some(new.target_dependents),
            ttl_after_completed: Some("24h".into()),
            workspace_name: Some(workspace.name_any()),
            ..UpdateSpec::default()
        };
        let mut update = Self::new(&new.current.name, spec);
        let stack_owner = stack.owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
        update.metadata = ObjectMeta {
            namespace: stack.namespace(),
            labels: Some(labels(stack)),
            finalizers: Some(vec![names::FINALIZER.to_owned()]),
            owner_references: Some(workspace.controller_owner_ref(&()).into_iter().chain(stack_owner).collect()),
            ..update.metadata
        };
        update
    }

    /// The name of the Stack that owns it.
    #[must_use]
    pub fn stack_name(&self) -> Option<&str> {
        self.owner_references().iter().find(|owner| owner.kind == "Stack").map(|owner| owner.name.as_str())
    }

    /// What it runs, if the Stack with that uid owns it.
    #[must_use]
    pub fn run_of(&self, stack_uid: &str) -> Option<Run> {
        let owned = self.owner_references().iter().any(|owner| owner.kind == "Stack" && owner.uid == stack_uid);
        let ours = self.spec.driftless.as_ref().filter(|_| owned)?;
        Some(Run {
            name: self.name_any(),
            generation: ours.stack_generation?,
            reconcile_request: ours.reconcile_request.clone().unwrap_or_default(),
            commit: ours.commit.clone()?,
            operation: Operation::parse(self.spec.operation.as_deref()?)?,
            scope: ours.tree.as_ref().and_then(|tree| tree.scope.clone()),
        })
    }

    /// Its outcome is on its status.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        conditions.iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
    }

    /// Says what it waits for. `false` if it says so already.
    pub fn set_waiting(&mut self, reason: &str, message: &str, now: Timestamp) -> bool {
        self.set(
            [("Progressing", "False", reason), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            message,
            now,
            |status| {
                status.driftless.get_or_insert_default().waiting_for = Some(message.to_owned());
            },
        )
    }

    /// Says that a task runs it. `false` if it says so already.
    pub fn set_running(&mut self, task: &str, now: Timestamp) -> bool {
        self.set(
            [("Progressing", "True", "Progressing"), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            "",
            now,
            |status| {
                status.start_time.get_or_insert(Time(now));
                status.driftless =
                    Some(DriftlessUpdateStatus { task: Some(task.to_owned()), ..DriftlessUpdateStatus::default() });
            },
        )
    }

    /// Says how it ended. `failure` is the reason and pulumi's words if it failed. `false` if it says so already.
    pub fn set_complete(
        &mut self,
        failure: Option<(&str, &str)>,
        now: Timestamp,
        change: impl FnOnce(&mut UpdateStatus),
    ) -> bool {
        let (failed, reason, message) = match failure {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", "UpdateSucceeded", ""),
        };
        self.set(
            [("Progressing", "False", "Complete"), ("Failed", failed, reason), ("Complete", "True", "Updated")],
            message,
            now,
            |status| {
                if let Some(ours) = &mut status.driftless {
                    ours.waiting_for = None;
                }
                change(status);
            },
        )
    }

    fn set(
        &mut self,
        conditions: [(&str, &str, &str); 3],
        message: &str,
        now: Timestamp,
        change: impl FnOnce(&mut UpdateStatus),
    ) -> bool {
        let before = self.status.clone().unwrap_or_default();
        let generation = self.metadata.generation;
        let mut status = before.clone();
        status.observed_generation = generation;
        status.conditions = conditions
            .into_iter()
            .map(|(type_, is, reason)| {
                let words = if reason == "Progressing" && is == "False" { "" } else { message };
                set_condition((type_, is, reason, words.to_owned()), &before.conditions, generation, now)
            })
            .collect();
        change(&mut status);
        let changed = status != before;
        self.status = Some(status);
        changed
    }
}
