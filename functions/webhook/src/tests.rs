use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_aws::Keyring;
use driftless_contract::{Hint, ObjectKey};
use driftless_testkit::{Faults, Message, World, emf};
use secrecy::SecretString;
use serde_json::json;

use super::*;

const GIT: &str = include_str!("../../../events/bodies/flux-gitrepository.json");
const OCI: &str = include_str!("../../../events/bodies/flux-ocirepository.json");
const BUCKET: &str = include_str!("../../../events/bodies/flux-bucket.json");

// Made with openssl: `openssl dgst -sha256 -hmac driftless-test-key events/bodies/flux-….json`.
const GIT_SIGNATURE: &str = "sha256=33e2ac0ea159ecc6323721c70f31949709f036ff84e322e1ee5d5d5e94f83cc8";
const OCI_SIGNATURE: &str = "sha256=f31b6de09ed59b9f43b1edeea3c06e848a9706637a1e96eb635701cece41d4b3";
const BUCKET_SIGNATURE: &str = "sha256=581d7588bf46ab83c5400b85178c99e7b8c09fdaf38617666af0ef178c53afa7";

const KUSTOMIZATION: &str = include_str!("../../../events/bodies/flux-kustomization.json");
const HELM_RELEASE: &str = include_str!("../../../events/bodies/flux-helmrelease.json");
const GITHUB: &str = include_str!("../../../events/bodies/github-push.json");
const GITLAB: &str = include_str!("../../../events/bodies/gitlab-push.json");
const GITEA: &str = include_str!("../../../events/bodies/gitea-push.json");

const KUSTOMIZATION_SIGNATURE: &str = "sha256=80a67da23d4f8c29212393363ad478b8f3fb087329b9d9e466c44ded15c67cd0";
const HELM_RELEASE_SIGNATURE: &str = "sha256=4a323b4a79c1d0a393e1082110f1873ed92161a185bf0c41e77f933dfa7b7685";
const GITHUB_SIGNATURE: &str = "sha256=b58c116956ba21c73990ce5543580ca4c34d4c2640e092bc9327c3df29d6fdaf";
const GITEA_SIGNATURE: &str = "e729566bf3af755d62af41dee919915a7883c89f2d57ccaffbc5f75a41f2d4dd";
/// For `GITLAB` with the id `msg_1` at `NOW`, for the cluster `signed`.
const GITLAB_SIGNATURE: &str = "v1,kMgKfVj4yhW/JtkVNe8wp2h8/T8saQP/fjzfdon3GPA=";
/// For `{}`.
const EMPTY_SIGNATURE: &str = "6be8a798f9899f6b4db1eccb32797aa8af8fdfcd35bbb35172baa418efaee686";

const KEYS: &str = r#"{"prod-eu":"driftless-test-key","upstream":"7152fed34dd6149a7c75a276c510da27cb6f82b0","signed":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw","arn:aws:eks:eu-west-1:1:cluster/c":"driftless-test-key"}"#;
const NOW: i64 = 1_772_442_849;

fn request(path: &str, body: &str, signature: &str) -> LambdaFunctionUrlRequest {
    request_with(path, body, &[("x-signature", signature)])
}

fn request_with(path: &str, body: &str, headers: &[(&str, &str)]) -> LambdaFunctionUrlRequest {
    let headers: BTreeMap<_, _> = [("content-type", "application/json")].iter().chain(headers).copied().collect();
    serde_json::from_value(json!({
        "version": "2.0",
        "rawPath": path,
        "headers": headers,
        "requestContext": { "http": { "method": "POST", "path": path }, "timeEpoch": 0 },
        "body": body,
        "isBase64Encoded": false,
    }))
    .unwrap()
}

/// The status of the answer, and the hints that were sent.
fn post_to(world: &World, request: LambdaFunctionUrlRequest) -> (i64, Vec<Hint>) {
    post_at(world, request, NOW)
}

