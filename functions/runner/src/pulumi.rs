//! Runs Pulumi as a child process: its output goes to standard output, masked, line by line.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use futures::future::join3;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    arguments::Call,
    events::MAX_MESSAGE_BYTES,
    log::Log,
    mask::Mask,
    plan::HIDDEN,
    stop::{Stop, lapsed, stopped},
};

/// A longer line is not shown: a secret could span the place where it would be cut.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The maximum length of standard output that is an answer: a stack's outputs.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// How long the output of a process that Pulumi left behind is read.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs Pulumi in one project.
pub(crate) struct Pulumi<'a> {
    /// This program; see [`Pulumi::hold`].
    pub runner: PathBuf,
    pub environment: BTreeMap<OsString, OsString>,
    pub dir: PathBuf,
    /// The flags with which a call starts, except for a call whose answer is read: there they would
    /// log more than a run does.
    pub log_flags: Vec<String>,
    pub log: &'a Log,
    pub mask: Mask,
    pub stop: watch::Receiver<Option<Stop>>,
    /// The last sign of life: the start of a call, or a line of Pulumi's output.
    pub heard: Cell<Instant>,
    /// The further steps that ended Pulumi, if the interrupt did not.
    pub forced: RefCell<String>,
    /// Hide what follows a message that may contain values; see [`HIDDEN`].
    pub hides_violations: Cell<bool>,
}

/// How a call ended.
pub(crate) struct Ended {
    pub success: bool,
    /// By a signal, not by itself: it has not released what it held.
    pub killed: bool,
    /// The end of Pulumi's standard error, or of its standard output if that is empty; secrets
    /// masked.
    pub words: String,
    /// The URL of the update in Pulumi Cloud.
    pub permalink: Option<String>,
}

