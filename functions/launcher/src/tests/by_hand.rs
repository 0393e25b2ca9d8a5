//! Updates that a user creates, and the Workspace that they name.

use driftless_api::{Workspace, names};
use driftless_contract::{FetchFailure, FetchOutcome, FetchedArtifact, Operation, Resources};

use super::*;

#[test]
fn update_by_hand_runs_its_workspace_as_of_the_start() {
    let world = quiet();
    workspace(&world, &driftless_core::merge(project(), &json!({ "pulumiLogLevel": 3 })));
    by_hand(&world, "u", &json!({ "type": "refresh", "message": "m" }));
    // Whatever step a launch stops at, the next one continues.
    for call in 0..40 {
        world.crash_before_call(call);
        let _ = world.drive(launcher(&world, &settings()).handle(&hint("u")));
    }
    workspace(&world, &project());
    reconcile(&world, &hint("u"));
    let spec = spec(&world);
    assert_eq!((spec.operation, spec.create, spec.identity), (Operation::Refresh, true, true));
    assert_eq!((spec.log_level, spec.limits), (Some(3), settings().run_limits));
    assert!(identity(&world).cluster.token.ends_with("of n/default for kubernetes"));
    let update = update(&world, "u");
    assert_eq!(update.finalizers(), [names::FINALIZER]);
    let ours = update.status.unwrap().driftless.unwrap();
    let task = world.live_tasks().remove(0).arn;
    assert_eq!((ours.task.as_deref(), ours.log), (Some(task.as_str()), Some(world.log_url(&task))));
    let link = ours.log_link.map(|link| link.url).unwrap_or_default();
    assert!(link.contains(&format!(":{}/out/live-log", task.rsplit('/').next().unwrap())), "{link}");
}

#[test]
fn destroy_by_hand_creates_no_stack() {
    for (operation, creates) in [("destroy", false), ("up", true)] {
        let world = quiet();
        workspace(&world, &project());
        by_hand(&world, "u", &json!({ "type": operation }));
        reconcile(&world, &hint("u"));
        assert_eq!(spec(&world).create, creates, "{operation}");
    }
}

#[test]
fn incomplete_update_by_hand_waits_with_a_message() {
    let no_url = json!({ "git": { "ref": "main" } });
    let git = json!({ "git": { "url": "u", "ref": "main" } });
    let local = json!({ "local": { "dir": "/app" } });
    let tree = json!({ "driftless": { "tree": { "digest": "sha256:1", "source": { "kind": "GitRepository", "name": "g", "apiVersion": "x/v1" } } } });
    let tree_of = |kind: &str, digest: &str| {
        let source = json!({ "kind": kind, "name": "g", "apiVersion": "x/v1" });
        json!({ "driftless": { "tree": { "digest": digest, "source": source } } })
    };
    let long = "a".repeat(2000);
    let sizes = driftless_core::merge(project(), &json!({ "serviceAccountName": "gone" }));
    for (of, reason, words) in [
        (None, "WorkspaceNotFound", "Workspace \"w\" not found"),
        (Some(no_url), "SpecInvalid", "Workspace \"w\": spec.git.url is missing; write the URL"),
        (Some(git), "SourceNotFetched", "Workspace \"w\": fetching spec.git at main"),
        (Some(local), "SpecInvalid", "Workspace \"w\": spec.local has no meaning on Fargate; remove it"),
        (Some(json!({})), "SpecInvalid", "Workspace \"w\": no source; set one of spec.git"),
        (Some(tree), "TreeNotFound", "a new fetch was requested"),
        (Some(tree_of("Kind", &long)), "SpecInvalid", "spec.driftless.tree.digest is \"aaaa"),
        (Some(tree_of("Kind", "../x")), "SpecInvalid", "spec.driftless.tree.digest is \"../x\""),
        (Some(tree_of(&long, "sha256:1")), "SpecInvalid", "spec.driftless.tree.source.kind is \"aaaa"),
        (Some(tree_of("Stack", "sha256:1")), "SpecInvalid", "use the group pulumi.com for Stack"),
        (Some(sizes), "ServiceAccountNotFound", "ServiceAccount \"gone\" not found"),
    ] {
        let world = quiet();
        if let Some(of) = &of {
            workspace(&world, of);
        }
        by_hand(&world, "u", &json!({}));
        reconcile(&world, &hint("u"));
        let (found, said) = waits(&world, "u");
        assert!(found == reason && said.contains(words), "{found}: {said}");
        assert_eq!(said.ends_with("; next try within 1m"), reason != "SpecInvalid", "{said}");
        assert!(world.live_tasks().is_empty() && world.objects().is_empty());
        let fetches = received(&world).into_iter().filter(|message| matches!(message, Message::Fetch(_))).count();
        assert_eq!(fetches, usize::from(matches!(reason, "TreeNotFound" | "SourceNotFetched")));
    }
}

