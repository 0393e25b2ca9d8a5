use driftless_source::Refusal;

use super::{TIME, bounds::ANSWER_TIME, servers};
use crate::limit_remedy;

/// The names of the fields that define a repository, for messages.
#[derive(Debug)]
pub struct Fields {
    /// The repository.
    url: &'static str,
    /// The commit.
    commit: &'static str,
    /// The credentials.
    pub(super) auth: &'static str,
    /// The credentials for http.
    pub(super) login: &'static str,
    /// The credential for ssh.
    pub(super) key: &'static str,
    /// The field that names a Flux source instead.
    flux: &'static str,
}

impl Fields {
    pub(super) const STACK: Self = Self {
        url: "spec.projectRepo",
        commit: "spec.commit",
        auth: "spec.gitAuth",
        login: "spec.gitAuth.accessToken, githubApp or basicAuth",
        key: "spec.gitAuth.sshAuth",
        flux: "spec.fluxSource with",
    };
    pub(super) const WORKSPACE: Self = Self {
        url: "spec.git.url",
        commit: "spec.git.ref",
        auth: "spec.git.auth",
        login: "spec.git.auth.token, githubApp or username and password",
        key: "spec.git.auth.sshPrivateKey",
        flux: "spec.flux with the artifact of",
    };
}

