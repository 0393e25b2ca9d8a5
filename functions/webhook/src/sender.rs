use driftless_contract::Hint;
use http::HeaderMap;

use crate::{event::Event, push::Push};

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

    /// The hints for the objects that a message names. An error if the message is not one of this
    /// sender's.
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
