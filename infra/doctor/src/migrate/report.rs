//! The report about an object: notes, and the verdict of the worst one.

use std::fmt;

/// How an object, or a part of it, works under Driftless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As under PKO.
    Same,
    /// It works, and does more.
    Better,
    /// It works, but not as under PKO.
    Different,
    /// It does not work.
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Different => "different",
            Self::Refused => "refused",
        })
    }
}

/// One note about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// How it works.
    pub verdict: Verdict,
    /// The fact, with the field.
    pub what: String,
    /// The remedy. Empty if none is needed, or if `what` contains it.
    pub remedy: &'static str,
}

/// All notes about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `Kind namespace/name`.
    pub object: String,
    /// Empty for an object that works unchanged.
    pub notes: Vec<Note>,
}

impl Report {
    /// The verdict of the worst note.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.notes.iter().map(|note| note.verdict).max().unwrap_or(Verdict::Same)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:9}  {}", self.verdict(), self.object)?;
        for Note { verdict, what, remedy } in &self.notes {
            write!(formatter, "\n             {verdict}: {what}")?;
            if !remedy.is_empty() {
                write!(formatter, "\n               do: {remedy}")?;
            }
        }
        Ok(())
    }
}

pub(super) fn better(what: &str) -> Note {
    Note { verdict: Verdict::Better, what: what.into(), remedy: "" }
}

pub(super) fn different(what: impl Into<String>, remedy: &'static str) -> Note {
    Note { verdict: Verdict::Different, what: what.into(), remedy }
}

pub(super) fn refused(what: impl Into<String>, remedy: &'static str) -> Note {
    Note { verdict: Verdict::Refused, what: what.into(), remedy }
}
