//! The facts about guarded Stacks and about changes that the checks know.

use std::collections::{BTreeMap, HashMap};

use driftless_contract::PlanHash;
use driftless_core::{ChangeKind, Revision, Uid};
use jiff::Timestamp;

/// What the checks know about guarded Stacks. Nothing of it comes from a status.
#[derive(Default)]
pub(super) struct Approvals {
    /// Since when a Stack is guarded, and whether all its plans need an approval, by uid.
    pub(super) guarded: HashMap<Uid, (Timestamp, bool)>,
    /// The cluster has the policy as it is shipped.
    pub(super) policy: bool,
    /// The kind of change of each plan that a runner made, by the Stack's uid; `None` without
    /// changes.
    pub(super) plans: HashMap<(Uid, PlanHash), Option<ChangeKind>>,
    /// The value of its Secret that a Stack's last preview was given, by the Stack's uid.
    pub(super) previewed: HashMap<Uid, Option<String>>,
    /// How many approvals of a plan no run has used.
    pub(super) approved: HashMap<(Uid, PlanHash), u32>,
    /// The digest of the launcher for each set of inputs with a tree, and the inputs without the
    /// tree for each digest.
    pub(super) bindings: HashMap<String, PlanHash>,
    pub(super) bound: HashMap<PlanHash, String>,
    /// Runners apply whatever plan they find.
    pub(super) are_ignored: bool,
    /// The content of each Pulumi stack, and the number of runs that changed it. `None` if a run
    /// failed midway.
    pub(super) deployed: BTreeMap<String, (u64, Option<String>)>,
}

/// The last change of each Stack, by its uid.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) wanted: BTreeMap<Uid, Wanted>,
    /// The revision of each source, by namespace and kind.
    pub(super) revisions: BTreeMap<(String, String), Revision>,
    /// Whether the bounds hold.
    pub(super) are_bounded: bool,
}

pub(super) struct Wanted {
    pub(super) stack: String,
    /// The kind of its source, and its namespace.
    pub(super) source: (String, &'static str),
    pub(super) asked: (i64, String),
    pub(super) since: Timestamp,
    pub(super) runs: bool,
    pub(super) ready: bool,
}

impl Wanted {
    pub(super) fn change(&mut self, now: Timestamp) {
        (self.since, self.runs, self.ready) = (now, false, false);
    }
}
