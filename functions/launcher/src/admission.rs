//! Limits of how many runs go on at once: the one list of those that do and those that wait, in a Lease in the system's own namespace.

use driftless_api::Update;
use driftless_aws::Queues;
use driftless_contract::{ObjectKey, Operation, RunHint, VERSION, keys, to_json};
use driftless_core::{Admissions, Applicant};
use driftless_kubernetes::{Cluster, Error};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt as _, core::ObjectMeta};

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
    let applicant = Applicant {
        namespace: run.update.namespace.clone(),
        name: run.update.name.clone(),
        destroys: prepared.spec.operation == Operation::Destroy,
        since: update.creation_timestamp().map_or(now, |created| created.0),
        seen: now,
    };
    let (lease, mut all) = read(ports.cluster, settings).await?;
    let before = all.clone();
    let admitted = all.admit(settings.limits, &run.uid, applicant);
    if all != before {
        write(ports.cluster, lease, &all).await?;
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

async fn read<C: Cluster>(cluster: &C, settings: &Settings) -> Result<(Lease, Admissions), Error> {
    let namespace = &settings.system_namespace;
    let Some(lease) = cluster.get::<Lease>(namespace, keys::ADMISSIONS).await? else {
        let (name, namespace) = (Some(keys::ADMISSIONS.into()), Some(namespace.clone()));
        let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
        return Ok((Lease { metadata, spec: None }, Admissions::default()));
    };
    let all = lease.annotations().get(keys::ADMISSIONS_ANNOTATION).map(|text| serde_json::from_str(text)).transpose();
    let all = all.map_err(|error| Error::Permanent {
        call: format!("read Lease {namespace}/{}", keys::ADMISSIONS),
        message: format!("its annotation {} cannot be read: {error}; delete the Lease", keys::ADMISSIONS_ANNOTATION),
    })?;
    Ok((lease, all.unwrap_or_default()))
}

/// Over the version that was read: of two that change it at once one has to look again.
async fn write<C: Cluster>(cluster: &C, mut lease: Lease, all: &Admissions) -> Result<(), Error> {
    lease.annotations_mut().insert(keys::ADMISSIONS_ANNOTATION.into(), to_json(all));
    if lease.metadata.resource_version.is_some() {
        cluster.replace(&lease).await.map(drop)
    } else {
        cluster.create(&lease).await.map(drop)
    }
}
