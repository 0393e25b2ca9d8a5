use jiff::SignedDuration;

/// Parses a duration in the form of PKO's fields: `24h`, `1h30m0s`, `1.5h`. `None` if it is invalid
/// or negative.
#[must_use]
pub fn duration(text: &str) -> Option<SignedDuration> {
    text.parse().ok().filter(|duration: &SignedDuration| !duration.is_negative())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_the_format_of_go() {
        for (text, seconds) in [("24h", 86_400), ("24h0m0s", 86_400), ("1h30m", 5_400), ("1.5h", 5_400), ("1500ms", 1), ("0s", 0)]
        {
            assert_eq!(duration(text).map(|duration| duration.as_secs()), Some(seconds), "{text}");
        }
        // Some parsers panic at the last two.
        for text in ["", "a day", "24", "-1h", "1h-5m", "99999999999999999999999h"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
