//! The lock that Pulumi's own backends store beside the state, as Pulumi's messages name it.

use std::fmt;

use driftless_contract::Lock;
use jiff::{SignedDuration, Timestamp};

/// Another process's lock, from Pulumi's message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    user: String,
    host: String,
    pid: u32,
    /// In whole seconds, rounded down.
    at: Timestamp,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on host {}, process {}, since {}", self.user, self.host, self.pid, self.at)
    }
}

/// The text before the owner of a lock; the lock's URL comes first.
const HOLDER: &str = ": created by ";

/// The text before the number of locks.
const LOCKED: &str = "the stack is currently locked by ";

/// Returns whether Pulumi's message says that the stack is locked.
pub(crate) fn is_locked(words: &str) -> bool {
    words.contains(LOCKED)
}

/// Returns whether Pulumi Cloud's message says that another update runs. It does not name it.
pub(crate) fn is_busy(words: &str) -> bool {
    words.contains("Conflict: Another update is currently in progress")
}

/// The locks that Pulumi names: `URL: created by USER@HOST (pid N) at TIME`.
fn locks(words: &str) -> impl Iterator<Item = Option<Held>> {
    words.lines().filter_map(|line| line.rsplit_once(HOLDER)).map(|(_, holder)| {
        let (who, rest) = holder.rsplit_once(" (pid ")?;
        let (pid, at) = rest.split_once(") at ")?;
        let (user, host) = who.rsplit_once('@')?;
        Some(Held { user: user.to_owned(), host: host.to_owned(), pid: pid.parse().ok()?, at: at.trim().parse().ok()? })
    })
}

/// Returns whether `dead` covers every lock that Pulumi names. `false` if the number of named locks
/// differs from the stated one.
#[must_use]
pub fn is_stale(words: &str, dead: &Lock) -> bool {
    let counted = words.split_once(LOCKED).and_then(|(_, rest)| rest.split_once(" lock(s)")?.0.parse().ok());
    let Some(held) = locks(words).collect::<Option<Vec<_>>>() else { return false };
    counted == Some(held.len()) && !held.is_empty() && held.iter().all(|held| dead.all().any(|dead| held.is_of(dead)))
}

/// The message for a stack that another process has locked, which starts with its owner. `dead` has
/// the known locks of dead runs.
#[must_use]
pub fn conflict(words: &str, dead: Option<&Lock>) -> String {
    if is_busy(words) {
        let Some(Lock { not_before, not_after: Some(end), .. }) = dead else { return words.to_owned() };
        let known =
            format!("a run of this Stack that started at {not_before:.0} was lost at {end:.0} and may have left that update");
        return format!(
            "{words}\n{known}; Pulumi Cloud does not name its owner; if no other update runs, end it with `pulumi cancel`"
        );
    }
    let holders: Vec<String> = locks(words).flatten().map(|held| held.to_string()).collect();
    let words: Vec<String> = words.lines().map(without_query).collect();
    let words = words.join("\n");
    if holders.is_empty() {
        return words;
    }
    let holders = holders.join("; ");
    format!("the stack is locked by {holders}; if that process has ended, remove the lock with `pulumi cancel`\n{words}")
}

/// The line that names a lock, without the query of its URL.
fn without_query(line: &str) -> String {
    line.rsplit_once(HOLDER).map_or_else(
        || line.to_owned(),
        |(url, holder)| format!("{}{HOLDER}{holder}", url.split_once('?').map_or(url, |(url, _)| url)),
    )
}

