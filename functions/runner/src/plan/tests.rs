//! What makes another plan, and what does not. The documents have the form that Pulumi 3.259.0
//! writes.

use driftless_contract::ChangeKind;
use serde_json::Value;

use super::*;

const STACK: &str = "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev";
const A: &str = "urn:pulumi:dev::p::world:index:Object::a";
const B: &str = "urn:pulumi:dev::p::world:index:Object::b";
const PROVIDER: &str = "urn:pulumi:dev::p::pulumi:providers:world::default::id-1";
const UNKNOWN: &str = "04da6b54-80e4-46f7-96ec-b56ff0331ba9";

/// What one preview prints.
#[derive(Clone)]
struct Printed {
    events: Vec<Value>,
    digest: Value,
    plan: Value,
}

/// The preview of a program whose resource `a` is updated, and whose secret is `canary`.
fn printed() -> Printed {
    let state = |content: &str| {
        json!({
            "type": "world:index:Object", "urn": A, "custom": true, "id": "a", "parent": STACK, "provider": PROVIDER,
            "inputs": { "content": content, "secret": { "4dabf18193072939515e22adb298388d": "1b", "ciphertext": "[secret]" } },
        })
    };
    let stack = json!({ "type": "pulumi:pulumi:Stack", "urn": STACK, "id": "", "parent": "", "inputs": {}, "provider": "" });
    let step = |name: &str, operation: &str, urn: &str, kind: &str, old: &Value, new: &Value| {
        let metadata =
            json!({ "op": operation, "urn": urn, "type": kind, "old": old, "new": new, "detailedDiff": null, "logical": true });
        json!({ "sequence": 1, "timestamp": 1, name: { "metadata": metadata, "planning": true } })
    };
    let mut update = step("resourcePreEvent", "update", A, "world:index:Object", &state("v1"), &state("v2"));
    update["resourcePreEvent"]["metadata"]["detailedDiff"] = json!({ "content": { "diffKind": "update", "inputDiff": false } });
    update["resourcePreEvent"]["metadata"]["diffs"] = json!(["content"]);
    let same = step("resourcePreEvent", "same", STACK, "pulumi:pulumi:Stack", &stack, &stack);
    let full = |urn: &str, protect: bool| {
        let created = format!("2026-11-26T12:00:{:02}Z", urn.len() % 60);
        json!({
            "urn": urn, "custom": true, "type": "t", "inputs": {}, "protect": protect, "created": created, "sourcePosition": "p#1",
            "dependencies": [STACK, B], "propertyDependencies": { "content": [], "secret": [B] },
        })
    };
    let goal = json!({
        "type": "world:index:Object", "name": "a", "custom": true, "parent": STACK, "protect": false, "provider": PROVIDER,
        "inputDiff": {
            "updates": { "content": "v2" },
            "adds": { "secret": { "4dabf18193072939515e22adb298388d": "1b", "plaintext": "\"canary\"" } },
        },
        "outputDiff": {}, "dependencies": [STACK, B], "customTimeouts": {},
    });
    let of_stack = json!({ "type": "pulumi:pulumi:Stack", "name": "p-dev", "custom": false, "inputDiff": {}, "outputDiff": {}, "protect": false });
    Printed {
        events: vec![json!({ "sequence": 0, "preludeEvent": { "config": {} } }), same, update],
        digest: json!({ "steps": [
            { "op": "same", "urn": STACK, "oldState": full(STACK, false), "newState": full(STACK, false) },
            { "op": "update", "urn": A, "oldState": full(A, false), "newState": full(A, false) },
        ] }),
        plan: json!({
            "manifest": { "time": "t" }, "config": {},
            "resourcePlans": {
                STACK: { "goal": of_stack, "steps": ["same"], "state": {}, "seed": "s1" },
                A: { "goal": goal, "steps": ["update"], "state": {}, "seed": "s2" },
            },
        }),
    }
}

impl Printed {
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut printed = self.clone();
        change(&mut printed);
        printed
    }

    fn read(&self) -> Preview {
        let lines: Vec<String> = self.events.iter().map(Value::to_string).collect();
        let mut preview = Preview::default();
        preview.read_events(lines.join("\n").as_bytes()).unwrap();
        preview.read_states(self.digest.to_string().as_bytes()).unwrap();
        preview.read_plan(self.plan.to_string().as_bytes()).unwrap();
        preview
    }

    /// The metadata of the update.
    fn update(&mut self) -> &mut Value {
        &mut self.events[2]["resourcePreEvent"]["metadata"]
    }

    fn goal(&mut self) -> &mut Value {
        &mut self.plan["resourcePlans"][A]["goal"]
    }

    fn option(&mut self, name: &str, value: Value) {
        self.digest["steps"][1]["newState"][name] = value;
    }
}

