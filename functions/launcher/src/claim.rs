//! The claim of a Pulumi stack: a Lease in the system's own namespace, whose holder is an Update's
//! uid.

use driftless_api::{Update, names, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Launch, ObjectKey, RunHint, RunId, Uid,
    keys::{self, RunFolder},
};
use driftless_core::run::{AbandonReason, ClaimFacts, ClaimPlan, WaitReason, is_swept, plan_claim};
use driftless_kubernetes::{Cluster, Error, admissions};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{ResourceExt as _, core::ObjectMeta};

use crate::{Launcher, Stop};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Takes the claim for a run, unless the run holds it. The recorder releases it.
    pub(crate) async fn take_claim(&self, run: &RunId, is_check: bool) -> Result<(), Stop> {
        let holder = (names::UPDATE.to_owned(), format!("{}/{}", run.update.namespace, run.update.name));
        let check = is_check.then(|| (names::DRIFT_CHECK.to_owned(), "true".to_owned()));
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(run.claim.to_string()),
                namespace: Some(self.settings.system_namespace.clone()),
                annotations: Some([holder].into_iter().chain(check).collect()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec { holder_identity: Some(run.uid.to_string()), ..LeaseSpec::default() }),
        };
        match self.cluster.create(&lease).await {
            Ok(_) => Ok(()),
            // It was released in between: the next reconciliation takes it.
            Err(error @ Error::Conflict { .. }) => {
                if self.has_claim(run, is_check).await? {
                    Ok(())
                } else {
                    Err(error.into())
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether a run without an owner holds its claim or a slot, left from an interrupted
    /// launch.
    pub(crate) async fn holds_claim_or_slot(&self, folder: &RunFolder) -> Result<bool, crate::Error> {
        let Some(Launch { run, .. }) = self.objects.read(&folder.launch()).await? else { return Ok(false) };
        let lease = self.cluster.get::<Lease>(&self.settings.system_namespace, run.claim.as_str()).await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        if holder.is_some_and(|holder| run.uid == *holder) {
            return Ok(true);
        }
        let (_, all) = admissions::read(self.cluster, &self.settings.system_namespace).await?;
        Ok(all.running.contains_key(&run.uid))
    }

    /// `Ok(true)`: this run holds the claim; `Ok(false)`: it is free; an error names the run that
    /// holds it.
    pub(crate) async fn has_claim(&self, run: &RunId, is_check: bool) -> Result<bool, Stop> {
        let Some(mut lease) = self.cluster.get::<Lease>(&self.settings.system_namespace, run.claim.as_str()).await? else {
            return Ok(false);
        };
        let uid = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref()).map(Uid::from);
        let annotations = lease.annotations();
        let claim = ClaimFacts {
            holder: uid.as_ref(),
            is_of_check: annotations.contains_key(names::DRIFT_CHECK),
            is_marked: annotations.contains_key(names::WAITED),
        };
        let ClaimPlan::Wait { mark, preempt } = plan_claim(&run.uid, is_check, claim) else { return Ok(true) };
        if mark {
            lease.annotations_mut().insert(names::WAITED.into(), "true".into());
            // After a conflict, the claim may have another holder.
            self.cluster.replace(&lease).await?;
        }
        let annotations = lease.metadata.annotations.unwrap_or_default();
        if let Some(uid) = uid.as_ref().filter(|_| preempt) {
            let folder = keys::run(&run.update.cluster, uid);
            if !self.abandon(&folder, &AbandonReason::Preempted).await?
                && let Some(task) = self.objects.read(&folder.owner()).await?.and_then(|owner| owner.task)
            {
                self.tasks.stop(&task, "another run of the same Pulumi stack is waiting").await?;
            }
        }
        let by = annotations.get(names::UPDATE).map_or("another Update", String::as_str);
        if let Some((namespace, name)) = by.split_once('/') {
            let holder = match self.cluster.get::<Update>(namespace, name).await {
                // The recorder ends its run.
                Err(Error::Unreadable { .. }) => None,
                holder => holder?,
            };
            let holder = holder.map(|holder| (uid_of(&holder), holder.facts(&self.settings.system_namespace, self.now)));
            if preempt || !is_swept(uid.as_ref(), holder.as_ref().map(|(uid, update)| (uid, update))) {
                let update = ObjectKey { namespace: namespace.into(), name: name.into(), ..run.update.clone() };
                if let Some(hint) = RunHint::after(0, update, uid) {
                    self.queues.run(&hint, 0).await?;
                }
            }
        }
        Err(Stop::wait(WaitReason::StackClaimed, format!("the Pulumi stack is in use by {by}")))
    }
}
