//! Reads the facts that a decision about a Stack is made from, each where it lives.

use std::collections::{BTreeMap, VecDeque};

use driftless_api::{Program, Source, Stack, Update};
use driftless_aws::{Objects, Queues};
use driftless_contract::{
    FetchOutcome, FetchedArtifact, ObjectKey, Outcome, PROJECT_FILES, Verdict,
    keys::{self, TreeFolder},
    reason,
};
use driftless_core::{
    FetchFailure, GitSource, Inputs, MAX_PREREQUISITES, Prerequisite, Project, Readiness, RunOutcome, RunState, Snapshot,
    SourceRef, SourceState, Stack as CoreStack, Sync, TreeState, has_unmet, hash, invalid_digest, is_synced, observe, paths,
};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_source::{Digest, Manifest};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Error, Ports};

/// Nothing is known of a tree.
const ABSENT: TreeState = TreeState::Absent { failure: None };
/// As many Stacks are looked through for a cycle of prerequisites. One that is larger waits without being told why.
const LOOKED_THROUGH: usize = 200;

/// Everything that is true of a Stack as far as a decision needs it.
pub async fn snapshot<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &Stack,
    now: Timestamp,
) -> Result<Snapshot, Error> {
    Ok(load(ports, cluster, stack, now).await?.0)
}

/// The same with the Updates of the Stack that were read for it.
pub(crate) async fn load<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &Stack,
    now: Timestamp,
) -> Result<(Snapshot, Vec<Update>), Error> {
    let mut core = CoreStack::from(stack);
    core.spec.default_resync_seconds = ports.settings.resync_seconds;
    core.spec.min_resync_seconds = ports.settings.min_resync_seconds;
    core.spec.refused = core.spec.refused.or_else(|| ports.settings.pod_fields.check(&core.spec.pod_only).err());
    let here = ObjectKey {
        cluster: cluster.to_owned(),
        api_version: String::new(),
        kind: String::new(),
        namespace: core.namespace.clone(),
        name: String::new(),
    };
    let current = core.status.current_update.as_ref().map(|current| current.name.as_str());
    let mut updates = Vec::new();
    let run = run(ports, cluster, &core, current, &mut updates, now).await?;
    let check = self::run(ports, cluster, &core, core.status.drift.current.as_deref(), &mut updates, now).await?;
    let (source, tree, inputs) = match core.spec.sources.as_slice() {
        // A run that is under way needs nothing of its source.
        [one] if !matches!(run, RunState::Live(..)) => {
            let (api_version, kind, name) = one.object();
            let (state, tree, inputs) = source(ports, &here.sibling(api_version, kind, name), &core, one, &run, now).await?;
            (Some(state), tree, inputs)
        }
        _ => (None, ABSENT, None),
    };
    let idle = core.deleting || core.suspended || matches!(run, RunState::Live(..));
    let (prerequisites, requires) = match core.spec.prerequisites.len() {
        // Nothing begins that would wait for them, or the spec is refused.
        count if idle || count > MAX_PREREQUISITES => Default::default(),
        _ => prerequisites(ports, &core, now).await?,
    };
    Ok((Snapshot { stack: core, source, tree, run, check, prerequisites, requires, inputs }, updates))
}

/// The Stacks that a Stack requires, and if it waits for one of them, which Stacks those require, and so on.
async fn prerequisites<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    stack: &CoreStack,
    now: Timestamp,
) -> Result<(Vec<Option<Prerequisite>>, BTreeMap<String, Vec<String>>), Error> {
    let names = |stack: &CoreStack| -> Vec<_> {
        stack.spec.prerequisites.iter().take(MAX_PREREQUISITES).map(|reference| reference.name.clone()).collect()
    };
    let mut requires: BTreeMap<_, _> = [(stack.name.clone(), names(stack))].into();
    let mut found = Vec::new();
    for name in names(stack) {
        let prerequisite = required(ports, stack, &name).await?;
        if let Some(prerequisite) = &prerequisite {
            requires.entry(name).or_insert_with(|| names(prerequisite));
        }
        found.push(prerequisite.map(|CoreStack { generation, reconcile_request, status, .. }| Prerequisite {
            generation,
            reconcile_request,
            last_update: status.last_update,
        }));
    }
    if !has_unmet(&stack.spec.prerequisites, &found, now) {
        return Ok((found, BTreeMap::new()));
    }
    let mut ahead: VecDeque<_> = requires.values().flatten().cloned().collect();
    while let Some(name) = ahead.pop_front().filter(|_| requires.len() < LOOKED_THROUGH) {
        if requires.contains_key(&name) {
            continue;
        }
        let further = required(ports, stack, &name).await?.map_or_else(Vec::new, |further| names(&further));
        ahead.extend(further.iter().cloned());
        requires.insert(name, further);
    }
    Ok((found, requires))
}

