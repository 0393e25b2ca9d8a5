//! The sweeper makes up for every event that was lost: on a schedule it hints what is due. It decides nothing else, and what it hints
//! goes the way of every other hint.

use driftless_api::{Stack, Update, names};
use driftless_aws::Queues;
use driftless_contract::{Hint, ObjectKey};
use driftless_core::{Stack as CoreStack, due};
use driftless_kubernetes::Cluster;
use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt as _};

/// An Update that is not complete, or not released, is hinted when it is older than this: its launch, its record or the look at its
/// Stack may have got lost.
const UNFINISHED_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// What an installation sets.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time between two sweeps, in seconds: the schedule's.
    pub tick_seconds: i64,
    /// Every Stack is looked at once in this time, even if nothing is known to be due.
    pub period_seconds: i64,
}

/// Why a sweep failed. The next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AWS.
    #[error(transparent)]
    Aws(#[from] driftless_aws::Error),
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] driftless_kubernetes::Error),
}

/// Hints what is due in a cluster. How many hints were sent.
pub async fn sweep<C: Cluster, Q: Queues>(
    name: &str,
    cluster: &C,
    queues: &Q,
    settings: Settings,
    now: Timestamp,
) -> Result<usize, Error> {
    let mut hints = 0;
    for stack in cluster.list::<Stack>(None, None).await? {
        if due(&CoreStack::from(&stack), settings.period_seconds, settings.tick_seconds, now) {
            queues.hint(&Hint::new(key(name, &stack)), 0).await?;
            hints += 1;
        }
    }
    for update in cluster.list::<Update>(None, None).await? {
        let age = update.creation_timestamp().map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
        let released = !update.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER);
        if !(update.is_complete() && released) && age > UNFINISHED_AFTER {
            queues.hint(&Hint::new(key(name, &update)), 0).await?;
            hints += 1;
        }
    }
    Ok(hints)
}

fn key<K: Resource<DynamicType = ()>>(cluster: &str, object: &K) -> ObjectKey {
    ObjectKey {
        cluster: cluster.to_owned(),
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}
