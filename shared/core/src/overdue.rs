//! When a task is stopped from outside. The runner enforces the same limits from inside, but starts after the tenant's init containers and
//! shares the task with them.

use jiff::SignedDuration;

/// After this much more than its limit a task is stopped: by then the runner has interrupted pulumi, and pulumi has saved its state.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// What bounds the life of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimits {
    /// The time until its first progress, in seconds: images are pulled and init containers run in it.
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

    /// Why a task of that age is stopped, in words; `None` if it may go on. `age` is the time since it became the run's owner.
    #[must_use]
    pub fn overdue(self, age: SignedDuration, has_begun: bool) -> Option<String> {
        let Self { start_seconds, max_seconds } = self;
        if self.must_have_begun(age) && !has_begun {
            return Some(format!("no progress within {start_seconds}s of its start"));
        }
        max_seconds.filter(|max| age > seconds(*max) + GRACE).map(|max| format!("running for longer than its limit of {max}s"))
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
            (limits, 901, false, Some("no progress within 900s of its start")),
            (limits, 901, true, None),
            (limits, 3900, true, None),
            (limits, 3901, true, Some("running for longer than its limit of 3600s")),
            (unlimited, 1_000_000, true, None),
            (unlimited, 901, false, Some("no progress within 900s of its start")),
        ] {
            assert_eq!(limits.overdue(seconds(age), has_begun).as_deref(), expected, "{limits:?} {age} {has_begun}");
        }
    }
}
