//! One resource of a preview: the facts that must be equal in each preview, and the values that may
//! be unknown or generated.

use std::collections::BTreeSet;

use driftless_contract::ChangeKind;
use serde_json::{Map, Value, json};

use super::{canon, state::property_dependencies};

/// What a program shows for values that are only known when an update runs, one for each type of
/// value.
const UNKNOWN: [&str; 7] = [
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
    "030794c1-ac77-496b-92df-f27374a8bd58",
    "e48ece36-62e2-4504-bad9-02848725956a",
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
];

/// The key that marks an object as Pulumi's own: a secret, an asset, an archive, a reference to a
/// resource.
const SIGNATURE: &str = "4dabf18193072939515e22adb298388d";

/// What a state has besides options: properties, which other parts of the preview show better, and
/// what changes by itself.
const NO_OPTIONS: [&str; 11] =
    ["created", "modified", "sourcePosition", "stackTrace", "inputs", "outputs", "urn", "type", "id", "provider", "viewOf"];

/// Fields of a state that differ although no option does.
const NO_CHANGE: [&str; 2] = ["custom", "delete"];

/// Lists of options whose order has no meaning.
const SETS: [&str; 5] = ["dependencies", "ignoreChanges", "additionalSecretOutputs", "aliases", "structuredAliases"];

/// The type of the resource whose outputs are the stack's.
const STACK: &str = "pulumi:pulumi:Stack";

/// What a preview shows about a resource.
#[derive(Default)]
pub(super) struct Resource {
    /// The steps that the engine takes, or only plans.
    steps: BTreeSet<String>,
    /// By name of the fact. Equal in each preview of a program that is deterministic.
    facts: Map<String, Value>,
    /// The values of properties, by origin: a name can be generated anew in each preview.
    values: Map<String, Value>,
    /// Its type.
    kind: String,
    /// The provider keeps what the state forgets.
    is_retained: bool,
    is_drifted: bool,
    paths: BTreeSet<String>,
    replaced_by: BTreeSet<String>,
    options: BTreeSet<String>,
    outputs: BTreeSet<String>,
}

impl Resource {
    /// Takes the metadata of an event before a step.
    pub(super) fn start(&mut self, step: &Value) {
        let text = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
        let operation = text("op");
        self.kind = text("type");
        if operation == "refresh" {
            // Pulumi may write its findings into the event of the start already. The event of the
            // end has them.
            self.steps.insert(operation);
            return;
        }
        let (old, new) = (&step["old"], &step["new"]);
        self.is_retained |= operation == "delete" && old["retainOnDelete"] == true;
        if !old.is_null() && !new.is_null() && reference(&old["provider"]) != reference(&new["provider"]) {
            self.options.insert("provider".into());
        }
        self.paths.extend(names(step));
        self.replaced_by.extend(texts(&step["keys"]));
        let fact = json!({
            "old": flags(old),
            // The id of a resource that is created is not known yet.
            "id": old["id"],
            "new": flags(new),
            "keys": sorted(&step["keys"]),
            "diffs": sorted(&step["diffs"]),
            "detailedDiff": step["detailedDiff"],
        });
        // Several copies of a resource may be pending deletion.
        let facts = self.facts.entry(format!("step {operation}")).or_insert_with(|| json!([]));
        if let Value::Array(facts) = facts {
            facts.push(fact);
        }
        canon::sort(facts);
        if !new["inputs"].is_null() {
            self.values.insert(format!("inputs of {operation}"), new["inputs"].clone());
        }
        self.steps.insert(operation);
    }

