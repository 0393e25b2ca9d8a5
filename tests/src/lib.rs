//! The one-machine world.

pub mod aws;
pub mod function;
pub mod guide;
pub mod messages;
pub mod model;
pub mod scenario;
pub mod sim;
pub mod world;

/// Logs warnings to standard error. The Kubernetes client's are left out, because waiting for an
/// API server to start fails many calls.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::new("warn,kube_client=off");
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).init();
}
