//! Changes of JSON that keep it valid JSON.

use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Value, json};

/// The input with a change in one of its JSON lines; `None` if it has none.
pub fn changed(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut random = Random(seed.into());
    let mut lines: Vec<_> = input.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let parsed = |line: &Vec<u8>| serde_json::from_slice(line).ok().filter(|value: &Value| value.is_object() || value.is_array());
    let documents: Vec<_> = lines.iter().enumerate().filter_map(|(at, line)| Some((at, parsed(line)?))).collect();
    let (at, mut document) = documents.into_iter().nth(random.below(8))?;
    let other = node(&mut document.clone(), &mut random).clone();
    change(node(&mut document, &mut random), other, &mut random);
    lines[at] = document.to_string().into_bytes();
    Some(lines.join(&b'\n'))
}

/// A node of a document, at any depth.
fn node<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let children = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if children == 0 || random.below(8) == 0 {
        return value;
    }
    let at = random.below(children);
    match value {
        Value::Array(items) => node(&mut items[at], random),
        Value::Object(fields) => node(fields.values_mut().nth(at).expect("a child"), random),
        _ => unreachable!("it has children"),
    }
}

fn change(value: &mut Value, other: Value, random: &mut Random) {
    match (random.below(6), value) {
        (0, value) => *value = other,
        (1, Value::Array(items)) => items.push(other),
        (1, Value::Object(fields)) => {
            let name = fields.keys().nth(random.below(fields.len().max(1))).cloned().unwrap_or_default();
            fields.insert(mutated(&name), other);
        }
        (2, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
        (2, Value::Object(fields)) if !fields.is_empty() => {
            let name = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            fields.remove(&name);
        }
        (1..=4, Value::String(text)) => *text = mutated(text),
        (_, value) => {
            let values = [
                json!(null),
                json!(true),
                json!(false),
                json!(0),
                json!(1),
                json!(-1),
                json!(i64::MIN),
                json!(u64::MAX),
                json!(u32::MAX),
                json!(1.5),
                json!(""),
                json!("true"),
                json!("x".repeat(300)),
                json!([]),
                json!({}),
            ];
            *value = values[random.below(values.len())].clone();
        }
    }
}

/// The text as libFuzzer changes it, using the comparisons that it saw in the target.
fn mutated(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (size, most) = (bytes.len(), bytes.len() + 64);
    bytes.resize(most, 0);
    let size = fuzzer_mutate(&mut bytes, size, most);
    String::from_utf8_lossy(&bytes[..size]).into_owned()
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}
