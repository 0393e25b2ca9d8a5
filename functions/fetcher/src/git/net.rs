//! The addresses that are dialled and the client that dials them. The host is a tenant's to name, and a name is its owner's to
//! point anywhere: the addresses that were checked are the very ones that are dialled.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::GitError;
use crate::{guard::refused, transport};

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a server may be silent within an answer: it may count objects for a while before it sends any.
const SILENT_TIME: Duration = Duration::from_mins(1);

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
