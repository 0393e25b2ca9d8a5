//! A stack's outputs: in clear in a Secret, and masked and bounded everywhere else.

use std::collections::{BTreeMap, BTreeSet};

use driftless_api::{Update, names};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Document as _, Outcome, OutputValue, PREFIX, RunResult, keys::TaskFolder, to_json};
use driftless_core::output_keys;
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventMarks, EventReason, EventType};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{ResourceExt as _, core::ObjectMeta};
use serde_json::Value;

use crate::{Error, Recorder, document::sha256, owned};

/// The replacement of a secret value, as in PKO.
const MASK: &str = "[secret]";

/// The maximum size of the outputs in a status, in bytes. The API server records the path of each
/// value beside it, which is up to three times as long, and etcd accepts objects up to 1.5 MiB.
const MAX_SHOWN: usize = 256 << 10;

/// The replacement of an output that no Secret holds.
const TOO_LARGE: &str = "[not stored: the outputs exceed 1 MiB; make this one smaller]";

/// The outputs for a status: secret ones are masked, and the largest are replaced by a note until
/// the others fit. `left_out` names the outputs that `secret`, the outputs Secret, does not hold.
pub(crate) fn shown(outputs: &BTreeMap<String, OutputValue>, left_out: &[String], secret: &str) -> BTreeMap<String, Value> {
    let keys = output_keys(outputs.keys().map(String::as_str));
    let mask = |output: &OutputValue| if output.secret { MASK.into() } else { output.value.clone() };
    let mut shown: BTreeMap<_, _> = outputs.iter().map(|(name, output)| (name.clone(), mask(output))).collect();
    let left_out: BTreeSet<_> = left_out.iter().collect();
    shown.extend(left_out.iter().map(|name| ((*name).clone(), TOO_LARGE.into())));
    let size = |name: &str, value: &Value| written(&to_json(&name)) + written(&to_json(value)) + 2;
    let mut by_size: Vec<_> = shown.iter().map(|(name, value)| (size(name, value), name.clone())).collect();
    by_size.sort_unstable_by(|a, b| b.cmp(a));
    let mut total: usize = by_size.iter().map(|(size, _)| size).sum();
    for (before, name) in by_size {
        if total <= MAX_SHOWN {
            return shown;
        }
        let key = keys.get(name.as_str()).map_or("", String::as_str);
        let note = format!("[not shown: the outputs exceed 256 KiB; see key {key:?} of Secret {secret:?}]");
        let after = size(&name, &note.as_str().into());
        if after < before && !left_out.contains(&name) {
            total -= before - after;
            shown.insert(name, note.into());
        }
    }
    if total <= MAX_SHOWN {
        return shown;
    }
    // The names alone are too long.
    let note = format!("[not shown: {} outputs exceed 256 KiB; see Secret {secret:?}]", shown.len());
    [(format!("{PREFIX}/outputs"), note.into())].into()
}

