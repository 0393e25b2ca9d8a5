//! The ports in memory, for tests and the simulation: one [`World`] with a bucket, queues, tasks
//! and a cluster, a clock that only moves when told to, and faults that follow from a seed alone.

mod cluster;
pub mod contract;
pub mod emf;
mod fields;
pub mod hostile;
mod objects;
mod queues;
mod stored;
mod tasks;
mod world;

pub use cluster::CLUSTER;
pub use stored::Stored;
pub use world::{Faults, LiveTask, Message, World};

#[cfg(test)]
mod tests;
