//! The task's own folder in the bucket: plain signed GETs and PUTs. The shared port of S3 is not
//! used, because the SDK below it makes the binary of the runner half as large again.

use std::{
    fmt::Write,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_sigv4::{
    http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode, sign,
    },
    sign::v4,
};
use backon::ExponentialBuilder;
use bytes::{Bytes, BytesMut};
use driftless_contract::keys::TaskFolder;
use http::{
    HeaderName, Method, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_RANGE, IF_NONE_MATCH, RANGE},
};
use jiff::Timestamp;
use reqwest::{Body, Client, Response};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::{fs::File, io::AsyncReadExt};

use crate::credentials::Provider;

/// The time limit for storing all archives. The operation is over by then, and its result is not
/// stored yet.
pub(crate) const STORED_WITHIN: Duration = Duration::from_mins(1);

/// Bytes of a file that are read and sent at once.
const PIECE: usize = 128 << 10;

/// The maximum length of S3's errors.
const MAX_ERROR_BYTES: usize = 8 << 10;
const MAX_CODE_BYTES: usize = 64;

/// The back-off of requests during a run. It outlasts an outage of a minute.
pub(crate) fn back_off() -> ExponentialBuilder {
    let builder = ExponentialBuilder::default().with_max_delay(Duration::from_secs(10));
    builder.without_max_times().with_total_delay(Some(Duration::from_mins(2)))
}

/// The endpoint of the bucket.
#[derive(Clone, Debug)]
pub struct BucketEndpoint {
    /// The scheme and host, without a path.
    pub url: String,
    /// The region that requests are signed for.
    pub region: String,
    /// The bucket's name: the first part of the path.
    pub bucket: String,
}

