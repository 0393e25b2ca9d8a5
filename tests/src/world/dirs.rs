//! The folders and files of the world.

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::session::kill_leftovers;

/// The folders of one world. This value owns them until it is dropped; the files stay, to
/// investigate a failure.
pub struct Dirs {
    root: PathBuf,
    tools: PathBuf,
    lock: File,
}

impl Dirs {
    /// An empty `target/world` below `project`.
    pub fn fresh(project: &Path) -> Result<Self> {
        Self::named(project, "world")
    }

    /// An empty `target/<name>` below `project`. Files and processes of an earlier world are
    /// removed first.
    ///
    /// Fails if a world is running there now.
    pub fn named(project: &Path, name: &str) -> Result<Self> {
        let target = project.canonicalize()?.join("target");
        let root = target.join(name);
        fs::create_dir_all(&target)?;
        let lock = File::create(target.join(format!("{name}.lock")))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another world is running in {}", root.display()),
            Err(TryLockError::Error(error)) => return Err(error).context("locking the world"),
        }
        kill_leftovers(&root)?;
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("emptying {}", root.display()))?;
        }
        let dirs = Self { tools: target.join("tools"), root, lock };
        for dir in [dirs.logs(), dirs.pids(), dirs.tmp()] {
            fs::create_dir_all(&dir)?;
        }
        Ok(dirs)
    }

    /// The folder of the whole world; every process of it works below.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// One file per process: its standard output and error.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// One file per live process: its id.
    #[must_use]
    pub fn pids(&self) -> PathBuf {
        self.root.join("pids")
    }

    /// `HOME` and `TMPDIR` of every process.
    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// The pinned program `name`, which `tests/tools/install` has installed.
    pub fn tool(&self, name: &str) -> Result<PathBuf> {
        let tool = self.tools.join(name);
        if !tool.exists() {
            bail!("there is no {}: run tests/tools/install", tool.display());
        }
        Ok(tool)
    }

    /// The folder of the pinned programs, for a `PATH`.
    #[must_use]
    pub fn tools(&self) -> &Path {
        &self.tools
    }

    /// Creates the folder `name` for a part's own files.
    pub fn create(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        // Closing it is not enough: a child that is just being started may have a copy for a
        // moment.
        let _ = self.lock.unlock();
    }
}

/// Writes a new file that only this user can read: keys, tokens and kubeconfigs.
pub(super) fn write_private(path: &Path, content: &str) -> Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("writing {}", path.display()))
}
