//! The program inside the task: waits for its spec, writes the tree to disk, runs `pulumi`, reports
//! progress, and stores the result.
//!
//! Outside the task it only knows its own folder in the bucket, and there it may only read `in/`
//! and write `out/`. A task without its own run never gets a spec, and ends. Pulumi's output goes
//! to standard output, line by line, with every secret of the run masked; the task's own
//! credentials do not reach Pulumi.

mod archive;
mod arguments;
mod cache;
mod credentials;
mod dotenv;
mod environment;
mod events;
mod failure;
mod files;
mod hydrate;
mod identity;
mod install;
mod lock;
mod log;
mod mask;
mod passphrase;
mod pipe;
mod places;
mod plan;
mod pulumi;
mod s3;
mod selection;
mod session;
mod settings;
mod stop;
mod task;

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::pending,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
pub use credentials::CredentialsEndpoint;
#[doc(hidden)]
pub use dotenv::parse as dotenv;
use driftless_contract::{
    Document, EXIT_NO_RUN, EXIT_REFUSED, EXIT_UNREACHABLE, Identity, InvalidMessage, Key, Phase, Progress, RunResult, RunSpec,
    VERSION, Verdict, keys, to_json,
};
use failure::Failure;
use jiff::Timestamp;
use log::Log;
pub use s3::{BucketEndpoint, StoreError};
use session::{Gauge, Report, Session, Steps};
use stop::{Stop, asked};
pub use task::Settings;
use task::Task;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
#[doc(hidden)]
pub use {
    events::Events,
    lock::{conflict, is_stale},
    mask::Mask,
    pulumi::plain,
};

/// The launcher writes the spec last, seconds after it started the task. After this time it does
/// not come any more.
const SPEC_WITHIN: Duration = Duration::from_mins(10);

/// A task that is stopped this long after its start without a spec was denied its folder, or never
/// got a run.
const SPEC_IS_LATE: Duration = Duration::from_mins(1);

/// Progress is written this often, and when Pulumi and the operation start, whether it changed or
/// not: silence means that the task is dead.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// A result that cannot be stored in this time is lost, and the recorder finds the run dead.
const RESULT_WITHIN: Duration = Duration::from_mins(10);

impl Settings {
    fn create_scratch(&self) -> Result<(), Error> {
        let path = self.scratch();
        let created = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path);
        created.map_err(|source| Error::Scratch { path, source })
    }
}

/// Why no result was stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another task owns the run, it was abandoned, or S3 denies the read: S3 answers the same in
    /// all three cases.
    #[error("task received no run within 10m; another task owns the run, or the bucket denies the read")]
    NoRun(#[source] StoreError),
    /// The task was stopped before it had a run.
    #[error("task was stopped before it received a run")]
    Stopped {
        /// Long after its start: S3 denies the read of the spec, or the launcher did not write it.
        late: bool,
    },
    /// ECS does not report which task this is.
    #[error("cannot read the task's metadata")]
    Metadata(#[source] reqwest::Error),
    /// The bucket or its credentials failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The container has no writable directory.
    #[error("cannot write to {path:?}")]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Returns the exit code from which the recorder, through ECS, learns why there is no report.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoRun(_) | Self::Stopped { late: true } => EXIT_NO_RUN,
            Self::Store(StoreError::Status { .. }) => EXIT_REFUSED,
            Self::Store(StoreError::Transport(_) | StoreError::Credentials(_)) => EXIT_UNREACHABLE,
            Self::Store(StoreError::Request(_)) | Self::Stopped { late: false } | Self::Metadata(_) | Self::Scratch { .. } => 1,
        }
    }
}

/// Carries out the run of this task. Returns `Ok` when a result is stored, even that of a failed
/// run. When `stop` becomes true, Pulumi is interrupted and the result is stored; without a run
/// there is none to store.
pub async fn run(settings: &Settings, mut stop: watch::Receiver<bool>) -> Result<(), Error> {
    let (since, is_absent) = (Instant::now(), Cell::new(false));
    let (task, folder, spec) = tokio::select! {
        biased;
        begun = begin(settings, &is_absent) => begun?,
        () = asked(&mut stop) => return Err(stopped(since.elapsed(), is_absent.get())),
    };
    settings.create_scratch()?;
    let gauge = Gauge {
        phase: Cell::new(Phase::Fetch),
        steps: RefCell::default(),
        dependencies: RefCell::default(),
        due: Notify::new(),
        started: Cell::new(false),
        began: Cell::new((settings.now)()),
    };
    let log = Log::default();
    let put_log = async |number, text| folder.put(&folder.keys.log_chunk(number), text, true).await;
    let put_live = async |text| folder.put(&folder.keys.live_log(), text, false).await;
    let mut report = Report::default();
    let steps = async {
        let spec: RunSpec = spec.map_err(Failure::unknown)?;
        report.inputs.clone_from(&spec.inputs);
        let identity = if spec.identity {
            tokio::select! {
                identity = identity(&folder) => Some(identity?),
                () = asked(&mut stop) => return Err(Stop::asked().why),
            }
        } else {
            None
        };
        let session = Session::new(settings, &spec, identity, &task.image, &folder, &gauge, &log).map_err(Failure::unknown)?;
        Box::pin(session.run(&mut report, &mut stop)).await
    };
    let mut live = pin!(log.show(&put_live));
    let ended = tokio::select! {
        ended = steps => ended,
        never = report_progress(&folder, &gauge, &log, settings.now) => match never {},
        never = log.keep(&put_log) => match never {},
        never = async { live.as_mut().await; pending().await } => match never {},
    };
    let result = RunResult { pull_millis: task.pull_millis, ..result(ended, report, &gauge, &log, (settings.now)()) };
    let result = to_json(&result.fitting());
    // Before the result, after which the recorder copies the log for the last time.
    log.finish(&put_log, live).await;
    // A stop does not prevent the result from being stored.
    let key = folder.keys.result();
    let put = || folder.put(&key, result.clone(), true);
    let back_off = ExponentialBuilder::default().without_max_times().with_total_delay(Some(RESULT_WITHIN));
    Ok(put.retry(back_off).when(StoreError::passes).await?)
}

