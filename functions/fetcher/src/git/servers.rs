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

/// A host and a port.
type Server = (String, u16);

/// The git servers that were silent or slow, so that one server takes no fetcher from the others. Each instance has its own memory; a clone
/// shares it.
#[derive(Clone, Debug, Default)]
pub struct Servers(Arc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    silent: Rests,
    slow: Rests,
}

impl Servers {
    /// Remembers a server that gave no first answer, or whose fetch took too long. `began` is when the fetch began.
    pub(super) fn remember(&self, server: Server, is_silent: bool, took: Duration, began: Timestamp) {
        let Memory { silent, slow } = &*self.0;
        let took = SignedDuration::try_from(took).unwrap_or_default();
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
