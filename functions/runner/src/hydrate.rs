//! Writes the tree of the run to disk.

use std::{io, io::Write, path::Path};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use driftless_contract::keys::TreeFolder;
use driftless_source::{Digest, DigestMismatch, Directory, InvalidManifest, Manifest, Verifier};

use crate::{
    failure::Failure,
    s3::{Folder, StoreError},
};

/// Why the tree could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HydrateError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("download of the tree was interrupted")]
    Pack(#[from] reqwest::Error),
    #[error("pack of the tree is shorter than its manifest says")]
    Short,
    #[error("tree has another manifest than the run names")]
    OtherTree,
    #[error(transparent)]
    Manifest(#[from] InvalidManifest),
    #[error("file {path:?}: {error}")]
    Content { path: String, error: DigestMismatch },
    #[error("source has no directory {0:?}")]
    NoDirectory(String),
    #[error("cannot write {path:?}: {error}")]
    Write { path: String, error: io::Error },
}

impl HydrateError {
    /// Returns whether a retry may succeed.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Store(error) => error.passes(),
            Self::Pack(_) => true,
            _ => false,
        }
    }

    /// The failure of the run: the bucket's, or that of its content.
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Store(_) | Self::Pack(_) => Failure::platform(self),
            _ => Failure::unknown(self),
        }
    }
}

/// Writes the tree below `root`, which is created anew: the whole tree, because a program may refer
/// to files beside its directory, or the paths that the Stack names. Every file is verified as it
/// is written. Links come last, so that no file is written through one.
pub(crate) async fn hydrate(
    folder: &Folder,
    tree: &TreeFolder,
    project: &str,
    paths: &[String],
    manifest_sha256: &str,
    root: &Path,
) -> Result<(), HydrateError> {
    let bytes = folder.get(&tree.manifest()).await?.bytes().await?;
    if Digest::sha256(&bytes).hex() != manifest_sha256 {
        return Err(HydrateError::OtherTree);
    }
    let manifest = Manifest::parse(&bytes)?;
    if manifest.directory(project).is_none() {
        return Err(HydrateError::NoDirectory(project.to_owned()));
    }
    let dir = fresh(root).map_err(written("."))?;
    let whole = [String::new()];
    let paths = if paths.is_empty() { &whole } else { paths };
    // A listed path that does not exist is part of the digest that the run was decided by: a later
    // revision may add it.
    let parts: Vec<_> = paths.iter().filter_map(|path| manifest.part(path)).collect();
    for part in &parts {
        files(folder, &tree.pack(), &dir, part).await?;
    }
    for (path, target) in parts.iter().flat_map(|part| &part.links) {
        make_parent(&dir, path).and_then(|()| dir.symlink(target, path)).map_err(written(path))?;
    }
    Ok(())
}

/// Writes the files of a part of the tree with one ranged read.
async fn files(folder: &Folder, pack: &str, dir: &Dir, part: &Directory<'_>) -> Result<(), HydrateError> {
    let mut pack = if part.size == 0 { None } else { Some(folder.get_range(pack, part.offset, part.size).await?) };
    let mut piece = bytes::Bytes::new();
    for (path, file) in &part.files {
        let mut out = create(dir, path, file.executable).map_err(written(path))?;
        let mut verifier = Verifier::new(file.digest.clone());
        let mut left = file.size;
        while left > 0 {
            if piece.is_empty() {
                let pack = pack.as_mut().ok_or(HydrateError::Short)?;
                piece = pack.chunk().await?.ok_or(HydrateError::Short)?;
            }
            let length = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            let content = piece.split_to(length);
            out.write_all(&content).map_err(written(path))?;
            verifier.update(&content);
            left -= length as u64;
        }
        verifier.finish().map_err(|error| HydrateError::Content { path: (*path).to_owned(), error })?;
    }
    Ok(())
}

fn written(path: &str) -> impl FnOnce(io::Error) -> HydrateError {
    let path = path.to_owned();
    move |error| HydrateError::Write { path, error }
}

/// An empty directory; files of an earlier try are removed.
fn fresh(root: &Path) -> io::Result<Dir> {
    match std::fs::remove_dir_all(root) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(root)?,
    }
    Dir::open_ambient_dir(root, ambient_authority())
}

fn create(dir: &Dir, path: &str, executable: bool) -> io::Result<cap_std::fs::File> {
    make_parent(dir, path)?;
    let mode = if executable { 0o755 } else { 0o644 };
    dir.open_with(path, OpenOptions::new().write(true).create_new(true).mode(mode))
}

fn make_parent(dir: &Dir, path: &str) -> io::Result<()> {
    path.rsplit_once('/').map_or(Ok(()), |(parent, _)| dir.create_dir_all(parent))
}
