//! What is counted.

use std::{cmp::max, ops::AddAssign};

/// Defines [`Stats`]: its fields, and how those of two runs are merged.
macro_rules! stats {
    ($($(#[$meta:meta])* $name:ident: $merge:ident,)*) => {
        /// What happened in a run, or in many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = $merge(self.$name, other.$name);)*
            }
        }
    };
}

fn sum(a: u64, b: u64) -> u64 {
    a + b
}

stats! {
    /// Invocations of handlers.
    invocations: sum,
    /// Invocations that ended before a call of a port.
    crashes: sum,
    /// Messages that were delivered once more.
    duplicates: sum,
    /// Messages and events that never arrived.
    drops: sum,
    /// Messages that were held up.
    delays: sum,
    /// Operations that runners began.
    operations: sum,
    /// Operations of Updates that were made by hand.
    by_hand: sum,
    /// Operations that only looked for drift.
    checks: sum,
    /// Operations that failed or were killed.
    failures: sum,
    /// Operations that were told to stop.
    stops: sum,
    /// Tasks whose capacity Spot took back.
    reclaims: sum,
    /// Tasks that failed to start.
    failed_starts: sum,
    /// Namespaces that were terminated.
    terminations: sum,
    /// Operations for Stacks whose namespace was.
    elsewhere: sum,
    /// Trees that were deleted.
    collections: sum,
    /// Forged writes of the hostile tenant that changed something.
    attacks: sum,
    /// Those that changed a Workspace.
    workspaces: sum,
    /// Those that changed annotations or labels.
    annotations: sum,
    /// Tasks of the hostile tenant that end only if they are stopped.
    rogues: sum,
    /// Waits of the quiet Stack for a slot.
    queued: sum,
    /// The longest time, in seconds, from the last change of the quiet Stack to its run.
    quiet_delay: max,
    /// The most looks at a world at rest.
    looks_at_rest: max,
    /// Single faults that had an effect.
    injected: sum,
    /// Calls of ports.
    calls: sum,
    /// Messages that were received.
    messages: sum,
    /// Seeds without a sweep.
    unswept: sum,
    /// Tasks that failed to start in an outage.
    outages: sum,
    /// Virtual seconds.
    seconds: sum,
}
