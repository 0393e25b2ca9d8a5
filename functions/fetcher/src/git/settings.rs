use super::servers::Servers;
use crate::guard::PrivateHosts;

/// The git settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Allows repositories on this machine, at loopback addresses, `file://` URLs and paths, and
    /// credentials over plain http. Metadata and link-local addresses are refused in any case. Only
    /// for your own machine, because every Stack can then name every path.
    pub allow_local: bool,
    /// The hosts of private networks that a Stack or a Workspace may name.
    pub private_hosts: PrivateHosts,
    /// The URL of the GitHub API, such as `https://api.github.com`, or `https://HOST/api/v3` for a
    /// GitHub Enterprise Server.
    pub github_api_url: String,
    /// Lines as in OpenSSH's `known_hosts`, for SSH servers that a Secret's own `known_hosts` does
    /// not name.
    pub known_hosts: String,
    /// CA certificates to trust besides the usual ones, as PEM.
    pub ca_certificates: String,
    /// The maximum number of bytes that a server may send in one fetch.
    pub max_pack_bytes: u64,
    /// What this instance of the function knows about servers.
    pub servers: Servers,
}
