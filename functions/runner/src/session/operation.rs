//! The operation of a run: Pulumi's process, its lock, and its events.

use std::path::Path;

use backon::Retryable;
use driftless_contract::{Lock, Operation, ResourceStep, RunSpec, VERSION, to_json};
use tokio::time::Instant;

use super::{EVENTS_EVERY, Report, Session, Steps, not_run};
use crate::{
    StoreError,
    arguments::{self, Call},
    events::{Events, pending_in_state},
    failure::Failure,
    lock,
    pipe::Pipe,
    pulumi::Ended,
    s3::back_off,
};

impl Session<'_> {
    /// Carries out the operation and returns its events.
    pub(super) async fn operation(&self, report: &mut Report) -> Result<Events, Failure> {
        if self.spec.stale_lock.is_some() {
            // An operation that refreshes first does not report them.
            report.pending_operations = self.pending_operations().await;
        }
        if arguments::refreshes_before(self.spec) {
            self.refresh_before(report).await?;
        }
        if let Some(request) = &self.spec.plan {
            return self.operate_by_plan(request, report).await;
        }
        if arguments::looks_before(self.spec) {
            self.destroy_before(report).await?;
        }
        self.operate(report, arguments::operation).await
    }

    /// Carries out a call that may change the stack. Retries once if only locks of dead runs
    /// blocked it.
    pub(super) async fn operate(&self, report: &mut Report, call: impl Fn(&RunSpec, &Path) -> Call) -> Result<Events, Failure> {
        let (first, events) = self.attempt(report, "1", &call).await?;
        let is_stale = self.spec.stale_lock.as_ref().is_some_and(|dead| lock::is_stale(&first.words, dead));
        if first.success || !is_stale {
            return self.judged(&first, events);
        }
        self.log.say("driftless: removing the locks of the stack; all belong to lost runs");
        self.call(&Call::new(["cancel", "--yes"], Some(&self.spec.stack))).await?;
        let (second, events) = self.attempt(report, "2", &call).await?;
        self.judged(&second, events)
    }

    fn judged(&self, ended: &Ended, events: Events) -> Result<Events, Failure> {
        match self.judge(ended) {
            Ok(()) => Ok(events),
            Err(failure) => Err(failure.of_policies(&events, self.acted.get())),
        }
    }

    /// Fails if a refresh would change anything.
    async fn refresh_before(&self, report: &mut Report) -> Result<(), Failure> {
        let (ended, events) = self.attempt(report, "0", &arguments::refresh_before).await?;
        self.judge(&ended).map_err(|failure| if self.check_stop().is_err() { failure } else { failure.of_refresh(&events) })
    }

    /// Fails if a destroy would destroy anything.
    async fn destroy_before(&self, report: &mut Report) -> Result<(), Failure> {
        let (ended, events) = self.attempt(report, "0", &arguments::destroy_before).await?;
        report.changes.clear();
        self.judge(&ended)?;
        let found: u64 = events.changes.iter().filter(|(change, _)| *change != "same").map(|(_, count)| count).sum();
        if found == 0 {
            return Ok(());
        }
        let words = "nothing was destroyed; set expectNoChanges: false to allow it";
        Err(Failure::unknown(format!("expectNoChanges: the destroy would change {found} resource(s); {words}")))
    }

    /// The pending operations of an earlier run, from the state itself.
    async fn pending_operations(&self) -> Vec<String> {
        let state = match self.pulumi.ask(&Call::new(["stack", "export"], Some(&self.spec.stack))).await {
            Ok((true, state, _)) => pending_in_state(&state).map_err(|error| error.to_string()),
            Ok((false, _, words)) => Err(words),
            Err(error) => Err(error.to_string()),
        };
        match state {
            Ok(pending) => pending.iter().map(|operation| self.pulumi.mask.apply(operation)).collect(),
            Err(error) => {
                // If the state is broken, the operation itself reports that.
                self.log.say(&format!("driftless: cannot read the pending operations of an earlier run: {error}"));
                Vec::new()
            }
        }
    }

    async fn attempt(
        &self,
        report: &mut Report,
        number: &str,
        call: &impl Fn(&RunSpec, &Path) -> Call,
    ) -> Result<(Ended, Events), Failure> {
        self.check_stop()?;
        let event_log = self.event_logs.with_extension(number);
        let pipe = self.event_logs.with_extension(format!("{number}.pipe"));
        // An update under a plan previews first.
        let copy = self.violations.get().map(|_| Pipe::new(pipe.clone(), &event_log)).transpose().map_err(Failure::unknown)?;
        let call = call(self.spec, if copy.is_some() { &pipe } else { &event_log });
        let held = self.pulumi.hold(&call).map_err(not_run)?;
        let removes = call.arguments.iter().any(|argument| argument == arguments::REMOVE);
        let lock = held.id().map(|pid| self.lock(pid, removes));
        if let Some(lock) = &lock {
            // A held process has not started, and ends with this one.
            self.unless_stopped(async { self.announce(lock).await.map_err(Failure::platform) }).await?;
        }
        let mut events = Events::under(self.violations.get().cloned());
        let mut beat = tokio::time::interval(EVENTS_EVERY);
        let running = self.pulumi.release(held);
        tokio::pin!(running);
        let mut ended = loop {
            tokio::select! {
                ended = &mut running => break ended.map_err(not_run)?,
                _ = beat.tick() => self.observe(&mut events, &event_log),
            }
        };
        if let Some(copy) = copy {
            copy.end().await.map_err(Failure::unknown)?;
        }
        self.observe(&mut events, &event_log);
        self.acted.set(self.acted.get() || events.acted);
        if ended.killed
            && let Some(lock) = lock
        {
            let left = self.announce(&Lock { not_after: Some((self.now)()), ..lock }).await;
            left.unwrap_or_else(|error| {
                self.log.say(&format!("driftless: cannot report that pulumi may have left its lock: {error}"));
            });
        }
        let errors = events.errors();
        if !errors.is_empty() {
            ended.words = errors;
        }
        report.changes.clone_from(&events.changes);
        report.failures.clone_from(&events.failures);
        if !self.spec.is_preview() {
            report.steps = ResourceStep::longest(events.steps.clone());
        }
        if self.spec.operation == Operation::Preview && self.spec.plan.is_none() {
            report.would_change = events.would_change.iter().cloned().collect();
        }
        report.drift = (self.spec.preview_only && ended.success).then(|| events.drift());
        report.permalink = ended.permalink.take();
        if !events.pending.is_empty() {
            report.pending_operations.clone_from(&events.pending);
        }
        Ok((ended, events))
    }

    /// What Pulumi will write into its lock.
    fn lock(&self, pid: u32, removes: bool) -> Lock {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Lock { version: VERSION, host, pid, not_before: (self.now)(), not_after: None, removes, earlier: Vec::new() }
    }

    /// Stores the lock's content: before Pulumi can take it, and again with its end if Pulumi was
    /// killed and may have left it.
    async fn announce(&self, lock: &Lock) -> Result<(), StoreError> {
        let key = self.folder.keys.lock();
        let put = || self.folder.put(&key, to_json(lock), false);
        put.retry(back_off()).when(StoreError::passes).await
    }

    pub(super) fn observe(&self, events: &mut Events, event_log: &Path) {
        let seen = events.seen;
        if let Err(error) = events.read(event_log, &self.pulumi.mask) {
            self.log.say(&format!("driftless: cannot read pulumi's events: {error}"));
        }
        if events.seen > seen {
            self.pulumi.heard.set(Instant::now());
            self.engaged.set(true);
        }
        let current = events.current().map(|step| self.pulumi.mask.apply(&step));
        let Events { started, done, failed, .. } = *events;
        let planned = started.max(self.spec.resources.unwrap_or(0));
        self.gauge.steps.replace(Steps { planned, started, done, failed, current });
    }
}
