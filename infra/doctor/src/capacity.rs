//! What a load needs of an installation, and what limits it first. docs/scale.md explains the
//! numbers.

use std::fmt;

use serde_json::{Value, json};

use crate::cost::{HOURS, LOOK_SECONDS, Load, RUN_S3_CALLS, START_MINUTES, SWEEP_SECONDS_PER_STACK, networks, rounded};

/// The messages of a first run of a Stack for the reconciler, the fetcher, the launcher and the
/// recorder, as `bench calls` prints them. Their sum is [`crate::cost::RUN_INVOCATIONS`].
pub(crate) const RUN_MESSAGES: [f64; 4] = [4.0, 1.0, 1.0, 3.0];
/// The calls of the Kubernetes API of a first run, counted in the same way.
pub(crate) const RUN_KUBERNETES_CALLS: f64 = 46.0;
/// The calls of the Kubernetes API of a reconciliation without changes: the Stack, its source and
/// the label of its namespace.
const LOOK_KUBERNETES_CALLS: f64 = 3.0;
/// A live run is hinted once in this time, which leads to a message for the reconciler and one for
/// the launcher: an eighth of `TokenSeconds`.
const LIVE_SECONDS: f64 = 150.0;
/// A live run reports its progress at most once in this time.
const PROGRESS_SECONDS: f64 = 30.0;
/// How long the fetcher works at a source: an assumption, because it depends on the server.
const FETCH_SECONDS: f64 = 2.0;
/// The number of messages of a batch that a function handles at once.
const AT_ONCE: f64 = 4.0;
/// How busy the functions may be on average, so that a burst does not wait.
const BUSY: f64 = 0.5;
/// A sweep reads pages for this part of a minute.
const SWEEP_PART: f64 = 0.75;
/// The memory of the sweeper by default, for which `cost` has its time for a Stack.
const FUNCTION_MIB: f64 = 256.0;
/// The same time of a whole core, as `bench sweep` measures it. The README has the figures.
pub(crate) const SWEEP_SECONDS_OF_A_CORE: f64 = 9.4 / 10_000.0;

/// Documented quotas of AWS that every account has, in calls a second. Most can be raised.
pub mod quota {
    /// Concurrent executions of Lambda.
    pub const LAMBDA: f64 = 1000.0;
    /// vCPUs of Fargate of a new account.
    pub const FARGATE_VCPUS: f64 = 6.0;
    /// `RunTask` of Fargate, sustained and at once.
    pub const RUN_TASK: f64 = 20.0;
    /// Calls of ECS that read tasks, sustained.
    pub const ECS_READS: f64 = 20.0;
    /// Calls of each action of a FIFO queue.
    pub const FIFO: f64 = 300.0;
    /// Calls of S3 that write below one prefix; reads have more.
    pub const S3: f64 = 3500.0;
}

/// The event source mapping of a queue.
pub(crate) struct Mapping {
    /// Its parameter.
    pub(crate) concurrency: &'static str,
    /// The template's default.
    pub(crate) default: f64,
    /// The messages that one instance handles at once.
    at_once: f64,
    /// How long it handles a message, in seconds.
    seconds: f64,
}

/// The mappings of the queues for hints, sources, launches, results and progress.
pub(crate) const MAPPINGS: [Mapping; 5] = [
    Mapping { concurrency: "ReconcilerConcurrency", default: 10.0, at_once: AT_ONCE, seconds: LOOK_SECONDS },
    // A FIFO queue: one message after another.
    Mapping { concurrency: "FetcherConcurrency", default: 10.0, at_once: 1.0, seconds: FETCH_SECONDS },
    Mapping { concurrency: "LauncherConcurrency", default: 5.0, at_once: AT_ONCE, seconds: LOOK_SECONDS },
    Mapping { concurrency: "RecorderConcurrency", default: 5.0, at_once: AT_ONCE, seconds: LOOK_SECONDS },
    Mapping { concurrency: "ProgressConcurrency", default: 2.0, at_once: AT_ONCE, seconds: LOOK_SECONDS },
];

