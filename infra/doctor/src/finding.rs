use std::fmt;

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// No problem.
    Ok,
    /// It works, but a person should know this.
    Warn,
    /// It does not work.
    Fail,
}

/// The finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The result.
    pub level: Level,
    /// The subject, and its state.
    pub what: String,
    /// The cause. Empty without a problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The remedy. Empty without a problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Finding {
    /// A finding without a problem.
    pub fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), why: String::new(), remedy: String::new() }
    }

    /// A finding that a person should know.
    pub fn warn(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, what: what.into(), why: why.into(), remedy: remedy.into() }
    }

    /// A finding of a failure.
    pub fn fail(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Fail, ..Self::warn(what, why, remedy) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        write!(formatter, "{level}  {}", self.what)?;
        for (label, text) in [("why", &self.why), ("fix", &self.remedy)] {
            if !text.is_empty() {
                write!(formatter, "\n      {label}: {text}")?;
            }
        }
        Ok(())
    }
}

/// The findings about one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Section {
    /// AWS, or a cluster.
    pub title: String,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Section {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "== {}", self.title)?;
        self.findings.iter().try_for_each(|finding| writeln!(formatter, "{finding}"))
    }
}

/// All findings about an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The worst result.
    pub level: Level,
    /// In the order of the checks.
    pub sections: Vec<Section>,
}
