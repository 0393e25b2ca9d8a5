use driftless_core::{self as core, PlanHash, run::Hold};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::{
    Artifact, GitAuth, Program, ResourceRef, Source, Stack, StackSpec, UpdateSpec, WorkspaceReclaimPolicy, duration, finalizer,
    names,
};

impl From<&Stack> for core::Stack {
    fn from(stack: &Stack) -> Self {
        Self {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            uid: stack.uid().unwrap_or_default(),
            generation: stack.metadata.generation.unwrap_or_default(),
            deleting: stack.metadata.deletion_timestamp.is_some(),
            finalizer: finalizer::is_on(stack),
            reconcile_request: stack.annotations().get(names::RECONCILIATION_REQUEST).cloned().unwrap_or_default(),
            paths: stack.annotations().get(names::PATHS).cloned(),
            suspended: stack.is_suspended(),
            ttl: ttl(stack).unwrap_or_default(),
            window: window(stack).unwrap_or_default(),
            drift: drift(stack).unwrap_or_default(),
            // A Stack with an invalid annotation is refused, and it stays guarded.
            approval: approval(stack).unwrap_or_else(|_| Some(core::ApprovalSettings::default())),
            answers: answers(stack).unwrap_or_default(),
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
        field || self.annotations().get(names::SUSPEND).is_some_and(|value| value == "true")
    }

    /// Returns the facts that say whether its next run may change what the Stacks that require it read.
    #[must_use]
    pub fn upstream(&self) -> core::Upstream<'_> {
        let status = self.status.as_ref();
        let inputs = status.and_then(|status| status.driftless.as_ref()?.inputs.as_deref());
        core::Upstream {
            deleting: self.metadata.deletion_timestamp.is_some(),
            running: status.is_some_and(|status| status.current_update.is_some()),
            suspended: self.is_suspended(),
            inputs: inputs.filter(|_| !self.annotations().contains_key(names::INPUTS)),
        }
    }

    /// Returns why it starts no run of `update` now.
    #[must_use]
    pub fn hold(&self, update: &UpdateSpec, now: Timestamp) -> Option<Hold> {
        if self.is_suspended() {
            return Some(Hold::Suspended);
        }
        let changes = !update.changes_nothing();
        if changes && self.is_guarded() && !core::Stack::from(self).permits(update.plan().as_ref(), now) {
            return Some(Hold::Unapproved);
        }
        // A Stack with an invalid window is refused, which stops its new runs.
        let is_closed = || window(self).ok().flatten().is_some_and(|window| window.closed_until(now).is_some());
        (changes && is_closed()).then_some(Hold::OutsideWindow)
    }

    /// Returns whether its changes need an approval: it has the annotation, or had it when no policy guarded its removal.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        let plan = self.status.as_ref().and_then(|status| status.driftless.as_ref()?.plan.as_ref());
        self.annotations().contains_key(names::APPROVAL) || plan.and_then(|plan| plan.guarded) == Some(true)
    }

    /// Returns whether it waits for the end of that Update: its current one, its proposal, or its drift check.
    #[must_use]
    pub fn names(&self, update: &str) -> bool {
        let status = self.status.as_ref();
        let current = status.and_then(|status| status.current_update.as_ref()?.name.as_deref());
        let check = status.and_then(|status| status.driftless.as_ref()?.drift.as_ref()?.current_check.as_deref());
        let proposal = status.and_then(|status| status.driftless.as_ref()?.plan.as_ref()?.current_update.as_deref());
        [current, check, proposal].contains(&Some(update))
    }
}

/// The default period of `continueResyncOnCommitMatch`, because each run costs a task.
const DEFAULT_RESYNC_SECONDS: i64 = 600;