fn post_at(world: &World, request: LambdaFunctionUrlRequest, seconds: i64) -> (i64, Vec<Hint>) {
    let keys = KEYS.parse().unwrap();
    let now = Timestamp::from_second(seconds).unwrap();
    let refusals = Refusals::default();
    let (response, lines) = emf::written(|| world.drive(answer(&keys, &refusals, world, request, now)).unwrap());
    assert!(lines.iter().all(|line| line["SignaturesRefused"] == 1.0));
    assert_eq!(lines.len(), usize::from(response.status_code == 401));
    let hints = world.sent().into_iter().map(|message| match message {
        Message::Hint(hint) => hint,
        other => panic!("only hints may be sent: {other:?}"),
    });
    (response.status_code, hints.collect())
}

fn post(request: LambdaFunctionUrlRequest) -> (i64, Vec<Hint>) {
    post_to(&World::new(0, Faults::NONE), request)
}

#[test]
fn a_new_artifact_of_a_flux_source_is_hinted_with_its_revision() {
    for (body, signature, kind, name, revision) in [
        (GIT, GIT_SIGNATURE, "GitRepository", "storefront", "main@sha1:8d5b5c1f0e6a4c7d9b3f2e1a0c9d8e7f6a5b4c3d"),
        (
            OCI,
            OCI_SIGNATURE,
            "OCIRepository",
            "storefront-bundle",
            "v2.0.1@sha256:7e887edb52b723997076a9f5a72bef4473227a303cbc2cf5118e7be261f41c13",
        ),
        (
            BUCKET,
            BUCKET_SIGNATURE,
            "Bucket",
            "storefront-files",
            "sha256:c5879b8d250ca6e74ca6bba56d9d89d3902cdc521520c040f051f7893d9555ac",
        ),
    ] {
        let (status, hints) = post(request("/prod-eu", body, signature));
        assert_eq!((status, hints.len()), (202, 1), "{kind}");
        let Hint { object, revision: hinted, looks, hops, .. } = &hints[0];
        assert_eq!(object.api_version, "source.toolkit.fluxcd.io/v1");
        assert_eq!(
            (object.cluster.as_str(), object.kind.as_str()),
            ("prod-eu", kind),
            "the cluster is the key's, not the event's"
        );
        assert_eq!((object.namespace.as_str(), object.name.as_str()), ("shop", name));
        assert_eq!((hinted.as_deref(), *looks, *hops), (Some(revision), 0, 0));
    }
}

#[test]
fn base64_body_is_decoded_before_verification() {
    let mut request = request("/prod-eu", &BASE64_STANDARD.encode(GIT), GIT_SIGNATURE);
    request.is_base64_encoded = true;
    assert_eq!(post(request).0, 202);
}

#[test]
fn unsigned_or_foreign_body_is_not_hinted() {
    for (path, body, signature) in [
        ("/prod-eu", GIT, ""),
        ("/prod-eu", GIT, "sha256="),
        ("/prod-eu", GIT, GIT_SIGNATURE.trim_start_matches("sha256=")),
        ("/prod-eu", GIT, &GIT_SIGNATURE[..GIT_SIGNATURE.len() - 2]),
        ("/prod-eu", GIT, OCI_SIGNATURE),
        ("/prod-eu", &format!("{GIT}\n"), GIT_SIGNATURE),
        ("/upstream", GIT, GIT_SIGNATURE),
        ("/staging", GIT, GIT_SIGNATURE),
        ("/", GIT, GIT_SIGNATURE),
        ("/prod-eu", "not JSON", GIT_SIGNATURE),
    ] {
        assert_eq!(post(request(path, body, signature)), (401, vec![]), "{path} {signature}");
    }
}

