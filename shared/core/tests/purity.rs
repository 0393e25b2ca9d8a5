//! `driftless-core` decides and cannot act, because none of its dependencies can.

use std::{collections::BTreeSet, process::Command};

/// No runtime, no client, no clock, no randomness, no network.
const FORBIDDEN: [&str; 12] =
    ["tokio", "futures", "kube", "k8s-openapi", "aws-", "lambda", "reqwest", "hyper", "rustls", "rand", "getrandom", "chrono"];

/// `cargo tree` and not `cargo metadata`: the latter includes features that other members of the
/// workspace enable.
#[test]
fn core_depends_on_nothing_that_could_act() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let arguments = ["tree", "--edges", "normal", "--prefix", "none", "--locked", "--offline", "--manifest-path", manifest];
    let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("jiff"), "not core's tree: {tree}");
    let found: Vec<_> = names.iter().filter(|name| FORBIDDEN.iter().any(|word| name.starts_with(word))).collect();
    assert_eq!(found, Vec::<&&str>::new());
}
