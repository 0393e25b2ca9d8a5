//! Git servers that an installation does not reach or trust by itself.

use std::net::{IpAddr, Ipv4Addr};

use driftless_core::login_in;
use url::Url;

use super::report::{Note, different, refused};

/// The hosts whose ssh keys an installation knows by default.
const KNOWN_HOSTS: [&str; 2] = ["github.com", "gitlab.com"];
/// Suffixes of names that only private networks resolve.
const PRIVATE_NAMES: [&str; 4] = [".local", ".internal", ".svc", ".cluster.local"];

/// What prevents a git server from being reached or trusted.
pub(super) fn of_git(field: &str, url: &str, has_login: bool) -> Vec<Note> {
    let mut notes: Vec<_> = login(field, url).into_iter().collect();
    let Some((is_ssh, host)) = server(url) else { return notes };
    if is_private(&host) {
        notes.push(different(
            format!(
                "{field}: git server {host:?} seems to be in a private network and is reached only if GitPrivateHosts lists it"
            ),
            "list it in the parameter GitPrivateHosts (docs/sources.md)",
        ));
    }
    if has_login && url.starts_with("http://") {
        notes.push(refused(format!("{field} is an http URL with credentials, which is not fetched"), "use https"));
    }
    if is_ssh && !KNOWN_HOSTS.contains(&&*host) {
        notes.push(different(
            format!("{field}: SSH host key of {host:?} is unknown; Driftless knows those of github.com and gitlab.com"),
            "put its known_hosts line into GitKnownHosts, or into the key known_hosts of the Secret with the ssh key (docs/sources.md)",
        ));
    }
    notes
}

/// Returns whether the URL is for ssh, and its host: of a URL, or of git's short form
/// `user@host:path`.
fn server(url: &str) -> Option<(bool, String)> {
    let (is_ssh, host) = if url.contains("://") {
        let url = Url::parse(url).ok()?;
        (url.scheme() == "ssh", url.host_str()?.to_owned())
    } else {
        let (host, _) = url.split_once(':').filter(|(host, _)| !host.contains('/'))?;
        (true, host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned())
    };
    Some((is_ssh, host.trim_matches(['[', ']']).trim_end_matches('.').to_lowercase()))
}

/// Returns whether a host is in a private network, as far as its name or address shows.
fn is_private(host: &str) -> bool {
    match host.parse() {
        // 100.64.0.0/10 is carrier-grade NAT, which some CNIs use for Pods.
        Ok(IpAddr::V4(address)) => address.is_private() || matches!(Ipv4Addr::octets(&address), [100, 64..=127, ..]),
        Ok(IpAddr::V6(address)) => address.is_unique_local(),
        Err(_) => !host.contains('.') || PRIVATE_NAMES.iter().any(|end| host.ends_with(end)),
    }
}

fn login(field: &str, url: &str) -> Option<Note> {
    let url = Url::parse(url).ok()?;
    let what = login_in(&url)?;
    let remedy = if url.scheme() == "ssh" {
        "remove it, and name a Secret with the key in gitAuth (of a Workspace: git.auth)"
    } else {
        "remove it, and name a Secret with it in gitAuth (of a Workspace: git.auth)"
    };
    Some(refused(format!("{field} contains {what}; it is not fetched"), remedy))
}
