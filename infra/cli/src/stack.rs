//! Reads what the commands and the page show of one Stack.

use std::collections::BTreeMap;

use driftless_api::{Stack, Update, facts::snapshot};
use driftless_core::{RunState, Stack as CoreStack};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    Result,
    cluster::Cluster,
    diff,
    explain::{self, Explanation},
    facts::Reader,
    log, view,
};

/// The recorded differences of a Stack. Without its log, the resources of a run are not named. A
/// note says what was done about an expired link to a log.
pub(crate) async fn difference(
    cluster: &Cluster,
    stack: &Stack,
    now: fn() -> Timestamp,
    note: impl FnMut(&str),
) -> Result<diff::Diff> {
    let updates = updates(cluster, stack).await?;
    let shown = diff::last(&updates).into_iter().flatten().cloned().collect();
    let mut logs = BTreeMap::new();
    for update in log::renewed(cluster, shown, now, note).await? {
        if let Ok(Some(log)) = log::read(cluster, &update, None).await {
            logs.insert(update.name_any(), log.whole);
        }
    }
    Ok(diff::of(stack, &updates, &logs))
}

/// The Updates of a Stack, the newest first.
pub(crate) async fn updates(cluster: &Cluster, stack: &Stack) -> Result<Vec<Update>> {
    let namespace = stack.namespace().unwrap_or_default();
    let fields = format!("spec.workspaceName={}", stack.name_any());
    Ok(view::updates_of(stack, cluster.list::<Update>(Some(&namespace), Some(&fields)).await?))
}

/// Kubernetes keeps times in whole seconds.
pub(crate) fn whole(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or_default()
}

/// The explanation of a Stack.
pub(crate) async fn explanation(cluster: &Cluster, stack: &Stack, system_namespace: &str, now: Timestamp) -> Result<Explanation> {
    let now = whole(now);
    let reader = Reader::new(cluster, system_namespace);
    let snapshot = snapshot(&reader, CoreStack::from(stack), now).await?;
    let update = match &snapshot.run {
        RunState::Live(run, ..) | RunState::Ended(run, _) => cluster.find(&run.namespace, &run.name).await?,
        RunState::None | RunState::Missing | RunState::Foreign => None,
    };
    Ok(explain::stack(&snapshot, reader.unknown(), update.as_ref(), now))
}
