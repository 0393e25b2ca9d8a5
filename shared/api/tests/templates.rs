//! A Stack's templates in its Workspace and its Updates.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code, which clippy does not see in a function without #[test]"
)]

use driftless_api::{Stack, Update, Workspace, names};
use driftless_core::{Effect, RunState, Snapshot, SourceState, Stack as CoreStack, TreeState, decide};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

/// A Stack with one of each field that affects its Workspace, and `more`.
fn stack(more: &Value) -> Stack {
    let mut spec = json!({
        "stack": "dev",
        "backend": "s3://state",
        "programRef": { "name": "app" },
        "config": { "replicas": 2 },
        "envs": ["settings"],
        "envSecrets": ["tokens"],
    });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let metadata =
        json!({ "name": "app", "namespace": "team", "uid": "u", "generation": 1, "finalizers": ["finalizer.stack.pulumi.com"] });
    serde_json::from_value(json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec })).unwrap()
}

/// The objects that are created for it, as JSON.
fn created(stack: &Stack) -> (Value, Value) {
    let artifact = SourceState::Artifact { revision: "1".into(), digest: "sha256:a".into(), polled: None };
    let snapshot = Snapshot {
        stack: CoreStack::from(stack),
        source: Some(artifact),
        tree: TreeState::Stored { project: driftless_core::Project::There, scope: None },
        run: RunState::None,
        check: RunState::None,
        proposal: RunState::None,
        guard: driftless_core::Guard::Intact,
        governance: driftless_core::Governance::Unread,
        planned: None,
        prerequisites: Vec::new(),
        requires: std::collections::BTreeMap::new(),
        named: None,
        inputs: None,
    };
    let plan = decide(&snapshot, Timestamp::UNIX_EPOCH);
    let new = plan.effects.iter().find_map(|effect| match effect {
        Effect::Run(new) => Some(new),
        _ => None,
    });
    let new = new.unwrap_or_else(|| panic!("nothing is run: {:?}", plan.status.readiness));
    let workspace = Workspace::of_stack(stack, new);
    let update = Update::of_stack(stack, &workspace, new);
    (serde_json::to_value(workspace).unwrap(), serde_json::to_value(update).unwrap())
}

#[test]
fn workspace_template_overrides_env_and_precedes_env_from() {
    let (workspace, update) = created(&stack(&json!({ "workspaceTemplate": {
        "metadata": { "labels": { "team": "a", "pulumi.com/stack-name": "other" }, "annotations": { "note": "b" } },
        "spec": {
            "image": "mine:1",
            "pulumiLogLevel": 3,
            "env": [{ "name": "PULUMI_BACKEND_URL", "value": "s3://other" }, { "name": "MORE", "value": "1" }],
            "envFrom": [{ "configMapRef": { "name": "first" } }],
            "resources": { "limits": { "cpu": "1" } },
        },
    } })));
    let spec = &workspace["spec"];
    assert_eq!(workspace["metadata"]["labels"]["team"], "a");
    assert_eq!(workspace["metadata"]["labels"]["pulumi.com/stack-name"], "app", "ours win");
    assert_eq!(workspace["metadata"]["annotations"]["note"], "b");
    assert_eq!((&spec["image"], &spec["pulumiLogLevel"]), (&json!("mine:1"), &json!(3)));
    let env: Vec<_> = spec["env"].as_array().unwrap().iter().map(|env| (env["name"].clone(), env["value"].clone())).collect();
    assert!(
        env.contains(&(json!("PULUMI_BACKEND_URL"), json!("s3://other"))) && env.contains(&(json!("MORE"), json!("1"))),
        "{env:?}"
    );
    assert_eq!(env.len(), 2, "merged by name");
    let from = json!([{ "configMapRef": { "name": "first" } }, { "configMapRef": { "name": "settings" } }, { "secretRef": { "name": "tokens" } }]);
    assert_eq!(spec["envFrom"], from);
    assert_eq!(spec["stacks"][0]["config"][0], json!({ "key": "replicas", "value": 2 }));
    let mut copy = update["spec"]["driftless"]["workspace"].clone();
    copy["driftless"]["tree"] = update["spec"]["driftless"]["tree"].clone();
    assert_eq!(&copy, spec, "the Update has a copy, and the Workspace the tree of the Update");
}

#[test]
fn update_template_overrides_all_but_the_identity_of_the_run() {
    let (_, update) = created(&stack(&json!({ "updateTemplate": {
        "metadata": { "labels": { "cost": "42" } },
        "spec": { "ttlAfterCompleted": "42m", "parallel": 3, "remove": true, "type": "preview" },
    } })));
    let spec = &update["spec"];
    assert_eq!(update["metadata"]["labels"]["cost"], "42");
    assert_eq!(
        (&spec["ttlAfterCompleted"], &spec["parallel"], &spec["remove"], &spec["type"], &spec["stackName"]),
        (&json!("42m"), &json!(3), &json!(true), &json!("preview"), &json!("dev"))
    );
    assert_eq!(spec["driftless"]["stackGeneration"], 1);
    assert_eq!(update["metadata"]["finalizers"][0], "finalizer.stack.pulumi.com");
}

