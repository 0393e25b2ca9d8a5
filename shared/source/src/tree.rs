use std::{
    collections::{BTreeMap, btree_map::Entry as Place},
    io::{self, Read, Seek, SeekFrom, Write},
};

use crate::{Algorithm, Digest, Hasher, Limits, path};

/// Why content did not become a tree.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The content itself is at fault: the same content will be refused again.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The reader that the caller gave failed; another try may succeed.
    #[error("the content cannot be read")]
    Read(#[source] io::Error),
    /// The spool failed.
    #[error("the spool cannot be written")]
    Spool(#[source] io::Error),
}

/// What is wrong with the content. Paths in it are cut to 200 characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the message says they are")]
pub enum Refusal {
    #[error("not a gzip-compressed archive")]
    NotGzip,
    #[error("the archive ends early")]
    Truncated,
    #[error("the archive is damaged: {0}")]
    Damaged(String),
    #[error("the content is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the archive inflates to more than {limit} times its size")]
    TooDense { limit: u64 },
    #[error("the headers of one entry are larger than {limit} bytes")]
    HeaderTooLarge { limit: u64 },
    #[error("more than {limit} files and directories")]
    TooManyEntries { limit: usize },
    #[error("the path {path:?} is longer than {limit} bytes")]
    PathTooLong { path: String, limit: usize },
    #[error("the path {path:?} has more than {limit} parts")]
    TooDeep { path: String, limit: usize },
    #[error("the path {path:?} is not UTF-8")]
    NotUtf8 { path: String },
    #[error("the path {path:?} is empty or contains a backslash or a NUL")]
    InvalidPath { path: String },
    #[error("the path {path:?} is absolute")]
    AbsolutePath { path: String },
    #[error("the path {path:?} contains `..`")]
    ParentPath { path: String },
    #[error("the path {path:?} occurs twice")]
    Duplicate { path: String },
    #[error("the path {path:?} is used as a directory and is none")]
    NotADirectory { path: String },
    #[error("the link {path:?} leads out of the tree")]
    LinkLeavesTree { path: String },
    #[error("the link {path:?} leads through too many links")]
    LinkLoop { path: String },
    #[error("{path:?} is a hard link")]
    HardLink { path: String },
    #[error("{path:?} is a device, a pipe or another kind of entry that is no file")]
    NotAFile { path: String },
    #[error("{path:?} is a sparse file")]
    Sparse { path: String },
}

/// A checked tree whose content lies in a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    pub(crate) files: BTreeMap<String, Spooled>,
    pub(crate) links: BTreeMap<String, String>,
}

/// A file of a tree, and where its content lies in the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spooled {
    pub offset: u64,
    pub size: u64,
    pub executable: bool,
    pub digest: Digest,
}

impl Tree {
    /// A tree of a few plain files, such as a Program's one `Pulumi.yaml`, and its spool.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<(Self, io::Cursor<Vec<u8>>), Error> {
        let mut spool = Vec::new();
        let mut builder = Builder::new(Limits::default(), &mut spool);
        for (path, mut content) in files {
            builder.file(path.as_bytes(), false, &mut content)?;
        }
        let tree = builder.finish()?;
        Ok((tree, io::Cursor::new(spool)))
    }

    /// Writes the pack: every file's content in the order of paths. `spool` is what the tree was made with.
    pub fn write_pack(&self, spool: &mut (impl Read + Seek), pack: &mut impl Write) -> io::Result<()> {
        for file in self.files.values() {
            spool.seek(SeekFrom::Start(file.offset))?;
            let copied = io::copy(&mut spool.take(file.size), pack)?;
            if copied != file.size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
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

/// Makes a tree, entry by entry, from whatever source; checks all that can be checked of a path. Content goes to the spool as it
/// comes.
pub struct Builder<S> {
    limits: Limits,
    nodes: BTreeMap<String, Node>,
    spool: S,
    spooled: u64,
}

impl<S: Write> Builder<S> {
    /// An empty tree and an empty spool.
    pub fn new(limits: Limits, spool: S) -> Self {
        Self { limits, nodes: BTreeMap::new(), spool, spooled: 0 }
    }

    /// A directory is listed. Trees keep only directories with something in them, but no file may take its place.
    pub fn directory(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let path = path::clean(path, &self.limits)?;
        if path.is_empty() { Ok(()) } else { self.place(&path, Node::Directory) }
    }

    /// A file and its content. Returns the content's size.
    pub fn file(&mut self, path: &[u8], executable: bool, content: &mut impl Read) -> Result<u64, Error> {
        let path = self.leaf(path)?;
        // Takes the path before the content is read: a refused file costs nothing.
        let offset = self.spooled;
        self.place(&path, Node::File(Spooled { offset, size: 0, executable, digest: Digest::sha256(b"") }))?;
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::Read(error)),
            };
            self.spooled += read as u64;
            if self.spooled > self.limits.bytes {
                return Err(Refusal::TooLarge { limit: self.limits.bytes }.into());
            }
            hasher.update(&buffer[..read]);
            self.spool.write_all(&buffer[..read]).map_err(Error::Spool)?;
        }
        let size = self.spooled - offset;
        let digest = hasher.finish();
        self.nodes.insert(path, Node::File(Spooled { offset, size, executable, digest }));
        Ok(size)
    }

    /// A symbolic link. Where it leads is checked by [`Builder::finish`], when all links are known.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Refusal> {
        let path = self.leaf(path)?;
        let target = std::str::from_utf8(target).map_err(|_| Refusal::NotUtf8 { path: path::shown(&path) })?;
        if target.len() > self.limits.path_length {
            return Err(Refusal::PathTooLong { path: path::shown(target), limit: self.limits.path_length });
        }
        if target.is_empty() || target.contains(['\\', '\0']) {
            return Err(Refusal::InvalidPath { path: path::shown(target) });
        }
        self.place(&path, Node::Link(target.to_owned()))
    }

    /// All entries came: checks the links and ends the spool.
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
        for path in tree.links.keys() {
            path::check_link(&tree.links, path)?;
        }
        Ok(tree)
    }

    /// The path of something that is not a directory: never the root.
    fn leaf(&self, path: &[u8]) -> Result<String, Refusal> {
        let path = path::clean(path, &self.limits)?;
        if path.is_empty() { Err(Refusal::InvalidPath { path }) } else { Ok(path) }
    }

    fn place(&mut self, path: &str, node: Node) -> Result<(), Refusal> {
        for ancestor in path::ancestors(path) {
            match self.nodes.get(ancestor) {
                Some(Node::Directory) => {}
                Some(_) => return Err(Refusal::NotADirectory { path: path::shown(ancestor) }),
                None => drop(self.nodes.insert(ancestor.to_owned(), Node::Directory)),
            }
        }
        match self.nodes.entry(path.to_owned()) {
            Place::Occupied(place) if *place.get() == Node::Directory && node == Node::Directory => {}
            Place::Occupied(_) => return Err(Refusal::Duplicate { path: path::shown(path) }),
            Place::Vacant(place) => drop(place.insert(node)),
        }
        if self.nodes.len() > self.limits.entries {
            return Err(Refusal::TooManyEntries { limit: self.limits.entries });
        }
        Ok(())
    }
}
