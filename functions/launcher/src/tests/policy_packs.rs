//! The policy packs that a run is held to.

use driftless_contract::{FetchFailure, FetchOutcome, PlanRequest};
use driftless_source::{Manifest, Tree};

use super::*;

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

fn source() -> ObjectKey {
    ObjectKey { api_version: "source.toolkit.fluxcd.io/v1".into(), ..key("OCIRepository", "platform", "rules") }
}

/// A world with a policy that names a pack by that digest and selects namespaces with `env: prod`,
/// of which the Stack's is one, and an Update that makes a plan.
fn world(operation: &str, ours: &Value, digest: &str) -> World {
    let world = quiet();
    of_stack(&world, "n", operation, &json!({}));
    let more = json!({ "status": { "driftless": { "plan": { "governed": true } } } });
    world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &more));
    world.insert(driftless_core::merge(
        world.object(&key("Update", "n", "u")).unwrap(),
        &json!({ "spec": { "driftless": ours } }),
    ));
    world.insert(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n", "labels": { "env": "prod" } } }));
    for (name, env) in [("prod", "prod"), ("test", "test")] {
        let reference = json!({ "kind": "OCIRepository", "namespace": "platform", "name": "rules" });
        let pack = json!({ "name": "aws", "sourceRef": reference, "digest": digest, "dir": "aws" });
        world.insert(json!({
            "apiVersion": "driftless.dev/v1alpha1", "kind": "PlanPolicy", "metadata": { "name": name },
            "spec": { "namespaceSelector": { "matchLabels": { "env": env } }, "policyPacks": [pack] },
        }));
    }
    world
}

/// Stores content of the source under a digest.
fn store(world: &World, digest: &str, text: &str) {
    let mut pack = Vec::new();
    let tree = Tree::from_files([("aws/PulumiPolicy.yaml", text.as_bytes())], &mut pack).unwrap();
    let folder = keys::tree(&source(), &digest.into());
    for (key, content) in [(folder.pack(), pack), (folder.manifest(), Manifest::of(&tree).to_bytes())] {
        world.drive(world.put(&key, content)).unwrap().unwrap();
    }
}

fn plan(world: &World) -> PlanRequest {
    spec(world).plan.unwrap()
}

#[test]
fn run_with_too_many_packs_waits() {
    let world = world("preview", &json!({ "propose": true }), &digest('a'));
    store(&world, &digest('a'), "one");
    let pack = |number: usize| {
        let reference = json!({ "kind": "OCIRepository", "namespace": "platform", "name": "rules" });
        json!({ "name": format!("p{number}"), "sourceRef": reference, "digest": digest('a'), "dir": "aws" })
    };
    let more = |packs: usize| {
        world.insert(json!({
            "apiVersion": "driftless.dev/v1alpha1", "kind": "PlanPolicy", "metadata": { "name": "more" },
            "spec": { "policyPacks": (0..packs).map(pack).collect::<Vec<_>>() },
        }));
        reconcile(&world, &hint("u"));
    };
    more(10);
    assert!(world.live_tasks().is_empty());
    let (reason, message) = waits(&world, "u");
    assert_eq!(reason, "PolicyPackUnavailable");
    assert!(message.contains("more than 10 packs"), "{message}");
    more(9);
    assert_eq!(world.live_tasks().len(), 1);
}

#[test]
fn run_that_waited_while_a_policy_was_created_is_abandoned() {
    let created = |seconds: i64| {
        let world = world("up", &json!({}), &digest('a'));
        let at = world.now() - jiff::SignedDuration::from_secs(seconds);
        world.insert(driftless_core::merge(
            world.object(&key("Update", "n", "u")).unwrap(),
            &json!({ "metadata": { "creationTimestamp": at.to_string() } }),
        ));
        let governed = json!({ "status": { "driftless": { "plan": { "governed": null } } } });
        world.insert(driftless_core::merge(world.object(&key("Stack", "n", "s")).unwrap(), &governed));
        reconcile(&world, &hint("u"));
        world
    };
    let world = created(61);
    assert!(world.live_tasks().is_empty());
    assert!(refused(&world, "u").contains("requires approvals"));
    // The reconciler has just read the policies.
    assert_eq!(created(59).live_tasks().len(), 1);
}

