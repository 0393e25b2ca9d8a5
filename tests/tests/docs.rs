//! Every row of a table with a column `test` names tests, and every named test exists. The README
//! shows the newest proof. The claims of docs/architecture.md about the code are true.

#[path = "docs/architecture.rs"]
mod architecture;
#[path = "docs/circles.rs"]
mod circles;

use std::{fs, path::Path, process::Command};

use driftless_doctor::prove::record::{self, Proof};

/// The pages with such tables, and the minimum number of their rows.
const PAGES: [(&str, &str, usize); 3] = [
    ("docs/architecture.md", include_str!("../../docs/architecture.md"), 9),
    ("docs/security.md", include_str!("../../docs/security.md"), 20),
    ("docs/operations.md", include_str!("../../docs/operations.md"), 33),
];

#[test]
fn page_of_reasons_is_generated_from_the_code() {
    let page = driftless_tests::messages::page();
    assert!(include_str!("../../docs/messages.md") == page, "docs/messages.md is out of date; run `make messages`");
}

/// The tables of a page, each as its rows of cells, the header first.
fn tables(page: &'static str) -> Vec<Vec<Vec<&'static str>>> {
    let (mut tables, mut is_inside) = (Vec::<Vec<_>>::new(), false);
    for line in page.lines() {
        let row = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
        let cells = row.map(|row| row.split(" | ").map(str::trim).collect::<Vec<_>>());
        if row.is_some() && !is_inside {
            tables.push(Vec::new());
        }
        is_inside = row.is_some();
        if let (Some(cells), Some(table)) = (cells, tables.last_mut()) {
            table.push(cells);
        }
    }
    tables
}

/// The rows of a page's tables whose last column has the heading `test`, each with the number of
/// columns that it must have.
fn rows(page: &'static str) -> Vec<(usize, Vec<&'static str>)> {
    let with_tests = tables(page).into_iter().filter(|table| table[0].last() == Some(&"test"));
    let rows = with_tests.flat_map(|table| {
        let columns = table[0].len();
        table.into_iter().skip(1).map(move |row| (columns, row))
    });
    rows.filter(|(_, row)| row.iter().any(|cell| *cell != "---")).collect()
}

/// Returns the tests that a cell names, each as `` `path::function` ``.
fn tests(cell: &str) -> Vec<(&str, &str)> {
    cell.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit_once("::")).collect()
}

/// Returns whether the text has the function, below an attribute that makes it a test.
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
fn every_table_of_the_security_page_has_tests() {
    let (name, page, _) = PAGES[1];
    let tables = tables(page);
    assert!(name == "docs/security.md" && tables.len() > 5, "{} tables of {name}", tables.len());
    for table in tables {
        assert_eq!(table[0].last(), Some(&"test"), "{:?} of {name} has no column test at its end", table[0]);
    }
}

#[test]
fn every_row_names_a_test() {
    for (name, page, least) in PAGES {
        let rows = rows(page);
        assert!(rows.len() >= least, "{name} has {} rows in tables with a column test", rows.len());
        for (columns, row) in rows {
            assert_eq!(row.len(), columns, "{name}: {row:?}");
            assert!(row.iter().all(|cell| !cell.is_empty()), "{name}: {row:?} has an empty cell");
            let cell = row[columns - 1];
            let named = cell.matches("::").count();
            assert!(named > 0 && tests(cell).len() == named, "{name}: {row:?} names no test as `path::function`");
        }
    }
}

#[test]
fn every_failure_of_the_operations_page_has_an_end_to_end_test() {
    let (name, page, _) = PAGES[2];
    assert_eq!(name, "docs/operations.md");
    for (columns, row) in rows(page) {
        let tests = tests(row[columns - 1]);
        assert!(tests.iter().any(|(path, _)| path.starts_with("tests/tests/e2e/")), "{name}: {row:?} has no end-to-end test");
    }
}

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, page, _) in PAGES {
        for (path, function) in rows(page).iter().filter_map(|(_, row)| row.last()).flat_map(|cell| tests(cell)) {
            let text = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{name} names {path}: {error}"));
            assert!(has_test(&text, function), "{name} names the test {function}, and {path} has none");
        }
    }
}

/// The maximum length of a line of a page or a comment, but for tables and blocks of code.
const COLUMNS: usize = 100;

#[test]
fn pages_and_comments_fit_their_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = Command::new("git").args(["ls-files", "*.md", "*.rs"]).current_dir(&root).output().unwrap();
    let files: Vec<&str> = str::from_utf8(&listed.stdout).unwrap().lines().collect();
    assert!(files.len() > 100, "{listed:?}");
    for file in files.into_iter().filter(|file| root.join(file).exists()) {
        let is_rust = Path::new(file).extension().is_some_and(|extension| extension == "rs");
        let mut is_code = false;
        for (number, line) in (1..).zip(fs::read_to_string(root.join(file)).unwrap().lines()) {
            let comment = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!', ' ']));
            let Some(text) = (if is_rust { comment } else { Some(line.trim_start()) }) else {
                is_code = false;
                continue;
            };
            is_code ^= text.starts_with("```");
            let fits = is_code || text.starts_with('|') || line.chars().count() <= COLUMNS;
            assert!(fits, "{file}:{number} has more than {COLUMNS} columns: {line}");
        }
    }
}

/// The folders of the project; a page that names a path in one of them names a file.
const FOLDERS: [&str; 6] = ["docs/", "events/", "functions/", "infra/", "shared/", "tests/"];

#[test]
fn every_file_that_a_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages =
        ["", "docs", "docs/tasks"].map(|folder| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    for page in pages.into_iter().flatten().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        // Blocks of code are commands, and may create what they name.
        let prose = text.split("```").step_by(2);
        let code = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
        let paths = code.map(|code| code.split("::").next().unwrap_or(code));
        for path in paths.filter(|path| FOLDERS.iter().any(|folder| path.starts_with(folder)) && !is_pattern(path)) {
            assert!(root.join(path).exists(), "{} names {path:?}, which does not exist", page.display());
        }
    }
}

/// Returns whether a path has a placeholder, such as `functions/NAME/`, or other characters than a
/// file's name.
fn is_pattern(path: &str) -> bool {
    let is_placeholder =
        |part: &str| part.split('.').next().is_some_and(|name| !name.is_empty() && name.chars().all(char::is_uppercase));
    path.contains(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c)) || path.split('/').any(is_placeholder)
}

#[test]
fn only_a_function_with_a_test_attribute_counts() {
    let text = "#[tokio::test]\n// why\nasync fn one() {}\n#[test]\nfn two() {}\nfn helper() {}\n";
    assert!(has_test(text, "one") && has_test(text, "two"));
    assert!(!has_test(text, "helper") && !has_test(text, "three"));
}

#[test]
fn readme_shows_the_newest_proof_on_aws_or_that_there_is_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut proofs = Vec::new();
    for file in fs::read_dir(root.join("proof")).into_iter().flatten() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let proof: Proof = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(path.file_name().unwrap().to_str(), Some(&*proof.file()), "the name is not of its date and Region");
        proofs.push(proof);
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let section = readme.split("### On AWS\n\n").nth(1).expect("README.md has a section On AWS");
    let shown: Vec<_> = section.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(shown.join("\n"), record::readme(&proofs).trim_end(), "README.md, section On AWS");
}
