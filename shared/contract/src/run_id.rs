use serde::{Deserialize, Serialize};

use crate::{Claim, ObjectKey, Uid};

/// A run: one Update object, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunId {
    /// The Update.
    pub update: ObjectKey,
    /// The Update's uid, because a later object of the same name is another run.
    pub uid: Uid,
    /// The name of the Lease that the run holds.
    pub claim: Claim,
}
