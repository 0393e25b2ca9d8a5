//! Where a task's volumes can be mounted, and what a path within one may be.

use driftless_core::{RUNNER_VOLUME, SECRETS, SHARE};

/// Names that are taken in the volumes that every task has.
const TAKEN: [(&str, &[&str]); 2] =
    [(SHARE, &[".env", "source", "workspace"]), (SECRETS, &["eks.amazonaws.com", "kubernetes.io"])];
/// Where no volume can be: they are the kernel's, the runner's, and that of which `/var/run` is a link in most images.
const NOT_MOUNTED: [&str; 5] = ["/dev", RUNNER_VOLUME, "/proc", "/run", "/sys"];
/// EKS's mount path of the token for a role, and the annotation that a task has it by.
pub(crate) const IRSA: &str = "/var/run/secrets/eks.amazonaws.com/serviceaccount";
const IRSA_ROLE: &str = "eks.amazonaws.com/role-arn";

/// A file of a volume stays within it.
pub(crate) fn check_file(at: &str, path: &str) -> Result<(), String> {
    let is_within = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    is_within.then_some(()).ok_or_else(|| format!("{at} is {path:?}; write a path relative to the volume, without .."))
}

/// A path at which a volume can be mounted.
pub(crate) fn check_path(at: &str, path: &str) -> Result<(), String> {
    let is_path = path.strip_prefix('/').is_some_and(|path| check_file(at, path).is_ok()) && !path.contains(':');
    if !is_path {
        return Err(format!("{at} is {path:?}; write an absolute path without .. and :"));
    }
    if path == IRSA || is_below(path, IRSA) {
        let remedy = format!("set the annotation {IRSA_ROLE} of the ServiceAccount, and remove the mount");
        return Err(format!("{at} is {path:?}, where a task has the token for its ServiceAccount's role; {remedy}"));
    }
    let is_over = |ours: &str| path == ours || is_below(ours, path);
    let is_in = |taken: &str| path == taken || is_below(path, taken);
    let is_taken = |(ours, names): &(&str, &[&str])| is_over(ours) || names.iter().any(|name| is_in(&format!("{ours}/{name}")));
    if TAKEN.iter().any(is_taken) || NOT_MOUNTED.into_iter().any(is_in) {
        return Err(format!("{at} is {path:?}, where a task has files of its own; write another path"));
    }
    Ok(())
}

/// Whether a path is in a volume that every task has.
pub(crate) fn is_ours(path: &str) -> bool {
    is_below(path, SHARE) || is_below(path, SECRETS)
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
