//! The completion of a command line by kubectl.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::{fs, path::PathBuf, process::Command};

use clap::CommandFactory as _;
use driftless_cli::{
    arguments::Arguments,
    complete::{Completion, PROGRAM},
};
use support::stacks;
use tempfile::TempDir;

/// The candidates for the last word, without their descriptions, and the directive.
fn candidates(words: &[&str]) -> Vec<String> {
    let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
    let completion = Completion::of(&words);
    let found = if completion.cluster.is_some() { stacks() } else { Vec::new() };
    completion.answer(&found).lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn commands_options_values_and_stacks_are_candidates() {
    for (words, expected) in [
        (&["re"][..], &["reconcile", "resume", "remediate", "reject", ":4"][..]),
        (&["--name"], &["--namespace", ":4"]),
        (&["-n", "get", "tre"], &["tree", ":4"]),
        (&["run", ""], &["preview", "up", "refresh", "destroy", ":4"]),
        (&["run", "up", "ne"], &["network", ":4"]),
        (&["run", "up", "network", ""], &[":4"]),
        (&["run", "up", "network", "--tim"], &["--timeout", ":4"]),
        (&["get", "shop", "--output", ""], &["json", "yaml", ":4"]),
        (&["get", "shop", "-o", "y"], &["yaml", ":4"]),
        (&["get", "shop", "w"], &["web", ":4"]),
        (&["explain", "--output=json", "a"], &["api", ":4"]),
        (&["explain", "-nteam", "a"], &["api", ":4"]),
        (&["explain", "-ojson", "a"], &["api", ":4"]),
        (&["logs", "--follow", "w"], &["web", ":4"]),
        (&["ignore", "shop", ""], &[":4"]),
        (&["doctor", "--only", ""], &["aws", "cluster", "canary", ":4"]),
        (&["completion", "b"], &["bash", ":4"]),
        (&["--kubeconfig", ""], &[":0"]),
        (&["nonsense", "x"], &[":4"]),
    ] {
        assert_eq!(candidates(words), expected, "{words:?}");
    }
    let visible = Arguments::command().get_subcommands().count();
    assert_eq!(candidates(&[""]).len(), visible + 2, "each command, help and the directive");
    assert!(candidates(&["get", "--"]).contains(&"--all-namespaces".to_owned()));
}

#[test]
fn stacks_are_those_of_the_cluster_that_the_words_name() {
    let words = ["-n", "team", "--context=c", "explain", "--kubeconfig", "file", ""].map(ToOwned::to_owned);
    let connection = Completion::of(&words).cluster.unwrap();
    assert_eq!(connection.namespace.as_deref(), Some("team"));
    assert_eq!(connection.context.as_deref(), Some("c"));
    assert_eq!(connection.kubeconfig, Some(PathBuf::from("file")));
}

#[test]
fn binary_completes_under_the_name_that_kubectl_calls() {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join(PROGRAM);
    fs::hard_link(env!("CARGO_BIN_EXE_kubectl-driftless"), &program)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_kubectl-driftless"), &program).map(drop))
        .unwrap();
    let answer = |words: &[&str]| {
        let output = Command::new(&program).args(words).env("KUBECONFIG", folder.path().join("none")).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let about = "Shows a Stack with its source, its Updates and their tasks";
    assert_eq!(answer(&["tre"]), format!("tree\t{about}\n:4\n"));
    assert_eq!(answer(&["explain", ""]), ":4\n", "a cluster that cannot be read has no candidates");
}
