//! What is counted and measured, in one list. A line of `CloudWatch`'s embedded metric format goes to standard output as it is: any text
//! before or after the JSON object, also a logger's fields, would make it a log line without metrics. Lambda passes it on unchanged.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{Layer, filter::Targets, layer::Context, registry::LookupSpan};

/// The `CloudWatch` namespace of all metrics.
pub const NAMESPACE: &str = "Driftless";

/// Lines travel as tracing events of this target: whoever listens gets them, and where nobody does they are not even made.
pub(crate) const TARGET: &str = "emf";

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident: $unit:ident by $([$($dimension:literal),+])+;)+) => {
        /// A metric. Its name in `CloudWatch` is the variant's; docs/operations.md says more of each.
        ///
        /// Each combination of its dimensions' values costs: nothing that grows with the number of Stacks may be one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Metric {
            $($(#[$doc])* $name),+
        }

        impl Metric {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The name in `CloudWatch`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// The unit, in `CloudWatch`'s words.
            #[must_use]
            pub fn unit(self) -> &'static str {
                match self { $(Self::$name => stringify!($unit)),+ }
            }

            /// The sets of dimensions by which it is kept.
            #[must_use]
            pub fn dimensions(self) -> &'static [&'static [&'static str]] {
                match self { $(Self::$name => &[$(&[$($dimension),+]),+]),+ }
            }
        }
    };
}

metrics! {
    /// Runs whose outcome was recorded.
    RunsEnded: Count by ["outcome"] ["cluster", "operation", "outcome"];
    /// How long a task owned a run, until its outcome was recorded.
    RunDuration: Seconds by ["cluster", "operation"];
    /// What the runs' tasks had of CPU, in vCPUs times seconds.
    VcpuSeconds: None by ["cluster"];
    /// What the runs' tasks had of memory, in Fargate's GB times seconds.
    GbSeconds: None by ["cluster"];
    /// From the creation of an Update until a task owned its run.
    StartDelay: Seconds by ["cluster"];
    /// How long ECS pulled the images of a task.
    ImagePullDuration: Seconds by ["cluster"];
    /// How long a run restored and installed its dependencies.
    InstallDuration: Seconds by ["cluster"];
    /// Runs that restored dependencies from the cache.
    CacheHits: Count by ["cluster"];
    /// Runs that installed the packages of their language although the cache could have had them.
    CacheMisses: Count by ["cluster"];
    /// What runs restored from the cache: the size of the archives, up to 4 GiB.
    CacheRestoredBytes: Bytes by ["cluster"];
    /// Looks at an Update that could not begin.
    Waits: Count by ["cluster", "reason"];
    /// Calls that failed for a cause that passes, so that it is looked again later.
    TransientFailures: Count by ["cluster", "function"];
    /// Messages that have gone on as often as they may: what follows from them waits for the sweep.
    HopsExhausted: Count by ["cluster", "function"];
    /// Messages about an object that this release cannot read: nothing is done for them.
    UnreadableObjects: Count by ["cluster", "function"];
    /// Plans of the reconciler that break a rule of core: nothing of them is carried out.
    RefusedPlans: Count by ["function"];
    /// Stacks that a sweep saw.
    Stacks: Count by ["cluster"];
    /// Updates without a task that a sweep saw.
    UpdatesWaiting: Count by ["cluster"];
    /// Updates with a task that a sweep saw.
    UpdatesRunning: Count by ["cluster"];
    /// Hints that a sweep sent.
    SweepHints: Count by ["cluster"];
    /// How long a sweep of a cluster took.
    SweepDuration: Seconds by ["cluster"];
    /// Notifications without a good signature.
    SignaturesRefused: Count by ["function"];
    /// Drift checks that ended with a result.
    DriftChecks: Count by ["cluster"];
    /// Resources that a drift check found changed.
    DriftedResources: Count by ["cluster"];
}

/// Writes these values in one line. `fields` has the values of all their dimensions; what else is in it can be found in the logs and
/// costs nothing. No secrets.
pub fn emit(values: &[(Metric, f64)], fields: &[(&str, &str)], now: Timestamp) {
    tracing::info!(target: TARGET, "{}", line(values, fields, now));
}

/// Counts one look of a function at an object.
pub fn count_one(metric: Metric, function: &str, cluster: &str, object: &dyn fmt::Display, now: Timestamp) {
    emit(&[(metric, 1.0)], &[("cluster", cluster), ("function", function), ("object", &object.to_string())], now);
}

/// A number of things as a value.
#[must_use]
pub fn count(things: usize) -> f64 {
    u32::try_from(things).unwrap_or(u32::MAX).into()
}

fn line(values: &[(Metric, f64)], fields: &[(&str, &str)], now: Timestamp) -> Value {
    let directive = |(metric, _): &(Metric, f64)| {
        json!({
            "Namespace": NAMESPACE,
            "Dimensions": metric.dimensions(),
            "Metrics": [{ "Name": metric.name(), "Unit": metric.unit() }],
        })
    };
    let directives: Vec<_> = values.iter().map(directive).collect();
    let mut line: Map<_, _> = fields.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    line.extend(values.iter().map(|(metric, value)| (metric.name().to_owned(), json!(value))));
    line.insert("_aws".into(), json!({ "Timestamp": now.as_millisecond(), "CloudWatchMetrics": directives }));
    line.into()
}

/// Gives every line, without its end, to `write`, whatever the level of the logs.
pub fn lines<S: Subscriber + for<'a> LookupSpan<'a>>(write: impl Fn(&str) + Send + Sync + 'static) -> impl Layer<S> {
    Lines(write).with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO))
}

struct Lines<W>(W);

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Message(&self.0));
    }
}

struct Message<'a, W>(&'a W);

impl<W: Fn(&str)> Visit for Message<'_, W> {
    fn record_debug(&mut self, _message: &Field, value: &dyn fmt::Debug) {
        self.0(&format!("{value:?}"));
    }
}
