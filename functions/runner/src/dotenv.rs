//! The file that `PULUMI_ENV` names: variables for Pulumi from an init container, parsed as PKO's
//! agent (godotenv) does.

use std::collections::BTreeMap;

/// The maximum length of a value, in bytes: Linux starts no process with a longer variable. Each
/// line may double the one before it.
const MAX_VALUE: usize = 128 << 10;

/// The file is invalid. The error has only a line number, because the content is secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLine {
    /// The line is not a variable.
    #[error("line {0} is not NAME=value")]
    Shape(usize),
    /// The value is too long for a process.
    #[error("the value of line {0} has more than 128 KiB")]
    TooLong(usize),
}

/// Reads `NAME=value` lines, also with `export` before them, a comment or quotes. In double quotes
/// `\n` is a line break; there and without quotes `$NAME` and `${NAME}` stand for the value of an
/// earlier line, else for that of `known`, else for an empty text.
pub fn parse(text: &str, known: impl Fn(&str) -> Option<String>) -> Result<BTreeMap<String, String>, InvalidLine> {
    let text = text.replace("\r\n", "\n");
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let number = || 1 + text[..text.len() - rest.len()].matches('\n').count();
        let invalid = || InvalidLine::Shape(number());
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            continue;
        }
        let exported = rest.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t']));
        let (name, after) = exported.unwrap_or(rest).split_once(['=', ':']).ok_or_else(invalid)?;
        let name = name.trim();
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || "_.".contains(c)) {
            return Err(invalid());
        }
        let lookup = |name: &str| found.get(name).cloned().or_else(|| known(name)).unwrap_or_default();
        let (value, after) = value(after.trim_start_matches([' ', '\t']), lookup).ok_or_else(invalid)?;
        found.insert(name.to_owned(), value.ok_or_else(|| InvalidLine::TooLong(number()))?);
        rest = after.trim_start();
    }
    Ok(found)
}

/// The value at the start of the text, unless it is too long, and the rest; `None` if its quote
/// does not end.
fn value(text: &str, lookup: impl Fn(&str) -> String) -> Option<(Option<String>, &str)> {
    let Some(quote) = text.chars().next().filter(|first| "'\"".contains(*first)) else {
        let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
        let comment = line.match_indices('#').map(|(at, _)| at).find(|at| line[..*at].ends_with([' ', '\t']));
        return Some((expand(line[..comment.unwrap_or(line.len())].trim(), lookup), rest));
    };
    let end = text.match_indices(quote).map(|(at, _)| at).find(|at| *at > 0 && !text[..*at].ends_with('\\'))?;
    let (inner, rest) = (&text[1..end], &text[end + 1..]);
    Some((if quote == '"' { expand(&unescape(inner), lookup) } else { Some(inner.to_owned()) }, rest))
}

/// Removes backslashes, except in `\$`, which [`expand`] handles.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('r')) => plain.push('\r'),
            ('\\', Some('$')) => plain.push_str("\\$"),
            (_, Some(escaped)) => plain.push(escaped),
            (_, None) => plain.push(c),
        }
    }
    plain
}

/// `None` if the value is too long.
fn expand(text: &str, lookup: impl Fn(&str) -> String) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let braced = after.strip_prefix('{');
        let name = braced.unwrap_or(after);
        let (name, after_name) =
            name.split_at(name.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')).unwrap_or(name.len()));
        let literal = before.strip_suffix('\\');
        out.push_str(literal.unwrap_or(before));
        if literal.is_some() || name.is_empty() {
            out.push('$');
            rest = after;
        } else {
            out.push_str(&lookup(name));
            rest = braced.and_then(|_| after_name.strip_prefix('}')).unwrap_or(after_name);
        }
        if out.len() > MAX_VALUE {
            return None;
        }
    }
    Some(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text, |name| (name == "HOME").then(|| "/root".into())).unwrap().into_iter().collect()
    }

    #[test]
    fn env_file_is_read_as_by_the_agent_of_pko() {
        for (text, value) in [
            ("A=1", "1"),
            ("\n# a comment\n  export A = b c  # what it is\r\n", "b c"),
            ("A: yaml", "yaml"),
            ("A=b#c", "b#c"),
            ("A=", ""),
            ("A='x $HOME \\n#'", "x $HOME \\n#"),
            ("A=\"x\\ny \\\"q\\\" \\$HOME\" # c", "x\ny \"q\" $HOME"),
            ("A=\"two\nlines\"", "two\nlines"),
            ("A=${HOME}/a $HOME-$NOPE.", "/root/a /root-."),
            ("A=pa$ss$", "pa$ss$"),
            ("A=1\nA=2", "2"),
            ("A=é", "é"),
        ] {
            assert_eq!(parsed(text), [("A".to_owned(), value.to_owned())], "{text}");
        }
        assert_eq!(parsed(" \n# nothing"), []);
        assert_eq!(parsed("A=1\nB=\"$A$A\"\n")[1].1, "11");
    }

    #[test]
    fn values_that_double_are_refused() {
        let lines = |count: u8| -> String {
            let names = (0..count).map(|at| (b'A' + at) as char);
            names
                .clone()
                .zip(names.skip(1))
                .fold("A=0123456789".into(), |text, (from, to)| format!("{text}\n{to}=${from}${from}"))
        };
        assert_eq!(parsed(&lines(14)).pop().unwrap().1.len(), 10 << 13);
        assert_eq!(parse(&lines(26), |_| None), Err(InvalidLine::TooLong(15)));
    }

    #[test]
    fn invalid_env_file_is_refused_by_line_without_content() {
        for text in ["A=1\ncanary", "A=1\ncanary value=2", "A=1\nB='canary\n\n", "A=1\nB=\"canary\"x\nC=1", "A=1\n=canary"] {
            let error = parse(text, |_| None).unwrap_err();
            assert!(["line 2 is not NAME=value", "line 3 is not NAME=value"].contains(&&*error.to_string()), "{text}: {error}");
        }
    }
}
