//! The metrics of a run.

use driftless_api::Update;
use driftless_contract::{Launch, Outcome, Owner, Verdict};
use driftless_core::Operation;
use driftless_telemetry::metrics::{self, Metric};
use jiff::Timestamp;

/// The shortest time that Fargate bills for a task.
const BILLED_SECONDS: f64 = 60.0;

/// Counts a run that ended. Only the recorder that wrote the outcome does it, so that no redelivery
/// counts the run twice; a crash at that moment loses it.
///
/// The duration is measured by the functions' clocks, from the time the task became the owner: the
/// task's own times prove nothing.
pub(crate) fn ended(update: Option<&Update>, owner: &Owner, launch: Option<&Launch>, outcome: &Outcome, now: Timestamp) {
    let operation = update.and_then(|update| Operation::parse(update.spec.operation.as_deref()?));
    let ended = match (&outcome.verdict, &owner.task) {
        (Verdict::Succeeded {}, _) => "Succeeded",
        (_, Some(_)) if outcome.platform_failure => "PlatformFailure",
        (Verdict::Failed { .. }, _) => "Failed",
        (Verdict::Aborted { .. }, Some(_)) => "Aborted",
        (Verdict::Aborted { .. }, None) => "NeverBegan",
    };
    let mut values = vec![(Metric::RunsEnded, 1.0)];
    if owner.task.is_some() {
        let seconds = now.duration_since(owner.at).as_secs_f64().max(0.0);
        values.push((Metric::RunDuration, seconds));
        if let Some(size) = launch.and_then(|launch| launch.size) {
            let billed = seconds.max(BILLED_SECONDS);
            values.push((Metric::VcpuSeconds, billed * f64::from(size.cpu) / 1024.0));
            values.push((Metric::GbSeconds, billed * f64::from(size.memory_mib) / 1024.0));
        }
    }
    if let Some(millis) = outcome.pull_millis {
        values.push((Metric::ImagePullDuration, seconds(millis)));
    }
    if let Some(installed) = &outcome.installed {
        let hit = !installed.restored.is_empty();
        values.extend(hit.then_some((Metric::CacheHits, 1.0)));
        values.extend(installed.missed.then_some((Metric::CacheMisses, 1.0)));
        values.extend(hit.then(|| (Metric::CacheRestoredBytes, number(installed.restored_bytes))));
        values.push((Metric::InstallDuration, seconds(installed.millis)));
    }
    let key = &outcome.run.update;
    let fields = [
        ("cluster", key.cluster.as_str()),
        ("operation", operation.map_or("unknown", Operation::as_str)),
        ("outcome", ended),
        ("update", &key.to_string()),
    ];
    metrics::emit(&values, &fields, now);
}

/// A number of a task's report, within what a metric can have.
fn number(reported: u64) -> f64 {
    u32::try_from(reported).unwrap_or(u32::MAX).into()
}

fn seconds(millis: u64) -> f64 {
    number(millis) / 1000.0
}
