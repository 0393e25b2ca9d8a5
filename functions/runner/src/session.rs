//! The run itself, step by step.

mod configuration;
mod dependencies;
mod operation;
mod outputs;
mod plan;
mod policy_packs;
mod stack;

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeMap,
    convert::Infallible,
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use backon::Retryable;
use configuration::Configuration;
use driftless_contract::{
    Drift, File, Identity, Installed, Operation, OutputValue, PROJECT_FILES, Phase, PlannedChanges, PreviewedChange, ProjectFile,
    ProjectInfo, ResourceFailure, ResourceStep, RunSource, RunSpec, to_json,
};
use futures::future::pending;
use jiff::Timestamp;
use rustix::io::Errno;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    arguments::{self, Call},
    cache::Cache,
    environment::{Environment, environment},
    events::{MAX_MESSAGE_BYTES, cut},
    failure::Failure,
    files,
    hydrate::{HydrateError, hydrate},
    identity::ProgramIdentity,
    log::Log,
    mask::Mask,
    plan::Violations,
    pulumi::{Ended, Pulumi},
    s3::{Folder, back_off},
    selection,
    stop::{self, Stop, stopped},
    task::Settings,
};

/// How often the engine's events are read.
const EVENTS_EVERY: Duration = Duration::from_secs(1);

/// The progress of the run, for its reports.
pub(crate) struct Gauge {
    pub phase: Cell<Phase>,
    pub steps: RefCell<Steps>,
    /// How the run got its dependencies; `None` until that is known.
    pub dependencies: RefCell<Option<String>>,
    /// The progress is to be reported at once.
    pub due: Notify,
    /// Pulumi started.
    pub started: Cell<bool>,
    /// When the operation started; before that, when the run did.
    pub began: Cell<Timestamp>,
}

/// See [`driftless_contract::Progress`].
#[derive(Clone, Default)]
pub(crate) struct Steps {
    pub planned: u32,
    pub started: u32,
    pub done: u32,
    pub failed: u32,
    pub current: Option<String>,
}

/// What a run reports at its end, whatever that is.
#[derive(Default)]
pub(crate) struct Report {
    pub outputs: Option<BTreeMap<String, OutputValue>>,
    pub project: Option<ProjectInfo>,
    pub permalink: Option<String>,
    pub changes: BTreeMap<String, u64>,
    pub pending_operations: Vec<String>,
    pub failures: Vec<ResourceFailure>,
    pub steps: Vec<ResourceStep>,
    pub drift: Option<Drift>,
    /// See [`driftless_contract::RunResult::would_change`].
    pub would_change: Vec<PreviewedChange>,
    /// See [`driftless_contract::RunResult::plan`].
    pub plan: Option<PlannedChanges>,
    /// See [`RunSpec::inputs`].
    pub inputs: Option<String>,
    /// See [`driftless_contract::RunResult::installed`].
    pub installed: Option<Installed>,
}

