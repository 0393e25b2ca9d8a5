//! The messages of an update that does something else than its plan. Pulumi puts the values into
//! them, old secrets too.

use std::collections::{BTreeMap, BTreeSet};

/// What every such message has that shows values.
const VIOLATES: &str = "violates plan: ";

/// The text in a line of output after which values may follow, on further lines too.
pub(crate) const HIDDEN: &str = "violates plan";

/// What the other messages of an update outside its plan have. They name the resource and the
/// operation.
const OTHERS: [&str; 4] =
    ["is not allowed by the plan", "expected resource operations for", "resource unexpectedly not deleted", "violates plan"];

/// Returns whether an update failed because it would leave its plan.
pub(crate) fn is_violation(message: &str) -> bool {
    OTHERS.iter().any(|known| message.contains(known))
}

/// The names that a message about a violation may show: those that the plan shows anyway.
#[derive(Default)]
pub(crate) struct Violations {
    /// The names of the top-level properties of each resource.
    pub(super) properties: BTreeMap<String, BTreeSet<String>>,
}

impl Violations {
    /// The message without values: the resource, what is different, and which properties. A text
    /// without a violation is unchanged.
    pub(crate) fn without_values(&self, message: &str, urn: &str) -> String {
        let Some((before, after)) = message.split_once(VIOLATES) else { return message.to_owned() };
        let what = after.split(|char: char| !char.is_ascii_alphabetic() && char != ' ').next().unwrap_or_default().trim();
        let changes = |name: &&String| ["+", "-", "~", "="].iter().any(|sign| after.contains(&format!("{sign}{name}")));
        let named: Vec<&str> = self.properties.get(urn).into_iter().flatten().filter(changes).map(String::as_str).collect();
        let properties = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        format!("{before}{VIOLATES}{what}{properties}")
    }
}