#[test]
fn update_by_hand_with_an_invalid_field_is_refused_at_once() {
    let annotated = |name: &str, word: &str| json!({ "metadata": { "annotations": { name: word } } });
    let own = |workspace: Value, tree: Value| json!({ "driftless": { "workspace": workspace, "tree": tree } });
    let tree =
        |digest: &str, kind: &str| json!({ "digest": digest, "source": { "apiVersion": "x/v1", "kind": kind, "name": "g" } });
    let nameless = json!({ "projectInfo": { "name": "", "runtime": "yaml" } });
    for (spec, more, words) in [
        (own(project(), tree("../x", "Kind")), json!({}), "spec.driftless.tree.digest is \"../x\""),
        (own(project(), tree("sha256:1", "../x")), json!({}), "spec.driftless.tree.source.kind is \"../x\""),
        (own(project(), json!({})), json!({}), "spec.driftless.tree requires source and digest"),
        (
            own(Value::Null, tree("sha256:1", "Kind")),
            json!({}),
            "spec.driftless.workspace is missing; write the spec of a Workspace",
        ),
        (own(json!({}), Value::Null), json!({}), "Workspace has neither a stored source nor projectInfo"),
        (own(nameless, Value::Null), json!({}), "Workspace has neither a stored source nor projectInfo"),
        (own(json!({ "env": 1 }), tree("sha256:1", "Kind")), json!({}), "spec.driftless.workspace: invalid type"),
        (
            own(driftless_core::merge(project(), &json!({ "local": {} })), Value::Null),
            json!({}),
            "spec.driftless.workspace.local has no meaning on Fargate",
        ),
        (
            json!({ "type": "apply" }),
            json!({}),
            "spec.type is \"apply\"; use up, preview, refresh or destroy; this Update does not run",
        ),
        (json!({ "type": null }), json!({}), "spec.type is \"\"; use up"),
        (json!({ "stackName": null }), json!({}), "spec.stackName is missing"),
        (json!({ "workspaceName": null }), json!({}), "spec.workspaceName is missing"),
        (json!({ "ttlAfterCompleted": "soon" }), json!({}), "spec.ttlAfterCompleted is \"soon\"; write a duration such as 24h"),
        (json!({}), annotated(names::MAX_DURATION, "1h-5m"), "is \"1h-5m\"; write a duration"),
        (json!({}), annotated(names::MAX_DURATION, "99999999999999999999h"), "write a duration"),
        (json!({}), annotated(names::MAX_DURATION, "0s"), "write a duration"),
        (json!({}), annotated(names::CAPACITY, "cheap"), "is \"cheap\"; write \"spot\" or \"on-demand\", or remove it"),
    ] {
        // It makes no difference whether its Workspace exists.
        let world = quiet();
        by_hand(&world, "u", &spec);
        let object = world.object(&key("Update", "n", "u")).unwrap();
        insert(&world, &key("Update", "n", "u"), &driftless_core::merge(object, &more));
        reconcile(&world, &hint("u"));
        let refused = refused(&world, "u");
        assert!(refused.contains(words), "{refused}");
        assert!(world.live_tasks().is_empty() && tells_recorder_of(&received(&world), "u"));
    }
}

#[test]
fn outputs_are_not_secret_if_the_stack_says_so() {
    for (kind, expected) in [("Stack", &["a", "b c"][..]), ("Update", &[])] {
        let world = quiet();
        of_stack(&world, "n", "up", &json!({}));
        let name = if kind == "Stack" { "s" } else { "u" };
        let object = world.object(&key(kind, "n", name)).unwrap();
        let annotated = json!({ "metadata": { "annotations": { names::NOT_SECRET: " a,b c,, " } } });
        insert(&world, &key(kind, "n", name), &driftless_core::merge(object, &annotated));
        reconcile(&world, &hint("u"));
        assert_eq!(spec(&world).not_secret, expected, "{kind}");
        // The record stays, whatever the annotation says later.
        let launch = &world.objects()[&format!("{}launch", keys::run(CLUSTER, &"uid-u".into()))];
        assert_eq!(Launch::parse(launch).unwrap().request.unwrap().not_secret, expected);
    }
}

