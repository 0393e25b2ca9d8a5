//! The commands for operators: the binary, with programs in place of the AWS CLI and kubectl.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
#![cfg(unix)]

mod support;

use std::{env, fs, path::Path, process::Command};

use serde_json::json;
use support::golden;
use tempfile::TempDir;

/// What a command prints, and its exit code.
fn printed(arguments: &[&str]) -> (String, Option<i32>) {
    let folder = TempDir::new().unwrap();
    let crds = folder.path().join("crds.json");
    fs::write(&crds, json!({ "items": driftless_api::crds::all().unwrap() }).to_string()).unwrap();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let path = env::join_paths([&programs, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-driftless"));
    let output = command.args(arguments).env_clear().env("PATH", path).env("CRDS", crds).output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn doctor_names_what_is_wrong_and_its_remedy() {
    let (text, code) = printed(&["doctor", "--context", "shop"]);
    golden("doctor", &text);
    assert_eq!(code, Some(1), "something does not work");
    let (text, code) = printed(&["doctor", "--context", "shop", "-o", "json"]);
    golden("doctor-json", &text);
    assert_eq!(code, Some(1), "the format changes no exit code");
    let (text, code) = printed(&["doctor", "--context", "shop", "--only", "canary"]);
    assert_eq!(code, Some(0), "a warning is no failure: {text}");
}

#[test]
fn migrate_reports_each_object_of_the_operator() {
    let (text, code) = printed(&["migrate", "--context", "shop"]);
    golden("migrate", &text);
    assert_eq!(code, Some(1), "an object is refused");
    let (text, code) = printed(&["migrate", "--context", "shop", "-o", "yaml"]);
    golden("migrate-yaml", &text);
    assert_eq!(code, Some(1), "the format changes no exit code");
}

#[test]
fn migrate_without_kubectl_ends_with_a_code_of_its_own() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-driftless"));
    let output = command.arg("migrate").env_clear().env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.starts_with(b"error: cannot read the objects: "), "{output:?}");
}

#[test]
fn cost_and_capacity_are_those_of_make() {
    for (name, arguments) in [
        ("cost", ["--stacks=1000", "--runs-per-day=500", "--minutes=3"].as_slice()),
        ("capacity", &["--stacks=1000", "--runs-per-hour=60"]),
    ] {
        let (text, code) = printed(&[&[name], arguments].concat());
        golden(name, &text);
        assert_eq!(code, Some(0));
        let (text, code) = printed(&[&[name], arguments, &["-o", "json"]].concat());
        golden(&format!("{name}-json"), &text);
        assert_eq!(code, Some(0));
    }
}
