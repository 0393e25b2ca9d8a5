//! All servers of a function and a runner at one address: a Kubernetes API server with sources, the
//! Service with their archives, S3, SQS, the secret with the kubeconfig, and the endpoints that ECS
//! gives a task.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::Result;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use driftless_source::Digest;
use driftless_tests::{function::serve, world::cluster::kubeconfig};
use futures::StreamExt as _;
use serde_json::json;

/// The bucket's name.
pub const BUCKET: &str = "bench";

/// The endpoints.
pub struct Endpoints {
    /// Host and port.
    pub address: String,
    state: Arc<Shared>,
}

struct Shared {
    address: Mutex<String>,
    client: reqwest::Client,
    moto: Option<String>,
    archives: Mutex<BTreeMap<String, Archive>>,
    objects: Mutex<BTreeMap<String, Bytes>>,
    puts: Mutex<Vec<Put>>,
}

/// A written object.
pub struct Put {
    /// Its key.
    pub key: String,
    /// Bytes of its content.
    pub size: u64,
    /// When the first byte of the request arrived.
    pub at: Instant,
}

/// The artifact of a GitRepository.
#[derive(Clone)]
pub struct Archive {
    /// As in `status.artifact`.
    pub digest: Digest,
    /// The file.
    pub bytes: Bytes,
}

impl Endpoints {
    /// With `moto`, it stores the objects, and requests are only counted on their way. Without it,
    /// objects are counted and, except for outcomes, dropped, so that only the function is
    /// measured.
    pub async fn start(moto: Option<String>) -> Result<Self> {
        let state = Arc::new(Shared {
            address: Mutex::default(),
            client: client()?,
            moto,
            archives: Mutex::default(),
            objects: Mutex::default(),
            puts: Mutex::default(),
        });
        let router = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&state));
        let (address, _) = serve(router).await?;
        lock(&state.address).clone_from(&address);
        Ok(Self { address, state })
    }

    /// Makes the GitRepository of that name offer this archive. Returns the URL.
    pub fn offer(&self, name: &str, archive: Archive) -> String {
        let url = format!("http://{}/{}", self.address, path(name));
        lock(&self.state.archives).insert(name.into(), archive);
        url
    }

    /// Stores an object.
    pub fn put(&self, key: &str, content: Bytes) {
        lock(&self.state.objects).insert(key.into(), content);
    }

    /// An object's content.
    pub async fn get(&self, key: &str) -> Result<Bytes> {
        let url = format!("http://{}/{BUCKET}/{key}", self.address);
        // The signature is not verified, but it must have the right form.
        let signed = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        Ok(self.state.client.get(url).header(header::AUTHORIZATION, signed).send().await?.error_for_status()?.bytes().await?)
    }

    /// The objects written since the last call.
    pub fn puts(&self) -> Vec<Put> {
        std::mem::take(&mut *lock(&self.state.puts))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client for plain HTTP on this machine.
fn client() -> Result<reqwest::Client> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls).build()?)
}

fn path(name: &str) -> String {
    format!("gitrepository/bench/{name}/archive.tar.gz")
}

async fn handle(State(state): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let name = |from_end: usize| path.rsplit('/').nth(from_end).unwrap_or_default();
    if path.starts_with("/apis/") {
        let archive = lock(&state.archives).get(name(0)).cloned();
        return archive.map_or(StatusCode::NOT_FOUND.into_response(), |archive| repository(&state, name(0), &archive));
    }
    if path.starts_with("/api/v1/namespaces/") {
        return axum::Json(json!({ "metadata": { "name": name(0) } })).into_response();
    }
    if path.starts_with("/gitrepository/") {
        let archive = lock(&state.archives).get(name(1)).cloned();
        return archive.map_or(StatusCode::NOT_FOUND.into_response(), |archive| archive.bytes.into_response());
    }
    if request.headers().get("x-amz-target").is_some_and(|target| target == "secretsmanager.GetSecretValue") {
        let server = json!({ "server": format!("http://{}", lock(&state.address)) });
        return match kubeconfig(&[("c", server, json!({}))]) {
            Ok(text) => axum::Json(json!({ "SecretString": text })).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
    }
    if request.headers().contains_key("x-amz-target") {
        return axum::Json(json!({ "MessageId": "1", "MD5OfMessageBody": "" })).into_response();
    }
    match path.as_str() {
        "/metadata/task" => axum::Json(json!({ "TaskARN": "arn:aws:ecs:us-east-1:1:task/c/task" })).into_response(),
        "/credentials" => axum::Json(json!({
            "AccessKeyId": "k", "SecretAccessKey": "s", "Token": "t", "Expiration": "2100-01-01T00:00:00Z",
        }))
        .into_response(),
        _ => s3(&state, request).await.unwrap_or_else(|error| {
            tracing::error!(%error, path, "S3");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }),
    }
}

fn repository(state: &Shared, name: &str, archive: &Archive) -> Response {
    let path = path(name);
    axum::Json(json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "GitRepository",
        "metadata": { "namespace": "bench", "name": name },
        "status": { "artifact": {
            "digest": archive.digest.as_str(),
            "lastUpdateTime": "2026-01-01T00:00:00Z",
            "path": path,
            "revision": "main@sha1:0",
            "url": format!("http://{}/{path}", lock(&state.address)),
        } },
    }))
    .into_response()
}

async fn s3(state: &Shared, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let key = parts.uri.path().trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).replace("%3A", ":");
    let length = |name: &str| parts.headers.get(name).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if parts.method == Method::PUT {
        // For signed chunks, this header has the length of the content itself.
        let size = length("x-amz-decoded-content-length").or_else(|| length("content-length")).unwrap_or_default();
        lock(&state.puts).push(Put { key: key.clone(), size, at: Instant::now() });
    }
    if let Some(moto) = &state.moto {
        let url = format!("{moto}{}", parts.uri.path_and_query().map_or("/", |path| path.as_str()));
        let mut headers = parts.headers;
        headers.remove(header::HOST);
        let request = state.client.request(parts.method, url).headers(headers);
        let answer = request.body(reqwest::Body::wrap_stream(body.into_data_stream())).send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        return Ok((status, headers, Body::from_stream(answer.bytes_stream())).into_response());
    }
    if parts.method == Method::PUT {
        let mut content = Vec::new();
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            if key.starts_with("fetches/") {
                content.extend_from_slice(&piece?);
            }
        }
        if !content.is_empty() {
            lock(&state.objects).insert(key, content.into());
        }
        return Ok(StatusCode::OK.into_response());
    }
    let content = lock(&state.objects).get(&key).cloned();
    let absent = (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code><Message>There is none.</Message></Error>");
    Ok(content.map_or_else(|| absent.into_response(), |content| part(&parts.headers, &content)))
}

/// The content, or its requested range.
fn part(headers: &HeaderMap, content: &Bytes) -> Response {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let range = range.and_then(|(first, last)| Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()? + 1));
    match range.filter(|range| range.end <= content.len()) {
        Some(range) => (StatusCode::PARTIAL_CONTENT, content.slice(range)).into_response(),
        None => content.clone().into_response(),
    }
}
