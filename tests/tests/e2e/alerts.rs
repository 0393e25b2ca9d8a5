//! Events about Stacks arrive through Flux's Alerts.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail, ensure};
use axum::{Json, Router, http::Uri};
use driftless_tests::{
    scenario::{Namespace, RUN, Source},
    world::{journal::lines, ready},
};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::world::{nothing_was_given_up, shared};

const SECRET: &str = "canary-alerts-4e1c";

/// The target of this test's Providers: the received events, by path.
#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<(String, Value)>>>);

impl Inbox {
    fn put(&self, path: &str, event: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((path.to_owned(), event));
    }

    fn all(&self, path: &str) -> Vec<Value> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.into_iter().filter(|(at, _)| at == path).map(|(_, event)| event).collect()
    }

    fn with(&self, path: &str, field: &str, value: &str) -> Vec<Value> {
        self.all(path).into_iter().filter(|event| event[field] == value).collect()
    }

    /// Waits until at least `count` events with `value` in `field` have arrived at `path`.
    async fn wait(&self, path: &str, field: &str, value: &str, count: usize) -> Result<Vec<Value>> {
        ready::until(&format!("{count} events with {field} {value:?} at {path}"), RUN, async || {
            let found = self.with(path, field, value);
            ensure!(found.len() >= count, "{} of {:#?}", found.len(), self.all(path));
            Ok(found)
        })
        .await
    }
}

/// Applies an Alert for all Stacks of the namespace, with a Provider that posts to that path of
/// `address`.
async fn apply_alert(team: &Namespace<'_>, name: &str, severity: &str, address: &str) -> Result<()> {
    team.apply(&format!(
        "apiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Provider\nmetadata: {{ name: {name}, namespace: NAMESPACE }}\n\
         spec: {{ type: generic, address: '{address}/{name}' }}\n\
         ---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Alert\nmetadata: {{ name: {name}, namespace: NAMESPACE }}\n\
         spec: {{ providerRef: {{ name: {name} }}, eventSeverity: {severity}, eventSources: [{{ kind: ExternalArtifact, name: '*' }}] }}\n"
    ))
    .await
}

/// Publishes a Warning about a Stack as Driftless's functions do.
async fn publish(team: &Namespace<'_>, stack: &str, note: &str) -> Result<()> {
    let event: Event = serde_json::from_value(json!({
        "metadata": { "generateName": format!("{stack}-"), "namespace": team.name },
        "eventTime": "2026-11-20T21:11:25.000000Z",
        "type": "Warning",
        "reason": "Test",
        "action": "Test",
        "note": note,
        "regarding": { "apiVersion": "pulumi.com/v1", "kind": "Stack", "namespace": team.name, "name": stack },
        "reportingController": "driftless",
        "reportingInstance": "test",
    }))?;
    Api::namespaced(team.world.client.clone(), &team.name).create(&PostParams::default(), &event).await?;
    Ok(())
}

#[tokio::test]
async fn events_of_a_stack_reach_the_alerts_of_flux() -> Result<()> {
    let inbox = Inbox::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let log = inbox.clone();
    let server = Router::new().fallback(async move |uri: Uri, Json(event): Json<Value>| log.put(uri.path(), event));
    tokio::select! {
        ended = axum::serve(listener, server) => bail!("{ended:?}"),
        ended = story(&inbox, &address) => ended,
    }
}

