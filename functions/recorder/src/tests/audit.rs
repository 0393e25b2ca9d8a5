//! The audit records of runs.

use driftless_contract::StackId;

use super::*;

fn records(world: &World) -> Vec<(String, Value)> {
    let objects = world.objects();
    let records = objects.iter().filter(|(key, _)| key.starts_with("audit/"));
    records.map(|(key, content)| (key.clone(), serde_json::from_slice(content).unwrap())).collect()
}

/// An Update that a user created with kubectl and a function wrote later.
fn created_by_hand() -> Value {
    let manager = |name: &str, time: &str, subresource: Option<&str>| json!({ "manager": name, "operation": "Update", "time": time, "subresource": subresource });
    json!({
        "creationTimestamp": "2026-11-26T12:00:00Z",
        "managedFields": [
            manager("driftless-recorder", "2026-11-26T11:59:00Z", Some("status")),
            manager("driftless-launcher", "2026-11-26T12:01:00Z", None),
            manager("kubectl-create", "2026-11-26T12:00:00Z", None),
        ],
    })
}

#[test]
fn audit_record_names_requester_run_and_end_without_values() {
    let world = world(&created_by_hand(), &json!({}));
    let key = format!("{}launch", keys::run(CLUSTER, &"uid".into()));
    let launch = Launch::parse(&world.objects()[&key]).unwrap();
    let ours =
        json!({ "commit": "main@sha1:00", "stackGeneration": 7, "reconcileRequest": "now", "tree": { "digest": "sha256:00" } });
    let spec = json!({ "type": "up", "target": ["urn:a"], "message": "canary", "driftless": ours });
    let request = RunRequest { spec, stack: None, limits: RunLimits::default(), not_secret: Vec::new(), plan: None };
    put(&world, &key, &to_json(&Launch { request: Some(request), ..launch }));
    let verdict = Verdict::Failed { phase: Phase::Run, reason: FailureReason::Unknown, message: "canary".into() };
    let changes = BTreeMap::from([("create".to_owned(), 2)]);
    let outputs = Some(BTreeMap::from([("a".to_owned(), OutputValue { value: json!("canary"), secret: false })]));
    report(&world, &RunResult { verdict, changes, outputs, ..succeeded(&world) });
    reconcile(&world);
    let [(key, record)] = &records(&world)[..] else { panic!("{:?}", records(&world)) };
    assert!(key.starts_with(&format!("audit/{CLUSTER}/n/")) && key.ends_with("Z-u-uid"), "{key}");
    let expected = json!({
        "version": 1, "requestedBy": "kubectl-create", "requestedAt": "2026-11-26T12:00:00Z", "operation": "up", "targets": ["urn:a"],
        "commit": "main@sha1:00", "digest": "sha256:00", "stackGeneration": 7, "reconcileRequest": "now", "preview": false,
        "task": "arn:aws:ecs:r:1:task/c/t", "outcome": "Unknown", "changes": { "create": 2 },
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(record[field], *value, "{field}");
    }
    assert!(!record.to_string().contains("canary"), "{record}");
}

#[test]
fn run_of_a_stack_names_the_requester_of_the_stack_and_no_other_run_can() {
    for (stack, requester) in [(true, "kustomize-controller"), (false, "kubectl-create")] {
        let world = world(&created_by_hand(), &json!({}));
        let key = format!("{}launch", keys::run(CLUSTER, &"uid".into()));
        let launch = Launch::parse(&world.objects()[&key]).unwrap();
        let spec = json!({ "type": "up", "driftless": { "requestedBy": "kustomize-controller" } });
        let stack = stack.then(|| StackId { namespace: "n".into(), uid: "stack".into() });
        let request = RunRequest { spec, stack, limits: RunLimits::default(), not_secret: Vec::new(), plan: None };
        put(&world, &key, &to_json(&Launch { request: Some(request), ..launch }));
        report(&world, &succeeded(&world));
        reconcile(&world);
        let [(_, record)] = &records(&world)[..] else { panic!("{:?}", records(&world)) };
        assert_eq!(record["requestedBy"], requester);
    }
}

#[test]
fn each_run_has_one_record_after_a_crash_before_any_call() {
    for calls in 0..60 {
        let world = world(&of_stack(), &json!({}));
        report(&world, &succeeded(&world));
        world.crash_before_call(calls);
        let crashed = handled(&world).is_none();
        if crashed {
            reconcile(&world);
        }
        let [(_, record)] = &records(&world)[..] else { panic!("after a crash before call {calls}: {:?}", records(&world)) };
        assert_eq!(record["outcome"], "succeeded");
        if !crashed {
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn abandoned_run_has_a_record_without_a_task() {
    let world = world(&of_stack(), &json!({}));
    let closed = Owner { version: VERSION, task: None, refused: None, at: world.now() };
    put(&world, &format!("{}owner", keys::run(CLUSTER, &"uid".into())), &to_json(&closed));
    reconcile(&world);
    let [(_, record)] = &records(&world)[..] else { panic!("{:?}", records(&world)) };
    assert_eq!((&record["outcome"], &record["task"]), (&json!("aborted"), &Value::Null));
}