#[test]
fn deleted_stack_is_destroyed_despite_an_invalid_template() {
    for word in ["preview", "up", "refresh"] {
        let template = json!({ "spec": { "type": word, "remove": true } });
        let mut stack = stack(&json!({ "updateTemplate": template, "destroyOnFinalize": true }));
        stack.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let last = json!({ "name": "app-1", "generation": 1, "type": word, "state": "succeeded", "lastSuccessfulCommit": "1" });
        stack.status = serde_json::from_value(json!({ "lastUpdate": last })).unwrap();
        let (_, update) = created(&stack);
        assert_eq!((&update["spec"]["type"], &update["spec"]["remove"]), (&json!("destroy"), &json!(true)), "{word}");
    }
}

#[test]
fn unsupported_template_field_is_refused_by_name() {
    let refused = |more: &Value| CoreStack::from(&stack(more)).spec.refused.unwrap_or_default();
    let workspace = |spec: Value| refused(&json!({ "workspaceTemplate": { "spec": spec } }));
    let at = "spec.workspaceTemplate.spec";
    for (spec, field) in [
        (json!({ "stacks": [{ "name": "dev" }] }), "stacks"),
        (json!({ "projectInfo": { "name": "p", "runtime": "yaml" } }), "projectInfo"),
        (json!({ "local": { "dir": "/src" } }), "local"),
        (
            json!({ "podTemplate": { "spec": { "volumes": [{ "name": "a", "nfs": { "server": "s" } }] } } }),
            "podTemplate.spec.volumes",
        ),
    ] {
        let words = workspace(spec);
        assert!(words.starts_with(&format!("{at}.{field}")), "{field}: {words:?}");
    }
    assert!(workspace(json!({ "env": "A=1" })).starts_with("spec.workspaceTemplate.spec: "));
    let template = json!({ "podTemplate": { "spec": { "tolerations": [{ "key": "a" }] } } });
    let spec = CoreStack::from(&stack(&json!({ "workspaceTemplate": { "spec": template } }))).spec;
    assert_eq!((spec.refused, spec.pod_only), (None, vec![format!("{at}.podTemplate.spec.tolerations")]));
    let update = |spec: Value| refused(&json!({ "updateTemplate": { "spec": spec } }));
    assert_eq!(
        update(json!({ "type": "apply" })),
        "spec.updateTemplate.spec.type is \"apply\"; use up, preview, refresh or destroy"
    );
    assert!(
        update(json!({ "ttlAfterCompleted": "a day" })).starts_with("spec.updateTemplate.spec.ttlAfterCompleted is \"a day\"")
    );
    assert_eq!(update(json!({ "ttlAfterCompleted": "1h" })), "");
    assert_eq!(workspace(json!({ "image": "mine" })), "");
    let lost = CoreStack::from(&stack(&json!({ "backend": "file:///tmp/state" }))).spec.task_backend;
    assert_eq!(lost.as_deref(), Some("file:///tmp/state"));
    let old = stack(&json!({ "config": { "n": 1 }, "workspaceTemplate": { "spec": { "image": "pulumi/pulumi:3.197.0" } } }));
    let spec = CoreStack::from(&old).spec;
    assert!(spec.refused.is_none() && spec.old_pulumi.is_some_and(|words| words.starts_with(&format!("{at}.image is "))));
    let image = json!({ "image": "pulumi/pulumi:3.133.0" });
    let old = stack(&json!({ "secretsProvider": "awskms://alias/a", "config": {}, "workspaceTemplate": { "spec": image } }));
    let told = CoreStack::from(&old).spec.old_pulumi;
    assert!(told.is_some_and(|words| words.contains("spec.secretsProvider requires")));
}

#[test]
fn stack_watches_its_inputs_unless_disabled() {
    let watches = |stack: &Stack| CoreStack::from(stack).spec.watches_inputs;
    let mut with = stack(&json!({}));
    assert!(watches(&with));
    with.metadata.annotations = Some([("driftless.dev/inputs".to_owned(), "ignore".to_owned())].into());
    assert!(!watches(&with));
    with.metadata.annotations = Some([("driftless.dev/inputs".to_owned(), "off".to_owned())].into());
    let refused = CoreStack::from(&with).spec.refused.unwrap();
    assert_eq!(refused, "annotation driftless.dev/inputs is \"off\"; write \"ignore\", or remove it");
    assert!(!watches(&stack(&json!({ "envs": [], "envSecrets": [] }))));
}

#[test]
fn update_uses_stack_capacity_unless_it_retries_a_failure() {
    let template = json!({ "updateTemplate": { "metadata": { "annotations": { names::CAPACITY: names::SPOT, "note": "b" } } } });
    let last = |state: &str| json!({ "lastUpdate": { "name": "app-1", "state": state, "generation": 0 } });
    for (annotation, state, expected) in [
        (None, "succeeded", names::SPOT),
        (Some(names::ON_DEMAND), "succeeded", names::ON_DEMAND),
        (Some(names::SPOT), "succeeded", names::SPOT),
        (Some(names::SPOT), "failed", names::ON_DEMAND),
        (None, "failed", names::ON_DEMAND),
    ] {
        let mut stack = stack(&template);
        stack.metadata.annotations = annotation.map(|capacity| [(names::CAPACITY.to_owned(), capacity.to_owned())].into());
        stack.status = Some(serde_json::from_value(last(state)).unwrap());
        let (_, update) = created(&stack);
        let annotations = &update["metadata"]["annotations"];
        assert_eq!(
            (&annotations[names::CAPACITY], &annotations["note"]),
            (&json!(expected), &json!("b")),
            "{annotation:?} {state}"
        );
    }
}
