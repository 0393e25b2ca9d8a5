//! When a task is stopped from outside. The runner enforces the same limits from inside, but starts
//! after the tenant's init containers and shares the task with them.

use jiff::SignedDuration;

/// The time between a run's limit and the stop of its task. In it the runner interrupts Pulumi,
/// which saves the state.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// The limits of a task's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimits {
    /// The time until its first progress, in seconds: images are pulled and init containers run in
    /// it.
    pub start_seconds: u32,
    /// The time that the run may take, in seconds.
    pub max_seconds: Option<u32>,
}

impl TaskLimits {
    /// Whether a task of that age must have shown progress.
    #[must_use]
    pub fn must_have_begun(self, age: SignedDuration) -> bool {
        age > seconds(self.start_seconds)
    }

    /// The reason to stop a task of this age, if there is one. `age` counts from the time the task
    /// became the owner.
    #[must_use]
    pub fn overdue(self, age: SignedDuration, has_begun: bool) -> Option<String> {
        let Self { start_seconds, max_seconds } = self;
        if self.must_have_begun(age) && !has_begun {
            return Some(format!(
                "no progress within {start_seconds}s; task stopped; check its images and init containers, or raise StartSeconds"
            ));
        }
        max_seconds.filter(|max| age > seconds(*max) + GRACE).map(|max| {
            format!("run exceeded its limit of {max}s; task stopped; raise MaxRunSeconds or driftless.dev/max-duration")
        })
    }
}

fn seconds(seconds: u32) -> SignedDuration {
    SignedDuration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_is_overdue_without_progress_or_after_its_limit() {
        let limits = TaskLimits { start_seconds: 900, max_seconds: Some(3600) };
        let unlimited = TaskLimits { max_seconds: None, ..limits };
        for (limits, age, has_begun, expected) in [
            (limits, 900, false, None),
            (limits, 901, false, Some("no progress within 900s;")),
            (limits, 901, true, None),
            (limits, 3900, true, None),
            (limits, 3901, true, Some("run exceeded its limit of 3600s;")),
            (unlimited, 1_000_000, true, None),
            (unlimited, 901, false, Some("no progress within 900s;")),
        ] {
            let why = limits.overdue(seconds(age), has_begun);
            let fact = why.as_ref().map(|why| &why[..=why.find(';').unwrap_or(why.len() - 1)]);
            assert_eq!(fact, expected, "{limits:?} {age} {has_begun}");
        }
    }
}
