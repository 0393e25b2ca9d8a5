use driftless_core as core;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::{
    Artifact, GitAuth, Program, ResourceRef, Source, Stack, StackPlan, StackSpec, WorkspaceReclaimPolicy, finalizer, names,
    uid_of,
};

impl From<&Stack> for core::Stack {
    fn from(stack: &Stack) -> Self {
        let annotations = core::Annotations(stack.annotations());
        Self {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            uid: uid_of(stack),
            generation: stack.metadata.generation.unwrap_or_default(),
            deleting: stack.metadata.deletion_timestamp.is_some(),
            finalizer: finalizer::is_on(stack),
            reconcile_request: stack.annotations().get(names::RECONCILIATION_REQUEST).cloned().unwrap_or_default(),
            paths: stack.annotations().get(names::PATHS).cloned(),
            change_request: annotations.change_request(),
            pull_request_of: annotations.pull_request_of().map(str::to_owned),
            pull_requests: annotations.pull_requests().map(str::to_owned),
            suspended: stack.is_suspended(),
            ttl: annotations.ttl(stack.labels(), created(stack)).unwrap_or_default(),
            window: annotations.window().unwrap_or_default(),
            drift: annotations.drift().unwrap_or_default(),
            // A Stack with an invalid annotation is refused, and it stays guarded.
            approval: annotations.approval().unwrap_or_else(|_| Some(core::ApprovalSettings::default())),
            answers: annotations.answers().unwrap_or_default(),
            spec: spec(stack),
            status: stack.status.as_ref().map(Into::into).unwrap_or_default(),
        }
    }
}

impl Stack {
    /// Returns whether its annotation or its spec forbids new runs.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        let field = self.spec.driftless.as_ref().and_then(|ours| ours.suspend).unwrap_or(false);
        field || core::Annotations(self.annotations()).suspend()
    }

    /// The sources that its spec names. Validation refuses any number other than one.
    #[must_use]
    pub fn sources(&self) -> Vec<core::SourceRef> {
        sources(&self.name_any(), &self.spec)
    }

    /// Returns the facts that say whether its next run may change what the Stacks that require it
    /// read.
    #[must_use]
    pub fn upstream(&self) -> core::Upstream<'_> {
        let status = self.status.as_ref();
        let inputs = status.and_then(|status| status.driftless.as_ref()?.inputs.as_deref());
        core::Upstream {
            deleting: self.metadata.deletion_timestamp.is_some(),
            running: status.is_some_and(|status| status.current_update.is_some()),
            suspended: self.is_suspended(),
            inputs: inputs.filter(|_| !core::Annotations(self.annotations()).ignore_inputs()),
        }
    }

    /// The digest of what its last plan read from Secrets and `ConfigMap`s, or its last run if no
    /// plan is newer.
    #[must_use]
    pub fn read_inputs(&self) -> Option<&str> {
        let ours = self.status.as_ref()?.driftless.as_ref()?;
        let is_newer = |plan: &&StackPlan| plan.state.as_deref() != Some(core::PlanState::Applied.as_str());
        ours.plan.as_ref().filter(is_newer).and_then(|plan| plan.inputs.as_deref()).or(ours.inputs.as_deref())
    }

    /// Returns whether its changes need an approval: it has the annotation, or had it when no
    /// policy guarded its removal.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        let plan = self.status.as_ref().and_then(|status| status.driftless.as_ref()?.plan.as_ref());
        self.annotations().contains_key(names::APPROVAL) || plan.and_then(|plan| plan.guarded) == Some(true)
    }

    /// Returns whether it waits for the end of that Update: its current one, its proposal, or its
    /// drift check.
    #[must_use]
    pub fn names(&self, update: &str) -> bool {
        let status = self.status.as_ref();
        let current = status.and_then(|status| status.current_update.as_ref()?.name.as_deref());
        let check = status.and_then(|status| status.driftless.as_ref()?.drift.as_ref()?.current_check.as_deref());
        let proposal = status.and_then(|status| status.driftless.as_ref()?.plan.as_ref()?.current_update.as_deref());
        [current, check, proposal].contains(&Some(update))
    }
}

