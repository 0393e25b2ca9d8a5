use driftless_contract::Hint;
use http::HeaderMap;
use jiff::Timestamp;

use crate::{Keys, event::Event, push::Push};

/// A kind of sender. Each has its own path, keys and kind of signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Flux,
    GitHub,
    GitLab,
    Gitea,
}

impl Sender {
    /// The cluster and the sender of a path. A cluster's name may contain slashes.
    pub(crate) fn of_path(path: &str) -> (&str, Self) {
        let path = path.trim_matches('/');
        match path.rsplit_once('/') {
            Some((cluster, "github")) => (cluster, Self::GitHub),
            Some((cluster, "gitlab")) => (cluster, Self::GitLab),
            Some((cluster, "gitea")) => (cluster, Self::Gitea),
            _ => (path, Self::Flux),
        }
    }

    /// The sender that may use a key of this name: `github`, or `github/<anything>`.
    pub(crate) fn of_key(name: &str) -> Option<Self> {
        match name.split_once('/').map_or(name, |(kind, _)| kind) {
            "flux" => Some(Self::Flux),
            "github" => Some(Self::GitHub),
            "gitlab" => Some(Self::GitLab),
            "gitea" => Some(Self::Gitea),
            _ => None,
        }
    }

    /// Returns whether the sender knows a key of the cluster. Of several proofs only the strongest counts: an invalid one is not
    /// rescued by another.
    pub(crate) fn is_authentic(self, keys: &Keys, cluster: &str, headers: &HeaderMap, body: &[u8], now: Timestamp) -> bool {
        let header = |name| headers.get(name).map_or(&[][..], |value: &http::HeaderValue| value.as_bytes());
        let signed = |name| header(name).strip_prefix(b"sha256=").is_some_and(|hex| keys.signed(cluster, self, body, hex));
        match self {
            Self::Flux if headers.contains_key("x-signature") => signed("x-signature"),
            Self::Flux => {
                let known = header("authorization").strip_prefix(b"Bearer ").is_some_and(|token| keys.is(cluster, self, token));
                if known {
                    tracing::warn!(cluster, "notification is not signed; set the type of its Provider to generic-hmac");
                }
                known
            }
            Self::GitHub => signed("x-hub-signature-256"),
            Self::GitLab if headers.contains_key("webhook-signature") => {
                let [id, time, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header);
                keys.signed_lately((cluster, self), id, time, body, signatures, now)
            }
            Self::GitLab => keys.is(cluster, self, header("x-gitlab-token")),
            Self::Gitea if headers.contains_key("x-forgejo-signature") => {
                keys.signed(cluster, self, body, header("x-forgejo-signature"))
            }
            Self::Gitea => keys.signed(cluster, self, body, header("x-gitea-signature")),
        }
    }

    /// The hints for the objects that a message names. An error if the message is not one of this sender's.
    pub(crate) fn hints(self, cluster: &str, headers: &HeaderMap, body: &[u8]) -> serde_json::Result<Vec<Hint>> {
        let says =
            |header: &str, events: &[&str]| headers.get(header).is_some_and(|event| events.iter().any(|known| event == known));
        let is_push = match self {
            Self::Flux => return Ok(serde_json::from_slice::<Event>(body)?.hint(cluster).into_iter().collect()),
            Self::GitHub => says("x-github-event", &["push"]),
            Self::GitLab => says("x-gitlab-event", &["Push Hook", "Tag Push Hook"]),
            Self::Gitea => says("x-gitea-event", &["push"]) || says("x-forgejo-event", &["push"]),
        };
        if is_push { Ok(serde_json::from_slice::<Push>(body)?.hints(cluster)) } else { Ok(Vec::new()) }
    }
}
