//! The versions of Stacks, which contain every state that lasts only seconds.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Error, Result, bail, ensure};
use axum::http::Uri;
use driftless_api::Stack;
use futures::StreamExt as _;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Every version of the Stacks of a namespace.
pub struct History {
    stacks: Api<Stack>,
    versions: RefCell<Vec<Stack>>,
    /// The version after which the watch continues.
    at: RefCell<String>,
}

impl History {
    /// Starts with the present state; [`record`](Self::record) adds later versions.
    pub async fn begin(stacks: Api<Stack>) -> Result<Self> {
        let history = Self { stacks, versions: RefCell::default(), at: RefCell::default() };
        history.list().await?;
        Ok(history)
    }

    /// Records until that is impossible, or until a version has a forbidden state. Returns the
    /// reason.
    pub async fn record(&self) -> Error {
        loop {
            let ended = match self.watch().await {
                // The API server no longer has the version after which the watch continues.
                Err(error) if is_gone(&error) => self.list().await,
                ended => ended,
            };
            if let Err(error) = ended {
                return error.context("recording the Stacks");
            }
        }
    }

    /// The present version of a Stack, if it exists.
    pub async fn now(&self, stack: &str) -> Result<Option<u64>> {
        self.stacks.get_opt(stack).await?.as_ref().map(version).transpose()
    }

    /// The versions of a Stack from that version on; empty without a version.
    pub fn since(&self, stack: &str, first: Option<u64>) -> Vec<Stack> {
        let versions = self.versions.borrow();
        let is_since =
            |found: &&Stack| found.name_any() == stack && first.is_some_and(|first| version(found).is_ok_and(|at| at >= first));
        versions.iter().filter(is_since).cloned().collect()
    }

    /// Starts again with the present state.
    async fn list(&self) -> Result<()> {
        let list = self.stacks.list(&ListParams::default()).await?;
        self.at.replace(list.metadata.resource_version.context("a list without a version")?);
        list.items.into_iter().try_for_each(|stack| self.add(stack))
    }

    /// Records changes until the connection ends.
    async fn watch(&self) -> Result<()> {
        let at = self.at.borrow().clone();
        let mut events = pin!(self.stacks.watch(&WatchParams::default(), &at).await?);
        while let Some(event) = events.next().await {
            let at = match event {
                Err(kube::Error::ReadEvents(_)) => break,
                event => match event? {
                    WatchEvent::Added(stack) | WatchEvent::Modified(stack) => {
                        let at = stack.resource_version();
                        self.add(stack)?;
                        at
                    }
                    WatchEvent::Deleted(stack) => stack.resource_version(),
                    WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
                },
            };
            self.at.replace(at.context("an event without a version")?);
        }
        Ok(())
    }

    fn add(&self, stack: Stack) -> Result<()> {
        kstatus(&stack).with_context(|| format!("version {:?} of Stack {}", stack.resource_version(), stack.name_any()))?;
        self.versions.borrow_mut().push(stack);
        Ok(())
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 410)
}

/// Parses a version as a number, which grows.
fn version(stack: &Stack) -> Result<u64> {
    Ok(stack.resource_version().context("a Stack without a version")?.parse()?)
}

/// Checks that at most one of `Reconciling` and `Stalled` exists, that `Ready` always does, and
/// that each has PKO's form.
pub fn kstatus(stack: &Stack) -> Result<()> {
    let Some(status) = stack.status.as_ref().filter(|status| !status.conditions.is_empty()) else { return Ok(()) };
    let found: BTreeMap<_, _> = status
        .conditions
        .iter()
        .map(|found| (found.type_.as_str(), (found.status.as_str(), found.reason.as_str(), found.message.as_str())))
        .collect();
    let types: BTreeSet<_> = found.keys().copied().collect();
    let ready = match types.into_iter().collect::<Vec<_>>()[..] {
        ["Ready"] => ("True", "ProcessingCompleted", "the stack has been processed and is up to date"),
        ["Ready", "Reconciling"] => ("False", "NotReadyInProgress", "reconciliation is in progress"),
        ["Ready", "Stalled"] => ("False", "NotReadyStalled", "reconciliation is stalled"),
        _ => bail!("conditions {found:?}"),
    };
    let others_are_true = found.iter().all(|(type_, (status, ..))| *type_ == "Ready" || *status == "True");
    ensure!(
        found.get("Ready") == Some(&ready) && others_are_true && found.len() == status.conditions.len(),
        "conditions {:?}",
        status.conditions
    );
    Ok(())
}

#[tokio::test]
async fn every_version_is_recorded_across_restarts_of_the_watch() -> Result<()> {
    let stack = |version: u64, reason: &str| {
        let condition = json!({
            "type": "Ready", "status": "True", "reason": reason, "message": "the stack has been processed and is up to date",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "name": "app", "resourceVersion": version.to_string() },
            "spec": { "stack": "dev" }, "status": { "conditions": [condition] },
        })
    };
    let right = |version| stack(version, "ProcessingCompleted");
    let list = |version: &str, items: &[Value]| {
        json!({ "apiVersion": "pulumi.com/v1", "kind": "StackList", "metadata": { "resourceVersion": version }, "items": items })
            .to_string()
    };
    let event = |type_: &str, object: Value| format!("{}\n", json!({ "type": type_, "object": object }));
    let gone = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410 });
    let answers = [
        list("1", &[]),
        event("ADDED", right(2)) + &event("MODIFIED", right(3)),
        event("MODIFIED", right(10)),
        event("ERROR", gone),
        list("12", &[right(11)]),
        event("MODIFIED", right(13)) + &event("MODIFIED", stack(14, "Nonsense")),
    ];
    let (answers, asked) = (Arc::new(Mutex::new(answers.into_iter())), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&asked);
    let server = axum::Router::new().fallback(async move |uri: Uri| {
        let version = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")));
        log.lock().unwrap().push(version.unwrap_or("none").to_owned());
        answers.lock().unwrap().next().unwrap_or_default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let config = Config::new(format!("http://{}", listener.local_addr()?).parse()?);
    let recorded = async {
        let history = History::begin(Api::namespaced(Client::try_from(config)?, "any")).await?;
        let failed = format!("{:#}", history.record().await);
        Ok::<_, Error>((history, failed))
    };
    let (history, failed) = tokio::select! {
        recorded = recorded => recorded?,
        ended = axum::serve(listener, server) => bail!("{ended:?}"),
    };
    ensure!(failed.contains("version Some(\"14\") of Stack app") && failed.contains("Nonsense"), "{failed}");
    let versions = |first| history.since("app", first).iter().filter_map(|stack| version(stack).ok()).collect::<Vec<_>>();
    assert_eq!(versions(Some(0)), [2, 3, 10, 11, 13]);
    assert_eq!((versions(Some(10)), versions(None)), (vec![10, 11, 13], vec![]));
    ensure!(history.since("other", Some(0)).is_empty(), "it was another's");
    assert_eq!(*asked.lock().unwrap(), ["none", "1", "3", "10", "none", "12"]);
    Ok(())
}
