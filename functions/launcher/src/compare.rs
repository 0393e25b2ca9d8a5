//! Detects changes of Secrets and ConfigMaps without storing their values: a keyed digest of what
//! the last run and the last plan read is compared with that of what a run would read now.

use driftless_api::{Stack, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Hint, InputsRead, ObjectKey, Uid, VERSION, keys};
use driftless_core::{UpstreamChange, Walk};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use kube::ResourceExt as _;

use crate::{
    Error, Launcher, Stop,
    digest::Key,
    inputs::{Inputs, Values},
    read,
};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// The digest of a run's inputs; `None` if it names none. One that found none of its optional
    /// inputs has a digest, too, with which a later comparison sees that they exist.
    pub(crate) async fn inputs_digest(&self, stack_uid: &Uid, values: Option<&Values>) -> Result<Option<String>, Error> {
        let Some(values) = values else { return Ok(None) };
        Ok(Some(digest(&Key::read(self.objects, self.settings).await?, stack_uid, values)))
    }

    /// Computes the digest of the current inputs of a Stack. Hints the Stack if the digest differs
    /// from the one of its last plan or run. A missing object counts as no change, because a run
    /// would only wait for it.
    pub(crate) async fn compare_inputs(&self, object: &ObjectKey) -> Result<(), Error> {
        let Some(stack) = self.cluster.get::<Stack>(&object.namespace, &object.name).await? else { return Ok(()) };
        let uid = uid_of(&stack);
        let (Some(last), None) = (stack.read_inputs(), &stack.metadata.deletion_timestamp) else { return Ok(()) };
        let digest = self.digest_now(&stack).await?.unwrap_or_else(|| last.to_owned());
        let changed = last != digest;
        let waits_for = if changed { self.pending(&stack).await? } else { None };
        let compared = InputsRead { version: VERSION, digest, at: self.now, waits_for };
        self.objects.write(&keys::inputs(&object.cluster, &uid), &compared).await?;
        // One that waits may no longer have a reason to run.
        let waits = stack.status.as_ref().and_then(|status| status.driftless.as_ref()?.waits_for.as_ref()).is_some();
        if changed || waits {
            self.queues.hint(&Hint::new(object.clone()), 0).await?;
        }
        Ok(())
    }

    /// The digest of what a run of a Stack would read now; `None` if an object is missing.
    async fn digest_now(&self, stack: &Stack) -> Result<Option<String>, Error> {
        let namespace = stack.namespace().unwrap_or_default();
        let mut inputs = Inputs::new(self.cluster, &namespace);
        let (workspace, at) = (stack.workspace(), "spec.workspaceTemplate.spec");
        let read = async {
            let mounted = workspace.task(at).mounted_files().map_err(Stop::invalid)?;
            read::read(&mut inputs, &workspace, &mounted, at, &stack.spec.stack).await
        };
        match read.await {
            Ok(_) => {
                let digest = self.inputs_digest(&uid_of(stack), inputs.values().as_ref()).await?;
                Ok(Some(digest.unwrap_or_default()))
            }
            Err(Stop::Wait(reason, message)) => {
                tracing::info!(namespace, stack = stack.name_any(), %reason, message, "cannot compare the inputs of a Stack");
                Ok(None)
            }
            Err(Stop::Fail(error)) => Err(error),
        }
    }

    /// Returns a prerequisite, direct or not, whose run may change the inputs of the Stack once
    /// more.
    async fn pending(&self, stack: &Stack) -> Result<Option<String>, Error> {
        let namespace = stack.namespace().unwrap_or_default();
        let required = |stack: &Stack| stack.spec.prerequisites.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        let mut walk = Walk::without([stack.name_any()]);
        walk.add(required(stack));
        while let Some(name) = walk.visit() {
            let found = match self.cluster.get::<Stack>(&namespace, &name).await {
                Err(KubernetesError::Unreadable { .. }) => None,
                found => found?,
            };
            let Some(found) = found else { continue };
            let may_change = match found.upstream().change() {
                UpstreamChange::None => false,
                UpstreamChange::Running => true,
                UpstreamChange::IfNot(ran) => self.digest_now(&found).await?.is_some_and(|digest| digest != ran),
            };
            if may_change {
                return Ok(Some(name));
            }
            walk.add(required(&found));
        }
        Ok(None)
    }
}

/// The Stack is a part of the digest, so that equal digests do not reveal which Stacks read the
/// same values.
fn digest(key: &Key, stack_uid: &Uid, values: &Values) -> String {
    let kinds: Vec<_> = values.keys().map(|(kind, ..)| [*kind as u8]).collect();
    let values = kinds
        .iter()
        .zip(values)
        .flat_map(|(kind, ((_, name, key), value))| [kind.as_slice(), name.as_bytes(), key.as_bytes(), value]);
    base16ct::lower::encode_string(&key.digest([stack_uid.as_str().as_bytes()].into_iter().chain(values)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Kind;

    #[test]
    fn digest_of_inputs_changes_with_every_part_and_with_the_key() {
        let values = |name: &str, key: &str, value: &str| Values::from([((Kind::Secret, name.into(), key.into()), value.into())]);
        let digest = |key: &[u8], uid: &str, values: &Values| digest(&Key::new(key).unwrap(), &uid.into(), values);
        let same = digest(b"k", "uid", &values("db", "password", "hunter2"));
        assert_eq!(same, digest(b"k", "uid", &values("db", "password", "hunter2")));
        // Digests of earlier releases are compared with new ones.
        assert_eq!(same, "498557e834543beaf76d980d49cc94cdc37bfaf69b885fca14907c7d5242f57d");
        for other in [
            digest(b"k2", "uid", &values("db", "password", "hunter2")),
            digest(b"k", "uid2", &values("db", "password", "hunter2")),
            digest(b"k", "uid", &values("db", "password", "hunter3")),
            digest(b"k", "uid", &values("dbp", "assword", "hunter2")),
            digest(b"k", "uid", &Values::new()),
        ] {
            assert_ne!(same, other);
        }
    }
}
