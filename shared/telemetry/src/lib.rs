//! Logs, metrics and the environment of a process.

pub mod env;
pub mod metrics;

use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Starts the logs of the process `name`, which is also the name of its crate: one JSON object per
/// line on stdout, without a time, because the log collector adds one; and beside them the lines of
/// its [`metrics`]. The level of the logs is `AWS_LAMBDA_LOG_LEVEL`, else `info`. Must be called
/// once, before everything else.
pub fn init(name: &'static str) {
    let level = env::optional("AWS_LAMBDA_LOG_LEVEL").map_or(LevelFilter::INFO, |level| match level.as_str() {
        "FATAL" => LevelFilter::ERROR,
        level => level.parse().unwrap_or(LevelFilter::INFO),
    });
    let lines =
        tracing_subscriber::fmt::layer().json().flatten_event(true).with_span_list(false).with_target(false).without_time();
    let logs = lines.with_filter(targets(name, level));
    // Only a test starts them twice.
    let _ = tracing_subscriber::registry().with(logs).with(metrics::lines(|line| println!("{line}"))).try_init();
}

/// Libraries stay at `warn` whatever the level, because their lower levels log bodies, and with
/// them secrets. `lambda_runtime`'s span with the request id is at `info`.
fn targets(name: &'static str, level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("lambda_runtime", level.min(LevelFilter::INFO))
        // It warns of an answer that does not decode, with the whole answer, which may be a Secret.
        .with_target("kube_client::client", level.min(LevelFilter::ERROR))
        .with_targets([("driftless", level), (name, level), (metrics::TARGET, LevelFilter::OFF)])
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter as Level;

    use super::*;

    #[test]
    fn libraries_log_only_from_warn_up() {
        let targets = targets("reconciler", Level::TRACE);
        let enabled = |target, level: Level| targets.would_enable(target, &level.into_level().unwrap());
        assert!(enabled("reconciler::look", Level::TRACE) && enabled("driftless_aws::sdk", Level::TRACE));
        assert!(enabled("aws_smithy_runtime", Level::WARN) && !enabled("aws_smithy_runtime", Level::INFO));
        assert!(enabled("kube_client::client", Level::ERROR) && !enabled("kube_client::client", Level::WARN));
        assert!(!enabled(metrics::TARGET, Level::ERROR));
        assert!(enabled("lambda_runtime::layers", Level::INFO) && !enabled("lambda_runtime::layers", Level::DEBUG));
    }
}
