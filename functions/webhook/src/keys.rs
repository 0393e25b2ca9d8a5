use std::{collections::HashMap, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

/// How old, or how far in the future, a signature with a time in it may be, as Standard Webhooks advises.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// The key of each cluster: `WEBHOOK_KEYS`, a JSON object from the cluster's name to the `token` of its Provider's Secret, which is also
/// what git hosts are given. All comparisons take the same time whatever differs.
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
    /// Whether `signature`, in hex, is this cluster's over `body`.
    pub(crate) fn signed(&self, cluster: &str, body: &[u8], signature: &[u8]) -> bool {
        let signature = base16ct::mixed::decode_vec(signature).ok();
        signature.zip(self.mac(cluster)).is_some_and(|(signature, mac)| mac.chain_update(body).verify_slice(&signature).is_ok())
    }

    /// Whether `token` is this cluster's key itself. Their digests are compared, so that the time tells nothing of the key.
    pub(crate) fn is(&self, cluster: &str, token: &[u8]) -> bool {
        let key = self.0.get(cluster).zip(self.mac(cluster));
        let expected = key.map(|(key, mac)| mac.chain_update(key.expose_secret()).finalize().into_bytes());
        expected.zip(self.mac(cluster)).is_some_and(|(expected, mac)| mac.chain_update(token).verify_slice(&expected).is_ok())
    }

    /// Whether one of `signatures` (`v1,<base64>`, separated by spaces) is this cluster's over id, time (Unix seconds) and body, and the
    /// time is [about](TOLERANCE) now: <https://www.standardwebhooks.com>. The key has to be `whsec_<base64>`.
    pub(crate) fn signed_lately(
        &self,
        cluster: &str,
        id: &[u8],
        time: &[u8],
        body: &[u8],
        signatures: &[u8],
        now: Timestamp,
    ) -> bool {
        let seconds = str::from_utf8(time).ok().and_then(|time| time.parse().ok());
        let signed_at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
        let key = self.0.get(cluster).and_then(|key| BASE64_STANDARD.decode(key.expose_secret().strip_prefix("whsec_")?).ok());
        let Some(mac) = key.and_then(|key| Hmac::<Sha256>::new_from_slice(&key).ok()) else { return false };
        let mac = [id, b".", time, b".", body].into_iter().fold(mac, Hmac::chain_update);
        signed_at.is_some_and(|at| now.duration_since(at).abs() <= TOLERANCE)
            && signatures.split(|byte| *byte == b' ').any(|signature| {
                let signature = signature.strip_prefix(b"v1,").and_then(|base64| BASE64_STANDARD.decode(base64).ok());
                signature.is_some_and(|signature| mac.clone().verify_slice(&signature).is_ok())
            })
    }

    fn mac(&self, cluster: &str) -> Option<Hmac<Sha256>> {
        self.0.get(cluster).and_then(|key| Hmac::new_from_slice(key.expose_secret().as_bytes()).ok())
    }
}
