//! Inputs as text.

/// The input as text; empty for anything else, which no target reads.
pub fn text(input: &[u8]) -> &str {
    str::from_utf8(input).unwrap_or_default()
}

/// The first line, and the others.
pub fn first_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}
