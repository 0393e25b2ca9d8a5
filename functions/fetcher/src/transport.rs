//! Downloads an archive: through the API server's service proxy, which a function can reach in any
//! cluster, or directly from the host of its URL, for functions in the cluster's network.

use std::{
    error::Error, fmt, fs::File, future::Future, io, io::Seek as _, io::Write as _, iter::successors, sync::Arc, time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use driftless_source::{Digest, Verifier};
use http::{Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};

use crate::{
    Refusal,
    guard::{Guard, refused},
};

/// The time limit of all tries together, which leaves time to unpack and store.
const WITHIN: Duration = Duration::from_mins(1);
/// How long a host may be silent.
const SILENCE: Duration = Duration::from_secs(15);
/// Tries after the first one.
const RETRIES: usize = 2;
/// The first pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The location of an archive, from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As in the URL, with a trailing dot if there is one.
    host: String,
    port: u16,
    path: String,
    /// Name and namespace, if the host is a Service of the cluster.
    service: Option<(String, String)>,
}

impl Place {
    /// The place that a URL names, if the rest of the URL is exactly `path`.
    #[must_use]
    pub fn of_url(url: &str, path: &str) -> Option<Self> {
        let host = url.strip_prefix("http://")?.strip_suffix(path)?.strip_suffix('/')?;
        let (host, port) = match host.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (host, 80),
        };
        let label = |label: &str| !label.is_empty() && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        let plain = host.strip_suffix('.').unwrap_or(host);
        if !plain.split('.').all(label) {
            return None;
        }
        let service = plain.strip_suffix(".cluster.local").unwrap_or(plain).strip_suffix(".svc");
        let service = service.and_then(|service| service.split_once('.')).filter(|(_, namespace)| label(namespace));
        let service = service.map(|(name, namespace)| (name.to_owned(), namespace.to_owned()));
        Some(Self { host: host.into(), port, path: path.into(), service })
    }

    /// Returns whether a list of `SERVICE.NAMESPACE` and hosts contains it; with a port other than
    /// 80 it is listed with `:PORT`.
    #[must_use]
    pub fn is_among(&self, allowed: &[String]) -> bool {
        let service = self.service.as_ref().map(|(name, namespace)| format!("{name}.{namespace}"));
        let names = [service.as_deref(), Some(self.host.strip_suffix('.').unwrap_or(&self.host))];
        allowed.iter().any(|allowed| {
            let (name, port) = allowed.split_once(':').unwrap_or((allowed, "80"));
            names.contains(&Some(name)) && port.parse() == Ok(self.port)
        })
    }

    /// The part of the URL after the host, without a leading slash.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// A download in progress: into a scratch file, not into memory.
pub struct Download {
    file: File,
    expected: Digest,
    verifier: Verifier,
    size: u64,
    limit: u64,
}

impl Download {
    pub(crate) fn new(expected: Digest, limit: u64) -> io::Result<Self> {
        Ok(Self { file: tempfile::tempfile()?, verifier: Verifier::new(expected.clone()), expected, size: 0, limit })
    }

    /// Starts, or starts again. `announced` is the size that the server states before the content.
    pub fn begin(&mut self, announced: Option<u64>) -> Result<(), Refusal> {
        if announced.is_some_and(|size| size > self.limit) {
            return Err(Refusal::TooLarge { limit: self.limit });
        }
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.verifier, self.size) = (Verifier::new(self.expected.clone()), 0);
        Ok(())
    }

    /// Writes the next piece.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        self.size += piece.len() as u64;
        if self.size > self.limit {
            return Err(Refusal::TooLarge { limit: self.limit });
        }
        self.verifier.update(piece);
        Ok(self.file.write_all(piece)?)
    }

    /// The archive, positioned at its start, if it matches its digest.
    pub(crate) fn finish(mut self) -> Result<File, Refusal> {
        self.verifier.finish()?;
        self.file.rewind()?;
        Ok(self.file)
    }
}

/// The way to artifacts.
pub trait Artifacts {
    /// Downloads the artifact at a place.
    fn get(&self, place: &Place, download: &mut Download) -> impl Future<Output = Result<(), Refusal>>;
}

/// The way to a place.
#[derive(Clone)]
enum Route {
    /// The API server's service proxy, with the function's own identity: RBAC names the Services.
    Proxy(kube::Client),
    /// The host itself.
    Direct(reqwest::Client),
}

