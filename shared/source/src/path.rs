//! Paths within a tree: relative, `/` between the parts, none of which is empty, `.` or `..`; the root is the empty path.

use std::collections::BTreeMap;

use crate::{Limits, Refusal};

/// Links that a path may pass through, as in Linux.
const MAX_HOPS: usize = 40;

/// The path that an archive means by `raw`.
pub(crate) fn clean(raw: &[u8], limits: &Limits) -> Result<String, Refusal> {
    let text = std::str::from_utf8(raw).map_err(|_| Refusal::NotUtf8 { path: shown(&String::from_utf8_lossy(raw)) })?;
    if text.len() > limits.path_length {
        return Err(Refusal::PathTooLong { path: shown(text), limit: limits.path_length });
    }
    if text.contains(['\\', '\0']) {
        return Err(Refusal::InvalidPath { path: shown(text) });
    }
    if text.starts_with('/') {
        return Err(Refusal::AbsolutePath { path: shown(text) });
    }
    let parts: Vec<&str> = parts(text).collect();
    if parts.contains(&"..") {
        return Err(Refusal::ParentPath { path: shown(text) });
    }
    if parts.len() > limits.depth {
        return Err(Refusal::TooDeep { path: shown(text), limit: limits.depth });
    }
    Ok(parts.join("/"))
}

/// A directory as people write it, with dots and slashes too many; `None` if it is not within the tree.
pub(crate) fn directory(raw: &str) -> Option<String> {
    let parts: Vec<&str> = parts(raw).collect();
    (!raw.starts_with('/') && !parts.contains(&"..")).then(|| parts.join("/"))
}

/// A path, short enough for a message.
pub(crate) fn shown(path: &str) -> String {
    path.chars().take(200).collect()
}

/// The directories above `path`, nearest last, without the root.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Where the link at `path` leads stays in the tree, through all other links on the way. It need not exist.
pub(crate) fn check_link(links: &BTreeMap<String, String>, path: &str) -> Result<(), Refusal> {
    let leaves = || Refusal::LinkLeavesTree { path: shown(path) };
    let mut hops = 0;
    let mut here: Vec<&str> = path.split('/').collect();
    let mut ahead: Vec<&str> = here.pop().into_iter().collect();
    while let Some(part) = ahead.pop() {
        if part == ".." {
            here.pop().ok_or_else(leaves)?;
            continue;
        }
        here.push(part);
        let Some(target) = links.get(&here.join("/")) else { continue };
        hops += 1;
        if hops > MAX_HOPS {
            return Err(Refusal::LinkLoop { path: shown(path) });
        }
        if target.starts_with('/') {
            return Err(leaves());
        }
        here.pop();
        ahead.extend(parts(target).rev());
    }
    Ok(())
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}