/// The length of a JSON text in an object. Kubernetes writes `<`, `>` and `&` as six bytes each.
fn written(json: &str) -> usize {
    json.bytes().map(|byte| if b"<>&".contains(&byte) { 6 } else { 1 }).sum()
}

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Creates the outputs Secret of an Update, and writes the objects that its Stack names, from
    /// exactly the result that the outcome was made from. `result` is the task's result if it was
    /// just read. Returns the name of the Secret, if there are outputs.
    pub(crate) async fn store_outputs(
        &self,
        update: &Update,
        outcome: &Outcome,
        task: &TaskFolder,
        result: Option<Vec<u8>>,
    ) -> Result<Option<String>, Error> {
        match &outcome.outputs {
            None => return Ok(None),
            Some(outputs) if outputs.is_empty() => {
                self.write_named_outputs(update, outcome, &BTreeMap::new()).await?;
                return Ok(None);
            }
            Some(_) => {}
        }
        let document = match result {
            Some(document) => Some(document),
            None => self.read_report(&task.result()).await?,
        };
        let Some(document) = document else {
            // The result is deleted once the Secret exists or cannot be created: the status then
            // has its name or the reason.
            if update.is_complete() {
                return Ok(update.status.as_ref().and_then(|status| status.outputs.clone()));
            }
            return match self.has_outputs_secret(update, None).await {
                Ok(stored) => Ok(stored.then(|| name(&update.name_any()))),
                Err(error) if error.is_transient() => Err(error.into()),
                Err(_) => Ok(None),
            };
        };
        let result = match RunResult::parse(&document) {
            Ok(result) if outcome.result_sha256.as_deref() == Some(&sha256(&document)) => result.fitting(),
            _ => {
                tracing::error!(update = %outcome.run.update, "result changed before its outputs were stored; outputs are not \
                     stored");
                return Ok(None);
            }
        };
        let outputs = result.outputs.unwrap_or_default();
        self.write_named_outputs(update, outcome, &outputs).await?;
        let secret = secret(update, &outputs);
        let created = match self.cluster.create(&secret).await {
            Err(KubernetesError::Conflict { .. }) => self.has_outputs_secret(update, Some(&secret)).await,
            created => created.map(|_| true),
        };
        let why = match created {
            Ok(true) => return Ok(Some(secret.name_any())),
            Ok(false) => owned::is_another("Secret", &secret.name_any()),
            Err(KubernetesError::Permanent { message, .. }) => {
                format!("cannot create the outputs Secret: {message}; {}", owned::BIND)
            }
            // The namespace is deleted, and with it all readers of the outputs.
            Err(KubernetesError::NamespaceTerminating { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.cluster
            .event(update, EventType::Warning, EventReason::OutputsNotStored, &why, EventMarks::default(), self.now)
            .await;
        Ok(None)
    }

    /// Whether the Update's outputs Secret exists, with the contents of `expected` if given. A
    /// Secret of an earlier Update, or one with a forged owner, can have the same name.
    async fn has_outputs_secret(&self, update: &Update, expected: Option<&Secret>) -> Result<bool, KubernetesError> {
        let found = match self.cluster.get::<Secret>(&update.namespace().unwrap_or_default(), &name(&update.name_any())).await {
            // The recorder's own Secret is always readable.
            Err(KubernetesError::Unreadable { .. }) => None,
            found => found?,
        };
        let is_same =
            |found: &Secret| expected.is_none_or(|expected| found.immutable == expected.immutable && found.data == expected.data);
        Ok(found.is_some_and(|found| owned::is_of(&found, update) && is_same(&found)))
    }
}

/// The name of the outputs Secret of an Update.
pub(crate) fn name(update: &str) -> String {
    format!("{update}{}", names::OUTPUTS_SUFFIX)
}

fn secret(update: &Update, outputs: &BTreeMap<String, OutputValue>) -> Secret {
    let keys = output_keys(outputs.keys().map(String::as_str));
    let value = |name: &str, key: String| Some((key, ByteString(outputs.get(name)?.value.to_string().into_bytes())));
    let secrets: Vec<&String> = outputs.iter().filter(|(_, output)| output.secret).map(|(name, _)| name).collect();
    Secret {
        metadata: ObjectMeta {
            annotations: Some([(names::SECRET_OUTPUTS.to_owned(), serde_json::json!(secrets).to_string())].into()),
            ..owned::metadata(update, name(&update.name_any()))
        },
        immutable: Some(true),
        data: Some(keys.into_iter().filter_map(|(name, key)| value(name, key)).collect()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(all: &[(&str, Value, bool)]) -> BTreeMap<String, OutputValue> {
        let of = |(name, value, secret): &(&str, Value, bool)| {
            ((*name).to_owned(), OutputValue { value: value.clone(), secret: *secret })
        };
        all.iter().map(of).collect()
    }

    #[test]
    fn status_has_the_outputs_that_fit_and_says_where_the_others_are() {
        let text = |kib: usize| Value::from("x".repeat(kib << 10));
        let see = |key: &str| Value::from(format!("[not shown: the outputs exceed 256 KiB; see key {key:?} of Secret \"s\"]"));
        let all = outputs(&[
            ("one largest", text(200), false),
            ("large", text(150), false),
            ("middle", text(100), false),
            ("hidden", text(300), true),
            ("n", 1.into(), false),
        ]);
        let shown = shown(&all, &["too-large".into()], "s");
        let expected = [
            ("one largest", see("one_largest")),
            ("large", text(150)),
            ("middle", text(100)),
            ("hidden", MASK.into()),
            ("n", 1.into()),
            ("too-large", TOO_LARGE.into()),
        ];
        assert!(shown == expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn output_names_that_are_invalid_keys_get_distinct_keys() {
        let all = outputs(&["plain", "a b", "a_b", "a/b", "é", "ключ"].map(|name| (name, name.into(), false)));
        let secret = secret(&Update::default(), &all);
        let data = secret.data.unwrap_or_default();
        let values: BTreeSet<_> = data.values().map(|value| String::from_utf8_lossy(&value.0).into_owned()).collect();
        assert_eq!(values, all.keys().map(to_json).collect());
        for (key, value) in [("plain", "plain"), ("a_b", "a_b"), ("_", "é"), ("____", "ключ")] {
            assert_eq!(data[key].0, to_json(&value).into_bytes(), "{key}");
        }
        let is_key = |key: &String| key.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        assert!(data.keys().all(is_key), "{:?}", data.keys());
    }

    #[test]
    fn outputs_of_any_size_fit_a_status() {
        let many = |value: &str, secret: bool, count: usize| {
            let output = OutputValue { value: value.into(), secret };
            (0..count).map(|n| (n.to_string(), output.clone())).collect::<BTreeMap<_, _>>()
        };
        for (outputs, whole) in [
            (many(&"x".repeat(250 << 10), false, 1), true),
            (many(&"x".repeat(257 << 10), false, 1), false),
            (many(&"x".repeat(257 << 10), true, 1), true),
            (many(&"<".repeat(50 << 10), false, 1), false),
            (many("", false, 20_000), true),
            // `[secret]` is longer than the value that it masks.
            (many("", true, 20_000), false),
        ] {
            let shown = shown(&outputs, &[], "s");
            let notes: Vec<_> =
                shown.values().filter_map(Value::as_str).filter(|text| text.starts_with("[not shown: ")).collect();
            assert_eq!(notes.is_empty(), whole);
            assert!(written(&to_json(&shown)) <= MAX_SHOWN);
            assert!(notes.iter().all(|note| note.contains("Secret \"s\"")), "{notes:?}");
        }
    }
}
