//! `logs`: the masked log of a run, from the ConfigMap that Driftless copies it to.

use std::{collections::BTreeMap, time::Duration};

use driftless_api::{Stack, Update, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::{Error, Result, cluster::Cluster, render::clean, view};

/// The time between two reads of a log that is followed.
const PERIOD: Duration = Duration::from_secs(1);

/// The Update whose log is meant by a Stack: the current one, else the last one.
#[must_use]
pub fn of_stack(stack: &Stack) -> Option<String> {
    let status = stack.status.as_ref()?;
    let current = status.current_update.as_ref().and_then(|current| current.name.clone());
    current.or_else(|| status.last_update.as_ref()?.name.clone())
}

/// The parts that follow the one with the key `after`, and the key of the last part.
#[must_use]
pub fn parts_after(data: &BTreeMap<String, String>, after: Option<&str>) -> (String, Option<String>) {
    let parts = data.iter().filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let text = parts.map(|(_, part)| part.as_str()).collect();
    (text, data.last_key_value().map(|(key, _)| key.clone()).or_else(|| after.map(ToOwned::to_owned)))
}

/// Why an Update has no log.
#[must_use]
pub fn absent(update: &Update) -> String {
    let name = update.name_any();
    match view::phase(update) {
        view::Phase::Waiting(reason, message) if !reason.is_empty() => {
            format!("Update {name} has no log yet: it waits: {reason}: {message}")
        }
        view::Phase::Waiting(..) => format!("Update {name} has no log yet: its task has not started"),
        view::Phase::Running => format!("Update {name} has no log yet: the first lines appear within a minute"),
        view::Phase::Succeeded | view::Phase::Failed(_) => match view::ours(update).log {
            Some(address) => format!("Update {name} has no log in the cluster; the whole log is at {address}"),
            None => format!("Update {name} has no log: it ended without a task"),
        },
    }
}

fn config_map(update: &Update) -> String {
    view::ours(update).log_config_map.unwrap_or_else(|| format!("{}{}", update.name_any(), names::LOG_SUFFIX))
}

/// The parts of an Update's log by key, in order. `None` if it has no log.
pub async fn data(cluster: &Cluster, update: &Update) -> Result<Option<BTreeMap<String, String>>> {
    let namespace = update.namespace().unwrap_or_default();
    let found = cluster.find::<ConfigMap>(&namespace, &config_map(update)).await?;
    Ok(found.map(|found| found.data.unwrap_or_default()))
}

/// Prints the log of an Update; if it is followed, until the run has ended.
pub async fn print(
    cluster: &Cluster,
    update: Update,
    follow: bool,
    mut out: impl FnMut(&str),
    mut note: impl FnMut(&str),
) -> Result<()> {
    let name = update.name_any();
    let config_map = config_map(&update);
    let mut update = Some(update);
    let mut last = None;
    let mut told = String::new();
    loop {
        // The whole log is stored before the Update is complete.
        let is_over = update.as_ref().is_none_or(Update::is_complete);
        match cluster.find::<ConfigMap>(&cluster.namespace, &config_map).await? {
            Some(found) => {
                let (text, end) = parts_after(&found.data.unwrap_or_default(), last.as_deref());
                out(&clean(&text));
                last = end;
            }
            None if last.is_some() => {}
            None => {
                let why = update.as_ref().map_or_else(|| format!("Update {name} was deleted"), absent);
                if is_over || !follow {
                    return Err(Error::failed(why));
                }
                if why != told {
                    note(&why);
                    told = why;
                }
            }
        }
        if is_over || !follow {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
        update = cluster.find(&cluster.namespace, &name).await?;
    }
}
