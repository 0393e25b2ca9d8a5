#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "helpers of tests are tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{PAGES, has_test, rows, tests};

/// The allowed dependencies of `shared/source`: none of them opens a file or a socket.
const OF_SOURCE: [&str; 7] = ["base16ct", "blake3", "flate2", "serde", "serde_json", "sha2", "thiserror"];
/// Words in code that opens one, or asks the system for anything else.
const OPENS: [&str; 9] = ["fs", "net", "os", "env", "process", "OpenOptions", "TcpStream", "UdpSocket", "UnixStream"];
/// Enums whose variants have no named fields.
const WITHOUT_FIELDS: [&str; 3] = ["Phase", "ConfigValue", "FetchKind"];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The Rust files below a folder of the project, each with its relative path and its text.
pub(super) fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let (mut folders, mut sources) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    assert!(!sources.is_empty(), "{folder}");
    sources
}

/// A package of the workspace.
pub(super) struct Package {
    /// From the root, such as `functions/launcher`.
    pub(super) folder: String,
    features: usize,
    /// The names of its dependencies, without those of tests.
    built_with: BTreeSet<String>,
    /// The folders of its dependencies in this workspace, including those of tests.
    own: BTreeSet<String>,
    own_of_tests: BTreeSet<String>,
}

impl Package {
    /// Returns whether it is deployed, or a part of what is deployed.
    fn is_product(&self) -> bool {
        self.is_function() || self.folder.starts_with("shared/") && self.folder != "shared/testkit"
    }

    fn is_function(&self) -> bool {
        self.folder.starts_with("functions/")
    }
}

pub(super) fn packages() -> Vec<Package> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = root();
    let folder = |path: &str| Path::new(path).strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap();
        let is_of_tests = |dependency: &&Value| dependency["kind"] == "dev";
        let own = |of_tests: bool| {
            let chosen = dependencies.iter().filter(|dependency| is_of_tests(dependency) == of_tests);
            chosen.filter_map(|dependency| dependency["path"].as_str()).map(folder).collect()
        };
        let built_with = dependencies.iter().filter(|dependency| !is_of_tests(dependency));
        Package {
            folder: folder(package["manifest_path"].as_str().unwrap().strip_suffix("/Cargo.toml").unwrap()),
            features: package["features"].as_object().unwrap().len(),
            built_with: built_with.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect(),
            own: own(false),
            own_of_tests: own(true),
        }
    };
    let packages: Vec<_> = metadata["packages"].as_array().unwrap().iter().map(package).collect();
    assert!(packages.iter().filter(|package| package.is_function()).count() >= 8, "not all functions");
    packages
}

#[test]
fn rules_of_core_and_of_the_simulation_are_where_the_table_says() {
    let core = include_str!("../../../shared/core/src/invariants.rs");
    let simulation: String = sources("tests/src/sim").into_iter().map(|(_, text)| text).collect();
    let table = rows(PAGES[0].1);
    for (number, (_, row)) in (1..).zip(&table) {
        let rule = format!("\"{number}: ");
        let has: Vec<_> = [("core", core), ("simulation", &simulation)]
            .iter()
            .filter(|(_, text)| text.contains(&rule))
            .map(|(name, _)| *name)
            .collect();
        assert!(row[0].starts_with(&format!("{number}. ")), "{row:?}");
        assert_eq!(row[1], has.join(", "), "{}", row[0]);
    }
    assert_eq!(table.len(), 9);
    let further = (10..).take_while(|number| simulation.contains(&format!("\"{number}: ")));
    for number in further.clone() {
        assert!(PAGES[0].1.contains(&format!("\n| {number} | ")), "the page lacks rule {number}");
    }
    assert!(further.count() >= 7);
}

#[test]
fn tests_that_the_text_of_the_page_names_exist() {
    let is_text = |line: &&str| !line.starts_with('|');
    let named: Vec<_> = PAGES[0].1.lines().filter(is_text).flat_map(tests).filter(|(path, _)| path.contains('/')).collect();
    assert!(named.len() >= 3, "{named:?}");
    for (path, function) in named {
        assert!(has_test(&fs::read_to_string(root().join(path)).unwrap(), function), "{path} has no test {function}");
    }
}

#[test]
fn functions_and_libraries_depend_on_libraries_alone() {
    for package in packages().iter().filter(|package| package.is_product()) {
        let is_library = |folder: &&String| folder.starts_with("shared/") && *folder != "shared/testkit";
        let other: Vec<_> = package.own.iter().filter(|folder| !is_library(folder)).collect();
        assert!(other.is_empty(), "{} depends on {other:?}", package.folder);
        let other: Vec<_> = package.own_of_tests.iter().filter(|folder| !folder.starts_with("shared/")).collect();
        assert!(other.is_empty(), "the tests of {} depend on {other:?}", package.folder);
    }
}

#[test]
fn shared_source_opens_no_file_and_no_socket() {
    let packages = packages();
    let source = packages.iter().find(|package| package.folder == "shared/source").unwrap();
    assert_eq!(source.built_with, OF_SOURCE.map(ToOwned::to_owned).into());
    for (path, text) in sources("shared/source/src") {
        let opens = text.split(|char: char| !char.is_alphanumeric() && char != '_').find(|word| OPENS.contains(word));
        assert_eq!(opens, None, "{}", path.display());
    }
}

/// Documents of AWS and Pulumi are only read, and may have any fields.
#[test]
fn documents_refuse_fields_that_they_do_not_know() {
    let mut checked = 0;
    for (path, text) in sources("shared/contract/src") {
        let mut attributes = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            let mut words = line.split(' ').skip_while(|word| !["struct", "enum"].contains(word));
            if line.starts_with("#[") {
                attributes.push_str(line);
                continue;
            }
            if let (Some(_), Some(name)) = (words.next(), words.next())
                && attributes.contains("Serialize")
                && attributes.contains("Deserialize")
                && !WITHOUT_FIELDS.contains(&name)
            {
                assert!(attributes.contains("deny_unknown_fields"), "{name} in {} takes any fields", path.display());
                checked += 1;
            }
            attributes.clear();
        }
    }
    assert!(checked > 30, "{checked} types");
}

/// By the source text: only modules of tests are compiled for tests, and no other code is compiled
/// under a condition.
#[test]
fn product_has_no_code_path_for_tests() {
    for package in packages().iter().filter(|package| package.is_product()) {
        assert_eq!(package.features, 0, "{} has features", package.folder);
        for (path, text) in sources(&format!("{}/src", package.folder)) {
            let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            while let Some(line) = lines.next() {
                if !line.contains("cfg(") && !line.contains("cfg!(") && !line.contains("cfg_attr(") {
                    continue;
                }
                assert_eq!(line, "#[cfg(test)]", "{}", path.display());
                let item = lines.find(|line| !line.starts_with("#[")).unwrap_or_default();
                assert!(item.trim_start_matches("pub(crate) ").starts_with("mod "), "{}: {item}", path.display());
            }
        }
    }
}
