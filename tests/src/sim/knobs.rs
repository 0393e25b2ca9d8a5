//! The settings that differ between seeds, and the bounds that follow from them.

use driftless_core::{PodFields, Retention, WatchNamespaces};
use jiff::SignedDuration;

use super::chances::Dice;
use crate::scenario::SYSTEM;

/// The time limit of a run. Runs that end by themselves take less.
pub(super) const MAX_RUN_SECONDS: u32 = 900;
/// How long the tasks of a namespace fail to start after the disturbance, in seeds with an outage:
/// longer than another namespace's change may take.
pub(super) const OUTAGE: SignedDuration = SignedDuration::from_hours(2);
/// Namespaces with Stacks.
pub(super) const TENANTS: u32 = 3;

/// The settings of an installation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knobs {
    /// The time between two sweeps.
    pub(super) sweep_seconds: i64,
    /// The time in which every Stack is reconciled once.
    pub(super) period_seconds: i64,
    /// The lifetime of a run's tokens.
    pub(super) token_seconds: u32,
    /// Minutes in place of days, because no tree would ever be too old otherwise.
    pub(super) retention: Retention,
}

impl Knobs {
    /// The template's values, with a short retention.
    pub(super) const DEFAULT: Self = Self {
        sweep_seconds: 60,
        period_seconds: 600,
        token_seconds: 3600,
        retention: Retention { keep: SignedDuration::from_mins(4), grace: SignedDuration::from_mins(2) },
    };

    /// The shortest tokens that the API server issues. Some runs take longer.
    pub(super) const SHORT_TOKENS: Self = Self { token_seconds: 600, ..Self::DEFAULT };

    /// Half of the seeds have the sweep of the template: a shorter one costs the simulation time, a
    /// longer one hides less.
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, &["knobs"]);
        let sweep_seconds = [60, 60, 60, 60, 10, 300, 900, 3600][dice.index(8)];
        let [keep, grace] = [[4, 10][dice.index(2)], [2, 5][dice.index(2)]].map(SignedDuration::from_mins);
        Self {
            sweep_seconds,
            period_seconds: [600, 600, 120, 3600][dice.index(4)].max(sweep_seconds),
            token_seconds: [3600, 600, 1200][dice.index(3)],
            retention: Retention { keep, grace },
        }
    }

    pub(super) fn reconciler(self) -> reconciler::Settings<'static> {
        reconciler::Settings {
            system_namespace: SYSTEM,
            namespaces: WatchNamespaces::All,
            retention: self.retention,
            resync_seconds: 600,
            min_resync_seconds: 60,
            pod_fields: PodFields::Ignore,
        }
    }

    /// The time after the disturbance until everything is at rest: four tries of each failure, each
    /// with a task that takes its time, one after another for Stacks that share a Pulumi stack, and
    /// a prerequisite before them; and some sweeps for what was lost before.
    pub(super) fn settled_within(self) -> SignedDuration {
        SignedDuration::from_secs(3 * 3600 + 4 * (self.period_seconds + self.sweep_seconds))
    }

    /// A machine that takes more turns runs in circles. Each sweep may hint ten objects that can
    /// wait for ever, and a reconciliation has up to 30 calls, so a seed with more sweeps has more
    /// turns.
    pub(super) fn max_turns(self) -> u32 {
        let longest = OUTAGE + self.settled_within() + self.at_rest();
        200_000 + 300 * u32::try_from(longest.as_secs() / self.sweep_seconds).unwrap_or_default()
    }

    /// It stays at rest for more than one period, in which an Update that was created too late is
    /// abandoned, too.
    pub(super) fn at_rest(self) -> SignedDuration {
        SignedDuration::from_secs(self.period_seconds.max(600) + 5 * self.sweep_seconds)
    }

    /// The maximum number of reconciliations in that time: two or three of each Stack and Update in
    /// ten minutes and in each period, and some of the hostile tenant's Updates, which may never
    /// end, at each sweep.
    pub(super) fn looks_at_rest(self) -> u64 {
        let rounds = 1 + self.at_rest().as_secs() / 600 + self.at_rest().as_secs() / self.period_seconds;
        let sweeps = self.at_rest().as_secs() / self.sweep_seconds;
        (125 * rounds + 5 * sweeps).unsigned_abs()
    }

    /// The time in which every task ends, from its start or from the end of the disturbance, which
    /// may lose every message. The sum of: a period until the launcher makes the task the owner of
    /// its run, the run's limit, the recorder's grace of five minutes, a period and a sweep until
    /// the recorder sees the task, and two minutes until ECS kills it.
    pub(super) fn task_ends_within(self) -> SignedDuration {
        let run = i64::from(MAX_RUN_SECONDS) + 300;
        SignedDuration::from_secs(self.period_seconds + run + self.period_seconds + self.sweep_seconds + 120)
    }

    /// The time in which a change of the quiet Stack runs, from the change or from the end of the
    /// disturbance, even where there is a single slot. The sum of: a period until the sweep finds
    /// the change, the time until a hostile task has to free its slot, and one run of each
    /// namespace that ends by itself. The quiet Stack's own is an earlier run; the others have one
    /// each, because namespaces take turns. A free slot goes to a run that can start when a deleted
    /// Update is dropped, after three minutes, and then a sweep hints the waiting ones.
    pub(super) fn run_within(self) -> SignedDuration {
        let slot = 180 + self.sweep_seconds;
        let turns = i64::from(TENANTS) * (i64::from(MAX_RUN_SECONDS) + slot);
        SignedDuration::from_secs(self.period_seconds + self.task_ends_within().as_secs() + turns)
    }
}
