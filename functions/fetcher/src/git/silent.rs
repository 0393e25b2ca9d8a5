use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};

use super::GitError;

/// How long no fetch asks a server that was silent: an instance spends an eighth of its time on such a server at most.
pub(super) const REST: SignedDuration = SignedDuration::from_mins(2);

/// A host and a port.
type Server = (String, u16);

/// The git servers that gave no first answer, so that one server takes no fetcher from the others. Each instance has its own memory; a
/// clone shares it.
#[derive(Clone, Debug, Default)]
pub struct SilentServers(Arc<Mutex<HashMap<Server, Timestamp>>>);

impl SilentServers {
    /// Lets a server rest that was silent. A server that rests already does not rest longer.
    pub(super) fn remember(&self, server: Server, now: Timestamp) {
        let mut resting = self.resting();
        resting.retain(|_, until| now < *until);
        resting.entry(server).or_insert(now.checked_add(REST).unwrap_or(now));
    }

    /// Returns an error while the server rests.
    pub(super) fn check(&self, server: &Server, now: Timestamp) -> Result<(), GitError> {
        let rests = self.resting().get(server).is_some_and(|until| now < *until);
        if rests { Err(GitError::Silent) } else { Ok(()) }
    }

    fn resting(&self) -> MutexGuard<'_, HashMap<Server, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_server_rests_two_minutes_and_no_longer() {
        let silent = SilentServers::default();
        let server = |port| ("git.example.com".to_owned(), port);
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        silent.remember(server(443), at(0));
        // A fetch that met the rest, and says so.
        silent.remember(server(443), at(100));
        for (port, seconds, rests) in [(443, 0, true), (443, 119, true), (443, 120, false), (22, 0, false)] {
            assert_eq!(silent.clone().check(&server(port), at(seconds)).is_err(), rests, "{port} after {seconds} s");
        }
        silent.remember(server(443), at(120));
        assert!(silent.check(&server(443), at(239)).is_err());
    }
}
