use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Algorithm, Digest, Hasher, Tree, path};

/// The version of the manifest that this release reads and writes.
pub const MANIFEST_VERSION: u32 = 1;

/// The content of a tree, and its positions in the pack. The object `manifest` of a stored tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// Bytes of the pack.
    pub size: u64,
    /// The files by path. The pack has their content in this order, without gaps.
    pub files: BTreeMap<String, File>,
    /// The symbolic links by path, with their targets as written; all stay within the tree.
    pub links: BTreeMap<String, String>,
    /// The SHA-256 of everything below each directory that is not empty, the root being the empty
    /// path, whatever the directory's own path. Two directories with equal digests have equal
    /// content.
    pub directories: BTreeMap<String, Digest>,
}

/// A file of a stored tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// The position of the content in the pack.
    pub offset: u64,
    /// Bytes of content.
    pub size: u64,
    /// The SHA-256 of the content.
    pub digest: Digest,
    /// It is executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// A part of a stored tree: a directory with everything below it, or a single file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory<'a> {
    /// The position of its content in the pack.
    pub offset: u64,
    /// The size of its content: these bytes of the pack, from `offset` on, are exactly its files.
    pub size: u64,
    /// Its files in the order of the pack, by path from the root of the tree.
    pub files: Vec<(&'a str, &'a File)>,
    /// Its links, by path from the root of the tree, with their targets.
    pub links: Vec<(&'a str, &'a str)>,
}

/// A document that is not a manifest of this release.
#[derive(Debug, thiserror::Error)]
pub enum InvalidManifest {
    /// Not JSON, or not of the right shape.
    #[error("not a manifest")]
    Shape(#[source] serde_json::Error),
    /// Written by another release.
    #[error("a manifest of version {0}; this release reads version {MANIFEST_VERSION}")]
    Version(u32),
    /// The files are not adjacent in the pack.
    #[error("file {0:?} of the manifest has an invalid offset in the pack")]
    Offset(String),
    /// The size of the pack is not that of the files.
    #[error("the manifest's size is not the sum of its files")]
    Size,
}

impl Manifest {
    /// The manifest of a tree.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        let mut size = 0;
        let files = tree.files.iter().map(|(path, file)| {
            let offset = size;
            size += file.size;
            (path.clone(), File { offset, size: file.size, digest: Digest::of_sha256(&file.sha256), executable: file.executable })
        });
        let files = files.collect();
        Self { version: MANIFEST_VERSION, size, directories: directories(&files, &tree.links), files, links: tree.links.clone() }
    }

    /// The bytes of the document, which are always the same for the same tree.
    ///
    /// # Panics
    /// Never: a manifest has string keys and no failing serializer.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a manifest always serializes")]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest serializes")
    }

    /// Reads a manifest and checks that its files are where a pack has them.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidManifest> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(bytes).map_err(InvalidManifest::Shape)?;
        if version != MANIFEST_VERSION {
            return Err(InvalidManifest::Version(version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(InvalidManifest::Shape)?;
        let mut end = 0_u64;
        for (path, file) in &manifest.files {
            if file.offset != end {
                return Err(InvalidManifest::Offset(path.clone()));
            }
            end = end.checked_add(file.size).ok_or(InvalidManifest::Size)?;
        }
        if end == manifest.size { Ok(manifest) } else { Err(InvalidManifest::Size) }
    }

    /// The digest of the directory or file at `path`, as a user writes it; `None` if the tree has
    /// none.
    #[must_use]
    pub fn digest_of(&self, path: &str) -> Option<&Digest> {
        let path = path::directory(path)?;
        self.directories.get(&path).or_else(|| self.files.get(&path).map(|file| &file.digest))
    }

    /// The part of the tree at `path`, as a user writes it: a directory with everything below it, a
    /// file or a link; `None` if the tree has none.
    #[must_use]
    pub fn part(&self, path: &str) -> Option<Directory<'_>> {
        self.directory(path).or_else(|| {
            let path = path::directory(path)?;
            let files: Vec<(&str, &File)> =
                self.files.get_key_value(&path).map(|(path, file)| (path.as_str(), file)).into_iter().collect();
            let links: Vec<(&str, &str)> =
                self.links.get_key_value(&path).map(|(path, target)| (path.as_str(), target.as_str())).into_iter().collect();
            let (offset, size) = files.first().map_or((0, 0), |(_, file)| (file.offset, file.size));
            (!files.is_empty() || !links.is_empty()).then_some(Directory { offset, size, files, links })
        })
    }

    /// The directory `dir` (`""` or `.` is the root, `./a/` is `a`) with everything below it;
    /// `None` if the tree does not have it.
    #[must_use]
    pub fn directory(&self, dir: &str) -> Option<Directory<'_>> {
        let dir = path::directory(dir)?;
        if !self.directories.contains_key(&dir) {
            return None;
        }
        let files: Vec<(&str, &File)> = below(&self.files, &dir).collect();
        let offset = files.first().map_or(0, |(_, file)| file.offset);
        let end = files.last().map_or(offset, |(_, file)| file.offset + file.size);
        let links = below(&self.links, &dir).map(|(path, target)| (path, target.as_str())).collect();
        Some(Directory { offset, size: end - offset, files, links })
    }
}

