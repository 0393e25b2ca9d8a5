use std::collections::BTreeSet;

use crate::Stack;

/// The paths of its source that a Stack uses: the project's own directory and what the annotation
/// lists, each once, without paths inside another listed one. Empty means the whole source: the
/// Stack names no paths, or the project's directory is the root.
#[must_use]
pub fn paths(stack: &Stack) -> Vec<String> {
    if stack.paths.is_none() {
        return Vec::new();
    }
    let paths = needed(stack);
    if paths.contains("") {
        return Vec::new();
    }
    let within = |path: &str| path.match_indices('/').any(|(end, _)| paths.contains(&path[..end]));
    paths.iter().filter(|path| !within(path)).cloned().collect()
}

/// The directories of its source that a Stack runs: the project's own and the listed ones. The
/// empty path is the root.
#[must_use]
pub fn needed(stack: &Stack) -> BTreeSet<String> {
    let listed = stack.paths.as_deref().unwrap_or_default().split(',').filter(|path| !path.trim().is_empty());
    let own = stack.spec.sources.first().map_or("", |source| source.dir());
    listed.chain([own]).map(clean).collect()
}

/// A path of the annotation that points outside the source.
pub(crate) fn invalid(stack: &Stack) -> Option<&str> {
    let mut listed = stack.paths.as_deref().unwrap_or_default().split(',').map(str::trim);
    listed.find(|path| path.starts_with('/') || path.split('/').any(|part| part == ".."))
}

fn clean(path: &str) -> String {
    path.trim().split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceRef, StackSpec};

    fn stack(dir: &str, listed: Option<&str>) -> Stack {
        let (api_version, kind, name) = ("g/v1".to_owned(), "K".to_owned(), "n".to_owned());
        let sources = vec![SourceRef::Flux { api_version, kind, name, dir: dir.into() }];
        Stack { paths: listed.map(Into::into), spec: StackSpec { sources, ..StackSpec::default() }, ..Stack::default() }
    }

    #[test]
    fn scope_is_the_project_directory_and_listed_paths() {
        assert_eq!(paths(&stack("infra", Some("modules/net, ./modules/db/,"))), ["infra", "modules/db", "modules/net"]);
        assert_eq!(paths(&stack("./a/", Some("a/b, c, c/d"))), ["a", "c"]);
        assert_eq!(paths(&stack("a", Some(""))), ["a"]);
    }

    #[test]
    fn scope_is_the_whole_tree_without_paths_or_at_the_root() {
        assert!(paths(&stack("infra", None)).is_empty());
        assert!(paths(&stack("", Some("modules"))).is_empty());
        assert!(paths(&stack(".", Some("modules"))).is_empty());
        assert!(paths(&stack("infra", Some("."))).is_empty());
    }

    #[test]
    fn run_needs_the_project_directory_and_listed_paths() {
        for (dir, listed, expected) in
            [("./infra/", None, vec!["infra"]), ("", None, vec![""]), ("a", Some("b, ./c/"), vec!["a", "b", "c"])]
        {
            assert_eq!(needed(&stack(dir, listed)).into_iter().collect::<Vec<_>>(), expected, "{dir} {listed:?}");
        }
    }

    #[test]
    fn a_path_out_of_the_source_is_found() {
        assert_eq!(invalid(&stack("a", Some("b, ../c"))), Some("../c"));
        assert_eq!(invalid(&stack("a", Some("/etc"))), Some("/etc"));
        assert_eq!(invalid(&stack("a", Some("b,c..d"))), None);
    }
}
