//! The outputs of a stack.

use std::collections::BTreeMap;

use driftless_contract::OutputValue;
use futures::future::try_join;
use serde_json::{Map, Value};

use super::{Session, not_run};
use crate::{arguments::Call, failure::Failure};

/// The value that Pulumi's outputs show for one that was not computed, because of `--target`.
const UNKNOWN: &str = "04da6b54-80e4-46f7-96ec-b56ff0331ba9";

/// The replacement of a secret in events.
const MASKED: &str = "[secret]";

/// The key that marks a value as Pulumi's own and not JSON's: a secret, an asset, an archive, a
/// reference to a resource.
const SIGNATURE: &str = "4dabf18193072939515e22adb298388d";

/// The mark of a secret.
const SECRET: &str = "1b47061264138c4ac30d75fd1eb44270";

impl Session<'_> {
    /// The stack's outputs. An output that contains a secret is secret as a whole, whether Pulumi
    /// marks the secret or the program passed on one of the run's, unless the Stack lists the
    /// output as not secret. `seen` are the outputs from the events; Pulumi is asked for values
    /// that are incomplete there.
    pub(super) async fn outputs(&self, seen: Option<Map<String, Value>>) -> Result<BTreeMap<String, OutputValue>, Failure> {
        let (masked, clear) = match seen {
            Some(outputs) if outputs.values().all(is_whole) => (outputs.clone(), outputs),
            Some(outputs) => {
                let clear = self.stack_output(Some("--show-secrets")).await?;
                // The events mark secrets.
                let masked = if clear.keys().eq(outputs.keys()) {
                    clear
                        .iter()
                        .filter(|(name, _)| !has_secret(&outputs[*name]))
                        .map(|(name, value)| (name.clone(), value.clone()))
                        .collect()
                } else {
                    self.stack_output(None).await?
                };
                (masked, clear)
            }
            None => try_join(self.stack_output(None), self.stack_output(Some("--show-secrets"))).await?,
        };
        let known = clear.into_iter().filter(|(_, value)| !has_text(value, &|text| text == UNKNOWN));
        Ok(known
            .map(|(name, value)| {
                let is_allowed = self.spec.not_secret.contains(&name);
                let secret = masked.get(&name) != Some(&value) || !is_allowed && self.pulumi.mask.is_told_by(&value);
                (name, OutputValue { value, secret })
            })
            .collect())
    }

    async fn stack_output(&self, flag: Option<&str>) -> Result<Map<String, Value>, Failure> {
        let call = Call::new(["stack", "output", "--json"].into_iter().chain(flag), Some(&self.spec.stack));
        let unread = |words: &str| format!("the update succeeded, but its outputs cannot be read: {words}");
        let (success, answer, words) = self.pulumi.ask(&call).await.map_err(|error| match &*self.pulumi.stop.borrow() {
            Some(stop) => Failure { reason: stop.why.reason, message: unread(&format!("{}: {error}", stop.why.message)) },
            None => not_run(error),
        })?;
        if !success {
            return Err(Failure::unknown(unread(&words)));
        }
        let unreadable = |_| Failure::unknown("the update succeeded, but its outputs are not JSON");
        serde_json::from_slice(&answer).map_err(unreadable)
    }
}

/// Returns whether an event has the whole output: neither a secret, nor an asset, whose text Pulumi
/// leaves out.
fn is_whole(output: &Value) -> bool {
    fn is_special(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.contains_key(SIGNATURE) || fields.values().any(is_special),
            Value::Array(values) => values.iter().any(is_special),
            _ => false,
        }
    }
    !is_special(output) && !has_text(output, &|text| text.contains(MASKED))
}

/// Returns whether an event marks an output, or a part of it, as secret.
fn has_secret(output: &Value) -> bool {
    match output {
        Value::Object(fields) => fields.get(SIGNATURE).is_some_and(|mark| mark == SECRET) || fields.values().any(has_secret),
        Value::Array(values) => values.iter().any(has_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns whether any string in a value matches.
fn has_text(value: &Value, is_such: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_such(text),
        Value::Array(values) => values.iter().any(|value| has_text(value, is_such)),
        Value::Object(fields) => fields.values().any(|value| has_text(value, is_such)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_output_that_was_not_computed_is_seen_at_any_depth() {
        let has_unknown = |value: &Value| has_text(value, &|text| text == UNKNOWN);
        assert!(has_unknown(&json!({ "a": [1, { "b": UNKNOWN }] })));
        assert!(!has_unknown(&json!({ "a": [1, { "b": "known" }, null] })));
    }

    #[test]
    fn events_have_outputs_without_secrets_and_assets_alone() {
        let secret = json!({ SIGNATURE: "1b47061264138c4ac30d75fd1eb44270", "ciphertext": MASKED });
        let asset = json!({ SIGNATURE: "c44067f5952c0a294b673a41bacd8c17", "text": "<contents elided>" });
        for value in [secret, asset, json!({ "a": [{ SIGNATURE: "" }] }), json!(["https://user:[secret]@host"])] {
            assert!(!is_whole(&value), "{value}");
        }
        assert!(is_whole(&json!({ "a": [1, { "b": "known" }, null] })));
    }
}
