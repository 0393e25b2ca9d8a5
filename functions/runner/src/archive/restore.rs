//! Restores frames of an archive.

use std::{
    cell::Cell,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, chmodat, fchmod, fstat, futimens, openat,
        readlinkat, statat, symlinkat,
    },
    io::Errno,
};
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

use super::{Counts, Damaged, Frame, MAX_NAME, Root, damaged, decoder, dirs::Dirs, hex};

/// The most bytes of an entry's headers, which repeat a long name and a link's long target, and of
/// the padding before them.
const HEADERS: u64 = 2 * MAX_NAME as u64 + (8 << 10);

const BUFFER: usize = 64 << 10;

/// Why a frame was not restored. A part of its entries may have been.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The reader that the caller gave failed: another try may succeed.
    #[error("cannot read the archive: {0}")]
    Read(io::Error),
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error("archive has an invalid entry {path:?}: {reason}")]
    Invalid { path: PathBuf, reason: &'static str },
    #[error("cannot restore {path:?}: {error}")]
    Write { path: PathBuf, error: io::Error },
}

/// Restores a frame below the directories of its roots, from its compressed bytes. Frames are
/// restored in any order, and at the same time; each takes about 5 MiB of memory. Missing roots and
/// parent directories are created.
///
/// A directory is always open to its owner: Go's module cache is read-only, and another user than
/// root could neither restore the files of a second frame into it nor remove it. An existing file
/// with the same size, mode and modification time, or a link with the same target, is left as it
/// is: the image already had it when the archive was packed. Any other existing file or link is an
/// error.
///
/// The digest is verified after the last entry. On an error, the caller removes what this and other
/// frames restored, also before it retries: a second try would leave files as they are that the
/// first one did not verify.
pub(crate) fn restore(frame: &Frame, compressed: impl Read, into: &[Root]) -> Result<Counts, RestoreError> {
    let budget = Cell::new(0);
    let source = Compressed { inner: compressed.take(frame.size), digest: Sha256::new(), error: None };
    let decoder = decoder(source).map_err(RestoreError::Read)?;
    let mut archive = Archive::new(Metered { inner: decoder, left: &budget });
    let mut result = unpack(&mut archive, &budget, frame.counts, into);
    let mut rest = archive.into_inner();
    if result.is_ok() {
        // A tar archive ends with two blocks of zeros, and its reader stops at the first.
        budget.set(HEADERS);
        result = io::copy(&mut rest, &mut io::sink()).map(drop).map_err(undecoded);
    }
    let source = rest.inner.finish().into_inner();
    if let Some(error) = source.error {
        return Err(RestoreError::Read(error));
    }
    result?;
    if source.inner.limit() > 0 || hex(source.digest) != frame.sha256 {
        return Err(damaged("a frame has another digest").into());
    }
    Ok(frame.counts)
}

fn undecoded(error: io::Error) -> RestoreError {
    damaged(error).into()
}

fn unpack(
    archive: &mut Archive<Metered<'_, impl Read>>,
    budget: &Cell<u64>,
    mut left: Counts,
    into: &[Root],
) -> Result<(), RestoreError> {
    let mut roots: Vec<(&Root, Option<Dirs>)> = into.iter().map(|root| (root, None)).collect();
    let mut buffer = vec![0; BUFFER];
    let mut entries = archive.entries().map_err(undecoded)?;
    loop {
        budget.set(HEADERS);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(undecoded)?;
        left = match (left.entries.checked_sub(1), left.content.checked_sub(entry.size())) {
            (Some(entries), Some(content)) => Counts { entries, content },
            _ => return Err(damaged("a frame has more than its index says").into()),
        };
        budget.set(entry.size());
        unpack_entry(&mut entry, &mut roots, &mut buffer)?;
    }
    if left == Counts::default() { Ok(()) } else { Err(damaged("a frame has less than its index says").into()) }
}

