//! The rules that can be broken on purpose.

use std::str::FromStr;

/// A rule that is broken on purpose, outside the functions, to test the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The API server creates a Lease that exists already.
    Claims,
    /// The bucket reports that an existing `owner` was written.
    Owner,
    /// The bucket overwrites an existing `outcome`.
    Outcome,
    /// The API server writes a Stack's status whatever version was read.
    Versions,
    /// A message whose handler crashed or failed is lost, and there is no sweep.
    Redelivery,
    /// The API server shows the fetcher no Updates, so that none seems to name a tree.
    Names,
    /// The API server writes the admissions whatever version was read.
    Admissions,
    /// Every launch uses the first client token, even after ECS refused it.
    Attempts,
    /// The API server returns the Secret of the quiet namespace, whatever namespace is requested.
    Secrets,
    /// The bucket keeps the sealed inputs of all Stacks in one object of the quiet namespace.
    Seals,
    /// Queues lose every message about the quiet namespace.
    Fairness,
    /// ECS accepts the recorder's requests to stop a task and does not stop it.
    Stops,
    /// The API server shows the admissions without the time at which each namespace last got a
    /// slot.
    Turns,
    /// The API server writes the Stack's current generation into `lastUpdate`, as if that had run.
    Generations,
    /// The API server writes the first counted failure as the last one that is retried.
    Failures,
    /// The bucket writes the outcome of a run without a report without the time at which it
    /// started.
    Began,
    /// The API server adds the namespace's Secret to the note of each Event.
    Leaks,
    /// A queue gets a hint of the quiet Stack every two seconds.
    Loops,
    /// The bucket keeps the first tokens of a task.
    Tokens,
    /// Queues delay every launch by a quarter of an hour.
    Delays,
    /// The API server shows every plan as approved once it was shown.
    Approvals,
    /// The API server shows the admission policy as shipped, whatever it is.
    Policies,
    /// The runner applies the plan that it finds, whatever was approved.
    Plans,
    /// The API server writes that a Stack whose TTL has ended was to be deleted at once.
    Warnings,
    /// The API server shows every Stack without its limit on retries.
    Retries,
    /// The API server keeps the annotations of an approval that was used or not checked, and shows
    /// no plan as spent.
    Spent,
    /// The bucket writes another digest of the inputs into each request for a plan.
    Digests,
    /// The bucket writes the same digest of the inputs into each request for a plan.
    Bindings,
    /// The API server keeps the first outputs of a Stack.
    Outputs,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 29] = [
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
        Self::Approvals,
        Self::Policies,
        Self::Plans,
        Self::Warnings,
        Self::Retries,
        Self::Spent,
        Self::Digests,
        Self::Bindings,
        Self::Outputs,
    ];

    /// Returns whether it concerns guarded Stacks only.
    pub(super) fn is_of_plans(self) -> bool {
        self.rule() == "13:"
    }

    /// The beginning of the violation that has to report it.
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
            Self::Approvals | Self::Policies | Self::Plans | Self::Spent | Self::Digests | Self::Bindings => "13:",
            Self::Retries => "14:",
            Self::Warnings => "15:",
            Self::Outputs => "16:",
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
