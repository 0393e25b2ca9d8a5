use std::collections::{BTreeMap, BTreeSet};

use driftless_core::{
    self as core, ConfigSource, DefaultSize, NewTree, NewUpdate, Operation, OutputKind, PlanHash, Run, SourceRef,
    run::{UpdateFacts, WaitReason},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::status::{cut, set_condition};
use crate::{
    ConfigItem, ConfigValueFrom, DriftlessUpdate, DriftlessUpdateStatus, DriftlessWorkspace, DriftlessWorkspaceStatus,
    EmbeddedMetadata, EnvFromSource, EnvVar, EnvVarSource, FileSource, KeySelector, LogLink, ObjectReference, ObjectSelector,
    ProjectInfo, Stack, StackOutputs, StackReference, Tree, Update, UpdateProgress, UpdateSpec, UpdateStatus, Workspace,
    WorkspaceSpec, WorkspaceStack, duration, finalizer, merge, names, pulumi_version,
};

/// The path at which PKO mounts the Secrets and ConfigMaps of a Stack's configuration into the workspace's pod. There is no pod
/// here, so such a path only identifies the key of an object.
pub const SECRETS_MOUNT: &str = "/var/run/secrets/stacks.pulumi.com/secrets";
/// See [`SECRETS_MOUNT`].
pub const CONFIG_MAPS_MOUNT: &str = "/var/run/configmaps/stacks.pulumi.com/configmaps";

/// A label's value has at most 63 characters.
const MAX_LABEL: usize = 63;

impl Workspace {
    /// The Workspace of a Stack: it has the Stack's name, belongs to it, and merges its template over the values of its other
    /// fields.
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

    /// Sets the condition `Ready`: the ARN of the task definition, or a reason and message. `passes` if a later reconciliation
    /// may differ without a change of the Workspace. Returns `false` if the status is unchanged.
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

/// Returns whether an owner is a Stack.
#[must_use]
pub fn is_stack(owner: &OwnerReference) -> bool {
    owner.kind == "Stack" && owner.api_version.starts_with("pulumi.com/")
}

fn tree(new: &NewTree) -> Tree {
    let (api_version, kind, name) = new.source.object();
    let git = match &new.source {
        SourceRef::Git(git) => Some(git),
        SourceRef::Flux { .. } | SourceRef::Program { .. } => None,
    };
    Tree {
        digest: Some(new.digest.clone()),
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
            || self.mounted_files(TEMPLATE).is_ok_and(|files| {
                let mut sources = files.iter().flat_map(|files| files.sources.iter());
                sources.any(|(_, source)| !matches!(source, FileSource::Token { .. }))
            })
    }
}

impl WorkspaceSpec {
    /// The Secrets and `ConfigMap`s that a run in it reads.
    fn objects(&self) -> BTreeSet<(OutputKind, String)> {
        // Unreadable fields are refused before a run.
        let (from, vars) = self.environment(TEMPLATE).unwrap_or_default();
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
        let files = self.mounted_files(TEMPLATE).unwrap_or_default();
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
    /// Why the template is refused, as a message. The spec is then the one without the template, and is never run.
    pub refused: Option<String>,
    /// See [`core::StackSpec::old_pulumi`].
    pub old_pulumi: Option<String>,
}

/// As in PKO, the template is merged over `env` and the values without a field of the Stack; `envFrom` and the stack are appended
/// to it.
pub(super) fn templated(stack: &Stack, workspace: &core::Workspace) -> Templated {
    let base = WorkspaceSpec {
        env: workspace.env.iter().map(env_var).collect(),
        service_account_name: workspace.service_account_name.clone(),
        ..WorkspaceSpec::default()
    };
    let merged = merged::<WorkspaceSpec>("spec.workspaceTemplate", &base, stack.spec.workspace_template.as_ref());
    let (metadata, spec, mut refused) = match merged {
        Ok((metadata, spec)) => (metadata, spec, None),
        Err(words) => (EmbeddedMetadata::default(), base, Some(words)),
    };
    let template = |field: &str| format!("{TEMPLATE}.{field}");
    if !spec.stacks.is_empty() {
        refused = Some(format!(
            "{} is not supported in a template, because a run has the one Pulumi stack of its Stack; remove \
             it",
            template("stacks")
        ));
    } else if spec.project_info.is_some() {
        refused =
            Some(format!("{} is not supported in a template; remove it, and set a source of the Stack", template("projectInfo")));
    }
    let shape = spec.shape(TEMPLATE, DefaultSize::default());
    let image = shape.as_ref().ok().and_then(|shape| shape.image.as_deref());
    let new_stack = WorkspaceStack {
        config: workspace.config.iter().map(config_item).collect(),
        create: Some(workspace.create),
        environment: workspace.environment.clone(),
        name: workspace.stack.clone(),
        secrets_provider: workspace.secrets_provider.clone(),
    };
    let backend =
        spec.environment(TEMPLATE).ok().and_then(|(_, env)| env.into_iter().rfind(|var| var.name == "PULUMI_BACKEND_URL")?.value);
    // A user can still destroy a stack that an older Pulumi created.
    let secrets_provider = new_stack.secrets_provider.clone().filter(|_| stack.metadata.deletion_timestamp.is_none());
    let checked = WorkspaceStack { secrets_provider, ..new_stack.clone() };
    let old_pulumi = pulumi_version::too_low(&template("image"), image, &checked, backend.as_deref());
    let refused = refused.or(shape.err());
    let mut spec = spec;
    spec.env_from.extend(workspace.env_from.iter().map(env_from));
    spec.project_info = workspace.project.clone().map(|(name, runtime)| ProjectInfo { name, runtime });
    spec.stacks = vec![new_stack];
    Templated { spec, metadata, refused, old_pulumi }
}

/// Why a Stack's `updateTemplate` is refused, as a message.
pub(super) fn update_refused(stack: &Stack) -> Option<String> {
    let field = "spec.updateTemplate";
    let spec = match merged::<UpdateSpec>(field, &UpdateSpec::default(), stack.spec.update_template.as_ref()) {
        Ok((_, spec)) => spec,
        Err(words) => return Some(words),
    };
    if let Some(word) = spec.operation.filter(|word| Operation::parse(word).is_none()) {
        return Some(format!("{field}.spec.type is {word:?}; use up, preview, refresh or destroy"));
    }
    let ttl = spec.ttl_after_completed.filter(|ttl| duration(ttl).is_none());
    ttl.map(|ttl| format!("{field}.spec.ttlAfterCompleted is {ttl:?}; write a duration such as 24h"))
}

/// Why the runs of a guarded Stack cannot have a plan, as a message.
pub(super) fn unplannable(stack: &Stack) -> Option<String> {
    let (_, spec) = update_templated(stack, &UpdateSpec::default());
    let operation = spec.operation.filter(|word| word != Operation::Up.as_str())?;
    let remedy = format!("remove it: a Stack with the annotation {} runs up", names::APPROVAL);
    Some(format!("spec.updateTemplate.spec.type is {operation:?}; {remedy}"))
}

/// A template's metadata, and its spec merged over another.
fn merged<Spec: Serialize + DeserializeOwned + Clone>(
    field: &str,
    base: &Spec,
    template: Option<&Value>,
) -> Result<(EmbeddedMetadata, Spec), String> {
    let Some(template) = template else { return Ok((EmbeddedMetadata::default(), base.clone())) };
    let invalid = |part: &str, error: serde_json::Error| format!("{field}.{part}: {error}");
    let base = serde_json::to_value(base).map_err(|error| invalid("spec", error))?;
    let metadata = template.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let spec = template.get("spec").map_or(base.clone(), |patch| merge(base, patch));
    Ok((
        serde_json::from_value(metadata).map_err(|error| invalid("metadata", error))?,
        serde_json::from_value(spec).map_err(|error| invalid("spec", error))?,
    ))
}

/// Driftless's own entries take precedence.
fn over(mut theirs: BTreeMap<String, String>, ours: BTreeMap<String, String>) -> BTreeMap<String, String> {
    theirs.extend(ours);
    theirs
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

/// The label that selects a Stack's objects. A name that is too long for a label is cut, and its hash appended.
fn labels(stack: &Stack) -> BTreeMap<String, String> {
    let name = stack.name_any();
    let value = match name.get(..MAX_LABEL - 13) {
        Some(cut) if name.len() > MAX_LABEL => format!("{}-{}", cut.trim_end_matches(['.', '-']), &core::hash(&[&name])[..12]),
        _ => name,
    };
    [(names::COMPONENT.to_owned(), names::COMPONENT_STACK.to_owned()), (names::STACK_NAME.to_owned(), value)].into()
}

/// The snapshot for an Update of a Stack.
fn snapshot(stack: &Stack, new: &NewUpdate) -> DriftlessUpdate {
    DriftlessUpdate {
        commit: Some(new.current.commit.clone()),
        reconcile_request: Some(new.current.reconcile_request.clone()),
        stack_generation: Some(new.current.generation),
        tree: new.tree.as_ref().map(tree),
        // The spec of this generation of the Stack, whatever happens to the Workspace later.
        workspace: serde_json::to_value(templated(stack, &new.workspace).spec).ok(),
        ..DriftlessUpdate::default()
    }
}

/// The spec that every Update of a Stack has.
fn update_spec(new: &NewUpdate) -> UpdateSpec {
    UpdateSpec {
        message: Some(new.message.clone()),
        operation: Some(new.operation.as_str().into()),
        stack_name: Some(new.workspace.stack.clone()),
        target: new.targets.clone(),
        ttl_after_completed: Some("24h".into()),
        ..UpdateSpec::default()
    }
}

/// Merges the Stack's template over it. A template that cannot be merged was refused earlier.
fn update_templated(stack: &Stack, spec: &UpdateSpec) -> (EmbeddedMetadata, UpdateSpec) {
    merged("spec.updateTemplate", spec, stack.spec.update_template.as_ref())
        .unwrap_or_else(|_| (EmbeddedMetadata::default(), spec.clone()))
}

/// An Update that a Stack owns.
fn owned(stack: &Stack, new: &NewUpdate, metadata: EmbeddedMetadata, spec: UpdateSpec) -> Update {
    let mut update = Update::new(&new.current.name, spec);
    let asked = stack.annotations().get(names::CAPACITY).map(String::as_str);
    let capacity = if new.on_demand { Some(names::ON_DEMAND) } else { asked };
    let capacity = capacity.map(|capacity| (names::CAPACITY.to_owned(), capacity.to_owned()));
    let annotations = over(metadata.annotations, capacity.into_iter().collect());
    let owner = stack.owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
    update.metadata = ObjectMeta {
        namespace: stack.namespace(),
        labels: Some(over(metadata.labels, labels(stack))),
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        finalizers: Some(vec![names::FINALIZER.to_owned()]),
        owner_references: Some(owner.into_iter().collect()),
        ..update.metadata
    };
    update
}

impl UpdateSpec {
    /// Returns whether the run reads only: a preview or a drift check.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.driftless.as_ref().and_then(|ours| ours.preview_only) == Some(true)
            || self.operation.as_deref() == Some(core::Operation::Preview.as_str())
    }

    /// The approved plan that the run applies.
    #[must_use]
    pub fn plan(&self) -> Option<PlanHash> {
        PlanHash::parse(self.driftless.as_ref()?.plan.as_deref()?)
    }
}

impl Update {
    /// The Update of a Stack that runs `new` with a snapshot of `workspace`.
    #[must_use]
    pub fn of_stack(stack: &Stack, workspace: &Workspace, new: &NewUpdate) -> Self {
        let forward = new.operation != Operation::Destroy;
        let seal = forward && stack.spec.destroy_on_finalize == Some(true) && !stack.annotations().contains_key(names::SEAL);
        let spec = UpdateSpec {
            driftless: Some(DriftlessUpdate {
                expect_no_refresh_changes: new.expect_no_refresh_changes.then_some(true),
                outputs: if new.operation == Operation::Up { stack.outputs().to_vec() } else { Vec::new() },
                seal: seal.then_some(true),
                ..snapshot(stack, new)
            }),
            refresh: forward.then_some(new.refresh),
            run_program: (!forward).then_some(new.run_program),
            target_dependents: forward.then_some(new.target_dependents),
            workspace_name: Some(workspace.name_any()),
            ..update_spec(new)
        };
        let (metadata, mut spec) = update_templated(stack, &spec);
        if !forward || new.plan.is_some() {
            // The template's `type` applies to runs that create something. With it, a destroy would leave the
            // resources in place and be repeated for ever.
            spec.operation = Some(new.operation.as_str().into());
        }
        let mut update = owned(stack, new, metadata, spec);
        if let Some(plan) = &new.plan {
            // Whatever the template says.
            update.spec.driftless.get_or_insert_default().plan = Some(plan.to_string());
            update.annotations_mut().insert(names::PLAN.to_owned(), plan.to_string());
        }
        update.owner_references_mut().splice(0..0, workspace.controller_owner_ref(&()));
        update
    }

    /// The Update of a Stack's proposal: it has the flags of the run that will apply the plan.
    #[must_use]
    pub fn of_proposal(stack: &Stack, new: &NewUpdate) -> Self {
        let mut update = Self::of_stack(stack, &Workspace::new(&stack.name_any(), WorkspaceSpec::default()), new);
        update.spec.operation = Some(Operation::Preview.as_str().into());
        let ours = update.spec.driftless.get_or_insert_default();
        (ours.propose, ours.plan, ours.seal) = (Some(true), None, None);
        ours.outputs = Vec::new();
        update.labels_mut().insert(names::PLAN.to_owned(), String::new());
        update
    }

    /// The Update of a Stack's drift check. Only the metadata of the template applies, because its spec is meant for runs that
    /// change something.
    #[must_use]
    pub fn of_check(stack: &Stack, new: &NewUpdate) -> Self {
        let ours = DriftlessUpdate { preview_only: Some(true), ..snapshot(stack, new) };
        let spec = UpdateSpec { driftless: Some(ours), workspace_name: Some(stack.name_any()), ..update_spec(new) };
        let (metadata, _) = update_templated(stack, &spec);
        let mut update = owned(stack, new, metadata, spec);
        update.labels_mut().insert(names::DRIFT_CHECK.to_owned(), "true".to_owned());
        update
    }

    /// The same in the system namespace, for a Stack in a terminating namespace. Kubernetes has no owners across namespaces.
    #[must_use]
    pub fn of_stack_elsewhere(stack: &Stack, new: &NewUpdate, system_namespace: &str) -> Self {
        let mut update = Self::of_stack(stack, &Workspace::of_stack(stack, new), new);
        let namespace = stack.namespace().unwrap_or_default();
        update.labels_mut().insert(names::STACK_NAMESPACE.to_owned(), namespace.clone());
        update.metadata.namespace = Some(system_namespace.to_owned());
        update.metadata.owner_references = None;
        let reference = StackReference { name: stack.name_any(), namespace, uid: stack.uid().unwrap_or_default() };
        update.spec.driftless.get_or_insert_default().stack = Some(reference);
        update
    }

    /// The Stack that it claims: its owner, or in the system namespace the one in its spec. A user who may write the Update may
    /// write this too, so it counts only after a comparison with the existing Stack.
    #[must_use]
    pub fn stack(&self, system_namespace: &str) -> Option<StackReference> {
        let namespace = self.namespace().unwrap_or_default();
        if namespace == system_namespace {
            return self.spec.driftless.as_ref()?.stack.clone();
        }
        let owner = self.owner_references().iter().find(|owner| is_stack(owner))?;
        Some(StackReference { name: owner.name.clone(), namespace, uid: owner.uid.clone() })
    }

    /// The facts about its run, if it belongs to the Stack with that uid.
    #[must_use]
    pub fn run_of(&self, stack_uid: &str, system_namespace: &str) -> Option<Run> {
        let owned = self.stack(system_namespace).is_some_and(|stack| stack.uid == stack_uid);
        let ours = self.spec.driftless.as_ref().filter(|_| owned)?;
        Some(Run {
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
            generation: ours.stack_generation?,
            reconcile_request: ours.reconcile_request.clone().unwrap_or_default(),
            commit: ours.commit.clone()?,
            operation: Operation::parse(self.spec.operation.as_deref()?)?,
            scope: ours.tree.as_ref().and_then(|tree| tree.scope.clone()),
            refresh: self.spec.refresh == Some(true),
            plan: match &ours.plan {
                Some(text) => Some(PlanHash::parse(text)?),
                None => None,
            },
        })
    }

    /// The reason and the message of its wait; `None` for the reason of another release. This is a view for people, which only
    /// decides what a Stack shows.
    #[must_use]
    pub fn waits_for(&self) -> Option<(Option<WaitReason>, &str)> {
        let ours = self.status.as_ref()?.driftless.as_ref()?;
        Some((ours.waiting_reason.as_deref().and_then(WaitReason::parse), ours.waiting_for.as_deref()?))
    }

    /// Returns whether its status has the outcome.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        conditions.iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
    }

    /// The facts for a decision about it.
    #[must_use]
    pub fn facts(&self, system_namespace: &str, now: Timestamp) -> UpdateFacts {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let complete = conditions.iter().find(|condition| condition.type_ == "Complete" && condition.status == "True");
        let of_stack = self.stack(system_namespace).is_some();
        let finalizer = finalizer::is_on(self);
        let is_ours = |ours: &DriftlessUpdate| if of_stack { ours.stack_generation.is_some() } else { finalizer };
        UpdateFacts {
            age: self.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0)),
            deleting: self.metadata.deletion_timestamp.is_some(),
            finalizer,
            of_stack,
            snapshot: self.spec.driftless.is_some(),
            ours: self.spec.driftless.as_ref().is_some_and(is_ours),
            complete_since: complete.map(|condition| condition.last_transition_time.0),
            ttl: self.spec.ttl_after_completed.as_deref().and_then(duration),
            waiting: self.waits_for().and_then(|(reason, _)| reason),
            asks_for_log: self.asks_for_log(now),
            task: self.status.as_ref().is_some_and(|status| status.driftless.as_ref().is_some_and(|ours| ours.task.is_some())),
        }
    }

    /// Sets the waiting reason. Returns `false` if the status is unchanged.
    pub fn set_waiting(&mut self, reason: WaitReason, message: &str, now: Timestamp) -> bool {
        let reason = reason.as_str();
        self.set(
            [("Progressing", "False", reason), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            message,
            now,
            |status| {
                let ours = status.driftless.get_or_insert_default();
                ours.waiting_for = Some(cut(message.to_owned()));
                ours.waiting_reason = Some(reason.to_owned());
            },
        )
    }

    /// Sets the task, the address of its log, and the link to it. Returns `false` if the status is unchanged.
    pub fn set_running(&mut self, task: &str, log: &str, link: Option<LogLink>, now: Timestamp) -> bool {
        self.set(
            [("Progressing", "True", "Progressing"), ("Failed", "False", "Progressing"), ("Complete", "False", "Progressing")],
            "",
            now,
            |status| {
                status.start_time.get_or_insert(Time(now));
                status.driftless = Some(DriftlessUpdateStatus {
                    log: Some(log.to_owned()),
                    log_link: link,
                    task: Some(task.to_owned()),
                    ..DriftlessUpdateStatus::default()
                });
            },
        )
    }

    /// Sets the progress, and the ConfigMap with the log and the link to it, if there is a new one. Returns `false` if the status
    /// is unchanged, or the Update is not running.
    pub fn set_progress(&mut self, progress: UpdateProgress, log: Option<String>, link: Option<LogLink>) -> bool {
        let Some(ours) = self.status.as_mut().and_then(|status| status.driftless.as_mut()) else { return false };
        let log = log.or_else(|| ours.log_config_map.clone());
        let is_same = (ours.progress.as_ref(), &ours.log_config_map) == (Some(&progress), &log) && link.is_none();
        if ours.task.is_none() || is_same {
            return false;
        }
        ours.log_link = link.or_else(|| ours.log_link.take());
        ours.summary = Some(format!("{}/{}", progress.done, progress.planned));
        ours.progress = Some(progress);
        ours.log_config_map = log;
        true
    }

    /// Sets the outcome. `failure` is the reason and Pulumi's message, if it failed. Returns `false` if the status is unchanged.
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
                    (ours.waiting_for, ours.waiting_reason, ours.progress, ours.summary) = (None, None, None, None);
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
