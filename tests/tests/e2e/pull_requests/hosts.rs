//! Stand-ins for the APIs of GitHub, GitLab and Gitea: what Flux's notification-controller calls to
//! write comments and commit statuses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use axum::{
    Json, Router,
    extract::{Path, State},
    routing::{get, patch, post, put},
};
use driftless_tests::{scenario::RUN, world::ready};
use serde_json::{Value, json};

/// The hosts of git, and how the table of the page names them.
pub struct Hosts {
    /// The one of the page's manifests.
    pub github: Host,
    /// One with the API of GitLab.
    pub gitlab: Host,
    /// One with the API of Gitea and Forgejo.
    pub gitea: Host,
}

impl Hosts {
    /// Hosts that have received nothing.
    pub fn new() -> Self {
        Self { github: Host::new("GitHub"), gitlab: Host::new("GitLab"), gitea: Host::new("Gitea, Forgejo") }
    }

    /// All of them.
    pub fn all(&self) -> [&Host; 3] {
        [&self.github, &self.gitlab, &self.gitea]
    }

    /// Their APIs, whose paths begin differently.
    pub fn router(&self) -> Router {
        Router::new()
            .nest("/api/v3", issues(self.github.clone()))
            .nest("/api/v4", merge_requests(self.gitlab.clone()))
            .nest("/api/v1", issues(self.gitea.clone()))
    }
}

/// A host with the repository `acme/platform`.
#[derive(Clone)]
pub struct Host {
    /// Its name on the page.
    pub name: &'static str,
    received: Arc<Mutex<Received>>,
}

/// The comments and the statuses of a repository.
#[derive(Default)]
pub struct Received {
    /// The pull request and the text of each comment. Its place is its id.
    pub comments: Vec<(String, String)>,
    /// The commit and the state of each status.
    pub statuses: Vec<(String, Value)>,
}

impl Host {
    fn new(name: &'static str) -> Self {
        Self { name, received: Arc::default() }
    }

    /// The comments and the statuses until now.
    pub fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The texts of a pull request's comments.
    pub fn comments(&self, number: &str) -> Vec<String> {
        self.received().comments.iter().filter(|(of, _)| of == number).map(|(_, text)| text.clone()).collect()
    }

    /// Waits until the only comment of the pull request has these words.
    pub async fn wait(&self, number: &str, words: &str) -> Result<String> {
        ready::until(&format!("a comment of {} on {number} with {words:?}", self.name), RUN, async || {
            let comments = self.comments(number);
            ensure!(comments.len() == 1 && comments[0].contains(words), "{comments:#?}");
            Ok(comments[0].clone())
        })
        .await
    }
}

/// The API that Gitea has in common with GitHub.
fn issues(host: Host) -> Router {
    Router::new()
        .route("/version", get(async || Json(json!({ "version": "1.24.0" }))))
        .route("/user", get(user))
        .route("/repos/acme/platform/issues/{number}/comments", get(comments).post(comment))
        .route("/repos/acme/platform/issues/comments/{id}", patch(async |host, Path(id): Path<usize>, text| edit(host, id, text)))
        .route("/repos/acme/platform/commits/{commit}/statuses", get(none))
        .route("/repos/acme/platform/statuses/{commit}", post(status))
        .with_state(host)
}

/// The API of GitLab, which has the project as one part of the path.
fn merge_requests(host: Host) -> Router {
    const PROJECT: &str = "/projects/acme%2Fplatform";
    Router::new()
        .route("/user", get(user))
        .route(&format!("{PROJECT}/merge_requests/{{number}}/notes"), get(comments).post(comment))
        .route(
            &format!("{PROJECT}/merge_requests/{{number}}/notes/{{id}}"),
            put(async |host, Path((_, id)): Path<(String, usize)>, text| edit(host, id, text)),
        )
        .route(&format!("{PROJECT}/repository/commits/{{commit}}/statuses"), get(none))
        .route(&format!("{PROJECT}/statuses/{{commit}}"), post(status))
        .with_state(host)
}

/// The user of Flux's token, under the names of all hosts.
fn flux() -> Value {
    json!({ "login": "flux", "username": "flux" })
}

async fn user() -> Json<Value> {
    Json(flux())
}

async fn none() -> Json<Value> {
    Json(json!([]))
}

fn shown(id: usize, text: &str) -> Json<Value> {
    Json(json!({ "id": id + 1, "body": text, "user": flux(), "author": flux() }))
}

fn body(comment: &Value) -> String {
    comment["body"].as_str().unwrap_or_default().to_owned()
}

async fn comments(State(host): State<Host>, Path(number): Path<String>) -> Json<Vec<Value>> {
    let received = host.received();
    let all = received.comments.iter().enumerate().filter(|(_, (of, _))| *of == number);
    Json(all.map(|(id, (_, text))| shown(id, text).0).collect())
}

async fn comment(State(host): State<Host>, Path(number): Path<String>, Json(comment): Json<Value>) -> Json<Value> {
    let mut received = host.received();
    received.comments.push((number, body(&comment)));
    shown(received.comments.len() - 1, &body(&comment))
}

fn edit(State(host): State<Host>, id: usize, Json(comment): Json<Value>) -> Json<Value> {
    if let Some((_, text)) = host.received().comments.get_mut(id - 1) {
        *text = body(&comment);
    }
    shown(id - 1, &body(&comment))
}

async fn status(State(host): State<Host>, Path(commit): Path<String>, Json(status): Json<Value>) -> Json<Value> {
    host.received().statuses.push((commit, status["state"].clone()));
    Json(status)
}
