//! The pass over the objects that may rest: Stacks, Workspaces and ended Updates. A pass of a large
//! cluster takes several sweeps, each of which continues where the last one stopped.

use jiff::Timestamp;

/// The maximum number of pages of a list, of 500 objects each where they are small: an API server
/// that never ends a list ends the pass over its kind.
const MAX_PAGES: usize = 1000;

/// The API server's list of these objects does not end.
#[derive(Debug, thiserror::Error)]
#[error("list of {0} does not end: a page token repeats, or there are more than {MAX_PAGES} pages")]
pub struct Endless(pub(crate) String);

/// Where the next sweep of a cluster continues. An instance of the function keeps it; a new
/// instance begins a pass.
#[derive(Debug, Default)]
pub struct Cursor {
    /// The pass that has not ended.
    pass: Option<Pass>,
    /// The tick at which the last pass began.
    before: Option<Timestamp>,
    /// The token of the next page of the stage; none before the first.
    from: Option<String>,
    /// The number of pages of the stage that were read.
    pages: usize,
    /// The number of objects on them in the namespaces of the filter.
    ours: usize,
}

/// A pass that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// The tick at which it began. Turns are those of this tick, whenever a page is read.
    pub(crate) began: Timestamp,
    /// The number of ticks since the last pass began: their turns are due.
    pub(crate) ticks: i64,
    /// The kind that is read.
    pub(crate) stage: Stage,
}

/// A part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Stacks,
    Workspaces,
    EndedUpdates,
}

impl Cursor {
    /// Continues the pass, or begins one at this tick.
    pub(crate) fn continue_pass(&mut self, tick_seconds: i64, now: Timestamp) -> Pass {
        let tick = tick_seconds.max(1);
        // The number of a tick, because a sweep starts some time after its tick.
        let since = |before: Timestamp| now.as_second() / tick - before.as_second() / tick;
        let ticks = self.before.map_or(1, since).max(1);
        let begun = Pass { began: now, ticks, stage: Stage::Stacks };
        let pass = *self.pass.get_or_insert(begun);
        self.before = Some(pass.began);
        pass
    }

    /// Returns whether the pass has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.pass.is_none()
    }

    /// The token of the next page of the stage.
    pub(crate) fn from(&self) -> Option<String> {
        self.from.clone()
    }

    /// Notes that a page was read, with so many objects in the namespaces of the filter, and which
    /// page follows. A sweep that is stopped at any `await` continues there. Ends the stage after
    /// the last page, and returns how many such objects it has.
    pub(crate) fn turn_page(&mut self, kind: &str, next: Option<String>, ours: usize) -> Result<Option<usize>, Endless> {
        self.ours += ours;
        self.pages += 1;
        let is_endless = next.is_some() && (next == self.from || self.pages >= MAX_PAGES);
        if next.is_some() && !is_endless {
            self.from = next;
            return Ok(None);
        }
        let all = self.ours;
        self.end_stage();
        if is_endless { Err(Endless(kind.to_owned())) } else { Ok(Some(all)) }
    }

    /// Ends the stage, and the pass with the last one.
    pub(crate) fn end_stage(&mut self) {
        (self.from, self.pages, self.ours) = (None, 0, 0);
        self.pass = self.pass.and_then(|pass| {
            let stage = match pass.stage {
                Stage::Stacks => Stage::Workspaces,
                Stage::Workspaces => Stage::EndedUpdates,
                Stage::EndedUpdates => return None,
            };
            Some(Pass { stage, ..pass })
        });
    }
}

#[cfg(test)]
mod tests {
    use driftless_core::its_turn;
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn each_turn_counts_once_in_a_pass_of_several_ticks() {
        let minute = SignedDuration::from_mins(1);
        let (mut cursor, mut now, mut turns) = (Cursor::default(), Timestamp::from_second(1_800_000_000).unwrap(), 0);
        // Ten ticks, which are a period.
        for long in [1, 3, 2, 1, 2, 1] {
            let began = now;
            for _ in 0..long {
                // Some seconds after its tick.
                let pass = cursor.continue_pass(60, now + SignedDuration::from_secs(long));
                assert_eq!((pass.began - SignedDuration::from_secs(long), pass.stage), (began, Stage::Stacks));
                now += minute;
            }
            let pass = cursor.continue_pass(60, now);
            turns += i32::from(its_turn("uid", 600, 60, pass.ticks, pass.began));
            while !cursor.is_over() {
                cursor.end_stage();
            }
        }
        assert_eq!(turns, 1);
    }

    #[test]
    fn endless_list_ends_its_stage() {
        let mut cursor = Cursor::default();
        let mut stage = || cursor.continue_pass(60, Timestamp::UNIX_EPOCH).stage;
        assert_eq!(stage(), Stage::Stacks);
        let again = |cursor: &mut Cursor| cursor.turn_page("stacks", Some("same".into()), 1);
        assert!(matches!(again(&mut cursor), Ok(None)));
        assert_eq!(again(&mut cursor).unwrap_err().to_string().split(':').next(), Some("list of stacks does not end"));
        for page in 0..MAX_PAGES {
            assert_eq!(cursor.continue_pass(60, Timestamp::UNIX_EPOCH).stage, Stage::Workspaces, "{page}");
            let _ = cursor.turn_page("workspaces", Some(page.to_string()), 1);
        }
        assert_eq!(cursor.continue_pass(60, Timestamp::UNIX_EPOCH).stage, Stage::EndedUpdates);
        assert!(matches!(cursor.turn_page("updates", None, 7), Ok(Some(7))));
        assert!(cursor.is_over());
    }
}
