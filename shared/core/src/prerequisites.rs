use jiff::Timestamp;

use crate::{Effect, LastUpdateState, Prerequisite, PrerequisiteRef};

/// What is unmet, in words, and the requests that would mend what is out of date. `None` if all are met.
pub(crate) fn unmet(refs: &[PrerequisiteRef], found: &[Option<Prerequisite>], now: Timestamp) -> Option<(String, Vec<Effect>)> {
    let mut words = Vec::new();
    let mut requests = Vec::new();
    for (reference, prerequisite) in refs.iter().zip(found) {
        let name = &reference.name;
        let Some(prerequisite) = prerequisite else {
            words.push(format!("unable to fetch prerequisite {name:?}: there is no such Stack in this namespace"));
            continue;
        };
        let current = prerequisite.last_update.as_ref().filter(|last| {
            last.generation == prerequisite.generation && last.reconcile_request == prerequisite.reconcile_request
        });
        let why = match current {
            None => "prerequisite has not run to completion",
            Some(last) if last.state == LastUpdateState::Failed => "prerequisite failed",
            Some(last) if out_of_date(reference, last.last_resync_time, now) => {
                // The value names the run that is too old, so that it is asked for once.
                let request = format!("after-{}", last.name);
                if prerequisite.reconcile_request != request {
                    requests.push(Effect::RequestReconcile { stack: name.clone(), request });
                }
                "prerequisite is out of date"
            }
            Some(_) => continue,
        };
        words.push(format!("prerequisite not satisfied for {name:?}: {why}"));
    }
    match words.as_slice() {
        [] => None,
        [one] => Some((one.clone(), requests)),
        _ => Some((format!("multiple prerequisites were not satisfied {}", words.join(", ")), requests)),
    }
}

fn out_of_date(reference: &PrerequisiteRef, last: Option<Timestamp>, now: Timestamp) -> bool {
    match (reference.succeeded_within_seconds, last) {
        (Some(within), Some(last)) => now.duration_since(last).as_secs() > within,
        (Some(_), None) => true,
        (None, _) => false,
    }
}