/// One run of Pulumi.
pub(crate) struct Session<'a> {
    spec: &'a RunSpec,
    folder: &'a Folder,
    gauge: &'a Gauge,
    now: fn() -> Timestamp,
    /// The directory of the source, and that of the project in PKO's pod.
    source: PathBuf,
    workspace: PathBuf,
    /// The prefix of the event logs; each attempt adds its number.
    event_logs: PathBuf,
    identity: Option<ProgramIdentity>,
    log: &'a Log,
    pulumi: Pulumi<'a>,
    stop: watch::Sender<Option<Stop>>,
    vmstat: PathBuf,
    /// See [`oom_kills`]: the count at the start of the run.
    oom_kills: u64,
    /// The engine has sent events, so Pulumi has found the stack.
    engaged: Cell<bool>,
    /// Set while a plan is applied.
    violations: OnceCell<Rc<Violations>>,
    /// A step has started that changes something outside.
    acted: Cell<bool>,
    /// What the cache is to be made with, once the source is in its place.
    cache: OnceCell<Cache<'a>>,
    image: String,
    scratch: PathBuf,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        settings: &Settings,
        spec: &'a RunSpec,
        identity: Option<Identity>,
        image: &str,
        folder: &'a Folder,
        gauge: &'a Gauge,
        log: &'a Log,
    ) -> io::Result<Self> {
        let scratch = &settings.scratch();
        let (source, workspace) = (settings.share.join("source"), settings.share.join("workspace"));
        let identity = identity.map(|identity| ProgramIdentity::new(&settings.secrets, identity)).transpose()?;
        let who = identity.as_ref().map_or_else(Vec::new, |identity| identity.variables(&spec.stack));
        let Environment { mut variables, secrets } = environment(settings.environment.iter().cloned(), who, &spec.env, scratch)?;
        for (name, value) in Cache::variables(spec.cache.as_ref(), &compiled(scratch)) {
            variables.entry(name).or_insert(value);
        }
        let dir = match &spec.source {
            // PKO resolves the link too, so that a program sees its real path.
            RunSource::Tree { dir, .. } => source.join(dir),
            RunSource::Project(_) => workspace.clone(),
        };
        let (mask, log_flags) = (Mask::of(spec, &secrets), arguments::log(spec));
        if let Some(identity) = &identity {
            identity.hide(&mask);
        }
        let stop = watch::Sender::new(None);
        let pulumi = Pulumi {
            runner: settings.runner.clone(),
            environment: variables,
            dir,
            log_flags,
            log,
            mask,
            stop: stop.subscribe(),
            heard: Cell::new(Instant::now()),
            forced: RefCell::default(),
            hides_violations: Cell::default(),
        };
        let (now, vmstat) = (settings.now, settings.vmstat.clone());
        let (event_logs, oom_kills) = (scratch.join("events"), oom_kills(&vmstat));
        let engaged = Cell::new(false);
        Ok(Self {
            spec,
            folder,
            gauge,
            now,
            source,
            workspace,
            event_logs,
            identity,
            log,
            pulumi,
            stop,
            vmstat,
            oom_kills,
            engaged,
            violations: OnceCell::new(),
            acted: Cell::default(),
            cache: OnceCell::new(),
            image: image.to_owned(),
            scratch: scratch.clone(),
        })
    }

    /// Runs all steps in order; a failure or a stop ends them. `report` has what is known by then.
    pub(crate) async fn run(&self, report: &mut Report, asked: &mut watch::Receiver<bool>) -> Result<(), Failure> {
        let ended = tokio::select! {
            biased;
            never = self.watch(asked) => match never {},
            never = self.keep_identity() => match never {},
            ended = self.steps(report) => ended,
        };
        ended.map_err(|failure| {
            let Failure { reason, message } = failure.of_disk().of_image(|program| self.has(program));
            let message = cut(&self.pulumi.mask.apply(&message), MAX_MESSAGE_BYTES);
            Failure { reason, message }
        })
    }

    /// Returns whether the task has a program: at that path, or on the PATH of its calls.
    fn has(&self, program: &str) -> bool {
        if program.contains('/') {
            return self.pulumi.dir.join(program).exists();
        }
        let path = self.pulumi.environment.get(OsStr::new("PATH"));
        path.is_some_and(|path| env::split_paths(path).any(|folder| folder.join(program).exists()))
    }

    /// Stops the run when that is due; the steps then end by themselves.
    async fn watch(&self, asked: &mut watch::Receiver<bool>) -> Infallible {
        let stop = stop::due(asked, self.spec.limits, &self.pulumi.heard, || self.doing()).await;
        self.log.say(&format!("driftless: {}", stop.why.message));
        self.stop.send_replace(Some(stop.clone()));
        stop::asked(asked).await;
        // After a limit, Pulumi has more time to end than after a stop by ECS.
        self.stop.send_replace(Some(Stop { why: stop.why, ..Stop::asked() }));
        pending().await
    }

    async fn keep_identity(&self) -> Infallible {
        match &self.identity {
            Some(identity) => identity.keep(self.folder, &self.pulumi.mask, self.log, self.now).await,
            None => pending().await,
        }
    }

    /// The step in progress.
    fn doing(&self) -> String {
        let current = self.gauge.steps.borrow().current.clone();
        current.unwrap_or_else(|| match self.gauge.phase.get() {
            Phase::Fetch => "the download of the source".into(),
            Phase::Install => "`pulumi install`".into(),
            Phase::Init => "the stack's selection or configuration".into(),
            Phase::Run => format!("`pulumi {}`", self.spec.operation.as_str()),
        })
    }

    async fn steps(&self, report: &mut Report) -> Result<(), Failure> {
        self.unless_stopped(self.fetch()).await?;
        report.project = Some(project(&self.pulumi.dir)?);

        // A project without a source has no dependencies to install, and the options of its runtime
        // are unknown.
        if matches!(self.spec.source, RunSource::Tree { .. }) {
            self.gauge.phase.set(Phase::Install);
            self.install(report).await?;
        }

        self.gauge.phase.set(Phase::Init);
        if let Some(key) = arguments::unusable(self.spec) {
            return Err(Failure::unknown(format!(
                "config key {key:?} has both path and a JSON value; pulumi supports only one of them"
            )));
        }
        if self.spec.preview_only && self.spec.operation != Operation::Refresh && self.spec.plan.is_none() {
            let operation = self.spec.operation.as_str();
            return Err(Failure::unknown(format!(
                "a drift check requires type refresh; the type of the Update is {operation:?}"
            )));
        }
        // Before the stack is created, because that adds to the file.
        let mut configuration = Configuration::new(self.spec, &self.pulumi)?;
        // A run of this stack has succeeded, so the stack exists unless a user has removed it.
        if self.spec.resources.is_some() {
            let name = report.project.as_ref().map_or("", |project| &project.name);
            let selected = selection::select(&self.pulumi.dir, name, &self.spec.stack, &self.pulumi.environment);
            selected
                .unwrap_or_else(|error| self.log.say(&format!("driftless: cannot select the stack in pulumi's home: {error}")));
            match self.configured(&mut configuration, report).await {
                Err(failure) if failure.is_of_no_stack() && !self.engaged.get() => self.gauge.phase.set(Phase::Init),
                Err(failure) if !self.engaged.get() => return Err(self.of_login(failure).await),
                ended => return ended,
            }
        }
        match &self.spec.plan {
            _ if self.select().await? => self.configured(&mut configuration, report).await,
            Some(request) => self.plan_nothing(request, report).await,
            None => Ok(()),
        }
    }

    /// Configures the stack, carries out the operation, and reads the outputs.
    async fn configured(&self, configuration: &mut Configuration<'_>, report: &mut Report) -> Result<(), Failure> {
        for (number, call) in arguments::config(&configuration.left, &self.spec.stack).iter().enumerate() {
            // The salt comes from the creation of the stack, or from the first secret that Pulumi
            // sets.
            if number < 2 && configuration.encrypt(&self.pulumi)? {
                break;
            }
            self.call(call).await?;
        }
        if let Some(call) = arguments::environments(self.spec) {
            self.call(&call).await?;
        }

        self.gauge.phase.set(Phase::Run);
        self.gauge.began.set((self.now)());
        self.gauge.steps.borrow_mut().planned = self.spec.resources.unwrap_or(0);
        self.gauge.started.set(true);
        self.gauge.due.notify_one();
        let events = self.operation(report).await?;
        // Also in a run that is to stop by now, because the update succeeded and its outputs are
        // reported.
        if self.spec.operation == Operation::Up && !self.spec.is_preview() {
            report.outputs = Some(self.outputs(events.outputs).await?);
        }
        self.store(report).await;
        Ok(())
    }

    async fn fetch(&self) -> Result<(), Failure> {
        for File { path, mode, content, .. } in &self.spec.files {
            files::mount(path, content, *mode).map_err(Failure::unknown)?;
        }
        match &self.spec.source {
            RunSource::Tree { dir, paths, manifest_sha256 } => {
                let tree = self.folder.keys.tree();
                let once = || hydrate(self.folder, &tree, dir, paths, manifest_sha256, &self.source);
                once.retry(back_off()).when(HydrateError::passes).await.map_err(HydrateError::failure)?;
                let place = self.workspace.display();
                symlink(&self.pulumi.dir, &self.workspace)
                    .map_err(|error| Failure::unknown(format!("cannot write {place}: {error}")))
            }
            RunSource::Project(project) => bare(project, self.spec.operation, &self.workspace),
        }
    }

    async fn call(&self, call: &Call) -> Result<(), Failure> {
        self.check_stop()?;
        self.report_start();
        self.judge(&self.pulumi.run(call).await.map_err(not_run)?)
    }

    /// Has the progress reported when Pulumi starts. An operation reports it by itself.
    fn report_start(&self) {
        if !self.gauge.started.replace(true) {
            self.gauge.due.notify_one();
        }
    }

    fn check_stop(&self) -> Result<(), Failure> {
        match &*self.pulumi.stop.borrow() {
            Some(stop) => Err(self.cut_short(stop, "")),
            None => Ok(()),
        }
    }

    /// Does work that can be interrupted at any point.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let mut stop = self.pulumi.stop.clone();
        tokio::select! {
            biased;
            stop = stopped(&mut stop) => Err(self.cut_short(&stop, "")),
            done = work => done,
        }
    }

    /// Why the run ends early, with Pulumi's last message.
    fn cut_short(&self, stop: &Stop, words: &str) -> Failure {
        let mut failure = stop.why.clone();
        failure.message += &self.pulumi.forced.borrow();
        if !words.is_empty() {
            failure.message.extend(["; output of pulumi:\n", words]);
        }
        failure
    }

    fn judge(&self, ended: &Ended) -> Result<(), Failure> {
        if ended.success {
            return Ok(());
        }
        if let Some(stop) = &*self.pulumi.stop.borrow() {
            return Err(self.cut_short(stop, &ended.words));
        }
        let failure = Failure::of_pulumi(&ended.words, self.spec.stale_lock.as_ref());
        Err(match ended.killed {
            _ if oom_kills(&self.vmstat) > self.oom_kills => failure.of_memory(),
            true => failure.of_killed(),
            false => failure,
        })
    }
}