async fn story(inbox: &Inbox, address: &str) -> Result<()> {
    let (world, _turn) = shared().await?;
    let team = world.namespace("alerts").await?;
    apply_alert(&team, "all", "info", address).await?;
    apply_alert(&team, "errors", "error", address).await?;
    // Flux loses events that arrive before its cache has an Alert.
    ready::until("the Alerts are known", RUN, async || {
        publish(&team, "nobody", "hello").await?;
        for path in ["/all", "/errors"] {
            ensure!(
                !inbox.with(path, "message", "Stack nobody: hello").is_empty(),
                "nothing at {path}: {:#?}",
                inbox.all("/all")
            );
        }
        Ok(())
    })
    .await?;

    // Two with the same text, within the time in which Flux takes the second for a duplicate.
    tokio::try_join!(publish(&team, "nobody", "twice"), publish(&team, "nobody", "twice"))?;
    inbox.wait("/all", "message", "Stack nobody: twice", 2).await?;

    // A run that fails twice with a message that contains a secret, and then succeeds.
    let marker = team.file(SECRET)?;
    fs::create_dir_all(Path::new(&marker).parent().context("a folder")?)?;
    fs::write(&marker, "")?;
    let when = format!(", failWhenExists: '{}'", team.file("${password}")?);
    let program = team.program("app.txt", "one", &when)?;
    let project = format!("name: app\nruntime: yaml\nconfiguration: {{ password: {{ type: String }} }}\n{program}");
    let repository = world.git.create("alerts").await?;
    let id = repository.commit("one", &[("Pulumi.yaml", &project)]).await?;
    team.apply_git_repository("app", &repository.url).await?;
    team.apply_secret("app", &[("password", SECRET)]).await?;
    let more = "  secretsRef:\n    password: { type: Secret, secret: { name: app, key: password } }\n";
    team.apply_stack("app", Source::GitRepository("app"), more).await?;

    let revision = format!("main@sha1:{id}");
    let command = |verb: &str| format!("kubectl driftless {verb} app --namespace alerts");
    let failures = inbox.wait("/errors", "reason", "StackUpdateFailure", 2).await?;
    for failure in &failures {
        assert_eq!(
            (&failure["severity"], &failure["metadata"], &failure["reportingController"]),
            (&json!("error"), &json!({ "revision": revision, "commit": id, "command": command("logs") }), &json!("driftless"))
        );
        let about = &failure["involvedObject"];
        assert_eq!(
            (&about["apiVersion"], &about["kind"], &about["namespace"], &about["name"]),
            (&json!("source.toolkit.fluxcd.io/v1"), &json!("ExternalArtifact"), &json!("alerts"), &json!("app"))
        );
        let message = failure["message"].as_str().unwrap_or_default();
        ensure!(message.starts_with("Stack app: Failed to update stack: "), "{message}");
    }
    // Pulumi's own message, with the secret masked.
    let words = inbox.wait("/errors", "reason", "ResourceFailed", 1).await?;
    let message = words[0]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("cannot write ") && message.contains("[secret]"), "{message}");

    fs::remove_file(&marker)?;
    let created = inbox.wait("/all", "reason", "StackCreated", 1).await?;
    assert_eq!(
        (&created[0]["severity"], &created[0]["message"], &created[0]["metadata"]),
        (
            &json!("info"),
            &json!("Stack app: Successfully updated stack"),
            &json!({ "revision": revision, "commit": id, "command": command("diff") })
        )
    );
    let begun = inbox.wait("/all", "reason", "StackUpdateDetected", 3).await?;
    for event in begun {
        assert_eq!(
            (&event["severity"], &event["metadata"]),
            (&json!("info"), &json!({ "revision": revision, "command": command("logs") })),
            "no verdict"
        );
    }

    // Flux gets events in order: all earlier ones have arrived before this one.
    publish(&team, "nobody", "last").await?;
    for path in ["/all", "/errors"] {
        inbox.wait(path, "message", "Stack nobody: last", 1).await?;
        let told = Value::from(inbox.all(path)).to_string();
        ensure!(!told.contains(SECRET), "{told}");
    }
    let errors = inbox.all("/errors");
    ensure!(errors.iter().all(|event| event["severity"] == "error"), "{errors:#?}");
    assert_eq!(inbox.with("/errors", "reason", "StackCreated").len(), 0);
    // Once each, except for events that the forwarder posted again because Flux was too slow.
    let log = Path::new(world.get("WORLD_LOGS")?).join("forwarder.log");
    let again = lines(&log, 0)?.filter(|line| {
        line.as_ref().is_ok_and(|line| line.contains("retrying the delivery of an Event to notification-controller"))
    });
    let again = again.count();
    for (field, value, told) in [("message", "Stack nobody: twice", 2), ("reason", "StackCreated", 1)] {
        let found = inbox.with("/all", field, value).len();
        ensure!((told..=told + again).contains(&found), "{value}: {found}, with {again} posted again");
    }
    nothing_was_given_up(&world).await
}
