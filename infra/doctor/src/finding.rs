use std::fmt;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No problem.
    Ok,
    /// It works, but a person should know this.
    Warn,
    /// It does not work.
    Fail,
}

/// The finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The result.
    pub level: Level,
    /// The subject, and its state.
    pub what: String,
    /// The cause. Empty without a problem.
    pub why: String,
    /// The remedy. Empty without a problem.
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