fn created(stack: &Stack) -> Option<Timestamp> {
    stack.creation_timestamp().map(|Time(at)| at)
}

/// The default period of `continueResyncOnCommitMatch`, because each run costs a task.
const DEFAULT_RESYNC_SECONDS: i64 = 600;

fn spec(stack: &Stack) -> core::StackSpec {
    let mut spec = plain(&stack.name_any(), &stack.spec);
    let workspace = super::workspace::templated(stack, &core::workspace(&spec));
    spec.watches_inputs = workspace.spec.reads_inputs();
    spec.old_pulumi = workspace.old_pulumi;
    (spec.refresh, spec.retyped) = super::run::forward(stack);
    spec.service_account_name.clone_from(&workspace.spec.service_account_name);
    spec.refused = workspace.refused.or_else(|| super::run::update_refused(stack));
    let task = workspace.spec.task(super::workspace::TEMPLATE);
    spec.pod_only = task.pod_only();
    spec.task_backend = task.task_backend();
    let annotations = core::Annotations(stack.annotations());
    spec.watches_inputs &= !annotations.ignore_inputs();
    spec.refused = spec.refused.or_else(|| annotations.refused(stack.labels(), created(stack)));
    if spec.refused.is_none() && stack.is_guarded() {
        spec.refused = annotations.answers().err().or_else(|| super::run::unplannable(stack));
    }
    spec
}

/// The spec without the values from its templates.
fn plain(name: &str, spec: &StackSpec) -> core::StackSpec {
    let references = |map: &std::collections::BTreeMap<String, ResourceRef>| {
        map.iter().map(|(key, reference)| (key.clone(), reference.into())).collect()
    };
    core::StackSpec {
        stack: spec.stack.clone(),
        backend: spec.backend.clone(),
        sources: sources(name, spec),
        config: match &spec.config {
            Some(Value::Object(config)) => config.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            _ => std::collections::BTreeMap::new(),
        },
        config_ref: spec
            .config_ref
            .iter()
            .map(|(key, map)| {
                let reference =
                    core::ConfigMapRef { name: map.name.clone(), key: map.key.clone(), json: map.json.unwrap_or_default() };
                (key.clone(), reference)
            })
            .collect(),
        secrets: spec.secrets.clone(),
        secrets_ref: references(&spec.secrets_ref),
        env_refs: references(&spec.env_refs),
        envs: spec.envs.clone(),
        env_secrets: spec.env_secrets.clone(),
        access_token_secret: spec.access_token_secret.clone(),
        secrets_provider: spec.secrets_provider.clone(),
        environment: spec.environment.clone(),
        targets: spec.targets.clone(),
        target_dependents: spec.target_dependents.unwrap_or_default(),
        refresh: spec.refresh.unwrap_or_default(),
        preview: spec.preview.unwrap_or_default(),
        retyped: false,
        use_local_stack_only: spec.use_local_stack_only.unwrap_or_default(),
        continue_resync_on_commit_match: spec.continue_resync_on_commit_match.unwrap_or_default(),
        resync_frequency_seconds: spec.resync_frequency_seconds,
        default_resync_seconds: DEFAULT_RESYNC_SECONDS,
        min_resync_seconds: 0,
        retry_max_backoff_duration_seconds: spec.retry_max_backoff_duration_seconds,
        retries: spec.driftless.as_ref().and_then(|ours| ours.retries.as_ref()).map(|retries| core::Retries {
            limit: retries.limit.into(),
            first_backoff_seconds: retries.first_backoff_seconds.map(i64::from),
        }),
        prerequisites: spec.prerequisites.iter().map(prerequisite).collect(),
        destroy_on_finalize: spec.destroy_on_finalize.unwrap_or_default(),
        run_program: spec.run_program.unwrap_or_default(),
        expect_no_refresh_changes: spec.expect_no_refresh_changes.unwrap_or_default(),
        retry_on_update_conflict: spec.retry_on_update_conflict.unwrap_or_default(),
        reclaim_workspace: spec.workspace_reclaim_policy == Some(WorkspaceReclaimPolicy::Delete),
        service_account_name: spec.service_account_name.clone(),
        watches_inputs: false,
        refused: None,
        old_pulumi: None,
        pod_only: Vec::new(),
        task_backend: None,
    }
}

