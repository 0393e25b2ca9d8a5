//! Conversions between the Kubernetes types and the domain's. No policy is decided here.

mod run;
mod stack;
mod status;

pub use run::{CONFIG_MAPS_MOUNT, SECRETS_MOUNT, is_stack};
pub(crate) use status::cut;
