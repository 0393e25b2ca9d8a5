//! The annotations of a guarded Stack, and the Updates of its plans.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use driftless_api::{Stack, Update, Workspace, WorkspaceSpec, names};
use driftless_core::{
    ApprovalPolicy, ApprovalSettings, Asked, ChangeKind, CurrentUpdate, NewUpdate, Operation, PlanHash, Stack as CoreStack,
    run::Hold, workspace,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

fn hash() -> String {
    "a".repeat(64)
}

fn stack(annotations: &Value, template: &Value) -> Stack {
    let metadata = json!({ "name": "app", "namespace": "team", "uid": "u", "generation": 1, "annotations": annotations });
    let spec = json!({ "stack": "dev", "programRef": { "name": "app" }, "destroyOnFinalize": true, "updateTemplate": { "spec": template } });
    serde_json::from_value(json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec })).unwrap()
}

#[test]
fn annotations_are_settings_of_approvals() {
    let read = |annotations: Value| CoreStack::from(&stack(&annotations, &json!({}))).approval;
    assert_eq!(read(json!({})), None);
    assert_eq!(read(json!({ names::APPROVE: hash() })), None);
    assert_eq!(read(json!({ names::APPROVAL: "required" })), Some(ApprovalSettings::default()));
    let all = json!({
        names::APPROVAL: "unless replace,delete", names::APPROVE: hash(), names::APPROVED_BY: "ann", names::REJECT: "",
        names::PLAN_TTL: "24h",
    });
    let expected = ApprovalSettings {
        policy: ApprovalPolicy::Unless([ChangeKind::Replace, ChangeKind::Delete].into()),
        approved: PlanHash::parse(&hash()),
        approved_by: Some("ann".into()),
        rejected: None,
        ttl: SignedDuration::from_hours(24),
    };
    assert_eq!(read(all), Some(expected));
}

#[test]
fn answers_count_where_only_the_cluster_asks_for_plans() {
    let core = CoreStack::from(&stack(&json!({ names::APPROVE: hash(), names::APPROVED_BY: "ann" }), &json!({})));
    let approved = PlanHash::parse(&hash());
    let expected = ApprovalSettings {
        policy: ApprovalPolicy::none(),
        approved,
        approved_by: Some("ann".into()),
        ..ApprovalSettings::default()
    };
    assert_eq!((core.approval, core.answers), (None, expected));
}

