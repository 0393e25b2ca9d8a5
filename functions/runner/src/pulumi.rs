//! Running pulumi as a child process: what it says goes to our standard output, masked, line by line.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::OsString,
    io::{self, Write},
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
    time::timeout,
};

use crate::{arguments::Call, events::MAX_MESSAGE_BYTES, mask::Mask};

/// A line that is longer is not shown: a secret could stand across the place where it would be cut.
const MAX_LINE_BYTES: usize = 1 << 20;

/// As much standard output as is kept where it is the answer: a stack's outputs.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// What a process that pulumi left behind still says is waited for this long.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs pulumi in one project.
pub(crate) struct Pulumi {
    /// This very program; see [`Pulumi::hold`].
    pub runner: PathBuf,
    pub environment: BTreeMap<OsString, OsString>,
    pub dir: PathBuf,
    /// What a call starts with; not one whose answer is asked for: there it would show more than a run does.
    pub log: Vec<String>,
    pub mask: Mask,
    pub stop: watch::Receiver<bool>,
}

/// How a call ended.
pub(crate) struct Ended {
    pub success: bool,
    /// What pulumi said last on standard error, or if nothing, on standard output; secrets masked.
    pub words: String,
    /// The update's address in Pulumi Cloud.
    pub permalink: Option<String>,
}

impl Pulumi {
    /// Runs a call to its end. When the run is to stop, pulumi is interrupted once, and waited for: it saves its state.
    pub(crate) async fn run(&self, call: &Call) -> io::Result<Ended> {
        self.finish(self.command("pulumi", &self.log, call).spawn()?, &call.input).await
    }

    /// Starts the process that will be pulumi and holds it: its process id is known, nothing has begun. [`Pulumi::release`] goes on.
    pub(crate) fn hold(&self, call: &Call) -> io::Result<Child> {
        let before: Vec<&str> = ["hold", "pulumi"].into_iter().chain(self.log.iter().map(String::as_str)).collect();
        self.command(&self.runner, &before, call).spawn()
    }

    /// Lets a held process become pulumi, and waits for its end.
    pub(crate) async fn release(&self, held: Child) -> io::Result<Ended> {
        self.finish(held, "\n").await
    }

    /// Runs a call whose standard output is the answer, and shows none of it.
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
        let (status, read, ()) = join3(self.wait(&mut child), reading, show(stderr, &self.mask, &errors)).await;
        read?;
        Ok((status?.success(), answer, errors.into_inner().tail()))
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, before: &[impl AsRef<std::ffi::OsStr>], call: &Call) -> Command {
        let mut command = Command::new(program);
        command.args(before).args(&call.arguments).env_clear().envs(&self.environment).current_dir(&self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In a group of its own, so that a signal that we get is not also pulumi's: a second one would make it drop its work.
        command.process_group(0).kill_on_drop(true);
        command
    }

    async fn finish(&self, mut child: Child, input: &str) -> io::Result<Ended> {
        let (out, err) = (RefCell::default(), RefCell::default());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let talking = join3(feed(stdin, input), show(stdout, &self.mask, &out), show(stderr, &self.mask, &err));
        tokio::pin!(talking);
        let waiting = self.wait(&mut child);
        tokio::pin!(waiting);
        let status = tokio::select! {
            _ = &mut talking => waiting.await?,
            status = &mut waiting => {
                // A plugin that outlives pulumi may keep the pipes open: what was said by then is all there is.
                let _: Result<_, _> = timeout(DRAIN, &mut talking).await;
                status?
            }
        };
        let (out, err) = (out.take(), err.take());
        let words = if err.tail().is_empty() { out.tail() } else { err.tail() };
        Ok(Ended { success: status.success(), words, permalink: out.permalink })
    }

    async fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let mut stop = self.stop.clone();
        tokio::select! {
            status = child.wait() => return status,
            () = stopped(&mut stop) => {}
        }
        if let Some(group) = group {
            // It may have ended just now.
            let _: Result<_, _> = kill_process_group(group, Signal::INT);
        }
        child.wait().await
    }
}

