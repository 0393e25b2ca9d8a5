//! A plan in one line of text.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{ChangeKind, Operation, PlannedChanges, Previewed, PreviewedChange};

/// The changes that a message names. A report has one more, so that the message can say so.
const NAMED: usize = PreviewedChange::MAX - 1;

/// `destroy` or `refresh` for the plan of one, the counts of the plan, the first resources that it
/// replaces or deletes, and the beginning of its hash: `+3 ~1 -0 ±1 (replaces aws:rds:Instance db);
/// plan 7f3a91c`.
#[must_use]
pub fn summary(plan: &PlannedChanges) -> String {
    let operation = match plan.operation {
        Operation::Destroy => "destroy: ",
        Operation::Refresh => "refresh: ",
        Operation::Up | Operation::Preview => "",
    };
    let lost = |kind| verb(kind).filter(|_| matches!(kind, ChangeKind::Replace | ChangeKind::Delete | ChangeKind::Forget));
    let text = format!(
        "{operation}{}{}",
        counted(&plan.counts),
        named(plan.changes.first.iter().map(|change| (change.kind, change.urn.as_str())), lost),
    );
    text + &identity(plan)
}

/// The beginning of the hash of a plan, and the values that the hash does not cover.
pub(crate) fn identity(plan: &PlannedChanges) -> String {
    let leaves = |count: u32, what: &str| match count {
        0 => String::new(),
        1 => format!("; 1 value is {what}"),
        count => format!("; {count} values are {what}"),
    };
    format!("; plan {}", plan.hash.short())
        + &leaves(plan.unknown.count, "known only when it is applied")
        + &leaves(plan.unstable.count, "different in each preview and not compared")
}

/// The changes that a preview found: their counts and the first resources, `+1 ~0 -0 ±1 (replaces
/// aws:rds:Instance db, creates aws:s3:Bucket logs)`, or `no changes`.
#[must_use]
pub fn preview_summary(found: &Previewed) -> String {
    if found.is_empty() {
        "no changes".into()
    } else {
        counted(&found.counts) + &named(found.first.iter().map(|change| (change.kind, change.urn.as_str())), verb)
    }
}

/// The number of resources by kind of change.
fn counted(counts: &BTreeMap<ChangeKind, u32>) -> String {
    let count = |kind| counts.get(&kind).copied().unwrap_or(0);
    let mut text = format!(
        "+{} ~{} -{} ±{}",
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
    text
}

/// What happens to a resource that a message may name.
const fn verb(kind: ChangeKind) -> Option<&'static str> {
    match kind {
        ChangeKind::Replace => Some("replaces"),
        ChangeKind::Delete => Some("deletes"),
        ChangeKind::Forget => Some("forgets"),
        ChangeKind::Create => Some("creates"),
        ChangeKind::Import => Some("imports"),
        ChangeKind::Update => Some("updates"),
        ChangeKind::Options | ChangeKind::Refresh | ChangeKind::Outputs => None,
    }
}

/// The first resources whose change has a verb, in parentheses; empty if there is none.
fn named<'a>(changes: impl Iterator<Item = (ChangeKind, &'a str)>, verb: impl Fn(ChangeKind) -> Option<&'static str>) -> String {
    let all: Vec<_> = changes.filter_map(|(kind, urn)| Some(format!("{} {}", verb(kind)?, resource(urn)))).collect();
    let more = if all.len() > NAMED { ", and more" } else { "" };
    if all.is_empty() { String::new() } else { format!(" ({}{more})", all[..all.len().min(NAMED)].join(", ")) }
}

/// Type and name of a resource, from its URN.
fn resource(urn: &str) -> String {
    let mut parts = urn.rsplit("::");
    match (parts.next(), parts.next()) {
        (Some(name), Some(types)) => format!("{} {name}", types.rsplit('$').next().unwrap_or(types)),
        _ => urn.to_owned(),
    }
}