impl Mapping {
    /// The concurrency for this rate of messages; the minimum of Lambda is 2.
    fn needed(&self, rate: f64) -> f64 {
        (rate * self.seconds / self.at_once / BUSY).ceil().max(2.0)
    }
}

/// A load, and the quotas of the account that are its own.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Stacks, runs and tasks.
    pub load: Load,
    /// The period in which every Stack is reconciled once, in seconds.
    pub look_seconds: f64,
    /// The memory of the sweeper in MiB.
    pub sweeper_memory: f64,
    /// The vCPUs that Fargate may run at once.
    pub vcpus: f64,
    /// Lambda's concurrent executions.
    pub lambda: f64,
}

/// What a load uses of something limited.
struct Limit {
    name: &'static str,
    used: f64,
    of: f64,
    /// Whether the number of Stacks increases it, and not that of runs.
    by_stacks: bool,
}

impl Demand {
    fn runs_per_second(&self) -> f64 {
        self.load.runs_per_day / 86_400.0
    }

    /// The runs whose task exists at one time.
    fn live_runs(&self) -> f64 {
        self.runs_per_second() * (self.load.minutes + START_MINUTES + self.load.pull_minutes()) * 60.0
    }

    fn looks_per_second(&self) -> f64 {
        self.load.stacks / self.look_seconds
    }

    /// The messages a second of each queue.
    fn rates(&self) -> [f64; 5] {
        let live = self.live_runs();
        let [hints, sources, launches, results] = RUN_MESSAGES.map(|messages| messages * self.runs_per_second());
        [
            hints + self.looks_per_second() + live / LIVE_SECONDS,
            sources,
            launches + live / LIVE_SECONDS,
            results + live / self.look_seconds,
            live / PROGRESS_SECONDS,
        ]
    }

    /// The concurrency of each queue: the template's default, or more where the load needs it.
    fn concurrency(&self) -> [f64; 5] {
        let mut all = self.rates();
        for (mapping, value) in MAPPINGS.iter().zip(&mut all) {
            *value = mapping.needed(*value).max(mapping.default);
        }
        all
    }

    /// How long a pass over all Stacks takes, in seconds. The clusters share the sweeper, and
    /// Lambda gives it CPU by its memory.
    fn pass_seconds(&self) -> f64 {
        let of_stack = (SWEEP_SECONDS_PER_STACK * FUNCTION_MIB / self.sweeper_memory).max(SWEEP_SECONDS_OF_A_CORE);
        self.load.stacks * of_stack / SWEEP_PART
    }

    fn limits(&self) -> Vec<Limit> {
        let (runs, live, rates) = (self.runs_per_second(), self.live_runs(), self.rates());
        let by_runs = |name, used, of| Limit { name, used, of, by_stacks: false };
        vec![
            by_runs("Fargate: vCPUs of live tasks", live * f64::from(self.load.size.cpu) / 1024.0, self.vcpus),
            Limit {
                name: "Lambda: concurrent executions",
                used: self.concurrency().iter().sum::<f64>() + 2.0,
                of: self.lambda,
                by_stacks: self.looks_per_second() > runs * RUN_MESSAGES[0],
            },
            by_runs("ECS: RunTask a second", runs, quota::RUN_TASK),
            by_runs("ECS: reads of tasks a second", runs + live / self.look_seconds, quota::ECS_READS),
            by_runs("SQS: sends to the FIFO queue a second", rates[1], quota::FIFO),
            by_runs("S3: calls a second", runs * RUN_S3_CALLS, quota::S3),
            Limit {
                name: "sweeper: seconds of a pass over Stacks",
                used: self.pass_seconds(),
                of: self.look_seconds,
                by_stacks: true,
            },
        ]
    }

    /// The calls of the Kubernetes API of a cluster a second.
    fn kubernetes_calls(&self) -> f64 {
        let all = self.runs_per_second() * RUN_KUBERNETES_CALLS + self.looks_per_second() * LOOK_KUBERNETES_CALLS;
        all / self.load.clusters
    }
}

