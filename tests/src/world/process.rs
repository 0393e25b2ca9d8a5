//! Child processes: each in its own session, with a log and a pid file, and none that outlives the
//! world.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use tokio::{
    process::{Child, Command},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use super::{
    dirs::Dirs,
    session::{kill_session, session_of},
};

/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
const LAST_LINES: usize = 20;
/// The niceness of a process that yields to others.
const NICENESS: i32 = 10;

/// A command for `program` without this process's environment, whose proxies, credentials and
/// clusters must not affect the world.
///
/// It gets its own session, in which its descendants can be found, and dies with the thread that
/// starts it: so never start it from `spawn_blocking`. util-linux does both, because the calls for
/// it are `unsafe` here.
#[must_use]
pub fn command(dirs: &Dirs, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/usr/bin/setsid");
    command
        .args(["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"])
        .arg(program)
        .current_dir(dirs.root())
        .env_clear()
        .env("HOME", dirs.tmp())
        .env("TMPDIR", dirs.tmp())
        .env("LANG", "C.UTF-8")
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", dirs.tools().display()));
    command
}

/// Runs a [`command`] to its end, which must be successful, and returns its output.
pub async fn output(mut command: Command) -> Result<String> {
    let words = format!("{:?}", command.as_std());
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.with_context(|| words.clone())?;
    ensure!(output.status.success(), "{words}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A running process. Dropping it kills it and all its descendants.
pub struct Process {
    child: Child,
    session: Pid,
    root: PathBuf,
    pid_file: PathBuf,
    log: PathBuf,
    command: Command,
}

impl Process {
    /// Starts a [`command`]. `name` names its log and its pid file.
    pub fn start(dirs: &Dirs, name: &str, mut command: Command) -> Result<Self> {
        let (log, pid_file) = (dirs.logs().join(format!("{name}.log")), dirs.pids().join(name));
        let output = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let (child, session) = spawn(&mut command, &pid_file)?;
        Ok(Self { child, session, root: dirs.root().to_owned(), pid_file, log, command })
    }

    /// Starts it again, after its end.
    fn again(&mut self) -> Result<()> {
        kill_session(self.session, &self.root);
        (self.child, self.session) = spawn(&mut self.command, &self.pid_file)?;
        Ok(())
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// Returns a measure of the memory that it and its descendants have, in bytes. A shared page
    /// counts in parts, and a page in swap counts too.
    pub fn memory(&self) -> impl Fn() -> u64 + use<> {
        let session = self.session;
        move || {
            let Ok(processes) = fs::read_dir("/proc") else { return 0 };
            let paths = processes.flatten().map(|process| process.path());
            paths.filter(|path| session_of(path) == Some(session)).map(|path| proportional_bytes(&path)).sum()
        }
    }

    /// Lowers its priority, because tasks run on machines of their own.
    pub fn yield_to_others(&self) -> Result<()> {
        setpriority_process(Some(self.session), NICENESS).context("setting a process's priority").map(drop)
    }

    /// Sends `signal` to the process itself, not to its descendants. Ignores a process that has
    /// ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.child.id().is_some() {
            kill_process(self.session, signal)?;
        }
        Ok(())
    }

    /// The last lines of its log, for an error message.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let mut words = format!("the end of {}:", self.log.display());
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            let _ = write!(words, "\n  {line}");
        }
        words
    }
}

fn spawn(command: &mut Command, pid_file: &Path) -> Result<(Child, Pid)> {
    let child = command.spawn().with_context(|| format!("starting {}", pid_file.display()))?;
    let session = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let session = session.with_context(|| format!("{} has ended already", pid_file.display()))?;
    fs::write(pid_file, format!("{}\n", session.as_raw_nonzero()))?;
    Ok((child, session))
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be too new to have its session.
        let _ = self.child.start_kill();
        kill_session(self.session, &self.root);
        let _ = fs::remove_file(&self.pid_file);
    }
}

/// Keeps the processes that must run as long as the world.
pub struct Supervisor {
    parts: Mutex<JoinSet<()>>,
    failure: watch::Sender<Option<String>>,
    stopping: watch::Sender<bool>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self { parts: Mutex::default(), failure: watch::Sender::new(None), stopping: watch::Sender::new(false) }
    }
}

impl Supervisor {
    /// Starts a process that must not end before [`Supervisor::stop`].
    pub fn start(&self, dirs: &Dirs, name: &str, command: Command) -> Result<()> {
        self.keep(dirs, name, command, false)
    }

    /// The same for a process that is restarted after an end without an error, as after SIGTERM, or
    /// by SIGKILL.
    pub fn start_always(&self, dirs: &Dirs, name: &str, command: Command) -> Result<()> {
        self.keep(dirs, name, command, true)
    }

    fn keep(&self, dirs: &Dirs, name: &str, command: Command, again: bool) -> Result<()> {
        let mut process = Process::start(dirs, name, command)?;
        let (name, failure, mut stopping) = (name.to_owned(), self.failure.clone(), self.stopping.subscribe());
        let keep = async move {
            tokio::select! {
                status = async {
                    loop {
                        let status = process.wait().await?;
                        if !(again && (status.success() || status.signal() == Some(Signal::KILL.as_raw()))) {
                            return anyhow::Ok(status);
                        }
                        process.again()?;
                    }
                } => {
                    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    let text = format!("{name} ended unexpectedly: {status}; {}", process.last_words());
                    failure.send_if_modified(|first| first.is_none() && first.replace(text).is_none());
                }
                _ = async { stopping.wait_for(|stopping| *stopping).await.map(drop) } => {
                    // An error means that it has just ended by itself, as desired.
                    let _ = process.signal(Signal::TERM);
                    let _ = timeout(GRACE, process.wait()).await;
                }
            }
        };
        self.parts.lock().map_err(|_| anyhow!("a part's start has panicked"))?.spawn(keep);
        Ok(())
    }

    /// Waits until a process ends by itself. The error has its name, its end, and its last output.
    pub async fn failure(&self) -> anyhow::Error {
        let mut failure = self.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|text| text.clone()) {
            Ok(text) => anyhow!(text.unwrap_or_default()),
            Err(_) => anyhow!("the supervisor is gone"),
        }
    }

    /// Runs `work`, but stops it as soon as a process ends by itself.
    pub async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            failure = self.failure() => Err(failure),
            result = work => result,
        }
    }

    /// Ends every process: SIGTERM, and SIGKILL for the rest after 2 s.
    pub async fn stop(self) {
        self.stopping.send_replace(true);
        if let Ok(parts) = self.parts.into_inner() {
            parts.join_all().await;
        }
    }
}

/// The memory of the process with this folder in `/proc`, in which a page of several processes
/// counts in parts. 0 if it has ended.
fn proportional_bytes(process: &Path) -> u64 {
    let told = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
    let values = told.lines().filter_map(|line| line.strip_prefix("Pss:").or_else(|| line.strip_prefix("SwapPss:")));
    values.filter_map(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok()).sum::<u64>() << 10
}