fn unpack_entry(
    entry: &mut Entry<'_, impl Read>,
    roots: &mut [(&Root, Option<Dirs>)],
    buffer: &mut [u8],
) -> Result<(), RestoreError> {
    let path = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
    let invalid = |reason| RestoreError::Invalid { path: path.clone(), reason };
    let written = |error| RestoreError::Write { path: path.clone(), error };
    let mut names = path.components();
    let root = names.next();
    let is_known = |(known, _): &&mut (&Root, _)| root == Some(Component::Normal(OsStr::new(&known.name)));
    let (root, dirs) = roots.iter_mut().find(is_known).ok_or_else(|| invalid("its root is unknown"))?;
    let path = names.as_path();
    if !path.components().all(|name| matches!(name, Component::Normal(_))) || path == "" {
        return Err(invalid("it is not below its root"));
    }
    let dirs = match dirs {
        Some(dirs) => dirs,
        missing => missing.insert(Dirs::create(&root.dir).map_err(written)?),
    };
    let (kind, size) = (entry.header().entry_type(), entry.size());
    let mode = Mode::from_bits_truncate(entry.header().mode().map_err(undecoded)? & 0o777);
    match kind {
        EntryType::Regular => {
            let mtime = entry.header().mtime().map_err(undecoded)?.cast_signed();
            let mut file = create(dirs, path, size, mode, mtime).map_err(written)?;
            let mut left = size;
            while left > 0 {
                let read = entry.read(buffer).map_err(undecoded)?;
                if read == 0 {
                    return Err(damaged("a frame ends within a file").into());
                }
                file.as_mut().map_or(Ok(()), |file| file.write_all(&buffer[..read])).map_err(written)?;
                left -= read as u64;
            }
            file.map_or(Ok(()), |file| finish(&file, mode, mtime)).map_err(written)
        }
        EntryType::Directory if size == 0 => directory(dirs, path, mode | Mode::RWXU).map_err(written),
        EntryType::Symlink if size == 0 => {
            let target = entry.link_name_bytes().ok_or_else(|| invalid("it has no target"))?;
            link(dirs, path, &target).map_err(written)
        }
        _ => Err(invalid("it is not a file, a directory or a symbolic link")),
    }
}

fn directory(dirs: &mut Dirs, path: &Path, mode: Mode) -> io::Result<()> {
    let dir = dirs.at(path)?;
    // Another user's directory cannot be changed, and need not be if its mode is right.
    let is_right = fstat(dir)?.st_mode & 0o777 == mode.bits();
    if is_right { Ok(()) } else { Ok(chmodat(dir, ".", mode, AtFlags::empty())?) }
}

fn link(dirs: &mut Dirs, path: &Path, target: &[u8]) -> io::Result<()> {
    let (parent, name) = dirs.parent(path)?;
    match symlinkat(target, parent, name) {
        Err(Errno::EXIST) if readlinkat(parent, name, Vec::new()).is_ok_and(|found| found.as_bytes() == target) => Ok(()),
        result => Ok(result?),
    }
}

/// Creates a file; `None` if it exists.
fn create(dirs: &mut Dirs, path: &Path, size: u64, mode: Mode, mtime: i64) -> io::Result<Option<File>> {
    let (parent, name) = dirs.parent(path)?;
    let is_same = |found: Stat| {
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        let state = (found.st_size.cast_unsigned(), found.st_mode & 0o777, found.st_mtime);
        is_file && state == (size, mode.bits(), mtime)
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::EXIST) if statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_same) => Ok(None),
        result => Ok(Some(result?.into())),
    }
}

fn finish(file: &File, mode: Mode, mtime: i64) -> io::Result<()> {
    fchmod(file, mode)?;
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Ok(futimens(file, &Timestamps { last_access, last_modification })?)
}

/// The decompressed bytes of a frame, bounded by what is expected next. It keeps a frame that
/// decompresses to far more than its index says from filling the memory, as the name of an entry,
/// or the time.
struct Metered<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.left.get()).map_or(buffer.len(), |left| left.min(buffer.len()));
        if length == 0 && !buffer.is_empty() {
            return Err(io::Error::other("an entry has too long a header"));
        }
        let read = self.inner.read(&mut buffer[..length])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

/// The compressed bytes of a frame. Keeps the error of the caller's reader, which would otherwise
/// look like damage.
struct Compressed<R> {
    inner: io::Take<R>,
    digest: Sha256,
    error: Option<io::Error>,
}

impl<R: Read> Read for Compressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(buffer) {
                Ok(read) => {
                    self.digest.update(&buffer[..read]);
                    return Ok(read);
                }
                // The tar crate does not read again.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let marker = io::Error::from(error.kind());
                    self.error = Some(error);
                    return Err(marker);
                }
            }
        }
    }
}
