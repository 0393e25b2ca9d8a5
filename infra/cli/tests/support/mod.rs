//! The objects of a namespace, as the API server returns them.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::{convert::Infallible, env, fmt::Debug, fs, path::Path};

use axum::{body::Body, http};
use driftless_api::{
    Artifact, Program, ProgramStatus, Source, Stack, Update,
    facts::{Compared, Facts, Fetch, Found, snapshot},
};
use driftless_cli::cluster::Cluster;
use driftless_core::{
    ArtifactDigest, Governance, Guard, PlanHash, PlannedChanges, Project, RunOutcome, Snapshot, SourceRef, Stack as CoreStack,
    TreeState,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, ResourceExt as _, core::ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::service_fn;

/// The clock of the tests.
pub fn now() -> Timestamp {
    "2026-11-26T12:00:00Z".parse().unwrap()
}

/// Compares a text with its golden file and with the page. `BLESS=1` writes the file.
pub fn golden(name: &str, text: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("tests/golden").join(format!("{name}.txt"));
    let mut expected = fs::read_to_string(&file).unwrap_or_default();
    // Not written if it is the same: the test of the page reads it at the same time.
    if expected != text && env::var_os("BLESS").is_some() {
        fs::write(&file, text).unwrap();
        text.clone_into(&mut expected);
    }
    assert_eq!(text, expected, "BLESS=1 writes {}", file.display());
    for line in text.lines() {
        assert_eq!(line.trim_end(), line, "{name} has a line that ends in a space");
    }
}

fn documents<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// The Stacks.
pub fn stacks() -> Vec<Stack> {
    documents(include_str!("../objects/stacks.yaml"))
}

/// The Updates.
pub fn updates() -> Vec<Update> {
    documents(include_str!("../objects/updates.yaml"))
}

/// A preview of the Stack `shop` that is newer than its last update.
pub fn preview() -> Update {
    serde_saphyr::from_str(include_str!("../objects/previews.yaml")).unwrap()
}

/// The Update that a request creates; its run fails at once.
fn failed() -> Update {
    let mut update = preview();
    update.metadata.name = Some("shop-up-f4l3d".into());
    let condition = &mut update.status.as_mut().unwrap().conditions[0];
    (condition.status, condition.reason, condition.message) = ("True".into(), "UpdateFailed".into(), "quota exceeded".into());
    update
}

/// The log of that preview, as Pulumi writes it.
pub const PREVIEW_LOG: &str = include_str!("../objects/preview-log.txt");

fn named<K: kube::Resource>(objects: Vec<K>, name: &str) -> Option<K> {
    objects.into_iter().find(|object| object.meta().name.as_deref() == Some(name))
}

/// The Stack of that name.
pub fn stack(name: &str) -> Stack {
    named(stacks(), name).unwrap()
}

/// The Update of that name.
pub fn update(name: &str) -> Update {
    named(updates(), name).unwrap()
}

/// The facts of the namespace. Every source exists but the one with the name `missing`.
pub struct Team {
    /// The trees of all sources are stored.
    pub is_stored: bool,
}

fn found<T>(object: Option<T>) -> Found<T> {
    object.map_or(Found::Missing, |object| Found::Object(Box::new(object)))
}

impl Facts for Team {
    type Error = Infallible;

    fn system_namespace(&self) -> &'static str {
        "driftless-system"
    }

    async fn stack(&self, _: &str, name: &str) -> Result<Found<Stack>, Infallible> {
        Ok(found(named(stacks(), name)))
    }

    async fn update(&self, _: &str, name: &str) -> Result<Found<Update>, Infallible> {
        Ok(found(named(updates(), name)))
    }

    async fn program(&self, _: &str, name: &str) -> Result<Found<Program>, Infallible> {
        let object = json!({
            "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": { "name": name, "generation": 2 }, "program": {},
        });
        let mut program: Program = serde_json::from_value(object).unwrap();
        let artifact = Artifact { revision: "2".into(), digest: Some(digest()), ..Artifact::default() };
        program.status = Some(ProgramStatus { artifact: Some(artifact), observed_generation: Some(2) });
        Ok(found((name != "missing").then_some(program)))
    }

    async fn flux(&self, _: &str, _: &str, _: &str, name: &str) -> Result<Found<Source>, Infallible> {
        let revision = "main@sha1:7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918".to_owned();
        let last_update_time = Some(Time("2026-11-26T11:57:40Z".parse().unwrap()));
        let artifact = Artifact { revision, digest: Some(digest()), last_update_time, ..Artifact::default() };
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        Ok(found(Some(Source { metadata, artifact: Some(artifact), ..Source::default() })))
    }

    async fn outcome(&self, _: &Update) -> Result<Option<RunOutcome>, Infallible> {
        Ok(None)
    }

    async fn fetch(&self, _: &CoreStack, _: &SourceRef, _: &str) -> Result<Option<Fetch>, Infallible> {
        Ok(None)
    }

    async fn tree(
        &self,
        _: &CoreStack,
        _: &SourceRef,
        _: &ArtifactDigest,
        _: Timestamp,
    ) -> Result<Option<TreeState>, Infallible> {
        Ok(self.is_stored.then_some(TreeState::Stored { project: Project::There, scope: None }))
    }

    async fn guard(&self) -> Result<Guard, Infallible> {
        Ok(Guard::Intact)
    }

    async fn governance(&self, _: &str) -> Result<Governance, Infallible> {
        Ok(Governance::Unread)
    }

    async fn planned(&self, _: &CoreStack, _: &PlanHash) -> Result<Option<PlannedChanges>, Infallible> {
        Ok(None)
    }

    async fn inputs(&self, _: &CoreStack) -> Result<Option<Compared>, Infallible> {
        Ok(None)
    }
}

