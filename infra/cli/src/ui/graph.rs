//! The Stacks that a Stack requires, and those that require it.

use std::collections::{BTreeMap, BTreeSet};

use driftless_api::Stack;
use driftless_core::Stack as CoreStack;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{render::Tone, view};

/// More Stacks are no picture any more.
const MAX_NODES: usize = 200;

/// A Stack and all that it requires, or that requires it, directly or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Graph {
    /// The Stacks, by level and name.
    pub nodes: Vec<Node>,
    /// Stacks that are left out.
    pub left_out: usize,
}

/// A Stack of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The tone of its state.
    pub tone: Tone,
    /// Its state in a word.
    pub state: String,
    /// The number of Stacks on the longest way to one that requires none.
    pub level: usize,
    /// The Stacks of the graph that it requires.
    pub requires: Vec<String>,
}

/// The graph of a Stack of a namespace. `stacks` are all Stacks of the namespace.
#[must_use]
pub fn of(name: &str, stacks: &[Stack]) -> Graph {
    let by_name: BTreeMap<String, CoreStack> = stacks.iter().map(|stack| (stack.name_any(), CoreStack::from(stack))).collect();
    let requires = |name: &str| {
        let found = by_name.get(name).into_iter().flat_map(|stack| &stack.spec.prerequisites);
        found.map(|prerequisite| prerequisite.name.clone()).collect::<Vec<_>>()
    };
    let mut required_by: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dependent in by_name.keys() {
        for required in requires(dependent) {
            required_by.entry(required).or_default().push(dependent.clone());
        }
    }
    let up = reach(name, requires);
    let down = reach(name, |name| required_by.get(name).cloned().unwrap_or_default());
    let all: Vec<_> = up.into_iter().chain(down.into_iter().skip(1)).collect();
    let names: BTreeSet<_> = all.iter().take(MAX_NODES).cloned().collect();

    // A cycle never ends by itself: no way is longer than the number of Stacks.
    let mut levels: BTreeMap<&str, usize> = names.iter().map(|name| (name.as_str(), 0)).collect();
    for _ in 0..names.len() {
        for name in &names {
            let below = requires(name).iter().filter_map(|required| levels.get(required.as_str())).max().copied();
            if let Some(below) = below {
                levels.insert(name, (below + 1).min(names.len()));
            }
        }
    }
    let node = |name: &String| {
        let (tone, state, _) = by_name.get(name).map_or((Tone::Bad, "not found".to_owned(), String::new()), view::state);
        let requires = requires(name).into_iter().filter(|required| names.contains(required)).collect();
        Node { name: name.clone(), tone, state, level: levels.get(name.as_str()).copied().unwrap_or_default(), requires }
    };
    let mut nodes: Vec<_> = names.iter().map(node).collect();
    nodes.sort_by_key(|node| node.level);
    Graph { nodes, left_out: all.iter().collect::<BTreeSet<_>>().len() - names.len() }
}

/// The names that can be reached from one, itself first, the nearest before others.
fn reach(name: &str, next: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut found = vec![name.to_owned()];
    let mut index = 0;
    while let Some(current) = found.get(index).cloned() {
        let new: Vec<_> = next(&current).into_iter().filter(|name| !found.contains(name)).collect();
        found.extend(new);
        index += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stack(name: &str, requires: &[&str]) -> Stack {
        let requires: Vec<_> = requires.iter().map(|name| json!({ "name": name })).collect();
        let spec = json!({ "stack": "prod", "prerequisites": requires });
        let metadata = json!({ "name": name, "namespace": "team", "uid": name });
        let object = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn levels(graph: &Graph) -> Vec<(&str, usize)> {
        graph.nodes.iter().map(|node| (node.name.as_str(), node.level)).collect()
    }

    #[test]
    fn graph_has_all_that_a_stack_requires_and_all_that_require_it() {
        let stacks = vec![
            stack("network", &[]),
            stack("database", &["network"]),
            stack("shop", &["database", "network", "missing"]),
            stack("web", &["shop"]),
            stack("other", &["network"]),
        ];
        let graph = of("shop", &stacks);
        assert_eq!(levels(&graph), [("missing", 0), ("network", 0), ("database", 1), ("shop", 2), ("web", 3)]);
        assert_eq!((graph.nodes[0].state.as_str(), graph.nodes[0].tone), ("not found", Tone::Bad));
        assert_eq!(graph.nodes[3].requires, ["database", "network", "missing"]);
        assert_eq!(levels(&of("alone", &[stack("alone", &[])])), [("alone", 0)]);
    }

    #[test]
    fn cycle_and_crowd_have_an_end() {
        let graph = of("a", &[stack("a", &["b"]), stack("b", &["a"]), stack("c", &["c"])]);
        assert_eq!(graph.nodes.len(), 2);
        let crowd: Vec<_> = (0..500).map(|n| stack(&format!("s{n}"), &["base"])).chain([stack("base", &[])]).collect();
        let graph = of("base", &crowd);
        assert_eq!((graph.nodes.len(), graph.left_out), (MAX_NODES, 301));
    }
}