fn request() -> PlanRequest {
    let hash = PlanHash::parse(&"b".repeat(64)).unwrap();
    PlanRequest { key: "0".repeat(64), binding: hash, tree: Some("tree-1".into()), approved: None, packs: Vec::new() }
}

fn state(text: &str) -> State {
    State::parse(text.as_bytes()).unwrap()
}

const EMPTY: &str = r#"{"deployment":{}}"#;

fn basis<'a>(request: &'a PlanRequest, pulumi: &str) -> Basis<'a> {
    Basis { request, key: Key::parse(&request.key).unwrap(), operation: Operation::Up, pulumi: pulumi.into() }
}

fn plan_of(preview: &Preview) -> PlannedChanges {
    planned(&basis(&request(), "v3"), preview, &state(EMPTY), &Mask::default(), Timestamp::UNIX_EPOCH)
}

fn plan(printed: &Printed) -> PlannedChanges {
    plan_of(&printed.read())
}

#[test]
fn plan_names_what_changes_and_has_no_value() {
    let plan = plan(&printed());
    assert_eq!((plan.operation, plan.counts.clone()), (Operation::Up, [(ChangeKind::Update, 1)].into()));
    let [change] = &plan.changes.first[..] else { panic!("{:?}", plan.changes) };
    assert_eq!((change.urn.as_str(), change.kind, &change.paths[..]), (A, ChangeKind::Update, &["content".to_owned()][..]));
    assert_eq!(plan.parts.tree, None);
    let text = serde_json::to_string(&plan).unwrap();
    assert!(!text.contains("canary") && !text.contains("v2"), "{text}");
}

#[test]
fn equal_previews_have_equal_hashes() {
    let printed = printed();
    let expected = plan(&printed).hash;
    let variants = [
        printed.with(|printed| printed.events.swap(1, 2)),
        printed.with(|printed| printed.events[2]["timestamp"] = json!(99)),
        printed.with(|printed| printed.events.push(json!({ "sequence": 9, "eventOfTomorrow": {} }))),
        printed.with(|printed| printed.digest["steps"][1]["newState"]["created"] = json!("later")),
        printed.with(|printed| printed.digest["steps"][1]["newState"]["sourcePosition"] = json!("p#2")),
        printed.with(|printed| printed.digest["steps"][1]["newState"]["dependencies"] = json!([B, STACK])),
        printed.with(|printed| printed.digest["steps"][1]["newState"]["propertyDependencies"] = json!({ "secret": [B] })),
        printed.with(|printed| printed.plan["manifest"] = json!({ "time": "later" })),
        printed.with(|printed| printed.plan["resourcePlans"][A]["seed"] = json!("s3")),
        printed.with(|printed| printed.goal()["dependencies"] = json!([B, STACK])),
    ];
    for (number, variant) in variants.iter().enumerate() {
        assert_eq!(plan(variant).hash, expected, "{number}");
    }
}

