//! Least privilege, by the actual calls: reads the logs of the worlds of a whole run of the e2e
//! tests, and compares every call with the rights of the template's roles and of the cluster's
//! roles. `make e2e` runs it last.
//!
//! A call that no rule covers, a refusal that no test provokes, and an unused right without a
//! written reason are failures. The reasons are in the lists at the top of [`iam`] and [`rbac`]; an
//! entry that is no longer true is a failure too.

mod iam;
mod rbac;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result, ensure};
use driftless_tests::{
    aws::{
        CALLS_LOG,
        policy::{self, Context},
    },
    world::{cluster::AUDIT_LOG, journal, start::WORLDS},
};
use serde_json::Value;

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
fn aws_roles_allow_what_the_system_did_and_nothing_else() -> Result<()> {
    no_findings(&iam::findings(&entries(&[CALLS_LOG])?)?)
}

#[test]
fn every_message_of_a_function_has_a_group() -> Result<()> {
    no_findings(&iam::messages_without_group(&entries(&[CALLS_LOG])?)?)
}

#[test]
fn cluster_roles_allow_what_the_system_did_and_nothing_else() -> Result<()> {
    no_findings(&rbac::findings(&entries(&[AUDIT_LOG, "audit-second.jsonl"])?)?)
}

fn no_findings(findings: &BTreeSet<String>) -> Result<()> {
    let lines: Vec<_> = findings.iter().map(String::as_str).collect();
    ensure!(
        findings.is_empty(),
        "{} findings. They are about a run of all e2e tests (make e2e): after a part of them, rights are unused that are not needless.\n\n{}\n",
        findings.len(),
        lines.join("\n\n")
    );
    Ok(())
}

/// The entries of logs of the last worlds.
fn entries(names: &[&str]) -> Result<Vec<Value>> {
    let mut entries = Vec::new();
    for log in WORLDS
        .iter()
        .flat_map(|world| names.iter().map(move |name| Path::new(PROJECT).join("target").join(world).join("logs").join(name)))
    {
        for entry in journal::entries(&log, 0).context("no world has left it: run `make e2e`")? {
            entries.push(entry.with_context(|| log.display().to_string())?);
        }
    }
    ensure!(!entries.is_empty(), "there is nothing in {names:?}: run `make e2e`");
    Ok(entries)
}

/// Whether a right with a reason to be unused is used in some runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    /// In no run of the tests.
    Never,
    /// In runs in which something rare happens.
    Sometimes,
}

/// Matches a pattern of a list, in which `*` is any text.
fn fits(pattern: &str, text: &str) -> bool {
    policy::like(pattern, text, &Context::default())
}
