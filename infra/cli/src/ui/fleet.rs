//! The Stacks at a glance, from the columns that the API server prints for `kubectl get stacks`.
//!
//! The API server answers with these columns from its cache. For thousands of Stacks that is
//! several times as fast as pages of whole objects, which it reads from etcd.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::render::{Tone, short};

/// The answer of the API server in columns.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<Cells>,
}

#[derive(Debug, Deserialize)]
struct Column {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Cells {
    cells: Vec<Value>,
    #[serde(default)]
    object: Option<Object>,
}

#[derive(Debug, Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    namespace: String,
}

/// A Stack at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    namespace: String,
    name: String,
    tone: Tone,
    state: String,
    commit: String,
    drift: &'static str,
    /// The time since the last update, as kubectl prints it.
    age: String,
    suspended: bool,
}

impl Table {
    /// The Stacks. `namespace` is that of rows without metadata: of a list of one namespace.
    #[must_use]
    pub fn rows(self, namespace: &str) -> Vec<Row> {
        let columns = self.column_definitions;
        let index = |name: &str| columns.iter().position(|column| column.name == name);
        let names = ["Name", "Ready", "Reconciling", "Stalled", "Drifted", "Suspended", "Last Commit", "Age"].map(index);
        let row = |Cells { cells, object }: Cells| {
            let [name, ready, reconciling, stalled, drifted, suspended, commit, age] = names.map(|index| {
                let cell = index.and_then(|index| cells.get(index));
                match cell {
                    Some(Value::String(text)) => text.clone(),
                    None | Some(Value::Null) => String::new(),
                    Some(other) => other.to_string(),
                }
            });
            let suspended = suspended == "true";
            let (tone, state) = match (stalled.is_empty(), reconciling.is_empty(), ready == "True") {
                (false, ..) => (Tone::Bad, stalled),
                (_, false, _) => (Tone::Busy, reconciling),
                (.., true) if suspended => (Tone::Faint, "Suspended".into()),
                (.., true) => (Tone::Good, "Ready".into()),
                _ => (Tone::Busy, "NotReconciled".into()),
            };
            let drift = match drifted.as_str() {
                "True" => "yes",
                "False" => "no",
                "Unknown" => "unknown",
                _ => "-",
            };
            let namespace = object.map_or_else(|| namespace.to_owned(), |object| object.metadata.namespace);
            Row { namespace, name, tone, state, commit: short(&commit), drift, age, suspended }
        };
        self.rows.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_of_the_api_server_become_states() {
        let columns = ["Name", "Age", "Last Commit", "Ready", "Reconciling", "Stalled", "Drifted", "Suspended"];
        let commit = "main@sha1:7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918";
        let rows = [
            json!(["shop", "30m", commit, "True", null, null, "False", false]),
            json!(["api", null, null, "False", "PrerequisiteNotSatisfied", null, null, null]),
            json!(["network", "20m", "2", "False", null, "UpdateFailed", "Unknown", null]),
            json!(["old", "6d", "2", "True", null, null, "True", true]),
            json!(["new", null, null, null, null, null, null, null]),
        ];
        let rows: Vec<_> = rows.iter().map(|cells| json!({ "cells": cells })).collect();
        let columns: Vec<_> = columns.iter().map(|name| json!({ "name": name })).collect();
        let mut table = json!({ "columnDefinitions": columns, "rows": rows });
        table["rows"][1]["object"] = json!({ "metadata": { "namespace": "other", "name": "api" } });
        let table: Table = serde_json::from_value(table).unwrap();
        let shown: Vec<_> = table.rows("team").iter().map(|row| (row.namespace.clone(), row.state.clone(), row.tone)).collect();
        let row = |namespace: &str, state: &str, tone| (namespace.to_owned(), state.to_owned(), tone);
        let expected = [
            row("team", "Ready", Tone::Good),
            row("other", "PrerequisiteNotSatisfied", Tone::Busy),
            row("team", "UpdateFailed", Tone::Bad),
            row("team", "Suspended", Tone::Faint),
            row("team", "NotReconciled", Tone::Busy),
        ];
        assert_eq!(shown, expected);
    }
}