#[test]
fn each_change_of_a_preview_makes_another_hash() {
    let printed = printed();
    let expected = plan(&printed).hash;
    let secret = |value: &str| json!({ "4dabf18193072939515e22adb298388d": "1b", "plaintext": format!("{value:?}") });
    let variants: Vec<(&str, Printed)> = vec![
        ("input", printed.with(|printed| printed.goal()["inputDiff"]["updates"]["content"] = json!("v3"))),
        ("secret", printed.with(|printed| printed.goal()["inputDiff"]["adds"]["secret"] = secret("other"))),
        ("secret to plain", printed.with(|printed| printed.goal()["inputDiff"]["adds"]["secret"] = json!("canary"))),
        ("deleted input", printed.with(|printed| printed.goal()["inputDiff"]["deletes"] = json!(["x"]))),
        ("planned steps", printed.with(|printed| printed.plan["resourcePlans"][A]["steps"] = json!(["same"]))),
        ("step", printed.with(|printed| printed.update()["op"] = json!("replace"))),
        ("keys of a replace", printed.with(|printed| printed.update()["keys"] = json!(["path"]))),
        ("diff", printed.with(|printed| printed.update()["diffs"] = json!(["content", "x"]))),
        ("kind of diff", printed.with(|printed| printed.update()["detailedDiff"]["content"]["diffKind"] = json!("add"))),
        ("protect", printed.with(|printed| printed.update()["new"]["protect"] = json!(true))),
        ("was protected", printed.with(|printed| printed.update()["old"]["protect"] = json!(true))),
        ("taint", printed.with(|printed| printed.update()["old"]["taint"] = json!(true))),
        ("retainOnDelete", printed.with(|printed| printed.update()["new"]["retainOnDelete"] = json!(true))),
        ("parent", printed.with(|printed| printed.update()["new"]["parent"] = json!(B))),
        ("provider", printed.with(|printed| printed.update()["new"]["provider"] = json!(PROVIDER.replace("id-1", "id-2")))),
        ("provider of the goal", printed.with(|printed| printed.goal()["provider"] = json!("other::id"))),
        ("deletedWith", printed.with(|printed| printed.option("deletedWith", json!(B)))),
        ("replaceOnChanges", printed.with(|printed| printed.option("replaceOnChanges", json!(["content"])))),
        ("ignoreChanges", printed.with(|printed| printed.option("ignoreChanges", json!(["content"])))),
        ("hideDiffs", printed.with(|printed| printed.option("hideDiff", json!(["content"])))),
        ("dependsOn", printed.with(|printed| printed.goal()["dependencies"] = json!([STACK]))),
        ("deleteBeforeReplace", printed.with(|printed| printed.goal()["deleteBeforeReplace"] = json!(true))),
        ("timeouts", printed.with(|printed| printed.goal()["customTimeouts"] = json!({ "create": 60 }))),
        ("aliases", printed.with(|printed| printed.goal()["structuredAliases"] = json!([{ "name": "x" }]))),
        ("additionalSecretOutputs", printed.with(|printed| printed.goal()["additionalSecretOutputs"] = json!(["content"]))),
        ("import", printed.with(|printed| printed.goal()["id"] = json!("a"))),
        (
            "output",
            printed.with(|printed| printed.plan["resourcePlans"][STACK]["goal"]["outputDiff"] = json!({ "adds": { "o": 1 } })),
        ),
        (
            "resource",
            printed
                .with(|printed| printed.events.push(json!({ "resourcePreEvent": { "metadata": { "op": "create", "urn": B } } }))),
        ),
        ("unknown", printed.with(|printed| printed.goal()["inputDiff"]["updates"]["content"] = json!(UNKNOWN))),
    ];
    let mut seen = std::collections::BTreeSet::from([expected]);
    for (what, variant) in &variants {
        assert!(seen.insert(plan(variant).hash), "{what}");
    }
}

