//! Reading and writing objects.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use driftless_api::{Program, Source, Stack, Update, Workspace};
use driftless_core::{
    ChangeKind, ChangeRequest, CurrentUpdate, DriftStatus, DriftVerdict, EarlyApproval, Expiry, LastUpdate, LastUpdateState,
    Listed, Operation, PlanHash, PlanParts, PlanState, PlanStatus, PlannedChange, PlannedChanges, PlannedLeaf, PlatformFailures,
    Proposal, Quantity, Readiness, SourceState, StackReason, StackStatus, Wish,
};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn assert_unchanged<T: DeserializeOwned + Serialize>(object: &Value) {
    assert_eq!(&serde_json::to_value(read::<T>(object.clone())).unwrap(), object);
}

#[test]
fn program_round_trips_unchanged() {
    assert_unchanged::<Program>(&json!({
        "apiVersion": "pulumi.com/v1",
        "kind": "Program",
        "metadata": { "name": "site" },
        "program": {
            "configuration": { "size": { "type": "List<Number>" }, "on": { "default": [1, 2.5, "no"] } },
            "outputs": { "url": "${bucket.url}", "nested": { "fn::toJSON": [{ "a": null }, -1, 1e100, 18_446_744_073_709_551_615_u64] } },
            "packages": { "aws": "7.0.0" },
            "resources": {
                "bucket": {
                    "type": "aws:s3:Bucket",
                    "properties": { "tags": { "Owner": "me", "no": null, "list": [[], {}] } },
                    "options": { "parent": "${site}", "dependsOn": ["${a}", { "b": 1 }], "protect": false },
                },
                "zone": { "type": "aws:route53:Zone", "get": { "id": "Z1", "state": { "deep": { "er": [true] } } } },
            },
            "variables": { "x": { "fn::invoke": { "function": "f", "arguments": { "y": 1 } } } },
        },
    }));
}

#[test]
fn objects_round_trip() {
    assert_unchanged::<Stack>(&json!({
        "apiVersion": "pulumi.com/v1",
        "kind": "Stack",
        "metadata": { "name": "app", "namespace": "team", "generation": 3 },
        "spec": {
            "stack": "org/app/dev",
            "config": { "a:b": { "c": [1, null] } },
            "envRefs": { "TOKEN": { "type": "Secret", "secret": { "name": "s", "key": "k" } } },
            "gitAuth": { "githubApp": {
                "appID": { "type": "Literal", "literal": { "value": "1" } },
                "installationID": { "type": "Env", "env": { "name": "I" } },
                "privateKey": { "type": "FS", "filesystem": { "path": "/k" } },
            } },
            "workspaceReclaimPolicy": "Delete",
            "workspaceTemplate": { "spec": { "stacks": [{ "create": true }], "podTemplate": { "spec": { "containers": [] } } } },
        },
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
            }],
            "driftless": { "nextLook": "2026-01-02T03:05:05Z" },
            "lastUpdate": { "type": "up", "state": "succeeded", "lastResyncTime": "2026-01-02T03:04:05Z", "failures": 0 },
            "outputs": {},
        },
    }));
    assert_unchanged::<Workspace>(&json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Workspace",
        "metadata": { "name": "app" },
        "spec": { "stacks": [{ "name": "dev", "config": [{ "key": "a", "value": { "b": [null] } }, { "key": "b", "valueFrom": { "env": "B" } }] }] },
    }));
    assert_unchanged::<Update>(&json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Update",
        "metadata": { "name": "app-1" },
        "spec": {
            "type": "up",
            "driftless": {
                "commit": "main@sha1:1",
                "stackGeneration": 3,
                "tree": { "source": { "apiVersion": "pulumi.com/v1", "kind": "Program", "name": "site" }, "digest": "sha256:1" },
                "workspace": { "image": "i" },
            },
        },
        "status": { "driftless": { "changes": { "create": 2 }, "task": "arn", "waitingFor": "the Secret" } },
    }));
}

#[test]
fn undecodable_status_field_hides_no_other_field() {
    let stack: Stack = read(json!({
        "metadata": {},
        "spec": { "stack": "dev", "fieldOfAnotherRelease": 1 },
        "status": {
            "conditions": [{ "type": "Ready" }, {
                "type": "Stalled", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
            }],
            "lastUpdate": { "name": "app-1", "lastResyncTime": "9999-12-31T23:59:59-10:00" },
        },
    }));
    let status = stack.status.unwrap();
    assert_eq!(status.conditions.iter().map(|condition| condition.type_.as_str()).collect::<Vec<_>>(), ["Stalled"]);
    let last = status.last_update.unwrap();
    assert_eq!((last.name.as_deref(), last.last_resync_time), (Some("app-1"), None));
}

