//! The document that rules are about: the variables of their expressions. It has names and counts,
//! and no values.

use std::collections::BTreeMap;

use cel::{Context, SerializationError};
use serde::Serialize;

use super::cost::Sizes;
use crate::{ChangeKind, PlannedChange, PlannedChanges, Stack, bound::MAX_URN_BYTES};

/// The variable with the list of changes.
pub(super) const CHANGES: &str = "changes";
/// The shortest that the longest list counts as: an expression may write out lists of this length.
const LEAST: usize = 128;

/// The variables.
pub(super) struct Document<'a> {
    stack: Subject<'a>,
    operation: &'a str,
    counts: BTreeMap<&'static str, i64>,
    changes: Vec<Change<'a>>,
    unknown: i64,
    unstable: i64,
    /// Bounds of the evaluation.
    pub sizes: Sizes,
    /// Why changes, or parts of them, are missing.
    pub cut: Option<String>,
}

/// The Stack of a plan.
#[derive(Serialize)]
struct Subject<'a> {
    namespace: &'a str,
    name: &'a str,
    /// `spec.stack`
    stack: &'a str,
}

/// A change of a resource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Change<'a> {
    kind: &'static str,
    urn: &'a str,
    r#type: &'a str,
    name: &'a str,
    properties: &'a [String],
    replaced_by: &'a [String],
}

impl<'a> Document<'a> {
    pub(super) fn of(stack: &'a Stack, plan: &'a PlannedChanges) -> Self {
        let changes = &plan.changes.first;
        let paths = changes.iter().flat_map(|change| [change.paths.len(), change.replaced_by.len()]);
        let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        let texts = changes.len() * 4 + paths.clone().sum::<usize>();
        let sizes = Sizes {
            changes: count(changes.len().max(LEAST)),
            paths: count(paths.max().unwrap_or_default()),
            texts: count(texts.max(LEAST)),
        };
        Self {
            stack: Subject { namespace: &stack.namespace, name: &stack.name, stack: &stack.spec.stack },
            operation: plan.operation.as_str(),
            counts: ChangeKind::ALL.iter().map(|kind| (kind.as_str(), plan.count(*kind).into())).collect(),
            changes: changes.iter().map(change).collect(),
            unknown: plan.unknown.count.into(),
            unstable: plan.unstable.count.into(),
            sizes,
            cut: cut(plan),
        }
    }

    /// Adds the variables.
    pub(super) fn declare(&self, context: &mut Context<'_, '_>) -> Result<(), SerializationError> {
        context.add_variable("stack", &self.stack)?;
        context.add_variable("operation", self.operation)?;
        context.add_variable("counts", &self.counts)?;
        context.add_variable(CHANGES, &self.changes)?;
        context.add_variable("unknown", self.unknown)?;
        context.add_variable("unstable", self.unstable)
    }
}

fn change(change: &PlannedChange) -> Change<'_> {
    Change {
        kind: change.kind.as_str(),
        urn: &change.urn,
        r#type: &change.resource_type,
        name: name(change),
        properties: &change.paths,
        replaced_by: &change.replaced_by,
    }
}

/// The name of a resource: what follows its type in the URN. A program chooses both, and either may
/// contain `::`.
fn name(change: &PlannedChange) -> &str {
    let rest = change.urn.match_indices("::").nth(1).map_or("", |(at, separator)| &change.urn[at + separator.len()..]);
    let end = format!("{}::", change.resource_type);
    let is_start = |at: &usize| *at == 0 || rest[..*at].ends_with('$');
    let found = rest.match_indices(&end).map(|(at, _)| at).find(is_start);
    found.map_or("", |at| &rest[at + end.len()..])
}

/// Why the list of changes is not all of them.
fn cut(plan: &PlannedChanges) -> Option<String> {
    let listed = plan.changes.first.len();
    let is_long = |change: &PlannedChange| {
        change.urn.len() > MAX_URN_BYTES - 4
            || [&change.paths, &change.replaced_by].into_iter().any(|paths| paths.len() >= PlannedChanges::MAX_PATHS)
    };
    let all = || plan.changes.first.iter();
    let counted = plan.counts.values().fold(0_u32, |sum, count| sum.saturating_add(*count)).max(plan.changes.count);
    if usize::try_from(counted) != Ok(listed) {
        return Some(format!(
            "the plan has {counted} changes, and rules see the first {listed} only; change fewer resources at once (spec.targets)"
        ));
    }
    if let Some(change) = all().find(|change| is_long(change)) {
        return Some(format!("the plan of {:?} has more properties than rules see", name(change)));
    }
    all().find(|change| change.resource_type.is_empty()).map(|_| "the plan is of an older release; request another one".into())
}
