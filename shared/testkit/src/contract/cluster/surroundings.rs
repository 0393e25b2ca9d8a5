//! The cases of namespaces, tokens and Events.

use anyhow::{Context as _, Result, ensure};
use driftless_core::ChangeRequest;
use driftless_kubernetes::{Cluster as _, Error, EventMarks, EventReason, EventType};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use secrecy::ExposeSecret as _;

use super::fixture::{Fixture, NAMESPACE, again, config_map, find, is_permanent, labelled, update};

/// The API server's limit.
const NOTE_BYTES: usize = 1024;

suite! {
    label_of_a_namespace_is_read
    terminating_namespace_deletes_what_is_in_it
    nothing_is_created_in_a_terminating_namespace
    token_lasts_as_long_as_was_asked
    token_of_less_than_ten_minutes_is_refused
    token_of_an_account_that_is_missing_is_a_permanent_error
    event_is_about_its_object
    note_of_an_event_is_cut
    endpoint_is_a_url
}

async fn label_of_a_namespace_is_read<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    for (name, watch) in [("contract-yes", Some("true")), ("contract-no", Some("false")), ("contract-mute", None)] {
        fixture.namespace(name, watch).await?;
        ensure!(cluster.watch_label(name).await? == Some(watch.map(Into::into)), "{name}");
    }
    let mut labels = cluster.watch_labels().await?;
    labels.retain(|name, _| name.starts_with("contract-"));
    let expected = [("contract-no", "false"), ("contract-yes", "true")];
    ensure!(labels.iter().map(|(name, label)| (name.as_str(), label.as_str())).eq(expected), "{labels:?}");
    Ok(())
}

/// A namespace that is terminating while an object in it waits for its finalizer.
async fn terminating<F: Fixture>(fixture: &F, namespace: &str) -> Result<ConfigMap> {
    fixture.namespace(namespace, None).await?;
    let mut held = config_map(namespace, "held", "");
    held.metadata.finalizers = Some(vec!["driftless.dev/contract".into()]);
    let held = fixture.port().create(&held).await?;
    fixture.port().create(&config_map(namespace, "free", "")).await?;
    fixture.terminate(namespace).await?;
    again(fixture, &held).await
}

/// Removes the finalizer that the namespace waits for.
async fn free<F: Fixture>(fixture: &F, mut held: ConfigMap) -> Result<()> {
    held.metadata.finalizers = None;
    fixture.port().replace(&held).await?;
    ensure!(find(fixture, &held).await?.is_none());
    Ok(())
}

async fn terminating_namespace_deletes_what_is_in_it<F: Fixture>(fixture: &F) -> Result<()> {
    let held = terminating(fixture, "contract-ending").await?;
    ensure!(held.metadata.deletion_timestamp.is_some());
    ensure!(find(fixture, &config_map("contract-ending", "free", "")).await?.is_none());
    // An object that still exists can be written.
    let held = fixture.port().replace(&labelled(held, "l")).await?;
    free(fixture, held).await
}

async fn nothing_is_created_in_a_terminating_namespace<F: Fixture>(fixture: &F) -> Result<()> {
    let (cluster, namespace) = (fixture.port(), "contract-ended");
    let held = terminating(fixture, namespace).await?;
    let new = config_map(namespace, "new", "");
    let refused = [
        cluster.create(&new).await.err(),
        cluster.apply(&new).await.err(),
        cluster.service_account_token(namespace, "default", None, 600).await.err(),
    ];
    ensure!(refused.iter().all(|error| matches!(error, Some(Error::NamespaceTerminating { .. }))), "{refused:?}");
    cluster.event(&held, EventType::Normal, EventReason::UpdateRefused, "note", EventMarks::default(), fixture.now()).await;
    ensure!(!fixture.events(namespace).await?.iter().any(|event| event.contains("Refused")));
    free(fixture, held).await
}

async fn token_lasts_as_long_as_was_asked<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.namespace("contract-token", None).await?;
    for audience in [None, Some("sts.amazonaws.com")] {
        let before = fixture.now();
        let (token, expires) = fixture.port().service_account_token("contract-token", "default", audience, 1200).await?;
        let begun = (expires - SignedDuration::from_mins(20)).as_second();
        ensure!((before.as_second()..=fixture.now().as_second()).contains(&begun), "{expires} is not 20 minutes after {before}");
        ensure!(fixture.is_for(token.expose_secret(), "sts.amazonaws.com") == audience.is_some());
    }
    Ok(())
}

async fn token_of_less_than_ten_minutes_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.namespace("contract-short", None).await?;
    is_permanent(&fixture.port().service_account_token("contract-short", "default", None, 599).await.map(drop))
}

async fn token_of_an_account_that_is_missing_is_a_permanent_error<F: Fixture>(fixture: &F) -> Result<()> {
    is_permanent(&fixture.port().service_account_token(NAMESPACE, "contract-missing", None, 600).await.map(drop))
}

/// The Events of the case's object.
async fn told<F: Fixture>(fixture: &F, name: &str, note: &str) -> Result<Vec<String>> {
    let object = fixture.port().create(&update(name, "a")).await?;
    let revision = "main@sha1:0".into();
    let marks = EventMarks { revision: Some(&revision), change_request: Some(ChangeRequest(17)) };
    fixture.port().event(&object, EventType::Warning, EventReason::DriftDetected, note, marks, fixture.now()).await;
    let mut events = fixture.events(NAMESPACE).await?;
    events.retain(|event| event.contains(&format!("/{} ", object.name_any())));
    Ok(events)
}

async fn event_is_about_its_object<F: Fixture>(fixture: &F) -> Result<()> {
    let told = told(fixture, "event", "the note").await?;
    ensure!(told == ["Update default/contract-event Warning DriftDetected: the note"], "{told:?}");
    Ok(())
}

async fn note_of_an_event_is_cut<F: Fixture>(fixture: &F) -> Result<()> {
    let told = told(fixture, "long-event", &format!("a{}", "ä".repeat(NOTE_BYTES))).await?;
    let note = told.first().and_then(|event| event.split_once(": ")).context("an Event")?.1;
    ensure!(note.len() == NOTE_BYTES - 1, "{} bytes", note.len());
    Ok(())
}

async fn endpoint_is_a_url<F: Fixture>(fixture: &F) -> Result<()> {
    let endpoint = fixture.port().endpoint();
    ensure!(endpoint.server.starts_with("https://") && !endpoint.server.ends_with('/'), "{endpoint:?}");
    Ok(())
}
