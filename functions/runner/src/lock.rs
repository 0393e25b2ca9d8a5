//! The lock that pulumi's own backends keep beside the state, as pulumi speaks of it.

use driftless_contract::Lock;
use jiff::{SignedDuration, Timestamp};

/// The lock of somebody else, in pulumi's words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    host: String,
    pid: u32,
    /// In whole seconds, cut.
    at: Timestamp,
}

/// Does pulumi say that the stack is locked?
pub(crate) fn is_locked(words: &str) -> bool {
    words.contains("the stack is currently locked by ")
}

/// The lock that pulumi names, if it names just one.
pub(crate) fn only_lock(words: &str) -> Option<Held> {
    if !words.contains("the stack is currently locked by 1 lock(s)") {
        return None;
    }
    // `URL: created by USER@HOST (pid N) at TIME`
    let mut locks = words.lines().filter_map(|line| line.rsplit_once(": created by ")).map(|(_, holder)| holder);
    let holder = locks.next()?;
    if locks.next().is_some() {
        return None;
    }
    let (who, rest) = holder.rsplit_once(" (pid ")?;
    let (pid, at) = rest.split_once(") at ")?;
    let (_, host) = who.rsplit_once('@')?;
    Some(Held { host: host.to_owned(), pid: pid.parse().ok()?, at: at.trim().parse().ok()? })
}

impl Held {
    /// It was taken by the run that wrote `dead` down: host and process agree, and the time is within that run's life.
    pub(crate) fn is_of(&self, dead: &Lock) -> bool {
        let earliest = dead.not_before - SignedDuration::from_secs(1);
        self.host == dead.host && self.pid == dead.pid && self.at > earliest && dead.not_after.is_some_and(|end| self.at <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the \
                         lock file with `pulumi cancel`.\n  file:///state/.pulumi/locks/organization/slow/dev/4cc5.json?no_tmp_dir=true: \
                         created by me@home@vm (pid 6625) at 2026-11-21T07:59:46Z\n";

    fn dead() -> Lock {
        Lock {
            version: 1,
            host: "vm".into(),
            pid: 6625,
            not_before: "2026-11-21T07:59:46.849Z".parse().unwrap(),
            not_after: Some("2026-11-21T08:05:00Z".parse().unwrap()),
        }
    }

    #[test]
    fn the_one_lock_of_a_dead_run_is_recognised() {
        assert!(is_locked(WORDS));
        assert!(only_lock(WORDS).unwrap().is_of(&dead()));
    }

    #[test]
    fn a_lock_that_differs_in_host_process_or_time_is_anothers() {
        let held = only_lock(WORDS).unwrap();
        assert!(!held.is_of(&Lock { host: "vm2".into(), ..dead() }));
        assert!(!held.is_of(&Lock { pid: 6626, ..dead() }));
        assert!(!held.is_of(&Lock { not_before: "2026-11-21T07:59:47Z".parse().unwrap(), ..dead() }));
        assert!(!held.is_of(&Lock { not_after: Some("2026-11-21T07:59:45Z".parse().unwrap()), ..dead() }));
        assert!(!held.is_of(&Lock { not_after: None, ..dead() }));
    }

    #[test]
    fn no_lock_is_named_when_there_are_two_or_the_words_are_others() {
        let two = WORDS.replace("by 1 lock(s)", "by 2 lock(s)");
        assert!(is_locked(&two));
        assert_eq!(only_lock(&two), None);
        assert_eq!(only_lock(&format!("{WORDS}{}", WORDS.lines().last().unwrap())), None);
        assert_eq!(only_lock(&WORDS.replace("(pid 6625)", "(pid x)")), None);
        assert!(!is_locked("error: update failed"));
    }
}
