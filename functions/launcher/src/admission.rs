//! Limits of how many runs go on at once: the one list of those that do and those that wait, in a Lease in the system's own namespace.

use driftless_api::Update;
use driftless_aws::Queues;
use driftless_contract::{ObjectKey, Operation, RunHint, RunId, VERSION};
use driftless_core::{Admissions, Applicant};
use driftless_kubernetes::{Cluster, admissions};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use crate::{Ports, Settings, Stop, request::Request};

/// Takes a slot, or finds that the run has one. The recorder releases it when the run is over.
pub(crate) async fn enter<C: Cluster, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    run: &RunId,
    request: &Request,
    now: Timestamp,
) -> Result<(), Stop> {
    let (lease, before, all) = ask(ports, settings, update, run, request, now).await?;
    if all != before {
        // A concurrent writer gets a conflict and requeues.
        admissions::write(ports.cluster, lease, &all).await?;
    }
    Ok(())
}

/// Asks for a slot. Returns the Lease and the list before and after admission, unwritten; a run that must wait is already queued.
pub(crate) async fn ask<C: Cluster, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    run: &RunId,
    request: &Request,
    now: Timestamp,
) -> Result<(Lease, Admissions, Admissions), Stop> {
    let stack = request.stack.as_ref().map(|stack| stack.namespace.clone());
    let applicant = Applicant {
        namespace: run.update.namespace.clone(),
        counts_for: stack.filter(|namespace| *namespace != run.update.namespace),
        name: run.update.name.clone(),
        destroys: request.operation() == Some(Operation::Destroy),
        since: update.creation_timestamp().map_or(now, |created| created.0),
        seen: now,
    };
    let (lease, before) = admissions::read(ports.cluster, &settings.system_namespace).await?;
    let mut all = before.clone();
    let Err(words) = all.admit(settings.limits, &run.uid, applicant) else { return Ok((lease, before, all)) };
    if all == before {
        return Err(Stop::wait("ConcurrencyLimit", words));
    }
    admissions::write(ports.cluster, lease, &all).await?;
    // No more often than the entry is renewed: the hint is handled in the name of the holder's namespace.
    let turn = usize::try_from(now.as_millisecond()).ok().and_then(|now| now.checked_rem(all.running.len()));
    if let Some((uid, holder)) = turn.and_then(|turn| all.running.iter().nth(turn)) {
        // Its run may be over, and nobody else may know of its slot any more: each holder is looked at in time.
        let ObjectKey { api_version, kind, .. } = &run.update;
        let update = ObjectKey { namespace: holder.namespace.clone(), ..run.update.sibling(api_version, kind, &holder.name) };
        ports.queues.run(&RunHint { version: VERSION, update, uid: Some(uid.clone()), hops: 0 }, 0).await?;
    }
    Err(Stop::wait("ConcurrencyLimit", words))
}
