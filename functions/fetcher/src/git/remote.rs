//! The repository and the commit that a Stack or a Workspace names.

use driftless_core::login_in;
use url::Url;

use super::GitError;

/// The location of a repository.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Http(Url),
    Ssh { user: String, host: String, port: u16, path: String },
    Local(String),
}

impl Place {
    /// Parses a URL, or git's short form `user@host:path`.
    pub fn parse(text: &str, allow_local: bool) -> Result<Self, GitError> {
        if text.is_empty() {
            return Err(GitError::Url("missing \"projectRepo\""));
        }
        if text.contains(char::is_control) {
            return Err(GitError::Url("it contains a control character"));
        }
        let place = match (text.split_once("://"), text.split_once(':')) {
            (Some(("file", path)), _) => Self::Local(path.to_owned()),
            (Some(_), _) => Self::of_url(&Url::parse(text).map_err(|_| GitError::Url("it is not a URL"))?)?,
            (None, Some((host, path))) if !host.contains('/') => Self::of_short(host, path)?,
            (None, _) => Self::Local(text.to_owned()),
        };
        match &place {
            Self::Local(_) if !allow_local => Err(GitError::Url("it is a local path; use https, http or ssh")),
            // git-upload-pack would read it as an option.
            Self::Local(path) | Self::Ssh { path, .. } if path.is_empty() || path.starts_with('-') => {
                Err(GitError::Url("its path is empty or begins with a dash"))
            }
            _ => Ok(place),
        }
    }

    /// The host and the port of the server, the same for every spelling of the host.
    #[must_use]
    pub fn server(&self) -> Option<(String, u16)> {
        let (host, port) = match self {
            Self::Http(url) => (url.host_str()?, url.port_or_known_default()?),
            Self::Ssh { host, port, .. } => (host.as_str(), *port),
            Self::Local(_) => return None,
        };
        Some((host.trim_end_matches('.').to_lowercase(), port))
    }

    fn of_url(url: &Url) -> Result<Self, GitError> {
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(GitError::Url("it has no host"))?;
        if let Some(what) = login_in(url) {
            return Err(GitError::UrlWithLogin { what, ssh: url.scheme() == "ssh" });
        }
        match url.scheme() {
            "http" | "https" if url.query().is_some() || url.fragment().is_some() => {
                Err(GitError::Url("it has a query or a fragment; remove it"))
            }
            "http" | "https" => Ok(Self::Http(url.clone())),
            "ssh" => {
                let path = url.path();
                Ok(Self::Ssh {
                    user: user(url.username()),
                    host: host.trim_matches(['[', ']']).to_owned(),
                    port: url.port().unwrap_or(22),
                    // As in git: a path from a user's home directory starts with the tilde.
                    path: path.strip_prefix("/~").map_or_else(|| path.to_owned(), |rest| format!("~{rest}")),
                })
            }
            other => Err(GitError::Scheme(other.chars().take(20).collect())),
        }
    }

    fn of_short(host: &str, path: &str) -> Result<Self, GitError> {
        let (name, host) = host.rsplit_once('@').unwrap_or(("", host));
        if host.is_empty() || host.contains(['[', ']']) {
            return Err(GitError::Url("it has no host; write an IPv6 address as ssh://[address]/path"));
        }
        Ok(Self::Ssh { user: user(name), host: host.to_owned(), port: 22, path: path.to_owned() })
    }
}

/// Git servers identify people by their keys, and use one user name for all of them.
fn user(name: &str) -> String {
    if name.is_empty() { "git".into() } else { name.into() }
}

/// The commit that a spec names.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Commit(gix_hash::ObjectId),
    Name { field: &'static str, name: String },
}

impl Wanted {
    /// Parses `spec.branch` and `spec.commit`. As in PKO, either may be the name of a branch or of
    /// a tag, or a full ref.
    pub fn parse(branch: &str, commit: &str) -> Result<Self, GitError> {
        let (field, name) = match (branch, commit) {
            ("", "") => return Err(GitError::NoReference),
            (_, "") => ("spec.branch", branch),
            _ => ("spec.commit", commit),
        };
        if field == "spec.commit" { Self::of_reference(field, name) } else { Self::of_name(field, name) }
    }

