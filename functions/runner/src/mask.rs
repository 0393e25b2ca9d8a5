//! Masks the secrets of this run in everything that leaves it.

use std::cell::RefCell;

use driftless_contract::{ConfigValue, RunSpec};
use serde_json::Value;

/// The replacement of a secret.
const MASK: &str = "[secret]";

/// Shorter values are not masked in a log: many words contain them, and they reveal little. For the
/// same reason they mask no number and no field name of an output.
const MIN_BYTES: usize = 4;
/// A shorter value masks an output only if it is one of its texts as a whole: a Secret that also
/// holds `prod` or `true` would mask every address that contains the word.
const MIN_BYTES_WITHIN_OUTPUT: usize = 8;

/// The keys of a Kubernetes object, such as a kubeconfig, whose values are public.
const PUBLIC_KEYS: [&str; 2] = ["apiVersion", "kind"];
/// Values that occur in most files.
const PUBLIC_VALUES: [&str; 3] = ["true", "false", "null"];

/// The secrets of a run, in all forms in which they can occur: whole, line by line (a log is
/// lines), as JSON (Go escapes `<`, `>` and `&` in its own way), as JSON in JSON (Pulumi's own
/// log), and the parts of a structured one. More may be added during the run.
#[derive(Default)]
pub struct Mask {
    forms: RefCell<Vec<String>>,
}

impl Mask {
    /// The secrets of a spec, and `others`.
    pub(crate) fn of(spec: &RunSpec, others: &[String]) -> Self {
        let mask = Self::default();
        for text in others {
            mask.add_text(text);
        }
        for env in spec.env.iter().filter(|env| env.secret) {
            mask.add_text(&env.value);
        }
        for file in spec.files.iter().filter(|file| file.secret) {
            mask.add_text(&String::from_utf8_lossy(&file.content));
        }
        for config in spec.config.iter().filter(|config| config.secret) {
            match &config.value {
                ConfigValue::String(text) | ConfigValue::Token(text) => mask.add_text(text),
                ConfigValue::Json(value) => mask.add(|forms| add_value(forms, value)),
            }
        }
        mask
    }

    /// Adds a secret.
    pub fn add_text(&self, text: &str) {
        self.add(|forms| {
            add_forms(forms, text);
            if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
                add_value(forms, &value);
            }
        });
    }

    fn add(&self, add: impl FnOnce(&mut Vec<String>)) {
        let mut forms = self.forms.borrow_mut();
        add(&mut forms);
        forms.sort_unstable();
        forms.dedup();
    }

    /// Returns whether an output contains a secret.
    #[must_use]
    pub fn is_told_by(&self, output: &Value) -> bool {
        match output {
            Value::Null | Value::Bool(_) => false,
            Value::Number(number) => self.is_told_by_text(&number.to_string(), MIN_BYTES),
            Value::String(text) => self.is_told_by_text(text, 1),
            Value::Array(values) => values.iter().any(|value| self.is_told_by(value)),
            Value::Object(fields) => {
                fields.iter().any(|(name, value)| self.is_told_by_text(name, MIN_BYTES) || self.is_told_by(value))
            }
        }
    }

    /// Returns whether a text is a secret of `min_bytes` or more, or contains a longer one.
    fn is_told_by_text(&self, text: &str, min_bytes: usize) -> bool {
        let is_whole = |form: &String| form.len() >= min_bytes && text.trim() == form;
        let tells = |form: &String| is_whole(form) || form.len() >= MIN_BYTES_WITHIN_OUTPUT && text.contains(form.as_str());
        self.forms.borrow().iter().any(tells)
    }

    /// The text with every secret in it replaced; overlapping secrets are replaced as one.
    #[must_use]
    pub fn apply(&self, text: &str) -> String {
        let forms = self.forms.borrow();
        let long = forms.iter().filter(|form| form.len() >= MIN_BYTES);
        let mut hits: Vec<(usize, usize)> = long.flat_map(|form| occurrences(text, form)).collect();
        hits.sort_unstable();
        let mut masked = String::with_capacity(text.len());
        let mut end = 0;
        for (from, to) in hits {
            if from >= end {
                masked.push_str(&text[end..from]);
                masked.push_str(MASK);
            }
            end = end.max(to);
        }
        masked.push_str(&text[end..]);
        masked
    }
}

fn add_value(forms: &mut Vec<String>, value: &Value) {
    for text in scalars(value, &[]) {
        add_forms(forms, &text);
    }
}

/// The numbers and strings of a value, as texts, without those of the fields `skipped`.
fn scalars(value: &Value, skipped: &[&str]) -> Vec<String> {
    match value {
        Value::Null | Value::Bool(_) => Vec::new(),
        Value::Number(number) => vec![number.to_string()],
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(|value| scalars(value, skipped)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !skipped.contains(&name.as_str()));
            fields.flat_map(|(_, value)| scalars(value, skipped)).collect()
        }
    }
}

