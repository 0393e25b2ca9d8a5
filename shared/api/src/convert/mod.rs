//! Conversions between the Kubernetes types and the domain's. No policy is decided here.

mod run;
mod stack;
mod status;
mod workspace;

pub use run::is_stack;
pub use workspace::{CONFIG_MAPS_MOUNT, SECRETS_MOUNT};
