use driftless_source::Refusal;

use super::times::{ANSWER_TIME, REST, TIME};
use crate::remedy::limit_remedy;

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

/// Why git returned no tree. The message becomes part of the condition: it names the field, or the
/// Secret and its key, and never contains a credential or the server's text. The display form uses
/// a Stack's field names; see [`GitError::words`].
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
    #[error("host {host:?} is {what}, which is not allowed; name another host")]
    Local { host: String, what: &'static str, is_address: bool },
    #[error("{}", self.words(&Fields::STACK))]
    Private { host: String },
    /// A name without a public address. A name of an unlisted private network has the same message,
    /// so that a tenant learns no internal names.
    #[error("{}", self.words(&Fields::STACK))]
    Unresolved { host: String },
    #[error(
        "gitAuth config must specify exactly one of 'personalAccessToken', 'sshPrivateKey', 'basicAuth', or 'githubApp': \
         spec.gitAuth is empty"
    )]
    NoAuth,
    #[error("{field} refers to neither a literal nor a key of a Secret; set its type to Secret, and secret.name and secret.key")]
    Selector { field: &'static str },
    #[error("Secret {secret:?} not found ({field}); create it")]
    NoSecret { secret: String, field: &'static str },
    #[error("creating gitAuth: no key {key:?} found in Secret {secret:?} ({field})")]
    NoKey { secret: String, key: String, field: &'static str },
    #[error("{source_name} is not UTF-8 text")]
    NotText { source_name: String },
    #[error(
        "reading Secret {secret:?} is forbidden ({field}): {message}; bind the ClusterRole driftless:git-credentials in this \
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
    NotFound { source_name: Option<String> },
    #[error("{who} answered with status {status}")]
    Status { who: &'static str, status: u16 },
    #[error("{}", self.words(&Fields::STACK))]
    Redirect,
    #[error(
        "SSH host key of {host} is unknown: {fingerprint}; if it is genuine, add its known_hosts line to the key known_hosts \
         of the Secret with the private key, or to GitKnownHosts"
    )]
    HostKey { host: String, fingerprint: String },
    #[error("known_hosts line of SSH host {host} is invalid; write it as ssh-keyscan prints it")]
    KnownHosts { host: String },
    #[error("branch or tag {value:?} not found in the repository ({field}); push it, or correct the name")]
    NoRef { field: &'static str, value: String },
    #[error("{}", self.words(&Fields::STACK))]
    NoCommit { commit: String },
    #[error("{id} is not a commit; name a commit, a branch or a tag of a commit")]
    NotACommit { id: String },
    #[error("{}", self.words(&Fields::STACK))]
    Submodule { path: String },
    #[error("{path:?} is stored in Git LFS, which is not supported; commit the file itself (git lfs migrate export)")]
    Lfs { path: String },
    #[error("the repository is in SHA-256 format, which is not supported; use a SHA-1 repository")]
    Sha256,
    #[error(
        "git server sent more than {limit} bytes for one commit; repository is not fetched; raise MaxArchiveBytes, or use a \
         smaller repository"
    )]
    TooLarge { limit: u64 },
    #[error(
        "git server sent an object as more than {limit} deltas; repository is not fetched; set pack.depth to 50 on the server, \
         or repack the repository"
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
    #[error("git server sent a pack that is damaged or incomplete, or that has an object that is too large")]
    Pack,
    #[error("{0}{remedy}", remedy = limit_remedy(.0))]
    Content(#[from] Refusal),
    /// What a branch or tag names now: a push may fix it.
    #[error(transparent)]
    OfName(Box<GitError>),
    #[error("parameter {setting} is invalid: {why}")]
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
                format!("{url} contains {what}; remove it and use {}", if *ssh { key } else { auth })
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
                format!("{url} is {scheme}: {source_name} is not a credential for it; {remedy}")
            }
            Self::Anonymous => format!("git server requires credentials; set {auth}"),
            Self::NotFound { source_name: Some(source_name) } => {
                format!("repository not found, or {source_name} has no access to it; check both ({url})")
            }
            Self::NotFound { source_name: None } => {
                format!("repository not found, or it is private; set {auth} if it is private ({url})")
            }
            Self::Redirect => format!(
                "git server redirects to another host, or too often; redirects are not followed; set {url} to the final URL"
            ),
            Self::NoCommit { commit: id } => {
                format!("commit {id} not found, or the git server does not serve commits by id ({commit})")
            }
            Self::Submodule { path } => format!(
                "{path:?} is a submodule, which is not fetched; commit its files, or use {flux} a GitRepository that sets \
                 recurseSubmodules"
            ),
            Self::Protocol { to } => {
                format!("git server sent an incomplete or invalid answer to {to}; check {url} and its credentials")
            }
            Self::Silent => format!(
                "git server did not answer within {}s; none of its repositories is fetched for {}m; check the server and the port in {url}",
                ANSWER_TIME.as_secs(),
                REST.as_mins()
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
