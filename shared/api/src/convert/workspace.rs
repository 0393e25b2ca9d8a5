use std::collections::{BTreeMap, BTreeSet};

use driftless_core::{
    self as core, ConfigSource, EmbeddedMetadata, FileSource, NewTree, NewUpdate, OutputKind, SourceRef, run::WaitReason,
};
use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _, core::ObjectMeta};

use crate::{
    ConfigItem, ConfigValueFrom, DriftlessWorkspace, DriftlessWorkspaceStatus, ObjectReference, ProjectInfo, Stack, StackOutputs,
    Tree, Workspace, WorkspaceSpec, WorkspaceStack, condition::set_condition, names,
};

/// The path at which PKO mounts the Secrets and ConfigMaps of a Stack's configuration into the
/// workspace's pod. There is no pod here, so such a path only identifies the key of an object.
pub const SECRETS_MOUNT: &str = "/var/run/secrets/stacks.pulumi.com/secrets";
/// See [`SECRETS_MOUNT`].
pub const CONFIG_MAPS_MOUNT: &str = "/var/run/configmaps/stacks.pulumi.com/configmaps";

/// A label's value has at most 63 characters.
const MAX_LABEL: usize = 63;

impl Workspace {
    /// The Workspace of a Stack: it has the Stack's name, belongs to it, and merges its template
    /// over the values of its other fields.
    #[must_use]
    pub fn of_stack(stack: &Stack, new: &NewUpdate) -> Self {
        let Templated { spec, metadata, .. } = templated(stack, &new.workspace);
        let driftless = new.tree.as_ref().map(|new| DriftlessWorkspace { tree: Some(tree(new)) });
        let mut workspace = Self::new(&stack.name_any(), WorkspaceSpec { driftless, ..spec });
        workspace.metadata = ObjectMeta {
            namespace: stack.namespace(),
            labels: Some(over(metadata.labels, labels(stack))),
            annotations: Some(metadata.annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: stack.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..workspace.metadata
        };
        workspace
    }

    /// Returns whether its status has to be written: it is not `Ready` for this generation, and it
    /// is not being deleted.
    #[must_use]
    pub fn needs_check(&self) -> bool {
        let is_ready = self.status.as_ref().is_some_and(|status| {
            status.observed_generation == self.metadata.generation
                && status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
        self.metadata.deletion_timestamp.is_none() && !is_ready
    }

    /// Sets the condition `Ready`: the ARN of the task definition, or a reason and message.
    /// `passes` if a later reconciliation may differ without a change of the Workspace. Returns
    /// `false` if the status is unchanged.
    pub fn set_ready(&mut self, ready: Result<&str, (WaitReason, &str)>, passes: bool, now: Timestamp) -> bool {
        let before = self.status.clone().unwrap_or_default();
        let generation = self.metadata.generation;
        let (is_ready, reason, message) = match ready {
            Ok(_) => ("True", "Succeeded", ""),
            Err((reason, message)) => ("False", reason.as_str(), message),
        };
        let ready_condition = ("Ready", is_ready, reason, message.to_owned());
        let stalled = (ready.is_err() && !passes).then(|| ("Stalled", "True", reason, message.to_owned()));
        let mut status = before.clone();
        status.observed_generation = generation;
        status.conditions = [Some(ready_condition), stalled]
            .into_iter()
            .flatten()
            .map(|condition| set_condition(condition, &before.conditions, generation, now))
            .collect();
        let task_definition = ready.ok().map(ToOwned::to_owned);
        status.driftless = task_definition.map(|arn| DriftlessWorkspaceStatus { task_definition: Some(arn) });
        let changed = status != before;
        self.status = Some(status);
        changed
    }
}

pub(super) fn tree(new: &NewTree) -> Tree {
    let (api_version, kind, name) = new.source.object();
    let git = match &new.source {
        SourceRef::Git(git) => Some(git),
        SourceRef::Flux { .. } | SourceRef::Program { .. } => None,
    };
    Tree {
        digest: Some(new.digest.to_string()),
        dir: Some(new.source.dir().to_owned()),
        paths: new.paths.clone(),
        reference: git.map(|git| git.branch.clone()).filter(|branch| !branch.is_empty()),
        repository: git.and_then(|git| core::repository(&git.repo)),
        scope: new.scope.clone(),
        source: Some(ObjectReference { api_version: api_version.into(), kind: kind.into(), name: name.into() }),
    }
}

impl Stack {
    /// The spec of the Workspace for the Stack's next run.
    #[must_use]
    pub fn workspace(&self) -> WorkspaceSpec {
        templated(self, &core::workspace(&core::Stack::from(self).spec)).spec
    }

    /// The objects that receive its outputs.
    #[must_use]
    pub fn outputs(&self) -> &[StackOutputs] {
        self.spec.driftless.as_ref().map_or(&[], |ours| &ours.outputs)
    }

    /// Returns whether a run of it reads one of these objects.
    #[must_use]
    pub fn reads(&self, outputs: &[StackOutputs]) -> bool {
        let read = self.workspace().objects();
        outputs.iter().any(|object| read.contains(&(object.kind, object.name.clone())))
    }
}

impl WorkspaceSpec {
    /// Returns whether a run in it reads a Secret or a `ConfigMap`.
    #[must_use]
    pub fn reads_inputs(&self) -> bool {
        let config = self.stacks.iter().flat_map(|stack| &stack.config);
        !self.env_from.is_empty()
            || self.env.iter().any(|env| env.value_from.is_some())
            || config.filter_map(|item| item.value_from.as_ref()).any(|from| from.path.is_some())
            // Unreadable fields are refused before a run.
            || self.task(TEMPLATE).mounted_files().is_ok_and(|files| {
                let mut sources = files.iter().flat_map(|files| files.sources.iter());
                sources.any(|(_, source)| !matches!(source, FileSource::Token { .. }))
            })
    }

    /// The Secrets and `ConfigMap`s that a run in it reads.
    fn objects(&self) -> BTreeSet<(OutputKind, String)> {
        // Unreadable fields are refused before a run.
        let (from, vars) = self.task(TEMPLATE).environment().unwrap_or_default();
        let from = from.iter().flat_map(|from| {
            let secret = from.secret_ref.as_ref().map(|object| (OutputKind::Secret, object.name.clone()));
            secret.into_iter().chain(from.config_map_ref.as_ref().map(|object| (OutputKind::ConfigMap, object.name.clone())))
        });
        let vars = vars.iter().filter_map(|var| var.value_from.as_ref()).flat_map(|from| {
            let secret = from.secret_key_ref.as_ref().map(|key| (OutputKind::Secret, key.name.clone()));
            secret.into_iter().chain(from.config_map_key_ref.as_ref().map(|key| (OutputKind::ConfigMap, key.name.clone())))
        });
        let config = self.stacks.iter().flat_map(|stack| &stack.config).filter_map(|item| {
            let path = item.value_from.as_ref()?.path.as_deref()?;
            let (kind, rest) = match path.strip_prefix(SECRETS_MOUNT) {
                Some(rest) => (OutputKind::Secret, rest),
                None => (OutputKind::ConfigMap, path.strip_prefix(CONFIG_MAPS_MOUNT)?),
            };
            Some((kind, rest.strip_prefix('/')?.split_once('/')?.0.to_owned()))
        });
        let files = self.task(TEMPLATE).mounted_files().unwrap_or_default();
        let files = files.iter().flat_map(|files| files.sources.iter()).filter_map(|(_, source)| match source {
            FileSource::Secret(object) => Some((OutputKind::Secret, object.name.clone())),
            FileSource::ConfigMap(object) => Some((OutputKind::ConfigMap, object.name.clone())),
            FileSource::Token { .. } => None,
        });
        from.chain(vars).chain(config).chain(files).collect()
    }
}

/// The field of a Stack with its Workspace's spec.
pub(super) const TEMPLATE: &str = "spec.workspaceTemplate.spec";

/// A Workspace's spec with the Stack's template merged over it.
pub(super) struct Templated {
    pub spec: WorkspaceSpec,
    /// Labels and annotations of the template.
    pub metadata: EmbeddedMetadata,
    /// Why the template is refused, as a message. The spec is then the one without the template,
    /// and is never run.
    pub refused: Option<String>,
    /// See [`core::StackSpec::old_pulumi`].
    pub old_pulumi: Option<String>,
}

/// As in PKO, the template is merged over `env` and the values without a field of the Stack;
/// `envFrom` and the stack are appended to it.
pub(super) fn templated(stack: &Stack, workspace: &core::Workspace) -> Templated {
    let base = WorkspaceSpec {
        env: workspace.env.clone(),
        service_account_name: workspace.service_account_name.clone(),
        ..WorkspaceSpec::default()
    };
    let merged = core::merged("spec.workspaceTemplate", &base, stack.spec.workspace_template.as_ref());
    let (metadata, mut spec, refused) = match merged {
        Ok((metadata, spec)) => (metadata, spec, None),
        Err(words) => (EmbeddedMetadata::default(), base, Some(words)),
    };
    let task = spec.task(TEMPLATE);
    let refused = refused.or_else(|| core::workspace_refused(&task, !spec.stacks.is_empty(), spec.project_info.is_some()));
    let old_pulumi = core::old_pulumi(&task, workspace, stack.metadata.deletion_timestamp.is_some());
    spec.env_from.extend(workspace.env_from.iter().cloned());
    spec.project_info = workspace.project.clone().map(|(name, runtime)| ProjectInfo { name, runtime });
    spec.stacks = vec![WorkspaceStack {
        config: workspace.config.iter().map(config_item).collect(),
        create: Some(workspace.create),
        environment: workspace.environment.clone(),
        name: workspace.stack.clone(),
        secrets_provider: workspace.secrets_provider.clone(),
    }];
    Templated { spec, metadata, refused, old_pulumi }
}

/// Driftless's own entries take precedence.
pub(super) fn over(mut theirs: BTreeMap<String, String>, ours: BTreeMap<String, String>) -> BTreeMap<String, String> {
    theirs.extend(ours);
    theirs
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

/// The label that selects a Stack's objects. A name that is too long for a label is cut, and its
/// hash appended.
pub(super) fn labels(stack: &Stack) -> BTreeMap<String, String> {
    let name = stack.name_any();
    let value = match name.get(..MAX_LABEL - 13) {
        Some(cut) if name.len() > MAX_LABEL => format!("{}-{}", cut.trim_end_matches(['.', '-']), &core::hash(&[&name])[..12]),
        _ => name,
    };
    [(names::COMPONENT.to_owned(), names::COMPONENT_STACK.to_owned()), (names::STACK_NAME.to_owned(), value)].into()
}
