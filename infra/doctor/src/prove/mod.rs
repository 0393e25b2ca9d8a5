//! `make prove`: tests of an installation that only AWS can answer. [`scenarios`] runs Stacks and
//! reads their results from Kubernetes, ECS and S3; [`installation`] creates and removes an
//! installation for it; [`budget`] limits its cost; [`record`] is its report. The scenarios are the
//! same for AWS and for the one-machine world.

pub mod budget;
pub mod installation;
pub mod record;
pub mod scenarios;

#[cfg(test)]
mod tests;
