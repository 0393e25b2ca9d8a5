//! `docs/security.md` names a test for every protection, and every test that it names exists.

use std::{fs, path::Path};

const PAGE: &str = include_str!("../../docs/security.md");

/// The rows of the tables whose last column is headed `test`.
fn protections() -> Vec<Vec<&'static str>> {
    let (mut rows, mut in_table) = (Vec::new(), false);
    for line in PAGE.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            in_table = false;
            continue;
        };
        let cells: Vec<_> = row.split(" | ").map(str::trim).collect();
        if cells.last() == Some(&"test") {
            in_table = true;
        } else if in_table && !cells.iter().all(|cell| *cell == "---") {
            rows.push(cells);
        }
    }
    rows
}

/// Returns the tests that a cell names, each as `` `path::function` ``.
fn tests(cell: &str) -> Vec<(&str, &str)> {
    cell.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit_once("::")).collect()
}

/// Whether the text has the function, below an attribute that makes it a test.
fn has_test(text: &str, function: &str) -> bool {
    let (signature, mut is_test) = (format!("fn {function}("), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.contains("test");
        } else if line.contains(&signature) {
            return is_test;
        } else if !line.starts_with("//") {
            is_test = false;
        }
    }
    false
}

#[test]
fn every_protection_names_a_test() {
    let rows = protections();
    assert!(rows.len() > 20, "docs/security.md has {} rows in tables with a column test", rows.len());
    for row in rows {
        assert_eq!(row.len(), 3, "docs/security.md: a row has threat, protection and test: {row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "docs/security.md: {row:?} has an empty cell");
        let cell = row[2];
        let named = cell.matches("::").count();
        assert!(named > 0 && tests(cell).len() == named, "docs/security.md: {row:?} names no test as `path::function`");
    }
}

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, function) in protections().iter().flat_map(|row| tests(row[2])) {
        let text = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("docs/security.md names {path}: {error}"));
        assert!(has_test(&text, function), "docs/security.md names the test {function}, and {path} has none");
    }
}

#[test]
fn only_a_function_with_a_test_attribute_counts() {
    let text = "#[tokio::test]\n// why\nasync fn one() {}\n#[test]\nfn two() {}\nfn helper() {}\n";
    assert!(has_test(text, "one") && has_test(text, "two"));
    assert!(!has_test(text, "helper") && !has_test(text, "three"));
}
