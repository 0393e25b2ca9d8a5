use std::sync::Mutex;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::Pages;

#[test]
fn name_with_a_path_separator_is_not_found() {
    for name in ["", ".", "..", "../x", "a/b", "a/../b", "a?x=y", "a%2fb", "a b", "a:b"] {
        assert!(!is_name(name), "{name}");
    }
    for name in ["a", "my-app.v2", "GitRepository", "source.toolkit.fluxcd.io"] {
        assert!(is_name(name), "{name}");
    }
}

/// A cluster that answers a list by its query, and the queries so far.
fn cluster(answer: impl Fn(&str) -> (u16, String) + Clone + Send + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&queries);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let query = request.uri().query().unwrap_or_default().trim_start_matches('&').to_owned();
        let (code, text) = answer(&query);
        asked.lock().unwrap().push(query);
        let response = http::Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap();
        async move { Ok::<_, BoxError>(response) }
    });
    (client(kube::Client::new(service, "default")), queries)
}

fn client(kube: kube::Client) -> Client {
    let endpoint = Endpoint { server: String::new(), certificate_authority: None };
    Client { kube, endpoint, manager: "test", seen: Arc::default() }
}

fn page(names: &[&str], next: &str) -> (u16, String) {
    let items: Vec<_> = names.iter().map(|name| json!({ "metadata": { "name": name } })).collect();
    (200, json!({ "items": items, "metadata": { "continue": next } }).to_string())
}

fn expired(next: Option<&str>) -> (u16, String) {
    let metadata = json!({ "continue": next });
    (410, json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": metadata }).to_string())
}

/// The names on all pages, or the error.
async fn names(client: &Client) -> Result<Vec<String>> {
    let (mut names, mut pages) = (Vec::new(), Pages::<_, ConfigMap>::new(client, Some("n"), Selector::All));
    while let Some(page) = pages.next().await? {
        names.extend(page.into_iter().filter_map(|object| object.metadata.name));
    }
    Ok(names)
}

#[tokio::test]
async fn list_returns_all_pages_without_unreadable_objects() {
    let (client, queries) = cluster(|query| match query {
        "limit=500" => page(&["a", "b"], "two"),
        "limit=500&continue=two" => {
            let items = json!([{ "metadata": { "name": "c" }, "data": 7 }, { "metadata": { "name": "d" } }]);
            (200, json!({ "items": items, "metadata": { "continue": "three" } }).to_string())
        }
        _ => page(&[], ""),
    });
    assert_eq!(names(&client).await.unwrap(), ["a", "b", "d"]);
    assert_eq!(*queries.lock().unwrap(), ["limit=500", "limit=500&continue=two", "limit=500&continue=three"]);
}

#[tokio::test]
async fn a_token_that_expired_is_replaced_by_the_one_in_the_answer() {
    let (client, queries) = cluster(|query| match query {
        "limit=500" => page(&["a"], "old"),
        "limit=500&continue=old" => expired(Some("new")),
        _ => page(&["b"], ""),
    });
    assert_eq!(names(&client).await.unwrap(), ["a", "b"]);
    assert_eq!(queries.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn list_with_ever_expiring_tokens_is_a_transient_error() {
    for (next, requests) in [(Some("new"), 5), (None, 3)] {
        let answer = move |query: &str| if query == "limit=500" { page(&["a"], "old") } else { expired(next) };
        let (client, queries) = cluster(answer);
        let error = names(&client).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(queries.lock().unwrap().len(), requests);
    }
}

#[tokio::test]
async fn too_large_page_is_read_again_with_fewer_objects() {
    let large = || "x".repeat(PAGE_BYTES);
    let (client, queries) = cluster(move |query| match query {
        "limit=500" => page(&["a", &large()], "end"),
        "limit=5" => page(&["a"], "rest"),
        _ => page(&["b"], ""),
    });
    assert_eq!(names(&client).await.unwrap(), ["a", "b"]);
    assert_eq!(*queries.lock().unwrap(), ["limit=500", "limit=5", "limit=500&continue=rest"]);

    let (client, _) = cluster(move |_| page(&[&large()], ""));
    assert_eq!(names(&client).await.unwrap_err().to_string(), "list configmaps: 5 objects are larger than 8388608 bytes");
}

#[tokio::test]
async fn namespace_labels_are_read_singly_and_as_a_list() {
    let labelled = |labels: serde_json::Value| json!({ "metadata": { "name": "n", "labels": labels } });
    for (answer, label) in [
        ((404, json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "" })), None),
        ((200, labelled(json!(null))), Some(None)),
        ((200, labelled(json!({ WATCH: "true" }))), Some(Some("true".to_owned()))),
    ] {
        let (client, _) = cluster(move |_| (answer.0, answer.1.to_string()));
        assert_eq!(client.watch_label("n").await.unwrap(), label);
    }
    let list = json!({ "metadata": {}, "items": [labelled(json!({ WATCH: "false" }))] });
    let (client, queries) = cluster(move |_| (200, list.to_string()));
    assert_eq!(client.watch_labels().await.unwrap(), [("n".to_owned(), "false".to_owned())].into());
    assert_eq!(*queries.lock().unwrap(), ["labelSelector=driftless.dev%2Fwatch"]);
}

#[tokio::test]
async fn deletion_is_of_the_very_object_that_was_read() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let bodies = Arc::clone(&sent);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let bodies = Arc::clone(&bodies);
        async move {
            let body = request.into_body().collect_bytes().await?;
            bodies.lock().unwrap().push(serde_json::from_slice::<serde_json::Value>(&body)?);
            Ok::<_, BoxError>(http::Response::new(Body::from(json!({ "metadata": {} }).to_string().into_bytes())))
        }
    });
    let metadata = json!({ "namespace": "n", "name": "a", "uid": "1", "resourceVersion": "2" });
    let read: ConfigMap = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    client(kube::Client::new(service, "default")).delete(&read).await.unwrap();
    let sent = sent.lock().unwrap();
    assert_eq!(
        sent.iter().map(|body| &body["preconditions"]).collect::<Vec<_>>(),
        [&json!({ "uid": "1", "resourceVersion": "2" })]
    );
}

#[test]
fn certificate_is_encoded_as_pem() {
    assert_eq!(pem(b"der"), "-----BEGIN CERTIFICATE-----\nZGVy\n-----END CERTIFICATE-----\n");
}
