//! The one-machine world.

pub mod aws;
pub mod scenario;
pub mod sim;
pub mod world;