/// A Stack that another one requires. A Stack that cannot be read counts as missing, so that the other one says what it waits for.
async fn required<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    stack: &CoreStack,
    name: &str,
) -> Result<Option<CoreStack>, Error> {
    match ports.cluster.get::<Stack>(&stack.namespace, name).await {
        Err(KubernetesError::Unreadable { .. }) => Ok(None),
        found => Ok(found?.map(|found| CoreStack::from(&found))),
    }
}

/// What is known of the Secrets and ConfigMaps that the last run read.
async fn inputs<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &CoreStack,
    run: &RunState,
    now: Timestamp,
) -> Result<Option<Inputs>, Error> {
    if !stack.spec.watches_inputs || stack.deleting || matches!(run, RunState::Live(..)) {
        return Ok(None);
    }
    if let RunState::Ended(_, RunOutcome { inputs: Some(_), .. }) = run {
        return Ok(Some(Inputs { changed: false, read: now }));
    }
    let (Some(digest), Some(last)) = (&stack.status.inputs, &stack.status.last_update) else { return Ok(None) };
    let Some(ran) = last.last_resync_time else { return Ok(None) };
    let seen = ports.objects.read(&keys::inputs(cluster, &stack.uid)).await?;
    let seen = seen.filter(|seen| seen.at > ran);
    Ok(Some(Inputs { changed: seen.as_ref().is_some_and(|seen| seen.digest != *digest), read: seen.map_or(ran, |seen| seen.at) }))
}

async fn run<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &CoreStack,
    name: Option<&str>,
    updates: &mut Vec<Update>,
    now: Timestamp,
) -> Result<RunState, Error> {
    let Some(name) = name else { return Ok(RunState::None) };
    let system_namespace = ports.settings.system_namespace;
    let mut update = match ports.cluster.get::<Update>(&stack.namespace, name).await {
        Err(KubernetesError::Unreadable { .. }) => return Ok(RunState::Foreign),
        update => update?,
    };
    if update.is_none() && stack.deleting {
        update = ports.cluster.get(system_namespace, name).await?;
    }
    let Some(update) = update else { return Ok(RunState::Missing) };
    let Some(run) = update.run_of(&stack.uid, system_namespace) else {
        // Another operator made it for this Stack: what it says of itself is no fact, and it is never run.
        let theirs = update.spec.driftless.is_none() && update.owner_references().iter().any(|owner| owner.uid == stack.uid);
        return Ok(if theirs { RunState::Missing } else { RunState::Foreign });
    };
    // What the Update's status says of it is for people. What happened is in the bucket.
    let key = keys::run(cluster, &update.uid().unwrap_or_default()).outcome();
    let outcome = ports.objects.read(&key).await?;
    let facts = update.facts(system_namespace, now);
    let waiting = update.waits_for().map(|(reason, message)| Readiness::waiting(reason, message));
    updates.push(update);
    let Some(outcome) = outcome else { return Ok(RunState::Live(run, facts, waiting)) };
    let (succeeded, reason, message) = match outcome.verdict {
        Verdict::Succeeded {} => (true, String::new(), String::new()),
        Verdict::Failed { reason, message, .. } => (false, reason, message),
        Verdict::Aborted { message } => (false, String::new(), message),
    };
    let project = outcome.project.map(|project| (project.name, project.runtime));
    let Outcome { outputs, permalink, inputs, operated, started_at, drift, platform_failure, .. } = outcome;
    let outcome = RunOutcome {
        started: started_at.is_some(),
        operated: operated.unwrap_or(started_at.is_some()),
        succeeded,
        message,
        conflict: reason == reason::UPDATE_CONFLICT,
        interrupted: reason == reason::INTERRUPTED || platform_failure,
        platform_failure,
        drift,
        outputs,
        project,
        permalink,
        inputs,
    };
    Ok(RunState::Ended(run, outcome))
}

