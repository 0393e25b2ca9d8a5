//! The one-machine world: every external part of the system as a real process on this machine.
//!
//! Each part is a module with a `start` that returns as soon as the part is ready, so that
//! independent parts start concurrently. [`process::Supervisor`] owns their processes: when one
//! ends by itself, the world ends and reports which and why.

pub mod account;
pub mod aws_cli;
pub mod cluster;
pub mod dirs;
pub mod flux;
pub mod git;
pub mod github;
pub mod journal;
mod kubelet;
pub mod moto;
pub mod network;
pub mod process;
pub mod pulumi_cloud;
pub mod ready;
pub mod registry;
pub mod session;
pub mod ssh;
pub mod start;
pub mod tls;
