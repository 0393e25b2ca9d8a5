//! Reads a document that a task wrote, within bounds.

use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::Key;
use driftless_kubernetes::Cluster;
use sha2::{Digest as _, Sha256};

use crate::{Error, Recorder};

/// The maximum size of a task's document, in bytes. Less of it is kept.
pub(crate) const MAX_REPORT: u64 = 4 << 20;

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// Reads up to [`MAX_REPORT`] bytes of a task's document. An object that S3 lists and does not
    /// return counts as empty, because the end of a run must not depend on how its task stored a
    /// report.
    pub(crate) async fn read_report<D>(&self, key: &Key<D>) -> Result<Option<Vec<u8>>, Error> {
        match self.objects.get_range(key, 0, MAX_REPORT).await {
            Err(driftless_aws::Error::Permanent { call, message }) => {
                tracing::warn!(call, message, "cannot read a report of a task");
                Ok(Some(Vec::new()))
            }
            document => Ok(document?),
        }
    }
}

pub(crate) fn sha256(document: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(document))
}
