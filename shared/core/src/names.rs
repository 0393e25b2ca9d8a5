use sha2::{Digest as _, Sha256};

use crate::{ArtifactDigest, Stack};

/// An object's name has at most 253 characters; the hash of an Update's name takes 12 of them and
/// the dash one. Labels and the outputs Secret (`<update>-stack-outputs`) need more room.
const MAX_STACK_PART: usize = 180;

/// The maximum length of a digest, in bytes; `sha512:` with its digits has 135.
const MAX_DIGEST: usize = 160;

/// Kinds whose trees Driftless stores under its own keys, and their groups. A foreign group would
/// share those keys.
const OWN_KINDS: [(&str, &str); 3] = [("stack", "pulumi.com"), ("program", "pulumi.com"), ("workspace", "auto.pulumi.com")];

/// The names of a project's file, in the order in which they are tried.
pub const PROJECT_FILES: [&str; 3] = ["Pulumi.yaml", "Pulumi.yml", "Pulumi.json"];

/// Takes the place of the predecessor for the first Update.
const FIRST: &str = "first";

/// The name of the Update that follows the last recorded run of a Stack. It depends only on the
/// Stack and that run, so concurrent reconciliations that read different specs create the same
/// successor.
#[must_use]
pub fn update_name(stack: &Stack) -> String {
    name(stack, &[stack.status.last_update.as_ref().map_or(FIRST, |last| &last.name)])
}

/// The name of the next drift check, which depends in the same way on the check that was recorded
/// last: one without a result leaves its time only, in the whole seconds that Kubernetes stores.
#[must_use]
pub fn check_name(stack: &Stack) -> String {
    let drift = &stack.status.drift;
    let recorded = drift.checked.map_or_else(|| FIRST.to_owned(), |at| at.as_second().to_string());
    name(stack, &["drift", drift.last.as_deref().unwrap_or(FIRST), &recorded])
}

/// The name of the next proposal, which depends in the same way on the proposal that was recorded
/// last.
#[must_use]
pub fn proposal_name(stack: &Stack) -> String {
    name(stack, &["plan", stack.status.plan.last.as_deref().unwrap_or(FIRST)])
}

/// The name of the Update that applies the current plan. A stale run is not recorded in
/// `lastUpdate`, so the name also depends on the Update that made the plan.
#[must_use]
pub fn apply_name(stack: &Stack) -> String {
    let made_by = stack.status.plan.proposal.as_ref().map_or(FIRST, |proposal| &proposal.update);
    name(stack, &["apply", made_by, stack.status.last_update.as_ref().map_or(FIRST, |last| &last.name)])
}

fn name(stack: &Stack, after: &[&str]) -> String {
    let cut = stack.name.get(..MAX_STACK_PART).unwrap_or(&stack.name).trim_end_matches(['.', '-']);
    let parts: Vec<_> = [stack.uid.as_str()].into_iter().chain(after.iter().copied()).collect();
    format!("{cut}-{}", &hash(&parts)[..12])
}

/// Returns why a source reference is invalid, as a message about the field `at`. Callers check it
/// before they build a key or path from it.
#[must_use]
pub fn invalid_object(at: &str, api_version: &str, kind: &str, name: &str) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_version = (group.is_empty() && !api_version.contains('/') || is_name(group, 253)) && is_name(version, 63);
    let wrong = |field: &str, value: &str, remedy: &str| format!("{at}.{field} is {}; {remedy}", shortened(value));
    if !is_version {
        return Some(wrong("apiVersion", api_version, "write GROUP/VERSION, such as source.toolkit.fluxcd.io/v1"));
    }
    if !is_name(kind, 63) || kind.contains('.') {
        return Some(wrong("kind", kind, "write a kind of at most 63 letters, digits and \"-\", such as GitRepository"));
    }
    if let Some((_, own)) = OWN_KINDS.iter().find(|(own, _)| kind.eq_ignore_ascii_case(own)).filter(|(_, own)| *own != group) {
        return Some(wrong("apiVersion", api_version, &format!("use the group {own} for {kind}")));
    }
    (!is_name(name, 253)).then(|| wrong("name", name, "write a name of at most 253 letters, digits, \"-\" and \".\""))
}

/// Returns why a source digest is invalid, as a message about the field `at`.
#[must_use]
pub fn invalid_digest(at: &str, digest: &ArtifactDigest) -> Option<String> {
    let digest = digest.as_str();
    let is_digest = !digest.is_empty() && digest.len() <= MAX_DIGEST;
    let is_digest = is_digest && digest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":-_+.=".contains(&byte));
    (!is_digest).then(|| format!("{at} is {}; write ALGORITHM:HEX of at most {MAX_DIGEST} characters", shortened(digest)))
}

fn is_name(text: &str, most: usize) -> bool {
    text.len() <= most
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// A tenant's value in quotes, cut to fit into a condition.
fn shortened(value: &str) -> String {
    let cut: String = value.chars().take(60).collect();
    if cut.len() < value.len() { format!("{cut:?}… ({} bytes)", value.len()) } else { format!("{cut:?}") }
}

/// The first 40 hex digits of the SHA-256 of the parts. Each part ends with a NUL, so that
/// different lists never have the same bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_reference_that_no_object_has_is_refused_by_its_field() {
        let check = |api_version: &str, kind: &str, name: &str| invalid_object("at", api_version, kind, name);
        for (api_version, kind) in [
            ("source.toolkit.fluxcd.io/v1", "GitRepository"),
            ("v1", "ConfigMap"),
            ("pulumi.com/v1", "Stack"),
            ("auto.pulumi.com/v1alpha1", "Workspace"),
        ] {
            assert_eq!(check(api_version, kind, "shop.1-a"), None);
        }
        let long = "k".repeat(1000);
        for (api_version, kind, name, field) in [
            ("", "Kind", "n", "apiVersion"),
            ("/v1", "Kind", "n", "apiVersion"),
            ("g/v1/x", "Kind", "n", "apiVersion"),
            ("g/v1", "", "n", "kind"),
            ("g/v1", "Ki/nd", "n", "kind"),
            ("g/v1", &long, "n", "kind"),
            ("g/v1", "stack", "n", "apiVersion"),
            ("pulumi.com/v1", "Workspace", "n", "apiVersion"),
            ("g/v1", "Kind", "", "name"),
            ("g/v1", "Kind", "../n", "name"),
            ("g/v1", "Kind", &long, "name"),
        ] {
            let words = check(api_version, kind, name).unwrap();
            assert!(words.starts_with(&format!("at.{field} is ")) && words.len() < 250, "{words}");
        }
    }

    #[test]
    fn digest_that_cannot_be_part_of_a_key_is_refused() {
        for digest in [format!("sha512:{}", "0".repeat(128)), "sha1:0f".into(), "0f".into()] {
            assert_eq!(invalid_digest("at", &digest.into()), None);
        }
        for digest in [String::new(), "sha256:../x".into(), "a b".into(), "ö".into(), "0".repeat(1025)] {
            let words = invalid_digest("at", &digest.into()).unwrap();
            assert!(words.starts_with("at is ") && words.len() < 250, "{words}");
        }
    }
}
