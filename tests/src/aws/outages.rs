//! Errors that AWS answers calls with: throttling, unavailability, refusals, and lost answers of calls that it has carried out.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// A share of the calls of one kind fails.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// The service and the operation, such as `ecs RunTask`; of S3 the method, such as `s3 GET`. A service alone stands for all its calls:
    /// `s3`, `sqs`, `ecs`, `secretsmanager` or `sts`.
    pub call: String,
    /// Only calls with this text in the path, the body, the task definition that they name, or the subject of their token. The path of a conditional write to S3 ends
    /// with ` if-none-match` here.
    pub about: String,
    /// The share of the calls that fail, spread evenly, beginning with the first. 0 ends the outage.
    pub percent: u32,
    /// The status of the answer.
    pub status: u16,
    /// The code of the error, such as `ThrottlingException`.
    pub code: String,
    /// The message of the error.
    pub message: String,
    /// The call is carried out, and the caller learns only this error, as when an answer is lost on its way.
    pub lost: bool,
    /// After how many seconds the outage ends by itself; without it, `percent: 0` ends it.
    pub seconds: Option<u64>,
}

impl Outage {
    fn is_of(&self, call: &str, text: &str) -> bool {
        let service = call.split_once(' ').map_or(call, |(service, _)| service);
        (self.call == call || self.call == service) && text.contains(&self.about)
    }
}

/// The outages of a world, each with its begin and the number of its calls so far.
#[derive(Default)]
pub struct Outages(Mutex<Vec<(Outage, Instant, u32)>>);

impl Outages {
    /// Begins an outage, in place of one of the same calls.
    pub fn set(&self, outage: Outage) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, ..)| (&other.call, &other.about) != (&outage.call, &outage.about));
        if outage.percent > 0 {
            all.push((outage, Instant::now(), 0));
        }
    }

    /// Ends the outages that concern all tests: those about a text concern one test.
    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(outage, ..)| !outage.about.is_empty());
    }

    /// The outage that a call meets, if it meets one.
    pub fn met_by(&self, call: &str, text: &str) -> Option<Outage> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts =
            |outage: &Outage, since: Instant| outage.seconds.is_none_or(|seconds| since.elapsed() < Duration::from_secs(seconds));
        let (outage, _, calls) = all.iter_mut().find(|(outage, since, _)| outage.is_of(call, text) && lasts(outage, *since))?;
        let failed = |calls: u32| calls.saturating_mul(outage.percent).div_ceil(100);
        let fails = failed(calls.saturating_add(1)) > failed(*calls);
        *calls = calls.saturating_add(1);
        fails.then(|| outage.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(call: &str, about: &str, percent: u32) -> Outage {
        let (status, code, message) = (400, "ThrottlingException".into(), "Rate exceeded".into());
        Outage { call: call.into(), about: about.into(), percent, status, code, message, ..Outage::default() }
    }

    #[test]
    fn share_of_the_calls_fails() {
        for (percent, failed) in [(100, 40), (90, 36), (50, 20), (1, 1)] {
            let outages = Outages::default();
            outages.set(outage("ecs RunTask", "", percent));
            let fails: Vec<_> = (0..40).map(|_| outages.met_by("ecs RunTask", "").is_some()).collect();
            assert_eq!((fails[0], fails.iter().filter(|fails| **fails).count()), (true, failed), "{percent}");
        }
    }

    #[test]
    fn outage_is_of_its_calls_alone_until_it_ends() {
        let outages = Outages::default();
        outages.set(outage("s3", "", 100));
        outages.set(outage("ecs RunTask", "image", 100));
        let meets = |call: &str, text: &str| outages.met_by(call, text).is_some();
        assert!(meets("s3 GET", "/b/k") && meets("s3 PUT", "/b/k") && meets("ecs RunTask", "an image"));
        assert!(!meets("sqs SendMessage", "") && !meets("ecs RunTask", "") && !meets("ecs StopTask", "image"));
        outages.reset();
        assert!(!meets("s3 GET", "/b/k") && meets("ecs RunTask", "image"));
        outages.set(outage("ecs RunTask", "image", 0));
        assert!(!meets("ecs RunTask", "image"));
        for (seconds, lasts) in [(0, false), (3600, true)] {
            outages.set(Outage { seconds: Some(seconds), ..outage("s3", "", 100) });
            assert_eq!(meets("s3 GET", "/b/k"), lasts, "{seconds} s");
        }
    }
}
