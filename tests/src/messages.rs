//! docs/messages.md: every reason that a user reads, from the enums in the code.

use std::fmt::Write as _;

use driftless_contract::FailureReason;
use driftless_core::{DriftReason, EventReason, StackReason, run::WaitReason};

const HEAD: &str = "# Reasons of conditions and Events

This page lists every reason that Driftless writes, what it means, and what you do. The message
beside the reason names the field, the value and the cause. `make messages` writes this page from
the code.
";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut section = |title: &str, rows: Vec<[&str; 3]>| {
        let _ = write!(page, "\n## {title}\n\n| reason | meaning | what to do |\n| --- | --- | --- |\n");
        for [reason, meaning, remedy] in rows {
            let _ = writeln!(page, "| `{reason}` | {meaning} | {remedy} |");
        }
    };
    macro_rules! rows {
        ($reasons:ty) => {
            <$reasons>::ALL.iter().map(|reason| [reason.as_str(), reason.meaning(), reason.remedy()]).collect()
        };
    }
    section("Stack: Reconciling and Stalled", rows!(StackReason));
    section("Stack: Drifted", rows!(DriftReason));
    section("Update: waiting", rows!(WaitReason));
    section("Update: failed", rows!(FailureReason));
    section("Events", rows!(EventReason));
    page
}
