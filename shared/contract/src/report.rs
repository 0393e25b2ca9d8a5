//! Reports about a run: progress, lock and result by its task, and the final outcome by the
//! recorder.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    iter,
};

use driftless_core::{FailureReason, OutputKind};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Drift, Layer, PlannedChanges, PreviewedChange, RunId};

/// The maximum length of [`Lock::earlier`]. The oldest lock can only remain if this many runs in a
/// row died before Pulumi checked for locks.
const MAX_EARLIER_LOCKS: usize = 15;

/// The content of the backend's lock that identifies its owner. `tasks/…/out/lock`, written before
/// Pulumi starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Lock {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The host's name in the task.
    pub host: String,
    /// The process id in the task.
    pub pid: u32,
    /// Just before Pulumi started. The lock is not older than this, and not newer than the end of
    /// the task.
    pub not_before: Timestamp,
    /// When Pulumi was seen to be dead: by the runner that had to kill it, or by the recorder that
    /// found the task gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// The operation removes the stack after it has destroyed all resources.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removes: bool,
    /// The locks that earlier dead runs may have left, newest first: a run that dies before Pulumi
    /// checks for locks removes none. Empty in what a task writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Self>,
}

impl Lock {
    /// This lock and the earlier ones.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(&self.earlier)
    }

    /// Adds the locks of an older record, without the one that this lock renews. Keeps 15 of them,
    /// the newest.
    #[must_use]
    pub fn after(self, older: Option<&Self>) -> Self {
        let process = |lock: &Self| (lock.host.clone(), lock.pid, lock.not_before);
        let others = older.into_iter().flat_map(Self::all).filter(|lock| process(lock) != process(&self));
        let earlier = others.take(MAX_EARLIER_LOCKS).map(|lock| Self { earlier: Vec::new(), ..lock.clone() }).collect();
        Self { earlier, ..self }
    }
}

/// The progress of a run: `tasks/…/out/progress`, rewritten every 30 s at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Progress {
    /// [`crate::VERSION`].
    pub version: u32,
    /// When it was written.
    pub at: Timestamp,
    /// What the runner does now.
    pub phase: Phase,
    /// The expected number of resource steps: one for each resource that the last run left, or the
    /// steps started if that is more.
    #[serde(default)]
    pub planned: u32,
    /// Resource steps that started.
    pub started: u32,
    /// Resource steps that ended, including the failed ones.
    pub done: u32,
    /// Resource steps that failed.
    #[serde(default)]
    pub failed: u32,
    /// A resource step in progress: `update URN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The number of stored log chunks. Absent in documents of earlier releases.
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
    /// The run failed because its packages or plugins cannot be used. Absent in the reports of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unusable: bool,
}

/// How many resources the last successful run of a Pulumi stack left: `resources/…`. Used for the
/// progress of the next run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resources {
    /// [`crate::VERSION`].
    pub version: u32,
    /// Pulumi's count, which includes the stack itself.
    pub count: u32,
}

/// The objects that receive outputs of a Stack: `outputs/…`. One that the Stack no longer names is
/// deleted after its next run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OutputObjects {
    /// [`crate::VERSION`].
    pub version: u32,
    /// Kind and name of each.
    pub objects: BTreeSet<(OutputKind, String)>,
}

/// The failure of a resource, as its provider reports it; secrets masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceFailure {
    /// The resource.
    pub urn: String,
    /// The provider's message, of bounded length.
    pub message: String,
}

/// A step of a run that changed a resource, or tried to. Secrets masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceStep {
    /// The resource.
    pub urn: String,
    /// Pulumi's operation: `create`, `update`, `create-replacement`, …
    pub operation: String,
    /// When it started. Pulumi's events have whole seconds.
    pub started_at: Timestamp,
    /// How long it took, in seconds.
    pub seconds: u64,
    /// The step failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl ResourceStep {
    /// The maximum number of steps in a report. They become part of the status of an Update.
    pub const MAX: usize = 50;
    const MAX_URN_BYTES: usize = 1 << 10;
    const MAX_OPERATION_BYTES: usize = 64;

    /// The steps that took longest, in the order in which they started. A step whose resource has a
    /// name of more than 1 KiB is left out.
    #[must_use]
    pub fn longest(mut steps: Vec<Self>) -> Vec<Self> {
        steps.retain(|step| step.urn.len() <= Self::MAX_URN_BYTES && step.operation.len() <= Self::MAX_OPERATION_BYTES);
        // Of steps that took as long, a failed one and then the earlier one is kept.
        steps.sort_by_key(|step| Reverse((step.failed, step.seconds)));
        steps.truncate(Self::MAX);
        steps.sort_by_key(|step| step.started_at);
        steps
    }
}