    /// Takes the metadata of an event after a step: what a refresh found.
    pub(super) fn end(&mut self, step: &Value) {
        let operation = step["op"].as_str().unwrap_or_default();
        let is_refresh = operation == "refresh" || step["logical"] != true && matches!(operation, "update" | "delete");
        let found: BTreeSet<String> = names(step).collect();
        let is_gone = step["new"].is_null();
        if !self.steps.contains("refresh") || !is_refresh || found.is_empty() && !is_gone {
            return;
        }
        self.is_drifted = true;
        self.facts.insert("drift".into(), json!({ "gone": is_gone, "paths": found, "detailedDiff": step["detailedDiff"] }));
        let tops: BTreeSet<&str> = found.iter().map(|path| path.split(['.', '[']).next().unwrap_or(path)).collect();
        let live = |of: &str| -> Map<String, Value> {
            let properties = step["new"][of].as_object().into_iter().flatten();
            properties
                .filter(|(name, _)| tops.contains(name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        self.values.insert("live inputs".into(), live("inputs").into());
        self.values.insert("live outputs".into(), live("outputs").into());
        self.paths.extend(found);
    }

    /// Takes a step of `pulumi preview --json`, which has the full states.
    pub(super) fn states(&mut self, step: &Value) {
        let (old, new) = (&step["oldState"], &step["newState"]);
        let (before, after) = (options(old), options(new));
        if !old.is_null() && !new.is_null() {
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let differ = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
            self.options.extend(differ.filter(|name| !NO_CHANGE.contains(&name.as_str())).cloned());
        }
        let operation = step["op"].as_str().unwrap_or_default();
        self.facts.insert(format!("options of {operation}"), after.into());
    }

    /// Takes an entry of the file that `--save-plan` writes.
    pub(super) fn plan(&mut self, plan: &Value) {
        self.steps.extend(texts(&plan["steps"]));
        self.facts.insert("planned".into(), plan["steps"].clone());
        let Some(goal) = plan["goal"].as_object() else { return };
        if let Some(kind) = goal.get("type").and_then(Value::as_str) {
            kind.clone_into(&mut self.kind);
        }
        let is_creation = self.steps.contains("create");
        for (name, origin) in [("inputDiff", "inputs"), ("outputDiff", "outputs")] {
            let Some(diff) = goal.get(name) else { continue };
            self.facts.insert(format!("deleted {origin}"), sorted(&diff["deletes"]));
            for change in ["adds", "updates"] {
                if self.kind == STACK && origin == "outputs" && !is_creation {
                    self.outputs.extend(diff[change].as_object().into_iter().flat_map(Map::keys).cloned());
                }
                self.values.insert(format!("{change} of {origin}"), diff[change].clone());
            }
            if self.kind == STACK && origin == "outputs" && !is_creation {
                self.outputs.extend(texts(&diff["deletes"]));
            }
        }
        let of_goal = goal.iter().filter(|(name, _)| !["inputDiff", "outputDiff", "name", "provider"].contains(&name.as_str()));
        let mut options = options(&of_goal.map(|(name, value)| (name.clone(), value.clone())).collect());
        options.insert("provider".into(), goal.get("provider").map(reference).unwrap_or_default());
        // The id of a resource to import.
        options.insert("import".into(), goal.get("id").cloned().unwrap_or_default());
        self.facts.insert("goal".into(), options.into());
    }

    /// The facts and values that the hash of the plan covers.
    pub(super) fn document(&self) -> Value {
        json!({ "type": self.kind, "steps": self.steps, "facts": self.facts, "values": self.values })
    }

    /// Returns whether both previews of the resource take the same steps with the same options.
    pub(super) fn has_facts_of(&self, other: &Self) -> bool {
        self.steps == other.steps && self.facts == other.facts
    }

    /// Takes out the values that another preview has differently, and returns their paths.
    pub(super) fn take_unstable(&mut self, other: &Self) -> BTreeSet<String> {
        let mut unstable = BTreeSet::new();
        let origins: BTreeSet<String> = self.values.keys().chain(other.values.keys()).cloned().collect();
        for origin in origins {
            let value = self.values.entry(origin.clone()).or_insert(Value::Null);
            match other.values.get(&origin) {
                Some(other) => settle(value, other, "", &mut unstable),
                None => drop_value(value, "", &mut unstable),
            }
        }
        unstable
    }

    /// The paths of the values that are only known when the update runs.
    pub(super) fn unknown(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for value in self.values.values() {
            find_unknown(value, "", &mut found);
        }
        found
    }

    /// The names of the top-level properties.
    pub(super) fn properties(&self) -> BTreeSet<String> {
        let names = self.values.values().filter_map(Value::as_object).flat_map(Map::keys);
        names.chain(&self.paths).cloned().collect()
    }

    /// Whether the step makes a new object, whose name may be generated.
    pub(super) fn is_new(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.as_str(), "create" | "create-replacement" | "import-replacement"))
    }

    /// How the resource changes; `None` if it stays as it is. Of several changes, the one that does
    /// most.
    pub(super) fn change(&self, urn: &str) -> Option<ChangeKind> {
        let name = urn.rsplit("::").next().unwrap_or_default();
        let is_default = self.kind.starts_with("pulumi:providers:") && name.starts_with("default");
        let of_steps = self.steps.iter().filter_map(|step| kind_of(step, self.is_retained)).min();
        // Pulumi manages default providers by itself and shows no step of one. Their options
        // concern the resources of the provider.
        let of_steps = of_steps.filter(|kind| !is_default || matches!(kind, ChangeKind::Update | ChangeKind::Replace));
        let options = (!self.options.is_empty() && !is_default).then_some(ChangeKind::Options);
        let outputs = (!self.outputs.is_empty()).then_some(ChangeKind::Outputs);
        let drift = self.is_drifted.then_some(ChangeKind::Refresh);
        of_steps.or(options).or(drift).or(outputs)
    }

    /// Its type.
    pub(super) fn resource_type(&self) -> &str {
        &self.kind
    }

    /// The paths of the properties, or the names of the options or outputs, that change so.
    pub(super) fn paths(&self, kind: ChangeKind) -> &BTreeSet<String> {
        match kind {
            ChangeKind::Options => &self.options,
            ChangeKind::Outputs => &self.outputs,
            ChangeKind::Replace
            | ChangeKind::Delete
            | ChangeKind::Forget
            | ChangeKind::Create
            | ChangeKind::Import
            | ChangeKind::Update
            | ChangeKind::Refresh => &self.paths,
        }
    }

    pub(super) fn replaced_by(&self) -> &BTreeSet<String> {
        &self.replaced_by
    }
}

/// The change of a step. A step that a later Pulumi adds counts as the change that a policy holds
/// first.
fn kind_of(step: &str, is_retained: bool) -> Option<ChangeKind> {
    match step {
        "same"
        | "read"
        | "refresh"
        | "diff"
        | "discard"
        | "discard-replaced"
        | "remove-pending-replace"
        | "extend-parameterize" => None,
        "create" => Some(ChangeKind::Create),
        "import" => Some(ChangeKind::Import),
        "update" => Some(ChangeKind::Update),
        "delete" if is_retained => Some(ChangeKind::Forget),
        // Without the steps of a replacement, an earlier update has left it to be deleted.
        "delete" | "delete-replaced" => Some(ChangeKind::Delete),
        _ => Some(ChangeKind::Replace),
    }
}

/// The options in an event's state.
fn flags(state: &Value) -> Value {
    if state.is_null() {
        return Value::Null;
    }
    let flag = |name: &str| state[name] == true;
    json!({
        "protect": flag("protect"),
        "retainOnDelete": flag("retainOnDelete"),
        "delete": flag("delete"),
        "external": flag("external"),
        "taint": flag("taint"),
        "parent": state["parent"],
        "provider": reference(&state["provider"]),
    })
}

/// A reference to a provider, `URN::ID`. The id of one that is not created yet is unknown.
fn reference(provider: &Value) -> Value {
    let Some((urn, id)) = provider.as_str().and_then(|text| text.rsplit_once("::")) else { return Value::Null };
    let is_unknown = id.is_empty() || UNKNOWN.contains(&id);
    json!([urn, if is_unknown { Value::Null } else { id.into() }])
}

/// The options of a state or a goal.
fn options(state: &Value) -> Map<String, Value> {
    let fields = state.as_object().into_iter().flatten().filter(|(name, _)| !NO_OPTIONS.contains(&name.as_str()));
    let mut options = Map::new();
    for (name, value) in fields {
        let mut value = value.clone();
        if name == "propertyDependencies" {
            value = property_dependencies(value).into();
        }
        if SETS.contains(&name.as_str()) {
            canon::sort(&mut value);
        }
        let is_empty =
            value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        if !is_empty {
            options.insert(name.clone(), value);
        }
    }
    options
}

/// The paths of the properties that a step changes.
fn names(step: &Value) -> impl Iterator<Item = String> {
    let detailed: Vec<String> = step["detailedDiff"].as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let is_detailed = !detailed.is_empty();
    detailed.into_iter().chain(texts(&step["diffs"]).filter(move |_| !is_detailed))
}

fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned)
}

