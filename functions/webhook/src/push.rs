use std::collections::BTreeSet;

use driftless_contract::{Hint, ObjectKey};
use serde::Deserialize;

/// The fields that are read of a push of a branch or tag from GitHub, GitLab, Gitea and Forgejo.
#[derive(Deserialize)]
pub(crate) struct Push {
    #[serde(rename = "ref")]
    git_ref: String,
    /// Zeros if the ref was deleted.
    after: String,
    repository: Repository,
}

/// The URLs of the repository. GitLab's fields have other names.
#[derive(Deserialize)]
struct Repository {
    #[serde(alias = "git_http_url")]
    clone_url: String,
    #[serde(alias = "git_ssh_url")]
    ssh_url: Option<String>,
}

impl Push {
    /// The hint for the repository: two, if its ssh URL has another host or path. None for a
    /// deleted ref, which no run can use.
    pub(crate) fn hints(self, cluster: &str) -> Vec<Hint> {
        let Self { git_ref, after, repository: Repository { clone_url, ssh_url } } = self;
        if after.bytes().all(|digit| digit == b'0') {
            return Vec::new();
        }
        let urls = [Some(clone_url), ssh_url];
        let repositories: BTreeSet<_> =
            urls.into_iter().flatten().filter_map(|url| ObjectKey::repository(cluster, &url)).collect();
        let revision = Some(format!("{git_ref}@sha1:{after}"));
        repositories.into_iter().map(|repository| Hint { revision: revision.clone(), ..Hint::new(repository) }).collect()
    }
}
