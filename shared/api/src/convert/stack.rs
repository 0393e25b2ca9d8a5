use driftless_core as core;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::{Artifact, Program, ResourceRef, Source, Stack, StackSpec, names};

impl From<&Stack> for core::Stack {
    fn from(stack: &Stack) -> Self {
        Self {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            uid: stack.uid().unwrap_or_default(),
            generation: stack.metadata.generation.unwrap_or_default(),
            deleting: stack.metadata.deletion_timestamp.is_some(),
            finalizer: stack.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER),
            reconcile_request: stack.annotations().get(names::RECONCILIATION_REQUEST).cloned().unwrap_or_default(),
            spec: (&stack.spec).into(),
            status: stack.status.as_ref().map(Into::into).unwrap_or_default(),
        }
    }
}

impl From<&StackSpec> for core::StackSpec {
    fn from(spec: &StackSpec) -> Self {
        let references = |map: &std::collections::BTreeMap<String, ResourceRef>| {
            map.iter().map(|(key, reference)| (key.clone(), reference.into())).collect()
        };
        Self {
            stack: spec.stack.clone(),
            backend: spec.backend.clone(),
            sources: sources(spec),
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
            use_local_stack_only: spec.use_local_stack_only.unwrap_or_default(),
            continue_resync_on_commit_match: spec.continue_resync_on_commit_match.unwrap_or_default(),
            resync_frequency_seconds: spec.resync_frequency_seconds,
            retry_max_backoff_duration_seconds: spec.retry_max_backoff_duration_seconds,
            prerequisites: spec.prerequisites.iter().map(prerequisite).collect(),
            destroy_on_finalize: spec.destroy_on_finalize.unwrap_or_default(),
            run_program: spec.run_program.unwrap_or_default(),
            service_account_name: spec.service_account_name.clone(),
            unsupported: unsupported(spec),
        }
    }
}

fn sources(spec: &StackSpec) -> Vec<core::SourceRef> {
    let git = spec.project_repo.is_some() || spec.branch.is_some() || spec.commit.is_some() || spec.repo_dir.is_some();
    let flux = spec.flux_source.as_ref().map(|flux| core::SourceRef::Flux {
        api_version: flux.source_ref.api_version.clone(),
        kind: flux.source_ref.kind.clone(),
        name: flux.source_ref.name.clone(),
        dir: flux.dir.clone().unwrap_or_default(),
    });
    let program = spec.program_ref.as_ref().map(|program| core::SourceRef::Program { name: program.name.clone() });
    [git.then_some(core::SourceRef::Git), flux, program].into_iter().flatten().collect()
}

/// What a run would have to heed and cannot yet. A run without it would be another run.
fn unsupported(spec: &StackSpec) -> Vec<&'static str> {
    let set = [
        ("spec.workspaceTemplate", spec.workspace_template.is_some()),
        ("spec.updateTemplate", spec.update_template.is_some()),
        ("spec.serviceAccountName", spec.service_account_name.is_some()),
    ];
    set.into_iter().filter_map(|(field, set)| set.then_some(field)).collect()
}

fn prerequisite(prerequisite: &crate::Prerequisite) -> core::PrerequisiteRef {
    let within = prerequisite.requirement.as_ref().and_then(|requirement| requirement.succeeded_within_duration.as_ref());
    let seconds = within.and_then(|text| text.parse::<kube::core::Duration>().ok()).map(|duration| {
        let duration: std::time::Duration = duration.into();
        i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
    });
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
        artifact(status.and_then(|status| status.artifact.as_ref())).unwrap_or(Self::Outdated { generation })
    }
}

impl From<&Source> for core::SourceState {
    fn from(source: &Source) -> Self {
        artifact(source.artifact.as_ref()).unwrap_or_else(|| {
            let ready = source.conditions.iter().find(|condition| condition.type_ == "Ready");
            Self::NoArtifact { why: ready.map(|condition| condition.message.clone()).unwrap_or_default() }
        })
    }
}

fn artifact(artifact: Option<&Artifact>) -> Option<core::SourceState> {
    let Artifact { revision, digest, .. } = artifact?;
    Some(core::SourceState::Artifact { revision: revision.clone(), digest: digest.clone()? })
}