fn spec(stack: &Stack) -> core::StackSpec {
    let mut spec = plain(&stack.name_any(), &stack.spec);
    let workspace = super::workspace::templated(stack, &core::workspace(&spec));
    spec.watches_inputs = workspace.spec.reads_inputs();
    spec.old_pulumi = workspace.old_pulumi;
    spec.refused = workspace.refused.or_else(|| super::run::update_refused(stack));
    spec.pod_only = workspace.spec.pod_only(super::workspace::TEMPLATE);
    spec.task_backend = workspace.spec.task_backend(super::workspace::TEMPLATE);
    let words = [
        (names::INPUTS, &[names::IGNORE][..]),
        (names::SEAL, &[names::NEVER]),
        (names::SUSPEND, &["true", "false"]),
        (names::DRIFT_SUSPEND, &["true", "false"]),
        (names::CAPACITY, &[names::SPOT, names::ON_DEMAND]),
        (names::CACHE, &[names::OFF, names::REFRESH]),
    ];
    for (annotation, words) in words {
        if let Some(other) = stack.annotations().get(annotation).filter(|value| !words.contains(&value.as_str())) {
            let words = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
            spec.refused.get_or_insert_with(|| format!("annotation {annotation} is {other:?}; write {words}, or remove it"));
        }
    }
    spec.watches_inputs &= !stack.annotations().contains_key(names::INPUTS);
    spec.refused = spec
        .refused
        .or_else(|| drift(stack).err())
        .or_else(|| window(stack).err())
        .or_else(|| ttl(stack).err())
        .or_else(|| approval(stack).err());
    if spec.refused.is_none() && stack.is_guarded() {
        spec.refused = answers(stack).err().or_else(|| super::run::unplannable(stack));
    }
    spec
}

/// The maintenance window. It is made of annotations, because a change of the spec would start a run.
fn window(stack: &Stack) -> Result<Option<core::Window>, String> {
    let [opens, zone, length] = [names::WINDOW_SCHEDULE, names::WINDOW_TIME_ZONE, names::WINDOW_DURATION]
        .map(|name| stack.annotations().get(name).map(String::as_str));
    let (opens, length) = match (opens, length) {
        (None, None) => return Ok(None),
        (Some(opens), Some(length)) => (opens, length),
        (Some(_), None) => return Err(half(names::WINDOW_SCHEDULE, names::WINDOW_DURATION)),
        (None, Some(_)) => return Err(half(names::WINDOW_DURATION, names::WINDOW_SCHEDULE)),
    };
    core::Window::parse(opens, zone, length).map(Some).map_err(|invalid| match invalid {
        core::InvalidWindow::Opens(why) => format!("annotation {} is {why}", names::WINDOW_SCHEDULE),
        core::InvalidWindow::Length(why) => format!("annotation {} is {why}", names::WINDOW_DURATION),
    })
}

/// The limited life of a Stack.
fn ttl(stack: &Stack) -> Result<Option<core::Ttl>, String> {
    let (Some(text), Some(created)) = (stack.annotations().get(names::TTL), stack.creation_timestamp()) else { return Ok(None) };
    core::Ttl::parse(text, created.0, applied_by(stack)).map(Some).map_err(|why| format!("annotation {} is {why}", names::TTL))
}

/// What applied the Stack from a source, by the marks of Flux and Argo CD.
fn applied_by(stack: &Stack) -> Option<String> {
    let labels = stack.labels();
    let by_flux = [("Kustomization", "kustomize"), ("HelmRelease", "helm")].into_iter().find_map(|(kind, controller)| {
        let label = |part: &str| labels.get(&format!("{controller}.toolkit.fluxcd.io/{part}"));
        Some(format!("{kind} {}/{}", label("namespace")?, label("name")?))
    });
    by_flux.or_else(|| Some(format!("Application of Argo CD {:?}", stack.annotations().get("argocd.argoproj.io/tracking-id")?)))
}

/// The approvals that it asks for. They are annotations, because a change of the spec would start a run.
fn approval(stack: &Stack) -> Result<Option<core::ApprovalSettings>, String> {
    let Some(policy) = stack.annotations().get(names::APPROVAL) else { return Ok(None) };
    let policy = core::ApprovalPolicy::parse(policy).map_err(|why| format!("annotation {} is {why}", names::APPROVAL))?;
    Ok(Some(core::ApprovalSettings { policy, ..answers(stack)? }))
}

