use url::Url;

use crate::{GitSource, Revision};

/// Returns one name for a git repository however its URL is written: `host/owner/name` in lower
/// case, without scheme, user, port and `.git`. `None` for a URL without a host, such as a path.
///
/// A server has different ports for ssh and https, and the large hosts ignore case. Two
/// repositories can have the same name, so it may serve for a hint but never for a decision.
#[must_use]
pub fn repository(url: &str) -> Option<String> {
    let url = url.trim().to_lowercase();
    let (authority, path) = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?,
        // Git's short form, `user@host:path`.
        None => url.split_once(':').filter(|(host, _)| !host.contains('/'))?,
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, _port) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let path = path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let path = path.strip_suffix(".git").unwrap_or(&path);
    (!host.is_empty() && !path.is_empty()).then(|| format!("{host}/{path}"))
}

/// Returns which part of a login the URL of a git repository contains. All users who may read the
/// object could read it, so no such URL is fetched.
#[must_use]
pub fn login_in(url: &Url) -> Option<&'static str> {
    match url.scheme() {
        "http" | "https" if !url.username().is_empty() || url.password().is_some() => Some("a user or a password"),
        "ssh" if url.password().is_some() => Some("a password"),
        _ => None,
    }
}

/// The refs that a name can mean, in order of precedence: a branch before a tag.
#[must_use]
pub fn git_refs(name: &str) -> Vec<String> {
    if name.starts_with("refs/") || name == "HEAD" {
        return vec![name.to_owned()];
    }
    ["refs/heads/", "refs/tags/", "refs/"].map(|prefix| format!("{prefix}{name}")).into()
}

/// Returns the variables that tell Pulumi, and a program, the commit that they run, because a task
/// has no `.git`. Pulumi reads them where it finds no repository, and stores them with the update.
/// Empty if `revision` is not a commit.
///
/// `revision` is a commit, or Flux's `NAME@sha1:COMMIT`; `reference` is the branch, tag or ref if
/// the revision has no name; `repository` is a [`repository`], and `dir` is the project's
/// directory.
#[must_use]
pub fn git_variables(
    revision: &Revision,
    reference: Option<&str>,
    repository: Option<&str>,
    dir: &str,
) -> Vec<(&'static str, String)> {
    let revision = revision.as_str();
    let (name, commit) = revision.rsplit_once("sha1:").unwrap_or(("", revision));
    if commit.len() != 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Vec::new();
    }
    // The name of the default branch is not known here.
    let reference = reference.filter(|name| *name != "HEAD");
    let name = Some(name.trim_end_matches('@')).filter(|name| !name.is_empty()).or(reference);
    // For a nested group, the owner is its whole path.
    let (kind, path) = repository.and_then(|repository| repository.split_once('/')).unzip();
    let (owner, repository) = path.and_then(|path| path.rsplit_once('/')).unzip();
    let variables = [
        ("PULUMI_GIT_HEAD", Some(commit)),
        ("PULUMI_GIT_HEAD_NAME", name),
        ("PULUMI_VCS_REPO_KIND", kind),
        ("PULUMI_VCS_REPO_NAME", repository),
        ("PULUMI_VCS_REPO_OWNER", owner),
        ("PULUMI_VCS_REPO_ROOT", Some(dir).filter(|dir| !dir.is_empty())),
    ];
    variables.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))).collect()
}

