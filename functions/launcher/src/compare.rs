//! Detects changes of Secrets and ConfigMaps without storing their values: a keyed digest of what the last run read is compared
//! with that of what a run would read now.

use driftless_api::Stack;
use driftless_aws::{Objects, Queues};
use driftless_contract::{Hint, InputsRead, ObjectKey, VERSION, keys};
use driftless_kubernetes::Cluster;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use kube::ResourceExt as _;
use secrecy::ExposeSecret as _;
use sha2::Sha256;

use crate::{
    Error, Ports, Settings, Stop,
    inputs::{Inputs, Values},
    read,
};

/// The digest of a run's inputs; `None` if it has none.
pub(crate) async fn digest_of<O: Objects>(
    objects: &O,
    settings: &Settings,
    stack_uid: &str,
    values: &Values,
) -> Result<Option<String>, Error> {
    if values.is_empty() {
        return Ok(None);
    }
    Ok(Some(digest(&key(objects, settings).await?, stack_uid, values)))
}

/// Computes the digest of what a run of a Stack would read now, and hints the Stack if that differs from the last run's. A
/// missing object counts as no change, because a run would only wait for it.
pub(crate) async fn compare<C: Cluster, O: Objects, Q: Queues, T>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    object: &ObjectKey,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(stack) = ports.cluster.get::<Stack>(&object.namespace, &object.name).await? else { return Ok(()) };
    let uid = stack.uid().unwrap_or_default();
    let status = stack.status.as_ref().and_then(|status| status.driftless.as_ref());
    let (Some(ran), None) = (status.and_then(|ours| ours.inputs.clone()), &stack.metadata.deletion_timestamp) else {
        return Ok(());
    };
    let mut inputs = Inputs::new(ports.cluster, &object.namespace);
    let (workspace, at) = (stack.workspace(), "spec.workspaceTemplate.spec");
    let read = async {
        let mounted = workspace.mounted_files(at).map_err(Stop::invalid)?;
        read::read(&mut inputs, &workspace, &mounted, at, &stack.spec.stack).await
    };
    let digest = match read.await {
        Ok(_) => digest_of(ports.objects, settings, &uid, &inputs.values()).await?.unwrap_or_default(),
        Err(Stop::Wait(reason, message)) => {
            tracing::info!(stack = %object, %reason, message, "cannot compare the inputs of a Stack");
            ran.clone()
        }
        Err(Stop::Fail(error)) => return Err(error),
    };
    let changed = digest != ran;
    let read = InputsRead { version: VERSION, digest, at: now };
    ports.objects.write(&keys::inputs(&object.cluster, &uid), &read).await?;
    if changed {
        ports.queues.hint(&Hint::new(object.clone()), 0).await?;
    }
    Ok(())
}

/// The key of all digests, created by the first launcher that needs it.
async fn key<O: Objects>(objects: &O, settings: &Settings) -> Result<Vec<u8>, Error> {
    if let Some(key) = objects.get(keys::INPUTS_KEY).await? {
        return Ok(key);
    }
    let fresh = settings.fresh_key.expose_secret().to_vec();
    if objects.put_new(keys::INPUTS_KEY, fresh.clone()).await? {
        return Ok(fresh);
    }
    Ok(objects.get(keys::INPUTS_KEY).await?.unwrap_or_default())
}

/// Each part is preceded by its length, so that different lists never have the same bytes. The Stack is one of them, so that
/// equal digests do not reveal which Stacks read the same values.
fn digest(key: &[u8], stack_uid: &str, values: &Values) -> String {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    let mut part = |bytes: &[u8]| {
        mac.update(&(bytes.len() as u64).to_be_bytes());
        mac.update(bytes);
    };
    part(stack_uid.as_bytes());
    for ((kind, name, key), value) in values {
        part(&[*kind as u8]);
        [name.as_bytes(), key.as_bytes(), value].into_iter().for_each(&mut part);
    }
    base16ct::lower::encode_string(&mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Kind;

    #[test]
    fn a_digest_changes_with_every_part_and_with_the_key() {
        let values = |name: &str, key: &str, value: &str| Values::from([((Kind::Secret, name.into(), key.into()), value.into())]);
        let same = digest(b"k", "uid", &values("db", "password", "hunter2"));
        assert_eq!(same, digest(b"k", "uid", &values("db", "password", "hunter2")));
        assert_eq!(same.len(), 64);
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