/// The real network. A transient failure is retried a few times within the time limit.
#[derive(Clone)]
pub struct Transport {
    route: Route,
    within: Duration,
    pause: Duration,
}

/// Why a try failed.
enum Failed {
    /// Transient: a retry may succeed.
    Passing(String),
    /// Permanent: a retry would fail too.
    Refused(Refusal),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Transport {
    /// Downloads through the service proxy of a cluster.
    #[must_use]
    pub fn proxy(client: kube::Client) -> Self {
        Self { route: Route::Proxy(client), within: WITHIN, pause: PAUSE }
    }

    /// Downloads from the hosts themselves: without a proxy, without following a redirect, and
    /// never from an address that [`Guard`] refuses. Returns an error if TLS, which is not used,
    /// cannot be set up.
    pub fn direct() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Guard { allow_loopback: false })
            .connect_timeout(SILENCE)
            .read_timeout(SILENCE);
        Ok(Self { route: Route::Direct(client.build()?), within: WITHIN, pause: PAUSE })
    }

    async fn tries(&self, place: &Place, download: &mut Download) -> Result<(), Refusal> {
        let mut pauses = ExponentialBuilder::default().with_min_delay(self.pause).with_max_times(RETRIES).with_jitter().build();
        loop {
            match self.once(place, download).await {
                Ok(()) => return Ok(()),
                Err(Failed::Refused(refusal)) => return Err(refusal),
                Err(Failed::Passing(why)) => match pauses.next() {
                    Some(pause) => {
                        tracing::info!(path = place.path, why, "retrying the download of an artifact");
                        sleep(pause).await;
                    }
                    None => return Err(Refusal::Unreachable(why)),
                },
            }
        }
    }

    async fn once(&self, place: &Place, download: &mut Download) -> Result<(), Failed> {
        match &self.route {
            Route::Proxy(client) => {
                let request = Request::get(proxy_path(place)?).body(kube::client::Body::empty());
                let request = request.map_err(|error| Refusal::Unreachable(words(&error)))?;
                read(client.send(request).await.map_err(passing)?, download).await
            }
            Route::Direct(client) => {
                let response = client.get(direct_url(place)?).send().await.map_err(passing)?;
                read(response.into(), download).await
            }
        }
    }
}

impl Artifacts for Transport {
    async fn get(&self, place: &Place, download: &mut Download) -> Result<(), Refusal> {
        let Ok(ended) = timeout(self.within, self.tries(place, download)).await else {
            return Err(Refusal::Unreachable(format!("timed out after {}s", self.within.as_secs_f32())));
        };
        ended
    }
}

/// The path of a Service in the API server.
fn proxy_path(place: &Place) -> Result<String, Refusal> {
    let Place { host, port, path, service } = place;
    let Some((name, namespace)) = service else {
        return Err(Refusal::Artifact {
            field: "status.artifact.url",
            value: format!("http://{host}:{port}/{path}"),
            why: "the API server only reaches Services of the cluster, http://SERVICE.NAMESPACE.svc…/PATH; for other hosts set \
                 ArtifactTransport to direct"
                .into(),
        });
    };
    Ok(format!("/api/v1/namespaces/{namespace}/services/http:{name}:{port}/proxy/{path}"))
}

/// The URL itself. A resolver never sees an address in a URL, so that is checked here. A loopback
/// address is only reached if the installation lists it.
fn direct_url(place: &Place) -> Result<reqwest::Url, Refusal> {
    let Place { host, port, path, .. } = place;
    let text = format!("http://{host}:{port}/{path}");
    let wrong = |why: String| Refusal::Artifact { field: "status.artifact.url", value: text.clone(), why };
    let url: reqwest::Url = text.parse().map_err(|error| wrong(words(&error)))?;
    let address = url.host_str().and_then(|host| host.parse().ok());
    match address.and_then(|address| refused(address, true)) {
        Some(what) => Err(wrong(format!("{what} is not allowed"))),
        None => Ok(url),
    }
}

