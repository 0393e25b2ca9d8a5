//! A guarded Stack starts no run that changes resources without an approved plan.

use driftless_api::names;
use driftless_contract::{Launch, Operation, PlanMode};
use driftless_core::PlanHash;

use super::*;

fn hash(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// The plan of a Stack that was approved, as the reconciler writes it.
fn approved() -> Value {
    let digests = json!({
        "binding": hash('1'), "pulumi": "v3.259.0", "resources": hash('2'), "state": hash('3'), "version": 1,
    });
    json!({
        "guarded": true, "state": "Approved", "hash": hash('a'), "generation": 1, "commit": "c", "update": "p", "approvedBy": "ann",
        "counts": { "create": 1 }, "changesTotal": 1, "digests": digests, "madeAt": "2026-01-01T00:00:00Z",
    })
}

/// A guarded Stack with that plan and these annotations, and its Update with these fields.
fn guarded(plan: &Value, annotations: &Value, operation: &str, ours: &Value) -> World {
    with_metadata(&json!({ "annotations": annotations }), plan, operation, ours)
}

/// The same with more metadata of the Stack than annotations.
fn with_metadata(metadata: &Value, plan: &Value, operation: &str, ours: &Value) -> World {
    let world = quiet();
    of_stack(&world, "n", operation, &json!({}));
    let metadata = driftless_core::merge(json!({ "annotations": { names::APPROVAL: "required" } }), metadata);
    let more = json!({ "metadata": metadata, "status": { "driftless": { "plan": plan } } });
    world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &more));
    let more = json!({ "spec": { "driftless": ours } });
    world.insert(driftless_core::merge(world.object(&key("Update", "n", "u")).unwrap(), &more));
    reconcile(&world, &hint("u"));
    world
}

#[test]
fn approved_plan_is_in_the_spec_and_in_the_launch_record() {
    let world = guarded(&approved(), &json!({ names::APPROVE: hash('a') }), "up", &json!({ "plan": hash('a') }));
    let plan = spec(&world).plan.unwrap();
    assert_eq!(plan.approved, PlanHash::parse(&hash('a')));
    assert!(PlanHash::parse(&plan.key).is_some() && plan.tree.is_none());
    let launch = Launch::parse(&world.objects()[&keys::run(CLUSTER, &"uid-u".into()).launch().to_string()]).unwrap();
    let mode = PlanMode::Apply { hash: PlanHash::parse(&hash('a')).unwrap(), approved_by: Some("ann".into()) };
    assert_eq!(launch.request.unwrap().plan, Some(mode));
}

#[test]
fn proposal_and_its_run_have_the_same_binding_and_key() {
    let proposal = guarded(&json!({ "guarded": true }), &json!({}), "preview", &json!({ "propose": true }));
    let proposed = spec(&proposal).plan.unwrap();
    assert_eq!(proposed.approved, None);
    let run = guarded(&approved(), &json!({ names::APPROVE: hash('a') }), "up", &json!({ "plan": hash('a') }));
    let applied = spec(&run).plan.unwrap();
    assert_eq!((&proposed.key, &proposed.binding), (&applied.key, &applied.binding));
    // A flag that the proposal did not have.
    let ours = json!({ "plan": hash('a'), "expectNoRefreshChanges": true });
    let other = guarded(&approved(), &json!({ names::APPROVE: hash('a') }), "up", &ours);
    assert_ne!(spec(&other).plan.unwrap().binding, applied.binding);
}

/// A guarded Stack that is being deleted.
fn deleted(plan: &Value, annotations: &Value, ours: &Value) -> World {
    let metadata =
        json!({ "annotations": annotations, "deletionTimestamp": "1970-01-01T00:00:00Z", "finalizers": [names::FINALIZER] });
    with_metadata(&metadata, plan, "destroy", ours)
}

#[test]
fn destroy_is_proposed_without_an_approval_and_runs_with_one() {
    let ours = json!({ "propose": true, "previewOnly": true });
    let proposal = deleted(&json!({ "guarded": true }), &json!({}), &ours);
    let proposed = spec(&proposal);
    assert!(proposed.operation == Operation::Destroy && proposed.preview_only && proposed.is_preview());
    // The claim is not that of a drift check, which another run may stop.
    assert!(!proposal.cluster().iter().any(|object| object["metadata"]["annotations"][names::DRIFT_CHECK] == "true"));
    let plan = driftless_core::merge(approved(), &json!({ "operation": "destroy" }));
    let approve = json!({ names::APPROVE: hash('a') });
    let run = deleted(&plan, &approve, &json!({ "plan": hash('a') }));
    let applied = spec(&run);
    assert!(applied.operation == Operation::Destroy && !applied.is_preview());
    let [proposed, applied] = [proposed, applied].map(|spec| spec.plan.unwrap());
    assert_eq!((&proposed.key, &proposed.binding, proposed.approved), (&applied.key, &applied.binding, None));
    assert_eq!(applied.approved, PlanHash::parse(&hash('a')));
    for (name, plan, annotations, ours) in [
        ("plan of an update", approved(), approve.clone(), json!({ "plan": hash('a') })),
        ("no approval", plan.clone(), json!({}), json!({ "plan": hash('a') })),
        ("no plan", plan.clone(), approve.clone(), json!({})),
        ("word", plan.clone(), json!({ names::APPROVE: "destroy" }), json!({})),
        ("no preview", plan.clone(), approve.clone(), json!({ "propose": true })),
    ] {
        let world = deleted(&plan, &annotations, &ours);
        assert!(world.live_tasks().is_empty(), "{name}");
        assert!(refused(&world, "u").contains("requires approvals"), "{name}");
    }
    // A proposal applies nothing, whatever else its Update says.
    let both = driftless_core::merge(ours, &json!({ "plan": hash('a') }));
    assert_eq!(spec(&deleted(&plan, &approve, &both)).plan.unwrap().approved, None);
}

