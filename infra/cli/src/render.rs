//! Text for a terminal and for files.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::{Error, Result};

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Tone {
    /// As it should be.
    Good,
    /// In progress, or waiting.
    Busy,
    /// Needs a person.
    Bad,
    /// Of less importance.
    Faint,
    /// None.
    Plain,
}

/// A text that does nothing to a terminal: statuses and logs may have anything in them.
#[must_use]
pub fn clean(text: &str) -> String {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_shown(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// How text is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// The output is a terminal that shows colours, and the user did not turn them off.
    pub colour: bool,
    /// The width of the terminal; none for a file or a pipe, whose lines are not wrapped.
    pub columns: Option<usize>,
}

impl Style {
    /// The text in the colour of its tone.
    #[must_use]
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Busy => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
            Tone::Plain => return clean(text),
        };
        let text = clean(text);
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text }
    }

    /// The text with its long lines wrapped between words, so that no terminal cuts a word. What
    /// follows is indented like the last column of the line. A word that is longer than a line,
    /// such as a URN, stays whole.
    #[must_use]
    pub fn wrap(self, text: &str) -> String {
        let Some(columns) = self.columns else { return text.to_owned() };
        text.split_inclusive('\n').map(|line| wrapped(line, columns)).collect()
    }
}

/// The characters that a terminal shows.
fn shown(text: &str) -> impl Iterator<Item = char> {
    let mut is_code = false;
    text.chars().filter(move |c| {
        let was_code = is_code;
        is_code = *c == '\u{1b}' || is_code && *c != 'm';
        !was_code && !is_code
    })
}

fn width(text: &str) -> usize {
    shown(text).count()
}

fn wrapped(line: &str, columns: usize) -> String {
    let body = line.trim_end_matches('\n');
    if width(body) <= columns {
        return line.to_owned();
    }
    let indent = indent(body, columns);
    let (mut text, mut used) = (String::new(), 0);
    for (index, word) in body.split(' ').enumerate() {
        let long = width(word);
        if index > 0 && used + 1 + long > columns && used > width(&indent) && !word.is_empty() {
            text.truncate(text.trim_end().len());
            text.extend(["\n", &indent]);
            used = width(&indent);
        } else if index > 0 {
            text.push(' ');
            used += 1;
        }
        text += word;
        used += long;
    }
    text + &line[body.len()..]
}

/// The beginning of the lines that continue this one: up to its last column, if that begins in the
/// left half, or a bit deeper than the line itself. The branches of a tree continue.
fn indent(body: &str, columns: usize) -> String {
    let shown: Vec<char> = shown(body).collect();
    let is_begin = |at: &usize| *at > 2 && shown[*at] != ' ' && shown[at - 1] == ' ' && shown[at - 2] == ' ';
    let is_empty = |c: &char| " │├└─".contains(*c);
    let begin = shown.iter().take_while(|c| is_empty(c)).count();
    let column = (begin + 1..shown.len().min(columns / 2)).rfind(is_begin).unwrap_or(begin + 2);
    shown.iter().take(column).map(|c| if "│├".contains(*c) { '│' } else { ' ' }).collect()
}

/// A table whose columns are as wide as their longest cell. The last column is not padded.
#[must_use]
pub fn table(header: &[&str], rows: &[Vec<(Tone, String)>], style: Style) -> String {
    let mut widths: Vec<usize> = header.iter().map(|title| title.chars().count()).collect();
    for row in rows {
        for (width, (_, cell)) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let header: Vec<_> = header.iter().map(|title| (Tone::Plain, (*title).to_owned())).collect();
    let mut text = String::new();
    for row in [&header].into_iter().chain(rows) {
        let last = row.len().saturating_sub(1);
        for (index, ((tone, cell), width)) in row.iter().zip(&widths).enumerate() {
            text += &style.paint(*tone, cell);
            if index < last {
                let gap = width - cell.chars().count() + 3;
                let _ = write!(text, "{:gap$}", "");
            }
        }
        text.push('\n');
    }
    text
}

/// The time since `then` in at most two units, as kubectl prints an age: `42s`, `5m30s`, `3h`,
/// `2d4h`.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then))
}

/// A duration in at most two units.
#[must_use]
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let units = |large: i64, name: &str, rest: i64, small: &str| {
        if rest == 0 { format!("{large}{name}") } else { format!("{large}{name}{rest}{small}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => units(minutes, "m", seconds % 60, "s"),
        3600..86_400 => units(hours, "h", minutes % 60, "m"),
        _ => units(days, "d", hours % 24, "h"),
    }
}

/// A time as RFC 3339 in UTC, in whole seconds.
#[must_use]
pub fn time(at: Timestamp) -> String {
    at.strftime("%FT%TZ").to_string()
}

/// A revision in few characters: hashes are cut to eight digits.
#[must_use]
pub fn short(revision: &str) -> String {
    // The revision of a Program is its generation.
    if !revision.is_empty() && revision.len() < 20 && revision.chars().all(|digit| digit.is_ascii_digit()) {
        return format!("generation {revision}");
    }
    let (head, hash) = match revision.rsplit_once([':', '@', '/']) {
        Some((head, hash)) => (head, hash),
        None => ("", revision),
    };
    if hash.len() < 40 || !hash.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return revision.to_owned();
    }
    let name = head.trim_end_matches("sha1").trim_end_matches("sha256").trim_end_matches(['@', ':']);
    if name.is_empty() { hash[..8].to_owned() } else { format!("{name}@{}", &hash[..8]) }
}

/// The formats of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// A value in a format.
pub fn formatted(value: &impl Serialize, format: Format) -> Result<String> {
    match format {
        Format::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| Error::failed(format!("cannot print the answer as JSON: {error}"))),
        Format::Yaml => serde_saphyr::to_string(value)
            .map(|text| text.trim_end().to_owned() + "\n")
            .map_err(|error| Error::failed(format!("cannot print the answer as YAML: {error}"))),
    }
}
