//! Drift on a Stack, and on the Update of its check; the maintenance window; the limited life.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code, which clippy does not see in a function without #[test]"
)]

use driftless_api::{Stack, Update, UpdateSpec, Workspace, WorkspaceSpec, names};
use driftless_core::{
    Asked, CurrentUpdate, Drift, DriftSettings, DriftStatus, DriftVerdict, DriftedResource, Ignored, NewUpdate, Operation,
    Remediate, Schedule, Stack as CoreStack, StackStatus, run::Hold, workspace,
};
use jiff::Timestamp;
use serde_json::{Value, json};

fn stack(annotations: &Value) -> Stack {
    let metadata = json!({ "name": "app", "namespace": "team", "uid": "u", "annotations": annotations });
    let template = json!({ "metadata": { "labels": { "cost": "42" } }, "spec": { "type": "preview", "remove": true } });
    let spec = json!({ "stack": "dev", "programRef": { "name": "app" }, "destroyOnFinalize": true, "updateTemplate": template });
    serde_json::from_value(json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec })).unwrap()
}

#[test]
fn annotations_configure_drift_checks() {
    let schedule = |text, zone| Some(Schedule::parse(text, zone).unwrap());
    for (annotations, expected) in [
        (json!({}), None),
        (json!({ names::REMEDIATE: "always" }), None),
        (json!({ names::DRIFT_SCHEDULE: "6h" }), Some((schedule("6h", None), None))),
        (
            json!({ names::DRIFT_SCHEDULE: "0 3 * * *", names::DRIFT_TIME_ZONE: "Europe/Berlin", names::REMEDIATE: "always" }),
            Some((schedule("0 3 * * *", Some("Europe/Berlin")), Some(Remediate::Always))),
        ),
        (
            json!({ names::DRIFT_SCHEDULE: "6h", names::DRIFT_SUSPEND: "true", names::REMEDIATE: "app-1" }),
            Some((None, Some(Remediate::Check("app-1".into())))),
        ),
    ] {
        let core = CoreStack::from(&stack(&annotations));
        assert_eq!(core.spec.refused, None);
        assert_eq!(
            core.drift,
            expected.map(|(schedule, remediate)| DriftSettings { schedule, adopt: None, remediate, ignored: Vec::new() }),
            "{annotations}"
        );
    }
}

#[test]
fn annotation_asks_to_adopt_drift() {
    let of =
        |check: &str| CoreStack::from(&stack(&json!({ names::DRIFT_SCHEDULE: "6h", names::ADOPT: check }))).drift.unwrap().adopt;
    assert_eq!((of("app-1"), of("")), (Some("app-1".to_owned()), None));
}

#[test]
fn ignored_properties_are_read_strictly() {
    let of = |text: &str| CoreStack::from(&stack(&json!({ names::DRIFT_SCHEDULE: "6h", names::DRIFT_IGNORE: text })));
    let entry = |of: Option<&str>, path: &str| Ignored { resource_type: of.map(str::to_owned), path: path.to_owned() };
    let read = of("tags.owner, aws:s3/bucket:Bucket#tags");
    assert_eq!(read.spec.refused, None);
    assert_eq!(read.drift.unwrap().ignored, [entry(None, "tags.owner"), entry(Some("aws:s3/bucket:Bucket"), "tags")]);
    assert_eq!(of("").drift.unwrap().ignored, []);
    for wrong in ["tags,", "#tags", "aws:s3/bucket:Bucket#", " "] {
        let refused = of(wrong).spec.refused.unwrap();
        let words = format!("annotation driftless.dev/drift-ignore is {wrong:?}; write paths such as tags.owner");
        assert!(refused.starts_with(&words), "{refused}");
    }
}

#[test]
fn window_holds_runs_that_change_resources_while_it_is_closed() {
    let window = json!({ names::WINDOW_SCHEDULE: "0 22 * * *", names::WINDOW_DURATION: "4h" });
    let at = |time: &str| time.parse::<Timestamp>().unwrap();
    let (closed, open) = (at("2026-11-26T12:00:00Z"), at("2026-11-26T23:00:00Z"));
    let spec = |spec: Value| serde_json::from_value::<UpdateSpec>(spec).unwrap();
    let (up, preview) = (spec(json!({ "type": "up" })), spec(json!({ "type": "preview" })));
    let check = spec(json!({ "type": "refresh", "driftless": { "previewOnly": true } }));
    let hold = |annotations: &Value, update: &UpdateSpec, now| {
        CoreStack::from(&stack(annotations)).hold(!update.changes_nothing(), update.plan().as_ref(), now)
    };
    for (update, now, held) in [(&up, closed, true), (&up, open, false), (&preview, closed, false), (&check, closed, false)] {
        assert_eq!(hold(&window, update, now), held.then_some(Hold::OutsideWindow), "{update:?} at {now}");
    }
    assert_eq!(hold(&json!({}), &up, closed), None);
    assert_eq!(hold(&json!({ names::SUSPEND: "true" }), &preview, open), Some(Hold::Suspended));
}

