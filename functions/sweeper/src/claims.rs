//! Hints the runs that hold a Pulumi stack although their Update no longer exists, because a user
//! removed its finalizer by force.

use std::collections::HashSet;

use driftless_api::names;
use driftless_aws::Queues;
use driftless_contract::{ObjectKey, RunHint, Uid};
use driftless_kubernetes::{Cluster, Pages, Selector};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;

use crate::Error;

/// The holder of a younger claim may be an Update that was created after the Updates were listed.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Hints the run of every claim whose holder is not an unfinished Update, by its uid. Returns the
/// number of hints.
pub(crate) async fn hint_lost<C: Cluster, Q: Queues>(
    name: &str,
    cluster: &C,
    queues: &Q,
    system_namespace: &str,
    unfinished: &HashSet<Uid>,
    now: Timestamp,
) -> Result<usize, Error> {
    let mut sent = 0;
    let mut pages = Pages::<_, Lease>::new(cluster, Some(system_namespace), Selector::All);
    while let Some(page) = pages.next().await? {
        let lost = page.iter().filter_map(|lease| holder(lease, now)).filter(|(uid, ..)| !unfinished.contains(uid));
        for (uid, namespace, update) in lost {
            let [cluster, api_version, kind, namespace, name] =
                [name, "auto.pulumi.com/v1alpha1", "Update", namespace, update].map(ToOwned::to_owned);
            let update = ObjectKey { cluster, api_version, kind, namespace, name };
            if let Some(hint) = RunHint::after(0, update, Some(uid)) {
                queues.run(&hint, 0).await?;
                sent += 1;
            }
        }
    }
    Ok(sent)
}

/// The uid, the namespace and the name of the Update that holds a claim.
fn holder(lease: &Lease, now: Timestamp) -> Option<(Uid, &str, &str)> {
    let created = lease.metadata.creation_timestamp.as_ref()?.0;
    let uid = lease.spec.as_ref()?.holder_identity.as_deref()?;
    let (namespace, name) = lease.annotations().get(names::UPDATE)?.split_once('/')?;
    (now.duration_since(created) > SETTLED_AFTER).then(|| (uid.into(), namespace, name))
}

#[cfg(test)]
mod tests {
    use driftless_contract::RunMessage;
    use driftless_testkit::{CLUSTER, Faults, Message, World};
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_whose_update_is_gone_is_hinted() {
        let world = World::new(0, Faults::NONE);
        for (name, uid) in [("lost", "1"), ("held", "2")] {
            world.insert(json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "namespace": "system", "name": name, "annotations": { names::UPDATE: format!("team/{name}") } },
                "spec": { "holderIdentity": uid },
            }));
        }
        let slots = json!({ "namespace": "system", "name": "driftless-admissions" });
        world.insert(json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": slots }));
        let unfinished = HashSet::from(["2".into()]);
        let hint = || world.drive(hint_lost(CLUSTER, &world, &world, "system", &unfinished, world.now())).unwrap().unwrap();
        assert_eq!(hint(), 0, "they are young");
        world.advance(SignedDuration::from_mins(2));
        assert_eq!(hint(), 1);
        let [Message::Run(RunMessage::Hint(sent))] = &world.sent()[..] else { panic!("{:?}", world.sent()) };
        assert_eq!(
            (&*sent.update.namespace, &*sent.update.name, sent.uid.as_ref().map(Uid::as_str)),
            ("team", "lost", Some("1"))
        );
    }
}
