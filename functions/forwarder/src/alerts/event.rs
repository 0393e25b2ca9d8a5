use std::borrow::Cow;

use driftless_contract::EVENT_REPORTER;
use driftless_core::{ChangeRequest, EventReason, metadata::CHANGE_REQUEST};
use driftless_kubernetes::EVENT_REVISION;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Resource,
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::watched::metadata;

/// The CRD of Flux's Alerts lists the kinds that an Alert may select, and a Stack is not one of
/// them. This kind is, and Flux only compares kind, namespace and name: no such object has to
/// exist.
const API_VERSION: &str = "source.toolkit.fluxcd.io/v1";
const KIND: &str = "ExternalArtifact";
/// Flux drops metadata whose key lacks one of these prefixes: the group of the object, and that of
/// events.
const GROUP: &str = "source.toolkit.fluxcd.io";
const EVENTS_GROUP: &str = "event.toolkit.fluxcd.io";

/// The maximum length of a text, in bytes. Kubernetes has the same limit for notes of the group
/// `events.k8s.io`, which Driftless uses.
const MAX_TEXT: usize = 1024;

/// The fields that are read of a Kubernetes Event. A tenant who may write Events can forge one of
/// Driftless, with `managedFields` of any depth.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "they are Kubernetes' names")]
pub(crate) struct Event {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
    pub(super) event_time: Option<MicroTime>,
    pub(super) note: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) regarding: Option<ObjectReference>,
    pub(super) reporting_instance: Option<String>,
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
}

impl Resource for Event {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        v1::Event::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        v1::Event::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        v1::Event::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        v1::Event::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An Event in the form of Flux's notification-controller.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FluxEvent {
    pub(crate) involved_object: InvolvedObject,
    severity: &'static str,
    timestamp: String,
    message: String,
    pub(crate) reason: String,
    metadata: Map<String, Value>,
    reporting_controller: &'static str,
    reporting_instance: String,
}

/// The Stack in the form of a Flux object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InvolvedObject {
    api_version: &'static str,
    kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    uid: String,
}

/// An Event about a Stack, for Flux.
pub(crate) fn flux(event: &Event) -> FluxEvent {
    let text = |text: &Option<String>| text.as_deref().map(cut).unwrap_or_default();
    let regarding = event.regarding.clone().unwrap_or_default();
    let (name, reason) = (text(&regarding.name), text(&event.reason));
    let known = EventReason::parse(&reason);
    let time = event.event_time.as_ref().map(|time| time.0);
    let time = time.or(event.metadata.creation_timestamp.as_ref().map(|time| time.0)).unwrap_or_default();
    // Flux drops an event with the same message and token as one in the last five minutes. The
    // token makes two equal failures two events.
    let mut metadata = Map::from_iter([(format!("{GROUP}/token"), json!(event.metadata.uid))]);
    let annotation = |name| event.metadata.annotations.as_ref().and_then(|annotations| annotations.get(name));
    let number = annotation(CHANGE_REQUEST).filter(|_| known.is_some_and(EventReason::is_result));
    if let Some(number) = number.and_then(|number| ChangeRequest::parse(number)) {
        metadata.insert(CHANGE_REQUEST.to_owned(), json!(number.to_string()));
    }
    if let Some(revision) = annotation(EVENT_REVISION) {
        let revision = &cut(revision);
        metadata.insert(format!("{GROUP}/revision"), json!(revision));
        if let Some(commit) = commit(revision).filter(|_| known.is_some_and(EventReason::is_verdict)) {
            metadata.insert(format!("{EVENTS_GROUP}/commit"), json!(commit));
        }
    }
    // The Event's own namespace and not that of the object it names: a user who may write Events
    // here may only report on this namespace.
    let namespace = text(&event.metadata.namespace);
    if let Some(command) = command(known, &namespace, &name) {
        metadata.insert(format!("{GROUP}/command"), json!(command));
    }
    FluxEvent {
        severity: if event.type_.as_deref() == Some("Warning") { "error" } else { "info" },
        timestamp: time.strftime("%FT%TZ").to_string(),
        message: format!("Stack {name}: {}", text(&event.note)),
        involved_object: InvolvedObject { api_version: API_VERSION, kind: KIND, namespace, name, uid: text(&regarding.uid) },
        reason,
        metadata,
        reporting_controller: EVENT_REPORTER,
        reporting_instance: text(&event.reporting_instance),
    }
}

