//! Drift: the live resources differ from what was applied. A drift check, an Update of its own that
//! changes nothing, runs on a schedule, and its result is shown on the Stack. An update of the
//! Stack that refreshes corrects the drift, and a refresh adopts it.

use jiff::{SignedDuration, Timestamp};

use crate::{
    Drift, DriftStatus, DriftVerdict, DriftedResource, Effect, EventReason, EventType, Ignored, LastUpdate, LastUpdateState,
    Remediate, Run, RunOutcome, Stack,
    retry::{Retry, retry},
    schedule::spread,
};

/// The shortest period between checks of a Stack that failed, or whose check did.
const FAILING_PERIOD: SignedDuration = SignedDuration::from_hours(1);

/// The maximum number of resources in the status of a Stack.
const TOLD: usize = 20;

/// The drift that counts. What the result leaves out is not known, so it counts.
fn counted(found: &Drift, ignored: &[Ignored]) -> Drift {
    let mut counted = Drift { count: found.count, resources: Vec::new() };
    for DriftedResource { urn, change, properties } in &found.resources {
        let counts = |path: &&String| !ignored.iter().any(|ignored| ignored.covers(urn, path));
        let left: Vec<String> = properties.iter().filter(counts).cloned().collect();
        let is_whole = (1..Drift::MAX_PROPERTIES).contains(&properties.len());
        if left.is_empty() && is_whole {
            counted.count = counted.count.saturating_sub(1);
        } else {
            counted.resources.push(DriftedResource { urn: urn.clone(), change: change.clone(), properties: left });
        }
    }
    counted
}

/// When the Stack's next check is due; in the past if it is due now, `None` if never. A Stack that
/// was never applied has no drift.
pub(crate) fn next_check(stack: &Stack) -> Option<Timestamp> {
    let schedule = stack.drift.as_ref()?.schedule.as_ref()?;
    let last = stack.status.last_update.as_ref().filter(|_| !stack.spec.preview && !stack.deleting && !stack.suspended)?;
    if is_adopting(stack) {
        return None;
    }
    let status = &stack.status.drift;
    let since = status.checked.or(last.last_resync_time)?;
    let next = schedule.next(since, spread(stack.uid.as_str()))?;
    let failing = last.state == LastUpdateState::Failed || matches!(status.verdict, Some(DriftVerdict::Unknown(_)));
    if failing { Some(next.max(since.checked_add(FAILING_PERIOD).ok()?)) } else { Some(next) }
}

/// The drift that a run may end. A preview ends none.
fn found(stack: &Stack) -> Option<&Drift> {
    match &stack.status.drift.verdict {
        Some(DriftVerdict::Found(drift)) if !stack.spec.preview => Some(drift),
        _ => None,
    }
}

/// Returns the drift that an update is to fix. One that its template makes another operation fixes
/// none.
pub(crate) fn to_remediate(stack: &Stack) -> Option<&Drift> {
    let wanted = match stack.drift.as_ref()?.remediate.as_ref()? {
        Remediate::Always => true,
        Remediate::Check(name) => stack.status.drift.last.as_ref() == Some(name),
    };
    found(stack).filter(|_| wanted && !stack.spec.retyped && to_adopt(stack).is_none())
}

/// Returns the drift that the state is to take over.
pub(crate) fn to_adopt(stack: &Stack) -> Option<&Drift> {
    let check = stack.drift.as_ref()?.adopt.as_ref()?;
    found(stack).filter(|_| stack.status.drift.last.as_ref() == Some(check))
}

/// Returns whether the last update failed to adopt the drift that is still to be adopted.
pub(crate) fn failed_adoption(stack: &Stack) -> bool {
    stack.status.drift.adoption_failed && to_adopt(stack).is_some()
}

/// Returns whether an adoption is about to run, runs, or is retried. The result of a check would
/// end the request, and the retry would change back what the refresh took over before it failed.
fn is_adopting(stack: &Stack) -> bool {
    let is_retried = |last: &LastUpdate| failed_adoption(stack) && matches!(retry(stack, last.failures), Retry::After(_));
    to_adopt(stack).is_some()
        && stack.status.last_update.as_ref().is_some_and(|last| stack.status.has_succeeded() || is_retried(last))
}

/// Returns the new drift status after a check, and the Event about it, if it is news.
pub(crate) fn observe_check(stack: &Stack, check: &Run, outcome: &RunOutcome, now: Timestamp) -> (DriftStatus, Option<Effect>) {
    let before = DriftStatus { current: None, checked: Some(now), ..stack.status.drift.clone() };
    // The check has no result, or came too late for the drift that is adopted.
    if outcome.interrupted || !outcome.started || is_adopting(stack) {
        return (before, None);
    }
    let ignored = stack.drift.as_ref().map_or(&[][..], |settings| &settings.ignored);
    let found = outcome.drift.as_ref().map(|drift| counted(drift, ignored));
    let verdict = match &found {
        Some(drift) if outcome.succeeded && drift.count == 0 => Some(DriftVerdict::None),
        Some(Drift { count, resources }) if outcome.succeeded => {
            Some(DriftVerdict::Found(Drift { count: *count, resources: resources.iter().take(TOLD).cloned().collect() }))
        }
        _ => Some(DriftVerdict::Unknown(outcome.message.clone())),
    };
    let revision = Some(check.commit.clone());
    let event = |event_type, reason, note| Some(Effect::Event { event_type, reason, note, revision, change_request: None });
    let event = match (&before.verdict, &verdict) {
        (before, after) if before == after => None,
        (_, Some(DriftVerdict::Found(drift))) => event(EventType::Warning, EventReason::DriftDetected, drift.to_string()),
        (_, Some(DriftVerdict::Unknown(why))) => {
            event(EventType::Warning, EventReason::DriftCheckFailed, format!("drift check failed: {why}"))
        }
        (Some(DriftVerdict::Found(_)), Some(DriftVerdict::None)) => {
            event(EventType::Normal, EventReason::DriftResolved, "drift resolved: live state matches the last update".into())
        }
        _ => None,
    };
    (DriftStatus { last: Some(check.name.clone()), verdict, ..before }, event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(resources: usize, urn: &str, paths: &[&str]) -> Drift {
        let properties = paths.iter().map(|path| (*path).to_owned()).collect();
        let resource = DriftedResource { urn: urn.into(), change: "update".into(), properties };
        Drift { count: u32::try_from(resources).unwrap(), resources: vec![resource; resources] }
    }

    #[test]
    fn drift_fits_into_a_status() {
        let few = drift(Drift::MAX_RESOURCES, "urn:a", &["tags.env"]);
        assert_eq!(few.clone().bounded(), few);
        let many = drift(300, "urn:a", &[""; 30]).bounded();
        assert_eq!((many.count, many.resources.len(), many.resources[0].properties.len()), (300, 100, 20));
        let (long, odd) = ("é".repeat(4000), "\n".repeat(300));
        let long = drift(300, &long, &[&*long, &*odd]).bounded();
        let DriftedResource { urn, properties, .. } = &long.resources[0];
        assert!(urn.len() <= 1024 && urn.ends_with('…'), "{urn}");
        assert!(properties.iter().all(|path| path.len() <= 256 && path.ends_with('…') && !path.contains(char::is_control)));
        assert!(long.resources.len() > 30 && serde_json::to_string(&long).unwrap().len() < 64 << 10, "{}", long.resources.len());
        assert_eq!(long.clone().bounded(), long);
    }
}
