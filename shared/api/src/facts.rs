//! Collects the facts for a decision about a Stack. The reconciler reads them with its own rights;
//! the CLI reads what its user may read, and takes the rest from the status.

use std::{collections::BTreeMap, future::Future};

use driftless_core::{
    ArtifactDigest, FetchFailure, GitSource, Governance, Guard, Inputs, MAX_PREREQUISITES, PlanHash, PlannedChanges,
    Prerequisite, Readiness, Revision, RunOutcome, RunState, Snapshot, SourceRef, SourceState, Stack as CoreStack, Sync,
    TreeState, Walk, Why, has_unmet, invalid_digest, is_synced, observe, paths,
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Program, Source, Stack, Update};

/// A tree that is not known to be stored.
const ABSENT: TreeState = TreeState::Absent { failure: None };

/// The result of a read of an object.
#[derive(Clone, Debug)]
pub enum Found<T> {
    /// The object.
    Object(Box<T>),
    /// It does not exist.
    Missing,
    /// It exists and cannot be read, or its kind is not served. The message says why.
    Unreadable(String),
}

/// The result of the last fetch of a source, if it was for the requested state.
#[derive(Clone, Debug, Default)]
pub struct Fetch {
    /// Revision and digest of a source for which no Kubernetes object states them.
    pub artifact: Option<(Revision, ArtifactDigest)>,
    /// When the fetch began; for a source that rests after a slow fetch, the end of its rest.
    pub at: Timestamp,
    /// How the fetch failed: whether the same content always fails, and the message.
    pub failure: Option<(bool, String)>,
    /// The number of failed fetches in a row.
    pub failures: u32,
}

/// What a run of a Stack would have read from Secrets and `ConfigMap`s.
#[derive(Clone, Debug)]
pub struct Compared {
    /// A keyed digest of it.
    pub digest: String,
    /// When it was read.
    pub at: Timestamp,
    /// A prerequisite, direct or not, that was running or about to run then.
    pub waits_for: Option<String>,
}

