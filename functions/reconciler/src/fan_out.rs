//! Finds the Stacks, in any namespace, for hints of the webhook: about the Kustomization or
//! `HelmRelease` that applied them, by its labels, and about the repository of a push, by a field
//! of their status. No list is read whole.

use std::collections::BTreeMap;

use driftless_api::{Program, Stack};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchedArtifact, Hint, ObjectKey, keys};
use driftless_core::{SourceRef, repository};
use driftless_kubernetes::{Cluster, Object, Pages, Selector, term};
use kube::ResourceExt as _;

use crate::{Error, Reconciler};

impl<C: Cluster, O: Objects, Q: Queues> Reconciler<'_, C, O, Q> {
    /// Hints the Stacks and the Programs that a Kustomization or a `HelmRelease` applied, by the
    /// labels that Flux gives them. The hint of a Program reaches its Stacks.
    pub(crate) async fn hint_applied(&self, hint: &Hint) -> Result<(), Error> {
        let ObjectKey { namespace, name, .. } = &hint.object;
        // Flux applies nothing in the name of another.
        if !is_label(namespace) || !is_label(name) {
            return Ok(());
        }
        let group = hint.object.group();
        let labels = format!("{group}/name={name},{group}/namespace={namespace}");
        self.hint_labelled::<Program>(hint, &labels).await?;
        self.hint_labelled::<Stack>(hint, &labels).await
    }

    /// Hints the objects of a kind that a label selector selects.
    async fn hint_labelled<K: Object>(&self, hint: &Hint, labels: &str) -> Result<(), Error> {
        let mut pages = Pages::<_, K>::new(self.cluster, None, Selector::Labels(labels));
        while let Some(page) = pages.next().await? {
            for object in page {
                if let Some(next) = hint.next(key(hint, &object)) {
                    self.queues.hint(&next, 0).await?;
                }
            }
        }
        Ok(())
    }

    /// Requests a fetch for the Stacks that follow the ref of a push, except for those that have
    /// the commit. The fetcher hints each Stack after it has polled git. A Stack without a status
    /// is not found; its first reconciliation requests a fetch anyway.
    pub(crate) async fn fetch_pushed(&self, hint: &Hint) -> Result<(), Error> {
        let labels = self.cluster.watch_labels().await?;
        let repository = term("status.driftless.repository", &hint.object.name);
        let mut pages = Pages::<_, Stack>::new(self.cluster, None, Selector::Fields(&repository));
        while let Some(page) = pages.next().await? {
            for stack in page {
                self.fetch_if_pushed(hint, &labels, &stack).await?;
            }
        }
        Ok(())
    }

    /// Requests a fetch for one Stack, if it follows the ref of the push.
    async fn fetch_if_pushed(&self, hint: &Hint, labels: &BTreeMap<String, String>, stack: &Stack) -> Result<(), Error> {
        let name = Some(&hint.object.name);
        let pushed = hint.revision.as_deref().unwrap_or_default();
        let (git_ref, commit) = pushed.rsplit_once("@sha1:").unwrap_or_default();
        let is_ours = self.settings.watch().is_ours_by(labels, &stack.namespace().unwrap_or_default());
        if !is_ours || stack.is_suspended() || stack.spec.project_repo.as_deref().and_then(repository).as_ref() != name {
            return Ok(());
        }
        let sources = stack.sources();
        let [SourceRef::Git(git)] = sources.as_slice() else { return Ok(()) };
        if !git.follows(git_ref) {
            return Ok(());
        }
        let source = key(hint, stack);
        let known = self.fetch_outcome(&source, &git.fingerprint).await?.and_then(|outcome| outcome.artifact);
        let known = known.map(|FetchedArtifact { revision, .. }| revision).unwrap_or_default();
        if known == commit {
            tracing::info!(stack = %source, commit, "push skipped: its commit is already known");
            return Ok(());
        }
        // A replayed push finds either that the commit is known or, for five minutes, that its
        // request is a duplicate.
        let deduplication = keys::hash(&[&source.to_string(), pushed, known.as_str()]);
        self.request_fetch(hint, source, &deduplication).await
    }
}

/// Returns whether a text can be the value of a label.
fn is_label(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn key<K: Object>(hint: &Hint, object: &K) -> ObjectKey {
    let (api_version, kind) = (K::api_version(&()), K::kind(&()));
    let namespace = object.namespace().unwrap_or_default();
    ObjectKey { namespace, ..hint.object.sibling(&api_version, &kind, &object.name_any()) }
}
