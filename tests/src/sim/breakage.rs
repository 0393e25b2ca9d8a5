//! The rules that can be broken on purpose.

use std::str::FromStr;

/// A rule that is broken on purpose, outside the functions, to see that the checks would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The API server creates a Lease that is there already.
    Claims,
    /// The bucket says that `owner` was written although it was there.
    Owner,
    /// The bucket writes `outcome` although it is there.
    Outcome,
    /// The API server writes a Stack's status whatever version was read.
    Versions,
    /// A message whose handler crashed or failed is lost, and there is no sweep.
    Redelivery,
    /// The API server shows the fetcher no Updates, so that nothing seems to name a tree.
    Names,
    /// The API server writes what runs are admitted whatever version was read.
    Admissions,
    /// Every launch asks ECS with the first client token, also after ECS refused it.
    Attempts,
    /// The API server reads the Secret of the quiet namespace, whatever namespace is asked for.
    Secrets,
    /// The bucket keeps the sealed inputs of all Stacks in one object of the quiet namespace.
    Seals,
    /// Queues lose every message about the quiet namespace.
    Fairness,
    /// ECS accepts the recorder's requests to stop a task and does nothing.
    Stops,
    /// The API server shows the admissions without the time at which each namespace last got a slot.
    Turns,
    /// The API server writes the Stack's current generation into `lastUpdate`, as if that had been run.
    Generations,
    /// The API server writes the first failure that is counted as the last one that is tried again.
    Failures,
    /// The bucket writes the outcome of a run that reported nothing without the time at which it began.
    Began,
    /// The API server adds the namespace's Secret to the note of each Event.
    Leaks,
    /// A queue has a hint of the quiet Stack every two seconds.
    Loops,
    /// The bucket keeps the first tokens of a task.
    Tokens,
    /// Queues hold every launch up for a quarter of an hour.
    Delays,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Claims,
        Self::Owner,
        Self::Outcome,
        Self::Versions,
        Self::Redelivery,
        Self::Names,
        Self::Admissions,
        Self::Attempts,
        Self::Secrets,
        Self::Seals,
        Self::Fairness,
        Self::Stops,
        Self::Turns,
        Self::Generations,
        Self::Failures,
        Self::Began,
        Self::Leaks,
        Self::Loops,
        Self::Tokens,
        Self::Delays,
    ];

    /// How the violation begins that has to tell of it.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Claims | Self::Admissions => "1:",
            Self::Generations => "2:",
            Self::Redelivery | Self::Attempts => "2, 8:",
            Self::Names => "3:",
            Self::Owner | Self::Outcome | Self::Versions => "5:",
            Self::Loops => "7:",
            Self::Began => "8:",
            Self::Failures => "10:",
            Self::Delays => "11:",
            Self::Tokens => "12:",
            Self::Secrets | Self::Seals | Self::Leaks => "S1",
            Self::Stops => "S3",
            Self::Fairness | Self::Turns => "S9",
        }
    }
}

impl FromStr for Breakage {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.map(|breakage| format!("{breakage:?}").to_lowercase());
        let found = known.iter().position(|known| known == word);
        found.map(|i| Self::ALL[i]).ok_or_else(|| format!("{word:?} is none of {}", known.join(", ")))
    }
}
