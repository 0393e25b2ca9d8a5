//! Between Kubernetes' words and the domain's. Nothing is decided here.

mod run;
mod stack;
mod status;

pub use run::{CONFIG_MAPS_MOUNT, SECRETS_MOUNT, is_stack};