impl Demand {
    /// The limit that a growing load reaches first, and the Stacks or the runs an hour that reach
    /// it.
    fn first_limit(&self) -> Option<(Limit, f64)> {
        let first = self.limits().into_iter().max_by(|a, b| (a.used / a.of).total_cmp(&(b.used / b.of)))?;
        let base = if first.by_stacks { self.load.stacks } else { self.runs_per_second() * 3600.0 };
        let at = base * first.of / first.used;
        Some((first, at))
    }

    /// What the load needs, for a script.
    #[must_use]
    pub fn document(&self) -> Value {
        let parameter = |((mapping, rate), set): ((&Mapping, f64), f64)| {
            let Mapping { concurrency, default, .. } = mapping;
            json!({
                "name": concurrency, "messagesPerSecond": rounded(rate, 3), "needed": mapping.needed(rate), "default": default,
                "set": set,
            })
        };
        let parameters: Vec<_> = MAPPINGS.iter().zip(self.rates()).zip(self.concurrency()).map(parameter).collect();
        let limit = |Limit { name, used, of, .. }: &Limit| json!({ "name": name, "used": rounded(*used, 3), "of": of, "percent": rounded(used / of * 100.0, 1) });
        let first = self.first_limit().map(|(Limit { name, used, of, by_stacks }, at)| {
            let unit = if by_stacks { "stacks" } else { "runsPerHour" };
            json!({ "name": name, "exceeded": used > of, "at": at.round(), "unit": unit })
        });
        json!({
            "parameters": parameters,
            "limits": self.limits().iter().map(limit).collect::<Vec<_>>(),
            "kubernetesCallsPerSecond": rounded(self.kubernetes_calls(), 3),
            "usdPerMonth": networks(self.load.bill().within(HOURS)),
            "firstLimit": first,
        })
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<24}{:>12}{:>9}{:>9}{:>8}", "parameter", "messages/s", "needed", "default", "set")?;
        for ((mapping, rate), set) in MAPPINGS.iter().zip(self.rates()).zip(self.concurrency()) {
            let Mapping { concurrency, default, .. } = mapping;
            writeln!(formatter, "{concurrency:<24}{rate:>12.2}{:>9}{default:>9}{set:>8}", mapping.needed(rate))?;
        }
        writeln!(formatter, "\n{:<44}{:>10}{:>10}{:>8}", "limit", "used", "of", "%")?;
        for Limit { name, used, of, .. } in self.limits() {
            writeln!(formatter, "{name:<44}{used:>10.1}{of:>10}{:>8.1}", used / of * 100.0)?;
        }
        let name = "Kubernetes API: calls a second of a cluster";
        writeln!(formatter, "{name:<44}{:>10.1}{:>10}{:>8}", self.kubernetes_calls(), "-", "-")?;
        let [nat, public] = self.load.bill().within(HOURS);
        writeln!(formatter, "\nUSD a month: {nat:.0} behind NAT, {public:.0} with public addresses (make cost)")?;
        let Some((Limit { name, used, of, by_stacks }, at)) = self.first_limit() else { return Ok(()) };
        let unit = if by_stacks { "Stacks" } else { "runs an hour" };
        let state = if used > of { "exceeded" } else { "reached" };
        write!(formatter, "first limit: {name}, {state} at {at:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::*;
    use driftless_core::DefaultSize;

    fn demand(stacks: f64, runs_per_hour: f64) -> Demand {
        let load = Load {
            stacks,
            runs_per_day: runs_per_hour * 24.0,
            minutes: 3.0,
            clusters: 1.0,
            size: DefaultSize::default(),
            image_mib: 300.0,
            install_mib: 0.0,
            cache_misses: 0.0,
            cache_mib: 0.0,
            nat_gateways: 0.0,
            ecr: false,
            s3_endpoint: false,
        };
        Demand { load, look_seconds: 600.0, sweeper_memory: FUNCTION_MIB, vcpus: 6.0, lambda: quota::LAMBDA }
    }

    #[test]
    fn defaults_are_those_of_the_template() {
        let template: Value = serde_saphyr::from_str(include_str!("../../template.yaml")).unwrap();
        let parameters = &template["Parameters"];
        for Mapping { concurrency, default, .. } in &MAPPINGS {
            assert_eq!(parameters[concurrency]["Default"].as_f64(), Some(*default), "{concurrency}");
        }
        let mappings = template["Resources"].as_object().unwrap().values();
        let count = mappings.filter(|resource| resource["Type"] == "AWS::Lambda::EventSourceMapping").count();
        assert_eq!(count, MAPPINGS.len());
        assert_eq!(parameters["SweeperMemory"]["Default"].as_f64(), Some(FUNCTION_MIB));
        assert_eq!(parameters["LookPeriodSeconds"]["Default"], 600);
        assert_eq!(parameters["TokenSeconds"]["Default"].as_f64(), Some(LIVE_SECONDS * 8.0));
    }

    #[test]
    fn first_limit_of_a_new_account_is_its_vcpus_and_of_many_stacks_the_sweep() {
        let text = demand(100.0, 10.0).to_string();
        assert!(text.contains("\nfirst limit: Fargate: vCPUs of live tasks, reached at "), "{text}");
        let text = Demand { vcpus: 1000.0, ..demand(200_000.0, 1.0) }.to_string();
        assert!(text.contains("\nfirst limit: sweeper: seconds of a pass over Stacks, exceeded at 90000 Stacks"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    /// How long messages wait, in seconds: the mean, and the longest wait of a burst of 100 at
    /// once. Messages come at random times, and take a random time, with so many servers.
    fn waits(rate: f64, servers: usize, seconds: f64) -> (f64, f64) {
        let mut state = 7_u64;
        let mut exponential = |mean: f64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX);
            -mean * (1.0 - uniform).max(1e-12).ln()
        };
        // When each server is free, in whole microseconds.
        let mut free: BinaryHeap<_> = vec![Reverse(0_u64); servers].into();
        let (mut now, mut sum, mut longest) = (0.0, 0.0, 0.0_f64);
        let count = 50_000;
        for number in 0..count {
            let is_burst = number > count - 100;
            now += if is_burst { 0.0 } else { exponential(1.0 / rate) };
            let Reverse(at) = free.pop().unwrap();
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "microseconds"
            )]
            let begin = {
                let begin = now.max(at as f64 / 1e6);
                free.push(Reverse(((begin + exponential(seconds)) * 1e6) as u64));
                begin
            };
            if is_burst { longest = longest.max(begin - now) } else { sum += begin - now }
        }
        (sum / f64::from(count), longest)
    }

    /// A discrete-event simulation of the queues, with the times of the model.
    #[test]
    fn simulated_messages_hardly_wait_with_the_concurrency_that_is_needed() {
        for (stacks, runs) in [(1_000.0, 100.0), (10_000.0, 1_000.0), (100_000.0, 10_000.0)] {
            for (mapping, rate) in MAPPINGS.iter().zip(demand(stacks, runs).rates()) {
                let Mapping { concurrency, at_once, seconds, .. } = mapping;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
                let servers = |concurrency: f64| (concurrency * at_once) as usize;
                let needed = mapping.needed(rate);
                let (mean, burst) = waits(rate, servers(needed), *seconds);
                assert!(mean < *seconds, "{concurrency} of {stacks}: {mean} s on average");
                assert!(burst < 120.0 * seconds, "{concurrency} of {stacks}: a burst takes {burst} s");
                if needed > 4.0 {
                    let (mean, _) = waits(rate, servers(needed) * 2 / 5, *seconds);
                    assert!(mean > 10.0 * seconds, "{concurrency} of {stacks}: {mean} s with less than half of it");
                }
            }
        }
    }
}
