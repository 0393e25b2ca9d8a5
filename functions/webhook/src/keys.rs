use std::{collections::HashMap, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_aws::Keyring;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::Sha256;
use tokio::sync::Mutex;

use crate::sender::Sender;

/// The maximum age, or distance into the future, of a signature with a time, as Standard Webhooks
/// advises.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// How long keys are used before the secret is read again.
const KEPT: SignedDuration = SignedDuration::from_mins(5);

/// The keys of each cluster, each with the kind of sender that may use it. A JSON object from the
/// cluster's name to an object from senders to keys, such as
/// `{"prod":{"flux":"…","github/team-a":"…"}}`. The part of a sender before the slash is its path
/// at the webhook. One string in place of the object is a key for all senders. All comparisons take
/// constant time.
#[derive(Debug)]
pub struct Keys(HashMap<String, Vec<(Option<Sender>, SecretString)>>);

/// The keys cannot be used. The error repeats nothing of the text.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a JSON object of clusters and keys; give each cluster an object of senders (flux, github, gitlab or gitea, followed \
     by /NAME if there are several) and their keys, which must not be empty"
)]
pub struct InvalidKeys;

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    ForAll(SecretString),
    BySender(HashMap<String, SecretString>),
}

impl FromStr for Keys {
    type Err = InvalidKeys;

    fn from_str(json: &str) -> Result<Self, InvalidKeys> {
        let clusters: HashMap<String, Entry> = serde_json::from_str(json).map_err(|_| InvalidKeys)?;
        let mut keys = HashMap::new();
        for (cluster, entry) in clusters {
            let entries = match entry {
                Entry::ForAll(key) => vec![(None, key)],
                Entry::BySender(senders) => {
                    let senders = senders.into_iter().map(|(name, key)| Some((Some(Sender::of_key(&name)?), key)));
                    senders.collect::<Option<_>>().ok_or(InvalidKeys)?
                }
            };
            if entries.iter().any(|(_, key)| key.expose_secret().is_empty()) {
                return Err(InvalidKeys);
            }
            keys.insert(cluster, entries);
        }
        Ok(Self(keys))
    }
}

impl Keys {
    /// Returns whether the sender knows a key of the cluster. Of several proofs only the strongest
    /// counts: an invalid one is not rescued by another.
    pub(crate) fn know(&self, cluster: &str, sender: Sender, headers: &HeaderMap, body: &[u8], now: Timestamp) -> bool {
        let header = |name| headers.get(name).map_or(&[][..], |value: &http::HeaderValue| value.as_bytes());
        let signed = |name| header(name).strip_prefix(b"sha256=").is_some_and(|hex| self.signed(cluster, sender, body, hex));
        match sender {
            Sender::Flux if headers.contains_key("x-signature") => signed("x-signature"),
            Sender::Flux => {
                let known = header("authorization").strip_prefix(b"Bearer ").is_some_and(|token| self.is(cluster, sender, token));
                if known {
                    tracing::warn!(cluster, "notification is not signed; set the type of its Provider to generic-hmac");
                }
                known
            }
            Sender::GitHub => signed("x-hub-signature-256"),
            Sender::GitLab if headers.contains_key("webhook-signature") => {
                let [id, time, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header);
                self.signed_lately((cluster, sender), id, time, body, signatures, now)
            }
            Sender::GitLab => self.is(cluster, sender, header("x-gitlab-token")),
            Sender::Gitea if headers.contains_key("x-forgejo-signature") => {
                self.signed(cluster, sender, body, header("x-forgejo-signature"))
            }
            Sender::Gitea => self.signed(cluster, sender, body, header("x-gitea-signature")),
        }
    }

    /// Returns whether `signature`, in hex, was made over `body` with a key of this cluster and
    /// sender.
    fn signed(&self, cluster: &str, sender: Sender, body: &[u8], signature: &[u8]) -> bool {
        let signature = base16ct::mixed::decode_vec(signature).unwrap_or_default();
        self.any(cluster, sender, |key| {
            mac(key.as_bytes()).is_some_and(|mac| mac.chain_update(body).verify_slice(&signature).is_ok())
        })
    }

