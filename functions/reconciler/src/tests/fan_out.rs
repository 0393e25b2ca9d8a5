//! Which Stacks a hint about their applier or their repository reaches.

use driftless_contract::FetchKind;

use super::*;

#[test]
fn stacks_applied_by_flux_are_hinted_in_every_namespace() {
    for (api_version, kind, group, other) in [
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "kustomize", "helm"),
        ("helm.toolkit.fluxcd.io/v2", "HelmRelease", "helm", "kustomize"),
    ] {
        let world = World::new(0, Faults::NONE);
        let labels = |group: &str, namespace: &str, name: &str| {
            let label = |what| format!("{group}.toolkit.fluxcd.io/{what}");
            json!({ label("name"): name, label("namespace"): namespace })
        };
        let (its, none) = (labels(group, "n", "shop"), json!({}));
        let plain = json!({ "stack": "dev" });
        let of = |program: &str| json!({ "stack": "dev", "programRef": { "name": program } });
        put(&world, "Stack", "n", "applied", &its, &plain);
        put(&world, "Stack", "m", "applied-elsewhere", &its, &plain);
        put(&world, "Program", "m", "app", &its, &plain);
        put(&world, "Stack", "m", "of-program", &none, &of("app"));
        put(&world, "Stack", "m", "both", &its, &of("app"));
        put(&world, "Stack", "n", "of-another-namespaces-program", &none, &of("app"));
        put(&world, "Stack", "m", "of-another-program", &none, &of("other"));
        put(&world, "Stack", "n", "by-hand", &none, &plain);
        put(&world, "Stack", "n", "by-another", &labels(group, "n", "other"), &plain);
        put(&world, "Stack", "n", "by-its-namesake", &labels(group, "m", "shop"), &plain);
        put(&world, "Stack", "n", "by-another-kind", &labels(other, "n", "shop"), &plain);
        reconcile(&world, key(api_version, kind, "shop"));
        let sent = |after: usize| {
            let hinted = world.sent().into_iter().skip(after).map(|message| match message {
                Message::Hint(Hint { object, hops, .. }) if hops > 0 => {
                    format!("{} {}/{}", object.kind, object.namespace, object.name)
                }
                other => panic!("{other:?}"),
            });
            hinted.collect::<Vec<_>>()
        };
        let expected = ["Program m/app", "Stack m/applied-elsewhere", "Stack m/both", "Stack n/applied"];
        assert_eq!(sent(0), expected, "{kind}");
        reconcile(&world, ObjectKey { namespace: "m".into(), ..key("pulumi.com/v1", "Program", "app") });
        assert_eq!(sent(expected.len()), ["Stack m/both", "Stack m/of-program"], "{kind}");
        // No label has such a value, so nothing is listed with it.
        world.forbid("Program");
        for name in ["shop,a", "shop)", "", "-shop", &"s".repeat(64)] {
            reconcile(&world, key(api_version, kind, name));
        }
    }
}

/// A Stack of a git repository that was reconciled before.
fn put_git(world: &World, namespace: &str, name: &str, url: &str, more: &Value) {
    let spec = driftless_core::merge(json!({ "stack": "dev", "projectRepo": url }), more);
    let status = json!({ "driftless": { "repository": driftless_core::repository(url) } });
    let metadata = json!({ "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}") });
    world.insert(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec, "status": status,
    }));
}

#[test]
fn reconciliation_records_the_repository_that_a_push_names() {
    let world = World::new(0, Faults::NONE);
    let spec = json!({ "stack": "dev", "projectRepo": "git@Git.example.com:acme/shop.git", "branch": "main" });
    put(&world, "Stack", "n", "s", &json!({}), &spec);
    reconcile(&world, key("pulumi.com/v1", "Stack", "s"));
    let stack: Stack = world.drive(Cluster::get(&world, "n", "s")).unwrap().unwrap().unwrap();
    let recorded = stack.status.unwrap().driftless.unwrap().repository;
    assert_eq!(recorded.as_deref(), Some("git.example.com/acme/shop"));
}

/// A push of `commit` to `refs/heads/main`.
fn push(url: &str, commit: &str) -> Hint {
    let revision = Some(format!("refs/heads/main@sha1:{commit}"));
    Hint { revision, ..Hint::new(ObjectKey::repository(CLUSTER, url).unwrap()) }
}