#[test]
fn hash_covers_state_flags_version_and_key() {
    let preview = printed().read();
    let of = |request: &PlanRequest, export: &str, pulumi: &str| {
        planned(&basis(request, pulumi), &preview, &state(export), &Mask::default(), Timestamp::UNIX_EPOCH).hash
    };
    let (one, expected) = (request(), of(&request(), EMPTY, "v3"));
    assert_eq!(of(&one, EMPTY, "v3"), expected);
    // Nothing in the plan depends on more of the tree than Pulumi has seen.
    assert_eq!(of(&PlanRequest { tree: Some("tree-2".into()), ..one.clone() }, EMPTY, "v3"), expected);
    assert_eq!(of(&PlanRequest { approved: Some(expected.clone()), ..one.clone() }, EMPTY, "v3"), expected);
    let binding = PlanHash::parse(&"c".repeat(64)).unwrap();
    for (what, hash) in [
        ("state", of(&one, r#"{"deployment":{"resources":[{"urn":"urn:a"}]}}"#, "v3")),
        ("version", of(&one, EMPTY, "v4")),
        ("binding", of(&PlanRequest { binding, ..one.clone() }, EMPTY, "v3")),
        ("key", of(&PlanRequest { key: "1".repeat(64), ..one.clone() }, EMPTY, "v3")),
    ] {
        assert_ne!(hash, expected, "{what}");
    }
}

#[test]
fn tree_counts_where_the_plan_leaves_values_open() {
    let open = printed().with(|printed| printed.goal()["inputDiff"]["updates"]["content"] = json!({ "x": [UNKNOWN] }));
    let plan = plan(&open);
    assert_eq!(plan.parts.tree.as_deref(), Some("tree-1"));
    let [leaf] = &plan.unknown.first[..] else { panic!("{:?}", plan.unknown) };
    assert_eq!((leaf.urn.as_str(), leaf.path.as_str()), (A, "content.x[0]"));
    // The secret is not known yet.
    let secret = json!({ "4dabf18193072939515e22adb298388d": "1b", "plaintext": format!("\"{UNKNOWN}\"") });
    let open = printed().with(|printed| printed.goal()["inputDiff"]["adds"]["secret"] = secret);
    assert_eq!(self::plan(&open).unknown.first[0].path, "secret");
}

#[test]
fn generated_values_are_named_and_left_out() {
    let with =
        |name: &str| printed().with(|printed| printed.goal()["inputDiff"]["adds"]["name"] = json!({ "a": [name], "b": 1 }));
    let settled = |one: &str, two: &str| {
        let mut preview = with(one).read();
        assert!(preview.settle(&with(two).read()).is_ok());
        plan_of(&preview)
    };
    let plan = settled("bucket-1", "bucket-2");
    assert_eq!(plan.hash, settled("bucket-3", "bucket-4").hash);
    let [leaf] = &plan.unstable.first[..] else { panic!("{:?}", plan.unstable) };
    assert_eq!((leaf.urn.as_str(), leaf.path.as_str(), plan.unstable.count), (A, "name.a[0]", 1));
    assert_eq!(plan.parts.tree.as_deref(), Some("tree-1"));
    let stable = settled("bucket-1", "bucket-1");
    assert_eq!((stable.unstable.count, stable.parts.tree.is_none()), (0, true));
    assert_ne!(stable.hash, plan.hash);
}

#[test]
fn previews_with_other_steps_make_no_plan() {
    let one = printed();
    for other in [
        one.with(|printed| printed.update()["op"] = json!("replace")),
        one.with(|printed| printed.option("protect", json!(true))),
        one.with(|printed| printed.events.push(json!({ "resourcePreEvent": { "metadata": { "op": "create", "urn": A } } }))),
    ] {
        assert_eq!(one.read().settle(&other.read()).err().unwrap().urns, [A]);
    }
}

#[test]
fn changes_have_the_kind_that_does_most() {
    let kind = |change: &dyn Fn(&mut Printed)| {
        plan(&printed().with(|printed| change(printed))).changes.first.first().map(|change| change.kind)
    };
    let step = |operation: &'static str| {
        move |printed: &mut Printed| {
            printed.update()["op"] = json!(operation);
            printed.plan["resourcePlans"][A]["steps"] = json!([operation]);
        }
    };
    for (operation, expected) in [
        ("create", Some(ChangeKind::Create)),
        ("import", Some(ChangeKind::Import)),
        ("update", Some(ChangeKind::Update)),
        ("delete", Some(ChangeKind::Delete)),
        ("delete-replaced", Some(ChangeKind::Delete)),
        ("replace", Some(ChangeKind::Replace)),
        ("create-replacement", Some(ChangeKind::Replace)),
        ("import-replacement", Some(ChangeKind::Replace)),
        ("step-of-tomorrow", Some(ChangeKind::Replace)),
        ("same", None),
        ("read", None),
        ("refresh", None),
    ] {
        assert_eq!(kind(&step(operation)), expected, "{operation}");
    }
    let forgotten = |printed: &mut Printed| {
        step("delete")(printed);
        printed.update()["old"]["retainOnDelete"] = json!(true);
    };
    assert_eq!(kind(&forgotten), Some(ChangeKind::Forget));
    let unprotected = |printed: &mut Printed| {
        step("same")(printed);
        printed.digest["steps"][1]["oldState"]["protect"] = json!(true);
    };
    assert_eq!(kind(&unprotected), Some(ChangeKind::Options));
    let other_provider = |printed: &mut Printed| {
        step("same")(printed);
        printed.update()["new"]["provider"] = json!(PROVIDER.replace("default", "default_2"));
    };
    assert_eq!(kind(&other_provider), Some(ChangeKind::Options));
    let output = |printed: &mut Printed| {
        step("same")(printed);
        printed.plan["resourcePlans"][STACK]["goal"]["outputDiff"] = json!({ "deletes": ["o"] });
    };
    assert_eq!(kind(&output), Some(ChangeKind::Outputs));
    let drift = |printed: &mut Printed| {
        step("refresh")(printed);
        let mut found = printed.events[2].clone();
        found["resOutputsEvent"] = found["resourcePreEvent"].take();
        printed.events.push(found);
    };
    assert_eq!(kind(&drift), Some(ChangeKind::Refresh));
    let pending = |printed: &mut Printed| {
        step("same")(printed);
        printed.events.push(json!({ "resourcePreEvent": { "metadata": { "op": "delete-replaced", "urn": A } } }));
    };
    assert_eq!(kind(&pending), Some(ChangeKind::Delete));
}

#[test]
fn live_value_that_a_refresh_found_makes_another_hash() {
    let found = |content: &str| {
        printed().with(|printed| {
            printed.update()["op"] = json!("refresh");
            let mut event = printed.events[2].clone();
            event["resOutputsEvent"] = event["resourcePreEvent"].take();
            event["resOutputsEvent"]["metadata"]["new"]["inputs"]["content"] = json!(content);
            printed.events.push(event);
        })
    };
    assert_eq!(plan(&found("v8")).hash, plan(&found("v8")).hash);
    assert_ne!(plan(&found("v8")).hash, plan(&found("v9")).hash);
}

#[test]
fn names_in_a_plan_are_masked() {
    let mask = Mask::default();
    mask.add_text("canary-name");
    let preview = printed()
        .with(|printed| {
            printed.update()["detailedDiff"] = json!({ "tags.canary-name": { "diffKind": "update" } });
            printed.update()["keys"] = json!(["canary-name"]);
            printed.goal()["inputDiff"]["adds"]["canary-name"] = json!(UNKNOWN);
        })
        .read();
    let plan = planned(&basis(&request(), "v3"), &preview, &state(EMPTY), &mask, Timestamp::UNIX_EPOCH);
    let text = serde_json::to_string(&plan).unwrap();
    assert!(!text.contains("canary") && text.contains("tags.[secret]"), "{text}");
}

#[test]
fn state_is_equal_whatever_pulumi_rewrites() {
    let key = Key::parse(&"0".repeat(64)).unwrap();
    let digest = |export: &Value| state(&export.to_string()).digest(&key);
    let resource = |urn: &str, at: &str| {
        json!({
            "urn": urn, "id": "i", "inputs": { "s": { "4dabf18193072939515e22adb298388d": "1b", "plaintext": "\"canary\"" } },
            "created": at, "modified": at, "dependencies": ["b", "a"], "propertyDependencies": { "x": [], "y": ["b"] },
        })
    };
    let export =
        |resources: Vec<Value>| json!({ "version": 3, "deployment": { "manifest": { "time": "t" }, "resources": resources } });
    let one = export(vec![resource("urn:a", "t1"), resource("urn:b", "t1")]);
    let expected = digest(&one);
    let mut other = export(vec![resource("urn:b", "t2"), resource("urn:a", "t2")]);
    other["deployment"]["manifest"]["time"] = json!("later");
    other["deployment"]["pending_operations"] = json!([]);
    other["deployment"]["resources"][0]["dependencies"] = json!(["a", "b"]);
    other["deployment"]["resources"][0]["propertyDependencies"] = json!({ "y": ["b"] });
    assert_eq!(digest(&other), expected);
    for (path, value) in [
        ("/inputs/s/plaintext", json!("\"other\"")),
        ("/id", json!("j")),
        ("/urn", json!("urn:c")),
        ("/dependencies", json!(["a"])),
        ("/dependencies/0", json!("c")),
    ] {
        let mut other = one.clone();
        *other["deployment"]["resources"][0].pointer_mut(path).unwrap() = value;
        assert_ne!(digest(&other), expected, "{path}");
    }
    for name in ["protect", "taint", "delete"] {
        let mut other = one.clone();
        other["deployment"]["resources"][0][name] = json!(true);
        assert_ne!(digest(&other), expected, "{name}");
    }
    let mut other = one;
    other["deployment"]["pending_operations"] = json!([{ "resource": { "urn": "urn:a" }, "type": "creating" }]);
    assert_ne!(digest(&other), expected);
    assert!(State::parse(b"{}").is_err() && State::parse(b"").is_err());
}

#[test]
fn violation_names_properties_and_shows_no_value() {
    let violations = printed().read().violations();
    let message = format!(
        "resource {A} violates plan: properties changed: ++secret[{{&{{{{OLDSECRET}}}}}}!={{&{{{{[secret]}}}}}}], ~~content[{{v2, ++hidden[}}!={{\nOLDSECRET}}]"
    );
    let shown = violations.without_values(&message, A);
    assert_eq!(shown, format!("resource {A} violates plan: properties changed: content, secret"));
    assert!(is_violation(&shown));
    let message = format!("resource {A} violates plan: importID changed (expected OLDSECRET)");
    assert_eq!(violations.without_values(&message, ""), format!("resource {A} violates plan: importID changed"));
    let other = "create is not allowed by the plan: no steps were expected for this resource";
    assert!(violations.without_values(other, A) == other && is_violation(other) && !is_violation("update failed"));
}
