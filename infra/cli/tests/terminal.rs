//! The commands in a terminal of 80 columns: the real binary, the terminals of util-linux's
//! `script` and of tmux, and an API server that answers from the objects of the tests.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod support;

use std::{
    env,
    fs::{self, File, Permissions},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{self, Child, Command, Output, Stdio},
    thread,
};

use axum::{Router, extract::Request};
use clap::CommandFactory as _;
use driftless_cli::arguments::Arguments;
use support::respond;
use tempfile::TempDir;

const COLUMNS: usize = 80;

/// Serves the objects, and returns a kubeconfig.
fn serve(folder: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let app = Router::new().fallback(async |request: Request| respond(&request));
            axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await.unwrap();
        });
    });
    let path = folder.join("kubeconfig");
    let text = format!(
        "{{ apiVersion: v1, kind: Config, current-context: c, contexts: [{{ name: c, context: {{ cluster: c, user: u, namespace: team }} }}], \
         clusters: [{{ name: c, cluster: {{ server: 'http://{address}' }} }}], users: [{{ name: u, user: {{}} }}] }}"
    );
    fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

/// What a terminal shows of a command, with the environment variables given by `set`.
fn seen(kubeconfig: &str, command: &str, set: &[(&str, &str)]) -> String {
    let script = format!("stty columns {COLUMNS} rows 50; exec {} {command}", env!("CARGO_BIN_EXE_kubectl-driftless"));
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &script, "/dev/null"]);
    terminal.env("KUBECONFIG", kubeconfig).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("COLUMNS");
    let output = terminal.envs(set.iter().copied()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

/// What a terminal shows of a command, without colours.
fn shown(kubeconfig: &str, command: &str) -> String {
    seen(kubeconfig, command, &[("NO_COLOR", "1")])
}

/// How a command ends whose output is `stdout`.
fn ended(kubeconfig: &str, command: &str, stdout: impl Into<Stdio>) -> Output {
    let mut binary = Command::new(env!("CARGO_BIN_EXE_kubectl-driftless"));
    binary.args(command.split(' ')).env("KUBECONFIG", kubeconfig).env("TERM", "xterm").env_remove("NO_COLOR");
    binary.stdout(stdout).output().unwrap()
}

/// Commands with outputs of every shape, and the help of each command.
fn commands() -> Vec<String> {
    let commands = [
        "--help",
        "get",
        "get -A",
        "tree web",
        "tree shop",
        "explain web",
        "explain network",
        "explain shop",
        "explain old",
        "explain search",
        "explain update/shop-refresh-x7k2p",
        "explain gone",
        "diff shop",
        "diff old",
        "cost",
        "capacity",
        "remediate shop",
        "wait shop --applied",
        "logs gone",
        "logs web",
        "run preview shop --dry-run",
        "cancel web --dry-run",
        "suspend shop --dry-run",
    ];
    let subcommands = Arguments::command();
    let helps = subcommands.get_subcommands().map(|command| format!("{} --help", command.get_name()));
    commands.map(ToOwned::to_owned).into_iter().chain(helps).collect()
}

#[test]
fn command_whose_output_cannot_be_written_fails() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    for (command, code) in [("cost", 1), ("get", 1), ("diff shop", 2)] {
        let full = ended(&kubeconfig, command, File::options().write(true).open("/dev/full").unwrap());
        let said = String::from_utf8(full.stderr).unwrap();
        assert!(said.starts_with("error: cannot write the output: No space left on device"), "{command}: {said}");
        assert_eq!(full.status.code(), Some(code), "{command}");
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let unread = ended(&kubeconfig, command, writer);
        assert_eq!((unread.status.code(), unread.stderr), (Some(0), Vec::new()), "{command}: its reader has enough");
    }
}

