use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_contract::Hint;
use driftless_testkit::{Faults, Message, World, emf};
use serde_json::json;

use super::*;

const GIT: &str = include_str!("../../../events/flux-gitrepository.json");
const OCI: &str = include_str!("../../../events/flux-ocirepository.json");
const BUCKET: &str = include_str!("../../../events/flux-bucket.json");

// Made with openssl: `openssl dgst -sha256 -hmac driftless-test-key events/flux-….json`.
const GIT_SIGNATURE: &str = "sha256=33e2ac0ea159ecc6323721c70f31949709f036ff84e322e1ee5d5d5e94f83cc8";
const OCI_SIGNATURE: &str = "sha256=f31b6de09ed59b9f43b1edeea3c06e848a9706637a1e96eb635701cece41d4b3";
const BUCKET_SIGNATURE: &str = "sha256=581d7588bf46ab83c5400b85178c99e7b8c09fdaf38617666af0ef178c53afa7";

fn request(path: &str, body: &str, signature: &str) -> LambdaFunctionUrlRequest {
    serde_json::from_value(json!({
        "version": "2.0",
        "rawPath": path,
        "headers": { "content-type": "application/json", "x-signature": signature },
        "requestContext": { "http": { "method": "POST", "path": path }, "timeEpoch": 0 },
        "body": body,
        "isBase64Encoded": false,
    }))
    .unwrap()
}

/// The status of the answer, and the hints that were sent.
fn post_to(world: &World, request: LambdaFunctionUrlRequest) -> (i64, Vec<Hint>) {
    let keys = r#"{"prod-eu":"driftless-test-key","upstream":"7152fed34dd6149a7c75a276c510da27cb6f82b0"}"#.parse().unwrap();
    let (response, lines) = emf::written(|| world.drive(answer(&keys, world, request, world.now())).unwrap());
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
fn a_body_in_base64_is_verified_decoded() {
    let mut request = request("/prod-eu", &BASE64_STANDARD.encode(GIT), GIT_SIGNATURE);
    request.is_base64_encoded = true;
    assert_eq!(post(request).0, 202);
}

#[test]
fn nothing_is_hinted_without_the_clusters_own_signature_over_these_bytes() {
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
fn the_vector_of_flux_itself_is_verified_and_its_unknown_reason_ignored() {
    let body = concat!(
        r#"{"involvedObject":{"kind":"GitRepository","namespace":"gitops-system","name":"webapp"},"severity":"info","#,
        r#""timestamp":"2022-09-30T06:40:29Z","message":"message","reason":"reason","metadata":{"test":"metadata"},"#,
        r#""reportingController":"source-controller","reportingInstance":"source-controller-xyz"}"#,
    );
    let signature = "sha256=65b018549b1254e7226d1c08f9567ee45bc9de0fc4e7b1a40253f9a018b08be7";
    assert_eq!(post(request("/upstream", body, signature)), (200, vec![]));
}

#[test]
fn what_is_signed_but_no_event_is_refused() {
    let signature = "sha256=2a63fd1e7abb74e940579eb8e94b36001cecd135dc8e18822c70192081aaeb37";
    assert_eq!(post(request("/prod-eu", r#"{"no":"json"#, signature)), (400, vec![]));
    let signature = "sha256=6be8a798f9899f6b4db1eccb32797aa8af8fdfcd35bbb35172baa418efaee686";
    assert_eq!(post(request("/prod-eu", "{}", signature)), (400, vec![]));
}

#[test]
fn only_an_artifact_of_a_source_leads_to_a_hint() {
    let event = |api_version: &str, kind: &str, reason: &str, key: &str| {
        let body = json!({
            "involvedObject": { "apiVersion": api_version, "kind": kind, "namespace": "shop", "name": "x" },
            "reason": reason,
            "metadata": { key: "r" },
        });
        event::parse(body.to_string().as_bytes()).unwrap().hint("prod-eu")
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
        ("kustomize.toolkit.fluxcd.io/v1", "Bucket", "NewArtifact"),
        ("v1", "Bucket", "NewArtifact"),
        ("", "Bucket", "NewArtifact"),
    ] {
        assert!(event(api_version, kind, reason, "revision").is_none(), "{api_version} {kind} {reason}");
    }
}

#[test]
fn when_the_queue_is_down_flux_is_asked_to_try_again() {
    let world = World::new(0, Faults { transient: 1000, ..Faults::NONE });
    assert_eq!(post_to(&world, request("/prod-eu", GIT, GIT_SIGNATURE)), (503, vec![]));
}

#[test]
fn a_body_that_is_too_long_is_not_looked_at() {
    assert_eq!(post(request("/prod-eu", &" ".repeat(MAX_BODY_BYTES + 1), GIT_SIGNATURE)), (413, vec![]));
}

#[test]
fn keys_are_never_shown() {
    let keys: Keys = r#"{"prod":"canary"}"#.parse().unwrap();
    assert!(!format!("{keys:?}").contains("canary"));
    for broken in [r#"{"prod":"canary"#, r#"{"prod":["canary"]}"#, r#"{"canary":""}"#] {
        assert!(!broken.parse::<Keys>().unwrap_err().to_string().contains("canary"));
    }
}
