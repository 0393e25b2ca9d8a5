//! The webhook, which is reachable from the internet.

use std::sync::LazyLock;

use aws_lambda_events::lambda_function_urls::LambdaFunctionUrlRequest;
use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use driftless_contract::{Document as _, Hint, to_json};
use driftless_testkit::{Faults, Message, World};
use jiff::Timestamp;
use serde_json::{Value, json};
use webhook::{Keys, Refusals, answer};

use crate::input::{first_line, text};

const CLUSTER: &str = "world";
const KEY: &str = "a key of the cluster";
static KEYS: LazyLock<Keys> = LazyLock::new(|| json!({ CLUSTER: KEY }).to_string().parse().expect("keys"));
/// Shared, so that refused calls are reported once.
static REFUSALS: LazyLock<Refusals> = LazyLock::new(Refusals::default);

/// The input is an unsigned request to a function URL; then a line with the name of a sender and of
/// its event, and a body that is signed.
pub fn check(input: &[u8]) {
    if let Ok(request) = serde_json::from_slice(input) {
        let (status, hints) = post(request);
        assert!(matches!(status, 400 | 401 | 413) && hints.is_empty(), "{status} for a request without a signature");
    }
    // The operator's keys, which are read from a secret.
    let _: Result<Keys, _> = text(input).parse();

    let (head, body) = first_line(text(input));
    let (sender, event) = head.split_once(' ').unwrap_or((head, ""));
    let signed = |body: &str, proof_of: &str, is_base64_encoded: bool| {
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes()), proof_of.as_bytes());
        let signature = base16ct::lower::encode_string(signature.as_ref());
        let headers = match sender {
            "github" => json!({ "x-hub-signature-256": format!("sha256={signature}"), "x-github-event": event }),
            "gitlab" => json!({ "x-gitlab-token": KEY, "x-gitlab-event": event }),
            "gitea" => json!({ "x-gitea-signature": signature, "x-gitea-event": event }),
            _ => json!({ "x-signature": format!("sha256={signature}") }),
        };
        request(sender, &headers, body, is_base64_encoded)
    };
    let Some((status, hints)) = signed(body, body, false).map(post) else { return };
    assert!(matches!((status, hints.len()), (200 | 400, 0) | (202, 1 | 2)), "{status} with {hints:?}");
    for hint in &hints {
        assert_eq!((hint.object.cluster.as_str(), hint.hops, hint.looks), (CLUSTER, 0, 0), "{hint:?}");
        let is_known = hint.object.kind == "Repository" || hint.object.group().ends_with(".toolkit.fluxcd.io");
        assert!(is_known, "{hint:?}");
        assert_eq!(Hint::parse(to_json(hint).as_bytes()).expect("a hint"), *hint);
    }
    let again = signed(&BASE64_STANDARD.encode(body), body, true).map(post);
    assert_eq!(again, Some((status, hints)), "the same body in base64");
    if sender != "gitlab" {
        let forged = signed(&format!("{body} "), body, false).map(post);
        assert_eq!(forged, Some((401, Vec::new())), "another body");
    }
}

/// `None` for invalid headers.
fn request(sender: &str, headers: &Value, body: &str, is_base64_encoded: bool) -> Option<LambdaFunctionUrlRequest> {
    let request = json!({
        "rawPath": format!("/{CLUSTER}/{}", if matches!(sender, "github" | "gitlab" | "gitea") { sender } else { "" }),
        "headers": headers,
        "requestContext": { "http": {} },
        "body": body,
        "isBase64Encoded": is_base64_encoded,
    });
    serde_json::from_value(request).ok()
}

/// The status of the answer, and the hints that were sent.
fn post(request: LambdaFunctionUrlRequest) -> (i64, Vec<Hint>) {
    let world = World::new(0, Faults::NONE);
    let response = world.drive(answer(&KEYS, &REFUSALS, &world, request, Timestamp::UNIX_EPOCH)).expect("a world without faults");
    let hints = world.sent().into_iter().map(|message| match message {
        Message::Hint(hint) => hint,
        other => panic!("{other:?} is no hint"),
    });
    (response.status_code, hints.collect())
}