#[test]
fn refused_source_is_an_invalid_spec_for_ten_minutes() {
    let source = json!({ "kind": "Gadget", "name": "g", "apiVersion": "x/v1" });
    let tree = json!({ "driftless": { "tree": { "digest": "sha256:1", "source": source } } });
    for (subject, terminal, minutes, took_seconds, reason) in [
        ("", true, 0, 0, "SpecInvalid"),
        ("sha256:1", true, 9, 0, "SpecInvalid"),
        ("sha256:2", true, 0, 0, "TreeNotFound"),
        ("", false, 0, 0, "TreeNotFound"),
        ("", true, 10, 0, "TreeNotFound"),
        // Its rest ends ten minutes after the fetch began.
        ("", true, 19, 60, "SpecInvalid"),
        ("", true, 20, 60, "TreeNotFound"),
    ] {
        let world = quiet();
        workspace(&world, &tree);
        by_hand(&world, "u", &json!({}));
        let at = world.now() - SignedDuration::from_mins(minutes);
        let failure = Some(FetchFailure { terminal, message: "cluster does not serve Gadget".into() });
        let outcome =
            FetchOutcome { version: VERSION, subject: subject.into(), at, took_seconds, artifact: None, failures: 1, failure };
        let source = ObjectKey { api_version: "x/v1".into(), ..key("Gadget", "n", "g") };
        world.drive(world.put(&keys::fetch(&source), to_json(&outcome).into_bytes())).unwrap().unwrap();
        reconcile(&world, &hint("u"));
        let (found, said) = waits(&world, "u");
        assert_eq!(found, reason, "{said}");
        assert_eq!(said.contains("does not serve Gadget"), reason == "SpecInvalid", "{said}");
    }
}

/// The result of the fetcher for the Workspace.
fn fetched(world: &World, subject: &str, result: Result<&str, &str>) {
    let workspace = key("Workspace", "n", "w");
    let digest = |revision: &str| format!("sha1:{revision}");
    let artifact = result.ok().map(|revision| FetchedArtifact { revision: revision.into(), digest: digest(revision).into() });
    if let Some(FetchedArtifact { digest, .. }) = &artifact {
        let folder = keys::tree(&workspace, digest);
        for part in ["pack", "manifest"] {
            world.drive(world.put(&format!("{folder}{part}"), b"{}".to_vec())).unwrap().unwrap();
        }
    }
    let failure = result.err().map(|message| FetchFailure { message: message.into(), terminal: false });
    let (failures, at, subject) = (u32::from(failure.is_some()), world.now(), subject.into());
    let outcome = FetchOutcome { version: VERSION, subject, at, took_seconds: 0, artifact, failures, failure };
    world.drive(world.put(&keys::fetch(&workspace), to_json(&outcome).into_bytes())).unwrap().unwrap();
}

/// The objects of the fetch requests and of the launch hints among the messages.
fn asked(world: &World) -> (Vec<String>, Vec<String>) {
    let (mut fetches, mut launches) = (Vec::new(), Vec::new());
    for message in received(world) {
        match message {
            Message::Fetch(request) => fetches.push(request.source.to_string()),
            Message::Launch(launch) => launches.push(launch.update.to_string()),
            _ => {}
        }
    }
    (fetches, launches)
}

#[test]
fn update_by_hand_runs_the_branch_as_of_its_creation_or_later() {
    let world = quiet();
    let source = json!({ "git": { "url": "u", "ref": "main", "dir": "app" } });
    workspace(&world, &source);
    let written: Workspace = serde_json::from_value(world.object(&key("Workspace", "n", "w")).unwrap()).unwrap();
    let subject = written.own_source().unwrap().unwrap().fingerprint();
    fetched(&world, &subject, Ok("old"));
    world.advance(SignedDuration::from_secs(60));
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    assert_eq!(waits(&world, "u").0, "SourceNotFetched");
    assert_eq!(asked(&world).0, ["sim/Workspace/n/w"]);

    // Its condition says what is wrong, and it is reconciled when there is a tree.
    world.advance(SignedDuration::from_secs(2));
    fetched(&world, &subject, Err("no such host"));
    let of_workspace = LaunchHint { version: VERSION, update: key("Workspace", "n", "w"), hops: 0 };
    reconcile(&world, &of_workspace);
    let (fetches, launches) = asked(&world);
    assert!(fetches.is_empty() && launches.contains(&"sim/Update/n/u".to_owned()), "{fetches:?} {launches:?}");
    reconcile(&world, &hint("u"));
    let (reason, words) = waits(&world, "u");
    assert!(reason == "SourceUnavailable" && words.contains("spec.git at main: no such host; next try at"), "{words}");
    assert_eq!(asked(&world).0, [""; 0]);
    fetched(&world, "of another spec", Ok("other"));
    reconcile(&world, &hint("u"));
    assert_eq!((waits(&world, "u").0.as_str(), asked(&world).0.len()), ("SourceNotFetched", 1));
    fetched(&world, &subject, Ok("new"));
    reconcile(&world, &of_workspace);
    assert_eq!(asked(&world).1, ["sim/Update/n/u"]);
    reconcile(&world, &hint("u"));
    assert_eq!(world.live_tasks().len(), 1);
    let ours = update(&world, "u").spec.driftless.unwrap();
    let tree = ours.tree.unwrap();
    assert_eq!(
        (ours.commit.as_deref(), tree.digest.as_deref(), tree.dir.as_deref()),
        (Some("new"), Some("sha1:new"), Some("app"))
    );
    assert_eq!(ours.workspace.unwrap().get("git"), None);

    // Its snapshot does not change.
    fetched(&world, &subject, Ok("newer"));
    reconcile(&world, &hint("u"));
    assert_eq!(update(&world, "u").spec.driftless.unwrap().commit.as_deref(), Some("new"));
    reconcile(&world, &of_workspace);
    assert_eq!(asked(&world).1, [""; 0], "nobody waits");
}

