//! Writes files at the mount paths of a pod.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The permissions of a volume's directories in a pod.
const DIRECTORY_MODE: u32 = 0o755;

/// Writes a file of a volume.
///
/// # Errors
///
/// The error names the path and the remedy.
pub(crate) fn mount(path: &str, content: &[u8], mode: u32) -> io::Result<()> {
    write(Path::new(path), content, mode, DIRECTORY_MODE).map_err(|error| {
        let remedy = "mount the volume at another directory, or use an image whose user may write there";
        io::Error::new(error.kind(), format!("{error}; {remedy}"))
    })
}

/// Writes a file and the directories above it, which get `directory_mode`. A reader sees the old
/// content or the new, never a part.
///
/// # Errors
///
/// The error names the path.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32, directory_mode: u32) -> io::Result<()> {
    let written = || {
        let directory = path.parent().unwrap_or(path);
        DirBuilder::new().mode(directory_mode).recursive(true).create(directory)?;
        let (new, mut file) = temporary(directory)?;
        let filled = file.write_all(content).and_then(|()| file.set_permissions(Permissions::from_mode(mode & 0o777)));
        let placed = filled.and_then(|()| fs::rename(&new, path));
        // A renewal is retried every 30 s, each time with another name.
        placed.inspect_err(|_| drop(fs::remove_file(new)))
    };
    written().map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

/// Creates a file under an unused name, because a volume may have a file of any name.
fn temporary(directory: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0_u64;
    loop {
        let path = directory.join(format!(".driftless-{number}"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            opened => return opened.map(|file| (path, file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_its_mode_and_its_last_content_and_an_error_names_it() {
        let dir = std::env::temp_dir().join(format!("driftless-files-{}", std::process::id()));
        let path = dir.join("a/b");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for content in ["one", "two"] {
            write(&path, content.as_bytes(), 0o400, DIRECTORY_MODE).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!((mode(&path), mode(&dir.join("a"))), (0o400, 0o755));
        }
        let words = write(&path.join("c"), b"", 0o644, DIRECTORY_MODE).unwrap_err().to_string();
        assert!(words.starts_with(&format!("cannot write {}: ", path.join("c").display())), "{words}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn file_of_any_name_is_kept_when_another_is_written() {
        let dir = std::env::temp_dir().join(format!("driftless-kept-{}", std::process::id()));
        let names = [".driftless-0", "a.new", ".driftless-1", "a", ".driftless-0"];
        for name in names {
            mount(dir.join(name).to_str().unwrap(), name.as_bytes(), 0o644).unwrap();
        }
        // A directory cannot be overwritten, and the attempt leaves no file.
        fs::create_dir(dir.join("d")).unwrap();
        let words = mount(dir.join("d").to_str().unwrap(), b"", 0o644).unwrap_err().to_string();
        assert!(words.ends_with("or use an image whose user may write there"), "{words}");
        for name in names {
            assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), name);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), names.len());
        fs::remove_dir_all(dir).unwrap();
    }
}
