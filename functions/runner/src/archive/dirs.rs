//! Directories below a root, reached without following a link.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path},
};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io::Errno,
};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A root and the open directories on the way to the last entry. Entries come in the order of the
/// tree, so a frame opens each once.
///
/// Each step is one name and never a link. A sandbox such as cap-std's would follow links that stay
/// below the root, so one frame could redirect the files of another.
pub(super) struct Dirs {
    root: OwnedFd,
    open: Vec<(OsString, OwnedFd)>,
    creates: bool,
}

impl Dirs {
    /// Opens a root whose directories exist.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: openat(CWD, root, DIRECTORY, Mode::empty())?, open: Vec::new(), creates: false })
    }

    /// Opens a root. It and the directories below it are created when they are missing.
    pub(super) fn create(root: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(root)?;
        Ok(Self { creates: true, ..Self::open(root)? })
    }

    /// Returns the directory at a path below the root; an error if the path has `..`, is absolute,
    /// or leads through a link.
    pub(super) fn at(&mut self, path: &Path) -> io::Result<BorrowedFd<'_>> {
        let mut depth = 0;
        for component in path.components() {
            let Component::Normal(name) = component else { return Err(invalid()) };
            if self.open.get(depth).is_none_or(|(open, _)| open != name) {
                self.open.truncate(depth);
                let parent = self.last();
                if self.creates {
                    match mkdirat(parent, name, Mode::from_bits_retain(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                let dir = openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
                self.open.push((name.to_owned(), dir));
            }
            depth += 1;
        }
        self.open.truncate(depth);
        Ok(self.last())
    }

    /// Returns the parent directory of a path below the root, and the path's last name.
    pub(super) fn parent<'a>(&mut self, path: &'a Path) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(invalid()) };
        Ok((self.at(parent)?, name))
    }

    fn last(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(&self.root, |(_, dir)| dir).as_fd()
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "path is not below its root")
}
