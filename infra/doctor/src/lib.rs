//! Checks a live installation end to end: AWS ([`installation`]), the clusters ([`cluster`]), and
//! whether a Stack becomes Ready ([`canary`]). Before an installation, it reports how the objects
//! of a cluster would run ([`migrate`]). Each check turns the answers of `aws` and `kubectl` into
//! findings; only [`tools`] runs programs. No finding has the value of a secret.

pub mod canary;
pub mod capacity;
pub mod cluster;
pub mod command;
pub mod cost;
pub mod credentials;
mod finding;
pub mod installation;
pub mod migrate;
// It interrupts process groups, which Windows does not have; the command line does not need it.
#[cfg(unix)]
pub mod prove;
pub mod throughput;
pub mod tools;

pub use finding::{Diagnosis, Finding, Level, Section};

#[cfg(test)]
mod tests;