/// Reads a response. Only the archive is read: any other body is not repeated in a message.
async fn read<B, E>(response: Response<B>, download: &mut Download) -> Result<(), Failed>
where
    B: BodyExt<Data = Bytes, Error = E> + Unpin,
    E: Error,
{
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(Refusal::Gone.into()),
        status
            if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED =>
        {
            return Err(Failed::Passing(format!("the answer was {status}")));
        }
        status if status.is_redirection() => {
            return Err(Refusal::Unreachable(format!("the answer was {status}; redirects are not followed")).into());
        }
        status => return Err(Refusal::Unreachable(format!("the answer was {status}")).into()),
    }
    let announced = response.headers().get(CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse().ok());
    download.begin(announced)?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(passing)?.into_data() {
            download.write(&piece)?;
        }
    }
    Ok(())
}

fn passing<E: Error>(error: E) -> Failed {
    Failed::Passing(words(&error))
}

/// An error with its causes.
pub(crate) fn words(error: &dyn Error) -> String {
    successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.route {
            Route::Proxy(_) => "Transport::proxy",
            Route::Direct(_) => "Transport::direct",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        net::SocketAddr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::{Router, extract::State, response::IntoResponse, routing::get};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    const PATH: &str = "gitrepository/team/shop/sha256:0f.tar.gz";
    const CONTENT: &[u8] = b"the archive";
    const LIMIT: u64 = 64;

    fn direct() -> Transport {
        Transport { pause: Duration::from_millis(1), ..Transport::direct().unwrap() }
    }

    async fn fetch(transport: &Transport, host: &str) -> Result<Vec<u8>, String> {
        let place = Place::of_url(&format!("http://{host}/{PATH}"), PATH).unwrap();
        let mut download = Download::new(Digest::sha256(CONTENT), LIMIT).unwrap();
        let got = match transport.get(&place, &mut download).await {
            Ok(()) => download.finish(),
            Err(refusal) => Err(refusal),
        };
        let mut content = Vec::new();
        got.map_err(|refusal| refusal.to_string())?.read_to_end(&mut content).unwrap();
        Ok(content)
    }

    type Answers = &'static [(StatusCode, &'static [u8])];

    /// Serves these answers one after another, repeating the last one. Returns the address, and the
    /// number of requests.
    async fn serve(answers: Answers) -> (SocketAddr, Arc<AtomicUsize>) {
        async fn answer(State((asked, answers)): State<(Arc<AtomicUsize>, Answers)>) -> impl IntoResponse {
            let (status, body) = answers[asked.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1)];
            (status, [("location", "http://169.254.169.254/latest/meta-data")], body)
        }
        let asked = Arc::new(AtomicUsize::new(0));
        let router = Router::new().route(&format!("/{PATH}"), get(answer)).with_state((Arc::clone(&asked), answers));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (address, asked)
    }

    /// Answers every request with these bytes, with a pause between the pieces, and then closes the
    /// connection.
    async fn serve_raw(pieces: &'static [&'static str], pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let _ = connection.read(&mut [0; 4096]).await;
                    for piece in pieces {
                        if connection.write_all(piece.as_bytes()).await.is_err() {
                            return;
                        }
                        sleep(pause).await;
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn archive_is_downloaded_directly_from_its_host() {
        let (address, asked) = serve(&[(StatusCode::OK, CONTENT)]).await;
        assert_eq!(fetch(&direct(), &address.to_string()).await.unwrap(), CONTENT);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn transient_download_error_restarts_the_download_within_a_limit() {
        const AWAY: (StatusCode, &[u8]) = (StatusCode::SERVICE_UNAVAILABLE, b"");
        let (address, asked) = serve(&[AWAY, (StatusCode::TOO_MANY_REQUESTS, b""), (StatusCode::OK, CONTENT)]).await;
        assert_eq!(fetch(&direct(), &address.to_string()).await.unwrap(), CONTENT);
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        let (address, asked) = serve(&[AWAY]).await;
        let error = fetch(&direct(), &address.to_string()).await.unwrap_err();
        assert_eq!(error, "the artifact could not be fetched: the answer was 503 Service Unavailable");
        assert_eq!(asked.load(Ordering::Relaxed), 1 + RETRIES);
    }

    #[tokio::test]
    async fn permanent_download_error_is_not_retried() {
        for (answer, words) in [
            (StatusCode::FOUND, "302 Found; redirects are not followed"),
            (StatusCode::FORBIDDEN, "403 Forbidden"),
            (StatusCode::NOT_IMPLEMENTED, "501 Not Implemented"),
            (StatusCode::NO_CONTENT, "204 No Content"),
            (StatusCode::NOT_FOUND, "artifact no longer exists"),
        ] {
            let (address, asked) = serve(Box::leak(Box::new([(answer, CONTENT)]))).await;
            let error = fetch(&direct(), &address.to_string()).await.unwrap_err();
            assert!(error.contains(words), "{answer}: {error}");
            assert_eq!(asked.load(Ordering::Relaxed), 1, "{answer}");
        }
    }

    #[tokio::test]
    async fn too_large_content_is_refused_with_or_without_its_length() {
        const CHUNKS: &[&str] = &[
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "40\r\n",
            "ssssssssssssssssssssssssssssssss",
            "ssssssssssssssssssssssssssssssss\r\n",
            "1\r\ns\r\n0\r\n\r\n",
        ];
        let announced = serve_raw(&["HTTP/1.1 200 OK\r\ncontent-length: 65\r\n\r\n"], Duration::from_mins(1)).await;
        let silent = serve_raw(CHUNKS, Duration::ZERO).await;
        for address in [announced, silent] {
            let error = fetch(&direct(), &address.to_string()).await.unwrap_err();
            assert!(error.starts_with("archive is too large, the maximum is 64 bytes; "), "{error}");
        }
    }

    #[tokio::test]
    async fn wrong_content_length_gives_no_archive() {
        let less = serve_raw(&["HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nthe archive"], Duration::ZERO).await;
        let error = fetch(&direct(), &less.to_string()).await.unwrap_err();
        assert!(error.contains("does not match its digest"), "{error}");
        let more = serve_raw(&["HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nthe archive"], Duration::ZERO).await;
        let error = fetch(&direct(), &more.to_string()).await.unwrap_err();
        assert!(error.starts_with("the artifact could not be fetched: "), "{error}");
    }

    #[tokio::test]
    async fn endless_download_times_out() {
        const DRIP: &[&str] =
            &["HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n", "t", "h", "e", " ", "a", "r", "c", "h", "i", "v", "e"];
        let address = serve_raw(DRIP, Duration::from_mins(1)).await;
        let transport = Transport { within: Duration::from_millis(200), ..direct() };
        let error = fetch(&transport, &address.to_string()).await.unwrap_err();
        assert_eq!(error, "the artifact could not be fetched: timed out after 0.2s");
    }

    #[tokio::test]
    async fn metadata_is_never_reached_and_this_machine_only_by_its_address() {
        for host in ["169.254.169.254", "0xa9.0xfea9fe", "2852039166", "0.0.0.0"] {
            let error = fetch(&direct(), host).await.unwrap_err();
            assert!(error.starts_with("status.artifact.url is ") && error.ends_with(" is not allowed"), "{host}: {error}");
        }
        let error = fetch(&direct(), "localhost").await.unwrap_err();
        assert!(error.contains("localhost is a loopback address, which is not allowed"), "{error}");
    }

    #[test]
    fn a_place_is_listed_by_its_service_or_its_host() {
        let place = |host: &str| Place::of_url(&format!("http://{host}/{PATH}"), PATH);
        let is_among = |host: &str, allowed: &str| place(host).unwrap().is_among(&[allowed.to_owned()]);
        for host in ["a.b.svc", "a.b.svc.", "a.b.svc.cluster.local", "a.b.svc.cluster.local.", "a.b.svc:80"] {
            assert!(is_among(host, "a.b"), "{host}");
            assert!(!is_among(host, "a.b:81") && !is_among(host, "b.b") && !is_among(host, "a"), "{host}");
        }
        assert!(
            is_among("a.b.svc:81", "a.b:81")
                && is_among("10.0.0.1:9090", "10.0.0.1:9090")
                && is_among("h.example.com.", "h.example.com")
        );
        for host in ["", "a b", "u@a.b.svc", "[::1]", "a..b", "a.b.svc:x", "a.b.svc:70000", "a/b"] {
            assert_eq!(place(host), None, "{host}");
        }
    }

    #[test]
    fn proxy_transport_reaches_only_services_of_the_cluster() {
        let place = |host: &str| Place::of_url(&format!("http://{host}/{PATH}"), PATH).unwrap();
        let path = proxy_path(&place("source-controller.flux-system.svc.cluster.local.")).unwrap();
        assert_eq!(path, format!("/api/v1/namespaces/flux-system/services/http:source-controller:80/proxy/{PATH}"));
        let error = proxy_path(&place("archives.example.com:8080")).unwrap_err().to_string();
        assert!(error.contains("set ArtifactTransport to direct"), "{error}");
    }
}
