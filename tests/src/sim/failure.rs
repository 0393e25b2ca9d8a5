//! The report of a seed that breaks an invariant.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::{Breakage, Fault, comparison::run, conditions::Conditions};

/// The folder with a folder for each failure that is explained.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/sim");
/// The number of last events that are printed.
const EVENTS: usize = 60;

/// A simulated case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A seed.
    Seed(u64),
    /// A seed without troubles, in which changes have to run in time.
    Calm(u64),
    /// A short calm script with one fault, or with none.
    Fault(Option<Fault>),
}

impl Case {
    pub(super) fn conditions(self, breakage: Option<Breakage>) -> Conditions {
        match self {
            // A delay only shows where nothing goes wrong.
            Self::Seed(seed) if breakage != Some(Breakage::Delays) => Conditions::of_seed(seed, breakage),
            Self::Seed(seed) | Self::Calm(seed) => Conditions::of_calm(seed, breakage),
            Self::Fault(fault) => Conditions::of_fault(fault),
        }
    }

    /// The command that simulates it again.
    fn command(self, breakage: Option<Breakage>) -> String {
        let word = |breakage| format!("{breakage:?}").to_lowercase();
        let breakage = breakage.map(|breakage| format!(" BREAK={}", word(breakage))).unwrap_or_default();
        match self {
            Self::Seed(seed) => format!("make sim FROM={seed} SEEDS=1{breakage}"),
            Self::Calm(seed) => format!("make sim CALM=1 FROM={seed} SEEDS=1{breakage}"),
            Self::Fault(None) => "make faults".into(),
            Self::Fault(Some(fault)) => format!("make faults FAULT={fault}"),
        }
    }

    fn folder(self) -> PathBuf {
        let name = match self {
            Self::Seed(seed) => seed.to_string(),
            Self::Calm(seed) => format!("calm-{seed}"),
            Self::Fault(fault) => fault.map_or_else(|| "calm".into(), |fault| fault.to_string()),
        };
        Path::new(FOLDER).join(name)
    }
}

/// A broken invariant, with the smallest conditions that were found to break it and the state at
/// its end.
#[derive(Clone, Debug)]
pub struct Failure {
    case: Case,
    breakage: Option<Breakage>,
    /// The invariant, by its number in the design, and how it is broken.
    pub violation: String,
    /// The remaining conditions, one per line.
    pub conditions: String,
    /// How the invariant is broken under these.
    smallest: String,
    /// The events in that case.
    pub trace: Vec<String>,
    /// The rest of the state, by file name.
    files: Vec<(&'static str, String)>,
}

impl Failure {
    /// Simulates a case that fails again: with a trace, and with ever fewer of its conditions as
    /// long as it breaks the same rule. At rest it has to equal `expected`. `None` if it does not
    /// fail.
    pub(super) fn of(case: Case, breakage: Option<Breakage>, expected: Option<&str>) -> Option<Self> {
        let mut left = case.conditions(breakage);
        let violation = run(&left, expected, false).violation?;
        let rule = |violation: &str| violation.split_once(':').map(|(rule, _)| rule.to_owned());
        let fails =
            |less: &Conditions| run(less, expected, false).violation.is_some_and(|found| rule(&found) == rule(&violation));
        loop {
            let parts = left.parts();
            // The last actions first, so that the positions of the others stay.
            for part in parts.iter().rev() {
                let less = left.without(*part);
                if fails(&less) {
                    left = less;
                }
            }
            if left.parts().len() == parts.len() {
                break;
            }
        }
        let ended = run(&left, expected, true);
        let smallest = ended.violation.unwrap_or_default();
        let conditions = left.to_string();
        Some(Self { case, breakage, violation, conditions, smallest, trace: ended.trace, files: ended.state })
    }

    /// Writes the state into the folder of the case. Returns the folder.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self) -> io::Result<PathBuf> {
        let folder = self.case.folder();
        fs::create_dir_all(&folder)?;
        let trace = self.trace.join("\n");
        let files = self.files.iter().map(|(name, content)| (*name, content));
        for (name, content) in files.chain([("trace", &trace), ("conditions", &self.conditions)]) {
            fs::write(folder.join(name), content)?;
        }
        Ok(folder)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, violation, conditions, smallest, trace, .. } = self;
        let conditions = conditions.trim_end().replace('\n', "\n  ");
        for event in &trace[trace.len().saturating_sub(EVENTS)..] {
            writeln!(f, "  {event}")?;
        }
        let what = match case {
            Case::Seed(seed) => format!("seed {seed}"),
            Case::Calm(seed) => format!("calm seed {seed}"),
            Case::Fault(fault) => fault.map_or_else(|| "the calm run".into(), |fault| format!("fault {fault}")),
        };
        writeln!(f, "{what} breaks invariant {violation}\nit is enough that\n  {conditions}")?;
        if smallest != violation {
            writeln!(f, "then it breaks {smallest}")?;
        }
        write!(f, "replay: {}; its state is in target/sim", case.command(self.breakage))
    }
}