impl GitSource {
    /// Returns whether it may resolve to another commit when `pushed`, a full ref, moves. Only the
    /// server knows the branch of `HEAD`.
    #[must_use]
    pub fn follows(&self, pushed: &str) -> bool {
        self.commit.is_empty() && (self.branch == "HEAD" || git_refs(&self.branch).iter().any(|git_ref| git_ref == pushed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_has_one_name_for_all_spellings() {
        for url in [
            "https://git.example.com/acme/shop",
            "https://git.example.com/acme/shop.git",
            "https://git.example.com/acme/shop.git/",
            "https://git.example.com//acme/shop//",
            "http://Git.Example.COM:8443/Acme/Shop.git",
            "https://user:word@git.example.com/acme/shop.git",
            "ssh://git@git.example.com/acme/shop.git",
            "ssh://git@git.example.com:2222/acme/shop.git",
            "SSH://GIT.example.com:2222/acme/shop",
            "git@git.example.com:acme/shop.git",
            "git@GIT.example.com:/acme/shop.git/",
            "git.example.com:acme/shop",
            " https://git.example.com/acme/shop\n",
        ] {
            assert_eq!(repository(url).as_deref(), Some("git.example.com/acme/shop"), "{url}");
        }
        for (url, name) in [
            ("https://gitlab.com/group/sub/team/shop.git", "gitlab.com/group/sub/team/shop"),
            ("git@gitlab.com:group/sub/team/shop.git", "gitlab.com/group/sub/team/shop"),
            ("ssh://[::1]:2222/acme/shop.git", "::1/acme/shop"),
            ("http://127.0.0.1:3000/git/shop.git", "127.0.0.1/git/shop"),
            ("https://example.com/acme/shop.git.git", "example.com/acme/shop.git"),
        ] {
            assert_eq!(repository(url).as_deref(), Some(name), "{url}");
        }
    }

    #[test]
    fn repository_without_a_host_has_no_name() {
        for text in [
            "",
            "shop",
            "/srv/shop.git",
            "../shop",
            "./a:b",
            "file:///srv/shop.git",
            "https://",
            "https://host",
            "https://host/",
            ":a",
        ] {
            assert_eq!(repository(text), None, "{text}");
        }
        for text in ["https:///acme/shop", "https://host/.git", "git@host:", "ssh://[::1/acme/shop", "ssh://git@:22/acme/shop"] {
            assert_eq!(repository(text), None, "{text}");
        }
    }

    #[test]
    fn push_affects_the_stacks_that_follow_its_ref() {
        let git = |branch: &str, commit: &str| GitSource { branch: branch.into(), commit: commit.into(), ..GitSource::default() };
        for (branch, pushed) in [
            ("main", "refs/heads/main"),
            ("main", "refs/tags/main"),
            ("team/main", "refs/heads/team/main"),
            ("refs/heads/main", "refs/heads/main"),
            ("heads/main", "refs/heads/main"),
            ("HEAD", "refs/heads/any"),
        ] {
            assert!(git(branch, "").follows(pushed), "{branch} {pushed}");
            assert!(!git(branch, "v1").follows(pushed), "{branch} {pushed}");
        }
        for (branch, pushed) in [
            ("main", "refs/heads/other"),
            ("main", "refs/heads/team/main"),
            ("main", "main"),
            ("refs/heads/main", "refs/tags/main"),
            ("", "refs/heads/main"),
        ] {
            assert!(!git(branch, "").follows(pushed), "{branch} {pushed}");
        }
        assert_eq!(git_refs("refs/tags/v1"), ["refs/tags/v1"]);
        assert_eq!(git_refs("HEAD"), ["HEAD"]);
        assert_eq!(git_refs("v1"), ["refs/heads/v1", "refs/tags/v1", "refs/v1"]);
    }

    #[test]
    fn commit_is_read_from_every_form_of_revision() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let found = |revision: &str, reference, repository, dir| {
            let variables = git_variables(&revision.into(), reference, repository, dir);
            variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let head = format!("PULUMI_GIT_HEAD={commit}");
        assert_eq!(found(commit, None, None, ""), head);
        assert_eq!(found(&format!("sha1:{commit}"), None, None, ""), head);
        let named = format!("{head} PULUMI_GIT_HEAD_NAME=main");
        assert_eq!(found(&format!("main@sha1:{commit}"), None, None, ""), named);
        assert_eq!(found(commit, Some("main"), None, ""), named);
        assert_eq!(found(commit, Some("HEAD"), None, ""), head);
        assert_eq!(
            found(commit, Some("main"), Some("gitlab.com/group/team/shop"), "deep/app"),
            format!(
                "{named} PULUMI_VCS_REPO_KIND=gitlab.com PULUMI_VCS_REPO_NAME=shop PULUMI_VCS_REPO_OWNER=group/team \
                 PULUMI_VCS_REPO_ROOT=deep/app"
            )
        );
        for revision in ["", "1", "latest@sha256:0123", "sha256:0123", "0123456789abcdef0123456789abcdef0123456z"] {
            assert_eq!(found(revision, Some("main"), Some("github.com/a/b"), "dir"), "", "{revision}");
        }
    }
}
