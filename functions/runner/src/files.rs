//! Files that a pod has at its mount paths.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// The permissions of a volume's directories in a pod.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;

/// Writes a file and the directories above it, which have `directory_mode`. A reader finds the old content or the new, whole.
///
/// # Errors
///
/// They name the path.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32, directory_mode: u32) -> io::Result<()> {
    let written = || {
        DirBuilder::new().mode(directory_mode).recursive(true).create(path.parent().unwrap_or(path))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        fs::rename(new, path)
    };
    written().map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
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
}