fn sources(name: &str, spec: &StackSpec) -> Vec<core::SourceRef> {
    let flux = spec.flux_source.as_ref().map(|flux| core::SourceRef::Flux {
        api_version: flux.source_ref.api_version.clone(),
        kind: flux.source_ref.kind.clone(),
        name: flux.source_ref.name.clone(),
        dir: flux.dir.clone().unwrap_or_default(),
    });
    let program = spec.program_ref.as_ref().map(|program| core::SourceRef::Program { name: program.name.clone() });
    [git(name, spec), flux, program].into_iter().flatten().collect()
}

fn git(name: &str, spec: &StackSpec) -> Option<core::SourceRef> {
    let StackSpec { project_repo, branch, commit, repo_dir, git_auth, git_auth_secret, shallow, .. } = spec;
    if [project_repo, branch, commit, repo_dir].into_iter().all(Option::is_none) {
        return None;
    }
    let forms = |auth: &GitAuth| {
        let GitAuth { access_token, basic_auth, github_app, ssh_auth } = auth;
        [access_token.is_some(), basic_auth.is_some(), github_app.is_some(), ssh_auth.is_some()]
            .into_iter()
            .filter(|set| *set)
            .count()
    };
    // The directory is included, because submodules are refused within it.
    let fields = serde_json::json!([project_repo, branch, commit, repo_dir, git_auth, git_auth_secret, shallow]);
    Some(core::SourceRef::Git(core::GitSource {
        stack: name.to_owned(),
        repo: project_repo.clone().unwrap_or_default(),
        branch: branch.clone().unwrap_or_default(),
        commit: commit.clone().unwrap_or_default(),
        dir: repo_dir.clone().unwrap_or_default(),
        auth_forms: git_auth.as_ref().filter(|_| git_auth_secret.is_none()).map(forms),
        fingerprint: core::hash(&[&fields.to_string()]),
    }))
}

fn prerequisite(prerequisite: &crate::Prerequisite) -> core::PrerequisiteRef {
    let within = prerequisite.requirement.as_ref().and_then(|requirement| requirement.succeeded_within_duration.as_ref());
    let seconds = within.and_then(|text| core::duration(text)).map(|duration| duration.as_secs());
    core::PrerequisiteRef { name: prerequisite.name.clone(), succeeded_within_seconds: seconds }
}

impl From<&ResourceRef> for core::ResourceRef {
    fn from(reference: &ResourceRef) -> Self {
        Self {
            selector: reference.selector.clone(),
            secret: reference.secret.as_ref().map(|secret| (secret.namespace.clone(), secret.name.clone(), secret.key.clone())),
            literal: reference.literal.as_ref().map(|literal| literal.value.clone()),
        }
    }
}

impl From<&Program> for core::SourceState {
    fn from(program: &Program) -> Self {
        let generation = program.metadata.generation.unwrap_or_default();
        let status = program.status.as_ref().filter(|status| status.observed_generation == Some(generation));
        artifact(status.and_then(|status| status.artifact.as_ref()))
            .unwrap_or_else(|| Self::Unknown { subject: format!("generation {generation}") })
    }
}

impl From<&Source> for core::SourceState {
    fn from(source: &Source) -> Self {
        let condition = |type_: &str| source.conditions.iter().find(|condition| condition.type_ == type_);
        let verified = condition("SourceVerified").map(|condition| core::Verification {
            is_true: condition.status == "True",
            message: &condition.message,
            is_current: condition.observed_generation.is_none_or(|seen| Some(seen) == source.metadata.generation),
        });
        Self::of_flux(core::FluxSource {
            deleting: source.metadata.deletion_timestamp.is_some(),
            suspend: source.suspend,
            verify: source.verify,
            verified,
            ready: condition("Ready").map(|condition| condition.message.as_str()),
            artifact: artifact(source.artifact.as_ref()),
        })
    }
}

fn artifact(artifact: Option<&Artifact>) -> Option<core::SourceState> {
    let Artifact { revision, digest, .. } = artifact?;
    Some(core::SourceState::Artifact { revision: revision.into(), digest: digest.as_ref()?.into(), polled: None })
}