#[test]
fn run_gets_the_pack_of_the_digest_and_another_one_is_another_plan() {
    let run = |digit: char, text: &str| {
        let world = world("preview", &json!({ "propose": true }), &digest(digit));
        store(&world, &digest('a'), "one");
        store(&world, &digest('b'), "two");
        reconcile(&world, &hint("u"));
        let files = task_folder(&world);
        assert_eq!(files["policies/0/pack"], text.as_bytes());
        let plan = plan(&world);
        let [pack] = &plan.packs[..] else { panic!("{:?}", plan.packs) };
        assert_eq!(pack.to_string(), "policy pack \"aws\" of PlanPolicy \"prod\"");
        assert_eq!(
            (pack.dir.as_str(), driftless_source::Digest::sha256(&files["policies/0/manifest"]).hex()),
            ("aws", &*pack.manifest_sha256)
        );
        plan.binding
    };
    let (one, again, two) = (run('a', "one"), run('a', "one"), run('b', "two"));
    assert!(one == again && one != two);
}

#[test]
fn destroy_and_refresh_have_no_packs() {
    for operation in ["destroy", "refresh"] {
        let world = world(operation, &json!({ "propose": true, "previewOnly": true }), &digest('a'));
        reconcile(&world, &hint("u"));
        assert!(plan(&world).packs.is_empty(), "{operation}");
    }
}

#[test]
fn run_waits_for_the_content_of_the_digest() {
    let failure = |message: &str| Some(FetchFailure { terminal: true, message: message.into() });
    for (outcome, words) in [
        (None, "it is being fetched"),
        (Some((digest('b'), None)), &*format!("its artifact has the digest {}; correct one of them", digest('b'))),
        (Some((digest('a'), failure("archive is too large"))), "archive is too large"),
        (Some((String::new(), failure("cluster does not serve it"))), "cluster does not serve it"),
    ] {
        let world = world("preview", &json!({ "propose": true }), &digest('a'));
        // Other content of the same source.
        store(&world, &digest('b'), "two");
        if let Some((subject, failure)) = outcome {
            let (at, failures) = (world.now(), u32::from(failure.is_some()));
            let outcome = FetchOutcome { version: VERSION, subject, at, took_seconds: 0, artifact: None, failures, failure };
            world.drive(world.put(&keys::fetch(&source()), to_json(&outcome).into_bytes())).unwrap().unwrap();
        }
        reconcile(&world, &hint("u"));
        let (reason, said) = waits(&world, "u");
        assert_eq!(reason, "PolicyPackUnavailable", "{said}");
        let at = format!("policy pack \"aws\" of PlanPolicy \"prod\": spec.policyPacks.digest is {}", digest('a'));
        assert!(said.starts_with(&at) && said.contains(words), "{said}");
        let fetches = received(&world)
            .iter()
            .filter(|message| matches!(message, Message::Fetch(fetch) if fetch.source == source()))
            .count();
        assert_eq!(fetches, 1);
        assert!(world.live_tasks().is_empty());
    }
}

#[test]
fn policy_that_cannot_be_read_starts_no_run() {
    let world = world("preview", &json!({ "propose": true }), "");
    store(&world, &digest('a'), "one");
    reconcile(&world, &hint("u"));
    let (reason, said) = waits(&world, "u");
    assert!(reason == "PolicyPackUnavailable" && said.contains("spec.policyPacks.digest is \"\"; write ALGORITHM:HEX"), "{said}");
    world.insert(json!({
        "apiVersion": "driftless.dev/v1alpha1", "kind": "PlanPolicy", "metadata": { "name": "prod" },
        "spec": { "policyPacks": [{ "name": "aws" }] },
    }));
    reconcile(&world, &hint("u"));
    let (reason, said) = waits(&world, "u");
    assert!(reason == "PolicyPackUnavailable" && said.starts_with("PlanPolicy \"prod\" cannot be read: missing field"), "{said}");
}
