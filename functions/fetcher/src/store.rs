//! Storing a tree: the pack first, the manifest last. A tree is there when its manifest is.

use std::io::{Read, Seek};

use driftless_aws::Objects;
use driftless_source::{Error as SourceError, Manifest, Tree};

use crate::{Error, Refusal};

pub(crate) async fn store<O: Objects>(
    objects: &O,
    folder: &str,
    tree: &Tree,
    spool: &mut (impl Read + Seek),
) -> Result<Result<(), Refusal>, Error> {
    let mut pack = Vec::new();
    if let Err(error) = tree.write_pack(spool, &mut pack) {
        return Ok(Err(error.into()));
    }
    // The same tree makes the same bytes, so that whoever else stores it meanwhile does no harm.
    objects.put(&format!("{folder}pack"), pack).await?;
    objects.put_new(&format!("{folder}manifest"), Manifest::of(tree).to_bytes()).await?;
    Ok(Ok(()))
}

/// What the words of a failed unpacking are.
pub(crate) fn refusal(error: SourceError) -> Refusal {
    match error {
        SourceError::Refused(refusal) => refusal.into(),
        SourceError::Read(error) | SourceError::Spool(error) => error.into(),
    }
}