impl Held {
    /// Returns whether the run that recorded `dead` took it: host and process are equal, and the
    /// time is within that run's life.
    fn is_of(&self, dead: &Lock) -> bool {
        let is_early = self.at.duration_since(dead.not_before) <= SignedDuration::from_secs(-1);
        self.host == dead.host && self.pid == dead.pid && !is_early && dead.not_after.is_some_and(|end| self.at <= end)
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
            removes: false,
            earlier: Vec::new(),
        }
    }

    #[test]
    fn the_lock_of_a_dead_run_is_recognised() {
        assert!(is_locked(WORDS));
        assert!(is_stale(WORDS, &dead()));
    }

    #[test]
    fn lock_with_other_host_process_or_time_is_foreign() {
        assert!(!is_stale(WORDS, &Lock { host: "vm2".into(), ..dead() }));
        assert!(!is_stale(WORDS, &Lock { pid: 6626, ..dead() }));
        assert!(!is_stale(WORDS, &Lock { not_before: "2026-11-21T07:59:47Z".parse().unwrap(), ..dead() }));
        assert!(!is_stale(WORDS, &Lock { not_after: Some("2026-11-21T07:59:45Z".parse().unwrap()), ..dead() }));
        assert!(!is_stale(WORDS, &Lock { not_after: None, ..dead() }));
    }

    #[test]
    fn lock_whose_task_wrote_any_time_is_compared() {
        let any = Lock { not_before: Timestamp::MIN, not_after: Some(Timestamp::MAX), ..dead() };
        assert!(is_stale(WORDS, &any));
        assert!(!is_stale(WORDS, &Lock { not_before: Timestamp::MAX, ..any }));
    }

    #[test]
    fn locks_are_stale_only_if_all_are_of_dead_runs() {
        let newest = Lock { pid: 7, earlier: vec![dead()], ..dead() };
        assert!(is_stale(WORDS, &newest), "the newest run died before its pulumi checked for locks");
        let two = format!(
            "{}  file:///state/5.json: created by me@vm (pid 7) at 2026-11-21T08:00:00Z\n",
            WORDS.replace("by 1 lock(s)", "by 2 lock(s)")
        );
        assert!(is_stale(&two, &newest));
        assert!(!is_stale(&two, &dead()));
    }

    #[test]
    fn inconsistent_lock_message_matches_no_lock() {
        let two = WORDS.replace("by 1 lock(s)", "by 2 lock(s)");
        assert!(is_locked(&two));
        assert!(!is_stale(&two, &dead()));
        assert!(!is_stale(&format!("{WORDS}{}", WORDS.lines().last().unwrap()), &dead()));
        assert!(!is_stale(&WORDS.replace("(pid 6625)", "(pid x)"), &dead()));
        assert!(!is_locked("error: update failed") && !is_stale("error: update failed", &dead()));
    }

    #[test]
    fn conflict_message_starts_with_the_owner_without_query() {
        let told = conflict(WORDS.trim_end(), Some(&dead()));
        assert_eq!(
            told.lines().collect::<Vec<_>>(),
            [
                "the stack is locked by me@home on host vm, process 6625, since 2026-11-21T07:59:46Z; if that process has \
                 ended, remove the lock with `pulumi cancel`",
                "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file \
                 with `pulumi cancel`.",
                "  file:///state/.pulumi/locks/organization/slow/dev/4cc5.json: created by me@home@vm (pid 6625) at 2026-11-21T07:59:46Z",
            ]
        );
        let two = conflict(&format!("{WORDS}  s3://b/l.json?region=x: created by you@pc (pid 7) at 2026-11-21T08:00:00Z"), None);
        assert!(two.contains("2026-11-21T07:59:46Z; you on host pc, process 7, since 2026-11-21T08:00:00Z;"), "{two}");
        assert!(!two.contains('?'), "{two}");
        let odd = "error: the stack is currently locked by 1 lock(s).\n  url?q: created by nobody";
        assert_eq!(conflict(odd, None), odd.replace("?q", ""));
    }

    #[test]
    fn cloud_conflict_message_is_kept_and_names_a_lost_run() {
        let words = "error: [409] Conflict: Another update is currently in progress.";
        assert!(is_busy(words) && !is_locked(words));
        assert_eq!(conflict(words, None), words);
        assert_eq!(conflict(words, Some(&Lock { not_after: None, ..dead() })), words);
        assert_eq!(
            conflict(words, Some(&dead())),
            format!(
                "{words}\na run of this Stack that started at 2026-11-21T07:59:46Z was lost at 2026-11-21T08:05:00Z and may have left that \
                 update; Pulumi Cloud does not name its owner; if no other update runs, end it with `pulumi cancel`"
            )
        );
    }
}
