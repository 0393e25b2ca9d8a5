//! The canonical bytes of JSON, and digests of them.

use driftless_contract::PlanHash;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

/// The key of the digests in plans. Without it, a digest of a property would tell a guessed value
/// from a wrong one.
pub(crate) struct Key(Hmac<Sha256>);

impl Key {
    /// Reads a key; `None` unless it has 64 digits of hex.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut key = [0; 32];
        let decoded = base16ct::lower::decode(text, &mut key).ok()?;
        if decoded.len() == key.len() { Hmac::new_from_slice(&key).ok().map(Self) } else { None }
    }

    /// The keyed digest of a value.
    pub(crate) fn digest(&self, value: &Value) -> PlanHash {
        let mut mac = self.0.clone();
        mac.update(&bytes(value));
        PlanHash::from(<[u8; 32]>::from(mac.finalize().into_bytes()))
    }
}

/// The value as JSON without spaces, with the fields of each object in order.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(value, &mut bytes);
    bytes
}

fn write(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => bytes.extend(value.to_string().into_bytes()),
        Value::Array(values) => {
            bytes.push(b'[');
            for (number, value) in values.iter().enumerate() {
                if number > 0 {
                    bytes.push(b',');
                }
                write(value, bytes);
            }
            bytes.push(b']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            bytes.push(b'{');
            for (number, (name, value)) in fields.into_iter().enumerate() {
                if number > 0 {
                    bytes.push(b',');
                }
                write(&Value::from(name.as_str()), bytes);
                bytes.push(b':');
                write(value, bytes);
            }
            bytes.push(b'}');
        }
    }
}

/// Sorts a list whose order has no meaning.
pub(crate) fn sort(list: &mut Value) {
    if let Value::Array(values) = list {
        values.sort_by_cached_key(bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digest_depends_on_values_and_key_and_not_on_the_order_of_fields() {
        let key = |digit: &str| Key::parse(&digit.repeat(64)).unwrap();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let (one, two) =
            (read(r#"{"b":[1,2.5,null],"a":{"y":true,"x":"é\n"}}"#), read(r#"{"a":{"x":"é\n","y":true},"b":[1,2.5,null]}"#));
        assert_eq!(bytes(&one), "{\"a\":{\"x\":\"é\\n\",\"y\":true},\"b\":[1,2.5,null]}".as_bytes());
        assert_eq!(key("0").digest(&one), key("0").digest(&two));
        assert_ne!(key("0").digest(&one), key("1").digest(&one));
        assert_ne!(key("0").digest(&one), key("0").digest(&json!({ "a": {}, "b": [] })));
        for text in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert!(Key::parse(text).is_none(), "{text}");
        }
    }
}