#[test]
fn test_vector_of_flux_is_verified() {
    let body = concat!(
        r#"{"involvedObject":{"kind":"GitRepository","namespace":"gitops-system","name":"webapp"},"severity":"info","#,
        r#""timestamp":"2022-09-30T06:40:29Z","message":"message","reason":"reason","metadata":{"test":"metadata"},"#,
        r#""reportingController":"source-controller","reportingInstance":"source-controller-xyz"}"#,
    );
    let signature = "sha256=65b018549b1254e7226d1c08f9567ee45bc9de0fc4e7b1a40253f9a018b08be7";
    assert_eq!(post(request("/upstream", body, signature)), (200, vec![]));
}

#[test]
fn signed_body_without_an_event_is_refused() {
    let signature = "sha256=2a63fd1e7abb74e940579eb8e94b36001cecd135dc8e18822c70192081aaeb37";
    assert_eq!(post(request("/prod-eu", r#"{"no":"json"#, signature)), (400, vec![]));
    let signature = "sha256=6be8a798f9899f6b4db1eccb32797aa8af8fdfcd35bbb35172baa418efaee686";
    assert_eq!(post(request("/prod-eu", "{}", signature)), (400, vec![]));
}

#[test]
fn only_an_artifact_of_a_source_leads_to_a_hint_of_it() {
    let event = |api_version: &str, kind: &str, reason: &str, key: &str| {
        let body = json!({
            "involvedObject": { "apiVersion": api_version, "kind": kind, "namespace": "shop", "name": "x" },
            "reason": reason,
            "metadata": { key: "r" },
        });
        serde_json::from_value::<event::Event>(body).unwrap().hint("prod-eu")
    };
    let flux = "source.toolkit.fluxcd.io/v1";
    for (kind, reason) in [("GitRepository", "NewArtifact"), ("Bucket", "Succeeded"), ("HelmChart", "ChartPullSucceeded")] {
        assert!(event(flux, kind, reason, "revision").is_some_and(|hint| hint.revision.as_deref() == Some("r")), "{kind}");
    }
    let prefixed = event(flux, "HelmChart", "ChartPackageSucceeded", "source.toolkit.fluxcd.io/revision");
    assert_eq!(prefixed.unwrap().revision.as_deref(), Some("r"));
    assert_eq!(event(flux, "ExternalArtifact", "NewArtifact", "other").unwrap().revision, None);
    for (api_version, kind, reason) in [
        (flux, "GitRepository", "GitOperationFailed"),
        (flux, "HelmRepository", "NewArtifact"),
        // An Event of Driftless about a Stack, which an Alert sends back.
        (flux, "ExternalArtifact", "StackCreated"),
        ("kustomize.toolkit.fluxcd.io/v1", "Bucket", "NewArtifact"),
        ("v1", "Bucket", "NewArtifact"),
        ("", "Bucket", "NewArtifact"),
    ] {
        assert!(event(api_version, kind, reason, "revision").is_none(), "{api_version} {kind} {reason}");
    }
}

#[test]
fn event_of_a_flux_applier_hints_the_applied_objects() {
    for (body, signature, api_version, kind, namespace, name) in [
        (KUSTOMIZATION, KUSTOMIZATION_SIGNATURE, "kustomize.toolkit.fluxcd.io/v1", "Kustomization", "flux-system", "shop"),
        (HELM_RELEASE, HELM_RELEASE_SIGNATURE, "helm.toolkit.fluxcd.io/v2", "HelmRelease", "shop", "storefront"),
    ] {
        let [cluster, api_version, kind, namespace, name] = ["prod-eu", api_version, kind, namespace, name].map(Into::into);
        let hint = Hint::new(ObjectKey { cluster, api_version, kind, namespace, name });
        assert_eq!(post(request("/prod-eu", body, signature)), (202, vec![hint]));
    }
}

#[test]
fn only_success_events_of_flux_lead_to_hints() {
    let event = |group: &str, kind: &str, reason: &str, severity: &str, controller: &str| {
        let body = json!({
            "involvedObject": { "apiVersion": format!("{group}.toolkit.fluxcd.io/v1"), "kind": kind, "namespace": "shop", "name": "x" },
            "reason": reason,
            "severity": severity,
            "reportingController": controller,
        });
        serde_json::from_value::<event::Event>(body).unwrap().hint("prod-eu").is_some()
    };
    for (group, kind, reason) in [
        ("kustomize", "Kustomization", "ReconciliationSucceeded"),
        ("kustomize", "Kustomization", "Progressing"),
        ("helm", "HelmRelease", "InstallSucceeded"),
        ("helm", "HelmRelease", "UninstallSucceeded"),
        ("helm", "HelmRelease", "DriftCorrected"),
        ("source", "GitRepository", "NewArtifact"),
    ] {
        assert!(event(group, kind, reason, "info", "kustomize-controller"), "{kind} {reason}");
        assert!(!event(group, kind, reason, "error", "kustomize-controller"), "{kind} {reason} is of a success before");
        assert!(!event(group, kind, reason, "info", "driftless"), "{kind} {reason} is ours");
    }
    for (group, kind, reason) in [
        ("kustomize", "Kustomization", "HealthCheckFailed"),
        ("kustomize", "Kustomization", "UpgradeSucceeded"),
        ("kustomize", "HelmRelease", "ReconciliationSucceeded"),
        ("helm", "HelmRelease", "UpgradeFailed"),
        ("helm", "HelmRelease", "DriftDetected"),
        ("image", "ImagePolicy", "ReconciliationSucceeded"),
    ] {
        assert!(!event(group, kind, reason, "info", "x"), "{kind} {reason}");
    }
}

#[test]
fn unsigned_flux_body_needs_the_key_in_its_header() {
    for (path, headers, status) in [
        ("/prod-eu", &[("authorization", "Bearer driftless-test-key")][..], 202),
        ("/prod-eu", &[("authorization", "Bearer driftless-test-kez")], 401),
        ("/prod-eu", &[("authorization", "Bearer driftless-test-ke")], 401),
        ("/prod-eu", &[("authorization", "Bearer ")], 401),
        ("/prod-eu", &[("authorization", "driftless-test-key")], 401),
        ("/upstream", &[("authorization", "Bearer driftless-test-key")], 401),
        ("/staging", &[("authorization", "Bearer driftless-test-key")], 401),
        ("/prod-eu", &[("authorization", "Bearer driftless-test-key"), ("x-signature", OCI_SIGNATURE)], 401),
        ("/prod-eu/github", &[("authorization", "Bearer driftless-test-key"), ("x-github-event", "push")], 401),
    ] {
        let (answered, hints) = post(request_with(path, GIT, headers));
        assert_eq!((answered, hints.len()), (status, usize::from(status == 202)), "{path} {headers:?}");
    }
}

type Header = (&'static str, &'static str);

/// A request as each git host sends it: path, body, event and proof.
fn pushes() -> [(&'static str, &'static str, [Header; 2]); 4] {
    [
        ("/prod-eu/github", GITHUB, [("x-github-event", "push"), ("x-hub-signature-256", GITHUB_SIGNATURE)]),
        ("/prod-eu/gitlab", GITLAB, [("x-gitlab-event", "Push Hook"), ("x-gitlab-token", "driftless-test-key")]),
        ("/prod-eu/gitea", GITEA, [("x-gitea-event", "push"), ("x-gitea-signature", GITEA_SIGNATURE)]),
        ("/prod-eu/gitea", GITEA, [("x-forgejo-event", "push"), ("x-forgejo-signature", GITEA_SIGNATURE)]),
    ]
}

fn pushed(cluster: &str, repository: &str) -> Hint {
    let revision = Some("refs/heads/main@sha1:c0ffee12ab34cd56ef7890aa11bb22cc33dd44ee".into());
    Hint { revision, ..Hint::new(ObjectKey::repository(cluster, &format!("https://{repository}")).unwrap()) }
}

#[test]
fn a_push_hints_the_repository_by_each_name_that_it_has() {
    let gitea = &["git.example.com/acme/storefront", "ssh.git.example.com/acme/storefront"][..];
    let repositories = [&["github.com/acme/storefront"][..], &["gitlab.example.com/acme/shop/storefront"], gitea, gitea];
    for ((path, body, headers), repositories) in pushes().into_iter().zip(repositories) {
        let hints = repositories.iter().map(|name| pushed("prod-eu", name)).collect();
        assert_eq!(post(request_with(path, body, &headers)), (202, hints), "{headers:?}");
    }
    let hint = pushed("prod-eu", "github.com/acme/storefront");
    assert_eq!((hint.object.kind.as_str(), hint.object.name.as_str()), ("Repository", "github.com/acme/storefront"));

    let cluster = "arn:aws:eks:eu-west-1:1:cluster/c";
    let (_, body, headers) = pushes()[0];
    let hints = vec![pushed(cluster, "github.com/acme/storefront")];
    assert_eq!(post(request_with(&format!("/{cluster}/github/"), body, &headers)), (202, hints));
    let (path, body, [_, token]) = pushes()[1];
    assert_eq!(post(request_with(path, body, &[("x-gitlab-event", "Tag Push Hook"), token])).0, 202);
}

#[test]
fn a_replayed_push_is_the_same_hint_once_more() {
    for (path, body, headers) in pushes() {
        let world = World::new(0, Faults::NONE);
        let (_, first) = post_to(&world, request_with(path, body, &headers));
        let (status, both) = post_to(&world, request_with(path, body, &headers));
        assert_eq!((status, both), (202, [first.clone(), first].concat()));
    }
}

#[test]
fn a_forged_push_leads_to_nothing() {
    for (path, body, [event, proof]) in pushes() {
        let nothing = (401, vec![]);
        let altered = body.replacen("refs/heads/main", "refs/heads/evil", 1);
        let (cut, proof_of_empty) = (&proof.1[..proof.1.len() - 2], (proof.0, EMPTY_SIGNATURE));
        // A token is not a signature: it allows any body.
        if proof.0 != "x-gitlab-token" {
            assert_eq!(post(request_with(path, &altered, &[event, proof])), nothing, "{path} altered");
            assert_eq!(post(request_with(path, "not JSON", &[event, proof])), nothing, "{path} not JSON");
        }
        for headers in [vec![event], vec![event, (proof.0, cut)], vec![event, (proof.0, "")], vec![event, proof_of_empty]] {
            assert_eq!(post(request_with(path, body, &headers)), nothing, "{path} {headers:?}");
        }
        let host = path.trim_start_matches("/prod-eu");
        for path in [host, &format!("/staging{host}"), &format!("/upstream{host}"), "/prod-eu", "/prod-eu/bitbucket", "/"] {
            assert_eq!(post(request_with(path, body, &[event, proof])), nothing, "{path}");
        }
        let long = " ".repeat(MAX_BODY_BYTES + 1);
        assert_eq!(post(request_with(path, &long, &[event, proof])), (413, vec![]), "{path}");
        let down = World::new(0, Faults { transient: 1000, ..Faults::NONE });
        assert_eq!(post_to(&down, request_with(path, body, &[event, proof])), (503, vec![]), "{path}");
    }
    // The proof of one host is invalid for another.
    let (_, body, [event, _]) = pushes()[0];
    let hex = GITHUB_SIGNATURE.trim_start_matches("sha256=");
    assert_eq!(post(request_with("/prod-eu/github", body, &[event, ("x-gitea-signature", hex)])), (401, vec![]));
    let both = [("x-gitea-event", "push"), ("x-gitea-signature", GITEA_SIGNATURE), ("x-forgejo-signature", hex)];
    assert_eq!(post(request_with("/prod-eu/gitea", GITEA, &both)), (401, vec![]));
}

#[test]
fn other_event_is_ignored_and_malformed_push_is_refused() {
    for (path, body, [(event, _), proof]) in pushes() {
        for other in ["ping", "issues", "Issue Hook", "create", ""] {
            assert_eq!(post(request_with(path, body, &[(event, other), proof])), (200, vec![]), "{path} {other}");
        }
        assert_eq!(post(request_with(path, body, &[proof])), (200, vec![]), "{path} without an event");
    }
    let signature = format!("sha256={EMPTY_SIGNATURE}");
    for (path, headers) in [
        ("/prod-eu/github", [("x-github-event", "push"), ("x-hub-signature-256", signature.as_str())]),
        ("/prod-eu/gitlab", pushes()[1].2),
        ("/prod-eu/gitea", [("x-gitea-event", "push"), ("x-gitea-signature", EMPTY_SIGNATURE)]),
    ] {
        assert_eq!(post(request_with(path, "{}", &headers)), (400, vec![]), "{path}");
    }
    // A deleted ref, and a repository that no Stack can name.
    let (path, body, headers) = pushes()[1];
    let gone = body.replace("c0ffee12ab34cd56ef7890aa11bb22cc33dd44ee", "0000000000000000000000000000000000000000");
    assert_eq!(post(request_with(path, &gone, &headers)), (200, vec![]));
    let nowhere = body.replace("https://gitlab.example.com/", "/").replace("git@gitlab.example.com:", "/");
    assert_eq!(post(request_with(path, &nowhere, &headers)), (200, vec![]));
}

#[test]
fn gitlabs_signature_counts_for_five_minutes_and_before_its_token() {
    let time = NOW.to_string();
    let signed = [("x-gitlab-event", "Push Hook"), ("webhook-id", "msg_1"), ("webhook-timestamp", &time)];
    let post_at = |more: &[(&str, &str)], seconds: i64| {
        let headers: Vec<_> = signed.iter().chain(more).copied().collect();
        post_at(&World::new(0, Faults::NONE), request_with("/signed/gitlab", GITLAB, &headers), seconds)
    };
    let good = ("webhook-signature", GITLAB_SIGNATURE);
    let hints = vec![pushed("signed", "gitlab.example.com/acme/shop/storefront")];
    for seconds in [NOW - 300, NOW, NOW + 300] {
        assert_eq!(post_at(&[good], seconds), (202, hints.clone()));
    }
    let rotated = format!("v1,AAAA v2,{GITLAB_SIGNATURE} {GITLAB_SIGNATURE}");
    assert_eq!(post_at(&[("webhook-signature", &rotated)], NOW), (202, hints));
    let token = ("x-gitlab-token", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    for (more, seconds) in [
        (&[good][..], NOW + 301),
        (&[good], NOW - 301),
        (&[("webhook-signature", GITLAB_SIGNATURE), ("webhook-timestamp", "1772442850")], NOW),
        (&[good, ("webhook-id", "msg_2")], NOW),
        (&[good, ("webhook-timestamp", "soon")], NOW),
        (&[("webhook-signature", GITLAB_SIGNATURE.trim_start_matches("v1,"))], NOW),
        (&[("webhook-signature", ""), token], NOW),
    ] {
        assert_eq!(post_at(more, seconds), (401, vec![]), "{more:?} {seconds}");
    }
    // A key that is not in the form of Standard Webhooks makes no such signatures.
    let headers: Vec<_> = signed.iter().copied().chain([good]).collect();
    assert_eq!(post(request_with("/prod-eu/gitlab", GITLAB, &headers)), (401, vec![]));
}

#[test]
fn the_vector_of_standard_webhooks_is_verified() {
    let keys: Keys = KEYS.parse().unwrap();
    let signature = b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let now = Timestamp::from_second(1_614_265_330).unwrap();
    let body = br#"{"test": 2432232314}"#;
    assert!(keys.signed_lately(("signed", Sender::GitLab), b"msg_p5jXN8AQM9LWM0D4loKWxJek", b"1614265330", body, signature, now));
}

#[test]
fn sample_requests_have_valid_bodies_and_signatures() {
    let keys = r#"{"world":{"flux":"a-key-for-one-machine-only","github":"a-key-for-git-hosts-only"}}"#;
    let keys: Keys = keys.parse().unwrap();
    for (sample, posted, status) in [
        (include_str!("../../../events/webhook/flux.json"), GIT, 202),
        (include_str!("../../../events/webhook/base64.json"), OCI, 202),
        (include_str!("../../../events/webhook/github.json"), GITHUB, 202),
        (include_str!("../../../events/webhook/forged.json"), GIT, 401),
    ] {
        let request: LambdaFunctionUrlRequest = serde_json::from_str(sample).unwrap();
        assert_eq!(body(&request).unwrap(), posted.as_bytes());
        let (world, now) = (World::new(0, Faults::NONE), Timestamp::from_second(NOW).unwrap());
        assert_eq!(world.drive(answer(&keys, &Refusals::default(), &world, request, now)).unwrap().status_code, status);
    }
}

#[test]
fn unavailable_queue_asks_the_sender_to_retry() {
    let world = World::new(0, Faults { transient: 1000, ..Faults::NONE });
    assert_eq!(post_to(&world, request("/prod-eu", GIT, GIT_SIGNATURE)), (503, vec![]));
}

#[test]
fn too_long_body_is_not_read() {
    assert_eq!(post(request("/prod-eu", &" ".repeat(MAX_BODY_BYTES + 1), GIT_SIGNATURE)), (413, vec![]));
}

#[test]
fn keys_are_never_shown() {
    let keys: Keys = r#"{"prod":"canary"}"#.parse().unwrap();
    assert!(!format!("{keys:?}").contains("canary"));
    for broken in [
        r#"{"prod":"canary"#,
        r#"{"prod":["canary"]}"#,
        r#"{"canary":""}"#,
        r#"{"prod":{"canary":"k"}}"#,
        r#"{"prod":{"flux":""}}"#,
        r#"{"prod":{"flux":["canary"]}}"#,
        r#"{"prod":{"/github":"canary"}}"#,
    ] {
        assert!(!broken.parse::<Keys>().unwrap_err().to_string().contains("canary"));
    }
}

/// Returns the status of the answer with other keys.
fn status_with(keys: &str, path: &str, body: &str, headers: &[Header]) -> i64 {
    let (world, now) = (World::new(0, Faults::NONE), Timestamp::from_second(NOW).unwrap());
    let request = request_with(path, body, headers);
    world.drive(answer(&keys.parse().unwrap(), &Refusals::default(), &world, request, now)).unwrap().status_code
}

#[test]
fn key_of_one_sender_authenticates_no_other() {
    let key = "driftless-test-key";
    let owners = ["github", "gitlab", "gitea", "gitea"];
    for ((path, body, headers), owner) in pushes().into_iter().zip(owners) {
        for sender in ["flux", "github", "gitlab", "gitea", "github/team-a", "gitlab/team-a", "gitea/x/y"] {
            let keys = json!({ "prod-eu": { sender: key, "flux/other": "another" } }).to_string();
            let expected = if sender.split('/').next() == Some(owner) { 202 } else { 401 };
            assert_eq!(status_with(&keys, path, body, &headers), expected, "{sender} at {path}");
        }
    }
    for (sender, expected) in [("flux", 202), ("flux/eu", 202), ("github", 401), ("gitlab", 401)] {
        let keys = json!({ "prod-eu": { sender: key } }).to_string();
        assert_eq!(status_with(&keys, "/prod-eu", GIT, &[("x-signature", GIT_SIGNATURE)]), expected, "{sender}");
        let bearer = ("authorization", "Bearer driftless-test-key");
        assert_eq!(status_with(&keys, "/prod-eu", GIT, &[bearer]), expected, "{sender} as bearer");
    }
}

#[test]
fn each_of_several_keys_of_one_sender_proves_it() {
    let (path, body, headers) = pushes()[0];
    for order in [["github/a", "github/b"], ["github/b", "github/a"]] {
        let keys = json!({ "prod-eu": { order[0]: "driftless-test-key", order[1]: "another" } }).to_string();
        assert_eq!(status_with(&keys, path, body, &headers), 202);
    }
    let without = json!({ "prod-eu": { "github/a": "one", "github/b": "another" }, "other": "driftless-test-key" }).to_string();
    assert_eq!(status_with(&without, path, body, &headers), 401);
}

#[test]
fn refused_calls_are_reported_once_a_minute_with_their_number() {
    let (world, keys, refusals) = (World::new(0, Faults::NONE), KEYS.parse().unwrap(), Refusals::default());
    let reported = |seconds: i64, signature: &str| {
        let now = Timestamp::from_second(NOW + seconds).unwrap();
        let call = answer(&keys, &refusals, &world, request("/prod-eu", GIT, signature), now);
        let (_, lines) = emf::written(|| world.drive(call).unwrap());
        lines.iter().map(|line| line["SignaturesRefused"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(reported(0, "forged"), [1.0]);
    for second in 1..60 {
        assert_eq!(reported(second, "forged"), [0.0; 0], "{second}");
    }
    assert_eq!(reported(60, "forged"), [60.0]);
    assert_eq!(reported(90, "forged"), [0.0; 0]);
    assert_eq!(reported(119, GIT_SIGNATURE), [0.0; 0]);
    assert_eq!(reported(120, GIT_SIGNATURE), [1.0], "a good call reports what was refused before it");
    assert_eq!(reported(300, GIT_SIGNATURE), [0.0; 0]);
}

/// A secret whose text changes, and the number of reads.
#[derive(Default)]
struct Secret(std::cell::RefCell<(Option<&'static str>, usize)>);

impl Keyring for &Secret {
    async fn secret(&self, id: &str) -> driftless_aws::Result<SecretString> {
        assert_eq!(id, "s");
        let mut read = self.0.borrow_mut();
        read.1 += 1;
        let throttled = || driftless_aws::Error::Transient { call: "read".into(), message: "throttled".into() };
        read.0.map(Into::into).ok_or_else(throttled)
    }

    async fn eks_token(&self, _: &str, _: Option<&str>, _: Timestamp) -> driftless_aws::Result<SecretString> {
        unreachable!("the webhook has no cluster")
    }
}

#[test]
fn keys_are_read_again_after_five_minutes_and_kept_if_that_fails() {
    let (world, secret) = (World::new(0, Faults::NONE), Secret::default());
    let at = |minutes: i64| Timestamp::from_second(NOW + 60 * minutes).unwrap();
    let open = || world.drive(KeySecret::open(&secret, "s".into(), at(0))).unwrap();
    assert!(open().is_err_and(|error| error.is_transient()));
    secret.0.borrow_mut().0 = Some("canary");
    assert!(open().is_err_and(|error| !error.is_transient() && !error.to_string().contains("canary")));
    *secret.0.borrow_mut() = (Some(r#"{"c":{"gitlab":"old"}}"#), 0);
    let keys = open().unwrap();
    let is = |minutes: i64, token: &str| {
        let is = async |keys: &Keys| keys.is("c", Sender::GitLab, token.as_bytes());
        world.drive(keys.with(at(minutes), is)).unwrap()
    };
    secret.0.borrow_mut().0 = Some(r#"{"c":{"gitlab":"new"}}"#);
    assert!(is(4, "old") && !is(4, "new"));
    assert!(is(5, "new") && !is(5, "old"));
    for unusable in [None, Some("canary")] {
        secret.0.borrow_mut().0 = unusable;
        assert!(is(10, "new") && is(15, "new"));
    }
    assert_eq!(secret.0.borrow().1, 4, "one read at the start, and one every five minutes");
}
