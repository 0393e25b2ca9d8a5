//! The guarantees of the ports, as cases that hold for every implementation. [`crate::World`] runs
//! them in this crate's tests; the crate `driftless-tests` runs them with the real adapters on
//! moto, the local Fargate and a real API server. A case has the name of its guarantee.
//!
//! A fixture is an implementation together with abilities of its surroundings, such as making ECS
//! forget a task.

use std::fmt;

use anyhow::Result;

/// Defines `check` for a suite: it runs each case with a fixture.
macro_rules! suite {
    ($($case:ident)+) => {
        /// Checks every guarantee of the port.
        pub async fn check<F: Fixture>(fixture: &F) -> $crate::contract::Report {
            let mut report = $crate::contract::Report::default();
            $(report.add(stringify!($case), Box::pin($case(fixture)).await);)+
            report
        }
    };
}

pub mod cluster;
pub mod objects;
pub mod queues;
pub mod tasks;

#[cfg(test)]
mod flawed;
#[cfg(test)]
mod tests;

/// The guarantees that were checked, and those that are broken.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of cases.
    pub checked: usize,
    /// The names of the broken guarantees, with the error of each.
    pub broken: Vec<(&'static str, anyhow::Error)>,
}

impl Report {
    fn add(&mut self, guarantee: &'static str, outcome: Result<()>) {
        self.checked += 1;
        self.broken.extend(outcome.err().map(|error| (guarantee, error)));
    }

    fn extend(&mut self, other: Self) {
        self.checked += other.checked;
        self.broken.extend(other.broken);
    }

    /// An error that names each broken guarantee, if there is one.
    pub fn into_result(self) -> Result<()> {
        anyhow::ensure!(self.broken.is_empty(), "{self}");
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} guarantees are broken:", self.broken.len(), self.checked)?;
        self.broken.iter().try_for_each(|(guarantee, error)| write!(f, "\n{guarantee}: {error:#}"))
    }
}