#[test]
fn proposal_without_a_stack_destroys_nothing() {
    let world = quiet();
    workspace(&world, &project());
    let ours = json!({ "propose": true, "previewOnly": true, "workspace": project() });
    by_hand(&world, "u", &json!({ "type": "destroy", "stackName": "dev", "driftless": ours }));
    reconcile(&world, &hint("u"));
    // The runner refuses that.
    let spec = spec(&world);
    assert!(spec.preview_only && spec.is_preview() && spec.plan.is_none());
}

#[test]
fn run_without_the_approved_plan_is_abandoned() {
    let approve = json!({ names::APPROVE: hash('a') });
    let plan = json!({ "plan": hash('a') });
    let with = |field: &str, value: Value| driftless_core::merge(approved(), &json!({ field: value }));
    for (name, status, annotations, operation, ours) in [
        ("no plan", approved(), approve.clone(), "up", json!({})),
        ("another plan", approved(), approve.clone(), "up", json!({ "plan": hash('b') })),
        ("no approval", approved(), json!({}), "up", plan.clone()),
        ("approval of another plan", approved(), json!({ names::APPROVE: hash('b') }), "up", plan.clone()),
        ("proposed only", with("state", json!("Proposed")), approve.clone(), "up", plan.clone()),
        ("applied before", with("state", json!("Applied")), approve.clone(), "up", plan.clone()),
        ("spent", with("spent", json!(hash('a'))), approve.clone(), "up", plan.clone()),
        ("expired", with("expiresAt", json!("1969-12-31T00:00:00Z")), approve.clone(), "up", plan.clone()),
        ("rejected", approved(), json!({ names::APPROVE: hash('a'), names::REJECT: hash('a') }), "up", plan.clone()),
        ("destroy", approved(), approve.clone(), "destroy", json!({})),
        ("refresh", approved(), approve.clone(), "refresh", json!({})),
        ("unreadable policy", approved(), json!({ names::APPROVAL: "on", names::APPROVE: hash('a') }), "up", plan.clone()),
        ("annotation removed", json!({ "guarded": true }), json!({ names::APPROVAL: null }), "up", json!({})),
    ] {
        let world = guarded(&status, &annotations, operation, &ours);
        assert!(world.live_tasks().is_empty(), "{name}");
        let words = refused(&world, "u");
        assert!(words.contains("requires approvals"), "{name}: {words}");
    }
    // An Update with another text than a hash is no Update of the Stack.
    let world = guarded(&approved(), &approve, "up", &json!({ "plan": "aaaaaaa" }));
    assert!(world.live_tasks().is_empty());
}

#[test]
fn update_by_hand_of_a_guarded_pulumi_stack_waits() {
    for (operation, stack, starts) in [
        ("up", "dev", false),
        ("destroy", "dev", false),
        ("refresh", "dev", false),
        ("preview", "dev", true),
        ("up", "prod", true),
    ] {
        let world = quiet();
        workspace(&world, &project());
        let annotations = json!({ names::APPROVAL: "unless delete" });
        let guarded = json!({ "metadata": { "annotations": annotations }, "spec": { "stack": "acme/dev" } });
        insert(&world, &key("Stack", "n", "s"), &guarded);
        by_hand(&world, "u", &json!({ "type": operation, "stackName": stack }));
        reconcile(&world, &hint("u"));
        assert_eq!(world.live_tasks().len(), usize::from(starts), "{operation} {stack}");
        if !starts {
            let (reason, words) = waits(&world, "u");
            assert!(reason == "ApprovalRequired" && words.contains("Stack \"s\" requires approvals"), "{reason}: {words}");
        }
    }
}

#[test]
fn update_by_hand_waits_where_the_cluster_asks_for_plans() {
    let policy = |env: &str| {
        json!({
            "apiVersion": "driftless.dev/v1alpha1", "kind": "PlanPolicy", "metadata": { "name": "prod" },
            "spec": { "namespaceSelector": { "matchLabels": { "env": env } } },
        })
    };
    let namespace = |annotations: &Value| {
        let metadata = json!({ "name": "n", "labels": { "env": "prod" }, "annotations": annotations });
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
    };
    for (object, annotations, operation, words) in [
        (policy("prod"), json!({}), "up", "PlanPolicy \"prod\" asks for a plan"),
        (policy("test"), json!({}), "up", ""),
        (policy("prod"), json!({}), "preview", ""),
        (
            policy("test"),
            json!({ names::APPROVAL: "required" }),
            "destroy",
            "annotation driftless.dev/approval of Namespace \"n\" asks",
        ),
    ] {
        let world = quiet();
        workspace(&world, &project());
        world.insert(object);
        world.insert(namespace(&annotations));
        by_hand(&world, "u", &json!({ "type": operation, "stackName": "dev" }));
        reconcile(&world, &hint("u"));
        assert_eq!(world.live_tasks().is_empty(), !words.is_empty(), "{operation} {annotations}");
        if !words.is_empty() {
            let (reason, message) = waits(&world, "u");
            assert!(reason == "ApprovalRequired" && message.contains(words), "{reason}: {message}");
        }
    }
}
