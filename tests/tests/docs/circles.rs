//! The files of a crate use each other in one direction.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    slice,
};

use regex_lite::Regex;

use super::architecture::{packages, root, sources};

/// The path of a module, or of an item in one.
type Path = Vec<String>;

/// A comment, a string, a word, `::`, or another character.
const TOKEN: &str = r##"//.*|r#"[\s\S]*?"#|"(?:\\[\s\S]|[^"\\])*"|'"'|\w+|::|\S"##;
const ITEMS: [&str; 7] = ["const", "enum", "fn", "static", "struct", "trait", "type"];

/// The items that a file defines, the paths that it uses, and those that it re-exports, by name.
#[derive(Default)]
struct File {
    defined: BTreeSet<String>,
    used: BTreeSet<Path>,
    exported: Vec<(String, Path)>,
}

impl File {
    fn of(text: &str) -> Self {
        // An inline module of tests is the last item of a file.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let pattern = Regex::new(TOKEN).unwrap();
        let tokens = pattern.find_iter(code).map(|token| token.as_str());
        let tokens: Vec<_> = tokens.filter(|token| is_word(token) || token.len() == 1 || *token == "::").collect();
        let (mut file, mut rest, mut before) = (Self::default(), tokens.iter(), "");
        while let Some(token) = rest.next() {
            if *token == "use" && rest.as_slice().first() != Some(&"<") {
                let mut found = Vec::new();
                leaves(&mut rest, &[], &mut found);
                match before {
                    "pub" | ")" => file.exported.extend(found),
                    _ => file.used.extend(found.into_iter().map(|(_, path)| path)),
                }
            } else if ITEMS.contains(&before) {
                file.defined.insert((*token).into());
            } else if is_word(token) && before != "::" {
                let mut path = vec![(*token).to_owned()];
                while let ["::", word, ..] = rest.as_slice()
                    && is_word(word)
                {
                    path.push((*word).into());
                    rest.nth(1);
                }
                // A field may have the name of a function.
                file.used.extend((path.len() > 1 || token.starts_with(char::is_uppercase)).then_some(path));
            }
            before = token;
        }
        file
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && !token.ends_with('#')
}

/// Reads the tree of a `use` to its end: its paths, each with the name that it gets.
fn leaves(tokens: &mut slice::Iter<&str>, prefix: &[String], found: &mut Vec<(String, Path)>) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.next() {
        match *token {
            "::" => {}
            "{" => leaves(tokens, &std::mem::replace(&mut path, prefix.to_vec()), found),
            "as" => found.extend(tokens.next().map(|name| ((*name).into(), std::mem::replace(&mut path, prefix.to_vec())))),
            "self" if !path.is_empty() => found.push((path.last().unwrap().clone(), path.clone())),
            "," | "}" | ";" => {
                if path.len() > prefix.len() {
                    found.push((path.last().unwrap().clone(), std::mem::replace(&mut path, prefix.to_vec())));
                }
                if *token != "," {
                    return;
                }
            }
            word => path.push(word.into()),
        }
    }
}

/// The files of a crate by the paths of their modules.
struct Crate(BTreeMap<Path, File>);

impl Crate {
    /// The module of the file that defines the item of a path.
    fn home(&self, module: &[String], path: &[String]) -> Path {
        let Some((first, rest)) = path.split_first() else { return module.to_vec() };
        let child = [module, slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => self.home(&[], rest),
            "self" => self.home(module, rest),
            "super" => self.home(module.split_last().map_or(&[], |(_, parent)| parent), rest),
            _ if self.0.contains_key(&child) => self.home(&child, rest),
            _ => {
                let exported = self.0.get(module).into_iter().flat_map(|file| &file.exported);
                let defines = |home: &Path| self.0.get(home).is_some_and(|file| file.defined.contains(first));
                let mut homes = exported.filter_map(|(name, path)| match name.as_str() {
                    "*" => Some(self.home(module, &path[..path.len() - 1])).filter(defines),
                    name => (name == first && path.len() > 1).then(|| self.home(module, path)),
                });
                homes.next().unwrap_or_else(|| module.to_vec())
            }
        }
    }

    /// The shortest circle: each file uses the next one, and the last one is the first.
    fn circle(&self) -> Option<Vec<Path>> {
        let uses = |module| {
            let homes = self.0[module].used.iter().map(|path| self.home(module, path));
            homes.filter(|home| home != module && self.0.contains_key(home)).collect::<BTreeSet<_>>()
        };
        let uses: BTreeMap<&Path, _> = self.0.keys().map(|module| (module, uses(module))).collect();
        let of = |start: &Path| {
            let (mut chains, mut seen) = (VecDeque::from([vec![start.clone()]]), BTreeSet::new());
            while let Some(chain) = chains.pop_front() {
                if chain.len() > 1 && chain.last() == Some(start) {
                    return Some(chain);
                }
                let next = uses[chain.last().unwrap()].iter().filter(|next| seen.insert(*next));
                chains.extend(next.map(|next| [&chain[..], slice::from_ref(next)].concat()));
            }
            None
        };
        self.0.keys().filter_map(of).min_by_key(Vec::len)
    }
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let mut checked = 0;
    for folder in packages().into_iter().map(|package| format!("{}/src", package.folder)) {
        let (mut files, mut paths) = (BTreeMap::new(), BTreeMap::new());
        for (path, text) in sources(&folder) {
            let file = path.strip_prefix(root()).unwrap().display().to_string();
            let module = file[folder.len() + 1..].trim_end_matches(".rs").trim_end_matches("/mod");
            let module: Path = module.split('/').filter(|part| *part != "lib").map(Into::into).collect();
            // Binaries are crates of their own.
            if !module.iter().any(|part| ["bin", "main", "testing", "tests"].contains(&part.as_str())) {
                files.insert(module.clone(), File::of(&text));
                paths.insert(module, file);
            }
        }
        checked += files.len();
        let chain = |circle: Vec<Path>| circle.iter().map(|module| &*paths[module]).collect::<Vec<_>>().join("\n  uses ");
        let circle = Crate(files).circle().map(chain).unwrap_or_default();
        assert!(circle.is_empty(), "files in a circle; move what they share into a file below them:\n  {circle}");
    }
    assert!(checked > 400, "{checked} files");
}

#[test]
fn circle_of_files_is_found_by_every_kind_of_path() {
    let circle = |lib: &str, one: &str, two: &str| {
        let modules: [Path; 3] = [vec![], vec!["one".into()], vec!["two".into()]];
        Crate(modules.into_iter().zip([lib, one, two].map(File::of)).collect()).circle().map(|circle| circle.concat().join(" "))
    };
    let (lib, two) = ("mod one; mod two; pub use two::*;", "use super::{one::A, x}; pub struct B;");
    let uses = ["use crate::B;", "use super::{x, two as y};", "use crate::{two::{self, x}};", "fn f() -> super::two::B {}"];
    for one in uses {
        assert_eq!(circle(lib, one, two).as_deref(), Some("one two one"), "{one}");
        assert_eq!(circle(lib, one, "// crate::one\nuse std::one; const C: &str = \"\\\" super::one\";"), None, "{one}");
    }
    assert_eq!(circle("fn f() { one::g() }", "use crate::f;", "").as_deref(), Some("one"), "the path of a child");
    assert_eq!(circle("pub use one::A as B; fn f() -> B {}", "use super::f;", "").as_deref(), Some("one"), "a re-export");
}