/// Returns why a task without a run was stopped: `is_absent` is S3's last answer about the spec.
fn stopped(waited: Duration, is_absent: bool) -> Error {
    Error::Stopped { late: is_absent && waited > SPEC_IS_LATE }
}

/// Waits for a run: the task's folder and the spec.
async fn begin(
    settings: &Settings,
    is_absent: &Cell<bool>,
) -> Result<(Task, s3::Folder, Result<RunSpec, InvalidMessage>), Error> {
    let client = s3::client(settings.certificates.as_deref())?;
    let task = Task::read(&client, &settings.metadata).await.map_err(Error::Metadata)?;
    let provider = credentials::Provider::new(client.clone(), settings.credentials.clone());
    let keys = keys::task(&settings.role_id, &task.arn);
    let folder = s3::Folder::new(client, provider, settings.bucket.clone(), keys, settings.now);
    match given(&folder, &folder.keys.spec(), is_absent).await {
        Ok(spec) => Ok((task, folder, spec)),
        Err(error) if error.is_absent() => Err(Error::NoRun(error)),
        Err(error) => {
            let Failure { reason, message } = Failure::platform(&error);
            let now = (settings.now)();
            let result = RunResult::new(Verdict::Failed { phase: Phase::Fetch, reason, message }, now, now);
            // If the spec cannot be read, the result may not be writable either: the log has the
            // error in any case.
            if let Err(unwritten) = folder.put(&folder.keys.result(), to_json(&result), true).await {
                log::print(&format!("driftless: cannot write the result: {unwritten}"));
            }
            Err(error.into())
        }
    }
}

/// Waits for a document of the launcher, and records whether S3's last answer was that it is
/// absent.
async fn given<D: Document>(
    folder: &s3::Folder,
    key: &Key<D>,
    is_absent: &Cell<bool>,
) -> Result<Result<D, InvalidMessage>, StoreError> {
    let once = || async { Ok(folder.get(key).await?.bytes().await?) };
    let back_off = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_factor(1.3)
        .with_max_delay(Duration::from_secs(2))
        .without_max_times()
        .with_total_delay(Some(SPEC_WITHIN));
    let again = |error: &StoreError| {
        is_absent.set(error.is_absent());
        error.is_absent() || error.passes()
    };
    let bytes = once.retry(back_off).when(again).await?;
    Ok(D::parse(&bytes))
}

async fn identity(folder: &s3::Folder) -> Result<Identity, Failure> {
    let unread = |error: &dyn std::fmt::Display| format!("cannot read the identity of the program: {error}");
    let identity = given(folder, &folder.keys.identity(), &Cell::default()).await;
    let identity = identity.map_err(|error| Failure::platform(unread(&error)))?;
    identity.map_err(|error| Failure::unknown(unread(&error)))
}

async fn report_progress(folder: &s3::Folder, gauge: &Gauge, log: &Log, now: fn() -> Timestamp) -> Infallible {
    let mut beat = tokio::time::interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = gauge.due.notified() => beat.reset(),
        }
        let Steps { planned, started, done, failed, current } = gauge.steps.borrow().clone();
        let (at, phase, log_chunks) = (now(), gauge.phase.get(), Some(log.stored()));
        let dependencies = gauge.dependencies.borrow().clone();
        let progress =
            Progress { version: VERSION, at, phase, planned, started, done, failed, current, log_chunks, dependencies };
        if let Err(error) = folder.put(&folder.keys.progress(), to_json(&progress), false).await {
            log.say(&format!("driftless: cannot write the progress: {error}"));
        }
    }
}

fn result(ended: Result<(), Failure>, mut report: Report, gauge: &Gauge, log: &Log, now: Timestamp) -> RunResult {
    if let (Err(failure), Some(installed)) = (&ended, &mut report.installed) {
        // A resource that failed shows that the program ran.
        installed.unusable = report.failures.is_empty() && failure.is_of_packages();
    }
    let verdict = match ended {
        Ok(()) => Verdict::Succeeded {},
        Err(Failure { reason, message }) => {
            log.say(&format!("driftless: failed: {message}"));
            Verdict::Failed { phase: gauge.phase.get(), reason, message }
        }
    };
    let Report { outputs, project, permalink, changes, pending_operations, .. } = report;
    let Report { failures, steps, drift, would_change, plan, inputs, installed, .. } = report;
    RunResult {
        version: VERSION,
        verdict,
        outputs,
        left_out: Vec::new(),
        project,
        permalink,
        changes,
        pending_operations,
        failures,
        steps,
        drift,
        would_change,
        plan,
        inputs,
        installed,
        pull_millis: None,
        started_at: gauge.began.get(),
        ended_at: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_task_without_a_run_says_whether_its_folder_is_denied() {
        let late = SPEC_IS_LATE + Duration::from_secs(1);
        for (waited, is_absent, code) in
            [(late, true, EXIT_NO_RUN), (late, false, 1), (SPEC_IS_LATE, true, 1), (Duration::ZERO, false, 1)]
        {
            assert_eq!(stopped(waited, is_absent).exit_code(), code, "{waited:?} {is_absent}");
        }
    }
}
