use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
};

use sha2::{Digest as _, Sha256};

use crate::{Limits, Refusal, path};

/// The maximum size of all paths and targets of a tree together, in bytes as in the manifest. Large
/// repositories need about a quarter of it.
const PATHS_BYTES: usize = 16 << 20;

/// The number of bytes of content that are read and written at once.
const BUFFER: usize = 64 << 10;

/// Why content did not become a tree.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The content itself is refused, and a retry with it would be too.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller's reader failed; a retry may succeed.
    #[error("the content cannot be read")]
    Read(#[source] io::Error),
    /// The spool failed.
    #[error("the spool cannot be written")]
    Spool(#[source] io::Error),
}

/// A checked tree whose content is in a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    pub(crate) files: BTreeMap<String, Spooled>,
    pub(crate) links: BTreeMap<String, String>,
}

/// A file of a tree, and the position of its content in the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spooled {
    pub offset: u64,
    pub size: u64,
    pub executable: bool,
    pub sha256: [u8; 32],
}

impl Tree {
    /// A tree of a few plain files, such as a Program's one `Pulumi.yaml`. Their content is
    /// appended to `spool`.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>, spool: impl Write) -> Result<Self, Error> {
        let mut builder = Builder::new(Limits::default(), spool);
        for (path, mut content) in files {
            builder.file(path.as_bytes(), false, &mut content)?;
        }
        builder.finish()
    }

    /// Returns whether the spool already is the pack, because the files came in the order of their
    /// paths.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        let mut end = 0;
        self.files.values().all(|file| {
            let begin = end;
            end += file.size;
            file.offset == begin
        })
    }

    /// Writes the pack: every file's content in the order of paths. `spool` is the one that the
    /// tree was built with.
    pub fn write_pack(&self, spool: &mut (impl Read + Seek), pack: &mut impl Write) -> io::Result<()> {
        let mut at = None;
        for file in self.files.values() {
            if at != Some(file.offset) {
                spool.seek(SeekFrom::Start(file.offset))?;
            }
            let copied = io::copy(&mut spool.take(file.size), pack)?;
            if copied != file.size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at = Some(file.offset + file.size);
        }
        pack.flush()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File(Spooled),
    Link(String),
}

/// Builds a tree, entry by entry, from any source, and checks everything that can be checked of a
/// path. Content goes to the spool as it arrives.
pub struct Builder<S: Write> {
    limits: Limits,
    nodes: BTreeMap<String, Node>,
    /// The bytes of all paths and targets.
    paths: usize,
    /// The directory of the previous entry: it and those above it are known to be directories.
    parent: String,
    spool: BufWriter<S>,
    spooled: u64,
    buffer: Vec<u8>,
}

impl<S: Write> Builder<S> {
    /// An empty tree and an empty spool.
    pub fn new(limits: Limits, spool: S) -> Self {
        let spool = BufWriter::with_capacity(BUFFER, spool);
        Self { limits, nodes: BTreeMap::new(), paths: 0, parent: String::new(), spool, spooled: 0, buffer: vec![0; BUFFER] }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The number of bytes of content that may follow.
    pub(crate) fn room(&self) -> u64 {
        self.limits.bytes - self.spooled
    }

    /// Adds a directory. A tree keeps only directories that are not empty, but no file may take
    /// this path.
    pub fn directory(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let path = path::clean(path, &self.limits)?;
        if path.is_empty() { Ok(()) } else { self.place(&path, Node::Directory) }
    }

    /// Adds a file and its content. Returns the content's size.
    pub fn file(&mut self, path: &[u8], executable: bool, content: &mut impl Read) -> Result<u64, Error> {
        let path = self.leaf(path)?;
        // Registers the path before it reads the content: a refused file costs no read.
        let offset = self.spooled;
        self.place(&path, Node::File(Spooled { offset, size: 0, executable, sha256: [0; 32] }))?;
        let mut hasher = Sha256::new();
        loop {
            let read = match content.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::Read(error)),
            };
            if read as u64 > self.room() {
                return Err(Refusal::TooLarge { limit: self.limits.bytes }.into());
            }
            self.spooled += read as u64;
            hasher.update(&self.buffer[..read]);
            self.spool.write_all(&self.buffer[..read]).map_err(Error::Spool)?;
        }
        let size = self.spooled - offset;
        let sha256 = hasher.finalize().into();
        self.nodes.insert(path, Node::File(Spooled { offset, size, executable, sha256 }));
        Ok(size)
    }

    /// Adds a symbolic link. [`Builder::finish`] checks its target, when all links are known.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Refusal> {
        let path = self.leaf(path)?;
        let invalid = |why| Refusal::InvalidTarget { path: path::shown(&path), why };
        if target.len() > self.limits.path_length {
            return Err(Refusal::TargetTooLong { path: path::shown(&path), limit: self.limits.path_length });
        }
        let target = std::str::from_utf8(target).map_err(|_| invalid("is not UTF-8"))?;
        path::check_characters(target).map_err(invalid)?;
        self.paths += path::in_json(target);
        self.place(&path, Node::Link(target.to_owned()))
    }

    /// Checks the links and closes the spool, after the last entry.
    pub fn finish(mut self) -> Result<Tree, Error> {
        self.spool.flush().map_err(Error::Spool)?;
        let mut tree = Tree { files: BTreeMap::new(), links: BTreeMap::new() };
        for (path, node) in self.nodes {
            match node {
                Node::Directory => {}
                Node::File(file) => drop(tree.files.insert(path, file)),
                Node::Link(target) => drop(tree.links.insert(path, target)),
            }
        }
        path::check_links(&tree.links)?;
        path::check_cases(tree.files.keys().chain(tree.links.keys()))?;
        Ok(tree)
    }

    /// The path of an entry that is not a directory: never the root.
    fn leaf(&self, raw: &[u8]) -> Result<String, Refusal> {
        let path = path::clean(raw, &self.limits)?;
        if path.is_empty() {
            return Err(Refusal::InvalidPath { path: path::shown(&String::from_utf8_lossy(raw)), why: "is empty" });
        }
        Ok(path)
    }

    fn place(&mut self, path: &str, node: Node) -> Result<(), Refusal> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if self.parent != parent {
            for ancestor in path::ancestors(path) {
                match self.nodes.get(ancestor) {
                    Some(Node::Directory) => {}
                    Some(_) => return Err(Refusal::NotADirectory { path: path::shown(ancestor) }),
                    None => self.insert(ancestor, Node::Directory)?,
                }
            }
            parent.clone_into(&mut self.parent);
        }
        match self.nodes.get(path) {
            None => self.insert(path, node),
            Some(Node::Directory) if node == Node::Directory => Ok(()),
            Some(_) => Err(Refusal::Duplicate { path: path::shown(path) }),
        }
    }

    fn insert(&mut self, path: &str, node: Node) -> Result<(), Refusal> {
        self.paths += path::in_json(path);
        if self.paths > PATHS_BYTES {
            return Err(Refusal::PathsTooLong { limit: PATHS_BYTES });
        }
        if self.nodes.len() == self.limits.entries {
            return Err(Refusal::TooManyEntries { limit: self.limits.entries });
        }
        self.nodes.insert(path.to_owned(), node);
        Ok(())
    }
}
