use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use driftless_core::SLOW_FETCH;
use jiff::{SignedDuration, Timestamp};

use super::{
    GitError,
    times::{REST, TIME},
};
/// How long a server counts as slow after a slow fetch, as a multiple of the fetch's duration.
const SLOW_FACTOR: i32 = 2;

/// A server may use half of an instance's time: its share is restored in twice the time that it
/// used.
const SHARE: i32 = 2;
/// A namespace may use an eighth of it on one server before it yields to other namespaces.
const NAMESPACE_SHARE: i32 = 8;
/// How far a server or a namespace may exceed its share, so that a burst of fast fetches does not
/// wait.
const BURST: SignedDuration = SLOW_FETCH;
/// How far a server may exceed its share before a namespace within its own share has to wait.
const NAMESPACE_BURST: SignedDuration = SignedDuration::from_secs(30);

/// A host and a port.
type Server = (String, u16);

/// The git servers that were silent or slow, and how much of the instance's time each used, so that
/// one server cannot keep a fetcher from the others. Each instance has its own memory; a clone
/// shares it.
#[derive(Clone, Debug, Default)]
pub struct Servers(Arc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    silent: Rests,
    slow: Rests,
    /// The time at which the quota of a server, or of a namespace on it, is full again. This is the
    /// generic cell rate algorithm of ATM, with durations as cells.
    shares: Mutex<HashMap<(Server, Option<String>), Timestamp>>,
}

impl Servers {
    /// Records how long a fetch took, and whether its server sent no first answer. `began` is when
    /// the fetch began.
    pub(super) fn remember(&self, server: Server, is_silent: bool, took: Duration, began: Timestamp) {
        let Memory { silent, slow, .. } = &*self.0;
        let took = SignedDuration::try_from(took).unwrap_or_default();
        if is_silent {
            silent.begin(server, REST, began);
        // A fetch with a shortened time limit does not prolong the rest, so that large repositories
        // of the server are fetched after it.
        } else if took > SLOW_FETCH && !slow.has(&server, began) {
            slow.begin(server, took.saturating_mul(SLOW_FACTOR), began.checked_add(took).unwrap_or(began));
        }
    }

    /// Returns an error while a silent server rests.
    pub(super) fn check(&self, server: &Server, now: Timestamp) -> Result<(), GitError> {
        if self.0.silent.has(server, now) { Err(GitError::Silent) } else { Ok(()) }
    }

    /// Charges a server for the time of a namespace's request, up to the end of the storing.
    pub(super) fn charge(&self, server: &Server, namespace: &str, took: Duration, began: Timestamp) {
        // A longer fetch makes its server slow, which shortens the time limit of the next ones to
        // this.
        let took = SignedDuration::try_from(took).unwrap_or_default().min(SLOW_FETCH);
        let mut shares = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, until| began < *until);
        for (of, share) in [(None, SHARE), (Some(namespace.to_owned()), NAMESPACE_SHARE)] {
            let until = shares.entry((server.clone(), of)).or_insert(began);
            *until = until.checked_add(took.saturating_mul(share)).unwrap_or(*until);
        }
    }

    /// Returns whether a server used more than its share of this instance's time, so that a
    /// namespace which used much of it has to wait.
    pub(super) fn is_beyond_share(&self, server: &Server, namespace: &str, now: Timestamp) -> bool {
        let shares = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = |of: Option<String>| {
            let until = shares.get(&(server.clone(), of));
            until.map_or(SignedDuration::ZERO, |until| until.duration_since(now))
        };
        let server_ahead = ahead(None);
        server_ahead > NAMESPACE_BURST || server_ahead > BURST && ahead(Some(namespace.to_owned())) > BURST
    }

    /// The time limit of a fetch from a server. A slow server gets a shorter one, because it may
    /// have small repositories too.
    pub(super) fn time(&self, server: &Server, now: Timestamp) -> Duration {
        if self.0.slow.has(server, now) { SLOW_FETCH.unsigned_abs() } else { TIME }
    }
}

/// Servers, and when their rests end.
#[derive(Debug, Default)]
struct Rests(Mutex<HashMap<Server, Timestamp>>);

impl Rests {
    /// Starts the rest of a server at `now`. The rest of a server that rests already is not
    /// prolonged.
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
        // A fetch that was refused during the rest, and reports that.
        servers.remember(server(443), true, Duration::ZERO, at(100));
        for (port, seconds, rests) in [(443, 0, true), (443, 119, true), (443, 120, false), (22, 0, false)] {
            assert_eq!(servers.clone().check(&server(port), at(seconds)).is_err(), rests, "{port} after {seconds} s");
        }
        servers.remember(server(443), true, Duration::ZERO, at(120));
        assert!(servers.check(&server(443), at(239)).is_err());
    }

    /// How many seconds of an hour a server uses of an instance to which namespaces send requests
    /// all the time, each for fetches of this many seconds.
    fn spent(namespaces: u32, took: u64) -> u64 {
        let servers = Servers::default();
        let (mut now, mut spent) = (0, 0);
        while now < 3600 {
            let asks = (0..namespaces).map(|number| number.to_string());
            let Some(namespace) = asks.into_iter().find(|name| !servers.is_beyond_share(&server(443), name, at(now))) else {
                now += 1;
                continue;
            };
            let took = servers.time(&server(443), at(now)).as_secs().min(took);
            servers.remember(server(443), false, Duration::from_secs(took), at(now));
            servers.charge(&server(443), &namespace, Duration::from_secs(took), at(now));
            (now, spent) = (now + i64::try_from(took).unwrap(), spent + took);
        }
        spent
    }

    #[test]
    fn fast_server_uses_at_most_half_of_an_instance() {
        for (namespaces, took) in [(1, 1), (1, 9), (20, 1), (20, 3), (20, 9)] {
            let spent = spent(namespaces, took);
            assert!((1700..=1850).contains(&spent), "{spent} s with fetches of {took} s of {namespaces} namespaces");
        }
        // A fetch of a minute is charged as ten seconds, followed by two minutes in which fetches
        // have ten seconds.
        let spent = spent(20, 60);
        assert!((1800..=3600 * 3 / 4).contains(&spent), "{spent}");
    }

    #[test]
    fn heavy_user_of_a_git_server_yields_to_light_ones() {
        let servers = Servers::default();
        let (mut now, mut spent, mut poll) = (0, 0, 0);
        while now < 3600 {
            if now >= poll {
                poll += 60;
                assert!(!servers.is_beyond_share(&server(443), "quiet", at(now)), "after {now} s");
                servers.charge(&server(443), "quiet", Duration::from_millis(300), at(now));
            }
            if servers.is_beyond_share(&server(443), "busy", at(now)) {
                now += 1;
            } else {
                servers.charge(&server(443), "busy", Duration::from_secs(9), at(now));
                (now, spent) = (now + 9, spent + 9);
            }
        }
        assert!((1500..=1850).contains(&spent), "{spent}");
        assert!(!servers.is_beyond_share(&server(22), "busy", at(now)));
    }

    #[test]
    fn burst_of_fast_fetches_is_within_the_share() {
        let servers = Servers::default();
        for number in 0..20 {
            assert!(!servers.is_beyond_share(&server(443), "a", at(number)), "after {number} fetches");
            servers.charge(&server(443), "a", Duration::from_millis(300), at(number));
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