/// Reads the facts about the Stacks of one cluster.
pub trait Facts {
    /// Why a fact cannot be read.
    type Error;
    /// The namespace with the Updates of terminating namespaces.
    fn system_namespace(&self) -> &str;
    /// A Stack.
    fn stack(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Found<Stack>, Self::Error>>;
    /// An Update.
    fn update(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Found<Update>, Self::Error>>;
    /// A Program.
    fn program(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Found<Program>, Self::Error>>;
    /// A Flux source of this API version and kind.
    fn flux(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Found<Source>, Self::Error>>;
    /// How the run of an Update ended, if its outcome is recorded.
    fn outcome(&self, update: &Update) -> impl Future<Output = Result<Option<RunOutcome>, Self::Error>>;
    /// The result of the last fetch of this state of a Stack's source.
    fn fetch(
        &self,
        stack: &CoreStack,
        source: &SourceRef,
        subject: &str,
    ) -> impl Future<Output = Result<Option<Fetch>, Self::Error>>;
    /// The tree of a Stack's source, if it is stored.
    fn tree(
        &self,
        stack: &CoreStack,
        source: &SourceRef,
        digest: &ArtifactDigest,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<TreeState>, Self::Error>>;
    /// Whether the cluster enforces who may approve.
    fn guard(&self) -> impl Future<Output = Result<Guard, Self::Error>>;
    /// What the cluster demands of the plans of a namespace.
    fn governance(&self, namespace: &str) -> impl Future<Output = Result<Governance, Self::Error>>;
    /// The record of a plan of a Stack.
    fn planned(&self, stack: &CoreStack, hash: &PlanHash) -> impl Future<Output = Result<Option<PlannedChanges>, Self::Error>>;
    /// What a run of the Stack would have read from Secrets and ConfigMaps.
    fn inputs(&self, stack: &CoreStack) -> impl Future<Output = Result<Option<Compared>, Self::Error>>;
}

/// Reads all facts for a decision about a Stack.
pub async fn snapshot<F: Facts>(facts: &F, stack: CoreStack, now: Timestamp) -> Result<Snapshot, F::Error> {
    let current = stack.status.current_update.as_ref().map(|current| current.name.as_str());
    let run = run(facts, &stack, current, now).await?;
    let check = self::run(facts, &stack, stack.status.drift.current.as_deref(), now).await?;
    let proposal = self::run(facts, &stack, stack.status.plan.current.as_deref(), now).await?;
    let (source, tree, inputs) = match stack.spec.sources.as_slice() {
        // A live run needs no facts about its source.
        [one] if !matches!(run, RunState::Live(..)) => {
            let (state, tree, inputs) = source(facts, &stack, one, (&run, &proposal), now).await?;
            (Some(state), tree, inputs)
        }
        _ => (None, ABSENT, None),
    };
    let idle = stack.deleting || stack.suspended || matches!(run, RunState::Live(..));
    let (prerequisites, requires) = match stack.spec.prerequisites.len() {
        // No new run would wait for them, or the spec is refused.
        count if idle || count > MAX_PREREQUISITES => Default::default(),
        _ => prerequisites(facts, &stack, now).await?,
    };
    let is_idle = stack.suspended || stack.spec.preview && !stack.deleting || matches!(run, RunState::Live(..));
    let starts =
        !is_idle && if stack.deleting { stack.spec.destroy_on_finalize } else { matches!(tree, TreeState::Stored { .. }) };
    let named = match stack.shown_for() {
        Some(name) => required(facts, &stack, name).await?.map(Box::new),
        None => None,
    };
    // The plan of a pull request is judged when it was made.
    let starts = starts || named.is_some() && matches!(run, RunState::Ended(..));
    let governance = if starts { facts.governance(&stack.namespace).await? } else { Governance::Unread };
    let planned = planned(facts, &stack, &governance).await?;
    let is_guarded = stack.approval.is_some() || named.is_some() || stack.status.plan.guarded || governance.governs(false);
    let guard = if is_guarded { facts.guard().await? } else { Guard::Intact };
    Ok(Snapshot { stack, source, tree, run, check, proposal, guard, governance, planned, prerequisites, requires, named, inputs })
}

/// The record of the plan that waits, for the policies of the cluster.
async fn planned<F: Facts>(facts: &F, stack: &CoreStack, governance: &Governance) -> Result<Option<PlannedChanges>, F::Error> {
    let has_rules = matches!(governance, Governance::Known { policies, .. } if !policies.is_empty());
    let pending = stack.status.plan.proposal.as_ref().filter(|proposal| has_rules && proposal.state.is_pending());
    match pending.and_then(|proposal| proposal.plan.as_ref()) {
        Some(plan) => facts.planned(stack, &plan.hash).await,
        None => Ok(None),
    }
}

/// The prerequisites of a Stack. If it waits for one of them, their own prerequisites too, and so
/// on.
async fn prerequisites<F: Facts>(
    facts: &F,
    stack: &CoreStack,
    now: Timestamp,
) -> Result<(Vec<Option<Prerequisite>>, BTreeMap<String, Vec<String>>), F::Error> {
    let names = |stack: &CoreStack| -> Vec<_> {
        stack.spec.prerequisites.iter().take(MAX_PREREQUISITES).map(|reference| reference.name.clone()).collect()
    };
    let mut requires: BTreeMap<_, _> = [(stack.name.clone(), names(stack))].into();
    let mut found = Vec::new();
    for name in names(stack) {
        let prerequisite = required(facts, stack, &name).await?;
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
    // A cycle beyond the bound of the walk waits without being named.
    let mut walk = Walk::without(requires.keys().cloned());
    walk.add(requires.values().flatten().cloned());
    while let Some(name) = walk.visit() {
        let further = required(facts, stack, &name).await?.map_or_else(Vec::new, |further| names(&further));
        walk.add(further.iter().cloned());
        requires.insert(name, further);
    }
    Ok((found, requires))
}

/// A Stack that another one names. One that cannot be read counts as missing, so that the condition
/// of the dependent names it.
async fn required<F: Facts>(facts: &F, stack: &CoreStack, name: &str) -> Result<Option<CoreStack>, F::Error> {
    Ok(match facts.stack(&stack.namespace, name).await? {
        Found::Object(found) => Some(CoreStack::from(&*found)),
        Found::Missing | Found::Unreadable(_) => None,
    })
}

/// The state of the Secrets and ConfigMaps that the last run and the last plan read.
async fn inputs<F: Facts>(
    facts: &F,
    stack: &CoreStack,
    run: &RunState,
    is_planned: bool,
    now: Timestamp,
) -> Result<Option<Inputs>, F::Error> {
    if !stack.spec.watches_inputs || stack.deleting || matches!(run, RunState::Live(..)) {
        return Ok(None);
    }
    // A stale run has applied none.
    if let RunState::Ended(_, RunOutcome { inputs: Some(_), stale: false, .. }) = run {
        return Ok(Some(Inputs { changed: false, digest: None, read: now, waits_for: None }));
    }
    let status = &stack.status;
    let ran = status.inputs.as_ref().zip(status.last_update.as_ref().and_then(|last| last.last_resync_time));
    if ran.is_none() && !is_planned {
        return Ok(None);
    }
    let since = ran.map_or(Timestamp::MIN, |(_, at)| at);
    let seen = facts.inputs(stack).await?.filter(|seen| seen.at > since);
    Ok(Some(match seen {
        Some(seen) => {
            let changed = ran.is_some_and(|(digest, _)| seen.digest != *digest);
            Inputs { changed, digest: Some(seen.digest), read: seen.at, waits_for: seen.waits_for }
        }
        None => Inputs { changed: false, digest: None, read: since, waits_for: None },
    }))
}

/// Returns whether its last plan, or the one that was just made, applies Secrets or ConfigMaps: a
/// change of them needs another plan.
fn plans_inputs(stack: &CoreStack, proposal: &RunState) -> bool {
    matches!(proposal, RunState::Ended(_, RunOutcome { inputs: Some(_), .. }))
        || stack.status.plan.proposal.as_ref().is_some_and(|last| last.wish.inputs.is_some())
}

/// The state of that Update's run.
async fn run<F: Facts>(facts: &F, stack: &CoreStack, name: Option<&str>, now: Timestamp) -> Result<RunState, F::Error> {
    let Some(name) = name else { return Ok(RunState::None) };
    let mut found = facts.update(&stack.namespace, name).await?;
    if matches!(found, Found::Missing) && stack.deleting {
        found = facts.update(facts.system_namespace(), name).await?;
    }
    let update = match found {
        Found::Object(update) => update,
        Found::Missing => return Ok(RunState::Missing),
        Found::Unreadable(_) => return Ok(RunState::Foreign),
    };
    let Some(run) = update.run_of(&stack.uid, facts.system_namespace()) else {
        // Another operator created it for this Stack: its own statements are no facts, and it is
        // never run.
        let theirs = update.spec.driftless.is_none() && update.owner_references().iter().any(|owner| stack.uid == *owner.uid);
        return Ok(if theirs { RunState::Missing } else { RunState::Foreign });
    };
    if let Some(outcome) = facts.outcome(&update).await? {
        return Ok(RunState::Ended(run, outcome));
    }
    let waiting = update.waits_for().map(|(reason, message)| Readiness::waiting(reason, message));
    Ok(RunState::Live(run, update.facts(facts.system_namespace(), now), waiting))
}

async fn source<F: Facts>(
    facts: &F,
    stack: &CoreStack,
    reference: &SourceRef,
    (run, proposal): (&RunState, &RunState),
    now: Timestamp,
) -> Result<(SourceState, TreeState, Option<Inputs>), F::Error> {
    let (api_version, kind, name) = reference.object();
    let state = match reference {
        SourceRef::Program { .. } => state(facts.program(&stack.namespace, name).await?),
        SourceRef::Flux { .. } => state(facts.flux(api_version, kind, &stack.namespace, name).await?),
        SourceRef::Git(git) => git_state(git, facts.fetch(stack, reference, &git.fingerprint).await?),
    };
    let state = match state {
        // A user may have written the status of a source, and a digest becomes part of a key.
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
                    let (status, _) = observe(stack, run, outcome, now);
                    CoreStack { status, ..stack.clone() }
                }
                RunState::None | RunState::Missing | RunState::Live(..) | RunState::Foreign => stack.clone(),
            };
            let is_planned = plans_inputs(stack, proposal);
            let wants = |inputs: Option<&Inputs>| is_synced(&after, revision, inputs, now);
            let reads = match wants(None) {
                Sync::Synced | Sync::Run(Why::Adoption(_)) => true,
                // A run that is wanted for another reason reads its inputs itself.
                Sync::Run(_) => is_planned || !paths(stack).is_empty(),
            };
            let inputs = if reads { inputs(facts, stack, run, is_planned, now).await? } else { None };
            if wants(inputs.as_ref()) == Sync::Synced {
                return Ok((state, ABSENT, inputs));
            }
            if let Some(stored) = facts.tree(stack, reference, digest, now).await? {
                return Ok((state, stored, inputs));
            }
            known = inputs;
            digest.as_str()
        }
        (SourceState::Unknown { .. }, SourceRef::Git(git)) => &git.fingerprint,
        (SourceState::Unknown { subject }, _) => subject,
        (SourceState::NotFound | SourceState::NoArtifact { .. } | SourceState::Unfit { .. }, _) => {
            return Ok((state, ABSENT, None));
        }
    };
    let failure = facts.fetch(stack, reference, subject).await?.and_then(|fetch| {
        let (terminal, message) = fetch.failure?;
        // A commit, which causes no event, may fix a branch.
        let terminal = terminal && !matches!(reference, SourceRef::Git(git) if !git.branch.is_empty());
        Some(FetchFailure { at: fetch.at, message, terminal, failures: fetch.failures })
    });
    Ok((state, TreeState::Absent { failure }, known))
}

fn state<T>(found: Found<T>) -> SourceState
where
    for<'a> SourceState: From<&'a T>,
{
    match found {
        Found::Object(object) => SourceState::from(&object),
        Found::Missing => SourceState::NotFound,
        Found::Unreadable(why) => SourceState::Unfit { why },
    }
}

/// The state of a git repository is the result of the last fetch with the present spec.
fn git_state(git: &GitSource, fetch: Option<Fetch>) -> SourceState {
    let polled = fetch.as_ref().filter(|_| !git.branch.is_empty()).map(|fetch| fetch.at);
    match fetch.and_then(|fetch| fetch.artifact) {
        Some((revision, digest)) => SourceState::Artifact { revision, digest, polled },
        None => SourceState::Unknown { subject: if git.branch.is_empty() { &git.commit } else { &git.branch }.clone() },
    }
}