/// The sources of the fetch requests that were delivered.
fn fetches(world: &World) -> Vec<String> {
    let delivered = std::iter::from_fn(|| world.receive());
    let fetched = delivered.map(|message| match message {
        Message::Fetch(request) if request.kind == FetchKind::Fetch && request.hops == 1 => request.source.to_string(),
        other => panic!("{other:?}"),
    });
    let mut fetched: Vec<_> = fetched.collect();
    fetched.sort();
    fetched
}

#[test]
fn push_requests_fetches_for_the_stacks_that_follow_it() {
    let world = World::new(0, Faults::NONE);
    let stack = |name: &str, url: &str, more: Value| put_git(&world, "n", name, url, &more);
    let (https, main) = ("https://git.example.com/acme/shop.git", json!({ "branch": "main" }));
    stack("https", https, main.clone());
    stack("ssh", "ssh://git@git.example.com:2222/acme/shop", main.clone());
    stack("short", "git@GIT.example.com:acme/shop.git", json!({ "branch": "refs/heads/main" }));
    stack("head", https, json!({ "branch": "HEAD" }));
    stack("other-branch", https, json!({ "branch": "next" }));
    stack("pinned", https, json!({ "commit": "main" }));
    stack("other-repository", "https://git.example.com/acme/shop2", main.clone());
    stack("other-host", "https://example.com/acme/shop", main.clone());
    stack("suspended", https, json!({ "branch": "main", "driftless": { "suspend": true } }));
    stack("two-sources", https, json!({ "branch": "main", "programRef": { "name": "p" } }));
    stack("no-branch", https, json!({}));
    put_git(&world, "m", "elsewhere", https, &main);
    take(&world, &push(https, "c2"));
    let expected = ["m/elsewhere", "n/head", "n/https", "n/short", "n/ssh"].map(|stack| format!("{CLUSTER}/Stack/{stack}"));
    assert_eq!(fetches(&world), expected);
}

#[test]
fn replayed_push_requests_no_fetch() {
    let world = World::new(0, Faults::NONE);
    let url = "https://git.example.com/acme/shop";
    put_git(&world, "n", "s", url, &json!({ "branch": "main" }));
    let source = key("pulumi.com/v1", "Stack", "s");
    let stack: Stack = world.drive(Cluster::get(&world, "n", "s")).unwrap().unwrap().unwrap();
    let sources = stack.sources();
    let [SourceRef::Git(git)] = sources.as_slice() else { panic!("{sources:?}") };
    let fetched = |commit: &str| {
        let artifact = Some(FetchedArtifact { revision: commit.into(), digest: "sha256:00".into() });
        let (version, subject, at) = (VERSION, git.fingerprint.clone(), world.now());
        let outcome = FetchOutcome { version, subject, at, took_seconds: 0, artifact, failures: 0, failure: None };
        world.drive(Objects::put(&world, &keys::fetch(&source), to_json(&outcome).into_bytes())).unwrap().unwrap();
    };
    let asked = vec![source.to_string()];
    let nothing: Vec<String> = Vec::new();

    fetched("c1");
    take(&world, &push(url, "c2"));
    assert_eq!(fetches(&world), asked);
    take(&world, &push(url, "c2"));
    assert_eq!(fetches(&world), nothing, "asked for already");
    fetched("c2");
    world.advance(SignedDuration::from_mins(10));
    take(&world, &push(url, "c2"));
    assert_eq!(fetches(&world), nothing, "known");

    // An old push that is replayed costs one reconciliation; a branch that is set back is a push
    // like others.
    for expected in [&asked, &nothing] {
        take(&world, &push(url, "c1"));
        assert_eq!(fetches(&world), *expected);
    }
    fetched("c1");
    take(&world, &push(url, "c2"));
    assert_eq!(fetches(&world), asked, "pushed anew");
}

#[test]
fn push_is_fetched_only_within_the_namespace_filter() {
    let world = World::new(0, Faults::NONE);
    for namespace in ["theirs", "n"] {
        put_git(&world, namespace, "s", "https://git.example/shop", &json!({ "branch": "main" }));
    }
    world.label_namespace("theirs", "false");
    let pushed = ObjectKey { namespace: String::new(), ..key("driftless.dev/v1", "Repository", "git.example/shop") };
    take(&world, &Hint { revision: Some("refs/heads/main@sha1:1".into()), ..Hint::new(pushed) });
    let asked: Vec<_> = world
        .sent()
        .into_iter()
        .map(|message| match message {
            Message::Fetch(request) => request.source.namespace,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, ["n"]);
}