/// Why git returned no tree. The message becomes part of the condition: it names the field, or the Secret and its key, and never
/// contains a credential or the server's text. The display form uses a Stack's field names; see [`GitError::words`].
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the message says they are")]
pub enum GitError {
    #[error("{}", self.words(&Fields::STACK))]
    Url(&'static str),
    #[error("{}", self.words(&Fields::STACK))]
    UrlWithLogin { what: &'static str, ssh: bool },
    #[error("{}", self.words(&Fields::STACK))]
    Scheme(String),
    #[error("missing \"commit\" or \"branch\": set one of spec.branch and spec.commit")]
    NoReference,
    #[error("{field} is {value:?}: {why}")]
    Reference { field: &'static str, value: String, why: &'static str },
    #[error("the host {host:?} is {what}, which is never connected to; name another host")]
    Local { host: String, what: &'static str, is_address: bool },
    #[error("{}", self.words(&Fields::STACK))]
    Private { host: String },
    /// A name without a public address. A name of an unlisted private network has the same message, so that a tenant learns no
    /// internal names.
    #[error("{}", self.words(&Fields::STACK))]
    Unresolved { host: String },
    #[error(
        "gitAuth config must specify exactly one of 'personalAccessToken', 'sshPrivateKey', 'basicAuth', or 'githubApp': \
         spec.gitAuth is empty"
    )]
    NoAuth,
    #[error(
        "{field} is not a reference to a literal or to a key of a Secret; set its type to Secret, secret.name and secret.key"
    )]
    Selector { field: &'static str },
    #[error("Secret {secret:?} is not there ({field}); create it, and the source is fetched at its next interval")]
    NoSecret { secret: String, field: &'static str },
    #[error("creating gitAuth: no key {key:?} found in Secret {secret:?} ({field})")]
    NoKey { secret: String, key: String, field: &'static str },
    #[error("{source_name} is not text; it has to be UTF-8")]
    NotText { source_name: String },
    #[error(
        "Secret {secret:?} may not be read ({field}): {message}; bind the ClusterRole driftless:git-credentials in this \
         namespace (infra/kubernetes/runs)"
    )]
    Forbidden { secret: String, field: &'static str, message: String },
    #[error("{}", self.words(&Fields::STACK))]
    Unfit { scheme: &'static str, source_name: String, remedy: String },
    #[error("{source_name} {why}")]
    Credential { source_name: String, why: String },
    #[error("the git server refused the credentials of {source_name}")]
    Denied { source_name: String },
    #[error("{}", self.words(&Fields::STACK))]
    Anonymous,
    #[error("{}", self.words(&Fields::STACK))]
    NotFound { source_name: String },
    #[error("{who} answered with status {status}")]
    Status { who: &'static str, status: u16 },
    #[error("{}", self.words(&Fields::STACK))]
    Redirect,
    #[error(
        "the SSH host {host} has the key {fingerprint}, which is not a known one: if it is the right one, add its known_hosts \
         line to the key known_hosts of the Secret with the private key, or to the installation's known hosts"
    )]
    HostKey { host: String, fingerprint: String },
    #[error("a known_hosts line of the SSH host {host} is damaged; it has to be as ssh-keyscan prints it")]
    KnownHosts { host: String },
    #[error("no branch or tag {value:?} in the repository ({field}); the source heals when it is pushed")]
    NoRef { field: &'static str, value: String },
    #[error("{}", self.words(&Fields::STACK))]
    NoCommit { commit: String },
    #[error("{id} is not a commit; name a commit, a branch or a tag of a commit")]
    NotACommit { id: String },
    #[error("{}", self.words(&Fields::STACK))]
    Submodule { path: String },
    #[error(
        "{path:?} is kept in Git LFS: the repository has only a pointer to it; commit the file itself (git lfs migrate export)"
    )]
    Lfs { path: String },
    #[error("the repository is in SHA-256 format, which is not supported; use a SHA-1 repository")]
    Sha256,
    #[error(
        "the git server sent more than {limit} bytes for one commit; raise the installation's limit, or use a smaller repository"
    )]
    TooLarge { limit: u64 },
    #[error(
        "the git server sent an object as more than {limit} deltas; repository is not fetched; set pack.depth to 50 on the server, or \
         repack the repository"
    )]
    Deltas { limit: u32 },
    #[error("{}", self.words(&Fields::STACK))]
    TooSlow { seconds: u64 },
    #[error("{}", self.words(&Fields::STACK))]
    Silent,
    #[error("git server in a private network failed; repository is not fetched; the fetcher's log has the cause")]
    Hidden { had_less_time: bool },
    #[error("{who} cannot be reached: {why}")]
    Unreachable { who: &'static str, why: String },
    #[error("{}", self.words(&Fields::STACK))]
    Protocol { to: &'static str },
    #[error("the git server sent a pack that is damaged, incomplete or holds an object that is too large")]
    Pack,
    #[error("{0}{remedy}", remedy = limit_remedy(.0))]
    Content(#[from] Refusal),
    /// What a branch or tag names now: a push may fix it.
    #[error(transparent)]
    OfName(Box<GitError>),
    #[error("the installation's setting {setting} cannot be used: {why}")]
    Setting { setting: &'static str, why: String },
    #[error("the scratch space cannot be used: {0}")]
    Scratch(#[source] std::io::Error),
}

impl GitError {
    /// The message with these field names.
    #[must_use]
    pub fn words(&self, at: &Fields) -> String {
        let Fields { url, commit, auth, key, flux, .. } = at;
        match self {
            Self::Url(why) => format!("{url}: {why}"),
            Self::UrlWithLogin { what, ssh } => {
                format!("{url}: it has {what} in it: take that out and use {}", if *ssh { key } else { auth })
            }
            Self::Private { host } => format!(
                "host {host:?} has a private address that GitPrivateHosts does not list; repository is not fetched; name another host, \
                 or add this one to GitPrivateHosts ({url})"
            ),
            Self::Unresolved { host } => format!(
                "host {host:?} does not resolve to a public address, and GitPrivateHosts does not list it; repository is not fetched; \
                 correct the host, or add it to GitPrivateHosts ({url})"
            ),
            Self::Scheme(scheme) => format!("{url}: invalid URL scheme: {scheme}; use https, http or ssh"),
            Self::Unfit { scheme, source_name, remedy } => {
                format!("{url} is {scheme}: {source_name} is no credential for it; {remedy}")
            }
            Self::Anonymous => format!("the git server wants credentials: set {auth}"),
            Self::NotFound { source_name } => {
                format!("the git server says that there is no repository at {url}, or that {source_name} may not read it")
            }
            Self::Redirect => format!(
                "the git server redirects to another host, or too often; that is not followed: write the URL that it comes to into \
                 {url}"
            ),
            Self::NoCommit { commit: id } => {
                format!("the git server does not have commit {id}, or does not give it out by its id ({commit})")
            }
            Self::Submodule { path } => format!(
                "{path:?} is a submodule, and its content is not in the repository: put the files into the repository, or use {flux} a \
                 GitRepository that sets recurseSubmodules"
            ),
            Self::Protocol { to } => format!(
                "the git server's answer to {to} broke off, or is not what git servers say: is {url} right, and may it be read with \
                 these credentials?"
            ),
            Self::Silent => format!(
                "git server did not answer within {}s; none of its repositories is fetched for {}m; check the server and the port in {url}",
                ANSWER_TIME.as_secs(),
                servers::REST.as_mins()
            ),
            Self::TooSlow { seconds } => {
                let why = if self.had_less_time() { ", the limit after a slow fetch from its git server" } else { "" };
                format!(
                    "fetch took longer than {seconds}s{why}; repository is not fetched; check the git server of {url}, or use a smaller \
                     repository"
                )
            }
            Self::OfName(error) => error.words(at),
            _ => self.to_string(),
        }
    }

    /// The error without what a network scan could use: whether a host listens, and on which port.
    #[must_use]
    pub fn hidden(self) -> Self {
        match self {
            Self::Unreachable { .. } | Self::Status { .. } | Self::TooSlow { .. } | Self::Silent | Self::Protocol { .. } => {
                Self::Hidden { had_less_time: self.had_less_time() }
            }
            Self::OfName(error) => error.hidden(),
            error => error,
        }
    }

    /// Returns whether the time limit was shorter than usual, which is not the fault of the source.
    #[must_use]
    pub fn had_less_time(&self) -> bool {
        match self {
            Self::TooSlow { seconds } => *seconds < TIME.as_secs(),
            Self::Hidden { had_less_time } => *had_less_time,
            Self::OfName(error) => error.had_less_time(),
            _ => false,
        }
    }

    /// Returns whether the same spec always fails.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Url(_)
            | Self::UrlWithLogin { .. }
            | Self::Scheme(_)
            | Self::NoReference
            | Self::Reference { .. }
            | Self::Private { .. }
            | Self::NoAuth
            | Self::Selector { .. }
            | Self::Submodule { .. }
            | Self::Lfs { .. }
            | Self::Sha256
            | Self::TooLarge { .. }
            | Self::Content(_) => true,
            // A name may later resolve to another address; an address does not change.
            Self::Local { is_address, .. } => *is_address,
            _ => false,
        }
    }
}
