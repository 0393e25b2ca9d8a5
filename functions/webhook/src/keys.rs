use std::{collections::HashMap, str::FromStr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

/// The HMAC key of each cluster: `WEBHOOK_KEYS`, a JSON object from the cluster's name to the `token` of its Provider's Secret.
#[derive(Debug)]
pub struct Keys(HashMap<String, SecretString>);

/// The keys cannot be used. Says nothing of what was given.
#[derive(Debug, thiserror::Error)]
#[error("not a JSON object of cluster names and keys, none of them empty")]
pub struct InvalidKeys;

impl FromStr for Keys {
    type Err = InvalidKeys;

    fn from_str(json: &str) -> Result<Self, InvalidKeys> {
        let keys: HashMap<String, SecretString> = serde_json::from_str(json).map_err(|_| InvalidKeys)?;
        if keys.values().any(|key| key.expose_secret().is_empty()) {
            return Err(InvalidKeys);
        }
        Ok(Self(keys))
    }
}

impl Keys {
    /// Whether `signature`, of the form `sha256=<hex>`, is this cluster's over `body`. Compares in constant time.
    pub(crate) fn verify(&self, cluster: &str, body: &[u8], signature: &[u8]) -> bool {
        let signature = signature.strip_prefix(b"sha256=").and_then(|hex| base16ct::mixed::decode_vec(hex).ok());
        let mac = self.0.get(cluster).and_then(|key| Hmac::<Sha256>::new_from_slice(key.expose_secret().as_bytes()).ok());
        signature.zip(mac).is_some_and(|(signature, mac)| mac.chain_update(body).verify_slice(&signature).is_ok())
    }
}
