//! Keyed digests: they reveal that a value changed, and nothing else.

use driftless_aws::Objects;
use driftless_contract::keys;
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::ExposeSecret as _;
use sha2::Sha256;

use crate::{Error, Settings};

/// The key of all digests.
pub(crate) struct Key(Hmac<Sha256>);

impl Key {
    /// Reads the key. The first launcher that needs it creates it.
    pub(crate) async fn read<O: Objects>(objects: &O, settings: &Settings) -> Result<Self, Error> {
        if let Some(key) = objects.get(keys::INPUTS_KEY).await? {
            return Self::new(&key);
        }
        let fresh = settings.fresh_key.expose_secret();
        if objects.put_new(keys::INPUTS_KEY, fresh.to_vec()).await? {
            return Self::new(fresh);
        }
        Self::new(&objects.get(keys::INPUTS_KEY).await?.unwrap_or_default())
    }

    /// With an empty key, a digest would tell a guessed value from a wrong one.
    pub(crate) fn new(key: &[u8]) -> Result<Self, Error> {
        let mac = Hmac::new_from_slice(key).ok().filter(|_| !key.is_empty());
        Ok(Self(mac.ok_or_else(|| driftless_aws::Error::Permanent {
            call: format!("s3:GetObject {}", keys::INPUTS_KEY),
            message: "the key is empty; delete the object, and the next launch creates another one".into(),
        })?))
    }

    /// HMAC-SHA256 of the parts. Each is preceded by its length, so that different lists never have
    /// the same bytes.
    pub(crate) fn digest<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_changes_with_every_part_and_with_the_key() {
        let digest = |key: &[u8], parts: &[&str]| Key::new(key).unwrap().digest(parts.iter().map(|part| part.as_bytes()));
        let same = digest(b"k", &["plan", "uid"]);
        assert_eq!(same, digest(b"k", &["plan", "uid"]));
        for other in [digest(b"l", &["plan", "uid"]), digest(b"k", &["planu", "id"]), digest(b"k", &["plan"])] {
            assert_ne!(same, other);
        }
        let refused = Key::new(b"").err().unwrap();
        assert!(refused.to_string().contains("keys/inputs: the key is empty; delete the object"), "{refused}");
    }
}
