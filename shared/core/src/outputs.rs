use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hash;

/// The maximum length of a key of a Secret or `ConfigMap`.
const MAX_KEY: usize = 253;

/// The kind of an object that receives outputs of a Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OutputKind {
    /// A Secret, for outputs of any kind.
    Secret,
    /// A `ConfigMap`, for outputs that are not secret.
    ConfigMap,
}

/// An output of a program.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// Its value.
    pub value: &'a Value,
    /// Whether it is secret.
    pub secret: bool,
}

/// The content of an object that receives outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputData {
    /// The values by key.
    pub data: BTreeMap<String, String>,
    /// Why keys are left out: the fact and the remedy for each.
    pub problems: Vec<String>,
}

/// Returns the content of an object that receives outputs. `keys` has the name of an output for
/// each key of the object; an empty map stands for all outputs that the kind may hold. Text is
/// written as it is, any other value as JSON.
#[must_use]
pub fn output_data(
    (kind, name): (OutputKind, &str),
    keys: &BTreeMap<String, String>,
    outputs: &BTreeMap<&str, Output<'_>>,
) -> OutputData {
    let may_hold = |output: &Output<'_>| kind == OutputKind::Secret || !output.secret;
    if keys.is_empty() {
        let keys = output_keys(outputs.keys().copied());
        let held = outputs.iter().filter(|(_, output)| may_hold(output));
        let data = held.filter_map(|(name, output)| Some((keys.get(name)?.clone(), text(output.value)))).collect();
        return OutputData { data, problems: Vec::new() };
    }
    let mut written = OutputData::default();
    for (key, output) in keys {
        if key.is_empty() || key.len() > MAX_KEY || as_key(key) != *key {
            written.problems.push(format!(
                "key {key:?} of {kind:?} {name:?} is left out; in spec.driftless.outputs, use at most {MAX_KEY} of the characters a-z, \
                 A-Z, 0-9, \"-\", \"_\" and \".\""
            ));
            continue;
        }
        match outputs.get(output.as_str()) {
            Some(found) if may_hold(found) => {
                written.data.insert(key.clone(), text(found.value));
            }
            Some(_) => written.problems.push(format!(
                "output {output:?} is secret, so key {key:?} of {kind:?} {name:?} is left out; set kind: Secret in spec.driftless.outputs"
            )),
            None => written.problems.push(format!(
                "the program has no output {output:?}, so key {key:?} of {kind:?} {name:?} is left out; correct spec.driftless.outputs \
                 or the program"
            )),
        }
    }
    written
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// A name with `_` for characters that a key of a Secret or `ConfigMap` cannot have.
fn as_key(name: &str) -> String {
    name.replace(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c)), "_")
}

/// The key of each output in an object: its name, with `_` for characters that a key cannot have.
/// Names that become equal get a hash each, except for a name that is a valid key.
#[must_use]
pub fn output_keys<'a>(outputs: impl Iterator<Item = &'a str> + Clone) -> BTreeMap<&'a str, String> {
    let mut same = BTreeMap::<_, usize>::new();
    for name in outputs.clone() {
        *same.entry(as_key(name)).or_default() += 1;
    }
    let unique = |name: &str| {
        let key = as_key(name);
        if key == name || same.get(&key) == Some(&1) { key } else { format!("{key}-{:.8}", hash(&[name])) }
    };
    outputs.map(|name| (name, unique(name))).collect()
}

/// An existing object of the name that a Stack's outputs are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingOutputs {
    /// Whether Driftless wrote it for this Stack.
    pub is_ours: bool,
    /// When the run was recorded that changed it last.
    pub recorded_at: Option<Timestamp>,
    /// Whether it has exactly the content to write.
    pub is_same: bool,
}

/// What becomes of an object that receives outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStep {
    /// Create it.
    Create,
    /// Replace its content.
    Replace,
    /// Delete it.
    Delete,
    /// Leave it as it is.
    Keep,
    /// Leave it, because it is not Driftless's.
    Refuse,
}

