//! `kubectl driftless`: shows Stacks, explains them by the code that decides, reads logs, and
//! requests runs. It uses the kubeconfig of its user and nothing else.
//!
//! [`commands`] reads and writes; [`get`], [`tree`], [`diff`], [`explain`] and [`request`] are
//! pure. [`ui`] serves the same as a page; `stack` reads for both.

pub mod arguments;
pub mod cluster;
pub mod commands;
pub mod complete;
pub mod diff;
mod error;
pub mod explain;
pub mod facts;
pub mod get;
pub mod log;
pub mod render;
pub mod request;
mod stack;
pub mod tree;
pub mod ui;
pub mod view;
pub mod wait;

pub use error::{Error, Result};
