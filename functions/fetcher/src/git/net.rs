//! The addresses of git servers and the client that connects to them. A tenant chooses the host,
//! and the owner of a name can point it anywhere, so the client connects to exactly the addresses
//! that were checked.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{GitError, Settings, bounds::Bounds};
use crate::{
    guard::{is_private, refused},
    transport,
};

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a server may be silent within an answer: it may count objects for a while before it
/// sends any.
const SILENT_TIME: Duration = Duration::from_mins(1);

/// Resolves a host that a tenant names to the addresses it may reach. Connection errors of a
/// private address are hidden. An unlisted name that does not resolve and one that has a private
/// address get the same error, and the log has the cause.
pub(super) async fn addresses_for_tenant(
    host: &str,
    port: u16,
    settings: &Settings,
    bounds: &Bounds,
) -> Result<Vec<SocketAddr>, GitError> {
    let host = host.trim_matches(['[', ']']);
    let mut addresses = match addresses(host, port, settings.allow_local).await {
        Err(GitError::Unreachable { why, .. }) if !settings.private_hosts.has_name(host) => {
            tracing::warn!(why, "git host does not resolve");
            return Err(GitError::Unresolved { host: host.into() });
        }
        addresses => addresses?,
    };
    addresses.retain(|address| settings.private_hosts.allow(host, address.ip()));
    if addresses.is_empty() {
        if host.parse::<IpAddr>().is_ok() {
            return Err(GitError::Private { host: host.into() });
        }
        tracing::warn!(host, "git host has no public address, and GitPrivateHosts does not list it");
        return Err(GitError::Unresolved { host: host.into() });
    }
    if addresses.iter().any(|address| is_private(address.ip())) {
        bounds.hide();
    }
    Ok(addresses)
}

/// The addresses of a host that may be dialled.
pub(super) async fn addresses(host: &str, port: u16, allow_local: bool) -> Result<Vec<SocketAddr>, GitError> {
    let host = host.trim_matches(['[', ']']);
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| GitError::Unreachable { who: "the host", why: format!("{host}: {error}") })?;
    let (mut permitted, mut what) = (Vec::new(), None);
    for address in found {
        match refused(address.ip(), allow_local) {
            Some(refusal) => what = Some(refusal),
            None => permitted.push(address),
        }
    }
    match what {
        Some(what) if permitted.is_empty() => {
            Err(GitError::Local { host: host.into(), what, is_address: host.parse::<IpAddr>().is_ok() })
        }
        _ => Ok(permitted),
    }
}

/// A client that connects to these addresses whatever the name, uses no proxy and follows no
/// redirect. It trusts the usual CAs and the given ones.
pub(super) fn client(addresses: Vec<SocketAddr>, certificates: &str) -> Result<reqwest::Client, GitError> {
    let wrong = |error: &dyn std::fmt::Display| GitError::Setting { setting: "GitCaCertificates", why: error.to_string() };
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in CertificateDer::pem_slice_iter(certificates.as_bytes()) {
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(Checked(addresses))
        .connect_timeout(CONNECT_TIME)
        .read_timeout(SILENT_TIME)
        .build()
        .map_err(|error| wrong(&error))
}

struct Checked(Vec<SocketAddr>);

impl Resolve for Checked {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

/// A client's error with its causes and without the URL.
pub(super) fn words(error: reqwest::Error) -> String {
    transport::words(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unlisted_private_host_is_refused_and_listed_one_hides_errors() {
        let settings = |list: &str| Settings { private_hosts: list.parse().unwrap(), ..crate::tests::settings().git };
        let bounds = Bounds::new(1, Duration::from_secs(1));
        let error = addresses_for_tenant("10.1.2.3", 443, &settings("10.2.0.0/16"), &bounds).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "host \"10.1.2.3\" has a private address that GitPrivateHosts does not list; repository is not fetched; name another host, \
             or add this one to GitPrivateHosts (spec.projectRepo)"
        );
        assert!(error.is_terminal());
        assert!(!bounds.is_hidden());
        assert!(addresses_for_tenant("10.1.2.3", 443, &settings("10.1.0.0/16"), &bounds).await.is_ok());
        assert!(bounds.is_hidden());
        for error in [
            GitError::Status { who: "the git server", status: 500 },
            GitError::TooSlow { seconds: 90 },
            GitError::Protocol { to: "a request" },
            GitError::Unreachable { who: "the git server", why: "connection refused".into() },
        ] {
            assert_eq!(
                error.hidden().to_string(),
                "git server in a private network failed; repository is not fetched; the fetcher's log has the cause"
            );
        }
    }

    #[tokio::test]
    async fn unresolved_name_and_unlisted_private_name_get_the_same_error() {
        let settings = |list: &str| Settings { private_hosts: list.parse().unwrap(), ..crate::tests::settings().git };
        let bounds = Bounds::new(1, Duration::from_secs(1));
        // Neither needs a DNS server: the first is 10.0.0.1 in short, a label of the second is too
        // long for a query.
        let (private, unknown) = ("10.1", format!("{}.example.com", "x".repeat(64)));
        for host in [private, &unknown] {
            let error = addresses_for_tenant(host, 443, &settings("git.example.com,10.2.0.0/16"), &bounds).await.unwrap_err();
            let expected = format!(
                "host {host:?} does not resolve to a public address, and GitPrivateHosts does not list it; repository is not \
                 fetched; correct the host, or add it to GitPrivateHosts (spec.projectRepo)"
            );
            assert_eq!((error.to_string(), error.is_terminal()), (expected, false));
        }
        let error = addresses_for_tenant(&unknown, 443, &settings(&unknown), &bounds).await.unwrap_err();
        assert!(matches!(error, GitError::Unreachable { .. }), "{error}");
        assert!(addresses_for_tenant(private, 443, &settings("10.0.0.0/8"), &bounds).await.is_ok());
    }

    #[tokio::test]
    async fn refused_address_is_terminal_and_refused_name_is_not() {
        for (host, terminal) in [("169.254.169.254", true), ("[::1]", true), ("localhost", false), ("0x7f.1", false)] {
            let error = addresses(host, 443, false).await.unwrap_err();
            assert!(matches!(error, GitError::Local { .. }), "{host}: {error}");
            assert_eq!(error.is_terminal(), terminal, "{host}: {error}");
        }
        assert!(addresses("localhost", 443, true).await.is_ok());
        assert!(addresses("169.254.169.254", 443, true).await.is_err());
    }
}
