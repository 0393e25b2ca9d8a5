//! The state that a plan starts from.

use driftless_contract::PlanHash;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::canon::{self, Key};

/// What changes without a change of the stack: times, and where a program declares a resource.
const VOLATILE: [&str; 4] = ["created", "modified", "sourcePosition", "stackTrace"];

/// Lists whose order has no meaning.
const SETS: [&str; 4] = ["dependencies", "additionalSecretOutputs", "aliases", "ignoreChanges"];

/// An exported state with its secrets in clear, without what Pulumi rewrites when nothing changes:
/// the manifest, the order of resources, and the ciphertexts.
#[derive(Default)]
pub(crate) struct State {
    resources: Vec<Value>,
    pending: Vec<Value>,
}

impl State {
    /// Reads what `pulumi stack export --show-secrets` printed.
    pub(crate) fn parse(export: &[u8]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Export {
            deployment: Deployment,
        }
        #[derive(Deserialize)]
        struct Deployment {
            #[serde(default)]
            resources: Option<Vec<Value>>,
            #[serde(default)]
            pending_operations: Option<Vec<Value>>,
        }
        let Export { deployment } = serde_json::from_slice(export)?;
        let mut pending = deployment.pending_operations.unwrap_or_default();
        pending.sort_by_cached_key(canon::bytes);
        let mut resources: Vec<Value> = deployment.resources.unwrap_or_default().into_iter().map(stable).collect();
        resources.sort_by_cached_key(canon::bytes);
        Ok(Self { resources, pending })
    }

    /// The keyed digest of the state.
    pub(crate) fn digest(&self, key: &Key) -> PlanHash {
        key.digest(&json!({ "resources": self.resources, "pending": self.pending }))
    }
}

/// A resource of the state without what is volatile.
fn stable(resource: Value) -> Value {
    let Value::Object(mut resource) = resource else { return resource };
    for name in VOLATILE {
        resource.remove(name);
    }
    for name in SETS {
        if let Some(list) = resource.get_mut(name) {
            canon::sort(list);
        }
    }
    // A refresh leaves out empty dependencies.
    if let Some(dependencies) =
        resource.remove("propertyDependencies").map(property_dependencies).filter(|found| !found.is_empty())
    {
        resource.insert("propertyDependencies".into(), dependencies.into());
    }
    resource.into()
}

/// The dependencies of properties, without properties that have none.
pub(crate) fn property_dependencies(dependencies: Value) -> Map<String, Value> {
    let Value::Object(dependencies) = dependencies else { return Map::new() };
    let is_some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let sorted = dependencies.into_iter().filter(|(_, list)| is_some(list)).map(|(name, mut list)| {
        canon::sort(&mut list);
        (name, list)
    });
    sorted.collect()
}