impl Pulumi<'_> {
    /// Runs a call to its end. When the run is to stop, Pulumi is interrupted and waited for,
    /// because it saves its state.
    pub(crate) async fn run(&self, call: &Call) -> io::Result<Ended> {
        self.finish(self.command("pulumi", &self.log_flags, call).spawn()?, &call.input).await
    }

    /// Starts a process that will become Pulumi and holds it: its process id is known, but nothing
    /// has started. [`Pulumi::release`] continues it.
    pub(crate) fn hold(&self, call: &Call) -> io::Result<Child> {
        let before: Vec<&str> = ["hold", "pulumi"].into_iter().chain(self.log_flags.iter().map(String::as_str)).collect();
        self.command(&self.runner, &before, call).spawn()
    }

    /// Lets a held process become Pulumi, and waits for its end.
    pub(crate) async fn release(&self, held: Child) -> io::Result<Ended> {
        self.finish(held, "\n").await
    }

    /// Runs a call whose standard output is the answer, and shows none of it. The call only reads,
    /// so a run that is to stop still completes it if it is quick: an update that succeeded is not
    /// lost for its outputs.
    pub(crate) async fn ask(&self, call: &Call) -> io::Result<(bool, Vec<u8>, String)> {
        let mut child = self.command("pulumi", &[] as &[&str], call).spawn()?;
        let mut answer = Vec::new();
        let errors = RefCell::default();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let reading = async {
            if let Some(stdout) = stdout {
                stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
            }
            io::Result::Ok(())
        };
        let mut stop = self.stop.clone();
        let (status, read, ()) = tokio::select! {
            ended = join3(child.wait(), reading, self.show(stderr, &errors)) => ended,
            patience = lapsed(&mut stop, |patience| patience.answer) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?} after the stop")));
            }
        };
        read?;
        Ok((status?.success(), answer, errors.into_inner().tail()))
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, before: &[impl AsRef<std::ffi::OsStr>], call: &Call) -> Command {
        self.heard.set(Instant::now());
        let mut command = Command::new(program);
        command.args(before).args(&call.arguments).env_clear().envs(&self.environment).current_dir(&self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In its own process group, so that a signal to the runner does not reach Pulumi too: a
        // second one would make it drop its work.
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// Runs a call whose standard output is the answer, which is not shown. Unlike [`Pulumi::ask`],
    /// it is interrupted when the run is to stop.
    pub(crate) async fn answer(&self, call: &Call) -> io::Result<(Ended, Vec<u8>)> {
        let mut child = self.command("pulumi", &[] as &[&str], call).spawn()?;
        let (stdout, mut answer) = (child.stdout.take(), Vec::new());
        let mut read = Ok(0);
        let reading = async {
            if let Some(stdout) = stdout {
                read = stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await;
            }
        };
        let ended = self.talk(child, "", reading).await?;
        read?;
        Ok((ended, answer))
    }

    async fn finish(&self, mut child: Child, input: &str) -> io::Result<Ended> {
        let out = RefCell::default();
        let stdout = child.stdout.take();
        let mut ended = self.talk(child, input, self.show(stdout, &out)).await?;
        let out = out.take();
        if ended.words.is_empty() {
            ended.words = out.tail();
        }
        Ok(Ended { permalink: out.permalink, ..ended })
    }

    /// Waits for the end of a process whose standard output `reading` reads.
    async fn talk(&self, mut child: Child, input: &str, reading: impl Future<Output = ()>) -> io::Result<Ended> {
        let err = RefCell::default();
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let talking = join3(feed(stdin, input), reading, self.show(stderr, &err));
        tokio::pin!(talking);
        let waiting = self.wait(&mut child);
        tokio::pin!(waiting);
        let status = tokio::select! {
            _ = &mut talking => waiting.await?,
            status = &mut waiting => {
                // A plugin that outlives Pulumi may keep the pipes open: only the output until then
                // is read.
                let _: Result<_, _> = timeout(DRAIN, &mut talking).await;
                status?
            }
        };
        let words = err.take().tail();
        Ok(Ended { success: status.success(), killed: status.signal().is_some(), words, permalink: None })
    }

    async fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let signal = |signal| {
            if let Some(group) = group {
                // It may have ended just now.
                let _: Result<_, _> = kill_process_group(group, signal);
            }
        };
        let mut stop = self.stop.clone();
        tokio::select! {
            status = child.wait() => return status,
            _ = stopped(&mut stop) => signal(Signal::INT),
        }
        let first = tokio::select! {
            status = child.wait() => return status,
            first = lapsed(&mut stop, |patience| patience.first) => first,
        };
        self.force(&format!("pulumi did not end within {first:?} and was interrupted again, which cancels its operations"));
        signal(Signal::INT);
        let second = tokio::select! {
            status = child.wait() => return status,
            second = lapsed(&mut stop, |patience| patience.second) => second,
        };
        self.force(&format!(
            "pulumi did not end within another {second:?} and was killed, which may leave its lock and pending operations"
        ));
        signal(Signal::KILL);
        child.wait().await
    }

    fn force(&self, words: &str) {
        self.log.say(&format!("driftless: {words}"));
        self.forced.borrow_mut().extend(["; ", words]);
    }

    /// Copies output to standard output, line by line, masked.
    async fn show(&self, from: Option<impl AsyncRead + Unpin>, said: &RefCell<Said>) {
        let Some(from) = from else { return };
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        let mut is_hidden = false;
        loop {
            let Ok(piece) = from.fill_buf().await else { return };
            let end = piece.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(piece.len(), |end| end + 1);
            let over = used == 0;
            if line.len() <= MAX_LINE_BYTES {
                line.extend_from_slice(&piece[..used]);
            }
            from.consume(used);
            if end.is_some() || (over && !line.is_empty()) {
                let text = plain(&String::from_utf8_lossy(&line));
                if !is_hidden && self.hides_violations.get() && text.contains(HIDDEN) {
                    self.log.say("driftless: the rest of this output is not shown, because it may contain values of properties");
                    is_hidden = true;
                }
                let masked = if line.len() > MAX_LINE_BYTES {
                    "(a line of more than 1 MiB)".into()
                } else {
                    self.mask.apply(text.trim_end())
                };
                if is_hidden {
                    self.heard.set(Instant::now());
                    line.clear();
                    continue;
                }
                self.log.say(&masked);
                // A log line is no sign of life: the log also reports the renewal of leases while
                // nothing happens.
                if !is_log(&masked) {
                    self.heard.set(Instant::now());
                    said.borrow_mut().add(&masked);
                }
                line.clear();
            }
            if over {
                return;
            }
        }
    }
}

/// Writes the input and closes it. A process that does not read it ends with its own error.
async fn feed(stdin: Option<ChildStdin>, input: &str) {
    if let Some(mut stdin) = stdin {
        let _: io::Result<()> = stdin.write_all(input.as_bytes()).await;
    }
}

/// The output of a process.
#[derive(Default)]
struct Said {
    last: String,
    permalink: Option<String>,
}

impl Said {
    /// The last whole lines.
    fn tail(&self) -> String {
        let from = self.last.ceil_char_boundary(self.last.len().saturating_sub(MAX_MESSAGE_BYTES));
        let from = if from == 0 { 0 } else { self.last[from..].find('\n').map_or(from, |end| from + end + 1) };
        self.last[from..].trim().to_owned()
    }

