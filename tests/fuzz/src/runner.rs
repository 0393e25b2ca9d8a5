//! What the runner reads from Pulumi, and from an init container.

use std::collections::BTreeMap;

use driftless_contract::{Drift, Lock, VERSION};
use jiff::Timestamp;
use runner::{Events, Mask, conflict, is_stale, plain};

use crate::input::{first_line, text};

const SECRET: &str = "canary-value";

/// The input is an event log of Pulumi's engine.
pub fn events(input: &[u8]) {
    let mask = Mask::default();
    mask.add_text(SECRET);
    let mut events = Events::default();
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        events.take(line, &mask);
    }
    assert!(events.failed <= events.done && u64::from(events.started.max(events.done)) <= events.seen);
    assert!(events.failures.len() <= 10 && events.changed.len() <= 100);
    assert!(events.failures.iter().all(|failure| failure.message.len() <= 500));
    let (drift, errors) = (events.drift(), events.errors());
    assert!(errors.len() <= 4 << 10 && drift.resources.len() <= Drift::MAX_RESOURCES);
    let told = format!("{errors} {drift:?} {:?} {:?}", events.failures, events.pending);
    assert!(!told.contains(SECRET), "{told}");
    let _ = events.current();
}

/// The input is a secret on the first line, and Pulumi's output.
pub fn output(input: &[u8]) {
    let (secret, words) = first_line(text(input));
    let mask = Mask::default();
    mask.add_text(secret);
    let secret = secret.trim();
    for line in words.lines() {
        let plain = plain(line);
        assert_eq!(runner::plain(&plain), plain, "{line:?}");
        let masked = mask.apply(&plain);
        if secret.len() >= 4 {
            assert!(masked.split("[secret]").all(|shown| !shown.contains(secret)), "{masked:?} tells {secret:?}");
            assert!(mask.is_told_by(&format!("a {secret}{secret} b").into()) || secret.len() < 8);
        }
    }
    let at = |text: &str| text.parse::<Timestamp>().expect("a time");
    let dead = Lock {
        version: VERSION,
        host: "vm".into(),
        pid: 6625,
        not_before: at("2026-11-21T07:59:46.849Z"),
        not_after: Some(at("2026-11-21T08:05:00Z")),
        removes: false,
        earlier: Vec::new(),
    };
    // A task may write anything about its lock.
    let odd = Lock { not_before: Timestamp::MIN, not_after: Some(Timestamp::MAX), ..dead.clone() };
    for lock in [&dead, &odd] {
        assert!(!is_stale(words, lock) || words.contains("by 1 lock(s)") || words.contains("created by"), "{words:?}");
        assert!(!is_stale(words, &Lock { not_after: None, ..lock.clone() }), "{words:?}");
        assert!(conflict(words, Some(lock)).len() <= 3 * words.len() + 500, "{words:?}");
    }
}

/// The input is a file of variables.
pub fn dotenv(input: &[u8]) {
    let text = text(input);
    let known = |name: &str| (name == "HOME").then(|| "/root".to_owned());
    let found = match runner::dotenv(text, known) {
        Ok(found) => found,
        Err(error) => return assert!(error.to_string().len() < 50, "{error}"),
    };
    assert!(found.keys().all(|name| !name.is_empty() && !name.contains(['=', '\0', '\n'])), "{found:?}");
    // Single quotes preserve everything but themselves, backslashes before them, and line ends.
    let quotable: BTreeMap<_, _> = found.into_iter().filter(|(_, value)| !value.contains(['\'', '\\', '\r'])).collect();
    let written = quotable.iter().fold(String::new(), |text, (name, value)| format!("{text}export {name}='{value}'\n"));
    assert_eq!(runner::dotenv(&written, known), Ok(quotable), "{written:?}");
}
