//! Which outputs can be kept: as many as fit into one Secret, and as a function has the memory to
//! read.

use crate::{OutputValue, RunResult, to_json};

/// The values of a Secret take 1 MiB at most. The rest of the object counts against it here.
const MAX_KEPT: usize = (1 << 20) - (4 << 10);

/// The size of an entry of a Secret beside its name and value, in bytes.
const SECRET_ENTRY_BYTES: usize = 24;
/// The list of the secret outputs is an annotation, and the limit of annotations is a quarter of
/// that of values.
const LISTED_WEIGHT: usize = 4;

/// The memory of an object or an entry of one when parsed, in bytes, however short its text is.
const OBJECT_BYTES: usize = 700;
const ENTRY_BYTES: usize = 130;
/// Parsed outputs take no more than 12 MiB.
const PARSED_WEIGHT: usize = 12;

impl RunResult {
    /// Leaves out the largest outputs until the others fit.
    #[must_use]
    pub fn fitting(mut self) -> Self {
        let Some(outputs) = &mut self.outputs else { return self };
        let mut by_size: Vec<_> = outputs.iter().map(|(name, output)| (cost(name, output), name.clone())).collect();
        by_size.sort_unstable();
        let mut total = 0_usize;
        for (cost, name) in by_size {
            total = total.saturating_add(cost);
            if total > MAX_KEPT {
                outputs.remove(&name);
                self.left_out.push(name);
            }
        }
        self
    }
}

/// The share of [`MAX_KEPT`] that an output takes. The name counts twice, because the API server
/// records the path of each value beside it.
fn cost(name: &str, output: &OutputValue) -> usize {
    let text = output.value.to_string();
    let listed = if output.secret { LISTED_WEIGHT * (to_json(&name).len() + 1) } else { 0 };
    let in_secret = text.len() + 2 * name.len() + SECRET_ENTRY_BYTES + listed;
    in_secret.max(parsed(text.as_bytes()) / PARSED_WEIGHT)
}

/// Returns the maximum memory of a parsed JSON document, in bytes.
#[must_use]
pub fn parsed(document: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut escaped) = (document.len(), false, false);
    for byte in document {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' if !in_text => bytes += OBJECT_BYTES,
            b'[' | b',' if !in_text => bytes += ENTRY_BYTES,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::Verdict;

    /// The names of the outputs that are left out.
    fn left_out(outputs: &[(&str, Value, bool)]) -> Vec<String> {
        let at = Timestamp::UNIX_EPOCH;
        let of = |(name, value, secret): &(&str, Value, bool)| {
            ((*name).to_owned(), OutputValue { value: value.clone(), secret: *secret })
        };
        let outputs: BTreeMap<_, _> = outputs.iter().map(of).collect();
        let result = RunResult { outputs: Some(outputs.clone()), ..RunResult::new(Verdict::Succeeded {}, at, at) }.fitting();
        let kept = result.outputs.clone().unwrap();
        assert!(kept.keys().chain(&result.left_out).collect::<std::collections::BTreeSet<_>>().len() == outputs.len());
        assert!(result.clone().fitting() == result, "fitting twice changes nothing");
        result.left_out
    }

    #[test]
    fn largest_outputs_are_left_out_until_a_secret_holds_the_rest() {
        let text = |kib: usize| Value::from("x".repeat(kib << 10));
        assert_eq!(left_out(&[("a", text(300), false), ("b", text(700), true)]), [""; 0]);
        assert_eq!(left_out(&[("a", text(1020), false)]), ["a"]);
        assert_eq!(left_out(&[("small", json!(1), false), ("large", text(700), false), ("middle", text(400), false)]), ["large"]);
        let secrets: Vec<_> = (0..200).map(|n| format!("{n}{}", "n".repeat(2000))).collect();
        let listed = |secret| left_out(&secrets.iter().map(|name| (name.as_str(), json!(1), secret)).collect::<Vec<_>>()).len();
        assert!(listed(false) == 0 && listed(true) > 0, "the list of secret names is an annotation of 256 KiB");
    }

    #[test]
    fn outputs_that_would_fill_the_function_are_left_out() {
        let objects = Value::from(vec![json!({}); 20_000]);
        assert_eq!(left_out(&[("objects", objects, false), ("n", json!(1), false)]), ["objects"]);
    }

    #[test]
    fn parsed_size_is_by_objects_and_entries_outside_texts() {
        for (document, objects, entries) in
            [(r#"{"a":"{[,"}"#, 1, 0), (r#"{"a":"\"{","b":[{},{}]}"#, 3, 3), (r#"["\\",{}]"#, 1, 2)]
        {
            let expected = document.len() + objects * OBJECT_BYTES + entries * ENTRY_BYTES;
            assert_eq!(parsed(document.as_bytes()), expected, "{document}");
        }
    }
}
