use std::collections::BTreeMap;

use driftless_core::WatchNamespaces;

use crate::{Cluster, Result};

/// Label of a Namespace for the namespace filter: `true` or `false`.
pub const WATCH: &str = "driftless.dev/watch";

/// The namespace filter of an installation.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// The rule for Namespaces without a label.
    pub namespaces: WatchNamespaces,
    /// The system's own namespace, which is always included.
    pub system_namespace: &'a str,
}

impl Watch<'_> {
    /// Returns whether the filter includes a namespace, by its label now or up to
    /// [`crate::LABELS_KEPT`] ago. A negative answer is read again, because no event repeats a
    /// dropped hint. A namespace that no longer exists has no objects of another operator.
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

    /// The same for an existing namespace, by the labels of all, for a pass over a whole cluster.
    #[must_use]
    pub fn is_ours_by(self, labels: &BTreeMap<String, String>, namespace: &str) -> bool {
        namespace == self.system_namespace || self.namespaces.is_ours(labels.get(namespace).map(String::as_str))
    }
}