#[test]
fn an_amount_may_be_a_number() {
    let workspace: Workspace = read(
        json!({ "metadata": {}, "spec": { "resources": { "limits": { "cpu": 2, "memory": 4_294_967_296_u64, "gpu": "1" } } } }),
    );
    let limits = workspace.spec.resources.unwrap().limits;
    let amounts: Vec<_> = limits.iter().map(|(name, Quantity(amount))| (name.as_str(), amount.as_str())).collect();
    assert_eq!(amounts, [("cpu", "2"), ("gpu", "1"), ("memory", "4294967296")]);
}

fn source(body: &Value) -> Source {
    let mut object = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "GitRepository",
        "metadata": { "name": "app", "namespace": "team", "generation": 2 },
    });
    object.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    Source::from_object(&read::<DynamicObject>(object))
}

#[test]
fn a_source_is_read_from_an_object_of_any_kind() {
    let source = source(&json!({
        "spec": { "suspend": true, "url": "https://git" },
        "status": {
            "observedGeneration": 2,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
            }],
            "artifact": {
                "digest": "sha256:1", "lastUpdateTime": "2026-01-02T03:04:05Z", "path": "gitrepository/team/app/1.tar.gz",
                "revision": "main@sha1:1", "size": 12, "url": "http://source-controller.flux-system.svc.cluster.local./1.tar.gz",
            },
        },
    }));
    assert_eq!((source.api_version.as_str(), source.kind.as_str()), ("source.toolkit.fluxcd.io/v1", "GitRepository"));
    assert_eq!((source.metadata.name.as_deref(), source.suspend, source.observed_generation), (Some("app"), true, Some(2)));
    assert_eq!(source.conditions.len(), 1);
    let artifact = source.artifact.unwrap();
    assert_eq!(
        (artifact.digest.as_deref(), artifact.size, artifact.revision.as_str()),
        (Some("sha256:1"), Some(12), "main@sha1:1")
    );
}

#[test]
fn undecodable_source_field_is_absent() {
    for status in [
        json!(null),
        json!("gone"),
        json!([]),
        json!({ "artifact": { "url": 1 }, "conditions": "none", "observedGeneration": "2" }),
    ] {
        let source = source(&json!({ "spec": [], "status": status }));
        assert_eq!((source.suspend, source.artifact, source.observed_generation), (false, None, None));
        assert!(source.conditions.is_empty());
    }
}

#[test]
fn kube_derives_the_plurals_of_flux_kinds() {
    let plurals = driftless_api::KINDS.map(|(api_version, kind)| {
        let (group, version) = api_version.split_once('/').unwrap();
        kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind)).plural
    });
    assert_eq!(plurals, ["gitrepositories", "ocirepositories", "buckets", "helmcharts", "externalartifacts"]);
}

