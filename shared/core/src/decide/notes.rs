//! The Events about what a run does not do as its Stack asks.

use jiff::SignedDuration;

use crate::{Effect, EventReason, EventType, StackSpec, retry};

/// An Event warns of a resync period shorter than this.
const OFTEN: SignedDuration = SignedDuration::from_mins(5);
const SECONDS_PER_DAY: i64 = 86_400;

/// The Events for the fields of a spec that are ignored, that cost much, or that lose its state.
pub(super) fn notes(spec: &StackSpec) -> Vec<Effect> {
    let event = |event_type, reason, note| Effect::Event { event_type, reason, note, revision: None, change_request: None };
    let ignored = (!spec.pod_only.is_empty()).then(|| {
        let note = format!("ignored, because a run is a Fargate task and not a pod: {}", spec.pod_only.join(", "));
        event(EventType::Normal, EventReason::PodFieldsIgnored, note)
    });
    let frequent = frequent_resync(spec).map(|note| event(EventType::Warning, EventReason::FrequentResync, note));
    let lost = spec.task_backend.as_ref().map(|url| {
        let fact = format!("backend {url:?} is on the disk of the task, which is deleted after the run");
        let remedy = "keep the state in an object store, such as s3://BUCKET";
        event(
            EventType::Warning,
            EventReason::StateNotKept,
            format!("{fact}; the next run finds no state and creates everything again; {remedy}"),
        )
    });
    ignored.into_iter().chain(frequent).chain(lost).collect()
}

/// The message for a Stack that asks for more resyncs than the installation allows, or for many.
#[must_use]
pub fn frequent_resync(spec: &StackSpec) -> Option<String> {
    let asked = spec.resync_frequency_seconds.filter(|_| spec.continue_resync_on_commit_match)?;
    let period = retry::resync_period(spec);
    let seconds = period.as_secs();
    let raised = if asked < spec.min_resync_seconds {
        format!("; {seconds} is used, because MinResyncSeconds of this installation is {}", spec.min_resync_seconds)
    } else {
        String::new()
    };
    let each = format!("each resync starts a task, {} a day", SECONDS_PER_DAY / seconds);
    (!raised.is_empty() || period < OFTEN).then(|| format!("spec.resyncFrequencySeconds is {asked}{raised}: {each}"))
}