/// The phases of a run, in order. A failure names its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The tree is written to disk.
    Fetch,
    /// `pulumi install`
    Install,
    /// Login, select, config.
    Init,
    /// The operation itself.
    Run,
}

/// The result that the runner reports: `tasks/…/out/result`, written once, when all else is done.
/// The only document with the values of outputs; deleted when the outcome is recorded. Has no
/// `Debug`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunResult {
    /// [`crate::VERSION`].
    pub version: u32,
    /// How the run ended.
    pub verdict: Verdict,
    /// The stack's outputs after a successful `up`; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<BTreeMap<String, OutputValue>>,
    /// The names of the outputs that are too large to keep: see [`RunResult::fitting`].
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
    /// Operations that an interrupted run left pending, as Pulumi names them: `creating URN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_operations: Vec<String>,
    /// Resources that failed, the first ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ResourceFailure>,
    /// See [`ResourceStep::longest`]; empty for a preview and a drift check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ResourceStep>,
    /// The drift that a drift check found; absent for any other run, and for a failed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// The first resources that a preview without a plan would change: at most
    /// [`PreviewedChange::MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_change: Vec<PreviewedChange>,
    /// The plan of a run with [`crate::RunSpec::plan`]; absent if the run failed before it was
    /// made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedChanges>,
    /// See [`crate::RunSpec::inputs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// How the run got its dependencies; absent if nothing was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Installed>,
    /// How long ECS pulled the images of the task, in milliseconds; absent if ECS does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_millis: Option<u64>,
    /// When the operation started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
}

impl RunResult {
    /// The result of a run of which only the end is known.
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
            steps: Vec::new(),
            drift: None,
            would_change: Vec::new(),
            plan: None,
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
    /// Pulumi marks it secret, or it contains a value from a Secret.
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

/// A project's file, one of [`crate::PROJECT_FILES`], as far as it identifies the project.
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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", tag = "kind")]
pub enum Verdict {
    /// It succeeded.
    #[serde(rename_all = "camelCase")]
    Succeeded {},
    /// Pulumi failed, or the runner's preparation for it.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// The phase of the failure.
        phase: Phase,
        /// The condition's reason.
        reason: FailureReason,
        /// Pulumi's own message, secrets masked.
        message: String,
    },
    /// There is no report: the task is gone, or never existed.
    #[serde(rename_all = "camelCase")]
    Aborted {
        /// The known cause.
        message: String,
    },
}

/// The final outcome of the run: `runs/…/outcome`, written once, by the recorder. No secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Outcome {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// How it ended.
    pub verdict: Verdict,
    /// The SHA-256 of the result that the outcome was made from, in hex: the outputs Secret is made
    /// from that result only. Absent if the task reported nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_sha256: Option<String>,
    /// The outputs: a secret one as the string `[secret]`, one that is too large as a note. Absent
    /// if the operation reports none.
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
    /// Operations that an interrupted run left pending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_operations: Vec<String>,
    /// Resources that failed, the first ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ResourceFailure>,
    /// See [`RunResult::steps`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ResourceStep>,
    /// The drift that a drift check found; absent for any other run, and for a failed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// See [`RunResult::would_change`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_change: Vec<PreviewedChange>,
    /// The plan that the run made; absent for a run that was asked for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedChanges>,
    /// See [`crate::RunSpec::is_preview`]; from the launcher, not from the task's report.
    #[serde(default)]
    pub preview: bool,
    /// The platform ended the run, by the facts from ECS: Pulumi never started, or the task was
    /// stopped from outside. Earlier releases only recorded Fargate Spot.
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
    /// Whether Pulumi's operation may have started. Absent in the records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operated: Option<bool>,
    /// When the operation started; for an aborted run, when the task became the owner. Absent if
    /// Pulumi never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the run ended, or was found to be gone.
    pub ended_at: Timestamp,
    /// When the outcome was recorded. Concurrent recorders of one run differ in it, so that only
    /// one of them finds its own record. Absent in the records of earlier releases.
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
    fn newest_lock_is_first_and_the_oldest_are_dropped() {
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