fn digest() -> String {
    format!("sha256:{}", "7d".repeat(32))
}

/// The facts about a Stack.
pub fn facts_of(stack: CoreStack, is_stored: bool) -> Snapshot {
    block_on(snapshot(&Team { is_stored }, stack, now()))
}

/// The result of a future that waits for nothing.
pub fn block_on<T, E: Debug>(future: impl Future<Output = Result<T, E>>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future).unwrap()
}

/// What the API server answers to a path with its query.
fn answer(path: &str) -> Option<Value> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let list = |items: Vec<Value>| Some(json!({ "metadata": {}, "items": items }));
    let named = |kind: &str| path.split_once(&format!("/{kind}/")).map(|(_, name)| name.to_owned());
    if path.ends_with("/stacks") && query.contains("includeObject") {
        let columns = ["Name", "Ready", "Reconciling", "Stalled"].map(|name| json!({ "name": name }));
        return Some(json!({ "columnDefinitions": columns, "rows": [{ "cells": ["shop", "True", null, null] }] }));
    }
    if path.ends_with("/stacks") {
        return list(stacks().iter().map(|stack| json!(stack)).collect());
    }
    if path.ends_with("/updates") {
        return list(updates().iter().chain([&preview()]).map(|update| json!(update)).collect());
    }
    if let Some(name) = named("stacks") {
        return stacks().into_iter().find(|stack| stack.name_any() == name).map(|stack| json!(stack));
    }
    if let Some(name) = named("updates") {
        return updates()
            .into_iter()
            .chain([preview(), failed()])
            .find(|update| update.name_any() == name)
            .map(|update| json!(update));
    }
    if let Some(name) = named("workspaces") {
        return Some(json!({ "metadata": { "name": name }, "spec": {} }));
    }
    if path.ends_with("/events") {
        let message = "urn:pulumi:prod::shop::aws:rds/instance:Instance::db: quota exceeded: ask for more";
        let event = json!({ "metadata": {}, "involvedObject": {}, "message": message, "lastTimestamp": "2026-11-26T11:59:00Z" });
        return list(vec![event]);
    }
    let log = match named("configmaps")?.as_str() {
        "shop-preview-k9d2m-log" => json!({ "0001": PREVIEW_LOG, "0002": "<script>alert(1)</script>\n" }),
        "web-5a6b7c8d9e0f-log" => json!({ "0001": include_str!("../objects/web-log.txt") }),
        _ => return None,
    };
    Some(json!({ "metadata": {}, "data": log }))
}

/// The answer to a request.
pub fn respond<B>(request: &http::Request<B>) -> http::Response<Body> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let missing = json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404 });
    let created = (request.method() == http::Method::POST).then(|| json!(failed()));
    let (status, body) = match created.or_else(|| answer(&path)) {
        Some(body) => (200, body),
        None => (404, missing),
    };
    http::Response::builder().status(status).body(Body::from(body.to_string())).unwrap()
}

/// A cluster whose API server answers reads from the objects of the tests.
pub fn cluster(namespace: &str) -> Cluster {
    let api = service_fn(|request: http::Request<kube::client::Body>| async move { Ok::<_, Infallible>(respond(&request)) });
    Cluster::of(Client::new(api, namespace), namespace)
}
