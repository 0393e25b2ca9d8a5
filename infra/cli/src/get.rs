//! `get`: Stacks at a glance.

use driftless_api::Stack;
use driftless_core::{Revision, Stack as CoreStack};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    render::{Style, Tone, age, short, table},
    view,
};

/// A Stack at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Its state in a word: `Ready`, or the reason of its condition.
    pub state: String,
    /// The message of its condition.
    pub message: String,
    /// The revision that ran last.
    pub last_commit: Revision,
    /// `yes`, `no`, `unknown` or `-`.
    pub drift: String,
    /// When its last update was recorded.
    pub last_update: Option<Timestamp>,
    /// When it is reconciled again, if no event comes before.
    pub next_reconciliation: Option<Timestamp>,
    #[serde(skip)]
    tones: [Tone; 2],
}

impl Row {
    /// The row of a Stack.
    #[must_use]
    pub fn of(stack: &Stack) -> Self {
        let core = CoreStack::from(stack);
        let (tone, state, message) = view::state(&core);
        let (drift_tone, drift) = view::drift(&core);
        let last = core.status.last_update.as_ref();
        Self {
            ready: tone == Tone::Good || state == "Suspended" && message.is_empty(),
            state,
            message,
            last_commit: last.map(|last| last.last_attempted_commit.clone()).unwrap_or_default(),
            drift: drift.to_owned(),
            last_update: last.and_then(|last| last.last_resync_time),
            next_reconciliation: core.status.next_reconciliation,
            tones: [tone, drift_tone],
            namespace: core.namespace,
            name: core.name,
        }
    }
}

/// The table of Stacks.
#[must_use]
pub fn render(rows: &[Row], all_namespaces: bool, style: Style, now: Timestamp) -> String {
    let mut header = vec!["NAME", "READY", "STATE", "COMMIT", "DRIFT", "AGE"];
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    let cells = |row: &Row| {
        let [tone, drift_tone] = row.tones;
        let plain = |text: &str| (Tone::Plain, if text.is_empty() { "-".to_owned() } else { text.to_owned() });
        let ready = if row.ready { "True" } else { "False" };
        let age = row.last_update.map(|at| age(at, now)).unwrap_or_default();
        let mut cells = vec![
            plain(&row.name),
            (tone, ready.to_owned()),
            (tone, row.state.clone()),
            plain(&short(row.last_commit.as_str())),
            (drift_tone, row.drift.clone()),
            plain(&age),
        ];
        if all_namespaces {
            cells.insert(0, plain(&row.namespace));
        }
        cells
    };
    table(&header, &rows.iter().map(cells).collect::<Vec<_>>(), style)
}
