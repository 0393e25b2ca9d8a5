use jiff::{SignedDuration, Timestamp};

use crate::Schedule;

/// A maintenance window that recurs: the runs of a Stack that change resources start within it. A
/// run that has started continues after its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    opens: Schedule,
    length: SignedDuration,
}

impl Window {
    /// The longest window; a longer one is no limit in practice.
    const LONGEST: SignedDuration = SignedDuration::from_hours(7 * 24);

    /// Reads a window from the schedule of its opening, five cron fields in an IANA time zone (UTC
    /// without one), and its length such as `4h`.
    ///
    /// # Errors
    /// The schedule or the length is invalid. The message names which, and the remedy.
    pub fn parse(opens: &str, zone: Option<&str>, length: &str) -> Result<Self, InvalidWindow> {
        let opens = match Schedule::parse(opens, zone).map_err(InvalidWindow::Opens)? {
            Schedule::Every(_) => {
                return Err(InvalidWindow::Opens(format!("{opens:?}; write five cron fields such as \"0 22 * * *\"")));
            }
            opens @ Schedule::Cron { .. } => opens,
        };
        let is_valid = |length: &SignedDuration| *length >= SignedDuration::from_mins(1) && *length <= Self::LONGEST;
        let length = length.parse().ok().filter(is_valid).ok_or_else(|| {
            InvalidWindow::Length(format!("{length:?}; write a duration of at least 1m and at most 168h, such as 4h"))
        })?;
        Ok(Self { opens, length })
    }

    /// When it opens next; `None` while it is open. Its length is elapsed time: a change of the
    /// clock within it does not alter it.
    #[must_use]
    pub fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        // The last opening that a window could still be open from, or the next one.
        let opens = self.opens.occurrence(now.checked_sub(self.length).unwrap_or(Timestamp::MIN)).unwrap_or(Timestamp::MAX);
        (opens > now).then_some(opens)
    }
}

/// Why a maintenance window is invalid, as the end of a sentence: the value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidWindow {
    /// The schedule or its time zone.
    Opens(String),
    /// The length.
    Length(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn window_is_open_from_its_opening_for_its_length() {
        let window = Window::parse("0 22 * * 1-5", Some("Europe/Berlin"), "4h").unwrap();
        for (now, expected) in [
            // Thursday in winter.
            ("2026-11-26T20:59:59Z", Some("2026-11-26T21:00:00Z")),
            ("2026-11-26T21:00:00Z", None),
            ("2026-11-27T00:59:59Z", None),
            ("2026-11-27T01:00:00Z", Some("2026-11-27T21:00:00Z")),
            // Friday's ends on Saturday; the next one is Monday's.
            ("2026-11-28T00:30:00Z", None),
            ("2026-11-28T01:00:00Z", Some("2026-11-30T21:00:00Z")),
            // In summer, 22:00 is two hours ahead of UTC.
            ("2026-07-01T19:59:00Z", Some("2026-07-01T20:00:00Z")),
        ] {
            assert_eq!(window.closed_until(at(now)), expected.map(at), "{now}");
        }
    }

    #[test]
    fn window_keeps_its_length_when_the_clocks_change() {
        for (day, begin) in [("2026-03-29", "2026-03-28T23:30:00Z"), ("2026-10-25", "2026-10-24T22:30:00Z")] {
            let window = Window::parse("30 0 * * *", Some("Europe/Berlin"), "4h").unwrap();
            let begin = at(begin);
            assert!(window.closed_until(begin - SignedDuration::from_secs(1)).is_some(), "{day}");
            assert_eq!(window.closed_until(begin), None, "{day}");
            let end = begin + SignedDuration::from_hours(4);
            assert_eq!(window.closed_until(end - SignedDuration::from_secs(1)), None, "{day}");
            assert!(window.closed_until(end).is_some(), "{day}");
        }
        // An opening in the hour that is skipped in spring still comes on that day.
        let skipped = Window::parse("30 2 * * *", Some("Europe/Berlin"), "1h").unwrap();
        let opens = skipped.closed_until(at("2026-03-28T12:00:00Z")).unwrap();
        assert!(opens.duration_since(at("2026-03-29T00:30:00Z")).abs() <= SignedDuration::from_hours(1), "{opens}");
    }

    #[test]
    fn overlapping_windows_are_one() {
        let window = Window::parse("0 * * * *", None, "2h").unwrap();
        for now in [Timestamp::UNIX_EPOCH, at("2026-01-01T00:59:59Z"), at("2026-01-01T01:00:00Z")] {
            assert_eq!(window.closed_until(now), None, "{now}");
        }
    }

    #[test]
    fn invalid_window_names_the_part_and_the_remedy() {
        for (opens, zone, length, expected) in [
            ("6h", None, "4h", InvalidWindow::Opens(r#""6h"; write five cron fields such as "0 22 * * *""#.into())),
            (
                "0 22 * * *",
                None,
                "30s",
                InvalidWindow::Length(r#""30s"; write a duration of at least 1m and at most 168h, such as 4h"#.into()),
            ),
            (
                "0 22 * * *",
                None,
                "169h",
                InvalidWindow::Length(r#""169h"; write a duration of at least 1m and at most 168h, such as 4h"#.into()),
            ),
        ] {
            assert_eq!(Window::parse(opens, zone, length), Err(expected));
        }
        let Err(InvalidWindow::Opens(why)) = Window::parse("0 22 * * *", Some("Mars/Olympus"), "4h") else { panic!("accepted") };
        assert!(why.contains("Mars/Olympus"), "{why}");
    }
}