#[test]
fn colours_appear_on_a_terminal_without_no_color_only() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    assert!(seen(&kubeconfig, "get", &[]).contains("\u{1b}["));
    assert!(!seen(&kubeconfig, "get", &[("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!seen(&kubeconfig, "get", &[("TERM", "dumb")]).contains('\u{1b}'));
    let piped = ended(&kubeconfig, "get", Stdio::piped()).stdout;
    assert!(!piped.is_empty() && !piped.contains(&0x1b), "a pipe has no colours");
}

/// Starts `ui`, and ends it after a while if nothing else does. `PATH` has only programs of the
/// folder.
fn page(folder: &Path, arguments: &[&str]) -> Child {
    let mut timeout = Command::new("/usr/bin/timeout");
    timeout.args(["60", env!("CARGO_BIN_EXE_kubectl-driftless"), "ui"]).args(arguments);
    timeout.env("KUBECONFIG", serve(folder)).env("PATH", folder).env("DISPLAY", ":0").env("TMPDIR", folder);
    timeout.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// An opener of files in the folder. It keeps what it is to open, with its permissions, and then
/// ends the program that called it with Ctrl-C.
fn opener(folder: &Path) {
    let at = folder.display();
    let script = format!(
        "#!/bin/sh\nexport PATH=/usr/bin:/bin\nstat -c %a \"$1\" >{at}/opened\ncat \"$1\" >>{at}/opened\nkill -INT $PPID\n"
    );
    fs::write(folder.join("xdg-open"), script).unwrap();
    fs::set_permissions(folder.join("xdg-open"), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn page_is_opened_in_the_browser_by_a_private_file_that_leads_to_it() {
    let folder = TempDir::new().unwrap();
    opener(folder.path());
    let ended = page(folder.path(), &["--browser"]).wait_with_output().unwrap();
    let url = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success() && url.contains("/?token="), "{:?} {url}", ended.status);
    let opened = fs::read_to_string(folder.path().join("opened")).unwrap();
    let lead = format!("600\n<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={}\">\n", url.trim());
    assert_eq!(opened, lead);
    let left = fs::read_dir(folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().extension().is_some());
    assert_eq!(left.count(), 0, "the file is deleted");
}

#[test]
fn page_is_opened_from_a_terminal_of_a_desktop() {
    let folder = TempDir::new().unwrap();
    opener(folder.path());
    let kubeconfig = serve(folder.path());
    let path = folder.path().to_string_lossy();
    let shown = seen(&kubeconfig, "ui", &[("DISPLAY", ":0"), ("PATH", &*format!("{path}:/usr/bin:/bin")), ("TMPDIR", &path)]);
    let opened = fs::read_to_string(folder.path().join("opened")).unwrap();
    let url = shown.lines().find(|line| line.contains("/?token=")).unwrap();
    assert!(opened.contains(url), "{opened}");
}

#[test]
fn page_is_served_without_a_browser() {
    for (arguments, note) in [
        (["--browser"].as_slice(), "no browser was opened: cannot run xdg-open: No such file or directory"),
        // The output is no terminal.
        (&[], ""),
        (&["--no-browser"], ""),
    ] {
        let folder = TempDir::new().unwrap();
        let mut child = page(folder.path(), arguments);
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let address = url.trim_start_matches("http://").split('/').next().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET / HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.contains(" 403 "), "it has no token: {response}");
        // The first request is answered after the opener was called.
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        let notes: Vec<_> = said.lines().skip(1).collect();
        assert!(notes.concat().starts_with(note) && notes.is_empty() == note.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn waiting_for_a_run_that_fails_ends_with_1() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    let waited = ended(&kubeconfig, "run up shop --wait", Stdio::piped());
    let said = String::from_utf8([waited.stdout, waited.stderr].concat()).unwrap();
    assert_eq!(waited.status.code(), Some(1), "{said}");
    assert!(said.ends_with("Update shop-up-f4l3d\nerror: Update shop-up-f4l3d failed: UpdateFailed: quota exceeded\n"), "{said}");
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    for command in ["nonsense", "get --nonsense", "run sideways shop", "logs"] {
        let wrong = ended("/dev/null", command, Stdio::piped());
        assert_eq!(wrong.status.code(), Some(2), "{command}: {wrong:?}");
        assert!(wrong.stdout.is_empty() && !wrong.stderr.is_empty(), "{command}: {wrong:?}");
    }
}

#[test]
fn no_command_has_a_line_that_a_terminal_of_80_columns_wraps() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    for command in commands() {
        let text = shown(&kubeconfig, &command);
        assert!(!text.trim().is_empty(), "{command} shows nothing");
        for line in text.lines() {
            assert!(fits(line), "{command}: {} columns: {line}\n{text}", line.chars().count());
        }
    }
}

/// Whether the terminal need not cut a line, or the line is one word, which no program can wrap.
fn fits(line: &str) -> bool {
    line.chars().count() <= COLUMNS || !line.trim().contains(' ')
}

/// The terminal multiplexer, with a server of its own.
struct Tmux(String);

impl Tmux {
    /// Runs a command of tmux. Returns what it prints; `None` without tmux.
    fn run(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("tmux").args(["-L", &self.0, "-f", "/dev/null"]).args(arguments).output().ok()?;
        assert!(output.status.success(), "tmux {arguments:?}: {output:?}");
        Some(String::from_utf8(output.stdout).unwrap())
    }

    /// What the user sees of a command, as the lines of the terminal, and with the lines that the
    /// terminal cut joined again.
    fn capture(&self, kubeconfig: &str, command: &str) -> Option<[String; 2]> {
        let done = format!("tmux -L {} wait-for -S done; exec sleep 600", self.0);
        let binary = env!("CARGO_BIN_EXE_kubectl-driftless");
        let shell = format!("KUBECONFIG={kubeconfig} {binary} {command}; {done}");
        let (columns, rows) = (COLUMNS.to_string(), "40");
        self.run(&["new-session", "-d", "-x", &columns, "-y", rows, &shell])?;
        self.run(&["wait-for", "done"])?;
        let capture = |joins: &[&str]| self.run(&[&["capture-pane", "-p", "-S", "-"], joins].concat());
        let captured = [capture(&[])?, capture(&["-J"])?];
        Some(captured.map(|text| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _: std::io::Result<_> = Command::new("tmux").args(["-L", &self.0, "kill-server"]).output();
    }
}

/// Splits a text into words, without the lines of a tree and without times, which differ between
/// two runs.
fn words(text: &str) -> Vec<&str> {
    let is_time = |word: &str| word.trim_start_matches('(').starts_with(|first: char| first.is_ascii_digit());
    text.split_whitespace().filter(|word| word.chars().any(|c| !"│├└─".contains(c)) && !is_time(word)).collect()
}

#[test]
fn tmux_of_80_columns_shows_whole_lines_and_whole_words() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    for (number, command) in commands().into_iter().enumerate() {
        let tmux = Tmux(format!("driftless-{}-{number}", process::id()));
        let Some([seen, joined]) = tmux.capture(&kubeconfig, &command) else {
            assert!(env::var_os("CI").is_none(), "no tmux in PATH");
            println!("skipped: no tmux in PATH");
            return;
        };
        for line in joined.lines() {
            assert!(fits(line), "{command}: tmux cuts {line:?}\n{seen}");
        }
        assert!(seen.lines().all(|line| line.chars().count() <= COLUMNS), "{command}:\n{seen}");
        // A file gets all of that, too, with other line ends.
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-driftless"))
            .args(command.split(' '))
            .env("KUBECONFIG", &kubeconfig)
            .output();
        let Output { stdout, stderr, .. } = output.unwrap();
        let whole = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert_eq!(words(&joined), words(&whole), "{command}:\n{seen}");
    }
}