/// Why an object could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The service answered with an error.
    #[error("{method} of {name} answered {}", answer(*status, code))]
    Status {
        /// GET or PUT.
        method: Method,
        /// The object, within the task's folder.
        name: String,
        /// The status of the answer.
        status: StatusCode,
        /// S3's error code, such as `AccessDenied`; empty if the answer has none.
        code: String,
    },
    /// The service cannot be reached, or the connection broke.
    #[error("cannot reach the bucket")]
    Transport(#[from] reqwest::Error),
    /// There are no credentials to sign with.
    #[error("cannot get the task's credentials")]
    Credentials(#[source] reqwest::Error),
    /// The request could not be made, because a setting is wrong.
    #[error("cannot make a request to the bucket: {0}")]
    Request(String),
}

/// A client that trusts the public CAs whatever the image contains, and those of the given file. It
/// uses no proxy, because the task's credentials and its bucket are in its own network.
pub(crate) fn client(certificates: Option<&Path>) -> Result<Client, StoreError> {
    let wrong = |error: &dyn std::fmt::Display| StoreError::Request(error.to_string());
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = certificates {
        let of_file = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
        roots.add_parsable_certificates(of_file.flatten());
    }
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder().tls_backend_preconfigured(tls).no_proxy();
    // It counts the time in which a body is sent too: an archive of the cache may take as long as
    // all of them may.
    Ok(client.connect_timeout(Duration::from_secs(5)).read_timeout(STORED_WITHIN).build()?)
}

/// The folder of this task.
pub(crate) struct Folder {
    client: Client,
    credentials: Provider,
    endpoint: BucketEndpoint,
    pub(crate) keys: TaskFolder,
    now: fn() -> Timestamp,
}

impl Folder {
    pub(crate) fn new(
        client: Client,
        credentials: Provider,
        endpoint: BucketEndpoint,
        keys: TaskFolder,
        now: fn() -> Timestamp,
    ) -> Self {
        Self { client, credentials, endpoint, keys, now }
    }

    /// An object that must exist.
    pub(crate) async fn get(&self, key: &str) -> Result<Response, StoreError> {
        self.send(Method::GET, key, None, Vec::new()).await
    }

    /// `size` bytes, at least one, of an object that must exist, from `offset` on.
    pub(crate) async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Response, StoreError> {
        let range = format!("bytes={offset}-{}", offset + size - 1);
        self.send(Method::GET, key, Some((RANGE, &range)), Vec::new()).await
    }

    /// Up to `size` bytes of the end of an object that must be there, and the size of the object.
    pub(crate) async fn get_tail(&self, key: &str, size: usize) -> Result<(Bytes, u64), StoreError> {
        let response = self.send(Method::GET, key, Some((RANGE, &format!("bytes=-{size}"))), Vec::new()).await?;
        let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()?.rsplit_once('/'));
        let whole = range.and_then(|(_, whole)| whole.parse().ok());
        let whole = whole.ok_or_else(|| StoreError::Request("S3 does not report the size of the object".into()))?;
        Ok((response.bytes().await?, whole))
    }

    /// Writes a file, of which the size and the SHA-256 in hex are known, as an object that is
    /// written once.
    pub(crate) async fn put_file(&self, key: &str, path: &Path, size: u64, sha256: &str) -> Result<(), StoreError> {
        let file = File::open(path).await.map_err(|error| StoreError::Request(error.to_string()))?;
        let pieces = futures::stream::try_unfold(file, async |mut file| {
            let mut piece = BytesMut::with_capacity(PIECE);
            let read = file.read_buf(&mut piece).await?;
            io::Result::Ok((read > 0).then(|| (piece.freeze(), file)))
        });
        let request = http::Request::builder().method(Method::PUT).uri(self.url(key));
        let request = request.header(IF_NONE_MATCH, "*").header(CONTENT_LENGTH, size);
        let request = request.body(Body::wrap_stream(pieces)).map_err(|error| StoreError::Request(error.to_string()))?;
        match self.execute(key, request, SignableBody::Precomputed(sha256.to_owned())).await {
            Err(StoreError::Status { status: StatusCode::PRECONDITION_FAILED, .. }) => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// Writes an object. With `once`, an existing object is never overwritten and counts as
    /// success: only an earlier try whose answer was lost can have written it.
    pub(crate) async fn put(&self, key: &str, body: String, once: bool) -> Result<(), StoreError> {
        match self.send(Method::PUT, key, once.then_some((IF_NONE_MATCH, "*")), body.into_bytes()).await {
            Err(StoreError::Status { status: StatusCode::PRECONDITION_FAILED, .. }) if once => Ok(()),
            sent => sent.map(drop),
        }
    }

    async fn send(
        &self,
        method: Method,
        key: &str,
        header: Option<(HeaderName, &str)>,
        body: Vec<u8>,
    ) -> Result<Response, StoreError> {
        let mut request = http::Request::builder().method(&method).uri(self.url(key));
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let body = Bytes::from(body);
        let request = request.body(Body::from(body.clone())).map_err(|error| StoreError::Request(error.to_string()))?;
        self.execute(key, request, SignableBody::Bytes(&body)).await
    }

    fn url(&self, key: &str) -> String {
        format!("{}/{}/{}", self.endpoint.url.trim_end_matches('/'), self.endpoint.bucket, encoded(key))
    }

    async fn execute(&self, key: &str, mut request: http::Request<Body>, body: SignableBody<'_>) -> Result<Response, StoreError> {
        let method = request.method().clone();
        self.sign(&mut request, body, (self.now)()).await?;
        let response = self.client.execute(request.try_into()?).await?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => {
                // An answer that breaks off has less detail, but is still an error.
                let body = head(response).await;
                let name = key.strip_prefix(&*self.keys).unwrap_or(key).to_owned();
                Err(StoreError::Status { method, name, status, code: code(&body).to_owned() })
            }
        }
    }

    async fn sign(&self, request: &mut http::Request<Body>, body: SignableBody<'_>, now: Timestamp) -> Result<(), StoreError> {
        let wrong = |error: &dyn std::fmt::Display| StoreError::Request(error.to_string());
        let mut settings = SigningSettings::default();
        // S3 differs from other services: keys are encoded once, and a checksum of the body is
        // signed too.
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let identity = self.credentials.get(now).await.map_err(StoreError::Credentials)?.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.endpoint.region)
            .name("s3")
            .time(SystemTime::from(now))
            .settings(settings)
            .build()
            .map_err(|error| wrong(&error))?
            .into();
        let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let uri = request.uri().to_string();
        let signable = SignableRequest::new(request.method().as_str(), &uri, headers, body).map_err(|error| wrong(&error))?;
        let (instructions, _) = sign(signable, &params).map_err(|error| wrong(&error))?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}

impl StoreError {
    /// Returns whether a retry may succeed. That includes a condition that lost a race (409).
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Status { status, .. } => status.is_server_error() || matches!(status.as_u16(), 408 | 409 | 429),
            Self::Transport(_) | Self::Credentials(_) => true,
            Self::Request(_) => false,
        }
    }

    /// Returns whether the object may still be written. S3 answers 404 or, without the right to
    /// list the bucket, 403 `AccessDenied`, which also means that a policy denies the read. Any
    /// other code of 403 is final.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::Status { status: StatusCode::NOT_FOUND, .. } => true,
            Self::Status { status: StatusCode::FORBIDDEN, code, .. } => matches!(code.as_str(), "" | "AccessDenied"),
            _ => false,
        }
    }
}

