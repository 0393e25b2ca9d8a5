//! A function for arm64 in an emulator: the way that `make deploy` builds it.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::hmac;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, sync::mpsc, time::timeout};

/// The emulator is some ten times slower.
const LIMIT: Duration = Duration::from_mins(1);
/// The glibc of Lambda's `provided.al2023`.
const GLIBC: (u32, u32) = (2, 34);

#[tokio::test]
async fn a_function_for_arm64_answers_and_asks_for_no_newer_glibc_than_lambda_has() -> Result<()> {
    let bootstrap = build().await?;
    let needed = glibc(&std::fs::read(&bootstrap)?);
    assert!(needed > (2, 0) && needed <= GLIBC, "{needed:?}");
    let body = json!({ "involvedObject": {}, "reason": "NewArtifact" }).to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"k");
    let signature = base16ct::lower::encode_string(hmac::sign(&key, body.as_bytes()).as_ref());
    let event = json!({
        "version": "2.0", "rawPath": "/c", "body": body, "isBase64Encoded": false,
        "headers": { "x-signature": format!("sha256={signature}") },
        "requestContext": { "http": { "method": "POST", "path": "/c" } },
    });
    let answer = invoke(&bootstrap, &event).await?;
    assert_eq!((&answer["statusCode"], &answer["body"]), (&json!(200), &json!("ignored")), "{answer}");
    Ok(())
}

async fn build() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arm64");
    let words = ["lambda", "build", "--quiet", "--locked", "--arm64", "--package", "webhook", "--lambda-dir"];
    let mut cargo = Command::new("cargo");
    let output = cargo.current_dir(root()).args(words).arg(&folder).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(folder.join("webhook/bootstrap"))
}

/// The newest glibc whose symbols a program names.
fn glibc(program: &[u8]) -> (u32, u32) {
    let versions = program.split(|byte| *byte == 0).filter_map(|word| {
        let (major, minor) = std::str::from_utf8(word).ok()?.strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max().unwrap_or_default()
}

/// Starts the function, gives it one event, and ends it when it has answered.
async fn invoke(bootstrap: &Path, event: &Value) -> Result<Value> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (events, api) = (listener.local_addr()?.to_string(), event.to_string());
    let (answered, mut answers) = mpsc::channel(1);
    let router = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route(
            "/2018-06-01/runtime/invocation/1/response",
            post(async move |body: Bytes| {
                let _nobody_waits = answered.try_send(body);
                StatusCode::ACCEPTED
            }),
        )
        .with_state(api);
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut function = Command::new(root().join("target/tools/qemu-aarch64"));
    function.arg("-L").arg(root().join("target/tools/aarch64")).arg(bootstrap).env_clear().envs([
        ("AWS_LAMBDA_RUNTIME_API", events.as_str()),
        ("AWS_LAMBDA_FUNCTION_NAME", "f"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "g"),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "s"),
        ("AWS_REGION", "us-east-1"),
        ("HINTS_QUEUE_URL", "http://127.0.0.1/h"),
        ("WEBHOOK_KEYS", r#"{"c":"k"}"#),
    ]);
    let mut function = function.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    let answer = timeout(LIMIT, answers.recv()).await.ok().flatten();
    function.start_kill()?;
    let said = function.wait_with_output().await?;
    served.abort();
    let said = || format!("no answer: {}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    Ok(serde_json::from_slice(&answer.with_context(said)?)?)
}

async fn next(State(event): State<String>) -> ([(&'static str, &'static str); 3], String) {
    let headers = [
        ("lambda-runtime-aws-request-id", "1"),
        ("lambda-runtime-deadline-ms", "4102444800000"),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:us-east-1:1:function:f"),
    ];
    (headers, event)
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
