//! The output of `make arm64`, built as by `make deploy`, in an emulator.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use aws_lc_rs::hmac;
use driftless_tests::function::{Function, secrets_manager};
use serde_json::{Value, json};
use tokio::process::Command;

/// `EM_AARCH64`, the machine in an ELF header.
const AARCH64: u8 = 183;
/// The glibc of Lambda's `provided.al2023`.
const GLIBC: (u32, u32) = (2, 34);

#[tokio::test]
async fn arm64_functions_fit_the_glibc_of_lambda_and_one_answers() -> Result<()> {
    for folder in fs::read_dir(root().join("target/lambda-arm64"))? {
        let bootstrap = folder?.path().join("bootstrap");
        let program = fs::read(&bootstrap).with_context(|| bootstrap.display().to_string())?;
        let needed = glibc(&program);
        assert!(program[18] == AARCH64 && needed > (2, 0) && needed <= GLIBC, "{}: {needed:?}", bootstrap.display());
    }
    let body = json!({ "involvedObject": {}, "reason": "NewArtifact" }).to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"k");
    let signature = base16ct::lower::encode_string(hmac::sign(&key, body.as_bytes()).as_ref());
    let mut event: Value = serde_json::from_str(include_str!("../../events/webhook/flux.json"))?;
    event["headers"]["x-signature"] = format!("sha256={signature}").into();
    (event["rawPath"], event["body"], event["isBase64Encoded"]) = ("/c".into(), body.into(), false.into());
    let mut emulator = Command::new(root().join("target/tools/qemu-aarch64"));
    emulator.arg("-L").arg(root().join("target/tools/aarch64")).arg(root().join("target/lambda-arm64/webhook/bootstrap"));
    let (endpoint, _served) = secrets_manager(r#"{"c":{"flux":"k"}}"#).await?;
    let (_, answer) = Function::start(emulator, &[endpoint]).await?.invoke(event.to_string()).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    assert_eq!((&answer["statusCode"], &answer["body"]), (&json!(200), &json!("ignored")), "{answer}");
    Ok(())
}

/// The newest glibc version in a program's symbols.
fn glibc(program: &[u8]) -> (u32, u32) {
    let versions = program.split(|byte| *byte == 0).filter_map(|word| {
        let (major, minor) = std::str::from_utf8(word).ok()?.strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max().unwrap_or_default()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