/// The command that shows more about the Stack. `None` for an unknown reason, and for a name that
/// no object has: the Event may be forged, and people paste the command into a shell.
fn command(reason: Option<EventReason>, namespace: &str, name: &str) -> Option<String> {
    let is_name = |name: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        name.bytes().all(is_allowed) && name.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    let reason = reason.filter(|_| is_name(namespace) && is_name(name))?;
    Some(format!("kubectl driftless {} {name} --namespace {namespace}", reason.command()))
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

/// The git commit of a revision such as `main@sha1:<hex>`, or of one that is only a commit.
fn commit(revision: &str) -> Option<&str> {
    let commit = revision.rsplit_once("sha1:").map_or(revision, |(_, commit)| commit);
    (commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "8d5b5c1f0e6a4c7d9b3f2e1a0c9d8e7f6a5b4c3d";

    /// An Event as the API server returns it.
    fn event(type_: &str, reason: &str, note: &str, annotations: &Value) -> Event {
        serde_json::from_value(json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "namespace": "shop", "name": "app-x2x8k", "uid": "0d9f6b56", "annotations": annotations },
            "eventTime": "2026-11-20T21:11:25.987654Z",
            "type": type_,
            "reason": reason,
            "action": reason,
            "note": note,
            "regarding": { "apiVersion": "pulumi.com/v1", "kind": "Stack", "namespace": "shop", "name": "app", "uid": "5f1c7c1e" },
            "reportingController": "driftless",
            "reportingInstance": "driftless-reconciler",
        }))
        .unwrap()
    }

    fn metadata(reason: &str, revision: &str) -> Value {
        Value::Object(flux(&event("Normal", reason, "n", &json!({ "driftless.dev/revision": revision }))).metadata)
    }

    #[test]
    fn failure_event_has_the_whole_note() {
        let revision = format!("main@sha1:{COMMIT}");
        let failed =
            event("Warning", "StackUpdateFailure", "Failed to update stack: up failed", &json!({ EVENT_REVISION: revision }));
        assert_eq!(
            serde_json::to_value(flux(&failed)).unwrap(),
            json!({
                "involvedObject": {
                    "apiVersion": "source.toolkit.fluxcd.io/v1",
                    "kind": "ExternalArtifact",
                    "namespace": "shop",
                    "name": "app",
                    "uid": "5f1c7c1e",
                },
                "severity": "error",
                "timestamp": "2026-11-20T21:11:25Z",
                "message": "Stack app: Failed to update stack: up failed",
                "reason": "StackUpdateFailure",
                "metadata": {
                    "source.toolkit.fluxcd.io/command": "kubectl driftless logs app --namespace shop",
                    "source.toolkit.fluxcd.io/revision": revision,
                    "source.toolkit.fluxcd.io/token": "0d9f6b56",
                    "event.toolkit.fluxcd.io/commit": COMMIT,
                },
                "reportingController": "driftless",
                "reportingInstance": "driftless-reconciler",
            })
        );
    }

    #[test]
    fn an_event_about_no_revision_has_none() {
        let flux = flux(&event("Warning", "StackConfigInvalid", "spec.stack: missing", &Value::Null));
        let command = "kubectl driftless explain app --namespace shop";
        let expected = json!({ "source.toolkit.fluxcd.io/command": command, "source.toolkit.fluxcd.io/token": "0d9f6b56" });
        assert_eq!(Value::Object(flux.metadata), expected);
        assert_eq!((flux.severity, flux.message.as_str()), ("error", "Stack app: spec.stack: missing"));
    }

    #[test]
    fn command_is_made_of_known_reasons_and_valid_names_only() {
        let detected = Some(EventReason::DriftDetected);
        assert_eq!(command(detected, "shop", "a.b-1").unwrap(), "kubectl driftless diff a.b-1 --namespace shop");
        for (reason, namespace, name) in [
            (EventReason::parse("Unknown"), "shop", "app"),
            (detected, "shop", "app; rm -rf ~"),
            (detected, "shop", "$(id)"),
            (detected, "shop", "--kubeconfig"),
            (detected, "shop", ""),
            (detected, "", "app"),
        ] {
            assert_eq!(command(reason, namespace, name), None, "{reason:?} {namespace} {name}");
        }
    }

    #[test]
    fn equal_events_have_different_keys() {
        let mut other = event("Warning", "StackUpdateFailure", "n", &Value::Null);
        other.metadata.uid = Some("another".into());
        let token = |event: &Event| flux(event).metadata["source.toolkit.fluxcd.io/token"].clone();
        assert_ne!(token(&event("Warning", "StackUpdateFailure", "n", &Value::Null)), token(&other));
    }

    #[test]
    fn only_a_verdict_about_a_git_commit_is_for_that_commit() {
        let key = "event.toolkit.fluxcd.io/commit";
        for revision in
            [format!("main@sha1:{COMMIT}"), format!("feature/x@sha1:{COMMIT}"), format!("sha1:{COMMIT}"), COMMIT.into()]
        {
            assert_eq!(metadata("StackCreated", &revision)[key], COMMIT, "{revision}");
            let begins = metadata("StackUpdateDetected", &revision);
            assert_eq!((&begins["source.toolkit.fluxcd.io/revision"], begins.get(key)), (&json!(revision), None));
        }
        let digest = "c5879b8d250ca6e74ca6bba56d9d89d3902cdc521520c040f051f7893d9555ac";
        for revision in ["1", "6.2.1", "main", &format!("latest@sha256:{digest}"), &COMMIT.replace('8', "x"), "sha1:é"] {
            assert_eq!(metadata("StackCreated", revision).get(key), None, "{revision}");
        }
    }

    #[test]
    fn only_the_end_of_a_run_is_for_a_pull_request_whose_number_is_one() {
        let of = |reason: &str, number: &str| {
            let metadata = flux(&event("Normal", reason, "n", &json!({ CHANGE_REQUEST: number }))).metadata;
            metadata.get("event.toolkit.fluxcd.io/change_request").cloned()
        };
        for reason in ["StackCreated", "StackUpdateFailure"] {
            assert_eq!(of(reason, "17"), Some(json!("17")));
        }
        for (reason, number) in [
            ("StackUpdateDetected", "17"),
            ("ResourceFailed", "17"),
            ("Test", "17"),
            ("StackCreated", ""),
            ("StackCreated", "17/merge"),
            ("StackCreated", "-1"),
            ("StackCreated", "99999999999"),
        ] {
            assert_eq!(of(reason, number), None, "{reason} {number}");
        }
    }

    #[test]
    fn long_texts_of_a_forged_event_are_cut() {
        let long = "é".repeat(1 << 20);
        let mut event = event("Warning", &long, &long, &json!({ EVENT_REVISION: long }));
        event.reporting_instance = Some(long.clone());
        assert!(serde_json::to_string(&flux(&event)).unwrap().len() < 8 * MAX_TEXT);
    }

    #[test]
    fn forged_event_with_deep_managed_fields_is_read() {
        let deep = format!("{}1{}", "{\"f:a\":".repeat(500), "}".repeat(500));
        let text = format!(r#"{{ "metadata": {{ "uid": "u", "managedFields": [{{ "fieldsV1": {deep} }}] }}, "reason": "r" }}"#);
        let event: Event = serde_json::from_str(&text).unwrap();
        assert_eq!((event.metadata.uid.as_deref(), event.reason.as_deref()), (Some("u"), Some("r")));
    }

    #[test]
    fn an_event_speaks_for_its_own_namespace_only() {
        let mut event = event("Normal", "StackCreated", "n", &Value::Null);
        event.metadata.namespace = Some("mine".into());
        assert_eq!(flux(&event).involved_object.namespace, "mine");
    }
}