/// The entries below a directory, which are adjacent in the order of paths.
fn below<'a, T>(map: &'a BTreeMap<String, T>, dir: &str) -> impl Iterator<Item = (&'a str, &'a T)> {
    let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    map.range(prefix.clone()..).map(|(path, value)| (path.as_str(), value)).take_while(move |(path, _)| path.starts_with(&prefix))
}

/// A directory's digest covers its entries: names, kinds, and the digests of files and of
/// directories.
fn directories(files: &BTreeMap<String, File>, links: &BTreeMap<String, String>) -> BTreeMap<String, Digest> {
    let mut hashers = BTreeMap::from([("", Hasher::new(Algorithm::Sha256))]);
    let files = files.iter().map(|(path, file)| (path, if file.executable { "program" } else { "file" }, file.digest.as_str()));
    let links = links.iter().map(|(path, target)| (path, "link", target.as_str()));
    for (path, kind, content) in files.chain(links) {
        for dir in path::ancestors(path) {
            hashers.entry(dir).or_insert_with(|| Hasher::new(Algorithm::Sha256));
        }
        describe(&mut hashers, path, kind, content);
    }
    let mut digests = BTreeMap::new();
    // All entries below a directory come after it.
    while let Some((dir, hasher)) = hashers.pop_last() {
        let digest = hasher.finish();
        if !dir.is_empty() {
            describe(&mut hashers, dir, "directory", digest.as_str());
        }
        digests.insert(dir.to_owned(), digest);
    }
    digests
}

/// Adds an entry to the directory of `path`. Every part ends with a NUL, which occurs in no name,
/// target or digest, so that different lists of entries never have the same bytes.
fn describe(hashers: &mut BTreeMap<&str, Hasher>, path: &str, kind: &str, content: &str) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(hasher) = hashers.get_mut(dir) {
        for part in [kind, name, content] {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::from_files(files.iter().map(|(path, content)| (*path, content.as_bytes())), std::io::sink()).unwrap()
    }

    #[test]
    fn directory_digest_covers_exactly_its_content() {
        let one =
            Manifest::of(&tree(&[("a/x", "1"), ("a/d/y", "2"), ("b/x", "1"), ("b/d/y", "2"), ("c/x", "1"), ("c/d/y", "3")]));
        let digest = |dir: &str| one.directories[dir].clone();
        assert_eq!(digest("a"), digest("b"));
        assert_ne!(digest("a"), digest("c"));
        assert_eq!(one.directories.keys().collect::<Vec<_>>(), ["", "a", "a/d", "b", "b/d", "c", "c/d"]);
        let other = Manifest::of(&tree(&[("a/x", "1"), ("a/d/y", "2"), ("b/x", "changed")]));
        assert_eq!(other.directories["a"], digest("a"));
        assert_ne!(other.directories[""], digest(""));
    }

    #[test]
    fn directory_is_one_range_beside_similar_names() {
        let manifest = Manifest::of(&tree(&[("a-b", "1"), ("a/b", "22"), ("a/c/d", "333"), ("a.b", "4"), ("a0", "5")]));
        let found = manifest.directory("./a/").unwrap();
        assert_eq!(found.files.iter().map(|(path, _)| *path).collect::<Vec<_>>(), ["a/b", "a/c/d"]);
        assert_eq!((found.offset, found.size), (2, 5));
        let root = manifest.directory("").unwrap();
        assert_eq!((root.offset, root.size, root.files.len()), (0, 8, 5));
        for absent in ["a/b", "x", "../a", "/a", "a/../a"] {
            assert_eq!(manifest.directory(absent), None, "{absent}");
        }
    }

    #[test]
    fn a_manifest_that_does_not_fit_a_pack_is_refused() {
        let good = Manifest::of(&tree(&[("a", "1"), ("b", "22")]));
        let parse = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = good.clone();
            change(&mut manifest);
            Manifest::parse(&manifest.to_bytes()).map_err(|error| error.to_string())
        };
        assert_eq!(parse(&|_| ()), Ok(good.clone()));
        assert_eq!(parse(&|m| m.version = 2), Err("a manifest of version 2; this release reads version 1".into()));
        assert_eq!(parse(&|m| m.size = 4), Err("the manifest's size is not the sum of its files".into()));
        let moved = |m: &mut Manifest| m.files.get_mut("b").unwrap().offset = 0;
        assert_eq!(parse(&moved), Err("file \"b\" of the manifest has an invalid offset in the pack".into()));
        let endless = |m: &mut Manifest| m.files.get_mut("b").unwrap().size = u64::MAX;
        assert_eq!(parse(&endless), Err("the manifest's size is not the sum of its files".into()));
        assert!(matches!(Manifest::parse(b"{"), Err(InvalidManifest::Shape(_))));
    }
}
