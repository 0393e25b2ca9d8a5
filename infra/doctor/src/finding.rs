use std::fmt;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but somebody should know.
    Warn,
    /// It does not work.
    Fail,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How it ended.
    pub level: Level,
    /// What was looked at, and how it is.
    pub what: String,
    /// What makes it so. Empty if it is well.
    pub why: String,
    /// What mends it. Empty if it is well.
    pub remedy: String,
}

impl Finding {
    /// As it should be.
    pub fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), why: String::new(), remedy: String::new() }
    }

    /// Something to know of.
    pub fn warn(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, what: what.into(), why: why.into(), remedy: remedy.into() }
    }

    /// Something that does not work.
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
