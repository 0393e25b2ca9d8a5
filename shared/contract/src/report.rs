//! Reports about a run: progress, lock and result by its task, and the final outcome by the recorder.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Drift, Layer, RunId};

/// The maximum length of [`Lock::earlier`]. The oldest lock can still be there only if as many runs in a row died before their pulumi
/// checked for locks.
const MAX_EARLIER_LOCKS: usize = 15;

/// What pulumi writes into the backend's lock: who holds it. `tasks/…/out/lock`, written before pulumi starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Lock {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The host's name in the task.
    pub host: String,
    /// The process id in the task.
    pub pid: u32,
    /// Just before pulumi started: the lock is not older, and not newer than the end of the task.
    pub not_before: Timestamp,
    /// When pulumi was seen to be dead: by the runner that had to kill it, or by the recorder that saw the task gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// The operation removes the stack when all of it is destroyed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removes: bool,
    /// The locks that earlier dead runs may have left, newest first: a run that dies before its pulumi checks for locks removes none.
    /// Empty in what a task writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Self>,
}

impl Lock {
    /// This lock and the earlier ones.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(&self.earlier)
    }

    /// Adds the locks of an older record, without the one that this lock renews. Keeps 15 of them, the newest.
    #[must_use]
    pub fn after(self, older: Option<&Self>) -> Self {
        let process = |lock: &Self| (lock.host.clone(), lock.pid, lock.not_before);
        let others = older.into_iter().flat_map(Self::all).filter(|lock| process(lock) != process(&self));
        let earlier = others.take(MAX_EARLIER_LOCKS).map(|lock| Self { earlier: Vec::new(), ..lock.clone() }).collect();
        Self { earlier, ..self }
    }
}

/// How far a run is: `tasks/…/out/progress`, rewritten every 30 s at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Progress {
    /// [`crate::VERSION`].
    pub version: u32,
    /// When it was written.
    pub at: Timestamp,
    /// What the runner is doing.
    pub phase: Phase,
    /// Resource steps to be taken as far as is known: one for each resource that the last run left, or as many as have begun.
    #[serde(default)]
    pub planned: u32,
    /// Resource steps begun.
    pub started: u32,
    /// Resource steps ended, also those that failed.
    pub done: u32,
    /// Resource steps that failed.
    #[serde(default)]
    pub failed: u32,
    /// A resource step that is under way: `update URN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The number of chunks of the log that are stored. Absent in what earlier releases wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_chunks: Option<u16>,
    /// See [`Installed::summary`]; absent until that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<String>,
}

/// How a run got its dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Installed {
    /// `restored 98 MB in 0.6s`, `installed in 41s: no cache entry`
    pub summary: String,
    /// The layers that came from the cache.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub restored: BTreeSet<Layer>,
    /// The layers that the run stored in its folder.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stored: BTreeSet<Layer>,
    /// The size of the archives that were restored, in bytes.
    pub restored_bytes: u64,
    /// The size of the archives that were stored, in bytes.
    pub stored_bytes: u64,
    /// How long the restoring and the installation took together, in milliseconds.
    pub millis: u64,
    /// How long the storing took, in milliseconds.
    pub store_millis: u64,
    /// Whether the packages of the language were installed although the cache could have had them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
}

/// How many resources the last run of a Pulumi stack that succeeded left: `resources/…`. For the progress of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resources {
    /// [`crate::VERSION`].
    pub version: u32,
    /// As pulumi counts them, with the stack itself.
    pub count: u32,
}

/// What went wrong with a resource, in its provider's words; secrets masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceFailure {
    /// The resource.
    pub urn: String,
    /// The words, of bounded length.
    pub message: String,
}

/// The phase of a run, in order. A failure names the one it happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Getting the tree into place.
    Fetch,
    /// `pulumi install`
    Install,
    /// Login, select, config.
    Init,
    /// The operation itself.
    Run,
}