/// See [`Places::compiled`].
fn compiled(scratch: &Path) -> PathBuf {
    scratch.join("compiled")
}

/// Returns how many processes the kernel has killed for lack of memory since its start; 0 if it
/// does not report it.
fn oom_kills(vmstat: &Path) -> u64 {
    let text = fs::read_to_string(vmstat).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or_default()
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn not_run(error: io::Error) -> Failure {
    // The task got the wrong processor and the program did not run, so the program did not fail.
    if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) {
        let processor = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        return Failure::other_architecture(format!(
            "the image is not built for {processor}: pulumi cannot run: Exec format error"
        ));
    }
    Failure::unknown(format!("cannot run pulumi: {error}; use an image with pulumi on its PATH"))
}

/// Creates a project without a program. It must not be deployed, because Pulumi deletes resources
/// that are not in a program.
fn bare(project: &ProjectInfo, operation: Operation, dir: &Path) -> Result<(), Failure> {
    if matches!(operation, Operation::Up | Operation::Preview) {
        let operation = operation.as_str();
        return Err(Failure::unknown(format!(
            "a run without a source requires type destroy or refresh; the type of the Update is {operation:?}"
        )));
    }
    // JSON is YAML with all strings quoted.
    let write = || fs::create_dir_all(dir).and_then(|()| fs::write(dir.join(PROJECT_FILES[0]), to_json(project)));
    write().map_err(|error| Failure::unknown(format!("cannot write {}: {error}", PROJECT_FILES[0])))
}