    /// Returns whether `token` is a key of this cluster and sender. Digests are compared, so that
    /// the time does not depend on a key.
    pub(crate) fn is(&self, cluster: &str, sender: Sender, token: &[u8]) -> bool {
        self.any(cluster, sender, |key| {
            let macs = mac(key.as_bytes()).zip(mac(key.as_bytes()));
            macs.is_some_and(|(expected, given)| {
                given.chain_update(token).verify_slice(&expected.chain_update(key).finalize().into_bytes()).is_ok()
            })
        })
    }

    /// Returns whether one of `signatures` (`v1,<base64>`, separated by spaces) was made over id,
    /// time (Unix seconds) and body with a key of this cluster and sender, and the time is
    /// [about](TOLERANCE) now: <https://www.standardwebhooks.com>. The key must be
    /// `whsec_<base64>`.
    pub(crate) fn signed_lately(
        &self,
        (cluster, sender): (&str, Sender),
        id: &[u8],
        time: &[u8],
        body: &[u8],
        signatures: &[u8],
        now: Timestamp,
    ) -> bool {
        let seconds = str::from_utf8(time).ok().and_then(|time| time.parse().ok());
        let signed_at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
        let proven = self.any(cluster, sender, |key| {
            let key = key.strip_prefix("whsec_").and_then(|key| BASE64_STANDARD.decode(key).ok());
            let Some(mac) = key.and_then(|key| mac(&key)) else { return false };
            let mac = [id, b".", time, b".", body].into_iter().fold(mac, Hmac::chain_update);
            signatures.split(|byte| *byte == b' ').any(|signature| {
                let signature = signature.strip_prefix(b"v1,").and_then(|base64| BASE64_STANDARD.decode(base64).ok());
                signature.is_some_and(|signature| mac.clone().verify_slice(&signature).is_ok())
            })
        });
        proven && signed_at.is_some_and(|at| now.duration_since(at).abs() <= TOLERANCE)
    }

    /// Tries every key of the sender, even after a match, so that the time does not depend on which
    /// one matches.
    fn any(&self, cluster: &str, sender: Sender, proves: impl Fn(&str) -> bool) -> bool {
        let keys = self.0.get(cluster).into_iter().flatten();
        let keys = keys.filter(|(owner, _)| owner.is_none_or(|owner| owner == sender));
        keys.filter(|(_, key)| proves(key.expose_secret())).count() > 0
    }
}

fn mac(key: &[u8]) -> Option<Hmac<Sha256>> {
    Hmac::new_from_slice(key).ok()
}

/// The keys in a Secrets Manager secret. They are read at the start and every five minutes, so that
/// an added or removed key takes effect without a deployment.
pub struct KeySecret<K> {
    keyring: K,
    secret: String,
    read: Mutex<(Keys, Timestamp)>,
}

impl<K: Keyring> KeySecret<K> {
    /// Reads the secret, a name or an ARN.
    pub async fn open(keyring: K, secret: String, now: Timestamp) -> driftless_aws::Result<Self> {
        let keys = read(&keyring, &secret).await?;
        Ok(Self { keyring, secret, read: Mutex::new((keys, now)) })
    }

    /// Passes the keys to `with`, and reads the secret before that if it is due. If the secret
    /// cannot be read or is invalid, the previous keys stay in use: a mistake in it must not refuse
    /// every sender.
    pub async fn with<T>(&self, now: Timestamp, with: impl AsyncFnOnce(&Keys) -> T) -> T {
        let mut kept = self.read.lock().await;
        if now.duration_since(kept.1) >= KEPT {
            match read(&self.keyring, &self.secret).await {
                Ok(keys) => kept.0 = keys,
                Err(error) => tracing::error!(%error, "cannot read the keys again; the previous keys stay in use"),
            }
            kept.1 = now;
        }
        with(&kept.0).await
    }
}

async fn read(keyring: &impl Keyring, secret: &str) -> driftless_aws::Result<Keys> {
    let text = keyring.secret(secret).await?;
    text.expose_secret().parse().map_err(|error: InvalidKeys| driftless_aws::Error::Permanent {
        call: format!("read the webhook's keys from the secret {secret}"),
        message: error.to_string(),
    })
}