/// Returns when the run is to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Gives the input and closes it. A process that does not read it ends with an error of its own.
async fn feed(stdin: Option<ChildStdin>, input: &str) {
    if let Some(mut stdin) = stdin {
        let _: io::Result<()> = stdin.write_all(input.as_bytes()).await;
    }
}

/// What a process said.
#[derive(Default)]
struct Said {
    last: String,
    permalink: Option<String>,
}

impl Said {
    /// The last words, whole lines.
    fn tail(&self) -> String {
        let from = self.last.ceil_char_boundary(self.last.len().saturating_sub(MAX_MESSAGE_BYTES));
        let from = if from == 0 { 0 } else { self.last[from..].find('\n').map_or(from, |end| from + end + 1) };
        self.last[from..].trim().to_owned()
    }

    fn add(&mut self, line: &str) {
        if is_log(line) {
            return;
        }
        if ["View Live:", "View in Browser", "Permalink:"].iter().any(|label| line.trim_start().starts_with(label))
            && let Some(from) = line.find("https://")
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

/// Is it a line of pulumi's own log (`-v --logtostderr`)? It is shown, and is not what pulumi says. Older versions write `I0131 …`.
fn is_log(line: &str) -> bool {
    let letter = line.strip_prefix(['I', 'W', 'E', 'F']);
    let date = letter.and_then(|line| line.split_once(' ')).map(|(date, _)| date);
    line.starts_with(r#"{"time":""#)
        || date.is_some_and(|date| date.len() == 4 && date.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Copies what is said to our standard output, line by line, masked.
async fn show(from: Option<impl AsyncRead + Unpin>, mask: &Mask, said: &RefCell<Said>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
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
            let masked =
                if line.len() > MAX_LINE_BYTES { "(a line of more than 1 MiB)".into() } else { mask.apply(text.trim_end()) };
            say(&masked);
            said.borrow_mut().add(&masked);
            line.clear();
        }
        if over {
            return;
        }
    }
}

/// The text without terminal colours, which a secret could hide behind.
fn plain(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| {
        let mut rest = piece.trim_start_matches(|parameter| matches!(parameter, '0'..='?')).chars();
        rest.next();
        plain + rest.as_str()
    })
}

/// Writes a line to our standard output, which is the run's log. That nobody reads it stops nothing.
pub(crate) fn say(line: &str) {
    let _: io::Result<()> = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(link("Permalink: file:///state/.pulumi/stacks/p/dev.json"), None);
        assert_eq!(link(&format!("  error: see {url}")), None);
    }

    #[test]
    fn the_last_words_are_whole_lines_of_bounded_length() {
        let lines: Vec<String> = (0..5000).map(|i| format!("line {i} é")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let tail = said(&lines).tail();
        assert!(tail.len() <= MAX_MESSAGE_BYTES && tail.starts_with("line ") && tail.ends_with("line 4999 é"), "{tail}");
        assert_eq!(said(&["one", "two"]).tail(), "one\ntwo");
    }

    #[test]
    fn pulumis_log_is_not_its_last_words() {
        let log = [r#"{"time":"2026-11-21T14:49:15Z","level":"INFO","msg":"x"}"#, "I1121 14:49:15.789077   12 plugin.go:7] x"];
        assert_eq!(said(&[log[0], "error: no", log[1], "I am 1121", "Info: x"]).tail(), "error: no\nI am 1121\nInfo: x");
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(plain("\u{1b}[31mError\u{1b}[0m: \u{1b}[1;4m${nope}\u{1b}["), "Error: ${nope}");
        assert_eq!(plain("no colours: é"), "no colours: é");
    }

    #[tokio::test]
    async fn a_secret_does_not_pass_in_whatever_pieces_it_comes() {
        let mut mask = Mask::default();
        mask.add_text("canary-value");
        let (mut write, read) = tokio::io::duplex(7);
        let said = RefCell::default();
        let writing = async move {
            write.write_all(b"the token is canary-value!\nno newline: canary-value").await.unwrap();
        };
        tokio::join!(writing, show(Some(read), &mask, &said));
        assert_eq!(said.into_inner().tail(), "the token is [secret]!\nno newline: [secret]");
    }
}
