use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex as Lock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use kube::client::Body;
use tokio::time::{sleep, timeout};
use tower::BoxError;

use super::*;

/// The requests to an API server, and the maximum number of lists that it answered at once.
#[derive(Default)]
struct Seen {
    requests: Lock<Vec<String>>,
    lists: AtomicUsize,
    most: AtomicUsize,
}

/// An API server with these Programs, of which `later` is created after the list.
fn cluster(programs: &'static [&'static str], later: &'static str) -> (Client, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let noted = Arc::clone(&seen);
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&noted);
        async move {
            let is_programs = request.uri().path().ends_with("/programs");
            let asked = request.uri().to_string();
            let is_first = !seen.requests.lock().unwrap().contains(&asked);
            seen.requests.lock().unwrap().push(asked.clone());
            let body = if asked.contains("watch=true") {
                if !(is_programs && is_first) {
                    return pending().await;
                }
                later.to_owned()
            } else {
                seen.most.fetch_max(seen.lists.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(10)).await;
                seen.lists.fetch_sub(1, Ordering::SeqCst);
                let items = if is_programs { programs.join(",") } else { String::new() };
                format!(r#"{{ "metadata": {{ "resourceVersion": "1" }}, "items": [{items}] }}"#)
            };
            Ok::<_, BoxError>(Response::new(Body::from(body.into_bytes())))
        }
    });
    (Client::new(service, "default"), seen)
}

/// The names of the hinted objects.
async fn hinted(client: Client) -> BTreeSet<String> {
    let hinted = RefCell::new(BTreeSet::new());
    let send = async |hints: &[Hint]| {
        hinted.borrow_mut().extend(hints.iter().map(|hint| hint.object.name.clone()));
        Ok::<_, Infallible>(Vec::new())
    };
    assert!(timeout(Duration::from_secs(10), forward(client, "c", send, None)).await.is_err());
    hinted.into_inner()
}

fn program(name: &str, levels: usize) -> String {
    let deep = format!("{}1{}", "{\"a\":[".repeat(levels / 2), "]}".repeat(levels / 2));
    let managed = format!(r#"[{{ "manager": "m", "fieldsV1": {deep} }}]"#);
    let metadata = format!(r#"{{ "name": "{name}", "namespace": "n", "resourceVersion": "2", "managedFields": {managed} }}"#);
    format!(r#"{{ "apiVersion": "pulumi.com/v1", "kind": "Program", "program": {deep}, "metadata": {metadata} }}"#)
}

#[tokio::test(start_paused = true)]
async fn deeply_nested_object_is_hinted_and_hides_no_other() {
    let programs = ["a", "deep", "z"].map(|name| &*program(name, if name == "deep" { 200 } else { 2 }).leak());
    let added = |name, levels| format!(r#"{{"type":"ADDED","object":{}}}"#, program(name, levels));
    let later = format!("{}\n{}\n", added("later-deep", 1000), added("later", 2));
    let (client, _) = cluster(Vec::from(programs).leak(), later.leak());
    assert_eq!(hinted(client).await, ["a", "deep", "later", "later-deep", "z"].map(String::from).into());
}

#[tokio::test(start_paused = true)]
async fn kinds_are_listed_one_after_another_in_small_pages() {
    let (client, seen) = cluster(&[], "");
    assert!(hinted(client).await.is_empty());
    let requests = seen.requests.lock().unwrap();
    let (watches, lists): (Vec<_>, Vec<_>) = requests.iter().partition(|asked| asked.contains("watch=true"));
    let kinds: BTreeSet<_> = watches.iter().map(|asked| asked.split('?').next()).collect();
    assert_eq!((lists.len(), kinds.len()), (KINDS.len(), KINDS.len()), "{requests:?}");
    assert!(lists.iter().all(|asked| asked.ends_with(&format!("limit={PAGE}"))), "{lists:?}");
    assert_eq!(seen.most.load(Ordering::SeqCst), 1);
}
