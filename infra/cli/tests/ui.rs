//! The page through its router.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{body::Body, http};
use clap::Parser as _;
use driftless_cli::{
    arguments::Arguments,
    cluster::Cluster,
    commands::{Terminal, in_cluster},
    render::Style,
    ui::{
        Page,
        guard::{Guard, HEADERS},
        router,
    },
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::Client;
use serde_json::{Value, json};
use support::{PREVIEW_LOG, now, respond};
use tower::{ServiceExt as _, service_fn};

const TOKEN: &str = "c0ffee";
const COOKIE: &str = "driftless-4711=c0ffee";

fn page(namespace: &str) -> axum::Router {
    let cluster = support::cluster(namespace);
    let page = Page { cluster, all_namespaces: false, system_namespace: "driftless-system".into(), now };
    router(page, Guard::new(4711, TOKEN.into()))
}

async fn response(path: &str, cookie: &str) -> Response<Body> {
    let request = Request::get(path).header(header::HOST, "127.0.0.1:4711").header(header::COOKIE, cookie);
    page("team").oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn read(path: &str) -> (StatusCode, String) {
    let response = response(path, COOKIE).await;
    let status = response.status();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

async fn json_of(path: &str) -> Value {
    let (status, text) = read(path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn every_response_has_the_policy_and_only_the_first_sets_the_cookie() {
    for path in ["/", "/page.js", "/page.css", "/api/stacks", "/api/stack?namespace=team&name=absent", "/absent"] {
        for cookie in [COOKIE, ""] {
            let response = response(path, cookie).await;
            for (name, value) in HEADERS {
                assert_eq!(response.headers().get(&name), Some(&value), "{path} {name}");
            }
            assert_eq!(response.headers().get(header::SET_COOKIE), None, "{path}");
            assert_eq!(response.status() == StatusCode::FORBIDDEN, cookie.is_empty(), "{path}");
        }
    }
    let first = response(&format!("/?token={TOKEN}"), "").await;
    let cookie = first.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(cookie.starts_with(COOKIE) && cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
}

#[tokio::test]
async fn page_has_nothing_that_the_policy_forbids() {
    let (_, html) = read("/").await;
    let (_, script) = read("/page.js").await;
    let (_, styles) = read("/page.css").await;
    for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "://", "url(", "@import", "\"//"]
    {
        let allowed = script.replace("http://www.w3.org/2000/svg", "");
        for asset in [&html, &allowed, &styles] {
            assert!(!asset.contains(forbidden), "{forbidden}");
        }
    }
    for forbidden in ["style=", "onclick=", "<style", "javascript:"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
}

/// The paths that the page and its script request, each as the text after one of these words up to
/// the end of the string.
fn requested<'a>(text: &'a str, words: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let after = move |word: &&'a str| text.split(*word).skip(1).filter_map(|rest| rest.split('"').next());
    words.iter().flat_map(after).filter(|path| !path.starts_with('#'))
}

#[tokio::test]
async fn page_requests_only_what_it_serves_and_reads_no_secret() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let api = service_fn(move |request: Request<kube::client::Body>| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        async move { Ok::<_, Infallible>(respond(&request)) }
    });
    let cluster = Cluster::of(Client::new(api, "team"), "team");
    let page = router(
        Page { cluster, all_namespaces: true, system_namespace: "driftless-system".into(), now },
        Guard::new(4711, TOKEN.into()),
    );
    let get = async |path: &str| {
        let request = Request::get(path).header(header::HOST, "127.0.0.1:4711").header(header::COOKIE, COOKIE);
        let response = page.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    };
    let html = get("/").await;
    let assets: Vec<_> = requested(&html, &["href=\"", "src=\""]).collect();
    assert_eq!(assets, ["page.css", "page.js"]);
    let script = get("/page.js").await;
    assert_eq!(script.matches("fetch(").count(), 1, "all requests are made by `read`");
    let paths: Vec<_> = requested(&script, &["read(\""]).collect();
    assert_eq!(paths, ["api/stacks", "api/stack", "api/diff", "api/graph", "api/update"]);
    for path in assets.into_iter().chain(paths) {
        for name in if path == "api/update" { ["shop-preview-k9d2m", "web-5a6b7c8d9e0f"] } else { ["shop", "web"] } {
            get(&format!("/{path}?namespace=team&name={name}&after=&requested=")).await;
        }
    }
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|path| path.contains("/configmaps/")), "{asked:?}");
    assert!(!asked.iter().any(|path| path.contains("/secrets")), "{asked:?}");
}

#[tokio::test]
async fn fleet_and_stack_are_those_of_the_cluster() {
    let fleet = json_of("/api/stacks").await;
    assert_eq!((&fleet["namespace"], &fleet["rows"][0]["state"]), (&json!("team"), &json!("Ready")));
    let web = json_of("/api/stack?namespace=team&name=web").await;
    assert_eq!(web["state"], "StackProcessing");
    assert_eq!(web["current"], "web-5a6b7c8d9e0f");
    assert_eq!(web["explanation"]["object"], "Stack team/web");
    let runs: Vec<_> = web["runs"].as_array().unwrap().iter().map(|run| run["name"].clone()).collect();
    assert_eq!(runs, ["web-5a6b7c8d9e0f", "web-3"]);
    let diff = json_of("/api/diff?namespace=team&name=shop").await;
    assert_eq!((&diff["diff"]["differs"], &diff["notes"]), (&json!(true), &json!([])));
    assert_eq!(diff["diff"]["runs"][0]["resources"][1]["change"], "create");
    let graph = json_of("/api/graph?namespace=team&name=api").await;
    assert_eq!(graph["nodes"][1]["requires"], json!(["network"]));
}

#[tokio::test]
async fn log_continues_after_the_last_part() {
    let run = json_of("/api/update?namespace=team&name=shop-preview-k9d2m&after=").await;
    assert_eq!(run["log"], format!("{PREVIEW_LOG}<script>alert(1)</script>\n"));
    assert_eq!((&run["last"], &run["complete"]), (&json!("0002"), &json!(true)));
    let failed: Vec<_> = run["resources"].as_array().unwrap().iter().filter(|resource| !resource["failed"].is_null()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["failed"], json!(["quota exceeded: ask for more", "2026-11-26T11:59:00Z"]));
    let rest = json_of("/api/update?namespace=team&name=shop-preview-k9d2m&after=0001").await;
    assert_eq!(rest["log"], "<script>alert(1)</script>\n");
    let waits = json_of("/api/update?namespace=team&name=shop-refresh-x7k2p&after=").await;
    assert!(waits["absent"].as_str().unwrap().contains("StackClaimed"), "{waits}");
    assert_eq!(json_of("/api/update?namespace=team&name=gone&after=").await, json!({ "deleted": true }));
}

/// The bodies of the requests that change something.
type Written = Arc<Mutex<Vec<String>>>;

/// The cluster in which the link to the log of each preview expired an hour ago, for a user who may
/// patch Updates or not.
fn expired(may_patch: bool) -> (Cluster, Written) {
    let written = Written::default();
    let kept = written.clone();
    let api = service_fn(move |request: Request<kube::client::Body>| {
        let written = written.clone();
        async move {
            if request.method() == Method::GET {
                let body = respond(&request).into_body().collect().await.unwrap().to_bytes();
                let link = r#""logConfigMap":"shop-preview-k9d2m-log","logLink":{"expires":"2026-11-26T11:00:00Z","url":"http://127.0.0.1:9/"}"#;
                let text = String::from_utf8_lossy(&body).replace(r#""logConfigMap":"shop-preview-k9d2m-log""#, link);
                return Ok::<_, Infallible>(Response::new(Body::from(text)));
            }
            assert_eq!((request.method(), may_patch || written.lock().unwrap().is_empty()), (&Method::PATCH, true));
            let answer = if may_patch {
                respond(&request)
            } else {
                let message = "updates.auto.pulumi.com is forbidden";
                let refused =
                    json!({ "kind": "Status", "status": "Failure", "message": message, "reason": "Forbidden", "code": 403 });
                Response::builder().status(403).body(Body::from(refused.to_string())).unwrap()
            };
            let body = request.into_body().collect_bytes().await.unwrap();
            written.lock().unwrap().push(String::from_utf8_lossy(&body).into_owned());
            Ok(answer)
        }
    });
    (Cluster::of(Client::new(api, "team"), "team"), kept)
}

#[tokio::test]
async fn page_asks_once_for_a_new_link_and_shows_the_last_part_meanwhile() {
    let path = "/api/update?namespace=team&name=shop-preview-k9d2m&after=&requested=";
    let read = async |cluster: Cluster, requested: &str| -> Value {
        let page = Page { cluster, all_namespaces: true, system_namespace: "driftless-system".into(), now };
        let request = Request::get(format!("{path}{requested}")).header(header::HOST, "127.0.0.1:4711");
        let request = request.header(header::COOKIE, COOKIE).body(Body::empty()).unwrap();
        let response = router(page, Guard::new(4711, TOKEN.into())).oneshot(request).await.unwrap();
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    };
    let (cluster, written) = expired(true);
    let first = read(cluster, "").await;
    assert_eq!(first["requested"], "2026-11-26T12:00:00Z");
    assert_eq!(
        first["note"],
        "link to the log has expired; requested a new one by the annotation driftless.dev/log-requested-at"
    );
    assert!(first["log"].as_str().unwrap().starts_with(PREVIEW_LOG), "{first}");
    let asked = json!({ "metadata": { "annotations": { "driftless.dev/log-requested-at": "2026-11-26T12:00:00Z" } } });
    assert_eq!(*written.lock().unwrap(), [asked.to_string()]);

    let (cluster, written) = expired(true);
    let again = read(cluster, "2026-11-26T11:59:31Z").await;
    assert_eq!((&again["requested"], written.lock().unwrap().len()), (&json!("2026-11-26T11:59:31Z"), 0));
    let (cluster, _) = expired(true);
    let late = read(cluster, "2026-11-26T11:59:30Z").await;
    assert_eq!((&late["requested"], &late["note"]), (&Value::Null, &json!("no new link after 30s; the last 512 KiB are shown")));

    let (cluster, written) = expired(false);
    let refused = read(cluster, "").await;
    let note = refused["note"].as_str().unwrap();
    let words = "no new one can be requested, and the last 512 KiB are shown: patch Update team/shop-preview-k9d2m: ";
    assert!(note.contains(words) && note.ends_with("forbidden; ask for a Role that allows it"), "{note}");
    assert_eq!((&refused["requested"], written.lock().unwrap().len()), (&Value::Null, 1));
    assert!(refused["log"].as_str().unwrap().starts_with(PREVIEW_LOG), "{refused}");
}

#[tokio::test]
async fn diff_says_that_a_log_has_no_new_link() {
    let (cluster, written) = expired(false);
    let command = Arguments::try_parse_from(["kubectl-driftless", "logs", "update/shop-preview-k9d2m"]).unwrap().command;
    let (mut out, mut notes) = (String::new(), Vec::new());
    let (style, out, note) = (Style::default(), &mut |text: &str| out += text, &mut |note: &str| notes.push(note.to_owned()));
    let mut terminal = Terminal { program: "driftless", style, has_desktop: false, now, out, note };
    Box::pin(in_cluster(&cluster, command, &mut terminal)).await.unwrap();
    assert!(notes.len() == 1 && notes[0].contains("no new one can be requested"), "{notes:?}");
    assert_eq!(written.lock().unwrap().len(), 1);

    let (cluster, _) = expired(false);
    let page = Page { cluster, all_namespaces: false, system_namespace: "driftless-system".into(), now };
    let request = Request::get("/api/diff?namespace=team&name=shop").header(header::HOST, "127.0.0.1:4711");
    let request = request.header(header::COOKIE, COOKIE).body(Body::empty()).unwrap();
    let response = router(page, Guard::new(4711, TOKEN.into())).oneshot(request).await.unwrap();
    let diff: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert!(diff["notes"][0].as_str().unwrap().contains("no new one can be requested"), "{diff}");
    assert_eq!(diff["diff"]["runs"][0]["resources"].as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn failed_read_is_an_error_with_its_message() {
    let (status, text) = read("/api/stack?namespace=team&name=absent").await;
    assert_eq!((status, text.as_str()), (StatusCode::BAD_GATEWAY, r#"{"error":"Stack team/absent not found"}"#));
    let (status, text) = read("/api/stack?namespace=team").await;
    assert_eq!((status, text.as_str()), (StatusCode::BAD_GATEWAY, r#"{"error":"the request has no parameter \"name\""}"#));
}
