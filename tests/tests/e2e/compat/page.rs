//! `docs/compatibility.md` describes every field and every case, and no other.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/compatibility.md");

/// The generated definitions and the headings of their fields. For a Stack, v1 is described.
const DEFINITIONS: [(&str, &str); 4] = [
    ("Stack", include_str!("../../../../infra/kubernetes/crds/stacks.pulumi.com.yaml")),
    ("Program", include_str!("../../../../infra/kubernetes/crds/programs.pulumi.com.yaml")),
    ("Workspace", include_str!("../../../../infra/kubernetes/crds/workspaces.auto.pulumi.com.yaml")),
    ("Update", include_str!("../../../../infra/kubernetes/crds/updates.auto.pulumi.com.yaml")),
];

/// Tests that the page names as `file::test`.
const TESTS: [(&str, &str); 24] = [
    ("canary", include_str!("../canary.rs")),
    ("compat", include_str!("mod.rs")),
    ("drift", include_str!("../drift.rs")),
    ("failures", include_str!("../failures.rs")),
    ("fairness", include_str!("../fairness.rs")),
    ("git", include_str!("../git.rs")),
    ("hostile", include_str!("../hostile.rs")),
    ("identity", include_str!("../identity.rs")),
    ("interruption", include_str!("../interruption.rs")),
    ("languages", include_str!("../languages.rs")),
    ("logs", include_str!("../logs.rs")),
    ("main_path", include_str!("../main_path.rs")),
    // No run can show this: a task has no Pod Identity, no webhook and no network of the cluster.
    // The doctor reports it.
    ("migrate", include_str!("../../../../infra/doctor/src/migrate.rs")),
    ("migration", include_str!("../migration.rs")),
    ("outputs", include_str!("../outputs.rs")),
    ("pko", include_str!("../pko.rs")),
    ("platform", include_str!("../platform.rs")),
    ("programs", include_str!("../programs.rs")),
    ("pull_requests", include_str!("../pull_requests.rs")),
    ("readiness", include_str!("../readiness.rs")),
    ("sources", include_str!("../sources.rs")),
    ("ttl", include_str!("../ttl.rs")),
    ("updates", include_str!("../updates.rs")),
    ("workspaces", include_str!("../workspaces.rs")),
];

/// The rows of a section's tables, as cells.
fn rows(section: &str) -> Vec<Vec<&str>> {
    let cells = |line: &'static str| line.trim().trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>();
    let mut found = Vec::new();
    let mut here = false;
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            here = section.is_empty() || heading.trim_start_matches('#').trim() == section;
        }
        if here && line.starts_with("| ") && !line.starts_with("| ---") {
            found.push(cells(line));
        }
    }
    found
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The paths of a schema's fields: `.` for a field, `[]` for an item of a list, `{}` for a value of
/// a map.
fn paths(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    if !at.is_empty() {
        found.insert(at.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        paths(field, &if at.is_empty() { name.clone() } else { format!("{at}.{name}") }, found);
    }
    for (part, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[part].is_object() {
            paths(&schema[part], &format!("{at}{mark}"), found);
        }
    }
}

#[test]
fn page_lists_exactly_the_fields_of_the_crds() -> Result<()> {
    for (kind, definition) in DEFINITIONS {
        let definition: Value = serde_saphyr::from_str(definition)?;
        let versions = definition["spec"]["versions"].as_array().context("versions")?;
        let version = versions.iter().find(|version| version["storage"] == true).context("the version that is stored")?;
        let mut known = BTreeSet::new();
        paths(&version["schema"]["openAPIV3Schema"], "", &mut known);
        known.retain(|path| !path.starts_with("metadata"));

        let rows = rows(kind);
        let told: Vec<_> = rows.iter().filter_map(|row| quoted(row[0]).next()).collect();
        ensure!(told.iter().collect::<BTreeSet<_>>().len() == told.len(), "{kind}: a field has two rows");
        // A row `path.**` covers the field and everything below it.
        let covers = |told: &str, path: &str| match told.strip_suffix(".**") {
            Some(head) => path.strip_prefix(head).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{'])),
            None => path == told,
        };
        let missing: Vec<_> = known.iter().filter(|path| !told.iter().any(|told| covers(told, path))).collect();
        ensure!(missing.is_empty(), "{kind}: the page does not tell of {missing:#?}");
        let other: Vec<_> = told.iter().filter(|told| !known.iter().any(|path| covers(told, path))).collect();
        ensure!(other.is_empty(), "{kind}: there are no fields {other:#?}");
        for row in rows.iter().filter(|row| row[0].starts_with('`')) {
            let verdict = row.get(1).copied().unwrap_or_default();
            let known =
                verdict == "same" || ["better: ", "different: ", "refused: "].iter().any(|word| verdict.starts_with(word));
            ensure!(known, "{kind}: {:?} is neither same, better, different nor refused", row[0]);
        }
    }
    Ok(())
}

#[test]
fn the_page_names_every_case_and_no_other() -> Result<()> {
    let mut cases = BTreeSet::new();
    for text in [super::REFUSED, super::RUNS, super::DELETION, super::TIME] {
        for case in super::case::read(text, "team", "/state", "/files")? {
            ensure!(cases.insert(case.name.clone()), "two cases are named {}", case.name);
        }
    }
    let rows = rows("");
    // The last column of every table with three.
    let named: BTreeSet<_> = rows.iter().filter_map(|row| row.get(2)).flat_map(|shown| quoted(shown)).collect();
    for name in &named {
        let known = match name.split_once("::") {
            Some((file, test)) => TESTS.iter().any(|(known, text)| *known == file && text.contains(&format!("fn {test}("))),
            None => cases.contains(*name),
        };
        ensure!(known, "the page names {name:?}, which is no case and no test");
    }
    let is_header = |row: &Vec<_>| row.last() == Some(&"shown by");
    let unshown: Vec<_> =
        rows.iter().filter(|row| !is_header(row) && row.get(2).is_none_or(|shown| !shown.contains('`'))).collect();
    ensure!(unshown.is_empty(), "these rows name no case {unshown:#?}");
    let untold: Vec<_> = cases.iter().filter(|case| !named.contains(case.as_str())).collect();
    ensure!(untold.is_empty(), "the page does not name the cases {untold:#?}");
    Ok(())
}
