//! When the Secrets and ConfigMaps of a Stack are read for a decision.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{convert::Infallible, pin::pin, task};

use driftless_api::{
    Artifact, Program, Source, Stack, Update,
    facts::{Compared, Facts, Fetch, Found, snapshot},
    names,
};
use driftless_core::{
    ArtifactDigest, Governance, Guard, Inputs, PlanHash, PlannedChanges, Project, RunOutcome, SourceRef, Stack as CoreStack,
    Sync, TreeState, Why, is_synced,
};
use jiff::Timestamp;
use serde_json::{Value, json};

const RAN: &str = "2026-11-26T11:00:00Z";
const COMPARED: &str = "2026-11-26T11:30:00Z";

/// The facts of a Stack whose Secret was `new` when it was compared, and that outcome of its
/// Update.
struct Team {
    outcome: Option<RunOutcome>,
}

impl Facts for Team {
    type Error = Infallible;

    fn system_namespace(&self) -> &'static str {
        "driftless-system"
    }

    async fn stack(&self, _: &str, _: &str) -> Result<Found<Stack>, Infallible> {
        Ok(Found::Missing)
    }

    async fn update(&self, _: &str, name: &str) -> Result<Found<Update>, Infallible> {
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "shop", "uid": "u" });
        let object = json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": { "name": name, "namespace": "team", "ownerReferences": [owner] },
            "spec": { "type": "up", "driftless": { "commit": "main@sha1:a", "stackGeneration": 1 } },
        });
        Ok(Found::Object(Box::new(serde_json::from_value(object).unwrap())))
    }

    async fn program(&self, _: &str, _: &str) -> Result<Found<Program>, Infallible> {
        Ok(Found::Missing)
    }

    async fn flux(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Found<Source>, Infallible> {
        let artifact = Artifact { revision: "main@sha1:a".into(), digest: Some("sha256:a".into()), ..Artifact::default() };
        Ok(Found::Object(Box::new(Source { artifact: Some(artifact), ..Source::default() })))
    }

    async fn outcome(&self, _: &Update) -> Result<Option<RunOutcome>, Infallible> {
        Ok(self.outcome.clone())
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
        Ok(Some(TreeState::Stored { project: Project::There, scope: None }))
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
        Ok(Some(Compared { digest: "new".into(), at: COMPARED.parse().unwrap(), waits_for: None }))
    }
}

/// A Stack that reads a Secret and has run, with these annotations and this part of
/// `status.driftless`.
fn stack(annotations: &Value, ours: &Value) -> CoreStack {
    let last = json!({
        "name": "shop-1", "generation": 1, "state": "succeeded", "type": "up", "lastAttemptedCommit": "main@sha1:a",
        "lastSuccessfulCommit": "main@sha1:a", "lastResyncTime": RAN,
    });
    let source = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "name": "shop" });
    let object = json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "metadata": { "name": "shop", "namespace": "team", "uid": "u", "generation": 1, "annotations": annotations },
        "spec": { "stack": "dev", "fluxSource": { "sourceRef": source }, "envSecrets": ["tokens"] },
        "status": {
            "conditions": [{
                "type": "Drifted", "status": "True", "reason": "DriftDetected", "message": "", "lastTransitionTime": RAN,
            }],
            "lastUpdate": last, "driftless": ours,
        },
    });
    CoreStack::from(&serde_json::from_value::<Stack>(object).unwrap())
}

/// The known state of its inputs, and why it wants a run.
fn inputs_of(mut stack: CoreStack, outcome: Option<RunOutcome>) -> (Option<Inputs>, Sync) {
    let now = "2026-11-26T12:00:00Z".parse().unwrap();
    let current = driftless_core::CurrentUpdate {
        name: "shop-2".into(),
        generation: 1,
        reconcile_request: String::new(),
        commit: "main@sha1:a".into(),
    };
    stack.status.current_update = outcome.is_some().then_some(current);
    let team = Team { outcome };
    let mut read = pin!(snapshot(&team, stack.clone(), now));
    let task::Poll::Ready(Ok(read)) = read.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop())) else {
        unreachable!("no fact is awaited")
    };
    let wants = is_synced(&stack, &"main@sha1:a".into(), read.inputs.as_ref(), now);
    (read.inputs, wants)
}

fn changed() -> Inputs {
    Inputs { changed: true, digest: Some("new".into()), read: COMPARED.parse().unwrap(), waits_for: None }
}

#[test]
fn changed_secret_precedes_an_adoption() {
    let annotations = json!({ names::DRIFT_SCHEDULE: "6h", names::ADOPT: "check-1" });
    let drift = json!({ "lastCheck": "check-1", "count": 1 });
    let of = |inputs| stack(&annotations, &json!({ "inputs": inputs, "drift": drift }));
    assert_eq!(inputs_of(of("old"), None), (Some(changed()), Sync::Run(Why::Inputs)));
    assert_eq!(inputs_of(of("new"), None).1, Sync::Run(Why::Adoption(1)));
}

#[test]
fn stale_run_has_applied_no_secret() {
    let of = |stale| {
        let outcome = RunOutcome { inputs: Some("new".into()), stale, ..RunOutcome::default() };
        inputs_of(stack(&json!({}), &json!({ "inputs": "old" })), Some(outcome)).0.unwrap().changed
    };
    assert_eq!((of(true), of(false)), (true, false));
}

#[test]
fn secret_of_a_plan_is_compared_whatever_the_plan_is_for() {
    let planned = |inputs: Option<&str>| {
        let plan = json!({ "state": "Failed", "generation": 2, "update": "plan-1", "inputs": inputs });
        let mut stack = stack(&json!({ names::APPROVAL: "required" }), &json!({ "plan": plan }));
        (stack.generation, stack.status.last_update) = (2, None);
        inputs_of(stack, None)
    };
    assert_eq!(planned(Some("old")), (Some(Inputs { changed: false, ..changed() }), Sync::Run(Why::Initial)));
    assert_eq!(planned(None).0, None);
}
