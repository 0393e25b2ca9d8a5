use sha2::{Digest as _, Sha256};

use crate::Stack;

/// An object's name has at most 253 characters; the hash of an Update's name takes 12 of them and the dash one. Labels and the
/// outputs Secret (`<update>-stack-outputs`) want more room.
const MAX_STACK_PART: usize = 180;

/// Stands for the predecessor of the first.
const FIRST: &str = "first";

/// The name of the Update that follows the last recorded run of a Stack. It depends on nothing but the Stack and that run: whatever
/// changed meanwhile, and however many look at once, there is one successor.
#[must_use]
pub fn update_name(stack: &Stack) -> String {
    name(stack, &[stack.status.last_update.as_ref().map_or(FIRST, |last| &last.name)])
}

/// The name of the Update that looks for drift next: likewise, by the check that was recorded last.
#[must_use]
pub fn check_name(stack: &Stack) -> String {
    name(stack, &["drift", stack.status.drift.last.as_deref().unwrap_or(FIRST)])
}

fn name(stack: &Stack, after: &[&str]) -> String {
    let cut = stack.name.get(..MAX_STACK_PART).unwrap_or(&stack.name).trim_end_matches(['.', '-']);
    let parts: Vec<_> = [stack.uid.as_str()].into_iter().chain(after.iter().copied()).collect();
    format!("{cut}-{}", &hash(&parts)[..12])
}

/// The first 40 hex digits of the SHA-256 of the parts, each ended by a NUL so that no two lists of parts are the same bytes.
#[must_use]
pub fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let mut hex = base16ct::lower::encode_string(&hasher.finalize());
    hex.truncate(40);
    hex
}
