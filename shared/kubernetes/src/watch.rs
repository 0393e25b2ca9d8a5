use std::collections::BTreeMap;

use driftless_core::WatchNamespaces;

use crate::{Cluster, Result};

/// Label of a Namespace: `true` or `false`, whether we act in it.
pub const WATCH: &str = "driftless.dev/watch";

/// Where an installation acts.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// What it does where a Namespace says nothing.
    pub namespaces: WatchNamespaces,
    /// The system's own namespace, which is ours whatever is written on it.
    pub system_namespace: &'a str,
}

impl Watch<'_> {
    /// Whether a namespace is ours, as it is labelled now or was [`crate::LABELS_KEPT`] ago. One that was not is asked for again: nothing
    /// else repeats a hint that is dropped. In one that is gone there is nothing that could be another's.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn is_ours<C: Cluster>(self, cluster: &C, namespace: &str) -> Result<bool> {
        if namespace == self.system_namespace {
            return Ok(true);
        }
        let label = cluster.watch_label(namespace).await?;
        let is_ours = label.is_none_or(|label| self.namespaces.is_ours(label.as_deref()));
        if !is_ours {
            cluster.forget_label(namespace);
        }
        Ok(is_ours)
    }

    /// The same for a namespace that is there, by the labels of all: for who looks through a whole cluster.
    #[must_use]
    pub fn is_ours_by(self, labels: &BTreeMap<String, String>, namespace: &str) -> bool {
        namespace == self.system_namespace || self.namespaces.is_ours(labels.get(namespace).map(String::as_str))
    }
}
