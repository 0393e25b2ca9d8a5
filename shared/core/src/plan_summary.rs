//! A plan in one line of text.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{ChangeKind, Operation, PlannedChanges};

/// The changes that a message names.
const NAMED: usize = 3;

/// `destroy` or `refresh` for the plan of one, the counts of the plan, the first resources that it replaces or deletes, and the beginning of its hash:
/// `+3 ~1 -0 ±1 (replaces aws:rds:Instance db); plan 7f3a91c`.
#[must_use]
pub fn summary(plan: &PlannedChanges) -> String {
    let count = |kind| plan.count(kind);
    let mut text = format!(
        "{}+{} ~{} -{} ±{}",
        match plan.operation {
            Operation::Destroy => "destroy: ",
            Operation::Refresh => "refresh: ",
            Operation::Up | Operation::Preview => "",
        },
        count(ChangeKind::Create),
        count(ChangeKind::Update),
        count(ChangeKind::Delete),
        count(ChangeKind::Replace)
    );
    let others: BTreeMap<_, _> = [
        (ChangeKind::Forget, "forgotten"),
        (ChangeKind::Import, "imported"),
        (ChangeKind::Options, "with other options"),
        (ChangeKind::Refresh, "refreshed"),
        (ChangeKind::Outputs, "with other outputs"),
    ]
    .into();
    for (kind, word) in others {
        if count(kind) > 0 {
            let _ = write!(text, ", {} {word}", count(kind));
        }
    }
    let verb = |kind| match kind {
        ChangeKind::Replace => Some("replaces"),
        ChangeKind::Delete => Some("deletes"),
        ChangeKind::Forget => Some("forgets"),
        _ => None,
    };
    let lost: Vec<_> = plan
        .changes
        .first
        .iter()
        .filter_map(|change| Some(format!("{} {}", verb(change.kind)?, resource(&change.urn))))
        .collect();
    if !lost.is_empty() {
        let more = if lost.len() > NAMED { ", and more" } else { "" };
        let _ = write!(text, " ({}{more})", lost.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", "));
    }
    let _ = write!(text, "; plan {}", plan.hash.short());
    let leaves = |count: u32, what: &str| match count {
        0 => String::new(),
        1 => format!("; 1 value is {what}"),
        count => format!("; {count} values are {what}"),
    };
    text + &leaves(plan.unknown.count, "known only when it is applied")
        + &leaves(plan.unstable.count, "different in each preview and not compared")
}

/// Type and name of a resource, from its URN.
fn resource(urn: &str) -> String {
    let mut parts = urn.rsplit("::");
    match (parts.next(), parts.next()) {
        (Some(name), Some(types)) => format!("{} {name}", types.rsplit('$').next().unwrap_or(types)),
        _ => urn.to_owned(),
    }
}
