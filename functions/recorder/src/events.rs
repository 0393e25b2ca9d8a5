//! Events about a run, on the Update and on its Stack.

use driftless_api::{Stack, StackReference, StackSpec, Update};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Outcome, Revision};
use driftless_kubernetes::{Cluster, EventMarks, EventReason, EventType};

use crate::{Recorder, Settings};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Names the resources that failed, and the operations that an interrupted run left pending.
    pub(crate) async fn publish_events(&self, update: &Update, outcome: &Outcome) {
        let failed =
            outcome.failures.iter().map(|failure| (EventReason::ResourceFailed, format!("{}: {}", failure.urn, failure.message)));
        let notes: Vec<_> =
            failed.chain(pending(&outcome.pending_operations).map(|note| (EventReason::PendingOperations, note))).collect();
        let stack = stack_of(update, self.settings);
        let commit = update.spec.driftless.as_ref().and_then(|ours| ours.commit.as_ref());
        let revision = commit.map(Revision::from).filter(|commit| !commit.is_empty());
        let marks = EventMarks { revision: revision.as_ref(), ..EventMarks::default() };
        for (reason, note) in notes {
            self.cluster.event(update, EventType::Warning, reason, &note, marks, self.now).await;
            if let Some(stack) = &stack {
                self.cluster.event(stack, EventType::Warning, reason, &note, marks, self.now).await;
            }
        }
    }
}

/// The Stack of an Update, without its spec: an Event and an owner reference need only its
/// identity.
pub(crate) fn stack_of(update: &Update, settings: &Settings) -> Option<Stack> {
    let StackReference { name, namespace, uid } = update.stack(&settings.system_namespace)?;
    let mut stack = Stack::new(&name, StackSpec::default());
    stack.metadata.namespace = Some(namespace);
    stack.metadata.uid = Some(uid);
    Some(stack)
}

fn pending(operations: &[String]) -> Option<String> {
    (!operations.is_empty()).then(|| {
        format!(
            "an interrupted run left pending operations; every run warns about them until they are cleared; check each \
             resource with its provider, then run `pulumi refresh` at a terminal to import or clear each, or with \
             `--clear-pending-creates`: {}",
            operations.join(", ")
        )
    })
}
