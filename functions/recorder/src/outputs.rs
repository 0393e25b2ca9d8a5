//! A stack's outputs: in clear in a Secret, and masked everywhere else.

use std::collections::BTreeMap;

use driftless_api::{Update, names};
use driftless_aws::Objects;
use driftless_contract::{Outcome, OutputValue, RunResult, from_json};
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventType};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Resource as _, ResourceExt as _, core::ObjectMeta};
use serde_json::Value;

use crate::{Error, Ports, sha256, told};

/// What stands for a secret value, as in PKO.
const MASK: &str = "[secret]";

/// The outputs, a secret one as a whole replaced.
pub(crate) fn masked(outputs: &BTreeMap<String, OutputValue>) -> BTreeMap<String, Value> {
    let mask = |output: &OutputValue| if output.secret { MASK.into() } else { output.value.clone() };
    outputs.iter().map(|(name, output)| (name.clone(), mask(output))).collect()
}

/// Creates the outputs Secret of an Update from the very result that the outcome was made from. Its name, if there are outputs.
pub(crate) async fn store<C: Cluster, O: Objects, Q, T>(
    ports: &Ports<'_, C, O, Q, T>,
    update: &Update,
    outcome: &Outcome,
    task: &str,
    now: Timestamp,
) -> Result<Option<String>, Error> {
    if outcome.outputs.as_ref().is_none_or(BTreeMap::is_empty) {
        return Ok(None);
    }
    let Some(document) = told(ports.objects, task, "result").await? else {
        // It is deleted when the Secret is there, or could not be made: the status that was written then says which.
        if update.is_complete() {
            return Ok(update.status.as_ref().and_then(|status| status.outputs.clone()));
        }
        return match is_stored(ports.cluster, update, None).await {
            Ok(stored) => Ok(stored.then(|| name(update))),
            Err(error) if error.is_transient() => Err(error.into()),
            Err(_) => Ok(None),
        };
    };
    if outcome.result_sha256.as_deref() != Some(&sha256(&document)) {
        tracing::error!(update = %outcome.run.update, "the result changed before its outputs were stored");
        return Ok(None);
    }
    let result: RunResult = from_json("result", &document)?;
    let secret = secret(update, &result.outputs.unwrap_or_default());
    let bind = "bind the ClusterRole driftless:run-outputs in this namespace (infra/kubernetes/runs) and run again";
    let created = match ports.cluster.create(&secret).await {
        Err(KubernetesError::Conflict { .. }) => is_stored(ports.cluster, update, Some(&secret)).await,
        created => created.map(|_| true),
    };
    let why = match created {
        Ok(true) => return Ok(Some(secret.name_any())),
        Ok(false) => format!("the Secret {} is there and is not this Update's; delete it and run again", secret.name_any()),
        Err(KubernetesError::Permanent { message, .. }) => format!("the outputs Secret could not be created: {message}; {bind}"),
        // It goes, and nobody is left to read them.
        Err(KubernetesError::NamespaceTerminating { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    ports.cluster.event(update, EventType::Warning, "OutputsNotStored", &why, None, now).await;
    Ok(None)
}

/// Whether the Update's outputs Secret exists, with the contents of `expected` if given. A Secret of an earlier Update, or one with a forged
/// owner, can have the same name.
async fn is_stored<C: Cluster>(cluster: &C, update: &Update, expected: Option<&Secret>) -> Result<bool, KubernetesError> {
    let found = cluster.get::<Secret>(&update.namespace().unwrap_or_default(), &name(update)).await?;
    let is_ours = |found: &Secret| found.owner_references().iter().any(|owner| Some(&owner.uid) == update.metadata.uid.as_ref());
    let is_same =
        |found: &Secret| expected.is_none_or(|expected| found.immutable == expected.immutable && found.data == expected.data);
    Ok(found.is_some_and(|found| is_ours(&found) && is_same(&found)))
}

fn name(update: &Update) -> String {
    format!("{}{}", update.name_any(), names::OUTPUTS_SUFFIX)
}

fn secret(update: &Update, outputs: &BTreeMap<String, OutputValue>) -> Secret {
    let key = |name: &str| name.replace(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c)), "_");
    let secrets: Vec<&String> = outputs.iter().filter(|(_, output)| output.secret).map(|(name, _)| name).collect();
    let labels = [(names::AUTO_COMPONENT, names::AUTO_COMPONENT_UPDATE.to_owned())];
    Secret {
        metadata: ObjectMeta {
            name: Some(name(update)),
            namespace: update.namespace(),
            labels: Some(labels.into_iter().map(|(label, value)| (label.to_owned(), value)).collect()),
            annotations: Some([(names::SECRET_OUTPUTS.to_owned(), serde_json::json!(secrets).to_string())].into()),
            owner_references: update.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(outputs.iter().map(|(name, output)| (key(name), ByteString(output.value.to_string().into_bytes()))).collect()),
        ..Secret::default()
    }
}
