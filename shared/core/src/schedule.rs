use std::str::FromStr as _;

use croner::Cron;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

/// The occurrences of one cron expression are spread over this time, so that many Stacks do not
/// start at once.
const SPREAD: SignedDuration = SignedDuration::from_mins(10);

/// The shortest interval, because each occurrence costs a task.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);

/// A recurring time.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// At this interval.
    Every(SignedDuration),
    /// At the times of a cron expression.
    Cron {
        /// Minute, hour, day of the month, month, day of the week.
        cron: Box<Cron>,
        /// The time zone of the expression.
        zone: TimeZone,
    },
}

impl Schedule {
    /// Reads a schedule: an interval such as `6h`, or five cron fields such as `0 3 * * *`, in an
    /// IANA time zone such as `Europe/Berlin`; UTC without one.
    ///
    /// # Errors
    /// The text is no schedule; the message gives an example of one.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        if text.split_whitespace().count() != 5 {
            let every = text.parse::<SignedDuration>().ok().filter(|every| *every >= SHORTEST);
            return every.map(Self::Every).ok_or_else(|| {
                format!("{text:?}; write an interval of at least 1m such as 6h, or five cron fields such as \"0 3 * * *\"")
            });
        }
        let zone = zone.map_or(Ok(TimeZone::UTC), |zone| {
            TimeZone::get(zone)
                .map_err(|_| format!("{text:?} in the time zone {zone:?}; write an IANA time zone such as Europe/Berlin"))
        })?;
        let cron = Cron::from_str(text).map_err(|error| format!("{text:?}, which is not a cron expression: {error}"))?;
        let schedule = Self::Cron { cron: Box::new(cron), zone };
        schedule.occurrence(Timestamp::UNIX_EPOCH).map(|_| schedule).ok_or_else(|| {
            format!(
                "{text:?}, which never occurs; \
             write a date that exists"
            )
        })
    }

    /// The first occurrence after `after`. `own` differs per object and moves the occurrence:
    /// within the interval, or within ten minutes and at most half of the time to the next
    /// occurrence. `None` at the end of the calendar.
    #[must_use]
    pub fn next(&self, after: Timestamp, own: u64) -> Option<Timestamp> {
        let own = i64::try_from(own >> 1).unwrap_or(0);
        let Self::Every(every) = self else {
            // An occurrence before `after` may have been moved beyond it.
            let mut occurrence = self.occurrence(after.checked_sub(SPREAD).unwrap_or(after))?;
            loop {
                let following = self.occurrence(occurrence)?;
                let room = (following.duration_since(occurrence) / 2).min(SPREAD);
                let due = occurrence + SignedDuration::from_secs(own % room.as_secs().max(1));
                if due > after {
                    return Some(due);
                }
                occurrence = following;
            }
        };
        let since = after.as_second().saturating_sub(own % every.as_secs()).rem_euclid(every.as_secs());
        Timestamp::from_second(after.as_second().saturating_sub(since).saturating_add(every.as_secs())).ok()
    }

    /// The first time of a cron expression after `after`.
    pub(crate) fn occurrence(&self, after: Timestamp) -> Option<Timestamp> {
        let Self::Cron { cron, zone } = self else { return None };
        Some(cron.find_next_occurrence(&after.to_zoned(zone.clone()), false).ok()?.timestamp())
    }
}

/// A number that spreads objects over time by their uid or name. FNV-1a: any stable hash with an
/// even spread would do.
pub(crate) fn spread(uid: &str) -> u64 {
    uid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn invalid_schedule_is_refused_with_a_remedy() {
        for (text, zone, words) in [
            ("soon", None, r#""soon"; write an interval"#),
            ("30s", None, "at least 1m"),
            ("", None, "write an interval"),
            ("* * * *", None, "five cron fields"),
            ("0 25 * * *", None, "which is not a cron expression"),
            ("0 0 31 2 *", None, "which never occurs"),
            ("0 3 * * *", Some("Mars/Olympus"), r#"in the time zone "Mars/Olympus""#),
        ] {
            let error = Schedule::parse(text, zone).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_time_of_the_day_is_that_of_its_zone_in_summer_and_winter() {
        let schedule = Schedule::parse("0 3 * * *", Some("Europe/Berlin")).unwrap();
        let next = |after: &str| schedule.next(at(after), 0).unwrap();
        assert_eq!(next("2026-01-01T00:00:00Z"), at("2026-01-01T02:00:00Z"));
        assert_eq!(next("2026-01-01T02:00:00Z"), at("2026-01-02T02:00:00Z"));
        assert_eq!(next("2026-07-01T02:00:00Z"), at("2026-07-02T01:00:00Z"));
        // 02:30 does not exist on the day that summer time starts, and occurs twice on the day that
        // it ends.
        let schedule = Schedule::parse("30 2 * * *", Some("Europe/Berlin")).unwrap();
        let mut days = Vec::new();
        let mut time = at("2026-03-27T12:00:00Z");
        for _ in 0..400 {
            time = schedule.next(time, 0).unwrap();
            days.push(time);
        }
        assert!(days.windows(2).all(|pair| pair[1].duration_since(pair[0]) <= SignedDuration::from_hours(48)), "{days:?}");
        assert!(days.windows(2).all(|pair| pair[1] > pair[0]));
    }

    #[test]
    fn checks_of_one_schedule_are_spread_over_its_period() {
        for (text, period) in [("1h", 3600), ("*/5 * * * *", 300), ("0 * * * *", 3600), ("7m", 420)] {
            let schedule = Schedule::parse(text, None).unwrap();
            let begin = at("2026-01-01T00:00:00Z");
            let mut firsts = Vec::new();
            for own in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                let mut time = schedule.next(begin, own).unwrap();
                firsts.push(time);
                assert!(time.duration_since(begin).as_secs() <= 2 * period, "{text}");
                for _ in 0..5 {
                    let next = schedule.next(time, own).unwrap();
                    assert_eq!(next.duration_since(time).as_secs(), period, "{text}");
                    time = next;
                }
            }
            firsts.sort();
            let most = firsts.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap();
            assert!(most <= 30, "{text}: {most} of 1000 at once");
        }
    }
}
