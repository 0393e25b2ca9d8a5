//! The plan of an update in a form that can be compared: equal plans have equal hashes, and any
//! difference that matters makes another one. Everything here is a function of what Pulumi printed;
//! [`crate::session`] calls Pulumi.
//!
//! The plan has names, counts and keyed digests. The values that it is made from contain secrets in
//! clear, so nothing here has `Debug`.

mod canon;
mod preview;
mod resource;
mod state;
#[cfg(test)]
mod tests;
mod violation;

use driftless_contract::{Operation, PlanHash, PlanParts, PlanRequest, PlannedChanges};
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest as _, Sha256};

pub(crate) use self::{
    canon::Key,
    preview::{Preview, Unstable},
    state::State,
    violation::{HIDDEN, Violations, is_violation},
};
use crate::mask::Mask;

/// The version of the canonical form, a part of each hash: another form makes every approved plan
/// stale.
const VERSION: u32 = 1;

/// The known parts of a plan before a preview.
pub(crate) struct Basis<'a> {
    pub request: &'a PlanRequest,
    /// [`PlanRequest::key`]
    pub key: Key,
    /// The operation that the plan is for.
    pub operation: Operation,
    /// What `pulumi version` prints.
    pub pulumi: String,
}

/// Makes the plan from a preview and the state that it started from, with secrets masked.
pub(crate) fn planned(basis: &Basis<'_>, preview: &Preview, state: &State, mask: &Mask, now: Timestamp) -> PlannedChanges {
    let Basis { request, key, operation, pulumi } = basis;
    let (counts, changes) = preview.changes(mask);
    let (unknown, unstable) = (preview.unknown(mask), preview.unstable(mask));
    let advice = preview.advice.clone();
    let parts = PlanParts {
        version: VERSION,
        binding: request.binding.clone(),
        resources: key.digest(&preview.document()),
        state: state.digest(key),
        pulumi: pulumi.clone(),
        tree: request.tree.clone().filter(|_| preview.is_open()),
    };
    let hash = hash(&parts);
    PlannedChanges { hash, parts, operation: *operation, counts, changes, unknown, unstable, advice, made_at: now }.bounded()
}

/// The hash of a plan: that of its parts.
fn hash(parts: &PlanParts) -> PlanHash {
    let PlanParts { version, binding, resources, state, pulumi, tree } = parts;
    let parts = json!({
        "version": version,
        "binding": binding,
        "resources": resources,
        "state": state,
        "pulumi": pulumi,
        "tree": tree,
    });
    PlanHash::from(<[u8; 32]>::from(Sha256::digest(canon::bytes(&parts))))
}
