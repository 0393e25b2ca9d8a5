//! A commit's files, straight from the pack: no work tree, no filter, nothing of the repository's that runs.

use std::{collections::BTreeSet, fs::File, io::BufWriter};

use driftless_source::{Builder, Error, Limits, Tree};
use gix_hash::{ObjectId, oid};
use gix_object::{CommitRefIter, Kind, TreeRefIter, tree::EntryKind};
use gix_pack::{Bundle, cache::Never};
use gix_zlib::Inflate;

use super::GitError;

/// How a file begins whose content Git LFS keeps elsewhere. Such a file is short.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const MAX_LFS_POINTER: usize = 1024;

/// The id of a commit's tree, and the tree with its content in the spool. Outside the `needed` directories a submodule is left out and a
/// pointer of Git LFS is a file with its text, as after a plain `git clone`; within them both are errors.
pub(super) fn read(
    bundle: &Bundle,
    commit: &oid,
    limits: &Limits,
    needed: &BTreeSet<String>,
    spool: &File,
) -> Result<(ObjectId, Tree), GitError> {
    let mut objects = Objects { bundle, inflate: Inflate::default() };
    let mut buffer = Vec::new();
    let kind = objects.find(commit, &mut buffer)?;
    let root = CommitRefIter::from_bytes(&buffer, gix_hash::Kind::Sha1).tree_id();
    let (Kind::Commit, Ok(root)) = (kind, root) else {
        return Err(GitError::NotACommit { id: commit.to_string() });
    };
    let mut builder = Builder::new(*limits, BufWriter::new(spool));
    let mut content = Vec::new();
    let mut directories = vec![(Vec::new(), root)];
    while let Some((directory, id)) = directories.pop() {
        objects.expect(&id, Kind::Tree, &mut buffer)?;
        for entry in TreeRefIter::from_bytes(&buffer, gix_hash::Kind::Sha1) {
            let entry = entry.map_err(|_| GitError::Pack)?;
            let mut path = directory.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.filename);
            let text = String::from_utf8_lossy(&path);
            let shown = || text.chars().take(200).collect();
            match entry.mode.kind() {
                EntryKind::Tree => {
                    // Also bounds how often a tree is walked that is in many others.
                    builder.directory(&path)?;
                    directories.push((path, entry.oid.to_owned()));
                }
                EntryKind::Commit if is_needed(&text, needed) => return Err(GitError::Submodule { path: shown() }),
                EntryKind::Commit => {}
                EntryKind::Link => {
                    objects.expect(entry.oid, Kind::Blob, &mut content)?;
                    builder.link(&path, &content)?;
                }
                kind @ (EntryKind::Blob | EntryKind::BlobExecutable) => {
                    objects.expect(entry.oid, Kind::Blob, &mut content)?;
                    let is_pointer = content.len() < MAX_LFS_POINTER && content.starts_with(LFS_POINTER);
                    if is_pointer && is_needed(&text, needed) {
                        return Err(GitError::Lfs { path: shown() });
                    }
                    builder.file(&path, kind == EntryKind::BlobExecutable, &mut &content[..]).map_err(failed)?;
                }
            }
        }
    }
    Ok((root, builder.finish().map_err(failed)?))
}

/// Whether a path lies in one of the directories, or one of them in it.
fn is_needed(path: &str, directories: &BTreeSet<String>) -> bool {
    let within = |path: &str, dir: &str| {
        dir.is_empty() || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    directories.iter().any(|dir| within(path, dir) || within(dir, path))
}

struct Objects<'a> {
    bundle: &'a Bundle,
    inflate: Inflate,
}

impl Objects<'_> {
    fn find(&mut self, id: &oid, into: &mut Vec<u8>) -> Result<Kind, GitError> {
        let found = self.bundle.find(id, into, &mut self.inflate, &mut Never).ok().flatten();
        found.map(|(object, _)| object.kind).ok_or(GitError::Pack)
    }

    fn expect(&mut self, id: &oid, kind: Kind, into: &mut Vec<u8>) -> Result<(), GitError> {
        if self.find(id, into)? == kind { Ok(()) } else { Err(GitError::Pack) }
    }
}

fn failed(error: Error) -> GitError {
    match error {
        Error::Refused(refusal) => refusal.into(),
        Error::Read(error) | Error::Spool(error) => GitError::Scratch(error),
    }
}
