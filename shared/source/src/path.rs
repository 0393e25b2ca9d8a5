//! Paths within a tree: relative, with `/` between the parts, none of which is empty, `.` or `..`;
//! the root is the empty path.

use std::collections::BTreeMap;

use crate::{Limits, Refusal};

/// The maximum number of links in a path, as in Linux.
const MAX_HOPS: usize = 40;

/// The maximum number of steps to follow all links of a tree. Each reads the list of links once;
/// this many take seconds at worst.
const MAX_STEPS: usize = 4 << 20;

/// The path for `raw`, a name in an archive.
pub(crate) fn clean(raw: &[u8], limits: &Limits) -> Result<String, Refusal> {
    let lossy = || shown(&String::from_utf8_lossy(raw));
    if raw.len() > limits.path_length {
        return Err(Refusal::PathTooLong { path: lossy(), limit: limits.path_length });
    }
    let text = std::str::from_utf8(raw).map_err(|_| Refusal::NotUtf8 { path: lossy() })?;
    check_characters(text).map_err(|why| Refusal::InvalidPath { path: shown(text), why })?;
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

/// Refuses characters that no path and no link's target may have, with a message.
pub(crate) fn check_characters(text: &str) -> Result<(), &'static str> {
    match text.chars().find(|c| ['\\', '\0'].contains(c)) {
        None if text.is_empty() => Err("is empty"),
        None => Ok(()),
        Some('\0') => Err("contains a NUL"),
        Some(_) => Err("contains a backslash"),
    }
}

/// Returns the size of a path or a target in a manifest, in bytes. A control character takes six,
/// so a few paths of them would make a manifest larger than a function's memory.
pub(crate) fn in_json(text: &str) -> usize {
    text.bytes().map(|byte| if byte < b' ' { 6 } else { 1 + usize::from(byte == b'"') }).sum()
}

/// A directory as users write it, with superfluous dots and slashes; `None` if it is not within the
/// tree.
pub(crate) fn directory(raw: &str) -> Option<String> {
    let parts: Vec<&str> = parts(raw).collect();
    (!raw.starts_with('/') && !parts.contains(&"..")).then(|| parts.join("/"))
}

/// A path, cut for a message.
pub(crate) fn shown(path: &str) -> String {
    path.chars().take(200).collect()
}

/// The directories above `path`, nearest last, without the root.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Checks that every link stays in the tree, through all other links on the way. Its target need
/// not exist.
pub(crate) fn check_links(links: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let mut steps = 0;
    links.keys().try_for_each(|path| check_link(links, path, &mut steps))
}

fn check_link(links: &BTreeMap<String, String>, path: &str, steps: &mut usize) -> Result<(), Refusal> {
    let leaves = || Refusal::LinkLeavesTree { path: shown(path) };
    let mut hops = 0;
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut here = parent.to_owned();
    let mut ahead = vec![name];
    while let Some(part) = ahead.pop() {
        *steps += 1;
        if *steps > MAX_STEPS {
            return Err(Refusal::LinkMaze);
        }
        if part == ".." {
            if here.is_empty() {
                return Err(leaves());
            }
            here.truncate(here.rfind('/').unwrap_or(0));
            continue;
        }
        let parent = here.len();
        if parent > 0 {
            here.push('/');
        }
        here.push_str(part);
        let Some(target) = links.get(&here) else { continue };
        hops += 1;
        if hops > MAX_HOPS {
            return Err(Refusal::LinkLoop { path: shown(path) });
        }
        if target.starts_with('/') {
            return Err(leaves());
        }
        here.truncate(parent);
        ahead.extend(parts(target).rev());
    }
    Ok(())
}

/// Refuses two of Pulumi's settings (`Pulumi.*`) whose paths differ only in case.
pub(crate) fn check_cases<'a>(paths: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
    let mut seen = BTreeMap::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.get(..7).is_some_and(|begin| begin.eq_ignore_ascii_case("pulumi."))
            && let Some(other) = seen.insert(path.to_lowercase(), path)
        {
            return Err(Refusal::CaseTwins { path: shown(other), other: shown(path) });
        }
    }
    Ok(())
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}
