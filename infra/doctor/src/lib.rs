//! Checks a live installation from one end to the other: what AWS says of it ([`installation`]), what a cluster says ([`cluster`]), and
//! whether a Stack becomes Ready ([`canary`]); or, before there is one, what becomes of the objects of a cluster ([`migrate`]). Each check is a function of what `aws` and `kubectl` answered to findings; only
//! [`tools`] runs programs. No value of a secret is in a finding.

pub mod canary;
pub mod cluster;
pub mod cost;
mod finding;
pub mod installation;
pub mod migrate;
pub mod prove;
pub mod tools;

pub use finding::{Finding, Level};

#[cfg(test)]
mod tests;