/// The settings of plans that only the cluster asks for.
fn answers(stack: &Stack) -> Result<core::ApprovalSettings, String> {
    let word = |name| stack.annotations().get(name).map(String::as_str).filter(|text| !text.is_empty());
    let hash = |name| {
        let Some(text) = word(name) else { return Ok(None) };
        let remedy = "write all 64 digits of status.driftless.plan.hash, or remove it";
        PlanHash::parse(text).map(Some).ok_or_else(|| format!("annotation {name} is {text:?}; {remedy}"))
    };
    let ttl = match stack.annotations().get(names::PLAN_TTL) {
        None => core::ApprovalSettings::default().ttl,
        Some(text) => duration(text).filter(|ttl| ttl.as_secs() > 0).ok_or_else(|| {
            format!("annotation {} is {text:?}; write a duration of a second or more, such as 72h", names::PLAN_TTL)
        })?,
    };
    Ok(core::ApprovalSettings {
        policy: core::ApprovalPolicy::none(),
        approved: hash(names::APPROVE)?,
        approved_by: word(names::APPROVED_BY).map(str::to_owned),
        rejected: hash(names::REJECT)?,
        ttl,
    })
}

fn half(set: &str, absent: &str) -> String {
    format!("annotation {set} is set without {absent}; set both, or remove it")
}

/// The settings of drift checks. They are annotations, because a change of the spec would start a run.
fn drift(stack: &Stack) -> Result<Option<core::DriftSettings>, String> {
    let word = |name| stack.annotations().get(name).map(String::as_str);
    let zone = word(names::DRIFT_TIME_ZONE);
    let Some(text) = word(names::DRIFT_SCHEDULE) else { return Ok(None) };
    let schedule = core::Schedule::parse(text, zone).map_err(|why| format!("annotation {} is {why}", names::DRIFT_SCHEDULE))?;
    if let (core::Schedule::Every(_), Some(zone)) = (&schedule, zone) {
        let remedy = "remove it, or write the schedule as five cron fields";
        return Err(format!("annotation {} is {zone:?}, but an interval has no time zone; {remedy}", names::DRIFT_TIME_ZONE));
    }
    let remediate = word(names::REMEDIATE).map(|word| match word {
        names::ALWAYS => core::Remediate::Always,
        check => core::Remediate::Check(check.to_owned()),
    });
    let ignored = word(names::DRIFT_IGNORE).filter(|text| !text.is_empty()).map(core::Ignored::parse_all).transpose();
    let ignored = ignored.map_err(|why| format!("annotation {} is {why}", names::DRIFT_IGNORE))?.unwrap_or_default();
    let schedule = Some(schedule).filter(|_| word(names::DRIFT_SUSPEND) != Some("true"));
    Ok(Some(core::DriftSettings { schedule, remediate, ignored }))
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
    let seconds = within.and_then(|text| duration(text)).map(|duration| duration.as_secs());
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

/// The state of a source. The last good artifact is used even if its source is not ready, as by Flux's own consumers. The
/// artifact of a deleted object, and one whose required verification is missing, are not used.
impl From<&Source> for core::SourceState {
    fn from(source: &Source) -> Self {
        let unfit = |why: &str| Self::Unfit { why: why.to_owned() };
        if source.metadata.deletion_timestamp.is_some() {
            return unfit("it is being deleted");
        }
        let condition = |type_: &str| source.conditions.iter().find(|condition| condition.type_ == type_);
        let unverified = match condition("SourceVerified") {
            _ if !source.verify => None,
            None => Some("it is not verified yet"),
            Some(condition) if condition.status != "True" => Some(condition.message.as_str()),
            Some(condition) if condition.observed_generation.is_some_and(|seen| Some(seen) != source.metadata.generation) => {
                Some("only an earlier spec was verified")
            }
            Some(_) => None,
        };
        if let Some(why) = unverified {
            return unfit(&format!("spec.verify requires a verified source: {why}"));
        }
        artifact(source.artifact.as_ref()).unwrap_or_else(|| {
            let why = match condition("Ready") {
                _ if source.suspend => "it is suspended; resume it".to_owned(),
                Some(ready) => ready.message.clone(),
                None => String::new(),
            };
            Self::NoArtifact { why }
        })
    }
}

fn artifact(artifact: Option<&Artifact>) -> Option<core::SourceState> {
    let Artifact { revision, digest, .. } = artifact?;
    Some(core::SourceState::Artifact { revision: revision.clone(), digest: digest.clone()?, polled: None })
}