#[test]
fn ttl_counts_from_the_creation_and_knows_what_applies_the_stack() {
    let flux = |controller: &str| {
        let label = |part: &str| format!("{controller}.toolkit.fluxcd.io/{part}");
        json!({ label("name"): "apps", label("namespace"): "flux-system" })
    };
    let argo = json!({ names::TTL: "72h", "argocd.argoproj.io/tracking-id": "apps:pulumi.com/Stack:team/app" });
    for (labels, annotations, applied_by) in [
        (json!({}), None, None),
        (flux("kustomize"), None, Some("Kustomization flux-system/apps")),
        (flux("helm"), None, Some("HelmRelease flux-system/apps")),
        (json!({}), Some(argo), Some("Application of Argo CD \"apps:pulumi.com/Stack:team/app\"")),
    ] {
        let mut stack = stack(&annotations.unwrap_or(json!({ names::TTL: "72h" })));
        stack.metadata.creation_timestamp = Some(serde_json::from_value(json!("2026-11-23T12:00:00Z")).unwrap());
        stack.metadata.labels = serde_json::from_value(labels).unwrap();
        let ttl = CoreStack::from(&stack).ttl.unwrap();
        assert_eq!((ttl.ends.to_string().as_str(), ttl.applied_by.as_deref()), ("2026-11-26T12:00:00Z", applied_by));
    }
}