    fn add(&mut self, line: &str) {
        if ["View Live:", "View in Browser", "Permalink:"].iter().any(|label| line.trim_start().starts_with(label))
            && let Some(from) = ["https://", "http://"].iter().find_map(|scheme| line.find(scheme))
        {
            self.permalink = Some(line[from..].trim().to_owned());
        }
        self.last.push_str(line);
        self.last.push('\n');
        if self.last.len() > 16 * MAX_MESSAGE_BYTES {
            self.last = self.tail() + "\n";
        }
    }
}

/// Returns whether a line belongs to Pulumi's own log (`-v --logtostderr`), which is shown but is
/// not its message. Older versions write `I0131 …`.
fn is_log(line: &str) -> bool {
    let letter = line.strip_prefix(['I', 'W', 'E', 'F']);
    let date = letter.and_then(|line| line.split_once(' ')).map(|(date, _)| date);
    line.starts_with(r#"{"time":""#)
        || date.is_some_and(|date| date.len() == 4 && date.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The text without terminal colours, which could hide a secret.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default().to_owned();
    let plain = pieces.fold(first, |plain, piece| {
        let mut rest = piece.trim_start_matches(|parameter| matches!(parameter, '0'..='?')).chars();
        rest.next();
        plain + rest.as_str()
    });
    // A remaining escape character could start a new sequence with the text after the removed one.
    plain.replace('\u{1b}', "")
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::stop::Patience;

    fn said(lines: &[&str]) -> Said {
        let mut said = Said::default();
        for line in lines {
            said.add(line);
        }
        said
    }

    #[test]
    fn the_link_to_pulumi_cloud_is_found_and_a_files_is_not() {
        let link = |line: &str| said(&["Updating (dev):", line, "done"]).permalink;
        let url = "https://app.pulumi.com/org/p/dev/updates/3";
        assert_eq!(link(&format!("View Live: {url}")).as_deref(), Some(url));
        assert_eq!(link(&format!("View in Browser (Ctrl+O): {url}")).as_deref(), Some(url));
        // A self-hosted Pulumi Cloud may have such a URL.
        assert_eq!(link("View Live: http://pulumi.example/o/p/s").as_deref(), Some("http://pulumi.example/o/p/s"));
        assert_eq!(link("Permalink: file:///state/.pulumi/stacks/p/dev.json"), None);
        assert_eq!(link(&format!("  error: see {url}")), None);
    }

    #[test]
    fn last_output_is_whole_lines_of_bounded_length() {
        let lines: Vec<String> = (0..5000).map(|i| format!("line {i} é")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let tail = said(&lines).tail();
        assert!(tail.len() <= MAX_MESSAGE_BYTES && tail.starts_with("line ") && tail.ends_with("line 4999 é"), "{tail}");
        assert_eq!(said(&["one", "two"]).tail(), "one\ntwo");
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(plain("\u{1b}[31mError\u{1b}[0m: \u{1b}[1;4m${nope}\u{1b}["), "Error: ${nope}");
        assert_eq!(plain("no colours: é"), "no colours: é");
        assert_eq!(plain("can\u{1b}\u{1b}[m[0mary"), "can[0mary");
    }

    /// Runs shell scripts in place of Pulumi.
    fn pulumi<'a>(log: &'a Log, stop: &watch::Sender<Option<Stop>>) -> Pulumi<'a> {
        Pulumi {
            runner: "/nowhere".into(),
            environment: BTreeMap::from([("PATH".into(), std::env::var_os("PATH").unwrap())]),
            dir: "/".into(),
            log_flags: vec![],
            log,
            mask: Mask::default(),
            stop: stop.subscribe(),
            heard: Cell::new(Instant::now()),
            forced: RefCell::default(),
            hides_violations: Cell::default(),
        }
    }

    fn soon(first: Duration, second: Duration) -> Stop {
        Stop { patience: Patience { first, second, answer: Duration::from_millis(300) }, ..Stop::asked() }
    }

    #[tokio::test]
    async fn a_secret_does_not_pass_in_whatever_pieces_it_comes() {
        let log = Log::default();
        let pulumi = pulumi(&log, &watch::channel(None).0);
        pulumi.mask.add_text("canary-value");
        let (mut write, read) = tokio::io::duplex(7);
        let said = RefCell::default();
        let writing = async move {
            write.write_all(b"the token is canary-value!\nno newline: canary-value").await.unwrap();
        };
        tokio::join!(writing, pulumi.show(Some(read), &said));
        let masked = "the token is [secret]!\nno newline: [secret]";
        assert_eq!(said.into_inner().tail(), masked);
        let stored = RefCell::default();
        let put = async |_, text| {
            stored.replace(text);
            Ok(())
        };
        log.finish(&put, log.show(&async |_| Ok(()))).await;
        assert_eq!(stored.into_inner(), format!("{masked}\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn pulumi_log_is_neither_last_output_nor_activity() {
        let log = Log::default();
        let pulumi = pulumi(&log, &watch::channel(None).0);
        let (began, said) = (Instant::now(), RefCell::default());
        let heard_of = async |line: &str| {
            sleep(Duration::from_secs(1)).await;
            pulumi.show(Some(line.as_bytes()), &said).await;
            (pulumi.heard.get() - began).as_secs()
        };
        assert_eq!(heard_of("error: no\n").await, 1);
        assert_eq!(heard_of(r#"{"time":"2026-11-21T14:49:15Z","level":"INFO","msg":"x"}"#).await, 1);
        assert_eq!(heard_of("I1121 14:49:15.789077   12 plugin.go:7] x").await, 1);
        assert_eq!(heard_of("I am 1121").await, 4);
        assert_eq!(said.into_inner().tail(), "error: no\nI am 1121");
    }

    /// Runs a script, and stops it once it says that it can be interrupted.
    async fn stopped_run(script: &str, stop: Stop) -> (Ended, String) {
        let (tell, _) = watch::channel(None);
        let log = Log::default();
        let pulumi = pulumi(&log, &tell);
        let call = Call { arguments: vec!["-c".into(), script.into()], input: String::new() };
        let child = pulumi.command("sh", &[] as &[&str], &call).spawn().unwrap();
        let began = pulumi.heard.get();
        let telling = async {
            while pulumi.heard.get() == began {
                sleep(Duration::from_millis(10)).await;
            }
            tell.send_replace(Some(stop));
        };
        let (ended, ()) = tokio::join!(pulumi.finish(child, ""), telling);
        let forced = pulumi.forced.take();
        (ended.unwrap(), forced)
    }

    #[tokio::test]
    async fn pulumi_is_interrupted_once_and_waited_for() {
        let minute = Duration::from_mins(1);
        let script = "trap 'echo saving; sleep 0.2; echo saved; exit 3' INT; echo ready; while :; do sleep 0.05; done";
        let (ended, forced) = stopped_run(script, soon(minute, minute)).await;
        assert_eq!((ended.success, &*ended.words, &*forced), (false, "ready\nsaving\nsaved", ""));
    }

    #[tokio::test]
    async fn pulumi_that_does_not_stop_is_interrupted_twice_then_killed() {
        let (short, minute) = (Duration::from_millis(200), Duration::from_mins(1));
        let twice = "trap 'trap \"echo dropped; exit 3\" INT' INT; echo ready; while :; do sleep 0.05; done";
        let (ended, forced) = stopped_run(twice, soon(short, minute)).await;
        assert_eq!((ended.success, ended.killed, &*ended.words), (false, false, "ready\ndropped"));
        assert!(forced.contains("did not end within 200ms and was interrupted again") && !forced.contains("killed"), "{forced}");

        let never = "trap '' INT; sleep 600 & echo ready; while :; do sleep 0.05; done";
        let (ended, forced) = stopped_run(never, soon(short, short)).await;
        assert!(ended.killed && forced.ends_with("was killed, which may leave its lock and pending operations"), "{forced}");
    }

    #[tokio::test]
    async fn read_only_call_completes_after_a_stop_within_a_limit() {
        let (tell, _) = watch::channel(Some(soon(Duration::ZERO, Duration::ZERO)));
        let folder = std::env::temp_dir().join(format!("driftless-ask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = folder.join("pulumi");
        std::fs::write(&script, "#!/bin/sh\nsleep $1\necho '{}'\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let log = Log::default();
        let mut pulumi = pulumi(&log, &tell);
        pulumi.environment.insert("PATH".into(), format!("{}:/usr/bin:/bin", folder.display()).into());
        let ask = async |seconds: &str| pulumi.ask(&Call { arguments: vec![seconds.into()], input: String::new() }).await;
        let (success, answer, _) = ask("0.05").await.unwrap();
        assert!(success && answer == b"{}\n");
        assert_eq!(ask("60").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
