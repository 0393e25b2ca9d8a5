//! Errors of AWS: throttling, unavailability, refusals, and lost answers of calls that were carried
//! out. A call can also be the last act of a process.

use std::{
    collections::HashSet,
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A share of the calls of one kind fails.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// The service and the operation, such as `ecs RunTask`; for S3 the method, such as `s3 GET`. A
    /// service alone stands for all its calls: `s3`, `sqs`, `ecs`, `secretsmanager` or `sts`.
    pub call: String,
    /// Only calls by the role with this logical id, such as `LauncherRole`; without it, all.
    pub by: Option<String>,
    /// Only calls with this text, in which `*` stands for any text, in the path, the body, the task
    /// definition that they name, or the subject of their token. Here the path of a conditional
    /// write to S3 ends with ` if-none-match`.
    pub about: String,
    /// The percentage of calls that fail, spread evenly, starting with the first. 0 ends the
    /// outage.
    pub percent: u32,
    /// The status of the answer.
    pub status: u16,
    /// The code of the error, such as `ThrottlingException`.
    pub code: String,
    /// The message of the error.
    pub message: String,
    /// The call is carried out, and the caller only gets this error, as when an answer is lost on
    /// its way.
    pub lost: bool,
    /// The process that makes the call, a function or a forwarder, is killed (SIGKILL) before it
    /// gets an answer. Such an end of a function raises no alarm.
    pub kills: bool,
    /// After how many seconds the outage ends by itself; without it, `percent: 0` ends it.
    pub seconds: Option<u64>,
}

impl Outage {
    fn is_of(&self, caller: Option<&str>, call: &str, text: &str) -> bool {
        let service = call.split_once(' ').map_or(call, |(service, _)| service);
        (self.call == call || self.call == service) && (self.by.is_none() || self.by.as_deref() == caller) && self.is_about(text)
    }

    fn is_about(&self, text: &str) -> bool {
        let mut parts = self.about.split('*');
        parts.try_fold(text, |rest, part| rest.split_once(part).map(|(_, rest)| rest)).is_some()
    }
}

/// The outages of a world.
#[derive(Default)]
pub struct Outages {
    /// Each with its start and the number of its calls so far.
    all: Mutex<Vec<(Outage, Instant, u32)>>,
    /// The ids of the access keys of the processes that were killed.
    killed: Mutex<HashSet<String>>,
}

impl Outages {
    /// Starts an outage, which replaces one of the same calls.
    pub fn set(&self, outage: Outage) {
        let mut all = self.all();
        let of = |outage: &Outage| (outage.by.clone(), outage.call.clone(), outage.about.clone());
        all.retain(|(other, ..)| of(other) != of(&outage));
        if outage.percent > 0 {
            all.push((outage, Instant::now(), 0));
        }
    }

    /// Ends the outages that concern all tests; an outage about a text concerns one test.
    pub fn reset(&self) {
        self.all().retain(|(outage, ..)| !outage.about.is_empty());
    }

    /// The outage that a call meets, if any. The caller is the logical id of a role.
    pub fn met_by(&self, caller: Option<&str>, call: &str, text: &str) -> Option<Outage> {
        let mut all = self.all();
        let lasts =
            |outage: &Outage, since: Instant| outage.seconds.is_none_or(|seconds| since.elapsed() < Duration::from_secs(seconds));
        let (outage, _, calls) =
            all.iter_mut().find(|(outage, since, _)| outage.is_of(caller, call, text) && lasts(outage, *since))?;
        let failed = |calls: u32| calls.saturating_mul(outage.percent).div_ceil(100);
        let fails = failed(calls.saturating_add(1)) > failed(*calls);
        *calls = calls.saturating_add(1);
        fails.then(|| outage.clone())
    }

    /// Kills the process that was started with this access key. It may have had more calls in
    /// progress.
    pub fn kill(&self, access_key_id: &str) -> Result<()> {
        if self.has_killed(access_key_id) {
            return Ok(());
        }
        let variable = format!("AWS_ACCESS_KEY_ID={access_key_id}");
        let has_key = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
        };
        let processes = fs::read_dir("/proc")?.flatten();
        let mut pids = processes.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?));
        let pid = pids.find(has_key).context("no process was started with this key")?;
        self.killed.lock().unwrap_or_else(PoisonError::into_inner).insert(access_key_id.to_owned());
        kill_process(pid, Signal::KILL).context("killing the caller")
    }

    /// Returns whether the process with this access key was killed.
    pub fn has_killed(&self, access_key_id: &str) -> bool {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner).contains(access_key_id)
    }

    fn all(&self) -> MutexGuard<'_, Vec<(Outage, Instant, u32)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
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
            let fails: Vec<_> = (0..40).map(|_| outages.met_by(None, "ecs RunTask", "").is_some()).collect();
            assert_eq!((fails[0], fails.iter().filter(|fails| **fails).count()), (true, failed), "{percent}");
        }
    }

    #[test]
    fn outage_is_of_its_calls_alone_until_it_ends() {
        let outages = Outages::default();
        outages.set(outage("s3", "", 100));
        outages.set(outage("ecs RunTask", "image", 100));
        let meets = |call: &str, text: &str| outages.met_by(None, call, text).is_some();
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

    #[test]
    fn outage_is_of_one_role_and_of_texts_in_their_order() {
        let outages = Outages::default();
        outages.set(Outage { by: Some("LauncherRole".into()), ..outage("sqs", "Update*team*app-", 100) });
        let meets = |by: Option<&str>, text: &str| outages.met_by(by, "sqs SendMessage", text).is_some();
        assert!(meets(Some("LauncherRole"), "kind: Update, namespace: team, name: app-1"));
        assert!(!meets(Some("LauncherRole"), "kind: Stack, namespace: team, name: app-1"));
        assert!(!meets(Some("LauncherRole"), "namespace: team, kind: Update, name: app-1"));
        assert!(!meets(Some("RecorderRole"), "kind: Update, namespace: team, name: app-1"));
        assert!(!meets(None, "kind: Update, namespace: team, name: app-1"));
    }

    #[test]
    fn process_that_has_a_key_is_killed() {
        let outages = Outages::default();
        let mut child = std::process::Command::new("sleep").arg("60").env("AWS_ACCESS_KEY_ID", "ASIATEST").spawn().unwrap();
        // The kernel shows the environment a moment after the child has started.
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = outages.kill("ASIATEST") {
            assert!(Instant::now() < deadline, "{error:?}");
            std::thread::yield_now();
        }
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(Signal::KILL.as_raw()));
        assert!(outages.has_killed("ASIATEST") && !outages.has_killed("ASIAOTHER") && outages.kill("ASIAOTHER").is_err());
    }
}