#[test]
fn invalid_annotation_is_refused_and_the_stack_stays_guarded() {
    let operation = json!({ "type": "destroy" });
    for (annotation, value, template, words) in [
        (names::APPROVAL, "on", json!({}), r#"annotation driftless.dev/approval is "on"; write "required""#),
        (names::APPROVE, "aaaaaaa", json!({}), r#"annotation driftless.dev/approve is "aaaaaaa"; write all 64 digits"#),
        (names::REJECT, "no", json!({}), r#"annotation driftless.dev/reject is "no"; write all 64 digits"#),
        (names::PLAN_TTL, "0s", json!({}), r#"annotation driftless.dev/plan-ttl is "0s"; write a duration"#),
        (names::APPROVED_BY, "ann", operation, r#"spec.updateTemplate.spec.type is "destroy"; remove it"#),
    ] {
        let mut annotations = json!({ names::APPROVAL: "required" });
        annotations[annotation] = json!(value);
        let stack = stack(&annotations, &template);
        let core = CoreStack::from(&stack);
        let refused = core.spec.refused.clone().unwrap();
        assert!(refused.starts_with(words), "{refused}");
        assert!(core.approval.is_some() && stack.is_guarded(), "{annotation}");
        assert_eq!(core.hold(true, None, Timestamp::UNIX_EPOCH), Some(Hold::Unapproved), "{annotation}");
    }
}

#[test]
fn plan_refreshes_as_the_run_that_applies_it() {
    for (template, refreshes) in [(json!({ "refresh": true }), true), (json!({ "refresh": false }), false), (json!({}), false)] {
        let stack = stack(&json!({ names::APPROVAL: "required" }), &template);
        assert_eq!(CoreStack::from(&stack).spec.refresh, refreshes, "{template}");
        // Drift that is to be fixed demands a refresh.
        for refresh in [false, true] {
            let proposal = Update::of_proposal(&stack, &NewUpdate { refresh, ..new(None) });
            assert_eq!(proposal.spec.refresh, Some(refresh), "{template}");
        }
    }
}

fn new(plan: Option<&str>) -> NewUpdate {
    let stack = stack(&json!({}), &json!({}));
    NewUpdate {
        current: CurrentUpdate { name: "app-1".into(), generation: 1, reconcile_request: String::new(), commit: "c".into() },
        operation: if plan.is_some() { Operation::Up } else { Operation::Preview },
        message: "New".into(),
        asked: Asked::Spec,
        targets: vec!["urn:a".into()],
        target_dependents: true,
        refresh: true,
        expect_no_refresh_changes: false,
        run_program: false,
        tree: None,
        workspace: workspace(&CoreStack::from(&stack).spec),
        on_demand: false,
        plan: plan.and_then(PlanHash::parse),
    }
}

#[test]
fn proposal_has_the_flags_of_the_run_that_applies_it() {
    let template = json!({ "replace": ["urn:b"], "continueOnError": true, "driftless": { "plan": "b", "previewOnly": null } });
    let stack = stack(&json!({ names::APPROVAL: "required" }), &template);
    let proposal = Update::of_proposal(&stack, &new(None));
    let workspace = Workspace::new("app", WorkspaceSpec::default());
    let run = Update::of_stack(&stack, &workspace, &new(Some(&hash())));
    assert_eq!((proposal.spec.operation.as_deref(), run.spec.operation.as_deref()), (Some("preview"), Some("up")));
    let [ours, applied] = [&proposal, &run].map(|update| update.spec.driftless.clone().unwrap());
    assert_eq!((ours.propose, ours.plan.as_deref(), ours.seal), (Some(true), None, None));
    assert_eq!((applied.propose, applied.plan, applied.seal), (None, Some(hash()), Some(true)));
    assert_eq!(run.metadata.annotations.as_ref().unwrap()[names::PLAN], hash());
    assert_eq!(proposal.metadata.labels.as_ref().unwrap()[names::PLAN], "");
    let flags = |update: &Update| {
        let spec = update.spec.clone();
        (spec.target, spec.target_dependents, spec.refresh, spec.replace, spec.continue_on_error, spec.run_program)
    };
    assert_eq!(flags(&proposal), flags(&run));
    assert_eq!(run.run_of(&"u".into(), "driftless").unwrap().plan, PlanHash::parse(&hash()));
    assert_eq!(proposal.run_of(&"u".into(), "driftless").unwrap().plan, None);
}

#[test]
fn proposal_of_a_destroy_changes_nothing() {
    let template = json!({ "remove": true, "driftless": { "plan": "b", "previewOnly": false } });
    let stack = stack(&json!({ names::APPROVAL: "required" }), &template);
    let of = |plan: Option<&str>| NewUpdate { operation: Operation::Destroy, run_program: true, ..new(plan) };
    let proposal = Update::of_proposal(&stack, &of(None));
    let run = Update::of_stack(&stack, &Workspace::new("app", WorkspaceSpec::default()), &of(Some(&hash())));
    assert!(proposal.spec.is_proposal() && proposal.spec.changes_nothing() && proposal.spec.plan().is_none());
    assert!(!run.spec.is_proposal() && !run.spec.changes_nothing() && run.spec.plan() == PlanHash::parse(&hash()));
    for update in [&proposal, &run] {
        assert_eq!(
            (update.spec.operation.as_deref(), update.spec.remove, update.spec.run_program),
            (Some("destroy"), Some(true), Some(true))
        );
    }
    let hold = |update: &Update| {
        let (changes, plan) = (!update.spec.changes_nothing(), update.spec.plan());
        CoreStack::from(&stack).hold(changes, plan.as_ref(), Timestamp::UNIX_EPOCH)
    };
    assert_eq!((hold(&proposal), hold(&run)), (None, Some(Hold::Unapproved)));
    // In a terminating namespace.
    let elsewhere = proposal.elsewhere(&stack, "driftless");
    assert!(elsewhere.spec.is_proposal() && elsewhere.metadata.namespace.as_deref() == Some("driftless"));
    assert_eq!(elsewhere.run_of(&"u".into(), "driftless").unwrap().operation, Operation::Destroy);
}