#[test]
fn annotation_limits_the_duration_of_a_run() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    let object = world.object(&key("Update", "n", "u")).unwrap();
    let annotated = json!({ "metadata": { "annotations": { names::MAX_DURATION: "1h30m" } } });
    insert(&world, &key("Update", "n", "u"), &driftless_core::merge(object, &annotated));
    reconcile(&world, &hint("u"));
    assert_eq!(spec(&world).limits, RunLimits { silence_seconds: Some(900), max_seconds: Some(5400) });
}

#[test]
fn run_receives_the_resource_count_of_the_last_run() {
    let world = quiet();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    assert_eq!(spec(&world).resources, None);

    let claim = spec(&world).run.claim;
    let left = to_json(&Resources { version: VERSION, count: 6 });
    let world = quiet();
    world.drive(world.put(&keys::resources(CLUSTER, &claim), left.into())).unwrap().unwrap();
    workspace(&world, &project());
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    assert_eq!(spec(&world).resources, Some(6));
}

#[test]
fn update_waits_for_a_workspace_that_cannot_be_read() {
    let world = quiet();
    workspace(&world, &json!(7));
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    let (reason, message) = waits(&world, "u");
    assert_eq!(reason, "SpecInvalid", "{message}");
    insert(&world, &key("Update", "n", "unreadable"), &json!({ "spec": 7 }));
    let workspace = LaunchHint { update: key("Workspace", "n", "w"), ..hint("u") };
    for hint in [hint("unreadable"), workspace] {
        let before = world.cluster();
        reconcile(&world, &hint);
        assert_eq!(world.cluster(), before);
    }
}

#[test]
fn variables_of_secrets_are_secret_and_those_of_config_maps_are_not() {
    let world = quiet();
    for (kind, name) in [("Secret", "s"), ("ConfigMap", "c")] {
        let metadata = json!({ "namespace": "n", "name": name });
        world.insert(json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { name: "YQ==" } }));
    }
    let of_key = |name: &str| json!({ "name": name, "key": name });
    let env = json!([
        { "name": "S", "valueFrom": { "secretKeyRef": of_key("s") } },
        { "name": "C", "valueFrom": { "configMapKeyRef": of_key("c") } },
    ]);
    let env_from = json!([{ "secretRef": { "name": "s" } }, { "configMapRef": { "name": "c" } }]);
    workspace(&world, &driftless_core::merge(project(), &json!({ "env": env, "envFrom": env_from })));
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    let spec = spec(&world);
    let found: Vec<_> = spec.env.iter().map(|env| (env.name.as_str(), env.secret)).collect();
    assert_eq!(found, [("s", true), ("c", false), ("S", true), ("C", false)]);
}

#[test]
fn claim_is_on_the_last_backend_that_the_environment_names() {
    let world = quiet();
    let metadata = json!({ "namespace": "n", "name": "c" });
    let data = json!({ "PULUMI_BACKEND_URL": "s3://first" });
    world.insert(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data }));
    let env = json!([{ "name": "PULUMI_BACKEND_URL", "value": "s3://last" }]);
    let env_from = json!([{ "configMapRef": { "name": "c" } }]);
    workspace(&world, &driftless_core::merge(project(), &json!({ "env": env, "envFrom": env_from })));
    by_hand(&world, "u", &json!({}));
    reconcile(&world, &hint("u"));
    let spec = spec(&world);
    // The runner sets both, and Pulumi uses the last one.
    assert_eq!(spec.env.iter().map(|env| env.value.as_str()).collect::<Vec<_>>(), ["s3://first", "s3://last"]);
    assert_eq!(spec.run.claim, keys::claim("n", "s3://last", "organization/shop/u"));
}
