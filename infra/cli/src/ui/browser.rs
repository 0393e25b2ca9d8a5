//! Opens the page in the browser of the user.
//!
//! The opener gets a private file that leads to the page, not the URL: the URL has the key of the
//! page, and other users of the machine see the arguments of a process.

use std::{
    io::{self, Write as _},
    path::Path,
    process::Stdio,
};

use tempfile::NamedTempFile;
use tokio::process::Command;

/// The program that opens a file as the desktop does, and its first arguments.
const OPENER: (&str, &[&str]) = if cfg!(windows) {
    ("rundll32", &["url.dll,FileProtocolHandler"])
} else if cfg!(target_os = "macos") {
    ("open", &[])
} else {
    ("xdg-open", &[])
};

/// Writes a file that leads a browser to the URL. Only its user can read it, and it is deleted when
/// it is dropped.
pub fn redirect(url: &str) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("driftless-").suffix(".html").tempfile()?;
    writeln!(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\">")?;
    Ok(file)
}

/// Opens a file in the browser. `Err` says why none was opened.
pub async fn open(file: &Path) -> Result<(), String> {
    let (program, arguments) = OPENER;
    let mut command = Command::new(program);
    command.args(arguments).arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status().await {
        Ok(ended) if ended.success() => Ok(()),
        Ok(ended) => Err(format!("{program} failed ({ended})")),
        Err(error) => Err(format!("cannot run {program}: {error}")),
    }
}
