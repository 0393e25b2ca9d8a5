//! Statistics of the simulation.

use std::{cmp::max, collections::BTreeMap, fmt, ops::AddAssign};

use jiff::SignedDuration;

/// Durations in whole seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<i64, u64>);

impl Histogram {
    pub(super) fn record(&mut self, duration: SignedDuration) {
        *self.0.entry(duration.as_secs()).or_default() += 1;
    }

    /// The durations of both.
    #[must_use]
    pub fn merged(mut self, other: Self) -> Self {
        other.0.into_iter().for_each(|(seconds, times)| *self.0.entry(seconds).or_default() += times);
        self
    }

    /// The number of durations.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.values().sum()
    }

    /// The least number of seconds that this many of 100 durations do not exceed. 0 if there are
    /// none.
    #[must_use]
    pub fn percentile(&self, of_100: u64) -> i64 {
        let mut left = (self.number() * of_100).div_ceil(100);
        let reaches = |(seconds, times): (&i64, &u64)| {
            left = left.saturating_sub(*times);
            (left == 0).then_some(*seconds)
        };
        self.0.iter().find_map(reaches).unwrap_or_default()
    }
}

/// `p50 20 s, p99 60 s, at most 61 s`
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, most] = [50, 99, 100].map(|of_100| self.percentile(of_100));
        write!(f, "p50 {p50} s, p99 {p99} s, at most {most} s")
    }
}

/// Defines [`Stats`]: its fields, and how those of two runs are merged.
macro_rules! stats {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $merge:path,)*) => {
        /// The statistics of a run, or of many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$meta])* pub $name: $type,)*
        }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = $merge(std::mem::take(&mut self.$name), other.$name);)*
            }
        }
    };
}

fn sum(a: u64, b: u64) -> u64 {
    a + b
}

stats! {
    /// Invocations of handlers.
    invocations: u64 = sum,
    /// Invocations that ended before a call of a port.
    crashes: u64 = sum,
    /// Messages that were delivered once more.
    duplicates: u64 = sum,
    /// Messages and events that never arrived.
    drops: u64 = sum,
    /// Messages that were delayed.
    delays: u64 = sum,
    /// Operations that runners started.
    operations: u64 = sum,
    /// Operations of users' Updates.
    by_hand: u64 = sum,
    /// Operations that were drift checks.
    checks: u64 = sum,
    /// Operations that took drift over into the state.
    adoptions: u64 = sum,
    /// Plans that runners made for guarded Stacks.
    plans: u64 = sum,
    /// Plans that users approved.
    approvals: u64 = sum,
    /// Plans that were applied.
    applied: u64 = sum,
    /// Plans of destroys among them.
    destroys: u64 = sum,
    /// Plans that were not the approved ones any more when they were to be applied.
    stale: u64 = sum,
    /// Stacks whose final state was compared with that without troubles.
    compared: u64 = sum,
    /// Operations that failed or were killed.
    failures: u64 = sum,
    /// Operations that were stopped.
    stops: u64 = sum,
    /// Tasks whose capacity Spot reclaimed.
    reclaims: u64 = sum,
    /// Failures of retries of Stacks with `spec.driftless.retries`.
    retries: u64 = sum,
    /// Stacks that were deleted at the end of their TTL.
    expiries: u64 = sum,
    /// Tasks that failed to start.
    failed_starts: u64 = sum,
    /// Namespaces that were terminated.
    terminations: u64 = sum,
    /// Operations for Stacks of such namespaces.
    elsewhere: u64 = sum,
    /// Trees that were deleted.
    collections: u64 = sum,
    /// Forged writes of the hostile tenant that changed something.
    attacks: u64 = sum,
    /// Those that changed a Workspace.
    workspaces: u64 = sum,
    /// Those that changed annotations or labels.
    annotations: u64 = sum,
    /// Tasks of the hostile tenant that end only if they are stopped.
    rogues: u64 = sum,
    /// Waits of the quiet Stack for a slot.
    queued: u64 = sum,
    /// The longest time, in seconds, from the last change of the quiet Stack to its run.
    quiet_delay: u64 = max,
    /// The maximum number of reconciliations of a world at rest.
    looks_at_rest: u64 = max,
    /// Single faults that had an effect.
    injected: u64 = sum,
    /// Calls of ports.
    calls: u64 = sum,
    /// Messages that were received.
    messages: u64 = sum,
    /// Seeds without a sweep.
    unswept: u64 = sum,
    /// Tasks that failed to start in an outage.
    outages: u64 = sum,
    /// Virtual seconds.
    seconds: u64 = sum,
    /// The time from a change until a run of it started.
    begun: Histogram = Histogram::merged,
    /// The time from a change until its Stack was Ready.
    ready: Histogram = Histogram::merged,
    /// Tokens that were renewed during a run.
    renewals: u64 = sum,
    /// Writes of the admissions that left a run waiting for a slot.
    waits: u64 = sum,
}