/// Reads the project's name and runtime.
fn project(dir: &Path) -> Result<ProjectInfo, Failure> {
    for file in PROJECT_FILES {
        let text = match fs::read_to_string(dir.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text.map_err(|error| Failure::unknown(format!("cannot read {file}: {error}")))?,
        };
        let invalid = |error| Failure::unknown(format!("{file} is not a Pulumi project: {error}"));
        return Ok(serde_saphyr::from_str::<ProjectFile>(&text).map_err(invalid)?.into());
    }
    Err(Failure::unknown("the directory has no Pulumi.yaml"))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, process::Command};

    use driftless_contract::FailureReason;

    use super::*;

    #[test]
    fn the_project_is_read_in_both_forms_of_its_runtime() {
        let dir = std::env::temp_dir().join(format!("driftless-project-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(project(&dir).unwrap_err().message, "the directory has no Pulumi.yaml");
        let read = |text: &str| {
            fs::write(dir.join("Pulumi.yaml"), text).unwrap();
            project(&dir).map_err(|failure| failure.message)
        };
        let found = |runtime: &str| Ok(ProjectInfo { name: "p".into(), runtime: runtime.into() });
        assert_eq!(read("name: p\nruntime: yaml\nresources: {}\n"), found("yaml"));
        assert_eq!(read("name: p\nruntime:\n  name: nodejs\n  options: {a: 1}\n"), found("nodejs"));
        assert!(read("name: p\n").is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn project_without_source_has_only_name_and_runtime() {
        let tree = std::env::temp_dir().join(format!("driftless-bare-{}", std::process::id()));
        let info = ProjectInfo { name: "a: \"b\" #c\n".into(), runtime: "no".into() };
        for operation in [Operation::Up, Operation::Preview] {
            let refused = bare(&info, operation, &tree).unwrap_err().message;
            assert!(refused.contains("without a source") && !tree.exists(), "{refused}");
        }
        bare(&info, Operation::Destroy, &tree).unwrap();
        assert_eq!(project(&tree).unwrap(), info);
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn pulumi_for_another_processor_is_a_failure_of_the_platform() {
        let pulumi = std::env::temp_dir().join(format!("driftless-processor-{}", std::process::id()));
        // The header of an executable for a processor that no machine has.
        let header = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9], b"\x02\0\xff\xfe\x01\0\0\0", &[0; 40]].concat();
        fs::write(&pulumi, header).unwrap();
        fs::set_permissions(&pulumi, fs::Permissions::from_mode(0o755)).unwrap();
        let failure = loop {
            let error = Command::new(&pulumi).spawn().unwrap_err();
            // A process that another test starts keeps the file open for writing until it has
            // become another program.
            if error.kind() != io::ErrorKind::ExecutableFileBusy {
                break not_run(error);
            }
        };
        assert_eq!(failure.reason, FailureReason::OtherArchitecture);
        let processor = failure.message.strip_prefix("the image is not built for ");
        let processor = processor.and_then(|rest| rest.strip_suffix(": pulumi cannot run: Exec format error"));
        assert!(processor.is_some_and(|name| ["amd64", "arm64"].contains(&name)), "{}", failure.message);
        fs::remove_file(&pulumi).unwrap();

        let failure = not_run(Command::new(&pulumi).spawn().unwrap_err());
        assert_eq!(failure.reason, FailureReason::Unknown);
        assert!(failure.message.ends_with("; use an image with pulumi on its PATH"), "{}", failure.message);
    }
}