fn add_forms(forms: &mut Vec<String>, text: &str) {
    for part in std::iter::once(text.trim().to_owned()).chain(parts(text)) {
        let (json, go) = quoted(&part);
        let (json_json, go_json) = quoted(&json);
        let (json_go, _) = quoted(&go);
        let all = [part, json, go, json_json, go_json, json_go];
        forms.extend(all.into_iter().filter(|form| !form.is_empty()));
    }
}

/// The parts of a text that are secret by themselves: its lines, or the values of lines that are
/// keys with values, and those of YAML. Every PEM file has the same boundaries, and every
/// kubeconfig the same keys: as secrets they would mask the outputs that contain them.
fn parts(text: &str) -> impl Iterator<Item = String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_pem_boundary(line));
    let mut values = Vec::new();
    let separator = if let Ok(yaml @ Value::Object(_)) = serde_saphyr::from_str(text) {
        // This includes values in a list, within braces or before a comment, which the lines alone
        // do not show.
        values = scalars(&yaml, &PUBLIC_KEYS);
        values.retain(|value| is_secret(value.trim()));
        Some(':')
    } else {
        let is_assignment = |line: &str| line.starts_with(['#', ';', '[']) || pair(line, '=').is_some();
        lines().all(is_assignment).then_some('=')
    };
    let of_lines = lines().filter_map(move |line| {
        let Some((key, value)) = separator.and_then(|separator| pair(line, separator)) else { return Some(line.to_owned()) };
        let value = unquoted(value);
        if is_secret(&value) && !PUBLIC_KEYS.contains(&key) {
            return Some(value);
        }
        // It may be the end of a key in base64.
        (separator == Some('=')).then(|| line.to_owned())
    });
    values.into_iter().map(|value| value.trim().to_owned()).chain(of_lines)
}

/// Returns whether a value may be secret by itself.
fn is_secret(value: &str) -> bool {
    value.len() >= MIN_BYTES && !PUBLIC_VALUES.contains(&value)
}

/// Returns whether a line begins or ends a PEM block, such as `-----BEGIN CERTIFICATE-----`.
fn is_pem_boundary(line: &str) -> bool {
    let label = line.strip_prefix("-----BEGIN ").or_else(|| line.strip_prefix("-----END "));
    let is_label = |label: &str| label.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b' '));
    label.and_then(|label| label.strip_suffix("-----")).is_some_and(is_label)
}

/// The key and the value of a line such as `key: value` in YAML or `KEY=value` in a file of
/// variables.
fn pair(line: &str, separator: char) -> Option<(&str, &str)> {
    let (key, value) = line.trim_start_matches("- ").trim_start_matches("export ").split_once(separator)?;
    let key = key.trim_end();
    let is_first = |char: char| char.is_ascii_alphabetic() || char == '_';
    let is_key = key.starts_with(is_first) && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    // In YAML, `a:b` is a word.
    let is_value = separator != ':' || value.is_empty() || value.starts_with(char::is_whitespace);
    (is_key && is_value).then(|| (key, value.trim()))
}

/// A value without its quotes.
fn unquoted(value: &str) -> String {
    let within = |quote| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    serde_json::from_str(value).unwrap_or_else(|_| within('\'').or_else(|| within('"')).unwrap_or(value).to_owned())
}

/// A string as JSON writes it, and as Go does, without the quotes around it.
fn quoted(text: &str) -> (String, String) {
    let quoted = Value::from(text).to_string();
    let json = quoted[1..quoted.len() - 1].to_owned();
    let go = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    (json, go)
}

