//! `ui`: a page on loopback that shows the fleet and each Stack, with the rights of the user. It
//! only reads, except that it requests new links to logs.

pub mod browser;
pub mod fleet;
pub mod graph;
pub mod guard;

use std::{net::Ipv4Addr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use driftless_api::{Stack, Update, uid_of};
use driftless_core::Stack as CoreStack;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::form_urlencoded;

use self::guard::{Guard, HEADERS, Verdict};
use crate::{Error, Result, cluster::Cluster, diff, log, render::Tone, stack, view};

/// Bytes of the token.
const TOKEN_BYTES: usize = 32;

/// What the page shows.
pub struct Page {
    /// The cluster of the user.
    pub cluster: Cluster,
    /// Whether the fleet has the Stacks of all namespaces.
    pub all_namespaces: bool,
    /// The namespace of Driftless itself.
    pub system_namespace: String,
    /// The clock.
    pub now: fn() -> Timestamp,
}

/// A page that is about to be served.
pub struct Server {
    listener: TcpListener,
    guard: Guard,
}

impl Server {
    /// Listens at a port of 127.0.0.1; at a free one if it is 0.
    pub async fn bind(port: u16) -> Result<Self> {
        let unusable = |error: std::io::Error| {
            Error::failed(format!("cannot use --port {port} of 127.0.0.1: {error}; choose another one or omit it"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(unusable)?;
        let port = listener.local_addr().map_err(unusable)?.port();
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| Error::failed(format!("no random token: {error}")))?;
        Ok(Self { listener, guard: Guard::new(port, base16ct::lower::encode_string(&token)) })
    }

    /// The URL that the user opens.
    #[must_use]
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Serves the page until Ctrl-C. With `opens`, opens it in the browser, or notes why it cannot.
    pub async fn serve(self, page: Page, opens: bool, note: &mut dyn FnMut(&str)) -> Result<()> {
        let url = self.url();
        // The file of the browser is deleted when this ends.
        let opened = async {
            let file = opens.then(|| browser::redirect(&url));
            let opened = match &file {
                Some(Ok(file)) => browser::open(file.path()).await,
                Some(Err(error)) => Err(format!("cannot write a file that leads to the page: {error}")),
                None => Ok(()),
            };
            if let Err(why) = opened {
                note(&format!("no browser was opened: {why}; open the URL yourself"));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            Ok(()) = tokio::signal::ctrl_c() => Ok(()),
            () = opened => Ok(()),
            served = axum::serve(self.listener, router(page, self.guard)) => {
                served.map_err(|error| Error::failed(format!("cannot serve the page: {error}")))
            }
        }
    }
}

/// The routes of the page. Every request passes the guard.
pub fn router(page: Page, guard: Guard) -> Router {
    let asset = |kind: &'static str, text: &'static str| get(async move || ([(header::CONTENT_TYPE, kind)], text));
    Router::new()
        .route("/", asset("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page.css", asset("text/css; charset=utf-8", include_str!("page.css")))
        .route("/page.js", asset("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/api/stacks", get(stacks))
        .route("/api/stack", get(stack))
        .route("/api/diff", get(diff))
        .route("/api/graph", get(graph))
        .route("/api/update", get(update))
        .with_state(Arc::new(page))
        .layer(middleware::from_fn_with_state(guard, guarded))
}

async fn guarded(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.uri(), request.headers()) {
        Verdict::Answer => next.run(request).await,
        Verdict::AnswerWithCookie(cookie) => {
            let mut response = next.run(request).await;
            response.headers_mut().extend(HeaderValue::from_str(&cookie).ok().map(|cookie| (header::SET_COOKIE, cookie)));
            response
        }
        Verdict::Refuse(status, why) => (status, why).into_response(),
    };
    response.headers_mut().extend(HEADERS);
    response
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        (StatusCode::BAD_GATEWAY, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

/// A parameter of the query.
fn parameter(uri: &Uri, name: &str) -> Result<String> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let found = pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    found.ok_or_else(|| Error::failed(format!("the request has no parameter {name:?}")))
}

/// The fleet.
async fn stacks(State(page): State<Arc<Page>>) -> Result<Json<Value>> {
    let namespace = Some(&page.cluster.namespace).filter(|_| !page.all_namespaces);
    let table = page.cluster.table::<Stack, fleet::Table>(namespace.map(String::as_str)).await?;
    Ok(Json(json!({ "namespace": namespace, "rows": table.rows(&page.cluster.namespace) })))
}

/// A run in the history of a Stack.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    name: String,
    operation: String,
    tone: Tone,
    state: String,
    message: String,
    revision: String,
    created: Option<Timestamp>,
    started: Option<Timestamp>,
    ended: Option<Timestamp>,
    summary: Option<String>,
    progress: Option<driftless_api::UpdateProgress>,
    steps: Vec<driftless_api::UpdateStep>,
}

impl Run {
    fn of(update: &Update) -> Self {
        let (started, ended) = view::times(update);
        let ours = view::ours(update);
        let why = update.status.as_ref().and_then(|status| status.message.clone());
        let (tone, state, message) = match view::phase(update) {
            view::Phase::Waiting(reason, message) if reason.is_empty() => (Tone::Busy, "starts".into(), message),
            view::Phase::Waiting(reason, message) => (Tone::Busy, reason, message),
            view::Phase::Running => (Tone::Busy, "runs".into(), update.spec.message.clone().unwrap_or_default()),
            view::Phase::Succeeded => (Tone::Good, "succeeded".into(), update.spec.message.clone().unwrap_or_default()),
            view::Phase::Failed(reason) => (Tone::Bad, format!("failed: {reason}"), why.unwrap_or_default()),
        };
        Self {
            name: update.name_any(),
            operation: view::operation(update),
            tone,
            state,
            message,
            revision: crate::render::short(view::revision(update).unwrap_or_default()),
            created: view::created(update),
            started,
            ended,
            summary: ours.summary,
            progress: ours.progress,
            steps: ours.steps,
        }
    }
}

async fn found(page: &Page, uri: &Uri) -> Result<Stack> {
    let [namespace, name] = [parameter(uri, "namespace")?, parameter(uri, "name")?];
    let found = page.cluster.find(&namespace, &name).await?;
    found.ok_or_else(|| Error::failed(format!("Stack {namespace}/{name} not found")))
}

/// A Stack with its explanation and its history.
async fn stack(State(page): State<Arc<Page>>, uri: Uri) -> Result<Json<Value>> {
    let stack = found(&page, &uri).await?;
    let mut runs: Vec<_> = stack::updates(&page.cluster, &stack).await?.iter().map(Run::of).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.started.or(run.created)));
    let (tone, state, message) = view::state(&CoreStack::from(&stack));
    let now = (page.now)();
    // The user may read the Stack and not all that its decision depends on: the rest of the page is
    // shown.
    let (explanation, unexplained) = match stack::explanation(&page.cluster, &stack, &page.system_namespace, now).await {
        Ok(explanation) => (Some(explanation), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Json(json!({
        "tone": tone,
        "state": state,
        "message": message,
        "now": now,
        "explanation": explanation,
        "unexplained": unexplained,
        "current": log::of_stack(&stack),
        "runs": runs,
    })))
}

/// The recorded differences of a Stack, with notes.
async fn diff(State(page): State<Arc<Page>>, uri: Uri) -> Result<Json<Value>> {
    let mut notes = Vec::new();
    let stack = found(&page, &uri).await?;
    let diff = stack::difference(&page.cluster, &stack, page.now, |note| notes.push(note.to_owned())).await?;
    Ok(Json(json!({ "diff": diff, "notes": notes })))
}

/// The dependencies of a Stack.
async fn graph(State(page): State<Arc<Page>>, uri: Uri) -> Result<Json<graph::Graph>> {
    let [namespace, name] = [parameter(&uri, "namespace")?, parameter(&uri, "name")?];
    let stacks = page.cluster.list::<Stack>(Some(&namespace), None).await?;
    Ok(Json(graph::of(&name, &stacks)))
}

/// A run with the part of its log after the position `after`, and its resources. A new link in
/// place of an expired one is requested once, and the page asks again with the time of the request.
async fn update(State(page): State<Arc<Page>>, uri: Uri) -> Result<Json<Value>> {
    let [namespace, name] = [parameter(&uri, "namespace")?, parameter(&uri, "name")?];
    let after = parameter(&uri, "after").ok().filter(|after| !after.is_empty());
    let found: Option<Update> = page.cluster.find(&namespace, &name).await?;
    let Some(update) = found else { return Ok(Json(json!({ "deleted": true }))) };
    let requested = parameter(&uri, "requested").ok().and_then(|at| at.parse().ok());
    let (requested, note) = match log::renewal(&page.cluster, &update, requested, (page.now)()).await {
        log::Renewal::None => (None, None),
        log::Renewal::Awaited(at, note) => (Some(at), Some(note)),
        log::Renewal::Refused(note) => (None, Some(note)),
    };
    let log = log::read(&page.cluster, &update, after.as_deref()).await?;
    let absent = log.is_none().then(|| log::absent(&update));
    let log::Log { whole, text, last } = log.unwrap_or_default();
    Ok(Json(json!({
        "run": Run::of(&update),
        "complete": update.is_complete(),
        "log": text,
        "last": last,
        "absent": absent,
        "requested": requested,
        "note": note,
        "resources": resources(&whole, &failures(&page.cluster, &update).await),
    })))
}

/// A resource of a run.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Resource {
    change: String,
    urn: String,
    /// The message and the time of its failure.
    failed: Option<(String, Option<Timestamp>)>,
}

/// The resources that the log names, in its order, and those that failed.
fn resources(log: &str, failures: &[(String, String, Option<Timestamp>)]) -> Vec<Resource> {
    let failed = |urn: &str| {
        let found = failures.iter().find(|(failed, ..)| failed == urn);
        found.map(|(_, message, at)| (message.clone(), *at))
    };
    let mut found: Vec<_> = diff::resources(log)
        .into_iter()
        .map(|diff::Resource { change, urn, .. }| Resource { failed: failed(&urn), change, urn })
        .collect();
    for (urn, message, at) in failures {
        if !found.iter().any(|resource| resource.urn == *urn) {
            found.push(Resource { change: String::new(), urn: urn.clone(), failed: Some((message.clone(), *at)) });
        }
    }
    found
}

/// The resources that failed in a run, by its Events: URN, message and time. A user who may not
/// read Events sees none.
async fn failures(cluster: &Cluster, update: &Update) -> Vec<(String, String, Option<Timestamp>)> {
    let namespace = update.namespace().unwrap_or_default();
    let fields = format!("involvedObject.uid={},reason=ResourceFailed", uid_of(update));
    let events = cluster.list::<Event>(Some(&namespace), Some(&fields)).await.unwrap_or_default();
    let failure = |event: Event| {
        let (urn, message) = event.message.as_deref()?.split_once(": ").map(|(urn, rest)| (urn.to_owned(), rest.to_owned()))?;
        let at = event.event_time.map(|time| time.0).or_else(|| event.last_timestamp.map(|time| time.0));
        Some((urn, message, at))
    };
    events.into_iter().filter_map(failure).collect()
}
