//! The launch in the status of an Update.

use driftless_api::{LogLink, Update};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Hint, LaunchHint, ObjectKey, keys};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use kube::ResourceExt as _;

use crate::{Error, Launcher};

/// The number of tries to write a status that another client changes at the same time.
const STATUS_TRIES: usize = 3;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Shows the running task in an Update's status if an interrupted launch has not done so.
    pub(crate) async fn show_running(&self, hint: &LaunchHint, update: &Update, task: &str) -> Result<(), Error> {
        let log = self.tasks.log_url(task);
        let shown =
            |update: &Update| update.status.as_ref().and_then(|status| status.driftless.as_ref()?.task.as_deref()) == Some(task);
        if shown(update) && !update.is_complete() {
            return Ok(());
        }
        // Before the first line, so that a reader has that line as soon as it is stored.
        let link = self.objects.link(&keys::task(&self.settings.task_role_id, task).live_log(), self.now).await?;
        let link = LogLink::new(link.url, link.expires);
        self.set_status(hint, update, |update| {
            (!shown(update) || update.is_complete()) && update.set_running(task, &log, Some(link.clone()), self.now)
        })
        .await
    }

    /// Changes the status of an Update whose outcome was not recorded when it was read, and hints
    /// its Stack if a wait starts, changes or ends. The status is a view for people: after a few
    /// failed writes it is left to the next reconciliation.
    pub(crate) async fn set_status(
        &self,
        hint: &LaunchHint,
        update: &Update,
        change: impl Fn(&mut Update) -> bool,
    ) -> Result<(), Error> {
        let (namespace, name) = (update.namespace().unwrap_or_default(), update.name_any());
        let mut update = update.clone();
        for again in 0..STATUS_TRIES {
            let waited = update.waits_for().is_some();
            // The outcome may have been recorded in the meantime.
            if again > 0 && update.is_complete() || !change(&mut update) {
                return Ok(());
            }
            match self.cluster.replace_status(&update).await {
                Ok(_) if waited || update.waits_for().is_some() => return self.hint_stack(hint, &update).await,
                Ok(_) => return Ok(()),
                Err(KubernetesError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(fresh) = self.cluster.get::<Update>(&namespace, &name).await? else { return Ok(()) };
            update = fresh;
        }
        Ok(())
    }

    /// Hints the Stack, which shows what its run waits for.
    async fn hint_stack(&self, hint: &LaunchHint, update: &Update) -> Result<(), Error> {
        let Some(stack) = update.stack(&self.settings.system_namespace) else { return Ok(()) };
        let object = hint.update.sibling("pulumi.com/v1", "Stack", &stack.name);
        if let Some(next) = Hint::after(hint.hops, ObjectKey { namespace: stack.namespace, ..object }) {
            self.queues.hint(&next, 0).await?;
        }
        Ok(())
    }
}
