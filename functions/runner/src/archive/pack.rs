//! Writes an archive.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::{Counts, Frame, Index, LEVEL, Limits, MAGIC, MAX_FRAMES, MAX_INDEX, MAX_NAME, Root, WINDOW_LOG, dirs::Dirs, hex};

/// Content of a frame, with a header for each entry.
const FRAME: u64 = 16 << 20;
const HEADER: u64 = 512;

/// The part of a root that is packed.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub(crate) root: Root,
    /// Files, links, and directories with everything below them. A path within another one is
    /// packed once.
    pub(crate) paths: Vec<PathBuf>,
}

/// What a written archive is.
#[derive(Debug, PartialEq)]
pub(crate) struct Packed {
    /// The size of the archive.
    pub(crate) bytes: u64,
    /// The digest of the whole archive, in hexadecimal digits.
    pub(crate) sha256: String,
    pub(crate) counts: Counts,
}

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error("installed dependencies exceed the limit of {limit} {what}")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("cannot pack {path:?}: {error}")]
    Entry { path: PathBuf, error: io::Error },
    #[error("cannot write the archive: {0}")]
    Write(io::Error),
}

impl From<io::Error> for PackError {
    fn from(error: io::Error) -> Self {
        error.downcast().unwrap_or_else(Self::Write)
    }
}

/// Writes an archive to `out`. Equal files in equal places give equal bytes. On an error, `out` has
/// a part of an archive.
///
/// Sockets, named pipes and devices are left out. A file that changes while it is read is an error.
/// Of modes the permission bits are kept, and of files the modification times, in seconds.
pub(crate) fn pack(selections: &[Selection], origin: &str, limits: &Limits, out: impl Write) -> Result<Packed, PackError> {
    let walks = selections.iter().map(Walk::new).collect::<Result<Vec<_>, _>>()?;
    let mut entries = walks.into_iter().flatten().peekable();
    let mut sink = Sink { out, bytes: 0, limit: limits.archive, frame: Sha256::new(), archive: Sha256::new() };
    let mut index = Index { origin: origin.to_owned(), frames: Vec::new() };
    let mut total = Counts::default();
    while entries.peek().is_some() {
        if index.frames.len() == MAX_FRAMES {
            return Err(PackError::TooLarge { what: "frames", limit: MAX_FRAMES as u64 });
        }
        let (offset, mut counts) = (sink.bytes, Counts::default());
        let mut builder = Builder::new(encoder(&mut sink)?);
        while let Some(entry) = entries.next_if(|entry| entry.as_ref().map_or(true, |entry| entry.fits(counts))) {
            let entry = entry?;
            counts = counts + entry.counts();
            if let Some((what, limit)) = limits.exceeded(total + counts) {
                return Err(PackError::TooLarge { what, limit });
            }
            let path = entry.path.clone();
            entry
                .append(&mut builder)
                .map_err(|error| error.downcast().unwrap_or_else(|error| PackError::Entry { path, error }))?;
        }
        builder.into_inner()?.finish()?;
        total = total + counts;
        let sha256 = hex(std::mem::take(&mut sink.frame));
        index.frames.push(Frame { offset, size: sink.bytes - offset, sha256, counts });
    }
    finish(&index, &mut sink)?;
    Ok(Packed { bytes: sink.bytes, sha256: hex(sink.archive), counts: total })
}

fn finish(index: &Index, sink: &mut Sink<impl Write>) -> Result<(), PackError> {
    let json = serde_json::to_vec(index).map_err(io::Error::other)?;
    let compressed = zstd::encode_all(&json[..], LEVEL)?;
    let (length, digest) = (compressed.len() as u64, Sha256::digest(&compressed));
    if length.max(json.len() as u64) > MAX_INDEX {
        return Err(PackError::TooLarge { what: "bytes of index", limit: MAX_INDEX });
    }
    for part in [&compressed[..], MAGIC, &length.to_le_bytes(), &digest] {
        sink.write_all(part)?;
    }
    Ok(sink.flush()?)
}

fn encoder<W: Write>(out: W) -> io::Result<zstd::Encoder<'static, W>> {
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    encoder.window_log(WINDOW_LOG)?;
    Ok(encoder)
}

