//! `driftless-core` decides and does nothing else. What it cannot reach it cannot do: this holds its dependencies to that.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// No runtime, no client, no clock, no randomness, no network.
const FORBIDDEN: [&str; 12] =
    ["tokio", "futures", "kube", "k8s-openapi", "aws-", "lambda", "reqwest", "hyper", "rustls", "rand", "getrandom", "chrono"];

#[test]
fn core_depends_on_nothing_that_could_act() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let arguments = ["metadata", "--format-version", "1", "--locked", "--offline", "--manifest-path", manifest];
    let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let name = |id: &Value| -> String {
        let packages = metadata["packages"].as_array().unwrap();
        packages.iter().find(|package| package["id"] == *id).unwrap()["name"].as_str().unwrap().to_owned()
    };
    let start = nodes.iter().find(|node| name(&node["id"]) == "driftless-core").unwrap();
    let (mut seen, mut queue) = (BTreeSet::new(), vec![start]);
    while let Some(node) = queue.pop() {
        for dependency in node["deps"].as_array().unwrap() {
            let normal =
                dependency["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null() && kind["target"].is_null());
            if normal && seen.insert(name(&dependency["pkg"])) {
                queue.push(nodes.iter().find(|node| node["id"] == dependency["pkg"]).unwrap());
            }
        }
    }
    assert!(seen.contains("jiff"), "the walk found nothing: {seen:?}");
    let found: Vec<_> = seen.iter().filter(|name| FORBIDDEN.iter().any(|word| name.starts_with(word))).collect();
    assert_eq!(found, Vec::<&String>::new());
}
