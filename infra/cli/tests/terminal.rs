//! The commands in a terminal of 80 columns: the real binary, a terminal of util-linux's `script`, and an API server that answers from
//! the objects of the tests.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod support;

use std::{fs, net::TcpListener, path::Path, process::Command, thread};

use axum::{Router, extract::Request};
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

/// What a terminal shows of a command, without colours.
fn shown(kubeconfig: &str, command: &str) -> String {
    let script = format!("stty columns {COLUMNS} rows 50; exec {} {command}", env!("CARGO_BIN_EXE_kubectl-driftless"));
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &script, "/dev/null"]);
    terminal.env("KUBECONFIG", kubeconfig).env("NO_COLOR", "1").env("TERM", "xterm").env_remove("COLUMNS");
    let output = terminal.output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

#[test]
fn no_command_has_a_line_that_a_terminal_of_80_columns_wraps() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = serve(folder.path());
    let mut helps: Vec<_> = ["doctor", "migrate", "completion", "ui", "wait", "reconcile", "suspend", "resume", "cancel"]
        .map(|command| format!("{command} --help"))
        .into();
    helps.extend(
        ["get", "tree", "explain", "diff", "logs", "run", "remediate", "cost", "capacity"].map(|c| format!("{c} --help")),
    );
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
        "logs gone",
    ];
    for command in commands.iter().map(ToString::to_string).chain(helps) {
        let text = shown(&kubeconfig, &command);
        assert!(!text.trim().is_empty(), "{command} shows nothing");
        for line in text.lines() {
            let is_word = !line.trim().contains(' ');
            assert!(line.chars().count() <= COLUMNS || is_word, "{command}: {} columns: {line}\n{text}", line.chars().count());
        }
    }
}