async fn source<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    key: &ObjectKey,
    stack: &CoreStack,
    reference: &SourceRef,
    run: &RunState,
    now: Timestamp,
) -> Result<(SourceState, TreeState, Option<Inputs>), Error> {
    let state = match reference {
        SourceRef::Program { .. } => match ports.cluster.get::<Program>(&key.namespace, &key.name).await {
            Ok(Some(program)) => SourceState::from(&program),
            Ok(None) => SourceState::NotFound,
            Err(KubernetesError::Unreadable { message, .. }) => SourceState::Unfit { why: message },
            Err(error) => return Err(error.into()),
        },
        SourceRef::Flux { .. } => match ports.cluster.get_dynamic(key).await {
            Ok(Some(object)) => SourceState::from(&Source::from_object(&object)),
            Ok(None) => SourceState::NotFound,
            // A kind that is not served, or that the installation does not let us read; or an object that this release cannot read.
            Err(KubernetesError::Permanent { message, .. } | KubernetesError::Unreadable { message, .. }) => {
                SourceState::Unfit { why: message }
            }
            Err(error) => return Err(error.into()),
        },
        SourceRef::Git(git) => git_state(git, outcome(ports, key, &git.fingerprint).await?),
    };
    let state = match state {
        // The status of a source may be anybody's word, and a digest becomes part of a key.
        SourceState::Artifact { digest, .. } if let Some(why) = invalid_digest("status.artifact.digest", &digest) => {
            SourceState::Unfit { why }
        }
        state => state,
    };
    let mut known = None;
    let subject = match (&state, reference) {
        (SourceState::Artifact { revision, digest, .. }, _) => {
            let after = match run {
                RunState::Ended(run, outcome) => {
                    let (status, _) = observe(&stack.status, run, outcome, now);
                    CoreStack { status, ..stack.clone() }
                }
                RunState::None | RunState::Missing | RunState::Live(..) | RunState::Foreign => stack.clone(),
            };
            // A run that is wanted anyway reads its inputs itself.
            let is_due = |inputs| is_synced(&after, revision, inputs, now) != Sync::Synced;
            let is_wanted = is_due(None) && paths(stack).is_empty();
            let inputs = if is_wanted { None } else { inputs(ports, &key.cluster, stack, run, now).await? };
            if !is_due(inputs) {
                return Ok((state, ABSENT, inputs));
            }
            if let Some(stored) = tree(ports, &keys::tree(key, digest), stack, reference, now).await? {
                return Ok((state, stored, inputs));
            }
            known = inputs;
            digest
        }
        (SourceState::Unknown { .. }, SourceRef::Git(git)) => &git.fingerprint,
        (SourceState::Unknown { subject }, _) => subject,
        (SourceState::NotFound | SourceState::NoArtifact { .. } | SourceState::Unfit { .. }, _) => {
            return Ok((state, ABSENT, None));
        }
    };
    let failure = outcome(ports, key, subject).await?.and_then(|outcome| {
        let at = outcome.rests_until();
        let FetchOutcome { failures, failure, .. } = outcome;
        let failure = failure?;
        // What is wrong with a branch may be mended by a commit that nobody tells of.
        let terminal = failure.terminal && !matches!(reference, SourceRef::Git(git) if !git.branch.is_empty());
        Some(FetchFailure { at, message: failure.message, terminal, failures })
    });
    Ok((state, TreeState::Absent { failure }, known))
}

/// How the last fetch of a source ended, if it was about this state of it.
pub(crate) async fn outcome<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    source: &ObjectKey,
    subject: &str,
) -> Result<Option<FetchOutcome>, Error> {
    let outcome = ports.objects.read(&keys::fetch(source)).await?;
    Ok(outcome.filter(|outcome| outcome.subject == subject))
}

/// What is known of a git repository is what the fetcher wrote down when it asked for it as the spec says now.
fn git_state(git: &GitSource, outcome: Option<FetchOutcome>) -> SourceState {
    let polled = outcome.as_ref().filter(|_| !git.branch.is_empty()).map(FetchOutcome::rests_until);
    match outcome.and_then(|outcome| outcome.artifact) {
        Some(FetchedArtifact { revision, digest }) => SourceState::Artifact { revision, digest, polled },
        None => SourceState::Unknown { subject: if git.branch.is_empty() { &git.commit } else { &git.branch }.clone() },
    }
}

/// What a run would find in the stored tree, if there is one.
async fn tree<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    folder: &TreeFolder,
    stack: &CoreStack,
    reference: &SourceRef,
    now: Timestamp,
) -> Result<Option<TreeState>, Error> {
    let manifest = folder.manifest();
    let Some((document, modified)) = ports.objects.get_modified(&manifest).await? else { return Ok(None) };
    // An old one may be on its way to be deleted: it counts as not stored, and the fetcher stores it again.
    if !ports.settings.retention.is_usable(modified, now) {
        return Ok(None);
    }
    let manifest = Manifest::parse(&document)?;
    let dir = reference.dir();
    let project = if manifest.directory(dir).is_none() {
        Project::NoDirectory
    } else if PROJECT_FILES.iter().any(|file| manifest.digest_of(&format!("./{dir}/{file}")).is_some()) {
        Project::There
    } else {
        Project::NoFile
    };
    let paths = paths(stack);
    let scope = (!paths.is_empty()).then(|| {
        let digests: Vec<&str> =
            paths.iter().flat_map(|path| [path.as_str(), manifest.digest_of(path).map_or("absent", Digest::as_str)]).collect();
        hash(&digests)
    });
    Ok(Some(TreeState::Stored { project, scope }))
}