/// Decides what becomes of an object after a run that was recorded at `recorded`. `is_wanted` is
/// false for an object that the Stack no longer names. A late repetition of an older run changes
/// nothing.
#[must_use]
pub fn output_step(existing: Option<&ExistingOutputs>, is_wanted: bool, recorded: Timestamp) -> OutputStep {
    match existing {
        None if is_wanted => OutputStep::Create,
        None => OutputStep::Keep,
        Some(found) if !found.is_ours => {
            if is_wanted {
                OutputStep::Refuse
            } else {
                OutputStep::Keep
            }
        }
        Some(found) if found.recorded_at.is_some_and(|at| at > recorded) => OutputStep::Keep,
        Some(_) if !is_wanted => OutputStep::Delete,
        Some(found) if found.is_same => OutputStep::Keep,
        Some(_) => OutputStep::Replace,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(kind: OutputKind, keys: &[(&str, &str)]) -> (Vec<(String, String)>, String) {
        let values = [json!("https://x"), json!(5432), json!({ "zone": ["a"] }), json!("hunter2")];
        let outputs = ["url", "port", "net work", "password"].into_iter().zip(&values);
        let outputs = outputs.map(|(name, value)| (name, Output { value, secret: name == "password" })).collect();
        let keys = keys.iter().map(|(key, output)| ((*key).to_owned(), (*output).to_owned())).collect();
        let OutputData { data, problems } = output_data((kind, "app"), &keys, &outputs);
        (data.into_iter().collect(), problems.join("\n"))
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn outputs_are_mapped_to_keys_as_text_or_json() {
        let keys = [("URL", "url"), ("PORT", "port"), ("ZONES", "net work"), ("PASSWORD", "password")];
        let written = pairs(&[("PASSWORD", "hunter2"), ("PORT", "5432"), ("URL", "https://x"), ("ZONES", r#"{"zone":["a"]}"#)]);
        assert_eq!(data(OutputKind::Secret, &keys), (written, String::new()));
    }

    #[test]
    fn no_keys_means_all_outputs_that_the_kind_may_hold() {
        let plain = [("net_work", r#"{"zone":["a"]}"#), ("port", "5432"), ("url", "https://x")];
        assert_eq!(data(OutputKind::ConfigMap, &[]), (pairs(&plain), String::new()));
        let all = [plain[0], ("password", "hunter2"), plain[1], plain[2]];
        assert_eq!(data(OutputKind::Secret, &[]), (pairs(&all), String::new()));
    }

    #[test]
    fn secret_output_is_never_in_a_config_map() {
        let (written, problems) = data(OutputKind::ConfigMap, &[("PASSWORD", "password"), ("PORT", "port"), ("X", "no")]);
        assert_eq!(written, pairs(&[("PORT", "5432")]));
        let expected = "output \"password\" is secret, so key \"PASSWORD\" of ConfigMap \"app\" is left out; set kind: Secret in \
                        spec.driftless.outputs\nthe program has no output \"no\", so key \"X\" of ConfigMap \"app\" is left out; \
                        correct spec.driftless.outputs or the program";
        assert_eq!(problems, expected);
    }

    #[test]
    fn invalid_key_is_left_out_by_name() {
        let long = "k".repeat(254);
        for key in ["a b", "", "ключ", &long] {
            let (written, problems) = data(OutputKind::Secret, &[(key, "port"), ("PORT", "port")]);
            assert_eq!(written, pairs(&[("PORT", "5432")]));
            assert!(problems.starts_with(&format!("key {key:?} of Secret \"app\" is left out; ")), "{problems}");
        }
    }

    #[test]
    fn object_of_another_owner_or_a_later_run_is_not_changed() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let object = |is_ours, recorded, is_same| Some(ExistingOutputs { is_ours, recorded_at: Some(at(recorded)), is_same });
        for (existing, is_wanted, expected) in [
            (None, true, OutputStep::Create),
            (None, false, OutputStep::Keep),
            (object(false, 1, false), true, OutputStep::Refuse),
            (object(false, 1, true), true, OutputStep::Refuse),
            (object(false, 1, false), false, OutputStep::Keep),
            (object(true, 1, true), true, OutputStep::Keep),
            (object(true, 1, false), true, OutputStep::Replace),
            (object(true, 5, false), true, OutputStep::Replace),
            (object(true, 6, false), true, OutputStep::Keep),
            (object(true, 1, false), false, OutputStep::Delete),
            (object(true, 6, false), false, OutputStep::Keep),
        ] {
            assert_eq!(output_step(existing.as_ref(), is_wanted, at(5)), expected, "{existing:?} {is_wanted}");
        }
    }
}