fn sorted(list: &Value) -> Value {
    let mut list = list.clone();
    canon::sort(&mut list);
    list
}

/// Replaces what differs by nothing, and records where. A secret, an asset and an archive are one
/// value.
fn settle(value: &mut Value, other: &Value, path: &str, unstable: &mut BTreeSet<String>) {
    match (&mut *value, other) {
        (one, other) if one == other => {}
        (Value::Object(fields), Value::Object(others)) if !is_special(fields) && !is_special(others) => {
            let names: BTreeSet<String> = fields.keys().chain(others.keys()).cloned().collect();
            for name in names {
                let path = join(path, &name);
                let field = fields.entry(name.clone()).or_insert(Value::Null);
                match others.get(&name) {
                    Some(other) => settle(field, other, &path, unstable),
                    None => drop_value(field, &path, unstable),
                }
            }
        }
        (Value::Array(values), Value::Array(others)) if values.len() == others.len() => {
            for (number, (value, other)) in values.iter_mut().zip(others).enumerate() {
                settle(value, other, &format!("{path}[{number}]"), unstable);
            }
        }
        (value, _) => drop_value(value, path, unstable),
    }
}

fn drop_value(value: &mut Value, path: &str, unstable: &mut BTreeSet<String>) {
    *value = Value::Null;
    unstable.insert(path.to_owned());
}

fn is_special(fields: &Map<String, Value>) -> bool {
    fields.contains_key(SIGNATURE)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn find_unknown(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if UNKNOWN.contains(&text.as_str()) => {
            found.insert(path.to_owned());
        }
        Value::Object(fields) if is_special(fields) => {
            // The clear value of a secret is JSON in a text.
            if UNKNOWN.iter().any(|unknown| value.to_string().contains(unknown)) {
                found.insert(path.to_owned());
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| find_unknown(value, &join(path, name), found)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(number, value)| find_unknown(value, &format!("{path}[{number}]"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
