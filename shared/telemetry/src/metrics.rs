//! All metrics, in one list. A line of `CloudWatch`'s embedded metric format goes to standard
//! output unchanged: any text before or after the JSON object, even a logger's fields, would make
//! it a log line without metrics. Lambda forwards it unchanged.

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

/// Lines travel as tracing events of this target; without a subscriber for it they are not even
/// made.
pub(crate) const TARGET: &str = "emf";

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident: $unit:ident by $([$($dimension:literal),+])+;)+) => {
        /// A metric. Its name in `CloudWatch` is the variant's; docs/operations.md describes each.
        ///
        /// Each combination of its dimensions' values costs, so no dimension may grow with the
        /// number of Stacks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Metric {
            $($(#[$doc])* $name),+
        }

        impl Metric {
            /// All metrics.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The name in `CloudWatch`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// The unit, by `CloudWatch`'s name.
            #[must_use]
            pub fn unit(self) -> &'static str {
                match self { $(Self::$name => stringify!($unit)),+ }
            }

            /// The sets of dimensions of the metric.
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
    /// The CPU of the runs' tasks, in vCPUs times seconds.
    VcpuSeconds: None by ["cluster"];
    /// The memory of the runs' tasks, in Fargate's GB times seconds.
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
    /// Reconciliations of an Update that could not start.
    Waits: Count by ["cluster", "reason"];
    /// Calls with a transient error, after which the object is requeued.
    TransientFailures: Count by ["cluster", "function"];
    /// Messages that reached the maximum number of hops: their objects wait for the sweep.
    HopsExhausted: Count by ["cluster", "function"];
    /// The age of a message that is delivered again. SQS leaves messages that were received three
    /// times out of its own metric.
    RedeliveredMessageAge: Seconds by ["queue"];
    /// Messages about an object that this release cannot read. They are dropped.
    UnreadableObjects: Count by ["cluster", "function"];
    /// Plans of the reconciler that break a rule of core. They are not carried out.
    RefusedPlans: Count by ["function"];
    /// Stacks that a sweep found.
    Stacks: Count by ["cluster"];
    /// Updates without a task that a sweep found.
    UpdatesWaiting: Count by ["cluster"];
    /// Updates with a task that a sweep found.
    UpdatesRunning: Count by ["cluster"];
    /// Hints that a sweep sent.
    SweepHints: Count by ["cluster"];
    /// How long a sweep of a cluster took.
    SweepDuration: Seconds by ["cluster"];
    /// Notifications without a valid signature.
    SignaturesRefused: Count by ["function"];
    /// Drift checks that ended with a result.
    DriftChecks: Count by ["cluster"];
    /// Resources that a drift check found changed.
    DriftedResources: Count by ["cluster"];
}

/// Writes these values in one line. `fields` has the values of all their dimensions; its other
/// fields can be found in the logs and cost nothing extra. No secrets.
pub fn emit(values: &[(Metric, f64)], fields: &[(&str, &str)], now: Timestamp) {
    tracing::info!(target: TARGET, "{}", line(values, fields, now));
}

/// Counts one event of a function about an object.
pub fn count_one(metric: Metric, function: &str, cluster: &str, object: &dyn fmt::Display, now: Timestamp) {
    emit(&[(metric, 1.0)], &[("cluster", cluster), ("function", function), ("object", &object.to_string())], now);
}

/// A count as a value.
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

/// Passes every line, without its line break, to `write`, whatever the level of the logs.
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
