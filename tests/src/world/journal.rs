//! The world's logs, which are read line by line while they are written.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    iter,
    path::Path,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The lines of a log that start at a position or later. An incomplete last line is left out.
pub fn lines(log: &Path, from: u64) -> Result<impl Iterator<Item = Result<String>> + use<>> {
    let mut reader = BufReader::new(File::open(log).with_context(|| format!("reading {}", log.display()))?);
    if from > 0 {
        // The position may be within a line.
        reader.seek(SeekFrom::Start(from - 1))?;
        reader.skip_until(b'\n')?;
    }
    Ok(iter::from_fn(move || {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(_) => line.strip_suffix(b"\n").map(|line| Ok(String::from_utf8_lossy(line).into_owned())),
            Err(error) => Some(Err(error.into())),
        }
    }))
}

/// The same for a log with one JSON object per line.
pub fn entries(log: &Path, from: u64) -> Result<impl Iterator<Item = Result<Value>> + use<>> {
    Ok(lines(log, from)?.map(|line| Ok(serde_json::from_str(&line?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_line_of_the_journal_is_ignored() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let since = |from| {
            let read: Result<Vec<_>> = entries(log.path(), from).unwrap().collect();
            read.unwrap()
        };
        std::fs::write(log.path(), "{}\n1").unwrap();
        assert_eq!(since(0), [serde_json::json!({})]);
        std::fs::write(log.path(), "{}\n12\n3\n").unwrap();
        assert_eq!(lines(log.path(), 3).unwrap().next().unwrap().unwrap(), "12");
        for (from, entries) in [(0, 3), (1, 2), (3, 2), (4, 1), (6, 1), (8, 0)] {
            assert_eq!(since(from).len(), entries, "{from}");
        }
    }
}
