//! The policy packs that a run is held to: the trees that the policies of the cluster pin by their
//! digests.

use driftless_api::{PLAN_POLICIES, governance};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{ArtifactDigest, LaunchHint, ObjectKey, Operation, RunPack, keys};
use driftless_core::{Governance, PolicyPack, invalid_digest, invalid_object, run::WaitReason};
use driftless_kubernetes::{Cluster, rules_of};
use sha2::{Digest as _, Sha256};

use crate::{Error, Launcher, Stop, request::Request, spec::StoredTree};

/// The maximum number of packs of a run: each is a process of its own beside the program.
const MAX_PACKS: usize = 10;

/// The API version of the sources of policy packs.
const SOURCES: &str = "source.toolkit.fluxcd.io/v1";

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// The policy packs of a run, and their trees: those of all policies that select its namespace.
    /// Only runs with a plan have any, because no other run of such a namespace changes resources,
    /// and only `preview` and `up` of Pulumi take them.
    pub(crate) async fn policy_packs(
        &self,
        hint: &LaunchHint,
        request: &Request,
    ) -> Result<(Vec<RunPack>, Vec<StoredTree>), Stop> {
        let (mut packs, mut trees) = (Vec::new(), Vec::new());
        let Some(stack) = request.stack.as_ref().filter(|_| request.plan.is_some()) else { return Ok((packs, trees)) };
        if !matches!(request.operation, Operation::Up | Operation::Preview) {
            return Ok((packs, trees));
        }
        let read = rules_of(self.cluster, PLAN_POLICIES, &hint.update.cluster, &stack.namespace).await?;
        let policies = match governance(read) {
            Governance::Known { policies, .. } => policies,
            Governance::Unreadable(why) => return Err(unavailable(format!("the PlanPolicies cannot be read: {why}"))),
            Governance::Unread => Vec::new(),
        };
        for policy in policies {
            if let Err(why) = &policy.rules {
                return Err(unavailable(format!("PlanPolicy {:?} cannot be read: {why}", policy.name)));
            }
            if packs.len() + policy.packs.len() > MAX_PACKS {
                return Err(unavailable(format!(
                    "the PlanPolicies that select namespace {:?} have more than {MAX_PACKS} packs, with those of {:?}; merge some of them",
                    stack.namespace, policy.name
                )));
            }
            for PolicyPack { name, kind, namespace, source, digest, dir } in policy.packs {
                let mut pack = RunPack { policy: policy.name.clone(), name, dir, manifest_sha256: String::new() };
                let at = format!("{pack}: spec.policyPacks");
                let invalid = invalid_object(&format!("{at}.sourceRef"), SOURCES, &kind, &source)
                    .or_else(|| invalid_digest(&format!("{at}.digest"), &digest));
                if let Some(why) = invalid {
                    return Err(unavailable(why));
                }
                let object = ObjectKey { namespace, ..hint.update.sibling(SOURCES, &kind, &source) };
                let folder = keys::tree(&object, &digest);
                let Some(manifest) = self.objects.get(&folder.manifest()).await? else {
                    let why = self.why_no_pack(&object, &digest).await?;
                    let place = format!("{kind} {source:?} in namespace {:?}", object.namespace);
                    self.request_tree(hint, object, &folder).await?;
                    return Err(unavailable(format!(
                        "{at}.digest is {digest}, and that content of {place} is not stored: {why}"
                    )));
                };
                pack.manifest_sha256 = base16ct::lower::encode_string(&Sha256::digest(&manifest));
                packs.push(pack);
                trees.push(StoredTree { source: object, folder, manifest });
            }
        }
        Ok((packs, trees))
    }

    /// Why the tree of a pack is missing, from the last fetch of its source.
    async fn why_no_pack(&self, source: &ObjectKey, digest: &ArtifactDigest) -> Result<String, Error> {
        let outcome = self.objects.read(&keys::fetch(source)).await?;
        Ok(match outcome.map(|outcome| (outcome.subject, outcome.failure)) {
            Some((subject, Some(failure))) if [digest.as_str(), ""].contains(&subject.as_str()) => failure.message,
            Some((subject, _)) if subject != digest.as_str() => {
                format!(
                    "its artifact has the digest {subject}; correct one of them, so that the source offers what the policy names"
                )
            }
            _ => "it is being fetched, which needs the source to exist in a namespace that Driftless watches".into(),
        })
    }
}

fn unavailable(message: String) -> Stop {
    Stop::wait(WaitReason::PolicyPackUnavailable, message)
}
