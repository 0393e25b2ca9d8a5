//! The function URL: HTTP in, payload format 2.0 to the function, its response as HTTP out.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use super::{
    lambda::{Failure, Lambda},
    machine::{now, random_hex},
    site::Site,
};

/// 6 MB.
const BODY_BYTES: usize = 6 << 20;

/// The switch of a URL.
#[derive(Default)]
pub struct FunctionUrl {
    /// Every call gets a 503.
    pub disabled: AtomicBool,
}

#[derive(Clone)]
struct Server {
    site: Arc<Site>,
    lambda: Arc<Lambda>,
    function: String,
    url: Arc<FunctionUrl>,
}

/// Serves the template's one function URL.
pub fn serve(site: &Arc<Site>, lambda: &Arc<Lambda>, listener: TcpListener) -> Result<Arc<FunctionUrl>> {
    let (function, _) = site.template.functions.iter().find(|(_, function)| function.has_url).context("no function has a URL")?;
    let url = Arc::new(FunctionUrl::default());
    let server = Server { site: Arc::clone(site), lambda: Arc::clone(lambda), function: function.clone(), url: Arc::clone(&url) };
    let router = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(server);
    site.tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await {
            tracing::error!(%error, "the function URL ended");
        }
    });
    Ok(url)
}

async fn handle(State(server): State<Server>, ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request<Body>) -> Response {
    if server.url.disabled.load(Ordering::Relaxed) {
        return message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable");
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES).await else { return message(StatusCode::PAYLOAD_TOO_LARGE, "Request Too Long") };
    let event = event(&server.site, &parts, &body, peer);
    match server.lambda.try_invoke(&server.function, &event).await {
        Ok(answer) => reply(&answer),
        Err(Failure::Throttled) => message(StatusCode::TOO_MANY_REQUESTS, "Rate Exceeded."),
        Err(_) => message(StatusCode::BAD_GATEWAY, "Internal Server Error"),
    }
}

fn message(status: StatusCode, text: &str) -> Response {
    (status, axum::Json(json!({ "Message": text }))).into_response()
}

fn event(site: &Site, parts: &Parts, body: &[u8], peer: SocketAddr) -> Value {
    let mut headers: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in &parts.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        headers.entry(name.as_str()).and_modify(|all| *all = format!("{all},{value}")).or_insert_with(|| value.into_owned());
    }
    let query = parts.uri.query().unwrap_or_default();
    let parameters: Option<Map<_, _>> = (!query.is_empty()).then(|| {
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.map(|(name, value)| (name.to_owned(), value.into())).collect()
    });
    let (text, encoded) = match std::str::from_utf8(body) {
        Ok(text) if is_text(&parts.headers) => (text.to_owned(), false),
        _ => (STANDARD.encode(body), true),
    };
    let (at, id) = (now(), random_hex(16).unwrap_or_default());
    let domain = format!("world.lambda-url.{}.on.aws", site.template.region);
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": parts.uri.path(), "rawQueryString": query, "headers": headers,
        "queryStringParameters": parameters,
        "requestContext": {
            "accountId": "anonymous", "apiId": "world", "domainName": domain, "domainPrefix": "world", "requestId": id, "routeKey": "$default",
            "stage": "$default", "time": at.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string(), "timeEpoch": at.as_millisecond(),
            "http": {
                "method": parts.method.as_str(), "path": parts.uri.path(), "protocol": "HTTP/1.1", "sourceIp": peer.ip().to_string(),
                "userAgent": headers.get("user-agent"),
            },
        },
        "body": (!body.is_empty()).then_some(text), "isBase64Encoded": encoded && !body.is_empty(),
    })
}

/// Returns whether Lambda passes the body unchanged; any other body is base64.
fn is_text(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/") || ["application/json", "application/javascript", "application/xml"].contains(&kind)
}

/// The function's response as HTTP: with a `statusCode` it is a whole response, without one it is a
/// body.
fn reply(answer: &Bytes) -> Response {
    let Ok(value) = serde_json::from_slice::<Value>(answer) else {
        return message(StatusCode::BAD_GATEWAY, "Internal Server Error");
    };
    let Some(status) = value["statusCode"].as_u64() else {
        return ([(header::CONTENT_TYPE, "application/json")], answer.clone()).into_response();
    };
    let body = value["body"].as_str().unwrap_or_default();
    let body = if value["isBase64Encoded"] == true { STANDARD.decode(body) } else { Ok(body.into()) };
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let (Some(status), Ok(body)) = (status, body) else { return message(StatusCode::BAD_GATEWAY, "Internal Server Error") };
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in value["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
        if let (Ok(name), Some(value)) = (HeaderName::try_from(name), value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
