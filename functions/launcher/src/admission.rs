//! Limits of how many runs go on at once: the one list of those that do and those that wait, in a Lease in the system's own namespace.

use driftless_api::Update;
use driftless_aws::Queues;
use driftless_contract::{ObjectKey, Operation, RunHint, VERSION};
use driftless_core::Applicant;
use driftless_kubernetes::{Cluster, admissions};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{Ports, Settings, Stop, spec::Prepared};

/// Asks whether a run may go on. It is forgotten by the recorder when it is over.
pub(crate) async fn enter<C: Cluster, O, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    update: &Update,
    prepared: &Prepared,
    now: Timestamp,
) -> Result<(), Stop> {
    let run = &prepared.run;
    let stack = update.stack(&settings.system_namespace).map(|stack| stack.namespace);
    let applicant = Applicant {
        namespace: run.update.namespace.clone(),
        counts_for: stack.filter(|namespace| *namespace != run.update.namespace),
        name: run.update.name.clone(),
        destroys: prepared.spec.operation == Operation::Destroy,
        since: update.creation_timestamp().map_or(now, |created| created.0),
        seen: now,
    };
    let (lease, mut all) = admissions::read(ports.cluster, &settings.system_namespace).await?;
    let before = all.clone();
    let admitted = all.admit(settings.limits, &run.uid, applicant);
    if all != before {
        // Of two that change it at once one has to look again.
        admissions::write(ports.cluster, lease, &all).await?;
    }
    let Err(words) = admitted else { return Ok(()) };
    let turn = usize::try_from(now.as_millisecond()).ok().and_then(|now| now.checked_rem(all.running.len()));
    if let Some((uid, holder)) = turn.and_then(|turn| all.running.iter().nth(turn)) {
        // Its run may be over, and nobody else may know of its place any more: each holder is looked at in time.
        let ObjectKey { api_version, kind, .. } = &run.update;
        let update = ObjectKey { namespace: holder.namespace.clone(), ..run.update.sibling(api_version, kind, &holder.name) };
        ports.queues.run(&RunHint { version: VERSION, update, uid: Some(uid.clone()), hops: 0 }, 0).await?;
    }
    Err(Stop::wait("ConcurrencyLimit", words))
}
