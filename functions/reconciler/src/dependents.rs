//! Wakes the Stacks that depend on one that succeeded.

use driftless_api::{Stack, StackOutputs};
use driftless_aws::{Objects, Queues};
use driftless_contract::Hint;
use driftless_kubernetes::{Cluster, Pages, Selector};
use kube::ResourceExt as _;

use crate::{Error, Reconciler, carry_out::update_key, stack_key};

impl<C: Cluster, O: Objects, Q: Queues> Reconciler<'_, C, O, Q> {
    /// Hints the Stacks that wait for the hinted one, and has the inputs of those that read its
    /// outputs compared. A comparison also releases a Stack that waits to run with changed inputs.
    pub(crate) async fn wake_dependents(&self, hint: &Hint, outputs: &[StackOutputs]) -> Result<(), Error> {
        let namespace = Some(hint.object.namespace.as_str());
        let waits = format!("status.driftless.waitsFor={}", hint.object.name);
        let mut waiting = Pages::<_, Stack>::new(self.cluster, namespace, Selector::Fields(&waits));
        while let Some(page) = waiting.next().await? {
            for stack in page {
                if let Some(next) = hint.next(stack_key(&hint.object, &stack.name_any())) {
                    self.queues.hint(&next, 0).await?;
                }
                self.compare_inputs(hint, &stack).await?;
            }
        }
        // No field selector finds readers. The namespace is listed only for a Stack with outputs.
        let mut all = Pages::<_, Stack>::new(self.cluster, namespace, Selector::All);
        while !outputs.is_empty()
            && let Some(page) = all.next().await?
        {
            for stack in page.into_iter().filter(|stack| stack.reads(outputs)) {
                // It may wait for an object that did not exist.
                let current = stack.status.as_ref().and_then(|status| status.current_update.as_ref()?.name.clone());
                if let Some(update) = current {
                    self.launch(hint, update_key(&hint.object, &hint.object.namespace, &update)).await?;
                }
                self.compare_inputs(hint, &stack).await?;
            }
        }
        Ok(())
    }

    /// Has the inputs of a Stack compared with those of its last run and its last plan, if one of
    /// them read any.
    async fn compare_inputs(&self, hint: &Hint, stack: &Stack) -> Result<(), Error> {
        if stack.read_inputs().is_some() {
            self.launch(hint, stack_key(&hint.object, &stack.name_any())).await?;
        }
        Ok(())
    }
}