/// S3's answer, and the remedy if one is known.
fn answer(status: StatusCode, code: &str) -> String {
    let remedy = match code {
        "" => return status.to_string(),
        "AccessDenied" => "; check the policies of the task role, the bucket and the VPC endpoint for S3",
        "ExpiredToken" | "TokenRefreshRequired" => "; the task's credentials have expired, a new task has new ones",
        "RequestTimeTooSkewed" => "; the task's clock differs from that of S3 by more than 15m, a new task has another host",
        "SignatureDoesNotMatch"
        | "InvalidAccessKeyId"
        | "InvalidToken"
        | "AuthorizationHeaderMalformed"
        | "PermanentRedirect" => "; check the bucket's Region, and that no proxy changes requests to S3",
        _ => "",
    };
    format!("{status} {code}{remedy}")
}

/// The start of an answer's body, long enough for an error.
async fn head(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() >= MAX_ERROR_BYTES {
            break;
        }
    }
    body
}

/// The `<Code>` of an S3 error: letters and digits, else empty.
fn code(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
    if code.len() <= MAX_CODE_BYTES && code.bytes().all(|byte| byte.is_ascii_alphanumeric()) { code } else { "" }
}

/// A key in the form that S3 signs: all but unreserved characters and slashes percent-encoded.
fn encoded(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(byte.into()),
            _ => {
                let _: std::fmt::Result = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_encoded_as_s3_signs_it() {
        assert_eq!(encoded("tasks/AROA1:abc/in/spec"), "tasks/AROA1%3Aabc/in/spec");
        assert_eq!(encoded("a b+é~"), "a%20b%2B%C3%A9~");
    }

    #[test]
    fn code_of_an_error_is_read_from_its_body() {
        let error = |code: &str| format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>m</Message></Error>");
        for (body, expected) in [
            (error("AccessDenied"), "AccessDenied"),
            (error("RequestTimeTooSkewed"), "RequestTimeTooSkewed"),
            (error("a b"), ""),
            (error(&"A".repeat(65)), ""),
            ("<Code>Broken".into(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(code(body.as_bytes()), expected, "{body}");
        }
        assert_eq!(code(b"\xff<Code>A</Code>"), "");
    }

    #[test]
    fn absent_expired_skewed_and_denied_are_different_ends() {
        let error = |status: u16, code: &str| StoreError::Status {
            method: Method::GET,
            name: "in/spec".into(),
            status: StatusCode::from_u16(status).unwrap(),
            code: code.into(),
        };
        for (status, code, waits, remedy) in [
            (404, "NoSuchKey", true, "NoSuchKey"),
            (403, "AccessDenied", true, "the VPC endpoint for S3"),
            (403, "", true, "Forbidden"),
            (403, "RequestTimeTooSkewed", false, "the task's clock differs"),
            (403, "SignatureDoesNotMatch", false, "that no proxy changes requests"),
            (403, "ExpiredToken", false, "the task's credentials have expired"),
            (400, "ExpiredToken", false, "the task's credentials have expired"),
            (301, "PermanentRedirect", false, "the bucket's Region"),
            (503, "SlowDown", true, "SlowDown"),
        ] {
            let error = error(status, code);
            assert_eq!(error.is_absent() || error.passes(), waits, "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
        assert_eq!(error(404, "").to_string(), "GET of in/spec answered 404 Not Found");
    }
}
