//! The report about an object: notes, and the verdict of the worst one.

use std::fmt;

use serde::Serialize;

/// How an object, or a part of it, works under Driftless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// How it works.
    pub verdict: Verdict,
    /// The fact, with the field.
    pub what: String,
    /// The remedy. Empty if none is needed, or if `what` contains it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub remedy: &'static str,
}

/// All notes about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `Kind namespace/name`.
    pub object: String,
    /// That of the worst note.
    pub verdict: Verdict,
    /// Empty for an object that works unchanged.
    pub notes: Vec<Note>,
}

impl Report {
    /// A report of these notes.
    #[must_use]
    pub fn of(object: String, notes: Vec<Note>) -> Self {
        let verdict = notes.iter().map(|note| note.verdict).max().unwrap_or(Verdict::Same);
        Self { object, verdict, notes }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:9}  {}", self.verdict, self.object)?;
        for Note { verdict, what, remedy } in &self.notes {
            write!(formatter, "\n             {verdict}: {what}")?;
            if !remedy.is_empty() {
                write!(formatter, "\n               do: {remedy}")?;
            }
        }
        Ok(())
    }
}

/// What no report says.
const NOT_CHECKED: [&str; 4] = [
    "roles of EKS Pod Identity and of nodes, which a task does not have (use eks.amazonaws.com/role-arn)",
    "a backend file:// in Pulumi.yaml, or in an envRef of the type Secret",
    "Programs",
    "the layout of states (docs/migration.md)",
];

/// What becomes of all objects of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// The number of reports by verdict.
    pub counts: Counts,
    /// In the order of kubectl.
    pub objects: Vec<Report>,
    /// The objects whose runs have the image of the installation.
    pub without_image: Vec<String>,
    not_checked: [&'static str; 4],
}

/// A number of reports by verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    same: usize,
    better: usize,
    different: usize,
    /// The number of objects that do not work.
    pub refused: usize,
}

impl Migration {
    /// The reports on the objects of a cluster, and the names of those without an image.
    #[must_use]
    pub fn of(objects: Vec<Report>, without_image: Vec<String>) -> Self {
        let of = |verdict| objects.iter().filter(|report| report.verdict == verdict).count();
        let (same, better) = (of(Verdict::Same), of(Verdict::Better));
        let counts = Counts { same, better, different: of(Verdict::Different), refused: of(Verdict::Refused) };
        Self { counts, objects, without_image, not_checked: NOT_CHECKED }
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts: Counts { same, better, different, refused }, objects, without_image, not_checked } = self;
        objects.iter().try_for_each(|report| writeln!(formatter, "{report}"))?;
        writeln!(formatter, "== {same} same, {better} better, {different} different, {refused} refused")?;
        if !without_image.is_empty() {
            writeln!(
                formatter,
                "== {} without an image: their runs lack kubectl, helm, the cloud CLIs and other languages of PKO's image",
                without_image.len()
            )?;
            without_image.iter().try_for_each(|object| writeln!(formatter, "           {object}"))?;
            let command = "make deploy PARAMETERS=RuntimeImages= keeps the large image for all (docs/migration.md, Images)";
            writeln!(formatter, "             do: {command}")?;
        }
        writeln!(formatter, "not checked: {}", not_checked.join("; "))
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
