//! Artifacts through the API server's service proxy: it is what a function reaches of a cluster, and RBAC names the Services.

use std::{fmt, future::Future};

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;

use crate::Refusal;

/// A Service of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    namespace: String,
    name: String,
    port: u16,
}

impl Service {
    /// The Service that an artifact's URL names, if the rest of the URL is `path` and nothing else.
    pub(crate) fn of_url(url: &str, path: &str) -> Option<Self> {
        let host = url.strip_prefix("http://")?.strip_suffix(path)?.strip_suffix('/')?;
        let (host, port) = match host.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (host, 80),
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        let host = host.strip_suffix(".cluster.local").unwrap_or(host).strip_suffix(".svc")?;
        let (name, namespace) = host.split_once('.')?;
        let label = |label: &str| !label.is_empty() && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        (label(name) && label(namespace)).then(|| Self { namespace: namespace.into(), name: name.into(), port })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.name, self.namespace)
    }
}

/// How artifacts are had.
pub trait Artifacts {
    /// Gets what a Service has at a path and gives it to `take` piece by piece.
    fn get(
        &self,
        service: &Service,
        path: &str,
        take: impl FnMut(&[u8]) -> Result<(), Refusal>,
    ) -> impl Future<Output = Result<(), Refusal>>;
}

/// The API server's service proxy.
#[derive(Clone)]
pub struct ServiceProxy(pub kube::Client);

impl Artifacts for ServiceProxy {
    async fn get(
        &self,
        service: &Service,
        path: &str,
        mut take: impl FnMut(&[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Service { namespace, name, port } = service;
        let url = format!("/api/v1/namespaces/{namespace}/services/http:{name}:{port}/proxy/{path}");
        let request = Request::get(url).body(kube::client::Body::empty()).map_err(unreachable)?;
        let response = self.0.send(request).await.map_err(unreachable)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(Refusal::Gone),
            // The body is the API server's or source-controller's, not ours to repeat.
            status => return Err(Refusal::Unreachable(format!("the service proxy answered {status}"))),
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame.map_err(unreachable)?.into_data() {
                take(&piece)?;
            }
        }
        Ok(())
    }
}

fn unreachable(error: impl fmt::Display) -> Refusal {
    Refusal::Unreachable(error.to_string())
}
