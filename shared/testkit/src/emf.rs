//! The rules of `CloudWatch`'s embedded metric format, and the lines that a process writes in it.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use driftless_telemetry::metrics;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tracing::Dispatch;
use tracing_subscriber::layer::SubscriberExt as _;

/// The units of the specification, except for those of rates.
const UNITS: [&str; 16] = [
    "Seconds",
    "Microseconds",
    "Milliseconds",
    "Bytes",
    "Kilobytes",
    "Megabytes",
    "Gigabytes",
    "Terabytes",
    "Bits",
    "Kilobits",
    "Megabits",
    "Gigabits",
    "Terabits",
    "Percent",
    "Count",
    "None",
];
/// The maximum size of a log event, in bytes.
const MAX_LINE: usize = 256 << 10;

/// With these no dispatcher is ever the only one. While one is, tracing asks the first thread at a
/// call site whether any subscriber is interested, and uses its answer for all threads: a
/// concurrent test would then decide.
static OTHERS: LazyLock<[Dispatch; 2]> = LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));

/// The lines of metrics that `process` writes, in order.
///
/// # Panics
/// If a line is against the specification.
#[expect(clippy::panic, reason = "a mistake of what is tested")]
pub fn written<T>(process: impl FnOnce() -> T) -> (T, Vec<Value>) {
    LazyLock::force(&OTHERS);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let layer = metrics::lines(move |line| kept.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned()));
    let answer = tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), process);
    let lines = std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
    let checked = lines.iter().map(|line| check(line, None).unwrap_or_else(|why| panic!("{why}: {line}")));
    (answer, checked.collect())
}

/// Returns the line if `CloudWatch` makes metrics of it, else the rule that it breaks. With `now`,
/// its age is checked too.
pub fn check(line: &str, now: Option<Timestamp>) -> Result<Value, String> {
    let rule = |holds: bool, broken: &str| if holds { Ok(()) } else { Err(broken.to_owned()) };
    rule(line.len() <= MAX_LINE && !line.contains('\n'), "more than one log event")?;
    let event: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let root = event.as_object().ok_or("not an object")?;
    let at = event["_aws"]["Timestamp"].as_i64().and_then(|at| Timestamp::from_millisecond(at).ok());
    let age = now.zip(at).map(|(now, at)| now.duration_since(at));
    let young = |age: SignedDuration| age > SignedDuration::from_hours(-2) && age < SignedDuration::from_hours(14 * 24);
    rule(at.is_some() && age.is_none_or(young), "_aws.Timestamp is no time in milliseconds, or too long ago, or to come")?;
    let directives = event["_aws"]["CloudWatchMetrics"].as_array().ok_or("_aws.CloudWatchMetrics is no list")?;
    rule(!directives.is_empty(), "no directive")?;
    for directive in directives {
        only(directive, &["Namespace", "Dimensions", "Metrics"])?;
        rule(directive["Namespace"].as_str().is_some_and(|name| (1..=255).contains(&name.len())), "the namespace")?;
        let sets = directive["Dimensions"].as_array().ok_or("Dimensions is no list")?;
        rule(!sets.is_empty(), "no set of dimensions")?;
        for set in sets {
            let set = set.as_array().ok_or("a set of dimensions is no list")?;
            rule(set.len() <= 30, "more than 30 dimensions")?;
            for name in set {
                let name = name.as_str().ok_or("a dimension's name is no string")?;
                rule((1..=250).contains(&name.len()) && name.is_ascii() && !name.starts_with(':'), "a dimension's name")?;
                let value =
                    root.get(name).and_then(Value::as_str).ok_or(format!("{name}, a dimension, is no string on the root"))?;
                rule((1..=1024).contains(&value.len()) && value.is_ascii() && !value.trim().is_empty(), "a dimension's value")?;
            }
        }
        let metrics = directive["Metrics"].as_array().ok_or("Metrics is no list")?;
        rule((1..=100).contains(&metrics.len()), "0 or more than 100 metrics")?;
        for metric in metrics {
            only(metric, &["Name", "Unit"])?;
            let name = metric["Name"].as_str().ok_or("a metric's name is no string")?;
            rule((1..=255).contains(&name.len()) && name.is_ascii(), "a metric's name")?;
            rule(metric["Unit"].as_str().is_some_and(|unit| UNITS.contains(&unit)), "a unit")?;
            rule(root.get(name).is_some_and(Value::is_number), &format!("{name}, a metric, is no number on the root"))?;
        }
    }
    Ok(event)
}

fn only(value: &Value, members: &[&str]) -> Result<(), String> {
    let found: BTreeSet<&str> = value.as_object().ok_or("not an object")?.keys().map(String::as_str).collect();
    let known: BTreeSet<&str> = members.iter().copied().collect();
    if found == known { Ok(()) } else { Err(format!("the members {found:?} in place of {known:?}")) }
}
