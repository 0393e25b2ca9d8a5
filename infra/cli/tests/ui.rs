//! The page through its router.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use axum::{body::Body, http};
use driftless_cli::ui::{
    Page,
    guard::{Guard, HEADERS},
    router,
};
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::{PREVIEW_LOG, now};
use tower::ServiceExt as _;

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

#[test]
fn page_has_nothing_that_the_policy_forbids() {
    let [html, script] = [include_str!("../src/ui/page.html"), include_str!("../src/ui/page.js")];
    for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"] {
        let allowed = script.replace("http://www.w3.org/2000/svg", "");
        assert!(!allowed.contains(forbidden) && !html.contains(forbidden), "{forbidden}");
    }
    for forbidden in ["style=", "onclick=", "<style", "javascript:"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
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
    assert_eq!((&diff["differs"], &diff["runs"][0]["resources"][1]["change"]), (&json!(true), &json!("create")));
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

#[tokio::test]
async fn failed_read_is_an_error_with_its_message() {
    let (status, text) = read("/api/stack?namespace=team&name=absent").await;
    assert_eq!((status, text.as_str()), (StatusCode::BAD_GATEWAY, r#"{"error":"Stack team/absent not found"}"#));
    let (status, text) = read("/api/stack?namespace=team").await;
    assert_eq!((status, text.as_str()), (StatusCode::BAD_GATEWAY, r#"{"error":"the request has no parameter \"name\""}"#));
}