/// The state of a GitRepository with this metadata, spec, and conditions as (type, status,
/// generation).
fn state(metadata: &Value, spec: &Value, conditions: &[(&str, &str, i64)], artifact: bool) -> Result<String, String> {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(type_, status, generation)| {
            json!({
                "type": type_, "status": status, "reason": "R", "message": format!("{type_} is {status}"), "observedGeneration": generation,
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            })
        })
        .collect();
    let offered = json!({
        "digest": "sha256:1", "lastUpdateTime": "2026-01-02T03:04:05Z", "path": "p", "revision": "main@sha1:1", "url": "http://u",
    });
    let status = json!({ "conditions": conditions, "artifact": if artifact { offered } else { Value::Null } });
    let mut object =
        json!({ "metadata": { "name": "app", "namespace": "team", "generation": 2 }, "spec": spec, "status": status });
    object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    match SourceState::from(&source(&object)) {
        SourceState::Artifact { revision, polled: None, .. } => Ok(revision.to_string()),
        SourceState::NoArtifact { why } => Err(format!("no artifact: {why}")),
        SourceState::Unfit { why } => Err(why),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn last_good_artifact_is_used_unless_deleted_or_unverified() {
    let (none, verify) = (json!({}), json!({ "verify": { "mode": "HEAD" } }));
    let good = Ok("main@sha1:1".to_owned());
    let failed = [("Ready", "False", 2)];
    assert_eq!(state(&none, &none, &failed, true), good, "not ready");
    assert_eq!(state(&none, &none, &[("Ready", "True", 1)], true), good, "behind its spec");
    assert_eq!(state(&none, &json!({ "suspend": true }), &[], true), good, "suspended");
    assert_eq!(state(&none, &verify, &[("SourceVerified", "True", 2)], true), good, "verified");

    assert_eq!(state(&none, &none, &[], false).unwrap_err(), "no artifact: ");
    assert_eq!(state(&none, &none, &failed, false).unwrap_err(), "no artifact: Ready is False");
    assert_eq!(state(&none, &json!({ "suspend": true }), &failed, false).unwrap_err(), "no artifact: it is suspended; resume it");
    let going = json!({ "deletionTimestamp": "2026-01-02T03:04:05Z" });
    assert_eq!(state(&going, &none, &[], true).unwrap_err(), "it is being deleted");
    let unverified = "spec.verify requires a verified source: ";
    assert_eq!(state(&none, &verify, &[], true).unwrap_err(), format!("{unverified}it is not verified yet"));
    for (status, generation, words) in [("False", 2, "SourceVerified is False"), ("True", 1, "only an earlier spec was verified")]
    {
        let why = state(&none, &verify, &[("SourceVerified", status, generation)], true).unwrap_err();
        assert_eq!(why, format!("{unverified}{words}"));
    }
}

/// A status with every field of a plan.
fn plan_status(at: Timestamp) -> PlanStatus {
    let hash = |digit: &str| PlanHash::parse(&digit.repeat(64)).unwrap();
    let text = || "text".to_owned();
    let leaves = |count| Listed { count, first: vec![PlannedLeaf { urn: text(), path: text() }] };
    let change = PlannedChange {
        urn: text(),
        resource_type: String::new(),
        kind: ChangeKind::Replace,
        paths: vec![text()],
        replaced_by: vec![text(), text()],
    };
    let plan = PlannedChanges {
        hash: hash("a"),
        parts: PlanParts {
            version: 1,
            binding: hash("b"),
            resources: hash("c"),
            state: hash("d"),
            pulumi: text(),
            tree: Some(text()),
        },
        operation: Operation::Destroy,
        counts: ChangeKind::ALL.into_iter().zip(1..).collect(),
        changes: Listed { count: 45, first: vec![change] },
        unknown: leaves(2),
        unstable: leaves(3),
        advice: Vec::new(),
        made_at: at,
    };
    let wish = Wish {
        operation: Operation::Destroy,
        commit: text().into(),
        generation: 3,
        reconcile_request: text(),
        refresh: true,
        inputs: Some(text()),
    };
    let proposal = Proposal {
        state: PlanState::Approved,
        plan: Some(plan),
        wish,
        update: text(),
        offered: true,
        demanded: Some(text()),
        by: Some(text()),
        expires: Some(at),
        note: text(),
        failures: 2,
        failed_at: None,
    };
    PlanStatus {
        guarded: true,
        governed: true,
        current: Some(text()),
        last: Some(text()),
        proposal: Some(proposal),
        takes_early: true,
        early: Some(EarlyApproval { hash: hash("f"), by: Some(text()), expires: at }),
        spent: Some(hash("e")),
    }
}

#[test]
fn stack_status_round_trips() {
    let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let text = || "text".to_owned();
    let status = StackStatus {
        observed_generation: Some(3),
        observed_reconcile_request: text(),
        readiness: Some(Readiness::Reconciling { reason: StackReason::StackProcessing, message: text() }),
        current_update: Some(CurrentUpdate { name: text(), generation: 3, reconcile_request: text(), commit: text().into() }),
        last_update: Some(LastUpdate {
            name: text(),
            generation: 2,
            reconcile_request: text(),
            operation: Some(Operation::Up),
            state: LastUpdateState::Failed,
            message: text(),
            last_attempted_commit: text().into(),
            last_successful_commit: text().into(),
            permalink: Some(text()),
            last_resync_time: Some(at),
            failures: 4,
        }),
        outputs: Some([(text(), json!(1))].into()),
        project: Some((text(), text())),
        operated: Some(true),
        ran: Some(true),
        conflict: true,
        platform_failures: Some(PlatformFailures { count: 1, fresh: true }),
        waits_for: Some(text()),
        change_request: Some(ChangeRequest(17)),
        drift: DriftStatus {
            current: Some(text()),
            last: Some(text()),
            checked: Some(at),
            verdict: Some(DriftVerdict::None),
            adoption_failed: true,
        },
        expiry: Some(Expiry { at, blocked: Some(text()) }),
        plan: plan_status(at),
        suspended: true,
        inputs: Some(text()),
        scope: Some(text()),
        next_reconciliation: Some(at),
    };
    let mut stack: Stack = read(json!({ "metadata": {}, "spec": { "stack": "dev" } }));
    stack.set_status(&status, at);
    let written: Stack = read(serde_json::to_value(&stack).unwrap());
    assert_eq!(StackStatus::from(written.status.as_ref().unwrap()), status);
}