/// The positions of `form` in `text`, including overlapping ones.
fn occurrences<'a>(text: &'a str, form: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let step = form.chars().next().map_or(1, char::len_utf8);
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + text.get(at..)?.find(form)?;
        at = from + step;
        Some((from, from + form.len()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn mask(secrets: &[&str]) -> Mask {
        let mask = Mask::default();
        for secret in secrets {
            mask.add_text(secret);
        }
        mask
    }

    #[test]
    fn a_secret_is_masked_in_every_form_it_takes_in_a_log() {
        let mask = mask(&["-----BEGIN KEY-----\nMIIcanary\n", "pa\"ss<word", r#"{"user":{"token":"tok-canary"},"pin":123456}"#]);
        assert_eq!(mask.apply("  MIIcanary|"), "  [secret]|");
        assert_eq!(mask.apply(r#"{"p":"pa\"ss<word"}"#), r#"{"p":"[secret]"}"#);
        assert_eq!(mask.apply(r#"{"p":"pa\"ss\u003cword"}"#), r#"{"p":"[secret]"}"#);
        assert_eq!(mask.apply(r#"{"msg":"{\"p\":\"pa\\\"ss<word\"}"}"#), r#"{"msg":"{\"p\":\"[secret]\"}"}"#);
        assert_eq!(mask.apply(r#"{"msg":"{\"p\":\"pa\\\"ss\\u003cword\"}"}"#), r#"{"msg":"{\"p\":\"[secret]\"}"}"#);
        assert_eq!(mask.apply(r"-----BEGIN KEY-----\nMIIcanary"), "[secret]");
        assert_eq!(mask.apply("token tok-canary, pin 123456"), "token [secret], pin [secret]");
    }

    #[test]
    fn certificate_hides_its_body_and_no_other_certificate() {
        let certificate = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\nMIIend==\n-----END CERTIFICATE-----\n");
        let mask = mask(&[&certificate("MIIcanary")]);
        assert_eq!(mask.apply(&certificate("MIIcanary")), "[secret]\n");
        assert_eq!(mask.apply("MIIcanary\nMIIend=="), "[secret]\n[secret]");
        let other = certificate("MIIother").replace("MIIend==", "MIIo==");
        assert_eq!((mask.apply(&other), mask.is_told_by(&json!(other))), (other.clone(), false));
    }

    #[test]
    fn kubeconfig_hides_its_values_and_no_other_yaml() {
        let kubeconfig = "apiVersion: v1\nkind: Config\nclusters:\n- name: canary-cluster\n  cluster:\n    insecure-skip-tls-verify: true\n\
                          users:\n- name: 'canary-user'\n  user:\n    token: \"pa\\\"ss-canary\"\n    key: |\n      MIIcanary\n      MIIend==\n";
        let mask = mask(&[kubeconfig]);
        assert_eq!(mask.apply(kubeconfig.trim()), "[secret]");
        for secret in ["canary-cluster", "canary-user", "pa\"ss-canary", "pa\\\"ss-canary", "MIIcanary", "MIIend=="] {
            assert_eq!(mask.apply(&format!("a {secret} b")), "a [secret] b");
        }
        let other = "apiVersion: v1\nkind: Config\nclusters:\n- name: b\n  cluster:\n    insecure-skip-tls-verify: true";
        assert_eq!((mask.apply(other).as_str(), mask.is_told_by(&json!(other))), (other, false));
    }

    #[test]
    fn yaml_hides_its_values_wherever_they_stand() {
        let mask = mask(&["pins:\n- s3cr3t-a\n- [s3cr3t-b]\nuser: {name: s3cr3t-c}\npw: s3cr3t-d # a note\nport: 47113\n"]);
        assert_eq!(
            mask.apply("s3cr3t-a s3cr3t-b s3cr3t-c s3cr3t-d 47113 a note"),
            "[secret] [secret] [secret] [secret] [secret] a note"
        );
    }

    #[test]
    fn file_of_variables_hides_their_values() {
        let mask = mask(&[
            "[default]\naws_secret_access_key = wJalr/canary\nexport TOKEN='tok-canary'\nPIN=12\n",
            "K=abc\nTUlJ\nTUlJcanary==",
        ]);
        assert_eq!(mask.apply("wJalr/canary tok-canary"), "[secret] [secret]");
        // Too short to be a value, and lines of a text in no such form.
        assert_eq!(mask.apply("PIN=12 K=abc TUlJcanary=="), "[secret] [secret] [secret]");
    }

    #[test]
    fn secrets_that_overlap_leave_nothing_of_either() {
        let mask = mask(&["abcdef", "defghi", "anana"]);
        assert_eq!(mask.apply("xabcdefghix"), "x[secret]x");
        assert_eq!(mask.apply("bananana."), "b[secret].");
    }

    #[test]
    fn short_secret_is_masked_only_as_a_whole() {
        let mask = mask(&["prod", "12345", "no", "7", "pass\"word", "{\"token\":\"tok-canary\"}", "seven77", "eight888"]);
        for (output, told) in [
            (json!("https://prod.example"), false),
            (json!("prod"), true),
            (json!({ "stage": ["prod"] }), true),
            (json!({ "prod": 1 }), true),
            (json!(12345), true),
            (json!(123_456), false),
            (json!("postgres://me:pass\"word@host"), true),
            (json!(["a tok-canary b"]), true),
            (json!([true, null, "dev"]), false),
            (json!("no"), true),
            (json!(["7"]), true),
            (json!("know"), false),
            (json!({ "no": 7 }), false),
            (json!("in seven77"), false),
            (json!("in eight888"), true),
        ] {
            assert_eq!(mask.is_told_by(&output), told, "{output}");
        }
    }

    #[test]
    fn too_short_values_are_not_masked() {
        assert_eq!(mask(&["", "a", "yes", "true", "\n\n"]).apply("a yes is true"), "a yes is [secret]");
    }

    proptest! {
        #[test]
        fn no_secret_survives(secrets in proptest::collection::vec("[a-cé]{4,6}", 1..4), text in "[a-cé]{0,40}") {
            let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let masked = mask(&secrets).apply(&text);
            for secret in secrets {
                prop_assert!(!masked.contains(secret), "{secret} in {masked}");
            }
        }
    }
}