    /// Parses a field with a commit's id or a name.
    pub(super) fn of_reference(field: &'static str, text: &str) -> Result<Self, GitError> {
        match gix_hash::ObjectId::from_hex(text.as_bytes()) {
            Ok(id) if text.len() == 40 => Ok(Self::Commit(id)),
            _ => Self::of_name(field, text),
        }
    }

    fn of_name(field: &'static str, name: &str) -> Result<Self, GitError> {
        let wrong = |why| GitError::Reference { field, value: name.chars().take(200).collect(), why };
        if name.contains(|c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c)) {
            return Err(wrong("not a valid name of a branch or a tag"));
        }
        Ok(Self::Name { field, name: name.to_owned() })
    }
}

/// Returns whether a name without a ref is the beginning of a commit's id, which a git server
/// cannot look up.
pub(super) fn is_short_id(name: &str) -> bool {
    (7..40).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(user: &str, host: &str, port: u16, path: &str) -> Place {
        Place::Ssh { user: user.into(), host: host.into(), port, path: path.into() }
    }

    #[test]
    fn a_repository_is_named_by_a_url_or_by_the_short_form() {
        let parse = |text| Place::parse(text, false).unwrap();
        assert_eq!(parse("https://example.com/a/b.git"), Place::Http("https://example.com/a/b.git".parse().unwrap()));
        assert_eq!(parse("git@example.com:a/b.git"), ssh("git", "example.com", 22, "a/b.git"));
        assert_eq!(parse("example.com:/a/b.git"), ssh("git", "example.com", 22, "/a/b.git"));
        assert_eq!(parse("ssh://me@example.com:2222/a/b.git"), ssh("me", "example.com", 2222, "/a/b.git"));
        assert_eq!(parse("ssh://[::1]/~me/b.git"), ssh("git", "::1", 22, "~me/b.git"));
        assert_eq!(Place::parse("file:///srv/a.git", true).unwrap(), Place::Local("/srv/a.git".into()));
        assert_eq!(Place::parse("/srv/a.git", true).unwrap(), Place::Local("/srv/a.git".into()));
    }

    #[test]
    fn equal_hosts_in_different_spellings_are_one_server() {
        let server = |text| Place::parse(text, false).unwrap().server();
        for text in ["ssh://git@Git.Example.com/a", "git@git.example.com.:b", "ssh://git.EXAMPLE.com:22/c"] {
            assert_eq!(server(text), Some(("git.example.com".into(), 22)), "{text}");
        }
        assert_eq!(server("https://Git.example.com./a"), Some(("git.example.com".into(), 443)));
        assert_eq!(server("http://git.example.com:8080/a"), Some(("git.example.com".into(), 8080)));
    }

    #[test]
    fn invalid_repository_url_is_terminal_and_hides_credentials() {
        for (text, words) in [
            ("", "missing \"projectRepo\""),
            ("hhtp://example.com/a", "invalid URL scheme: hhtp"),
            ("https://canary@example.com/a", "user or a password"),
            ("https://me:canary@example.com/a", "user or a password"),
            ("ssh://me:canary@example.com/a", "password"),
            ("https://example.com/a?token=canary", "query"),
            ("https://", "not a URL"),
            ("file:///srv/a.git", "local path"),
            ("/srv/a.git", "local path"),
            ("../a.git", "local path"),
            ("git@example.com:-oProxyCommand=x", "dash"),
            ("git@example.com:a\nb", "control character"),
        ] {
            let error = Place::parse(text, false).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(!error.to_string().contains("canary"), "{text}: {error}");
            assert!(error.is_terminal(), "{text}");
        }
    }

    #[test]
    fn full_commit_needs_no_ls_refs() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(Wanted::parse("", id).unwrap(), Wanted::Commit(gix_hash::ObjectId::from_hex(id.as_bytes()).unwrap()));
        assert_eq!(Wanted::parse("", "v1").unwrap(), Wanted::Name { field: "spec.commit", name: "v1".into() });
        assert_eq!(Wanted::parse("main", "").unwrap(), Wanted::Name { field: "spec.branch", name: "main".into() });
        assert!(matches!(Wanted::parse("", ""), Err(GitError::NoReference)));
        assert!(Wanted::parse("a b", "").unwrap_err().to_string().contains("spec.branch is \"a b\""));
    }
}