/// What the runner reports: `tasks/…/out/result`, written once, when all else is done. The only document with outputs' values in it;
/// deleted when the outcome is recorded. Has no `Debug`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunResult {
    /// [`crate::VERSION`].
    pub version: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// The stack's outputs after a successful `up`; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<BTreeMap<String, OutputValue>>,
    /// The outputs that are too large to be kept, by name: see [`RunResult::fitting`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The project that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectInfo>,
    /// A link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,
    /// Resource changes by operation (`create`, `update`, `same`, …).
    #[serde(default)]
    pub changes: BTreeMap<String, u64>,
    /// Operations that an interrupted run had begun and whose end is not known, as pulumi names them: `creating URN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_operations: Vec<String>,
    /// Resources that failed, the first ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ResourceFailure>,
    /// What a refresh that only looks found; absent of any other run, and of one that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// See [`crate::RunSpec::inputs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// How the run got its dependencies; absent if nothing was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Installed>,
    /// How long ECS pulled the images of the task, in milliseconds; absent if ECS does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_millis: Option<u64>,
    /// When the operation began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
}

impl RunResult {
    /// How a run ended of which nothing else is known.
    #[must_use]
    pub fn new(verdict: Verdict, started_at: Timestamp, ended_at: Timestamp) -> Self {
        Self {
            version: crate::VERSION,
            verdict,
            outputs: None,
            left_out: Vec::new(),
            project: None,
            permalink: None,
            changes: BTreeMap::new(),
            pending_operations: Vec::new(),
            failures: Vec::new(),
            drift: None,
            inputs: None,
            installed: None,
            pull_millis: None,
            started_at,
            ended_at,
        }
    }
}

/// An output of the stack.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OutputValue {
    /// The value, in clear.
    pub value: Value,
    /// Pulumi knows it as secret, or it has something in it that came from a Secret.
    pub secret: bool,
}

/// The project that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProjectInfo {
    /// The project's name.
    pub name: String,
    /// The runtime's name.
    pub runtime: String,
}

/// A project's file, one of [`crate::PROJECT_FILES`], as far as it says which project it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProjectFile {
    name: String,
    runtime: Runtime,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Runtime {
    Name(String),
    Options { name: String },
}

impl From<ProjectFile> for ProjectInfo {
    fn from(ProjectFile { name, runtime: Runtime::Name(runtime) | Runtime::Options { name: runtime } }: ProjectFile) -> Self {
        Self { name, runtime }
    }
}

/// Why a run failed, as a condition says it.
pub mod reason {
    /// Somebody else holds the stack's lock. PKO's word, like the next two.
    pub const UPDATE_CONFLICT: &str = driftless_core::StackReason::UpdateConflict.as_str();
    /// The backend does not take the token.
    pub const INVALID_ACCESS_TOKEN: &str = "InvalidAccessToken";
    /// A backend of files or buckets has the layout without projects, which newer versions of pulumi refuse.
    pub const LEGACY_STATE: &str = "LegacyState";
    /// No sign of another one.
    pub const UNKNOWN: &str = "Unknown";
    /// The task was told to stop.
    pub const INTERRUPTED: &str = "Interrupted";
    /// It said nothing for [`crate::RunLimits::silence_seconds`].
    pub const SILENT: &str = "Silent";
    /// It took longer than [`crate::RunLimits::max_seconds`].
    pub const TIMED_OUT: &str = "TimedOut";
    /// The bucket failed the runner before Pulumi began.
    pub const PLATFORM_FAILURE: &str = driftless_core::StackReason::PlatformFailure.as_str();
    /// Pulumi cannot run, because the image is not built for the task's processor. ECS starts such a task, if the image is for one processor
    /// alone.
    pub const OTHER_ARCHITECTURE: &str = "OtherArchitecture";
    /// All that a runner gives.
    pub const ALL: [&str; 9] = [
        UPDATE_CONFLICT,
        INVALID_ACCESS_TOKEN,
        LEGACY_STATE,
        UNKNOWN,
        INTERRUPTED,
        SILENT,
        TIMED_OUT,
        PLATFORM_FAILURE,
        OTHER_ARCHITECTURE,
    ];
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", tag = "kind")]
pub enum Verdict {
    /// As asked.
    #[serde(rename_all = "camelCase")]
    Succeeded {},
    /// pulumi, or the runner's preparation for it, failed.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Where.
        phase: Phase,
        /// The condition's reason: one of [`reason::ALL`].
        reason: String,
        /// pulumi's own words, secrets masked.
        message: String,
    },
    /// There is no report: the task is gone, or never was.
    #[serde(rename_all = "camelCase")]
    Aborted {
        /// What is known about why.
        message: String,
    },
}

