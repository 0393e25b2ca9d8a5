//! Finds the Stacks, in any namespace, for hints of the webhook that no field of a Stack names: the Kustomization or
//! `HelmRelease` that applied them, and the repository of a push.

use std::collections::{BTreeMap, BTreeSet};

use driftless_api::{Program, Stack};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchedArtifact, Hint, ObjectKey, keys};
use driftless_core::{SourceRef, repository};
use driftless_kubernetes::{Cluster, Pages};
use kube::ResourceExt as _;

use crate::{Error, Ports, carry_out, load, stack_key};

/// Hints the Stacks that a Kustomization or a `HelmRelease` applied, and the Stacks of the Programs that it applied. Flux writes
/// its name into their labels.
pub(crate) async fn hint_applied<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    hint: &Hint,
) -> Result<(), Error> {
    let owner = &hint.object;
    let labels = [("name", &owner.name), ("namespace", &owner.namespace)]
        .map(|(label, value)| (format!("{}/{label}", owner.group()), value));
    let applied =
        |found: &BTreeMap<String, String>| labels.iter().all(|(label, value)| found.get(label.as_str()) == Some(*value));
    let mut programs = BTreeSet::new();
    let mut pages = Pages::<_, Program>::new(ports.cluster, None, None);
    while let Some(page) = pages.next().await? {
        let found = page.iter().filter(|program| applied(program.labels()));
        programs.extend(found.map(|program| (program.namespace(), program.name_any())));
    }
    let mut pages = Pages::<_, Stack>::new(ports.cluster, None, None);
    while let Some(page) = pages.next().await? {
        for stack in page {
            let program = stack.spec.program_ref.as_ref().map(|program| (stack.namespace(), program.name.clone()));
            if (applied(stack.labels()) || program.is_some_and(|program| programs.contains(&program)))
                && let Some(next) = hint.next(key(hint, &stack))
            {
                ports.queues.hint(&next, 0).await?;
            }
        }
    }
    Ok(())
}

/// Requests a fetch for the Stacks that follow the ref of a push, except for those that have the commit. The fetcher hints each
/// Stack after it has polled git.
pub(crate) async fn fetch_pushed<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    hint: &Hint,
) -> Result<(), Error> {
    let labels = ports.cluster.watch_labels().await?;
    let mut pages = Pages::<_, Stack>::new(ports.cluster, None, None);
    while let Some(page) = pages.next().await? {
        for stack in page {
            fetch_if_pushed(ports, hint, &labels, &stack).await?;
        }
    }
    Ok(())
}

/// Requests a fetch for one Stack, if it follows the ref of the push.
async fn fetch_if_pushed<C: Cluster, O: Objects, Q: Queues>(
    ports: &Ports<'_, C, O, Q>,
    hint: &Hint,
    labels: &BTreeMap<String, String>,
    stack: &Stack,
) -> Result<(), Error> {
    let name = Some(&hint.object.name);
    let pushed = hint.revision.as_deref().unwrap_or_default();
    let (git_ref, commit) = pushed.rsplit_once("@sha1:").unwrap_or_default();
    let is_ours = ports.settings.watch().is_ours_by(labels, &stack.namespace().unwrap_or_default());
    if !is_ours || stack.is_suspended() || stack.spec.project_repo.as_deref().and_then(repository).as_ref() != name {
        return Ok(());
    }
    let sources = driftless_core::Stack::from(stack).spec.sources;
    let [SourceRef::Git(git)] = sources.as_slice() else { return Ok(()) };
    if !git.follows(git_ref) {
        return Ok(());
    }
    let source = key(hint, stack);
    let known = load::outcome(ports, &source, &git.fingerprint).await?.and_then(|outcome| outcome.artifact);
    let known = known.map_or_else(String::new, |FetchedArtifact { revision, .. }| revision);
    if known == commit {
        tracing::info!(stack = %source, commit, "push skipped: its commit is already known");
        return Ok(());
    }
    // A replayed push finds either that the commit is known or, for five minutes, that its request is a duplicate.
    let deduplication = keys::hash(&[&source.to_string(), pushed, &known]);
    carry_out::ask(ports, hint, source, &deduplication).await
}

fn key(hint: &Hint, stack: &Stack) -> ObjectKey {
    ObjectKey { namespace: stack.namespace().unwrap_or_default(), ..stack_key(&hint.object, &stack.name_any()) }
}
