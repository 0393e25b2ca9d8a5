//! The bounds of a run's report that becomes a part of a status.

/// The maximum size of a list, in bytes of JSON.
pub(crate) const MAX_BYTES: usize = 60 << 10;
/// The maximum length of a URN, in bytes.
pub(crate) const MAX_URN_BYTES: usize = 1024;
/// The maximum length of the path of a property, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 256;

/// The text in one line of at most `limit` bytes. A longer one is cut and ends in `…`. Keys of maps
/// are part of a path and may hold anything: a control character becomes a space.
pub(crate) fn line(text: &str, limit: usize) -> String {
    let text = text.replace(char::is_control, " ");
    if text.len() <= limit { text } else { format!("{}…", &text[..text.floor_char_boundary(limit - 3)]) }
}

/// The first paths, each in one line.
pub(crate) fn paths(paths: &[String], most: usize) -> Vec<String> {
    paths.iter().take(most).map(|path| line(path, MAX_PATH_BYTES)).collect()
}