/// Counts and digests what is written.
struct Sink<W> {
    out: W,
    bytes: u64,
    limit: u64,
    /// The digest since the last frame.
    frame: Sha256,
    archive: Sha256,
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.limit - self.bytes {
            return Err(io::Error::other(PackError::TooLarge { what: "bytes of archive", limit: self.limit }));
        }
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.frame.update(&bytes[..written]);
        self.archive.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The entries of a selection in the order of the tree, sorted by name.
struct Walk<'a> {
    root: &'a Root,
    dirs: Dirs,
    /// Paths that are still to be visited; the next one is the last.
    pending: Vec<PathBuf>,
}

impl<'a> Walk<'a> {
    fn new(selection: &'a Selection) -> Result<Self, PackError> {
        let root = &selection.root;
        let dirs = Dirs::open(&root.dir).map_err(|error| PackError::Entry { path: root.name.clone().into(), error })?;
        // The paths within a path follow it.
        let mut pending: Vec<PathBuf> = Vec::new();
        for path in selection.paths.iter().collect::<BTreeSet<_>>() {
            if pending.last().is_none_or(|last| !path.starts_with(last)) {
                pending.push(path.clone());
            }
        }
        pending.reverse();
        Ok(Self { root, dirs, pending })
    }

    /// Returns the entry at a path, if it is one that is packed. What is in a directory becomes
    /// pending.
    fn visit(&mut self, path: &Path) -> io::Result<Option<Entry>> {
        if path == Path::new("") {
            return self.list(path).map(|()| None);
        }
        let (parent, name) = self.dirs.parent(path)?;
        let mut stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.list(path)?;
                Kind::Directory
            }
            FileType::Symlink => Kind::Link(readlinkat(parent, name, Vec::new())?.into_bytes()),
            FileType::RegularFile => {
                // A file that a pipe has replaced would block without the flag.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat(parent, name, flags, Mode::empty())?);
                stat = fstat(&file)?;
                Kind::File(file)
            }
            _ => return Ok(None),
        };
        Ok(Some(Entry { path: Path::new(&self.root.name).join(path), stat, kind }))
    }

    fn list(&mut self, path: &Path) -> io::Result<()> {
        let mut names = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(self.dirs.at(path)?, ".", flags, Mode::empty())?;
        for entry in Dir::new(dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(path.join(name));
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.pending.append(&mut names);
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Entry, PackError>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(path) = self.pending.pop() {
            let found = self.visit(&path);
            if let Some(found) = found.transpose() {
                return Some(found.map_err(|error| PackError::Entry { path: Path::new(&self.root.name).join(path), error }));
            }
        }
        None
    }
}

struct Entry {
    path: PathBuf,
    stat: Stat,
    kind: Kind,
}

enum Kind {
    Directory,
    File(File),
    Link(Vec<u8>),
}

impl Entry {
    fn counts(&self) -> Counts {
        let content = if matches!(self.kind, Kind::File(_)) { self.stat.st_size.cast_unsigned() } else { 0 };
        Counts { entries: 1, content }
    }

    /// Returns whether the entry belongs into a frame that has so much.
    fn fits(&self, frame: Counts) -> bool {
        let sum = frame + self.counts();
        frame.entries == 0 || sum.content.saturating_add(sum.entries.saturating_mul(HEADER)) <= FRAME
    }

    fn append(self, builder: &mut Builder<impl Write>) -> io::Result<()> {
        if self.path.as_os_str().len() > MAX_NAME {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let content = self.counts().content;
        let mut header = Header::new_gnu();
        header.set_mode(self.stat.st_mode & 0o777);
        header.set_size(content);
        match self.kind {
            Kind::Directory => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, self.path, io::empty())
            }
            Kind::Link(target) => {
                header.set_entry_type(EntryType::Symlink);
                match header.set_link_name_literal(&target) {
                    Ok(()) => builder.append_data(&mut header, self.path, io::empty()),
                    Err(_) => builder.append_link(&mut header, self.path, OsStr::from_bytes(&target)),
                }
            }
            Kind::File(file) => {
                // The cast is undone when the file is restored: times before 1970 are kept.
                header.set_mtime(self.stat.st_mtime.cast_unsigned());
                let mut reader = file.take(content);
                builder.append_data(&mut header, self.path, &mut reader)?;
                let is_whole = reader.limit() == 0;
                let now = fstat(reader.into_inner())?;
                let state = |stat: &Stat| (stat.st_mode, stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
                let is_same = is_whole && state(&now) == state(&self.stat);
                if is_same { Ok(()) } else { Err(io::Error::other("file changed while it was packed")) }
            }
        }
    }
}
