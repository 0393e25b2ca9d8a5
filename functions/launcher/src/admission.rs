//! The limits on concurrent runs: one list of the runs with a slot and the waiting ones, in a Lease
//! in the system's own namespace.

use driftless_api::Update;
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{ObjectKey, Operation, RunHint, RunId, Uid};
use driftless_core::{Admissions, Applicant, run::WaitReason};
use driftless_kubernetes::{Cluster, admissions};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use crate::{Launcher, Stop, request::Request};

/// A slot that a run may take but has not taken.
pub(crate) struct Offer {
    lease: Lease,
    /// The list without the run, and with it.
    before: Admissions,
    after: Admissions,
}

impl Offer {
    /// Takes the slot. The recorder releases it when the run has ended.
    pub(crate) async fn take<C: Cluster>(self, cluster: &C) -> Result<(), Stop> {
        if self.after != self.before {
            // A concurrent writer gets a conflict and requeues.
            admissions::write(cluster, self.lease, &self.after).await?;
        }
        Ok(())
    }

    /// Leaves the slot to another namespace: a run that cannot start would block it until its entry
    /// is ignored.
    pub(crate) async fn decline<C: Cluster>(self, cluster: &C, uid: &Uid, now: Timestamp) {
        let mut without = self.before;
        if without.decline(uid, now)
            && let Err(error) = admissions::write(cluster, self.lease, &without).await
        {
            tracing::info!(%uid, %error, "a run that cannot start keeps its queue position until it expires");
        }
    }
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Asks for a slot. A run that must wait is queued.
    pub(crate) async fn ask_for_slot(&self, update: &Update, run: &RunId, request: &Request) -> Result<Offer, Stop> {
        let stack = request.stack.as_ref().map(|stack| stack.namespace.clone());
        let applicant = Applicant {
            namespace: run.update.namespace.clone(),
            counts_for: stack.filter(|namespace| *namespace != run.update.namespace),
            name: run.update.name.clone(),
            destroys: request.operation == Operation::Destroy,
            since: update.creation_timestamp().map_or(self.now, |created| created.0),
            seen: self.now,
        };
        let (lease, before) = admissions::read(self.cluster, &self.settings.system_namespace).await?;
        let mut all = before.clone();
        let Err(words) = all.admit(self.settings.limits, &run.uid, applicant) else {
            return Ok(Offer { lease, before, after: all });
        };
        if all == before {
            return Err(Stop::wait(WaitReason::ConcurrencyLimit, words));
        }
        admissions::write(self.cluster, lease, &all).await?;
        // Only when the entry is renewed, because the hint counts as a message of the namespace of
        // the holder.
        let turn = usize::try_from(self.now.as_millisecond()).ok().and_then(|millis| millis.checked_rem(all.running.len()));
        if let Some((uid, holder)) = turn.and_then(|turn| all.running.iter().nth(turn)) {
            // The holder's run may have ended without releasing the slot, so each holder is hinted
            // in turn.
            let ObjectKey { api_version, kind, .. } = &run.update;
            let update = ObjectKey { namespace: holder.namespace.clone(), ..run.update.sibling(api_version, kind, &holder.name) };
            if let Some(hint) = RunHint::after(0, update, Some(uid.clone())) {
                self.queues.run(&hint, 0).await?;
            }
        }
        Err(Stop::wait(WaitReason::ConcurrencyLimit, words))
    }
}
