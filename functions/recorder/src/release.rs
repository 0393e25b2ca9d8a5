//! Releases what a run held, and wakes the Updates that wait for it.

use std::{collections::BTreeSet, iter};

use driftless_api::{Update, names};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{LaunchHint, ObjectKey, Outcome, Resources, RunHint, RunId, VERSION, Verdict, keys};
use driftless_core::{Operation, run::WaitReason};
use driftless_kubernetes::{Cluster, Error as KubernetesError, Pages, Selector, admissions};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use crate::{Error, Recorder};

/// The number of Updates that wait for a claim and are woken at once. The sweep hints the others.
const WOKEN: usize = 50;
/// Waiting Updates are hinted a second apart, so that the first one wins, up to this delay.
const LAST_AFTER_SECONDS: u16 = 5;

/// The number of Updates that are woken for one free slot, because the first may have been deleted.
const CALLED: usize = 2;

/// Pulumi's operations on resources that exist afterwards.
const LEFT: [&str; 7] = ["same", "create", "update", "replace", "import", "read", "refresh"];

/// Other functions change the Leases at the same time.
const TRIES: u32 = 4;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Releases the claim and the slot of a run. Idempotent.
    pub(crate) async fn release(&self, hint: &RunHint, update: Option<&Update>, outcome: &Outcome) -> Result<(), Error> {
        if self.release_claim(update, outcome).await? {
            self.wake(hint, self.claimants(update, &outcome.run.update).await).await;
        }
        self.wake(hint, self.release_slot(&outcome.run).await?).await;
        Ok(())
    }

    /// Wakes Updates that may start, one after another.
    async fn wake(&self, hint: &RunHint, updates: Vec<ObjectKey>) {
        let delays = (0..LAST_AFTER_SECONDS).chain(iter::repeat(LAST_AFTER_SECONDS));
        for (update, delay_seconds) in updates.into_iter().zip(delays) {
            let Some(launch) = LaunchHint::after(hint.hops, update) else { return };
            if let Err(error) = self.queues.launch(&launch, delay_seconds).await {
                tracing::warn!(update = %launch.update, %error, "cannot wake a waiting Update; the sweep hints it");
            }
        }
    }

    /// Counts the resources that a run left, and releases its claim. Returns whether another run
    /// may wait for the claim.
    async fn release_claim(&self, of: Option<&Update>, outcome: &Outcome) -> Result<bool, Error> {
        let RunId { update, uid, claim } = &outcome.run;
        if claim.is_empty() {
            return Ok(false);
        }
        if has_updated(outcome) {
            let count =
                LEFT.iter().filter_map(|operation| outcome.changes.get(*operation)).fold(0_u64, |sum, n| sum.saturating_add(*n));
            let left = Resources { version: VERSION, count: u32::try_from(count).unwrap_or(u32::MAX) };
            self.objects.write(&keys::resources(&update.cluster, claim), &left).await?;
        }
        let held = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(uid.as_str());
        let mut tries = TRIES;
        loop {
            let lease = self.cluster.get::<Lease>(&self.settings.system_namespace, claim.as_str()).await?;
            // A recorder that was interrupted before the Update was complete may have deleted the
            // Lease and woken no Update.
            let Some(lease) = lease.filter(held) else { return Ok(of.is_none_or(|update| !update.is_complete())) };
            tries -= 1;
            match self.cluster.delete(&lease).await {
                Ok(()) => return Ok(lease.annotations().contains_key(names::WAITED)),
                // Another run has just started to wait for the claim.
                Err(KubernetesError::Conflict { .. }) if tries > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The Updates that wait for a claim in the namespace that a run counts for: destroys first,
    /// then the oldest. Each of them checks itself whether it waits for this claim.
    async fn claimants(&self, update: Option<&Update>, run: &ObjectKey) -> Vec<ObjectKey> {
        let system = &self.settings.system_namespace;
        let stack = update.and_then(|update| update.stack(system));
        // A Stack in a terminating namespace has its Update in the system namespace.
        let namespaces = BTreeSet::from([stack.map_or_else(|| run.namespace.clone(), |stack| stack.namespace), system.clone()]);
        let rank = |update: &Update| {
            let destroys = update.spec.operation.as_deref() == Some(Operation::Destroy.as_str());
            let created = update.creation_timestamp().map(|created| created.0);
            (!destroys, created, update.name_any(), update.namespace().unwrap_or_default())
        };
        let mut waiting = Vec::new();
        // Any user may have written the status, but it only leads to a reconciliation.
        let selector = format!("status.driftless.waitingReason={}", WaitReason::StackClaimed);
        for namespace in &namespaces {
            let mut pages = Pages::<_, Update>::new(self.cluster, Some(namespace), Selector::Fields(&selector));
            loop {
                match pages.next().await {
                    Ok(Some(page)) => waiting.extend(page.iter().filter(|update| !update.is_complete()).map(rank)),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(namespace, %error, "cannot list the Updates that wait for a claim; the sweep hints them");
                        break;
                    }
                }
                waiting.sort();
                waiting.truncate(WOKEN);
            }
        }
        waiting.into_iter().map(|(.., name, namespace)| beside(run, &namespace, &name)).collect()
    }

    /// Releases the slot, where there are limits. Returns the Updates that are next.
    async fn release_slot(&self, run: &RunId) -> Result<Vec<ObjectKey>, Error> {
        for tries_left in (0..TRIES).rev() {
            let (lease, mut admissions) = admissions::read(self.cluster, &self.settings.system_namespace).await?;
            if !admissions.release(&run.uid) {
                break;
            }
            match admissions::write(self.cluster, lease, &admissions).await {
                Ok(()) => {
                    let next = admissions.queue().into_iter().take(CALLED);
                    return Ok(next.map(|(_, waiter)| beside(&run.update, &waiter.namespace, &waiter.name)).collect());
                }
                Err(KubernetesError::Conflict { .. }) if tries_left > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Vec::new())
    }
}

/// Returns whether a run succeeded with more than a preview, which may skip the check for a lock
/// and does not count resources.
pub(crate) fn has_updated(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Succeeded {}) && !outcome.preview && !outcome.run.claim.is_empty()
}

/// Another Update of the same cluster.
fn beside(update: &ObjectKey, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.into(), name: name.into(), ..update.clone() }
}
