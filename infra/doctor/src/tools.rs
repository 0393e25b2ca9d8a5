//! The programs that the doctor runs: `aws`, `kubectl` and `curl`.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

/// A program's answer as JSON; else its last error line, which contains no secret.
pub type Answer = Result<Value, String>;

/// Runs a program with `input` on its standard input. `Err` has the last line of its standard
/// error.
pub fn text(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{program} cannot be run: {error}");
    let mut command = Command::new(program);
    command.args(arguments).env("AWS_PAGER", "").stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    if let Some((mut stdin, input)) = child.stdin.take().zip(input) {
        // A program that ends without reading reports its own error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let line = words.lines().rev().find(|line| !line.trim().is_empty());
    Err(line.map_or_else(|| format!("{program}: {}", output.status), |line| line.trim().to_owned()))
}

/// The same for a program that answers with JSON. Empty output is `null`.
pub fn json(program: &str, arguments: &[&str]) -> Answer {
    let text = text(program, arguments, None)?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&text).map_err(|error| format!("{program} did not answer with JSON: {error}"))
}

/// The AWS CLI in a region.
#[derive(Debug)]
pub struct Aws {
    /// The region; `None` for the CLI's own.
    pub region: Option<String>,
}

impl Aws {
    /// Runs `aws`.
    pub fn json(&self, arguments: &[&str]) -> Answer {
        let mut all = arguments.to_vec();
        all.extend(["--output", "json"]);
        if let Some(region) = &self.region {
            all.extend(["--region", region]);
        }
        json("aws", &all)
    }
}

/// `kubectl` as an administrator of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Kubectl {
    /// The context's name; `None` for the current one.
    pub context: Option<String>,
    /// The kubeconfig; kubectl's own if there is none.
    pub kubeconfig: Option<String>,
}

impl Kubectl {
    /// Runs `kubectl`.
    pub fn text(&self, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
        let mut all = Vec::new();
        for (flag, value) in [("--context", &self.context), ("--kubeconfig", &self.kubeconfig)] {
            all.extend(value.iter().flat_map(|value| [flag, value]));
        }
        all.extend(["--request-timeout", "20s"]);
        all.extend(arguments);
        text("kubectl", &all, input)
    }

    /// Runs `kubectl … --output json`.
    pub fn json(&self, arguments: &[&str]) -> Answer {
        let mut all = arguments.to_vec();
        all.extend(["--output", "json"]);
        let text = self.text(&all, None)?;
        serde_json::from_str(&text).map_err(|error| format!("kubectl did not answer with JSON: {error}"))
    }

    /// Returns whether a group of Driftless has this right.
    pub fn may(&self, group: &str, arguments: &[&str]) -> Result<bool, String> {
        let mut all = vec!["auth", "can-i"];
        all.extend(arguments);
        all.extend(["--as", "driftless", "--as-group", group]);
        match self.text(&all, None) {
            Ok(answer) => Ok(answer.trim() == "yes"),
            // For a "no" it only exits with 1.
            Err(words) if words.starts_with("kubectl: exit status") => Ok(false),
            Err(words) => Err(words),
        }
    }
}
