//! The event log of an update that previews first. Pulumi opens the log once for the preview and
//! once for the update, and empties it the second time, so a file would lose events.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, fcntl_setfl, mkfifoat};
use tokio::task::{JoinHandle, spawn_blocking};

/// A named pipe whose content is appended to a file.
pub(crate) struct Pipe {
    path: PathBuf,
    /// As long as it is open, the copy does not end between two writers.
    writer: File,
    copy: JoinHandle<io::Result<u64>>,
}

impl Pipe {
    /// Creates the pipe `path`, and starts to copy from it to the new file `to`.
    pub(crate) fn new(path: PathBuf, to: &Path) -> io::Result<Self> {
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
        // Without this flag, the call waits for a writer.
        let mut reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path)?;
        fcntl_setfl(&reader, OFlags::empty())?;
        let writer = OpenOptions::new().write(true).open(&path)?;
        let mut file = File::create(to)?;
        let copy = spawn_blocking(move || io::copy(&mut reader, &mut file));
        Ok(Self { path, writer, copy })
    }

    /// Ends the copy after all that was written. Call it when the writers have ended.
    pub(crate) async fn end(self) -> io::Result<()> {
        let Self { path, writer, copy } = self;
        drop(writer);
        copy.await??;
        fs::remove_file(path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn file_has_what_all_writers_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("pipe"), dir.path().join("file"));
        let pipe = Pipe::new(path.clone(), &file).unwrap();
        for text in ["a".repeat(100_000), "b".into()] {
            let path = path.clone();
            // As Go's os.Create does.
            spawn_blocking(move || File::create(path).unwrap().write_all(text.as_bytes()).unwrap()).await.unwrap();
        }
        pipe.end().await.unwrap();
        assert!(fs::read_to_string(&file).unwrap() == "a".repeat(100_000) + "b" && !path.exists());
    }
}
