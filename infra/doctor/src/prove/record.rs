//! The report of a proof: `proof/<date>-<region>.json`, and the table of the README that is made
//! from it.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The README's text while no proof has run on AWS.
pub const NOTHING: &str = "Nothing was measured on AWS yet: `make prove` does that ([docs/prove.md](docs/prove.md)).";

/// Where a proof was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum On {
    /// An AWS account.
    #[serde(rename = "AWS")]
    Aws,
    /// Anything behind `AWS_ENDPOINT_URL`. Its figures are never shown as those of AWS.
    #[serde(rename = "emulator")]
    Emulator,
}

/// A proof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The version of the format, which is 1.
    pub version: u32,
    /// When it started.
    pub at: Timestamp,
    /// The Region.
    pub region: String,
    /// Where it was run.
    pub on: On,
    /// The release of Driftless.
    pub release: String,
    /// Stacks of the scenario `start`.
    pub tasks: u32,
    /// Stacks of the scenario `stacks`.
    pub stacks: u32,
    /// The scenarios, in the order of their runs.
    pub scenarios: Vec<Scenario>,
    /// The costs.
    pub cost: Cost,
}

/// Costs in USD, at the prices of docs/cost.md.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The budget.
    pub budget: f64,
    /// The maximum that was computed beforehand.
    pub at_most: f64,
    /// The costs that were computed from the actual runs.
    pub estimate: f64,
}

/// The result of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Whether all its checks succeeded; `null` if it met nothing to check.
    pub passed: Option<bool>,
    /// The observation, the failure, or the reason why nothing was measured.
    pub said: String,
    /// The measurements.
    pub figures: Vec<Figure>,
}

/// Durations of one kind, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The start and the end of the measured time.
    pub name: String,
    /// The number of values.
    pub n: usize,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The longest.
    pub max: f64,
}

impl Figure {
    /// `None` without a value.
    #[must_use]
    pub fn of(name: &str, mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let max = *seconds.last()?;
        let [p50, p95] = [50, 95].map(|percent| percentile(&seconds, percent));
        Some(Self { name: name.into(), n: seconds.len(), p50, p95, max })
    }
}

/// The smallest of the sorted values that this percentage does not exceed (nearest rank). At least
/// one value is required.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

impl Proof {
    /// Whether a scenario passed and none failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        let is = |passed| move |scenario: &Scenario| scenario.passed == Some(passed);
        self.scenarios.iter().any(is(true)) && !self.scenarios.iter().any(is(false))
    }

    /// The name of its file.
    #[must_use]
    pub fn file(&self) -> String {
        let at = self.at.to_string();
        format!("{}-{}.json", at.split('T').next().unwrap_or_default(), self.region)
    }

    /// The table of the figures for the README.
    #[must_use]
    pub fn table(&self) -> String {
        let at = self.at.to_string();
        let day = at.split('T').next().unwrap_or_default();
        let head = format!(
            "| on AWS, {}, {day}, release {} | n | p50 | p95 |\n| --- | ---: | ---: | ---: |\n",
            self.region, self.release
        );
        self.scenarios.iter().flat_map(|scenario| &scenario.figures).fold(head, |mut table, Figure { name, n, p50, p95, .. }| {
            let _ = writeln!(table, "| {name} | {n} | {p50:.1} s | {p95:.1} s |");
            table
        })
    }
}

/// The README's text for these proofs: the table of the newest one on AWS that passed.
#[must_use]
pub fn readme(proofs: &[Proof]) -> String {
    let on_aws = proofs.iter().filter(|proof| proof.on == On::Aws && proof.passed());
    on_aws.max_by_key(|proof| proof.at).map_or_else(|| NOTHING.to_owned(), Proof::table)
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.passed {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "none",
        };
        write!(formatter, "{verdict}  {:<12}{}", self.name, self.said)?;
        for Figure { name, n, p50, p95, max } in &self.figures {
            write!(formatter, "\n      {name:<44}n={n:<4} p50={p50:.1} s  p95={p95:.1} s  max={max:.1} s")?;
        }
        Ok(())
    }
}
