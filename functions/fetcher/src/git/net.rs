//! The addresses that are dialled and the client that dials them. The host is a tenant's to name, and a name is its owner's to
//! point anywhere: the addresses that were checked are the very ones that are dialled.

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
/// How long a server may be silent within an answer: it may count objects for a while before it sends any.
const SILENT_TIME: Duration = Duration::from_mins(1);

/// The addresses of a host that a tenant names, as far as they may be dialled. Of a private one no more is told than that it is unreachable.
pub(super) async fn addresses_for_tenant(
    host: &str,
    port: u16,
    settings: &Settings,
    bounds: &Bounds,
) -> Result<Vec<SocketAddr>, GitError> {
    let host = host.trim_matches(['[', ']']);
    let mut addresses = addresses(host, port, settings.allow_local).await?;
    addresses.retain(|address| settings.private_hosts.allow(host, address.ip()));
    if addresses.is_empty() {
        return Err(GitError::Private { host: host.into(), is_address: host.parse::<IpAddr>().is_ok() });
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

/// A client that dials these addresses whatever the name, uses no proxy and follows no redirect. It trusts the usual authorities
/// and the given ones.
pub(super) fn client(addresses: Vec<SocketAddr>, certificates: &str) -> Result<reqwest::Client, GitError> {
    let wrong = |error: &dyn std::fmt::Display| GitError::Setting { setting: "CA certificates for git", why: error.to_string() };
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

/// What a client says of a failure, with its causes and without the URL.
pub(super) fn words(error: reqwest::Error) -> String {
    transport::words(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn private_host_is_refused_unless_it_is_listed_and_tells_no_more_than_that() {
        let settings = |list: &str| Settings { private_hosts: list.parse().unwrap(), ..crate::tests::settings().git };
        let bounds = Bounds::new(1, Duration::from_secs(1));
        let error = addresses_for_tenant("10.1.2.3", 443, &settings("10.2.0.0/16"), &bounds).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "host \"10.1.2.3\" resolves to a private address, which this installation does not allow; name another host, or have the \
             installation list it in GitPrivateHosts (spec.projectRepo)"
        );
        assert!(!bounds.is_hidden());
        assert!(addresses_for_tenant("10.1.2.3", 443, &settings("10.1.0.0/16"), &bounds).await.is_ok());
        assert!(bounds.is_hidden());
        for error in [
            GitError::Status { who: "the git server", status: 500 },
            GitError::TooSlow { seconds: 90 },
            GitError::Protocol { to: "a request" },
            GitError::Unreachable { who: "the git server", why: "connection refused".into() },
        ] {
            assert_eq!(error.hidden().to_string(), "the git server is unreachable");
        }
    }

    #[tokio::test]
    async fn an_address_is_refused_for_good_and_a_name_for_as_long_as_it_leads_there() {
        for (host, terminal) in [("169.254.169.254", true), ("[::1]", true), ("localhost", false), ("0x7f.1", false)] {
            let error = addresses(host, 443, false).await.unwrap_err();
            assert!(matches!(error, GitError::Local { .. }), "{host}: {error}");
            assert_eq!(error.is_terminal(), terminal, "{host}: {error}");
        }
        assert!(addresses("localhost", 443, true).await.is_ok());
        assert!(addresses("169.254.169.254", 443, true).await.is_err());
    }
}
