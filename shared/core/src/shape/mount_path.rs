//! Where a task's volumes can be mounted, and which paths are allowed within one.

use super::{RUNNER_VOLUME, SECRETS, SHARE};

/// Reserved names in the volumes that every task has.
const TAKEN: [(&str, &[&str]); 2] =
    [(SHARE, &[".env", "source", "workspace"]), (SECRETS, &["eks.amazonaws.com", "kubernetes.io"])];
/// Paths where no volume can be mounted: the kernel's, the runner's, and `/run`, the target of the
/// link `/var/run` in most images.
const NOT_MOUNTED: [&str; 5] = ["/dev", RUNNER_VOLUME, "/proc", "/run", "/sys"];
/// EKS's mount path of the token for a role, and the annotation that gives a task the token
/// instead.
pub(super) const IRSA: &str = "/var/run/secrets/eks.amazonaws.com/serviceaccount";
const IRSA_ROLE: &str = "eks.amazonaws.com/role-arn";

/// Checks that a file stays within its volume.
pub(super) fn check_file(at: &str, path: &str) -> Result<(), String> {
    let is_within = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    is_within.then_some(()).ok_or_else(|| format!("{at} is {path:?}; write a path relative to the volume, without \"..\""))
}

/// Checks that a volume can be mounted at a path.
pub(super) fn check_path(at: &str, path: &str) -> Result<(), String> {
    let is_path = path.strip_prefix('/').is_some_and(|path| check_file(at, path).is_ok()) && !path.contains(':');
    if !is_path {
        return Err(format!("{at} is {path:?}; write an absolute path without \"..\" and \":\""));
    }
    if path == IRSA || is_below(path, IRSA) {
        let remedy = format!("set the annotation {IRSA_ROLE} of the ServiceAccount, and remove the mount");
        return Err(format!("{at} is {path:?}, where a task has the token for the role of its ServiceAccount; {remedy}"));
    }
    let is_over = |ours: &str| path == ours || is_below(ours, path);
    let is_in = |taken: &str| path == taken || is_below(path, taken);
    let is_taken = |(ours, names): &(&str, &[&str])| is_over(ours) || names.iter().any(|name| is_in(&format!("{ours}/{name}")));
    if TAKEN.iter().any(is_taken) || NOT_MOUNTED.into_iter().any(is_in) {
        return Err(format!("{at} is {path:?}, which is reserved for files of the task; write another path"));
    }
    Ok(())
}

/// Returns whether a path is in a volume that every task has.
pub(super) fn is_ours(path: &str) -> bool {
    is_below(path, SHARE) || is_below(path, SECRETS)
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
