use std::collections::BTreeSet;

use driftless_contract::{Hint, ObjectKey};
use serde::Deserialize;

/// A push of a branch or of a tag as GitHub, GitLab, Gitea and Forgejo send it, as far as we read it.
#[derive(Deserialize)]
pub(crate) struct Push {
    #[serde(rename = "ref")]
    git_ref: String,
    /// Zeros if the ref is gone.
    after: String,
    repository: Repository,
}

/// The URLs that the repository may be named by. GitLab has words of its own.
#[derive(Deserialize)]
struct Repository {
    #[serde(alias = "git_http_url")]
    clone_url: String,
    #[serde(alias = "git_ssh_url")]
    ssh_url: Option<String>,
}

impl Push {
    /// The hint for the repository: two, if it has another host or path for ssh. None for a ref that is gone: nothing can be run of it.
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