#[test]
fn unknown_annotation_value_is_refused_by_name() {
    for (annotations, words) in [
        (json!({ names::TTL: "3 days" }), r#"annotation driftless.dev/ttl is "3 days"; write a duration of at least 1m"#),
        (json!({ names::DRIFT_SCHEDULE: "daily" }), r#"annotation driftless.dev/drift-schedule is "daily"; write an interval"#),
        (
            json!({ names::DRIFT_SCHEDULE: "6h", names::DRIFT_TIME_ZONE: "UTC" }),
            r#"annotation driftless.dev/drift-time-zone is "UTC", but an interval has no time zone; remove it"#,
        ),
        (
            json!({ names::WINDOW_SCHEDULE: "4h", names::WINDOW_DURATION: "4h" }),
            r#"annotation driftless.dev/window-schedule is "4h"; write five cron fields"#,
        ),
        (
            json!({ names::WINDOW_SCHEDULE: "0 22 * * *", names::WINDOW_DURATION: "long" }),
            r#"annotation driftless.dev/window-duration is "long"; write a duration of at least 1m"#,
        ),
        (
            json!({ names::WINDOW_SCHEDULE: "0 22 * * *", names::WINDOW_DURATION: "4h", names::WINDOW_TIME_ZONE: "Berlin" }),
            r#"annotation driftless.dev/window-schedule is "0 22 * * *" in the time zone "Berlin"; write an IANA time zone"#,
        ),
        (
            json!({ names::WINDOW_SCHEDULE: "0 22 * * *" }),
            "annotation driftless.dev/window-schedule is set without driftless.dev/window-duration; set both, or remove it",
        ),
        (
            json!({ names::WINDOW_DURATION: "4h" }),
            "annotation driftless.dev/window-duration is set without driftless.dev/window-schedule; set both, or remove it",
        ),
        (
            json!({ names::CAPACITY: "cheap" }),
            r#"annotation driftless.dev/capacity is "cheap"; write "spot" or "on-demand", or remove it"#,
        ),
        (
            json!({ names::DRIFT_SCHEDULE: "6h", names::DRIFT_SUSPEND: "yes" }),
            r#"annotation driftless.dev/drift-suspend is "yes"; write "true" or "false""#,
        ),
    ] {
        let mut stack = stack(&annotations);
        stack.metadata.creation_timestamp = Some(serde_json::from_value(json!("2026-11-23T12:00:00Z")).unwrap());
        let refused = CoreStack::from(&stack).spec.refused.unwrap();
        assert!(refused.starts_with(words), "{refused}");
    }
}

#[test]
fn drift_status_round_trips() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let resource = |properties: &[&str]| DriftedResource {
        urn: "urn:a".into(),
        change: "update".into(),
        properties: properties.iter().map(|path| (*path).to_owned()).collect(),
    };
    let found = DriftVerdict::Found(Drift { count: 3, resources: vec![resource(&["tags.owner"]), resource(&[])] });
    for (verdict, condition) in [
        (None, None),
        (Some(DriftVerdict::None), Some(["False", "NoDrift", "live state matches the last update"])),
        (Some(DriftVerdict::Remediated), Some(["False", "Remediated", "an update has succeeded since"])),
        (
            Some(DriftVerdict::Adopted),
            Some([
                "False",
                "Adopted",
                "the state has taken the drift over; the next update changes it back, unless the program has the same values",
            ]),
        ),
        (Some(DriftVerdict::Unknown("no".into())), Some(["Unknown", "DriftCheckFailed", "no"])),
        (
            Some(found),
            Some([
                "True",
                "DriftDetected",
                "3 resources drifted: update urn:a (tags.owner); update urn:a; and 1 more; \
                 to remediate it, annotate the Stack with driftless.dev/remediate=app-1",
            ]),
        ),
    ] {
        let (current, last) = (Some("app-2".into()), Some("app-1".into()));
        let drift = DriftStatus { current, last, checked: Some(now), verdict, adoption_failed: true };
        let status = StackStatus { drift, ..StackStatus::default() };
        let mut stack = stack(&json!({}));
        stack.set_status(&status, now);
        assert_eq!(StackStatus::from(stack.status.as_ref().unwrap()), status);
        let read: Stack = serde_json::from_value(serde_json::to_value(&stack).unwrap()).unwrap();
        assert_eq!(read, stack);
        assert!(stack.names("app-2") && !stack.names("app-1"));
        let written = stack.status.unwrap().conditions;
        let words = written.iter().map(|condition| [&*condition.status, &*condition.reason, &*condition.message]).next();
        assert_eq!(words, condition);
    }
}

/// A refresh of a Stack.
fn refresh(stack: &Stack) -> NewUpdate {
    NewUpdate {
        current: CurrentUpdate { name: "app-1".into(), generation: 1, reconcile_request: String::new(), commit: "c".into() },
        operation: Operation::Refresh,
        message: "Drift check".into(),
        asked: Asked::Spec,
        targets: vec!["urn:a".into()],
        target_dependents: false,
        refresh: false,
        expect_no_refresh_changes: false,
        run_program: false,
        tree: None,
        workspace: workspace(&CoreStack::from(stack).spec),
        on_demand: false,
        plan: None,
    }
}

#[test]
fn update_names_the_client_the_schedule_or_nothing_that_asked_for_it() {
    let entry = |manager: &str, time: &str, fields: Value| json!({ "manager": manager, "operation": "Apply", "time": time, "fieldsV1": fields });
    let annotated = |name: &str| json!({ "f:metadata": { "f:annotations": { format!("f:{name}"): {} } } });
    let mut object = json!(stack(&json!({ names::DRIFT_SCHEDULE: "6h", names::ADOPT: "check-1" })));
    object["metadata"]["managedFields"] = json!([
        entry("kustomize-controller", "2026-11-26T12:00:00Z", json!({ "f:spec": { "f:stack": {} } })),
        entry("kubectl-driftless", "2026-11-26T12:01:00Z", annotated(names::ADOPT)),
        entry("driftless-reconciler", "2026-11-26T12:02:00Z", json!({ "f:metadata": { "f:finalizers": {} }, "f:status": {} })),
        json!({ "manager": "no-fields", "time": "2026-11-26T12:03:00Z" }),
    ]);
    let stack: Stack = serde_json::from_value(object).unwrap();
    for (asked, requester) in [
        (Asked::Spec, Some("kustomize-controller")),
        (Asked::Annotation(names::ADOPT), Some("kubectl-driftless")),
        (Asked::Annotation(names::REMEDIATE), None),
        (Asked::Schedule(names::DRIFT_SCHEDULE), Some("driftless.dev/drift-schedule: 6h")),
    ] {
        let update = Update::of_check(&stack, &NewUpdate { asked: asked.clone(), ..refresh(&stack) });
        assert_eq!(update.spec.driftless.unwrap().requested_by.as_deref(), requester, "{asked:?}");
    }
}

#[test]
fn adoption_is_a_refresh_whatever_the_update_template_says() {
    let stack = stack(&json!({}));
    let new = refresh(&stack);
    let update = Update::of_stack(&stack, &Workspace::new("app", WorkspaceSpec::default()), &new);
    let ours = update.spec.driftless.as_ref().unwrap();
    assert_eq!(
        (update.spec.operation.as_deref(), update.spec.remove, update.spec.run_program),
        (Some("refresh"), None, Some(false))
    );
    assert_eq!((&update.spec.target, ours.preview_only, update.spec.changes_nothing()), (&new.targets, None, false));
    let proposal = Update::of_proposal(&stack, &new);
    assert_eq!((proposal.spec.operation.as_deref(), proposal.spec.is_proposal()), (Some("refresh"), true));

    // A refresh of the template applies what it reads, whatever else it has.
    let adopts = |update: &Update| update.run_of(&"u".into(), "driftless").unwrap().adopts;
    assert!(adopts(&update) && adopts(&proposal));
    let mut templated = self::stack(&json!({}));
    for refreshes in [json!(true), json!(false), json!(null)] {
        templated.spec.update_template = Some(json!({ "spec": { "type": "refresh", "refresh": refreshes } }));
        let new = NewUpdate { operation: Operation::Up, refresh: true, ..new.clone() };
        let update = Update::of_stack(&templated, &Workspace::new("app", WorkspaceSpec::default()), &new);
        assert_eq!((update.spec.operation.as_deref(), adopts(&update)), (Some("refresh"), false), "{refreshes}");
    }
    // An update with the mark, as a template can write it, is still an update.
    let mut marked = Update::of_stack(&stack, &Workspace::new("app", WorkspaceSpec::default()), &new);
    marked.spec.operation = Some("up".into());
    assert!(!adopts(&marked));
}

#[test]
fn template_takes_no_refresh_from_a_remediation() {
    for (spec, wanted, of_template) in [(None, true, json!(false)), (Some(true), false, json!(false)), (None, true, json!(true))]
    {
        let mut stack = stack(&json!({}));
        stack.spec.refresh = spec;
        stack.spec.update_template = Some(json!({ "spec": { "refresh": of_template } }));
        let core = CoreStack::from(&stack);
        assert_eq!((core.spec.refresh, core.spec.retyped), (of_template == json!(true), false));
        let new = NewUpdate { operation: Operation::Up, refresh: wanted, ..refresh(&stack) };
        let update = Update::of_stack(&stack, &Workspace::new("app", WorkspaceSpec::default()), &new);
        assert_eq!((update.spec.operation.as_deref(), update.spec.refresh), (Some("up"), Some(wanted)), "{of_template}");
    }
    assert!(CoreStack::from(&stack(&json!({}))).spec.retyped, "each of its runs is a preview");
}

#[test]
fn drift_check_ignores_the_spec_of_the_update_template() {
    let stack = stack(&json!({}));
    let new = refresh(&stack);
    let on_spot = |check: &Update| check.metadata.annotations.clone().and_then(|mut all| all.remove(names::CAPACITY));
    let check = Update::of_check(&stack, &new);
    assert_eq!(on_spot(&check), None, "it is for the launcher to say");
    let asked = self::stack(&json!({ names::CAPACITY: names::ON_DEMAND }));
    assert_eq!(on_spot(&Update::of_check(&asked, &new)).as_deref(), Some(names::ON_DEMAND));
    assert_eq!((check.spec.operation.as_deref(), check.spec.remove, &check.spec.target), (Some("refresh"), None, &new.targets));
    let ours = check.spec.driftless.as_ref().unwrap();
    assert_eq!((ours.preview_only, ours.seal), (Some(true), None), "nothing of a run that changes nothing is kept");
    let labels = check.metadata.labels.clone().unwrap();
    assert_eq!((&*labels["cost"], &*labels[names::DRIFT_CHECK], &*labels[names::STACK_NAME]), ("42", "true", "app"));
    let run = check.run_of(&"u".into(), "driftless").unwrap();
    assert_eq!((run.operation, run.refresh, run.adopts, &*run.name), (Operation::Refresh, false, false, "app-1"));
}