/// How the run ended, for good: `runs/…/outcome`, written once, by the recorder. No secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Outcome {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// How it ended.
    pub verdict: Verdict,
    /// The SHA-256 of the result that this was made from, in hex: the outputs Secret is made from that one and no other. Absent if
    /// the task reported nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_sha256: Option<String>,
    /// The outputs, a secret one as the string `[secret]`, and one that is too large as a note; absent if the operation has none to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<BTreeMap<String, Value>>,
    /// The project that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectInfo>,
    /// A link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,
    /// Resource changes by operation.
    #[serde(default)]
    pub changes: BTreeMap<String, u64>,
    /// Operations that an interrupted run had begun and whose end is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_operations: Vec<String>,
    /// Resources that failed, the first ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ResourceFailure>,
    /// What a refresh that only looks found; absent of any other run, and of one that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// See [`crate::RunSpec::is_preview`]; of what the launcher knew, not of what the task said.
    #[serde(default)]
    pub preview: bool,
    /// The platform ended it, as ECS says: Pulumi never began, or its task was taken away. Earlier releases knew only of Fargate Spot.
    #[serde(default, alias = "reclaimed", skip_serializing_if = "std::ops::Not::not")]
    pub platform_failure: bool,
    /// See [`crate::RunSpec::inputs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// How the run got its dependencies; absent if nothing was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Installed>,
    /// See [`RunResult::pull_millis`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_millis: Option<u64>,
    /// Whether Pulumi's operation may have begun. Absent in the records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operated: Option<bool>,
    /// When the operation began; of an aborted one, when the owner's ticket was taken. Absent if Pulumi never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended, or was seen to be gone.
    pub ended_at: Timestamp,
    /// When it was recorded. Two recorders of one run differ in it, so that only one of them finds its own record. Absent in the records of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_an_output_is_read_as_it_was_written() {
        let text = r#"{"value":0.9856906946328695,"secret":false}"#;
        let output: OutputValue = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&output).unwrap(), text);
    }

    #[test]
    fn lock_is_added_before_the_older_ones_and_the_oldest_of_too_many_go() {
        let lock = |pid| Lock {
            version: crate::VERSION,
            host: "h".into(),
            pid,
            not_before: Timestamp::UNIX_EPOCH,
            not_after: None,
            removes: false,
            earlier: Vec::new(),
        };
        let pids = |lock: &Lock| lock.all().map(|lock| lock.pid).collect::<Vec<_>>();
        let mut kept = lock(0);
        for pid in 1..=20 {
            kept = lock(pid).after(Some(&kept));
        }
        assert_eq!(pids(&kept), (5..=20).rev().collect::<Vec<_>>());
        let renewed = Lock { not_after: Some(Timestamp::UNIX_EPOCH), earlier: vec![lock(99)], ..lock(20) }.after(Some(&kept));
        assert_eq!((pids(&renewed), renewed.not_after), (pids(&kept), Some(Timestamp::UNIX_EPOCH)));
        assert_eq!(Lock { earlier: vec![lock(99)], ..lock(1) }.after(None), lock(1));
    }
}
