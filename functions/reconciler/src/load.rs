//! Reads the facts that a decision about a Stack is made from, each where it lives.

use driftless_api::{Program, Source, Stack, Update};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchOutcome, ObjectKey, Outcome, Verdict, from_json, keys};
use driftless_core::{
    FetchFailure, Prerequisite, RunOutcome, RunState, Snapshot, SourceRef, SourceState, Stack as CoreStack, TreeState,
};
use driftless_kubernetes::Cluster;
use kube::ResourceExt as _;

use crate::{Error, Ports};

/// Everything that is true of a Stack as far as a decision needs it.
pub async fn snapshot<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &Stack,
) -> Result<Snapshot, Error> {
    let core = CoreStack::from(stack);
    let here = ObjectKey {
        cluster: cluster.to_owned(),
        api_version: String::new(),
        kind: String::new(),
        namespace: core.namespace.clone(),
        name: String::new(),
    };
    let run = run(ports, cluster, &core).await?;
    let (source, tree) = match core.spec.sources.as_slice() {
        // A run that is under way or a Stack that only goes needs nothing of its source.
        _ if matches!(run, RunState::Live(_)) => (None, TreeState::Absent { failure: None }),
        [one] => source(ports, &here, one).await?,
        _ => (None, TreeState::Absent { failure: None }),
    };
    let mut prerequisites = Vec::new();
    for reference in &core.spec.prerequisites {
        let found = ports.cluster.get::<Stack>(&core.namespace, &reference.name).await?;
        prerequisites.push(found.map(|found| {
            let CoreStack { generation, reconcile_request, status, .. } = CoreStack::from(&found);
            Prerequisite { generation, reconcile_request, last_update: status.last_update }
        }));
    }
    Ok(Snapshot { stack: core, source, tree, run, prerequisites })
}

async fn run<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    cluster: &str,
    stack: &CoreStack,
) -> Result<RunState, Error> {
    let Some(current) = &stack.status.current_update else { return Ok(RunState::None) };
    let Some(update) = ports.cluster.get::<Update>(&stack.namespace, &current.name).await? else {
        return Ok(RunState::Missing);
    };
    let Some(run) = update.run_of(&stack.uid) else { return Ok(RunState::Foreign) };
    // What the Update's status says of it is for people. What happened is in the bucket.
    let key = format!("{}outcome", keys::run(cluster, &update.uid().unwrap_or_default()));
    let Some(document) = ports.objects.get(&key).await? else { return Ok(RunState::Live(run)) };
    let outcome: Outcome = from_json("outcome", &document)?;
    let (succeeded, message) = match outcome.verdict {
        Verdict::Succeeded {} => (true, String::new()),
        Verdict::Failed { message, .. } | Verdict::Aborted { message } => (false, message),
    };
    let project = outcome.project.map(|project| (project.name, project.runtime));
    Ok(RunState::Ended(run, RunOutcome { succeeded, message, outputs: outcome.outputs, project, permalink: outcome.permalink }))
}

async fn source<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    here: &ObjectKey,
    reference: &SourceRef,
) -> Result<(Option<SourceState>, TreeState), Error> {
    let absent = TreeState::Absent { failure: None };
    let Some((api_version, kind, name)) = reference.object() else { return Ok((None, absent)) };
    let key = here.sibling(api_version, kind, name);
    let state = match reference {
        SourceRef::Program { .. } => match ports.cluster.get::<Program>(&key.namespace, name).await? {
            Some(program) => SourceState::from(&program),
            None => SourceState::NotFound,
        },
        SourceRef::Flux { .. } | SourceRef::Git => match ports.cluster.get_dynamic(&key).await? {
            Some(object) => SourceState::from(&Source::from_object(&object)),
            None => SourceState::NotFound,
        },
    };
    let (subject, stored) = match &state {
        SourceState::Artifact { digest, .. } => {
            let manifest = format!("{}manifest", keys::tree(&key, digest));
            (digest.clone(), ports.objects.exists(&manifest).await?)
        }
        SourceState::Outdated { generation } => (generation.to_string(), false),
        SourceState::NotFound | SourceState::NoArtifact { .. } => return Ok((Some(state), absent)),
    };
    if stored {
        return Ok((Some(state), TreeState::Stored));
    }
    let outcome: Option<FetchOutcome> =
        ports.objects.get(&keys::fetch(&key)).await?.map(|document| from_json("fetch outcome", &document)).transpose()?;
    let failure = outcome.filter(|outcome| outcome.subject == subject).and_then(|outcome| {
        let failure = outcome.failure?;
        Some(FetchFailure { at: outcome.at, message: failure.message, terminal: failure.terminal })
    });
    Ok((Some(state), TreeState::Absent { failure }))
}
