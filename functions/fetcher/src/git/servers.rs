use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use driftless_core::SLOW_FETCH;
use jiff::{SignedDuration, Timestamp};

use super::{GitError, TIME};

/// How long no fetch asks a server that was silent: an instance spends an eighth of its time on such a server at most.
pub(super) const REST: SignedDuration = SignedDuration::from_mins(2);
/// How long a server counts as slow after a slow fetch, as a multiple of the fetch's duration.
const SLOW_FACTOR: i32 = 2;

/// Of an instance's time that a server spends, this multiple is the time in which it may spend it: half of the instance is left to others.
const SHARE: i32 = 2;
/// How far a server may be ahead of its share, so that a burst of fast fetches is no reason to wait.
const BURST: SignedDuration = SLOW_FETCH;

/// A host and a port.
type Server = (String, u16);

/// The git servers that were silent or slow, and how much of the instance's time each had, so that one server takes no fetcher from the
/// others. Each instance has its own memory; a clone shares it.
#[derive(Clone, Debug, Default)]
pub struct Servers(Arc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    silent: Rests,
    slow: Rests,
    /// Until when the time that a server had is its share. This is the generic cell rate algorithm of ATM, with durations as cells.
    shares: Mutex<HashMap<Server, Timestamp>>,
}

impl Servers {
    /// Remembers how long a fetch took, and whether its server gave no first answer. `began` is when the fetch began.
    pub(super) fn remember(&self, server: Server, is_silent: bool, took: Duration, began: Timestamp) {
        let Memory { silent, slow, shares } = &*self.0;
        let took = SignedDuration::try_from(took).unwrap_or_default();
        let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, until| began < *until);
        let until = shares.entry(server.clone()).or_insert(began);
        // A fetch that takes longer makes its server slow, and the next ones end after this time.
        *until = until.checked_add(took.min(SLOW_FETCH).saturating_mul(SHARE)).unwrap_or(*until);
        drop(shares);
        if is_silent {
            silent.begin(server, REST, began);
        // A fetch that had less time prolongs no rest, so that large repositories of the server are fetched after it.
        } else if took > SLOW_FETCH && !slow.has(&server, began) {
            slow.begin(server, took.saturating_mul(SLOW_FACTOR), began.checked_add(took).unwrap_or(began));
        }
    }

    /// Returns an error while a server rests that was silent.
    pub(super) fn check(&self, server: &Server, now: Timestamp) -> Result<(), GitError> {
        if self.0.silent.has(server, now) { Err(GitError::Silent) } else { Ok(()) }
    }

    /// Whether a server had more of this instance's time than its share.
    pub(super) fn is_beyond_share(&self, server: &Server, now: Timestamp) -> bool {
        let shares = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.get(server).is_some_and(|until| until.duration_since(now) > BURST)
    }

    /// How long a fetch from a server may take. A slow server is asked nonetheless, for less time: others may have small repositories there.
    pub(super) fn time(&self, server: &Server, now: Timestamp) -> Duration {
        if self.0.slow.has(server, now) { SLOW_FETCH.unsigned_abs() } else { TIME }
    }
}

/// Servers, and when their rests end.
#[derive(Debug, Default)]
struct Rests(Mutex<HashMap<Server, Timestamp>>);

impl Rests {
    /// Lets a server rest from `now` on. A server that rests already does not rest longer.
    fn begin(&self, server: Server, rest: SignedDuration, now: Timestamp) {
        let mut resting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|_, until| now < *until);
        resting.entry(server).or_insert(now.checked_add(rest).unwrap_or(now));
    }

    fn has(&self, server: &Server, now: Timestamp) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(server).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> Server {
        ("git.example.com".to_owned(), port)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn silent_server_rests_two_minutes_and_no_longer() {
        let servers = Servers::default();
        servers.remember(server(443), true, Duration::ZERO, at(0));
        // A fetch that met the rest, and says so.
        servers.remember(server(443), true, Duration::ZERO, at(100));
        for (port, seconds, rests) in [(443, 0, true), (443, 119, true), (443, 120, false), (22, 0, false)] {
            assert_eq!(servers.clone().check(&server(port), at(seconds)).is_err(), rests, "{port} after {seconds} s");
        }
        servers.remember(server(443), true, Duration::ZERO, at(120));
        assert!(servers.check(&server(443), at(239)).is_err());
    }

    #[test]
    fn server_has_half_of_an_instance_however_fast_it_answers() {
        for took in [1, 3, 9, 60] {
            let servers = Servers::default();
            let (mut now, mut spent) = (0, 0);
            while now < 3600 {
                if servers.is_beyond_share(&server(443), at(now)) {
                    now += 1;
                    continue;
                }
                let took = servers.time(&server(443), at(now)).as_secs().min(took);
                servers.remember(server(443), false, Duration::from_secs(took), at(now));
                (now, spent) = (now + i64::try_from(took).unwrap(), spent + took);
            }
            // A fetch of a minute is followed by two in which fetches have ten seconds, and the server half of the time.
            let most = if took > 10 { 3600 * 7 / 10 } else { 3600 / 2 + 20 };
            assert!((1700..=most).contains(&spent), "{spent} s with fetches of {took} s");
            assert!(!servers.is_beyond_share(&server(22), at(now)));
        }
    }

    #[test]
    fn burst_of_fast_fetches_is_within_the_share() {
        let servers = Servers::default();
        for number in 0..20 {
            assert!(!servers.is_beyond_share(&server(443), at(number)), "after {number} fetches");
            servers.remember(server(443), false, Duration::from_millis(300), at(number));
        }
    }

    #[test]
    fn slow_server_has_ten_seconds_for_twice_the_time_of_its_fetch() {
        let (servers, brief) = (Servers::default(), Duration::from_secs(10));
        servers.remember(server(443), false, brief, at(0));
        assert_eq!(servers.time(&server(443), at(10)), TIME);
        servers.remember(server(443), false, Duration::from_secs(30), at(0));
        // A fetch that was cut off, and ended after the rest.
        servers.remember(server(443), false, Duration::from_millis(10_001), at(85));
        for (port, seconds, time) in [(443, 30, brief), (443, 89, brief), (443, 90, TIME), (443, 96, TIME), (22, 30, TIME)] {
            assert_eq!(servers.clone().time(&server(port), at(seconds)), time, "{port} after {seconds} s");
            assert!(servers.check(&server(port), at(seconds)).is_ok());
        }
    }
}
